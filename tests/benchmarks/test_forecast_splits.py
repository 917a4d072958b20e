"""Published splits of asynchronous systems, read and held against the planner's own."""

from __future__ import annotations

import pytest

from benchmarks.forecast.__main__ import MEASURED, read
from benchmarks.forecast.report import Row
from benchmarks.forecast.splits import (
    Units,
    asked,
    lost,
    published,
    split_of,
    steps,
    steps_between,
    text,
    units_of,
    within_a_step,
)
from placements.workload.planning_problem import PlanningProblem
from tests.looped import looped

ROWS = read(MEASURED / "async_splits.csv")
STATED = [row for row in ROWS if row["stated"] == "yes"]
LATE = next(row for row in STATED if row["staleness"] == "8")


def problem(row: Row) -> PlanningProblem:
    found = asked(row)
    assert not isinstance(found, str)
    return found


def test_a_row_states_its_inputs_only_if_it_states_a_mean_length() -> None:
    assert STATED
    assert all(row["mean_resp_len"] and row["train_layout"] for row in STATED)
    assert not any(row["mean_resp_len"] for row in ROWS if row not in STATED)
    assert all(int(row["rollout_gpus"]) + int(row["train_gpus"]) == int(row["n_gpus"]) for row in ROWS)


def test_a_row_is_asked_as_it_was_run() -> None:
    found = problem(LATE)
    assert (found.staleness, found.contract, found.keeps_caches) == (8, "ready", True)
    drained = next(row for row in ROWS if row["caches"] == "drained")
    assert problem(drained).contract == "scheduled"
    assert {role.name for role in found.roles} == {"policy.train", "policy.sample", "ref.infer"}
    assert asked({**LATE, "gpu": ""}) == "no device"
    assert asked({**LATE, "max_resp_len": ""}) == "no max resp len"


NAMES = [f"{row['system']} {row['model']} {row['gpu']} {row['precision']}" for row in STATED if row is not LATE]


OTHERS = [row for row in STATED if row is not LATE]


@pytest.mark.slow(group="planner")
@looped("row", OTHERS[::4], slow=[row for row in OTHERS if row not in OTHERS[::4]])
def test_where_inputs_are_stated_our_split_is_within_one_step_of_the_grid(row: Row) -> None:
    """Source: the recipes of NeMo-RL and the lengths of its performance summary, named in each row."""
    ours = split_of(problem(row), units_of(row))
    assert ours is not None
    assert steps_between(problem(row), ours, (int(row["rollout_gpus"]), int(row["train_gpus"]))) <= 1


@pytest.mark.slow(group="planner")
def test_eight_updates_of_staleness_leave_half_of_the_devices_to_training() -> None:
    """With one batch in flight whatever the staleness, 160 of 192 devices would generate; 64 do in the recipe."""
    ours = split_of(problem(LATE), Units())
    assert ours is not None
    assert ours.rollout <= ours.training
    theirs = published(LATE, problem(LATE))
    assert theirs is not None
    assert (theirs.rollout, theirs.training) == (64, 128)
    assert theirs.step_s < 1.15 * ours.step_s


def test_copies_need_as_many_devices_as_their_layout_says() -> None:
    assert [units_of({"train_layout": each}).training for each in ("TP4 CP1 EP16 PP8", "TP2 CP2 EP1 PP4", "")] == [
        128,
        16,
        1,
    ]
    assert steps((8, 16, 24), 8, 24) == 2


def test_rows_are_cases_of_one_or_two_and_written_beside_ours() -> None:
    some = [STATED[0], {**STATED[0], "gpu": ""}]
    near, unread = within_a_step(some, "yes")
    assert (near.forecast, unread.forecast, unread.why) == (1.0, None, "no device")
    (case, _) = lost(some, "yes")
    assert case.forecast == pytest.approx(case.measured)
    written = text(some[:1]).splitlines()
    assert len(written) == 2
    assert "8 | 8" in written[1]
