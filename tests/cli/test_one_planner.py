"""One planner: `plan`, `run`, `check`, `show` and `draw` ask one question, and a plan that is found is what runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowgraph.cluster.cluster import show_bytes
from tests.cli.said import text_of

Run = Callable[..., Any]
ON_GPUS = ("grpo", "--model", "Qwen/Qwen2.5-7B", "--cluster", "2x8xh100")
NOT_HERE = "the plan needs 2 machines (node-1, node-2); this is one"
ON_CPUS = ("grpo", "--cluster", "2xcpu-4GiB")


def written(flowgraph: Run, *options: object) -> dict[str, Any]:
    """Return the plan that is found with these options, as it is written to p.json."""
    text_of(flowgraph("plan", *options, "-o", "p.json"))
    plan: dict[str, Any] = json.loads(Path("p.json").read_text())
    return plan


def test_a_run_of_what_fits_on_devices_that_are_not_here_says_that_and_nothing_else(flowgraph: Run) -> None:
    assert re.match(r"grpo: [0-9.]+ s a step, ", text_of(flowgraph("plan", *ON_GPUS)))
    said = flowgraph("run", *ON_GPUS)
    assert (said.code, said.out, said.err) == (
        1,
        "",
        f"this machine: {NOT_HERE}\n  hint: --address says where a Ray cluster is\n",
    )
    assert not Path("runs").exists()


@pytest.mark.usefixtures("ray_of_its_own")
@pytest.mark.parametrize("cluster", ["1xcpu", pytest.param("2xcpu", marks=pytest.mark.slow(group="ray"))])
def test_a_plans_file_alone_is_run_as_it_was_forecast(flowgraph: Run, cluster: str) -> None:
    plan = written(flowgraph, "grpo", "--cluster", cluster, "--batch", 4, "--set", "policy.generate.n=4")
    folder = Path(text_of(flowgraph("run", "--plan", "p.json", "--steps", 2, "--eval-every", 0)).strip())
    ran = json.loads((folder / "plan.json").read_text())
    for part in ("flow", "cluster", "pools", "placed", "forecast", "step", "assumed"):
        assert ran[part] == plan[part], part
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1]
    program = text_of(flowgraph("show", "grpo", "--stage", "lowered", "--plan", "p.json"))
    assert (folder / "program.txt").read_text().strip() == program.strip()


def test_a_plan_of_one_flow_does_not_run_another_and_both_are_named(flowgraph: Run) -> None:
    written(flowgraph, "ppo", "--cluster", "2xcpu-4GiB")
    said = flowgraph("run", "grpo", "--plan", "p.json")
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("p.json: a plan of ppo, not of grpo\n    plan: ppo ")
    assert said.err.endswith("\n  hint: flowgraph plan grpo, or run without a flow\n")


@pytest.mark.parametrize(
    ("options", "names", "option"),
    [
        (("--engine", "train=megatron"), "`megatron` for policy.train", "--engine"),
        (("--staleness", "2", "--placement", "split"), "weights that are older than the flow allows", "--staleness"),
    ],
)
def test_a_run_names_what_of_a_plan_is_only_modelled(
    flowgraph: Run, options: tuple[str, ...], names: str, option: str
) -> None:
    written(flowgraph, *ON_GPUS, *options)
    for flow in ((), ("grpo",)):
        said = flowgraph("run", *flow, "--plan", "p.json")
        assert (said.code, said.out) == (1, "")
        assert said.err == (
            f"p.json: this plan of grpo names {names}, which cannot be run here\n"
            f"  hint: plan it without {option}, or `flowgraph export` it\n"
        )
    checked = flowgraph("check", "p.json")
    assert (checked.code, checked.out) == (0, "")
    assert f"it names {names}, which cannot be run here\n" in checked.err
    assert not Path("runs").exists()


@pytest.mark.parametrize("question", [ON_CPUS, ON_GPUS], ids=["of CPUs", "of GPUs"])
def test_all_verbs_agree_on_the_bytes(flowgraph: Run, question: tuple[str, ...]) -> None:
    plan = written(flowgraph, *question)
    peaks = [peak for pool in plan["forecast"] for peak in pool["peaks"]]
    wanted = [(peak["phase"], peak["role"], show_bytes(peak["memory_bytes"])) for peak in peaks]
    row = re.compile(r"^    (\w[\w ]*\w) +([\w.]+) +([0-9.]+ \w+) +[0-9]+% of a device$", re.MULTILINE)
    facts = [json.loads(text_of(flowgraph("show", *question, "--facts", "--json")))]
    for again in (question, ("grpo", "--plan", "p.json")):
        assert row.findall(text_of(flowgraph("plan", *again))) == wanted
        placed = json.loads(text_of(flowgraph("show", *again, "--stage", "placed", "--json")))
        assert placed["plan"]["forecast"] == plan["forecast"]
        drawn = json.loads(text_of(flowgraph("draw", *again, "--picture", "memory", "--to", "json")))
        phases = [phase["held"] for store in drawn["stores"] for phase in store["phases"]]
        assert [sum(held for _, held in phase) for phase in phases] == [peak["memory_bytes"] for peak in peaks]
        assert flowgraph("check", *again).code == 0
        facts.append(json.loads(text_of(flowgraph("show", *again, "--facts", "--json"))))
    assert facts[0] == facts[1] == facts[2]
    short = max(peak["memory_bytes"] for peak in peaks) * 9 // 10
    for device in (device for node in plan["cluster"]["nodes"] for device in node["devices"]):
        device["memory_bytes"] = short
    Path("short.json").write_text(json.dumps(plan))
    told = [flowgraph(verb, "grpo", "--plan", "short.json") for verb in ("plan", "check")]
    assert [said.code for said in told] == [1, 1]
    assert told[0].err.startswith(("no placement for grpo on short.json: ", "short.json: policy.sample: "))
    assert told[1].out.startswith(told[0].err.partition("\n")[0])
