"""`check` and `show`: all faults of a flow at once, a flow at each stage, two of them compared, and its facts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from flowgraph.analysis.flat_graph import flat, full_hash, structure_hash
from flowgraph.cluster.plan import Plan
from flowgraph.flows.flow_files import flows_in, shipped_files
from flowgraph.language.laws import STAGES
from flowgraph.serialize.graph import from_json
from flowgraph.serialize.program import program_from_json
from flowgraph.serialize.program_text import program_text
from tests.cli.conftest import Said

Flowgraph = Callable[..., Said]
Golden = Callable[[str, str], None]
SHIPPED = [name for path in shipped_files() for name in flows_in(path)]

HEAD = """\
from __future__ import annotations

from flowgraph import Loss, flow, stale
from nodes import *


@flow
def mine(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
"""

WRONG_CALLS = """\
    rollout = generate(policy, prompts, n=0, temprature=2)
    advantages = group_normalize(score(rollout), rollout.mask)
    ref_logprobs = logprobs(ref, prompts)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        return clipped(new, advantages, advantages, old=rollout.logprobs) + 0.1 * kl_k3(new, rollout.mask, ref=new)

    return update(policy, loss, lr=-1)
"""

BROKEN_LAWS = """\
    rollout = generate(stale(policy, at_most=2), prompts)
    other = generate(policy, prompts)
    advantages = group_normalize(score(rollout), other.group)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        return policy_gradient(new, advantages, rollout.mask) + 0.1 * kl_k3(new, rollout.mask, ref=new)

    update(policy, loss)
    return update(policy, loss)
"""

RIGHT = """\
    rollout = generate(policy, prompts, n=2)
    advantages = group_normalize(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    return update(policy, loss)
"""


def write(body: str) -> str:
    Path("mine.py").write_text(HEAD + body)
    return "mine.py"


@pytest.mark.parametrize(("name", "body"), [("wrong_calls", WRONG_CALLS), ("broken_laws", BROKEN_LAWS)])
def test_every_fault_of_a_flow_is_told_at_once(name: str, body: str, flowgraph: Flowgraph, golden: Golden) -> None:
    said = flowgraph("check", write(body))
    assert said.code == 1
    golden(said.out, f"cli/check_{name}.txt")
    first = flowgraph("show", "mine.py")
    assert first.code == 1 and first.err.strip() in said.out, "what ends another command is among them"
    assert said.err.startswith("mine.py: ")
    told = json.loads(flowgraph("check", "mine.py", "--json").out)["faults"]
    assert "\n".join(told) == said.out.strip() and len(told) == int(said.err.split()[1])


def test_a_right_flow_has_no_fault(flowgraph: Flowgraph) -> None:
    for name in (write(RIGHT), *SHIPPED):
        said = flowgraph("check", name, "--cluster", "1xcpu-64GiB")
        told = [line for line in said.err.splitlines() if not line.startswith("left out: ")]
        assert (said.code, said.out, told) == (0, "", [f"{name}: no fault"])


def test_faults_of_settings_of_the_batch_and_of_the_plan_are_told_together(flowgraph: Flowgraph) -> None:
    said = flowgraph("check", "grpo", "--set", "policy.generat.n=3", "--set", "policy.update.lr=-1", "--set", "score=1")
    assert said.code == 1 and said.err == "grpo: 3 faults\n"
    assert "did you mean `policy.generate.n`" in said.out and "policy.update.lr=-1" in said.out
    said = flowgraph("check", "grpo", "--batch", "900", "--cluster", "1xcpu-1MiB")
    assert said.code == 1 and "nearest: --batch 800" in said.out and "no placement for grpo" in said.out


# ------------------------------------------------------------------------------------------- devices of a known kind


def test_check_says_whether_a_flow_fits_on_devices_of_a_known_kind(flowgraph: Flowgraph) -> None:
    write(RIGHT)
    said = flowgraph("check", "mine.py", "--cluster", "2x8xh100", "--model", "Qwen/Qwen3-8B", "--batch", "1024")
    assert (said.code, said.out) == (0, ""), "what is planned for there trains in 16 bits, and no 800 digits"
    assert re.fullmatch(
        r"assuming 1,024 prompts a step, of 512 tokens, and responses of maximum length; `flowgraph plan` has "
        r"options for both\nit fits on 2x8xh100: [0-9.]+ s a step on 16 devices; `flowgraph plan` shows how\n"
        r"mine\.py: no fault\n",
        said.err,
    )
    small = ("check", "mine.py", "--cluster", "1x1xh100", "--model", "Qwen/Qwen3-32B")
    said = flowgraph(*small)
    assert said.code == 1 and said.out.startswith("no placement for mine on 1 h100-sxm-80g: ")
    assert "smallest changes that fit" in said.out
    told = json.loads(flowgraph(*small, "--json").out)
    assert len(told["faults"]) == 1 and told["notes"][0].startswith("assuming 256 prompts a step")


def test_check_says_what_is_missing_where_no_model_is_named(flowgraph: Flowgraph) -> None:
    write(RIGHT)
    said = flowgraph("check", "mine.py", "--cluster", "2x8xh100")
    assert (said.code, said.out) == (0, "")
    command = "flowgraph check mine.py --cluster 2x8xh100 --model Qwen/Qwen3-8B"
    assert said.err == (
        f"whether it fits on 2x8xh100 is not known: no model is named\n  hint: {command}\nmine.py: no fault\n"
    )
    assert "it fits on 2x8xh100" in flowgraph(*command.split()[1:]).err, "the command that helps does"


def test_faults_of_a_flow_are_told_on_devices_of_a_known_kind_too(flowgraph: Flowgraph) -> None:
    known = ("--cluster", "2x8xh100", "--model", "Qwen/Qwen3-0.6B")
    said = flowgraph("check", write(RIGHT.replace("return update(policy, loss)", "return policy")), *known)
    assert said.code == 1 and "runs no model, so there is nothing to place\n  hint: return update(…)" in said.out
    said = flowgraph("check", "grpo", *known, "--data", "digits", "--batch", "900")
    assert said.code == 1 and "nearest: --batch 800" in said.out
    assert "unknown device `h1000`" in flowgraph("check", "grpo", "--cluster", "2x8xh1000").out


# ------------------------------------------------------------------------------------------- stages


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_flow_is_printed_at_every_stage_as_its_golden(
    name: str, stage: str, flowgraph: Flowgraph, golden: Golden
) -> None:
    said = flowgraph("show", name, "--stage", stage, "--cluster", "2xcpu-4GiB", "--verify")
    assert said.code == 0, said.err
    golden(said.out, f"stages/{name}_{stage}.txt")


def test_what_a_stage_gives_as_json_can_be_read_back(flowgraph: Flowgraph) -> None:
    def shown(stage: str) -> str:
        return flowgraph("show", "grpo", "--stage", stage, "--json", "--cluster", "2xcpu-4GiB").out

    named = json.loads(shown("named"))
    graph = from_json(json.dumps(named))
    assert (named["structure_hash"], named["full_hash"]) == (structure_hash(graph), full_hash(graph))
    assert from_json(shown("described")).name == "grpo"
    placed = json.loads(shown("placed"))
    assert Plan.from_json(json.dumps(placed["plan"])).structure_hash == structure_hash(graph)
    assert placed["graph"] == flat(from_json(json.dumps(placed["graph"])))
    program = program_from_json(shown("lowered"))
    text = flowgraph("show", "grpo", "--stage", "lowered", "--cluster", "2xcpu-4GiB").out
    assert program_text(program) == text.strip()


def test_two_stages_and_two_flows_are_compared_line_by_line(flowgraph: Flowgraph, golden: Golden) -> None:
    golden(flowgraph("show", "grpo", "--diff", "described", "named").out, "cli/diff_stages.txt")
    golden(flowgraph("diff", "grpo", "gpg").out, "cli/diff_flows.txt")
    assert flowgraph("diff", "grpo", "grpo").out == ""


def test_renaming_a_variable_changes_no_hash(flowgraph: Flowgraph) -> None:
    write(RIGHT)
    Path("yours.py").write_text(HEAD + RIGHT.replace("rollout", "drawn").replace("advantages", "worth"))
    one, two = (json.loads(flowgraph("show", name, "--json").out) for name in ("mine.py", "yours.py"))
    assert one["full_hash"] == two["full_hash"]


def test_facts_tell_work_bytes_and_state(flowgraph: Flowgraph) -> None:
    said = flowgraph("show", "grpo", "--facts", "--cluster", "2xcpu-4GiB")
    assert said.code == 0, said.err
    assert all(word in said.out for word in ("policy.generate", "policy.update", "weights", "state of adamw", "seed"))
    assert max(map(len, said.out.splitlines())) <= 120
    told = json.loads(flowgraph("show", "grpo", "--facts", "--json", "--cluster", "2xcpu-4GiB").out)
    assert {"nodes", "edges", "state"} <= set(told)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show",), "Missing argument 'FLOW'"),
        (("show", "grpo", "--stage", "lowred"), "--stage: no stage `lowred`\n  hint: did you mean `lowered`?\n"),
        (("show", "grpo", "--diff", "named", "gpg"), "--stage: no stage `gpg`"),
        (("diff", "grpo", "gpgg"), "no shipped flow `gpgg`"),
        (("show", "grpo", "--pass", "nothing.py:f"), "nothing.py"),
        (("show", "grpo", "--pass", "tidy"), "no pass `tidy`"),
        (("check", "nothing.py"), "nothing.py"),
    ],
)
def test_what_cannot_be_shown_is_said(arguments: tuple[str, ...], said: str, flowgraph: Flowgraph) -> None:
    told = flowgraph(*arguments)
    assert told.code in (1, 2) and said in told.err and "Traceback" not in told.err


# ------------------------------------------------------------------------------------------- passes of a user's own

OWN = """\
from flowgraph.language.graph import rewrite


def plain(graph):
    return rewrite(graph, lambda node: node)


def unnamed(graph):
    from dataclasses import replace

    return rewrite(graph, lambda node: replace(node, name="same"))


number = 3
"""


def test_a_pass_of_a_users_own_plugs_in_by_file_and_name(flowgraph: Flowgraph) -> None:
    Path("own.py").write_text(OWN)
    assert flowgraph("show", "grpo", "--pass", "own.py:plain").out == flowgraph("show", "grpo").out
    broken = flowgraph("show", "grpo", "--pass", "own.py:unnamed")
    assert broken.code == 1 and "two nodes are named same" in broken.err and "after the pass unnamed" in broken.err
    assert "`own.py:number` is not a function" in flowgraph("show", "grpo", "--pass", "own.py:number").err
    assert "no pass `plane`" in flowgraph("show", "grpo", "--pass", "own.py:plane").err
    assert "did you mean `plain`" in flowgraph("plan", "grpo", "--pass", "own.py:plane").err
