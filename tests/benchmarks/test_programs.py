"""The benchmark of programs: every way runs the same program to the same result."""

from __future__ import annotations

import pytest

from benchmarks import programs
from nodes.scoring.confinement import lacks


@pytest.mark.skipif(bool(lacks()), reason="this machine cannot confine a process")
def test_every_way_runs_the_program() -> None:
    rates = programs.measure(programs=2, rounds=1, workers=2)
    assert set(rates) == {"plain", "imports", "sandlock", "ours", "graded"}
    assert all(len(each) == 1 and each[0] > 0 for each in rates.values())


def test_a_wrong_result_is_refused() -> None:
    with pytest.raises(SystemExit, match="a program printed 'other'"):
        programs.in_threads([lambda: "other"], 1)
