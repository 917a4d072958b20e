"""The benchmark of drawing: its arithmetic, and that what it draws is drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import drawing
from flowgraph.diagrams.write.formats import text_in
from tests.looped import looped


def test_ways_take_turns_and_the_first_round_is_not_counted() -> None:
    order, ticks = list[str](), iter(range(100))
    ways = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    told = drawing.measured(ways, 2, lambda: float(next(ticks)))
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert told == {"a": [1.0, 1.0], "b": [1.0, 1.0]}


def test_a_table_has_seconds_and_the_ratio_to_the_baseline_of_the_same_round() -> None:
    lines = drawing.rows({"one": [1.0, 2.0], "two": [3.0, 4.0]}, "one").splitlines()
    assert lines[-1].split("  ")[-1].strip() == "2.50 (2.00 … 3.00)"


@pytest.mark.slow(group="commands")
@looped("name", ["draw grpo -o plan.svg"], slow=["draw grpo", "draw grpo --to mmd"])
def test_its_commands_run(name: str, tmp_path: Path) -> None:
    drawing.run(drawing.COMMANDS[name], tmp_path)


def test_its_large_picture_is_drawn() -> None:
    assert text_in(drawing.large(40), "dot").count("fillcolor=") == 40
