"""Plans on the command line: made, written, edited by hand, read back, shown, drawn, run; and each bad one refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from flowgraph.app.running.runtime_launch import needed_bytes, refuse_other_machine, total_bytes
from flowgraph.cluster.cluster import show_bytes
from flowgraph.cluster.plan import Plan
from flowgraph.cluster.this_machine import available_cores
from flowgraph.errors import ResourceError
from flowgraph.files.shipped import flows_folder
from tests.cli.kept_plans import write_plan
from tests.cli.said import text_of

Run = Callable[..., Any]
Golden = Callable[[str, str], None]
NOMINAL = "the speed of laptop/0, a cpu, is not known: seconds are nominal, only to compare plans\n"
LAPTOP = ("--cluster", "laptop", "--memory", "4GiB")
QUICK = ("--steps", 2, "--batch", 2, "--set", "policy.generate.n=4", "--eval-every", 0)
OTHER_STRUCTURE = (
    "plan.json: a plan of grpo, not of gpg\n"
    "    plan: grpo {grpo}\n"
    "    flow: gpg {gpg}\n"
    "  hint: flowgraph plan gpg, or run without a flow\n"
)


def refused(said: Any, code: int = 1) -> str:
    """Return the error's text; nothing is on stdout, and no run was begun."""
    assert (said.code, said.out) == (code, ""), said
    assert not Path("runs").exists()
    text: str = said.err
    return text


@pytest.fixture
def plan(flowgraph: Run) -> Callable[[], dict[str, Any]]:
    """Return `plan()`: the plan of GRPO on a laptop of 4 GiB, as it is written to plan.json."""

    def made() -> dict[str, Any]:
        written: dict[str, Any] = json.loads(write_plan(flowgraph, "plan", "grpo", *LAPTOP))
        return written

    return made


def write(plan: object) -> str:
    """Write a plan to edited.json."""
    Path("edited.json").write_text(plan if isinstance(plan, str) else json.dumps(plan))
    return "edited.json"


def two_pools(plan: dict[str, Any]) -> dict[str, Any]:
    """Move the reference to the second device, as a pool of its own, so that each pool has one device."""
    plan["pools"] = [{"name": "train", "devices": [["laptop", 0]]}, {"name": "judge", "devices": [["laptop", 1]]}]
    for placed in plan["placed"]:
        placed |= {"pool": "judge" if placed["role"] == "ref.infer" else "train", "engine": "local"}
        placed["layout"] = {"data": 1}
    return plan


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (LAPTOP, "laptop"),
        (("--cluster", "1xcpu", "--memory", "4GiB"), "one_device"),
        (("--cluster", "2x8xgpu-80GiB"), "gpus"),
        (("--cluster", flows_folder() / "clusters" / "two_nodes.toml"), "file"),
    ],
)
def test_plan_prints_pools_roles_and_peaks(flowgraph: Run, golden: Golden, arguments: Any, name: str) -> None:
    golden(text_of(flowgraph("plan", "grpo", *arguments)), f"cli/plan_{name}.txt")


def test_the_default_cluster_is_two_devices_of_this_machine(flowgraph: Run) -> None:
    told = json.loads(text_of(flowgraph("plan", "grpo", "--json")))
    assert told["plan"]["pools"] == [{"name": "all", "devices": [["laptop", 0], ["laptop", 1]]}]
    assert [each["pool"] for each in told["plan"]["forecast"]] == ["all"] and told["plan"]["step"]["period_s"] > 0


def test_a_written_plan_is_read_back_the_same(flowgraph: Run, plan: Any) -> None:
    plan()
    searched = text_of(flowgraph("plan", "grpo", *LAPTOP)).splitlines()
    read = text_of(flowgraph("plan", "grpo", "--plan", "plan.json", "-o", "again.json")).splitlines()
    assert [line for line in read if line not in searched] == [f"a step takes {searched[0].split()[1]} ms"]
    assert Path("again.json").read_text() == Path("plan.json").read_text()


def test_a_plan_of_two_pools_prints_both(flowgraph: Run, plan: Any, golden: Golden) -> None:
    edited = write(two_pools(plan()))
    golden(text_of(flowgraph("plan", "grpo", "--plan", edited)), "cli/plan_two_pools.txt")
    golden(text_of(flowgraph("show", "grpo", "--stage", "placed", "--plan", edited)), "cli/placed_two_pools.txt")
    golden(text_of(flowgraph("show", "grpo", "--stage", "lowered", "--plan", edited)), "cli/lowered_two_pools.txt")
    golden(text_of(flowgraph("draw", "grpo", "--to", "mmd", "--plan", edited)), "cli/two_pools.mmd")


def test_a_plan_on_another_device_says_which(flowgraph: Run, plan: Any) -> None:
    swapped = plan()
    swapped["pools"][0]["devices"].reverse()
    text = text_of(flowgraph("plan", "grpo", "--plan", write(swapped)))
    assert "all: 2 cpu of 2.0 GiB: laptop/1, laptop/0\n" in text


def test_of_more_memory_in_a_plan_a_smaller_share_is_taken(flowgraph: Run, plan: Any) -> None:
    roomy = plan()
    roomy["cluster"]["nodes"][0]["devices"] = [{"kind": "cpu", "memory_bytes": 2**33}] * 2
    before = text_of(flowgraph("plan", "grpo", "--plan", "plan.json"))
    after = text_of(flowgraph("plan", "grpo", "--plan", write(roomy)))
    shares = [[int(each) for each in re.findall(r"([0-9]+)% of a device", text)] for text in (before, after)]
    assert len(shares[0]) == 5 and "all: 2 cpu of 8.0 GiB" in after
    assert [more / 4 for more in shares[0]] == pytest.approx(shares[1], abs=0.7)


def test_show_gives_the_default_plan_and_its_program(flowgraph: Run, golden: Golden) -> None:
    golden(text_of(flowgraph("show", "grpo", "--stage", "placed")), "cli/placed.txt")
    golden(text_of(flowgraph("show", "grpo", "--stage", "lowered")), "cli/lowered.txt")


def test_draw_writes_a_plan_as_it_prints_it_and_fenced_for_markdown(flowgraph: Run) -> None:
    drawn = ("draw", "grpo", "--cluster", "2xcpu-2GiB", "--picture", "plan")
    text = text_of(flowgraph(*drawn, "--to", "mmd"))
    for name in ("plan.mmd", "plan.md"):
        said = flowgraph(*drawn, "-o", name)
        assert (said.code, said.out, said.err.splitlines()[-1]) == (0, "", name)
    assert Path("plan.mmd").read_text() == text
    assert Path("plan.md").read_text() == f"```mermaid\n{text}```\n"


def test_a_plan_of_two_pools_trains_in_this_process(flowgraph: Run, plan: Any) -> None:
    edited = write(two_pools(plan()))
    said = flowgraph("run", "grpo", "--runtime", "local", "--plan", edited, *QUICK)
    assert said.code == 0, said.err
    assert said.out == "runs/grpo-1\n"
    lines = [json.loads(line) for line in Path("runs/grpo-1/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1]
    planned = json.loads(Path("runs/grpo-1/plan.json").read_text())
    assert [pool["name"] for pool in planned["pools"]] == ["train", "judge"]


def test_more_devices_than_cores_is_a_warning(flowgraph: Run) -> None:
    cores = available_cores()
    said = flowgraph("run", "gpg", "--runtime", "local", "--cluster", f"{cores + 1}xcpu", *QUICK)
    assert said.code == 0, said.err
    plural = "s" if cores > 1 else ""
    warning = f"node laptop has {cores} core{plural} for {cores + 1} devices: they will take turns\n"
    assert said.err.startswith(warning)


@pytest.mark.parametrize("verb", [("plan",), ("run",), ("show", "--stage", "placed"), ("draw", "--picture", "plan")])
def test_a_plan_of_another_flow_is_refused(flowgraph: Run, plan: Any, verb: tuple[str, ...]) -> None:
    hashes = {
        name: json.loads(text_of(flowgraph("show", name, "--json")))["structure_hash"] for name in ("grpo", "gpg")
    }
    assert plan()["structure_hash"] == hashes["grpo"]
    short = {name: each[:16] for name, each in hashes.items()}
    said = flowgraph(verb[0], "gpg", *verb[1:], "--plan", "plan.json")
    assert refused(said) == OTHER_STRUCTURE.format(**short)


def test_an_unknown_key_is_answered_with_the_nearest(flowgraph: Run, plan: Any) -> None:
    misspelt = plan()
    misspelt["placed"][0]["layuot"] = misspelt["placed"][0].pop("layout")
    assert refused(flowgraph("plan", "grpo", "--plan", write(misspelt))) == (
        "edited.json: placed[0].layuot: a plan has no `layuot` here\n  hint: did you mean `layout`?\n"
    )


def test_broken_json_says_where(flowgraph: Run, plan: Any) -> None:
    plan()
    edited = write(Path("plan.json").read_text()[:100])
    assert refused(flowgraph("run", "grpo", "--plan", edited)) == (
        "edited.json: is not JSON: Unterminated string starting at: line 4 column 20 (char 52)\n"
    )


FILES: dict[str, tuple[bytes | None, str]] = {
    "empty.json": (b"", "is not JSON: Expecting value: line 1 column 1 (char 0)"),
    "list.json": (b"[1]", "Input should be an object"),
    "deep.json": (b"[" * 100_000, "is not JSON: it is nested more than 100 deep"),
    "binary.json": (bytes(range(256)), "is not text, so not a plan"),
    "missing.json": (None, "cannot be read: No such file or directory"),
    ".": (None, "cannot be read: Is a directory"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_plan_is_named(flowgraph: Run, name: str) -> None:
    content, why = FILES[name]
    if content is not None:
        Path(name).write_bytes(content)
    assert refused(flowgraph("plan", "grpo", "--plan", name)) == f"{name}: {why}\n"


def _device(plan: dict[str, Any]) -> None:
    plan["pools"][0]["devices"][1] = ["laptop", 7]


def _no_device(plan: dict[str, Any]) -> None:
    plan["pools"][0]["devices"] = []


def _less_than_nothing(plan: dict[str, Any]) -> None:
    plan["cluster"]["nodes"][0]["devices"][0]["memory_bytes"] = -5


def _engine(plan: dict[str, Any]) -> None:
    plan["placed"][0]["engine"] = "fsdpp"


def _role(plan: dict[str, Any]) -> None:
    plan["placed"].pop()


def _shared_device(plan: dict[str, Any]) -> None:
    plan["pools"].append({"name": "judge", "devices": [["laptop", 1]]})


def _sharded_by_local(plan: dict[str, Any]) -> None:
    plan["placed"][2]["layout"]["sharding"] = "full"


EDITS: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (_device, "no device of pool `all`: `laptop/7`\n  hint: did you mean `laptop/1`?"),
    (_no_device, "pools[0].devices: Tuple should have at least 1 item after validation, not 0"),
    (_less_than_nothing, "cluster.nodes[0].devices[0].memory_bytes: Input should be greater than 0"),
    (_engine, "no engine of policy.train: `fsdpp`\n  hint: did you mean `fsdp`?"),
    (_role, "not placed: ref.infer\n  hint: each role of the flow is placed once"),
    (
        _shared_device,
        "laptop/1 is in two pools, `all` and `judge`\n  hint: roles share a pool, not a device",
    ),
    (
        _sharded_by_local,
        "ref.infer: the engine `local` does not run sharding=full\n  hint: it runs sharding=none",
    ),
]


@pytest.mark.parametrize(("edit", "why"), EDITS, ids=[edit.__name__ for edit, _ in EDITS])
def test_a_plan_that_cannot_be_is_refused(flowgraph: Run, plan: Any, edit: Any, why: str) -> None:
    edited = plan()
    edit(edited)
    assert refused(flowgraph("run", "grpo", "--plan", write(edited))) == f"edited.json: {why}\n"


@pytest.mark.parametrize(("option", "value"), [("--cluster", "1xcpu"), ("--memory", "1GiB")])
def test_a_plan_has_its_own_cluster(flowgraph: Run, plan: Any, option: str, value: str) -> None:
    plan()
    assert refused(flowgraph("run", "grpo", "--plan", "plan.json", option, value), code=2) == (
        f"--plan plan.json: {option} has no effect: the plan defines its cluster\n"
    )


USAGE: dict[tuple[str, ...], str] = {
    ("show", "grpo", "--stage", "lowred"): "--stage: no stage `lowred`\n  hint: did you mean `lowered`?\n",
    ("draw", "grpo", "--picture", "plans"): "--picture: no picture `plans`\n  hint: did you mean `plan`?\n",
    ("run", "grpo", "--runtime", "rey"): "--runtime: no runtime `rey`\n  hint: known: local, ray\n",
    ("run", "grpo", "--runtime", "local", "--address", "192.0.2.1:6379"): (
        "--address: an address needs the runtime `ray`\n  hint: leave out --runtime local\n"
    ),
    ("run", "grpo", "--address", "local"): (
        "--address: `local` is not the address of a cluster\n  hint: leave it out to start Ray on this machine\n"
    ),
    ("plan", "grpo", "-o", "nowhere/plan.json"): (
        f"{NOMINAL}nowhere/plan.json: cannot be written: No such file or directory\n"
    ),
    ("draw", "grpo", "-o", "plan.jpg"): "plan.jpg: cannot draw a .jpg\n  hint: did you mean `.png`?\n",
}


@pytest.mark.parametrize("arguments", USAGE, ids=" ".join)
def test_a_command_line_that_means_nothing_is_refused(flowgraph: Run, arguments: tuple[str, ...]) -> None:
    assert refused(flowgraph(*arguments), code=2) == USAGE[arguments]


TOO_SMALL = """\
no placement for grpo on 2 cpu: policy.train needs 869.1 MiB on each of 2 devices, 357.1 MiB more than the 512.0 MiB \
that it has
    data=2 tensor=1 sharding=full micro_batch_tokens=9
    weights 213.6 KiB · optimizer 427.2 KiB · activations 2.3 MiB · gathered 635.8 KiB · rollout 64.0 KiB · \
heap 1.5 MiB · context 864.0 MiB
  hint: no smaller batch fits: the process, models, gradients and optimizer alone take 866.1 MiB
"""
TOO_SMALL_FOR_A_PLAN = """\
no placement for grpo on edited.json: policy.sample needs 879.1 MiB on the way to generate, 623.1 MiB more than the \
256.0 MiB that each of its devices has
    weights 427.2 KiB
    also on the device: the process 864.0 MiB · policy.train heap 13.6 MiB · ref.infer weights 427.2 KiB · \
policy.train optimizer 427.2 KiB · policy.train weights 213.6 KiB · policy.train rollout 64.0 KiB
  hint: no smaller batch fits: models, gradients and optimizer alone take 1.5 MiB
"""


@pytest.mark.parametrize(("verb", "note"), [("plan", NOMINAL), ("run", "")])
def test_too_little_memory_says_what_needs_it(flowgraph: Run, verb: str, note: str) -> None:
    said = flowgraph(verb, "grpo", "--memory", "1GiB")
    assert refused(said) == note + TOO_SMALL


def test_a_plan_with_too_little_memory_is_named(flowgraph: Run, plan: Any) -> None:
    small = plan()
    small["cluster"]["nodes"][0]["devices"] = [{"kind": "cpu", "memory_bytes": 2**28}] * 2
    assert refused(flowgraph("run", "grpo", "--plan", write(small))) == TOO_SMALL_FOR_A_PLAN


def test_a_memory_that_is_no_amount_is_refused(flowgraph: Run) -> None:
    said = flowgraph("plan", "grpo", "--memory", "lots")
    assert refused(said) == "memory='lots': should be a number and a unit, as in 2GiB\n"


def test_a_memory_says_nothing_of_devices_that_are_not_of_this_machine(flowgraph: Run) -> None:
    said = flowgraph("plan", "grpo", "--cluster", "1x8xgpu-80GiB", "--memory", "1GiB")
    assert refused(said, code=2) == (
        "--memory 1GiB: applies to this machine only, and the devices of 1x8xgpu-80GiB have memory of their own\n"
        "  hint: set it per device: --cluster 2x8xh100-40GiB\n"
    )


def test_a_run_refuses_a_plan_that_counts_on_more_memory_than_there_is(flowgraph: Run) -> None:
    text = refused(flowgraph("run", "grpo", "--memory", "1024TiB"))
    there = show_bytes(psutil.virtual_memory().total)
    assert text == f"node laptop: the plan needs 1024.0 TiB of memory; this machine has {there}\n"


def test_a_run_refuses_a_plan_that_needs_more_memory_than_is_free(plan: Any, tmp_path: Path) -> None:
    made = Plan.from_json(json.dumps(plan()))
    peak = max(each.memory_bytes for each in made.forecast[0].peaks)
    assert needed_bytes(made) == 2 * peak > 2**30
    refuse_other_machine(made)
    idle = made.forecast[0].peaks[0].model_copy(update={"memory_bytes": 2**49})
    heavy = made.model_copy(update={"forecast": (made.forecast[0].model_copy(update={"peaks": (idle,)}),)})
    with pytest.raises(ResourceError) as caught:
        refuse_other_machine(heavy)
    assert re.sub(r"[0-9.]+ .iB$", "3.0 GiB", str(caught.value)) == (
        "node laptop: the plan needs 1024.0 TiB of memory; the free memory is 3.0 GiB"
    )


def test_a_plan_made_when_more_memory_was_free_still_runs(flowgraph: Run, plan: Any) -> None:
    made = Plan.from_json(json.dumps(plan()))
    device = made.cluster.nodes[0].devices[0].model_copy(update={"memory_bytes": total_bytes() // 2})
    node = made.cluster.nodes[0].model_copy(update={"devices": (device,) * 2})
    refuse_other_machine(made.model_copy(update={"cluster": made.cluster.model_copy(update={"nodes": (node,)})}))


def test_a_run_refuses_a_plan_of_two_machines(flowgraph: Run) -> None:
    assert refused(flowgraph("run", "grpo", "--cluster", "2x1xcpu-2GiB")) == (
        "this machine: the plan needs 2 machines (node-1, node-2); this is one\n"
        "  hint: --address says where a Ray cluster is\n"
    )


@pytest.mark.parametrize("count", [1, 2])
def test_a_run_refuses_a_plan_of_gpus_that_are_not_here(flowgraph: Run, count: int) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    text = refused(flowgraph("run", "grpo", "--cluster", f"{count}xgpu-80GiB"))
    wanted = "a GPU" if count == 1 else f"{count} GPUs"
    assert text == f"node node-1: the plan needs {wanted}; torch sees none here\n"


def test_a_run_in_one_process_says_which_settings_of_a_plan_have_no_effect(
    plan: Callable[[], dict[str, Any]], flowgraph: Run
) -> None:
    edited = plan()
    trained = next(each for each in edited["placed"] if each["engine"] == "fsdp")
    trained["running"]["checkpointing"] = "full"
    said = flowgraph("run", "--plan", write(edited), "--runtime", "local", "--steps", 1)
    assert "in one process policy runs on `local`, so the plan's checkpointing=full has no effect\n" in said.err
    assert said.code == 0
