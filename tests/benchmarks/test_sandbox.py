"""The benchmark of the sandbox: all ways run the same programs, must agree, and are timed in turns."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from benchmarks import sandbox
from benchmarks.sandbox import PLAIN, SANDBOX, Row, Speeds
from nodes.scoring.confinement import lacks
from nodes.scoring.graders import Graders


@pytest.mark.skipif(bool(lacks()), reason="this machine cannot confine a process")
def test_all_ways_give_the_same_scores_to_the_same_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "TESTS", 2)
    rows = sandbox.rows(6)
    with Graders(2) as graders:
        ways = sandbox.ways(graders, 2)
        assert sandbox.measured(ways, rows, 0).programs == 12
        assert ways[SANDBOX](rows) == [1.0, 1.0, 1.0, 1.0, 1.0, 0.5]


def test_rounds_take_turns_and_ways_with_other_scores_are_refused() -> None:
    order = list[str]()

    def way(name: str, score: float, rows: Sequence[Row]) -> list[float]:
        order.append(name)
        return [score for _ in rows]

    ways = {PLAIN: lambda rows: way("a", 1.0, rows), "b": lambda rows: way("b", 1.0, rows)}
    sandbox.measured(ways, [{}], 2)
    assert order == ["a", "b", "b", "a", "a", "b"]
    with pytest.raises(SystemExit, match=r"^the ways give other scores: "):
        sandbox.measured(ways | {"c": lambda rows: way("c", 0.5, rows)}, [{}], 1)


def test_a_table_has_programs_per_second_and_ratios_of_the_same_round() -> None:
    seconds = {PLAIN: [2.0, 4.0], "fast": [1.0, 1.0]}
    lines = sandbox.report(Speeds(wall_s=seconds, cpu_s=seconds, programs=8)).splitlines()
    assert [cell.strip() for cell in lines[2].split("  ") if cell.strip()] == [
        "fast",
        "8 (8 … 8)",
        "3.00 (2.00 … 4.00)",
        "125.0",
        "0.38 (0.25 … 0.50)",
    ]


def test_a_row_has_four_tests_and_what_the_right_program_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_printed", lambda code, stdin: f"{len(stdin)}")
    truth = json.loads(sandbox.rows(1)[0]["ground_truth"])
    assert truth["outputs"] == [f"{len(stdin)}" for stdin in truth["inputs"]]
    assert len(truth["inputs"]) == 4
