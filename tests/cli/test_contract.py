"""Rows in flight and chunks of a step, from the command line: what is printed, what a run does, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Said
from tests.cli.test_depth import SPLIT
from tests.cli.test_lag import FLOW
from tests.cli.test_resume import cut_off, facts, journal

Run = Callable[..., Said]
SMALL = ("--model", "tiny", "--runtime", "local", "--batch", 2, "--eval-rows", 4)


def lines_of(folder: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in Path(f"{folder}/metrics.jsonl").read_text().splitlines()]


def test_a_run_in_flight_checks_held_out_rows_keeps_its_bound_and_is_resumed(flowgraph: Run) -> None:
    Path("late.py").write_text(FLOW)
    ways = (*SPLIT, "--depth", 1, "--contract", "in_flight")
    said = flowgraph(
        "run", "late.py", *ways, *SMALL, "--steps", 3, "--eval-every", 2, "--checkpoint-every", 1, "-o", "run"
    )
    assert said.code == 0, said.err
    plan = json.loads(Path("run/plan.json").read_text())
    (row,) = (each for each in plan["placed"] if each["lag"])
    assert (row["role"], row["running"]["contract"]) == ("policy.sample", "in_flight")
    again = flowgraph("resume", "run", "--steps", 5)
    assert again.code == 0, again.err
    steps = [line for line in lines_of("run") if "policy.update.loss" in line]
    assert len(steps) == 5, "each step once"
    assert all(0 <= line["policy.generate.staleness_worst"] <= 1 for line in steps)
    assert any("eval/accuracy" in line for line in lines_of("run"))
    other = flowgraph("resume", "run", "--steps", 6, "--contract", "scheduled")
    assert other.code == 1
    assert "in flight" in " ".join(other.err.split())


def test_a_contract_needs_steps_that_overlap_and_no_chunks(flowgraph: Run) -> None:
    Path("late.py").write_text(FLOW)
    said = flowgraph("plan", "late.py", *SPLIT, "--contract", "in_flight")
    assert said.code == 1
    assert "none of its roles works ahead of training" in " ".join(said.err.split())
    said = flowgraph("plan", "late.py", *SPLIT, "--depth", 1, "--contract", "in_flight", "--chunks", 2)
    assert said.code == 1
    assert "policy.sample hands out chunks of a step" in " ".join(said.err.split())


def test_a_run_in_chunks_gives_the_rows_and_scores_of_a_run_without(flowgraph: Run) -> None:
    Path("late.py").write_text(FLOW)
    for name, ways in (("whole", ()), ("chunks", ("--chunks", 2))):
        said = flowgraph("run", "late.py", *SPLIT, *ways, *SMALL, "--steps", 2, "--eval-every", 0, "-o", name)
        assert said.code == 0, said.err
    whole, chunks = ([{**line, "time": 0} for line in lines_of(name)] for name in ("whole", "chunks"))
    assert whole == chunks
    shown = flowgraph("show", "late.py", "--stage", "lowered", *SPLIT, "--chunks", 2)
    assert "policy.generate 1/2" in shown.out and "join" in shown.out


MORE = [pytest.param(seed, 5, marks=pytest.mark.slow(group="overlap")) for seed in range(1, 21)]  # 100 runs


@pytest.mark.processes
@pytest.mark.parametrize(("seed", "count"), [(0, 1), *MORE])
def test_a_run_in_flight_killed_at_any_moment_and_resumed_trains_each_step_once(
    tmp_path: Path, seed: int, count: int
) -> None:
    (tmp_path / "late.py").write_text(FLOW)
    depth = 1 + seed % 2
    ways = (*SPLIT, "--depth", str(depth), "--contract", "in_flight", "--steps", "6", "--checkpoint-every", "2")
    codes = cut_off(tmp_path, "SIGKILL", seed, count, ("late.py", *map(str, SMALL), "--eval-every", "0", *ways))
    assert sum(code == -9 for ended in codes for code in ended) >= count
    for run in (tmp_path / f"cut{i}" for i in range(count)):
        assert facts(run)["status"] == "finished"
        assert [line["step"] for line in journal(run)] == [*range(6)]
        recorded = [
            sorted((folder / "rollouts/policy.generate").glob("*.parquet")) for folder in (run, tmp_path / "whole")
        ]
        assert [file.name for file in recorded[0]] == [file.name for file in recorded[1]]
        for step, pair in enumerate(zip(*recorded, strict=True)):
            cut, whole = (pq.read_table(file) for file in pair)
            assert cut.column("context").equals(whole.column("context")), "the prompts of a step are those of the data"
            versions = np.concatenate(cut.column("versions").to_pylist())
            assert versions.min() >= max(0, step - depth)
            assert versions.max() <= step
