"""Runs whose steps overlap, cut off at any moment and resumed, stopped, and extended: the bits of one whole run."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Said
from tests.cli.test_lag import FLOW
from tests.cli.test_resume import LIMIT_S, assert_same, cut_off, facts, on_ray

Run = Callable[..., Said]
SPLIT = ("--cluster", "2xcpu-4GiB", "--placement", "split")
SMALL = ("late.py", "--model", "tiny", "--batch", "2", *SPLIT, "--checkpoint-every", "2")
HERE = ("--runtime", "local", "--eval-every", "2", "--eval-rows", "4")
SCHEDULES = {"one ahead": ("--depth", "1"), "every second step": ("--depth", "1", "--sync-every", "2")}


@pytest.fixture(autouse=True)
def flow_file(tmp_path: Path) -> None:
    """Write the flow, whose sampling may lag, into the test's folder."""
    (tmp_path / "late.py").write_text(FLOW)


def run(flowgraph: Run, folder: str, *more: object) -> None:
    said = flowgraph("run", *SMALL, *HERE, *more, "-o", folder)
    assert said.code == 0, said.err


# ------------------------------------------------------------------------------------------- extended


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_finished_run_is_extended_from_the_step_whose_successors_had_begun(flowgraph: Run, schedule: str) -> None:
    run(flowgraph, "part", *SCHEDULES[schedule], "--steps", 4)
    run(flowgraph, "whole", *SCHEDULES[schedule], "--steps", 7)
    said = flowgraph("resume", "part", "--steps", 7)
    assert said.code == 0, said.err
    assert said.err.startswith("step_000004 has no rows of the next step: the steps after step 3 are repeated\n")
    assert_same(Path("part"), Path("whole"))


def test_a_run_that_is_extended_and_stopped_before_it_has_repeated_a_step_goes_on(flowgraph: Run) -> None:
    run(flowgraph, "part", "--depth", 1, "--steps", 4)
    run(flowgraph, "whole", "--depth", 1, "--steps", 6)
    (Path("part") / "run.json").write_text(json.dumps(facts(Path("part")) | {"steps": 6, "status": "running"}))
    said = flowgraph("resume", "part")
    assert said.code == 0 and "continuing after step 3 of 6" in said.err, said.err
    assert_same(Path("part"), Path("whole"))


def test_a_run_whose_extension_failed_at_once_is_resumed_to_its_old_end(
    flowgraph: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(flowgraph, "part", "--depth", 1, "--steps", 4)
    run(flowgraph, "whole", "--depth", 1, "--steps", 4)
    with monkeypatch.context() as patch:
        patch.setattr("flowgraph.app.running.training.train", fail)
        said = flowgraph("resume", "part", "--steps", 6)
    assert said.code == 3, said.err
    said = flowgraph("resume", "part", "--steps", 4)
    assert said.code == 0, said.err
    assert_same(Path("part"), Path("whole"))


def fail(*_: object) -> int:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_the_last_check_measures_the_newest_weights(flowgraph: Run) -> None:
    run(flowgraph, "run", "--depth", 1, "--sync-every", 2, "--steps", 4)
    drawn = {
        int(path.stem): pq.read_table(path).column("versions") for path in Path("run/validation").glob("*.parquet")
    }
    assert {step: {*versions.combine_chunks().flatten().to_pylist()} for step, versions in drawn.items()} == {
        0: {0},
        2: {0},
        4: {4},
    }


def test_a_checkpoint_from_which_a_run_is_extended_stays(flowgraph: Run) -> None:
    run(flowgraph, "deep", "--depth", 2, "--steps", 6, "--checkpoint-every", 1, "--keep", 1)
    assert sorted(path.name for path in Path("deep/checkpoints").iterdir()) == ["step_000004", "step_000006"]


def test_another_overlap_is_refused_before_anything_is_taken_back(flowgraph: Run) -> None:
    run(flowgraph, "one", "--depth", 1, "--steps", 4)
    run(flowgraph, "none", "--steps", 4)
    journals = [Path(name, "metrics.jsonl").read_bytes() for name in ("one", "none")]
    for folder, depth, then, now in (
        ("one", 2, r"depth 1 \(policy 1 ahead, synced every 1\)", r"depth 2 \(policy 2 ahead, synced every 1\)"),
        ("none", 1, "steps that do not overlap", r"depth 1 \(policy 1 ahead, synced every 1\)"),
    ):
        said = flowgraph("resume", folder, "--steps", 8, "--depth", depth)
        assert said.code == 1
        expected = f"{folder}/checkpoints/step_000004: was written with {then}, but the plan has {now}\n"
        assert re.match(expected, said.err), said.err
    assert [Path(name, "metrics.jsonl").read_bytes() for name in ("one", "none")] == journals


# ------------------------------------------------------------------------------------------- stopped


@pytest.mark.processes
@pytest.mark.parametrize(("every", "rows"), [("2", "saved"), ("0", "lost, without checkpoints")])
def test_a_run_that_is_stopped_says_what_becomes_of_the_rows_under_way(tmp_path: Path, every: str, rows: str) -> None:
    options = (*SMALL, "--runtime", "local", "--eval-every", "0", "--checkpoint-every", every)
    command = [sys.executable, "-m", "flowgraph", "run", *options, "--depth", "1", "--steps", "100000", "-o", "run"]
    until, metrics, said = time.monotonic() + LIMIT_S, tmp_path / "run/metrics.jsonl", tmp_path / "said"
    with said.open("wb") as lines, subprocess.Popen(command, cwd=tmp_path, stderr=lines, stdout=lines) as process:
        while not (metrics.is_file() and metrics.read_bytes().count(b"\n") > 2):
            assert process.poll() is None and time.monotonic() < until, said.read_text()
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGINT)
    err = said.read_text()
    assert process.returncode == 130, err
    assert f"stopping after this step; the rows of the next step are {rows} (again: at once)" in err
    if every != "0":
        steps = re.search(r"stopped after step (\d+) of 100000; .* `flowgraph resume run` continues after step \1", err)
        assert steps is not None, err
        parts = tmp_path / f"run/checkpoints/step_{int(steps[1]):06d}/parts"
        assert [step["step"] for step in json.loads((parts / "window.json").read_text())["steps"]] == [int(steps[1])]


# ------------------------------------------------------------------------------------------- killed


MORE = [pytest.param(seed, 5, marks=pytest.mark.slow(group="overlap")) for seed in range(1, 21)]  # 100 runs


@pytest.mark.processes
@pytest.mark.parametrize(("seed", "count"), [(0, 3), *MORE])
def test_a_run_killed_at_any_moment_and_resumed_ends_as_one_that_was_not(tmp_path: Path, seed: int, count: int) -> None:
    schedule = [*SCHEDULES.values(), ("--depth", "2")][seed % 3]
    codes = cut_off(tmp_path, "SIGKILL", seed, count, (*SMALL, *HERE, *schedule, "--steps", "6"))
    assert sum(code == -9 for ended in codes for code in ended) >= count
    for i in range(count):
        assert_same(tmp_path / f"cut{i}", tmp_path / "whole")


ON_RAY = (*SMALL[:-1], "1", "--eval-every", "0", "--depth", "1", "--steps", "6")
MOMENTS = [(kill, lines) for kill in ("worker", "driver") for lines in (1, 2, 3, 4, 5)]


@pytest.fixture(scope="module")
def whole_on_ray(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run six steps on two pools without a break."""
    folder = tmp_path_factory.mktemp("ray")
    (folder / "late.py").write_text(FLOW)
    code, err = on_ray(folder, "whole", "run", *ON_RAY, "-o", "whole")
    assert code == 0, err
    return folder


@pytest.mark.processes
@pytest.mark.slow(group="overlap")
@pytest.mark.parametrize(("kill", "lines"), MOMENTS)
def test_a_run_on_ray_whose_driver_or_worker_is_killed_is_resumed(whole_on_ray: Path, kill: str, lines: int) -> None:
    folder, name = whole_on_ray, f"{kill}{lines}"
    code, err = on_ray(folder, name, "run", *ON_RAY, "-o", name, kill=kill, lines=lines)
    assert code in ((1, 3) if kill == "worker" else (-signal.SIGKILL,)), err
    code, err = on_ray(folder, name, "resume", name)
    assert code == 0, err
    assert_same(folder / name, folder / "whole")
