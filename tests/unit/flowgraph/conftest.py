"""Processes that run a test's file as a script, each as one rank, and what they tell."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.rank_processes import RankProcesses

LIMIT_S = 120.0  # then all are killed, and it shows as a failure; ranks wait less long for each other

Told = list[dict[str, Any]]


@pytest.fixture(scope="session")
def run_ranks() -> Callable[[str, Path, int], Told]:
    """Return `run_ranks(file, folder, count)`: run so many ranks side by side, and give what each of them told.

    A rank is `python file rank count folder`, and writes what it tells to `<rank>.json` in the folder.
    """
    return _run_ranks


def _run_ranks(file: str, folder: Path, count: int) -> Told:
    RankProcesses(file, count, folder).wait(LIMIT_S)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]
