"""Conversations on Ray: two ranks, each with processes of environments of its own, play as one process does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import flowgraph

pytestmark = pytest.mark.processes

GAME = Path(__file__).parents[2] / "examples" / "environments" / "guessing_game.py"


def run(out: Path, **where: Any) -> tuple[dict[tuple[int, int], tuple[Any, ...]], list[dict[str, float]]]:
    """Return the conversations of the first step by row, and the metrics without seconds, of a run of two steps."""
    settings = {"policy.interact.n": 4, "policy.interact.env": f"{GAME}:GuessingGame"}
    result = flowgraph.run(
        str(GAME), data="digits", batch=3, steps=2, settings=settings, eval_rows=2, out=out, seed=5, **where
    )
    table = pq.read_table(min((out / "rollouts").rglob("*.parquet")))
    names = ("tokens", "mask", "turns", "scores", "text", "text.end")
    columns = [table.column(name).to_pylist() for name in ("group", "sample", *names)]
    metrics = [{name: value for name, value in line.items() if name != "time"} for line in result.metrics]
    return {row[:2]: row[2:] for row in zip(*columns, strict=True)}, metrics


def test_conversations_on_ray_are_those_of_one_process(tmp_path: Path) -> None:
    here, there = run(tmp_path / "one", cluster="1xcpu"), run(tmp_path / "two", cluster="2xcpu", runtime="ray")
    assert here[0] == there[0]
    assert len(here[0]) == 12
    assert any(len(set(turns)) > 1 for _, _, turns, *_ in here[0].values()), "no conversation has two turns"
    assert any("eval/accuracy" in line for line in there[1])


def test_two_runs_are_the_same(tmp_path: Path) -> None:
    assert run(tmp_path / "one", cluster="1xcpu") == run(tmp_path / "two", cluster="1xcpu")
