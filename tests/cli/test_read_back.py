"""A plan that was found, read back from its file: each verb gives the seconds that the file states."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowgraph.app import make_request
from flowgraph.app.planning.problem import prepare, prepare_from
from flowgraph.cluster.plan import Plan
from placements.search.search import find

Run = Callable[..., Any]
LENGTHS = ("--prompt-tokens", "512", "--response-tokens", "mean=2k,max=8k")
SMALL = ("--cluster", "2x8xh100", "--model", "Qwen/Qwen3-0.6B", "--batch", "64", *LENGTHS)

OWN = """\
from dataclasses import replace

from flowgraph.language.graph import rewrite


def fewer(graph):
    def change(node):
        own = {"n": 4} if node.op.kind == "generate" else {}
        return replace(node, settings=node.settings.model_copy(update=own))

    return rewrite(graph, change)
"""

PROFILE = """\
[fsdp]
matmul_share = 0.5

[host]
driver_share = 0.2
"""

CLUSTER = """\
[[node]]
name = "slow"
count = 1
host_memory = "2TiB"
cores = 64
network = "400 GB/s"
price_per_hour = 9.6

[[node.device]]
model = "h20"
count = 8

[[node]]
name = "fast"
count = 1
host_memory = "2TiB"
cores = 64
network = "400 GB/s"
price_per_hour = 24.0

[[node.device]]
model = "h100"
count = 8
"""

OPTIONS: list[tuple[str, tuple[str, ...]]] = [
    ("grpo", ()),
    ("grpo", ("--batch", "32")),
    ("grpo", ("--prompt-tokens", "mean=300,p99=2k")),
    ("grpo", ("--response-tokens", "1500")),
    ("grpo", ("--model", "policy=Qwen/Qwen3-0.6B+lora=8")),
    ("ppo", ("--model", "critic=Qwen/Qwen3-1.7B")),
    ("grpo", ("--set", "policy.generate.n=4")),
    ("grpo", ("--pass", "own.py:fewer")),
    ("grpo", ("--engine", "sample=vllm")),
    ("grpo", ("--engine", "train=megatron", "--engine", "infer=megatron")),
    ("grpo", ("--precision", "fp8")),
    ("grpo", ("--profile", "profile.toml")),
    ("grpo", ("--staleness", "0")),
    ("grpo", ("--staleness", "1", "--placement", "split")),
    ("grpo", ("--staleness", "4", "--placement", "standalone")),
    ("grpo", ("--staleness", "auto")),
    ("decoupled_ppo", ("--placement", "split")),
    ("grpo", ("--staleness", "2", "--ratio", "3:1", "--placement", "split")),
    ("grpo", ("--ratio", "1:1", "--placement", "split:nemo-aligner")),
    ("grpo", ("--objective", "devices")),
    ("grpo", ("--objective", "cost", "--cluster", "cluster.toml")),
    ("grpo", ("--cluster", "cluster.toml")),
    ("grpo", ("--cluster", "cluster.toml", "--placement", "standalone")),
    ("ppo", ("--robust",)),
    ("ppo", ("--search", "greedy")),
    ("ppo", ("--placement", "split:openrlhf")),
    ("ppo", ("--pin", "policy.sample=draws", "--pin", "critic.train=draws", "--pin", "policy.train=pool1")),
]


@pytest.fixture
def found(flowgraph: Run) -> Callable[..., dict[str, Any]]:
    """Return `found(flow, *options)`: the plan that is found, as it is written to plan.json."""

    def make(flow: str, *options: str) -> dict[str, Any]:
        Path("own.py").write_text(OWN)
        Path("profile.toml").write_text(PROFILE)
        Path("cluster.toml").write_text(CLUSTER)
        said = flowgraph("plan", flow, *SMALL, *options, "-o", "plan.json")
        assert said.code == 0, said.err
        written: dict[str, Any] = json.loads(Path("plan.json").read_text())
        return written

    return make


def told(said: Any) -> Any:
    """Return the JSON that a command printed that went well."""
    assert said.code == 0, said.err
    return json.loads(said.out)


VERBS = ("explain", "simulate", "compare", "check", "check as a flow's")


def seconds_of(verb: str, flow: str, flowgraph: Run) -> list[float]:
    """Return the seconds of a step that a verb tells of plan.json; none of `check`, which must find no fault."""
    if verb == "explain":
        return [each["step_s"] for each in told(flowgraph("explain", "plan.json", "--json"))]
    if verb == "simulate":
        simulated = told(flowgraph("simulate", "plan.json", "--steps", 24, "--json"))
        return [simulated["period_s"], simulated["simulated_s"]]
    if verb == "compare":
        beside = told(flowgraph("compare", "plan.json", "./plan.json", "--json"))
        return [beside["plan.json"]["step"]["period_s"]]
    checked = flowgraph("check", *(("plan.json",) if verb == "check" else (flow, "--plan", "plan.json")))
    assert (checked.code, checked.out) == (0, ""), checked
    return []


@pytest.mark.slow(group="commands")
@pytest.mark.parametrize(
    "every_verb", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["one verb", "all verbs"]
)
@pytest.mark.parametrize("place", range(len(OPTIONS)), ids=[" ".join((flow, *more)) for flow, more in OPTIONS])
def test_a_plan_found_with_any_option_is_forecast_again_as_its_file_says(
    place: int, every_verb: bool, flowgraph: Run, found: Any
) -> None:
    flow, options = OPTIONS[place]
    plan = found(flow, *options)
    step_s = pytest.approx(plan["step"]["period_s"], rel=1e-9)
    for verb in VERBS if every_verb else (VERBS[place % len(VERBS)],):
        assert all(each == step_s for each in seconds_of(verb, flow, flowgraph)), verb
    again = told(flowgraph("plan", flow, "--plan", "plan.json", "--json", "-o", "again.json"))
    assert again["plan"]["step"]["period_s"] == step_s
    assert json.loads(Path("again.json").read_text()) == plan


def test_simulate_says_the_seconds_of_the_file_where_few_steps_take_others(flowgraph: Run, found: Any) -> None:
    plan = found("ppo", "--staleness", "2", "--placement", "standalone")
    said = flowgraph("simulate", "plan.json", "--steps", 1)
    assert f"a step takes {plan['step']['period_s']:,.1f} s once steps follow each other" in said.out


def test_what_a_plan_was_made_without_and_in_which_ratio_is_in_its_file(flowgraph: Run) -> None:
    models, cluster = ("policy=Qwen/Qwen3-0.6B", "ref=Qwen/Qwen3-0.6B"), "2x8xh100"
    lengths = {"prompt_tokens": 512, "response_tokens": "mean=2k,max=8k"}
    posed = prepare(make_request(flow="grpo", model=models, batch=64, cluster=cluster, **lengths))
    posed = posed.having(staleness=2, ratio=(1, 3), without=("ref",))
    plan = find(posed.problem).best.plan(posed.assumed)
    Path("plan.json").write_text(plan.to_json())
    assert plan.step is not None
    (train, *_) = told(flowgraph("explain", "plan.json", "--json"))
    assert train["step_s"] == pytest.approx(plan.step.period_s, rel=1e-9)
    assert "ref.infer" not in {name for each in train["elsewhere"] for name in each["beside"]}
    assert flowgraph("check", "plan.json").code == 0
    again = prepare_from(Plan.from_json(Path("plan.json").read_text()), "plan.json")
    assert again.assumed == posed.assumed
    for name in (
        "prompts",
        "prompt",
        "response",
        "engines",
        "sampling",
        "calibrated",
        "calibration",
        "staleness",
        "ratio",
        "without",
    ):
        assert getattr(again.problem, name) == getattr(posed.problem, name), name


def test_what_is_asked_for_is_what_is_planned(found: Any) -> None:
    plain = found("grpo")["step"]["period_s"]
    fp8 = found("grpo", "--precision", "fp8")
    assert {each["role"]: each["running"]["precision"] for each in fp8["placed"]}["policy.sample"] == "fp8"
    assert found("grpo", "--profile", "profile.toml")["step"]["period_s"] > 1.02 * plain
    assert found("grpo", "--pass", "own.py:fewer")["step"]["period_s"] < 0.9 * plain
    for ratio, devices in (("3:1", [4, 8]), ("1:1", [8, 8])):
        split = found("grpo", "--ratio", ratio, "--placement", "split")
        assert [len(each["devices"]) for each in split["pools"]] == devices, (
            "those that train, then those that draw, as near as sizes come"
        )


def test_a_plan_whose_role_may_lag_less_by_hand_is_forecast_so(flowgraph: Run, found: Any) -> None:
    plan = found("decoupled_ppo", "--placement", "split", "--staleness", "4")
    draws = next(each for each in plan["placed"] if each["role"] == "policy.sample")
    assert draws["lag"] > 0
    draws |= {"lag": 0, "ahead": 0}
    Path("plan.json").write_text(json.dumps(plan))
    again = told(flowgraph("plan", "decoupled_ppo", "--plan", "plan.json", "--json"))["plan"]
    assert again["step"]["period_s"] > 1.1 * plan["step"]["period_s"]


# ---------------------------------------------------------------------------------------- a flow and its plan's file


def test_a_flow_is_planned_again_with_the_models_and_rows_that_the_file_names(flowgraph: Run, found: Any) -> None:
    plan = found("grpo", "--model", "policy=Qwen/Qwen3-8B")
    said = flowgraph("plan", "grpo", "--plan", "plan.json")
    assert said.code == 0, said.err
    assert "policy.generate: 64 prompts × 16 = 1,024 rows, of at most 512 + 8,000 tokens" in said.out
    assert "seconds of a step" in said.out
    facts = told(flowgraph("show", "grpo", "--facts", "--json", "--plan", "plan.json"))
    assert (facts["prompts"], facts["prompt_tokens"]) == (64, 512)
    weights = next(each for each in facts["edges"] if each["value"] == "policy" and each["reader"] == "policy.update")
    assert weights["bytes"] > 2 * 8e9, "of an 8B model, not of the tiny one"
    placed = flowgraph("show", "grpo", "--stage", "placed", "--plan", "plan.json").out
    assert placed.startswith("flow grpo(") and "max_tokens" not in placed, "which digits would have shorter"
    assert flowgraph("draw", "plan.json").code == 0
    other = told(flowgraph("plan", "grpo", "--plan", "plan.json", "--model", "Qwen/Qwen3-0.6B", "--json"))["plan"]
    assert other["assumed"]["models"] == {"policy": "Qwen/Qwen3-0.6B", "ref": "Qwen/Qwen3-0.6B"}
    assert other["step"]["period_s"] < 0.7 * plan["step"]["period_s"]


def test_a_plan_that_was_edited_is_forecast_as_it_now_is(flowgraph: Run, found: Any) -> None:
    plan = found("grpo", "--model", "policy=Qwen/Qwen3-8B")
    before = plan["step"]["period_s"]
    train = next(each for each in plan["placed"] if each["role"] == "policy.train")
    train["layout"] |= {"data": 2, "tensor": 8}
    Path("plan.json").write_text(json.dumps(plan))
    again = told(flowgraph("plan", "grpo", "--plan", "plan.json", "--json"))["plan"]
    assert again["step"]["period_s"] > before
    assert again["pools"] == plan["pools"]
    told_by_explain = told(flowgraph("explain", "plan.json", "--json"))
    assert told_by_explain[0]["step_s"] == pytest.approx(again["step"]["period_s"])
    assert "the same pools at their fastest" in flowgraph("explain", "plan.json").out
    train["layout"] |= {"data": 16, "tensor": 1, "sharding": "none"}
    Path("plan.json").write_text(json.dumps(plan))
    for said in (flowgraph("plan", "grpo", "--plan", "plan.json"), flowgraph("check", "grpo", "--plan", "plan.json")):
        assert said.code == 1
        assert "no placement for grpo on plan.json: policy.train needs " in said.out + said.err


def test_experts_that_a_model_does_not_have_are_a_fault_of_a_plan(flowgraph: Run, found: Any) -> None:
    plan = found("grpo")
    train = next(each for each in plan["placed"] if each["role"] == "policy.train")
    train["layout"]["expert"] = 4
    Path("plan.json").write_text(json.dumps(plan))
    why = "plan.json: policy.train: expert=4, but its model has no experts\n"
    for arguments in (("check", "plan.json"), ("check", "grpo", "--plan", "plan.json")):
        said = flowgraph(*arguments)
        assert said.code == 1 and said.out.startswith(why)
    for arguments in (("explain", "plan.json"), ("plan", "grpo", "--plan", "plan.json")):
        said = flowgraph(*arguments)
        assert said.code == 1 and said.err.startswith(why)


def test_what_a_plan_says_already_is_not_asked_beside_it(flowgraph: Run, found: Any) -> None:
    found("grpo")
    said = flowgraph("plan", "grpo", "--plan", "plan.json", "--staleness", "2")
    assert (said.code, said.out) == (2, "")
    assert said.err == (
        "--plan plan.json: --staleness: no effect, because a given plan is not searched\n"
        "  hint: leave out --plan: flowgraph plan grpo --cluster 2x8xh100\n"
    )


def test_a_plan_that_is_only_modelled_is_refused_by_run_before_anything_else(flowgraph: Run, found: Any) -> None:
    found("grpo", "--engine", "train=megatron")
    for more in ((), ("--batch", "1"), ("--data", "nowhere.parquet"), ("--set", "policy.generate.n=nothing")):
        said = flowgraph("run", "grpo", "--plan", "plan.json", *more)
        assert (said.code, said.out) == (1, "")
        assert said.err.startswith("plan.json: this plan of grpo names `megatron` for policy.train, which cannot be ")
    assert not Path("runs").exists()
