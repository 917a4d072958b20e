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
LIMIT_S = 60.0  # then all are killed: a rank that waits for another shows as a failure

Told = list[dict[str, Any]]


@pytest.fixture(scope="session")
def run_ranks() -> Callable[..., list[Told]]:
    """Give `run_ranks(file, folder, *counts)`: run groups of so many ranks side by side; what each rank told, by group.

    A rank is `python file rank count folder`, with a folder for its group, where it writes `<rank>.json`.
    """
    return _run_ranks


def _run_ranks(file: str, folder: Path, *counts: int) -> list[Told]:
    started = [(count, rank, _start(file, rank, count, folder / str(count))) for count in counts for rank in range(count)]
    until = time.monotonic() + LIMIT_S
    try:
        for count, rank, process in started:
            _, said = process.communicate(timeout=max(0.1, until - time.monotonic()))
            assert process.returncode == 0, f"rank {rank} of {count}:\n{said}"
    finally:
        for _, _, process in started:
            process.kill()
            process.communicate()
    return [[json.loads((folder / str(count) / f"{rank}.json").read_text()) for rank in range(count)] for count in counts]


def _start(file: str, rank: int, count: int, folder: Path) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, file, str(rank), str(count), str(folder)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
