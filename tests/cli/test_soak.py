"""A long run on Ray: memory, descriptors, processes and shared memory stay flat, and disk grows by its records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.processes]

STEPS = int(os.environ.get("SOAK_STEPS", "1000"))
MARK = "SOAK_TEST"
EACH_S = 2.0
LIMIT_S = 3600.0
COMMAND = (
    "run", "grpo", "--model", "tiny", "--batch", "2", "--set", "policy.generate.n=2",
    "--set", "policy.generate.max_tokens=4", "--cluster", "2xcpu-4GiB", "--runtime", "ray", "--eval-every", "0",
    "--checkpoint-every", "50", "-o", "run",
)  # fmt: skip


@dataclass(frozen=True)
class Look:
    """What a run takes after some steps: of all its processes together, of its folder, and of Ray's."""

    steps: int
    resident_bytes: int
    descriptors: int
    processes: int
    shared_bytes: int
    folder_bytes: int
    ray_bytes: int


def size_of(folder: Path) -> int:
    """Add up a folder's files; those that go meanwhile are left out."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() and not path.is_symlink() else 0
        except OSError:
            continue
    return total


def look(mark: str, run: Path, ray: Path) -> Look:
    """Look at a run's processes, its checkpoints left out: of these two stay."""
    resident = descriptors = processes = 0
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                resident += process.memory_info().rss - process.memory_info().shared
                descriptors += process.num_fds()
                processes += 1
        except psutil.Error:
            continue
    folder = size_of(run) - size_of(run / "checkpoints")
    steps = (run / "metrics.jsonl").read_bytes().count(b"\n")
    return Look(steps, resident, descriptors, processes, size_of(Path("/dev/shm")), folder, size_of(ray))


def slope(looks: list[Look], name: str) -> float:
    """Return by how much something grows a step, after the first fifth of the steps, by least squares."""
    later = [each for each in looks if each.steps >= STEPS / 5]
    return float(np.polyfit([each.steps for each in later], [getattr(each, name) for each in later], 1)[0])


def test_a_thousand_steps_leave_memory_descriptors_and_shared_memory_flat(tmp_path: Path) -> None:
    mark, run, ray = uuid.uuid4().hex, tmp_path / "run", Path(f"/tmp/soak{os.getpid()}")
    ray.mkdir()
    with (tmp_path / "err").open("w") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "flowgraph", *COMMAND, "--steps", str(STEPS)],
            cwd=tmp_path,
            env=os.environ | {MARK: mark, "RAY_TMPDIR": str(ray)},
            stdout=subprocess.DEVNULL,
            stderr=err,
        )
    looks, start = list[Look](), time.monotonic()
    while process.poll() is None:
        assert time.monotonic() - start < LIMIT_S
        time.sleep(EACH_S)
        if (run / "metrics.jsonl").is_file():
            looks.append(look(mark, run, ray))
    assert process.returncode == 0, (tmp_path / "err").read_text()
    looks = [each for each in looks if each.processes > 3 and each.steps < STEPS]  # not while it ends
    grows = {each.name: slope(looks, each.name) for each in fields(Look) if each.name != "steps"}
    written = size_of(run / "rollouts") + sum(
        (run / f"{name}.jsonl").stat().st_size for name in ("metrics", "measured")
    )
    print(
        json.dumps(
            {"steps": len(looks), "seconds": round(time.monotonic() - start), **grows, "a step": written / STEPS}
        )
    )
    print(looks[0], looks[-1], sep="\n")
    assert astuple(looks[-1])[0] > 0.9 * STEPS
    assert grows["resident_bytes"] < 40_000, grows
    assert abs(grows["descriptors"]) < 0.02 and abs(grows["processes"]) < 0.002, grows
    assert grows["shared_bytes"] < 1_000, grows
    assert grows["folder_bytes"] == pytest.approx(written / STEPS, rel=0.1), grows  # its records, and nothing else
    assert grows["ray_bytes"] < 4_000, grows
