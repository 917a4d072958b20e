"""The benchmark's arithmetic, and that both programs are scored by the same rules."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import step
from benchmarks.figures import Spread, per_step, ratios, table
from benchmarks.material import make_rows
from benchmarks.trl_step import RULES, reward_of
from nodes.data.sets import load
from nodes.data.source import PromptSource
from nodes.scoring.rules import RULES as OURS
from nodes.scoring.rules import rule_for

SHAPE = step.Shape("tiny", "digits", 16, 16, 16, 10, 110)


def run(way: str, number: int, steps: int, cpu_s: float, step_s: float = 1.0, **timings: float) -> step.Run:
    done = step.Done(steps, 16, 16, step_s, timings)
    return step.Run(way, number, steps, {"cpu_s": cpu_s}, 0.0, done)


def test_what_does_not_depend_on_steps_drops_out() -> None:
    assert per_step(7.0, 27.0, 10, 110) == 0.2
    assert per_step(57.0, 77.0, 10, 110) == 0.2


def test_ratios_are_of_one_round_each() -> None:
    assert ratios([1.0, 3.0, 2.0], [2.0, 2.0, 8.0]) == [0.5, 1.5, 0.25]
    assert Spread.of([0.5, 1.5, 0.25]) == Spread(0.5, 0.25, 1.5)


def test_a_report_pairs_the_runs_of_a_round_in_whatever_order_they_were_made() -> None:
    runs = [
        run(step.IN_PROCESS, 0, 10, 3.0),
        run(step.TRL, 0, 10, 5.0),
        run(step.IN_PROCESS, 0, 110, 23.0, 0.5),
        run(step.TRL, 0, 110, 45.0),
        run(step.TRL, 1, 110, 60.0),
        run(step.IN_PROCESS, 1, 110, 40.0, 0.7),
        run(step.TRL, 1, 10, 10.0),
        run(step.IN_PROCESS, 1, 10, 10.0),
    ]
    report = step._report(SHAPE, runs)
    assert report["cpu_s"] == {step.IN_PROCESS: [0.2, 0.3], step.TRL: [0.4, 0.5]}
    assert report["step_s"] == {step.IN_PROCESS: [0.5, 0.7]}
    assert step._tables(report).splitlines() == [
        "CPU seconds of all processes, median (least … most) of the rounds",
        "                     CPU s a step        ratio to TRL",
        "in process  0.250 (0.200 … 0.300)  0.55 (0.50 … 0.60)",
        "TRL         0.450 (0.400 … 0.500)  1.00 (1.00 … 1.00)",
    ]


def test_the_overhead_of_ray_stands_beside_what_it_took_to_start() -> None:
    one, two = list(step.WAYS)[:2]
    runs = [run(one, 0, 10, 1.0), run(one, 0, 110, 21.0, 0.2, ray_init_s=0.0)]
    runs += [run(two, 0, 10, 2.0), run(two, 0, 110, 42.0, 0.3, ray_init_s=4.25, actors_s=6.5)]
    lines = step._tables(step._report(SHAPE, runs)).splitlines()
    assert lines[-3:] == [
        "                       seconds a step       to in process       ray.init s    actor start s",
        "in process      0.200 (0.200 … 0.200)  1.00 (1.00 … 1.00)  0.0 (0.0 … 0.0)                -",
        "Ray, one actor  0.300 (0.300 … 0.300)  1.50 (1.50 … 1.50)  4.2 (4.2 … 4.2)  6.5 (6.5 … 6.5)",
    ]


def test_a_short_run_must_be_the_shorter_one() -> None:
    given = argparse.Namespace(model="tiny", quick=False, prompts=None, samples=2, tokens=None, short=5, long=5)
    with pytest.raises(SystemExit, match=r"^--short 5 must be less than --long 5$"):
        step._shape(given)
    given.long = 6
    assert step._shape(given) == replace(SHAPE, samples=2, short=5, long=6)


@pytest.mark.parametrize("data", RULES)
def test_both_programs_score_by_the_same_rule(data: str) -> None:
    ours = OURS[rule_for(data)]
    wants = {"finished": False} if data == "digits" else {}
    responses = ["123", "12", " 123", "x 123.", "1234", "3", "", "It is 57, not 5.7", "57"]
    for truth in ("123", "57", "3"):
        completions = [[{"role": "assistant", "content": text}] for text in responses]
        found = reward_of(RULES[data])(completions, [truth] * len(responses), prompts=[])
        assert found == [ours(text, truth, **wants) for text in responses]


def test_rows_are_those_that_a_run_of_seed_0_reads_in_its_order(tmp_path: Path) -> None:
    rows = json.loads(make_rows("digits", tmp_path / "rows.json", 2, 3).read_text("utf-8"))
    source = PromptSource(load("digits", cache=tmp_path).train, 3)
    wanted = [prompt for number in range(2) for prompt in source.batch(number).columns.data["prompt"].to_pylist()]
    assert [row["prompt"] for row in rows] == wanted


def test_a_table_has_columns() -> None:
    assert table(["way", "s"], [["TRL", "10.0"]]) == "way     s\nTRL  10.0"
