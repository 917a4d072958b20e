"""Steps that overlap, from the command line: what is printed before a run, what is refused, and what a run does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from tests.cli.conftest import Said
from tests.cli.test_lag import FLOW

Run = Callable[..., Said]
SPLIT = ("--cluster", "2xcpu-4GiB", "--placement", "split")


def versions(folder: str) -> list[list[int]]:
    """Return the versions that sampled the rows of each step."""
    files = sorted(Path(f"{folder}/rollouts/policy.generate").glob("*.parquet"))
    columns = [pq.read_table(file).column("versions").combine_chunks().flatten().to_pylist() for file in files]
    return [sorted(set(column)) for column in columns]


def test_the_program_says_which_step_each_task_belongs_to_and_how_old_weights_may_be(flowgraph: Run) -> None:
    Path("late.py").write_text(FLOW)
    said = flowgraph("show", "late.py", "--stage", "lowered", *SPLIT, "--depth", 1, "--sync-every", 2)
    assert said.code == 0, said.err
    assert "overlap, 1 step deep" in said.out
    assert "1 ahead  a sync every 2 steps  at most 2 updates old" in said.out
    assert "policy.update step k | policy.generate step k+1" in said.out
    plain = flowgraph("show", "late.py", "--stage", "lowered", *SPLIT)
    assert "overlap" not in plain.out


def test_one_picture_shows_two_steps_at_once(flowgraph: Run) -> None:
    Path("late.py").write_text(FLOW)
    figures = list[tuple[float, float]]()
    for depth in (0, 1):
        said = flowgraph("draw", "late.py", *SPLIT, "--depth", depth, "--picture", "timeline", "--to", "text")
        assert said.code == 0, said.err
        assert {line.split()[0] for line in said.out.splitlines() if " busy " in line} >= {"pool0", "pool1"}
        both = re.search(r"2 steps in ([\d.]+) ms(?:, ([\d.]+) ms from one to the next)?", " ".join(said.out.split()))
        assert both is not None, said.out
        figures.append((float(both[1]), float(both[2] or 0)))
    assert figures[1][0] < figures[0][0], "two steps that overlap take less time"
    calls = flowgraph("draw", "late.py", *SPLIT, "--depth", 1, "--picture", "sequence", "--to", "text").out
    assert "step k: policy.update(policy.generate, group_normalize)" in " ".join(calls.split())
    assert "step k+1: policy.generate(prompts)" in " ".join(calls.split())


def test_a_run_reports_how_idle_its_pools_were(flowgraph: Run) -> None:
    Path("late.py").write_text(FLOW)
    options = (*SPLIT, "--model", "tiny", "--runtime", "local", "--batch", 2, "--eval-every", 0, "--steps", 3)
    assert flowgraph("run", "late.py", *options, "--depth", 1, "-o", "run").code == 0
    times = [json.loads(line)["time"] for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [sorted(each["idle"]) for each in times] == [[], ["pool0", "pool1"], ["pool0", "pool1"]]
    assert all(0 <= share < 1 for each in times for share in each["idle"].values())
    assert [sorted(each["waited_s"]) for each in times] == [[], [], ["pool1"]], "step 1 has the version of step 0"
    report = flowgraph("report", "run", "--json")
    assert report.code == 0 and json.loads(report.out)["waited_s"]["pool1"] > 0
    assert "seconds a step of waiting for weights" in flowgraph("report", "run").out
    assert "a step" in flowgraph("trace", "run", "--compare").out


def test_a_plan_keeps_its_overlap_and_a_larger_bound_is_refused_before_a_run(flowgraph: Run) -> None:
    Path("late.py").write_text(FLOW)
    assert flowgraph("plan", "late.py", *SPLIT, "--depth", 1, "-o", "plan.json").code == 0
    (row,) = (each for each in json.loads(Path("plan.json").read_text())["placed"] if each["lag"])
    assert (row["role"], row["lag"], row["ahead"]) == ("policy.sample", 1, 1)
    for command in (("show", "late.py", "--stage", "lowered"), ("plan", "late.py"), ("run", "late.py", "--steps", 1)):
        said = flowgraph(*command, "--plan", "plan.json", "--depth", 2, "--sync-every", 2)
        assert said.code == 1, command
        assert "lag=3 (depth 2 and a sync every 2 steps), but policy.generate reads weights at most 2 updates old" in (
            " ".join(said.err.split())
        )
        assert "--depth 1 --sync-every 2, or --depth 2 --sync-every 1, or at_most=3 in the flow" in " ".join(
            said.err.split()
        )
    assert not Path("runs").exists()


def test_without_a_copy_of_the_weights_nothing_overlaps(flowgraph: Run) -> None:
    Path("late.py").write_text(FLOW)
    said = flowgraph("plan", "late.py", "--cluster", "1xcpu", "--depth", 1)
    assert said.code == 1
    assert "no role of late samples from a copy of the weights" in " ".join(said.err.split())


def test_a_run_samples_one_step_ahead_and_gives_the_same_twice_however_often_it_is_checked(flowgraph: Run) -> None:
    Path("late.py").write_text(FLOW)
    assert flowgraph("plan", "late.py", *SPLIT, "--depth", 1, "-o", "plan.json").code == 0
    weights = list[bytes]()
    for every in (0, 2):
        options = ("--plan", "plan.json", "--runtime", "local", "--steps", 5, "--batch", 2, "--eval-rows", 4)
        said = flowgraph("run", *options, "--eval-every", every, "--checkpoint-every", 2, "-o", f"run{every}")
        assert said.code == 0, said.err
        assert versions(f"run{every}") == [[0], [0], [1], [2], [3]]
        weights.append(Path(f"run{every}/weights/policy/model.safetensors").read_bytes())
        lines = [json.loads(line) for line in Path(f"run{every}/metrics.jsonl").read_text().splitlines()]
        staleness = [line["policy.generate.staleness"] for line in lines if "policy.update.loss" in line]
        assert staleness == [0, 1, 1, 1, 1]
    assert weights[0] == weights[1]
    assert (Path("run0/checkpoints/step_000004/parts") / "window.json").is_file()
