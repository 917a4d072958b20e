"""Processes that run a test's file as a script, each as one rank, and what they tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
LIMIT_S = 120.0  # then all are killed, and it shows as a failure; ranks wait less long for each other

Told = list[dict[str, Any]]


@pytest.fixture(scope="session")
def run_ranks() -> Callable[[str, Path, int], Told]:
    """Return `run_ranks(file, folder, count)`: run so many ranks side by side, and give what each of them told.

    A rank is `python file rank count folder`, and writes what it tells to `<rank>.json` in the folder.
    """
    return _run_ranks


def _run_ranks(file: str, folder: Path, count: int) -> Told:
    started = [_start(file, rank, count, folder) for rank in range(count)]
    until = time.monotonic() + LIMIT_S
    try:
        for rank, process in enumerate(started):
            _, said = process.communicate(timeout=max(0.1, until - time.monotonic()))
            assert process.returncode == 0, f"rank {rank} of {count}:\n{said}"
    finally:
        for process in started:
            process.kill()
            process.communicate()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]


def _start(file: str, rank: int, count: int, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", file, str(rank), str(count), str(folder)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
