"""Periods of small schedules: measured ones, hand-made ones, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from flowgraph.errors import PlanError, UnknownNameError
from placements.step.period import period
from placements.step.schedule import Schedule, ScheduledTask, TaskWait, in_order
from placements.step.timeline import timeline_of
from tests.looped import looped

# Seconds of a step, DAPO on Qwen2.5-Math-7B, 16 H20: generation on 4 of them, log-probs and update on 12.
# Source: verl, docs/advance/one_step_off.md: FSDP2, then Megatron; the measured step is 520 and 566 s.
VERL = [((458, 108, 337), 903, 458, 520), ((501, 120, 347), 968, 501, 566)]


def two_pools(generate_s: float | None, logprob_s: float, update_s: float, *waits: TaskWait) -> Schedule:
    """Generate on `rollout`; log-probs, then update on `train`."""
    tasks = (
        ScheduledTask("generate", "generate", ("rollout",), generate_s),
        ScheduledTask("logprob", "logprob", ("train",), logprob_s),
        ScheduledTask("update", "update", ("train",), update_s),
    )
    return Schedule(tasks, (TaskWait("generate", "logprob"), *waits))


@pytest.mark.parametrize(("seconds", "on_policy_s", "late_s", "measured_s"), VERL)
def test_one_update_of_staleness_brings_the_sum_down_to_the_larger_pool(
    seconds: tuple[float, float, float], on_policy_s: float, late_s: float, measured_s: float
) -> None:
    periods = [period(two_pools(*seconds, TaskWait("update", "generate", at_most + 1))).seconds for at_most in range(4)]
    assert periods == [on_policy_s, late_s, late_s, late_s]
    assert 0.85 < late_s / measured_s < 1  # without syncs and tails it is a little too fast


def test_the_cycle_that_sets_the_period_is_named_from_its_first_task_on() -> None:
    on_policy = period(two_pools(458, 108, 337, TaskWait("update", "generate", 1)))
    assert (on_policy.cycle, on_policy.tokens) == (("generate", "logprob", "update"), 1)
    assert str(on_policy) == "a step takes 903.0 s: generate → logprob → update → generate"
    late = period(two_pools(458, 108, 337, TaskWait("update", "generate", 2)))
    assert (late.cycle, late.tokens) == (("generate",), 1)
    shared = period(two_pools(10, 1, 20, TaskWait("logprob", "generate", 2), TaskWait("update", "logprob", 1)))
    assert str(shared) == "a step takes 21.0 s: logprob → update → logprob"


def test_steps_that_share_a_cycle_are_counted() -> None:
    tasks = (ScheduledTask("generate", "generate", ("rollout",), 4.0), ScheduledTask("score", "score", (), 8.0))
    found = period(Schedule(tasks, (TaskWait("generate", "score"), TaskWait("score", "generate", 2))))
    assert str(found) == "a step takes 6.0 s: generate → score → generate, which 2 steps share"


def test_a_sync_on_both_pools_is_added_to_both() -> None:
    tasks = (
        ScheduledTask("sync", "sync", ("rollout", "train"), 20),
        ScheduledTask("generate", "generate", ("rollout",), 458),
        ScheduledTask("update", "update", ("train",), 445),
    )
    one_step_off = Schedule(tasks, (TaskWait("generate", "update", 1), TaskWait("update", "sync", 1)))
    assert period(one_step_off).seconds == 478
    on_policy = Schedule(tasks, (TaskWait("generate", "update"), TaskWait("update", "sync", 1)))
    assert period(on_policy).seconds == 923


@pytest.mark.parametrize(("capacity", "wanted_s"), [(1, 903), (2, 458), (3, 458)])
def test_a_queue_of_one_batch_makes_the_generator_wait_for_the_trainer(capacity: int, wanted_s: float) -> None:
    assert period(two_pools(458, 108, 337, TaskWait("update", "generate", capacity))).seconds == wanted_s


def test_a_score_elsewhere_delays_the_first_step_but_no_later_one() -> None:
    tasks = (
        ScheduledTask("generate", "generate", ("rollout",), 5.0),
        ScheduledTask("score", "score", (), 30.0),
        ScheduledTask("update", "update", ("train",), 4.0),
    )
    schedule = Schedule(tasks, (TaskWait("generate", "score"), TaskWait("score", "update")))
    assert period(schedule).seconds == 5.0
    assert timeline_of(schedule, steps=3).finish_s == (39.0, 44.0, 49.0)


def test_a_colocated_flow_takes_the_sum_however_stale_it_may_be() -> None:
    tasks = tuple(
        ScheduledTask(name, "host", ("all",), seconds) for name, seconds in (("generate", 3.0), ("update", 2.0))
    )
    assert period(Schedule(tasks, (TaskWait("generate", "update"), TaskWait("update", "generate", 10)))).seconds == 5.0


def test_without_any_cycle_nothing_bounds_the_period() -> None:
    found = period(Schedule((ScheduledTask("score", "score", (), 3.0),)))
    assert (found.seconds, found.cycle, str(found)) == (0.0, (), "a step takes 0.0 s")
    assert period(Schedule(())).seconds == 0.0


def test_seconds_that_are_not_known_leave_the_period_unknown_and_are_named() -> None:
    found = period(two_pools(None, 108, 337))
    assert (found.seconds, found.unknown) == (None, ("generate",))
    assert str(found) == "a step takes an unknown time: no seconds of generate"
    with pytest.raises(ValueError, match="not known: generate"):
        timeline_of(two_pools(None, 108, 337))


def test_tasks_of_one_step_that_wait_for_each_other_are_named() -> None:
    circle = two_pools(1, 1, 1, TaskWait("update", "generate"))
    for ask in (period, in_order, timeline_of):
        with pytest.raises(ValueError) as error:
            ask(circle)
        told = "tasks of one step wait for each other: generate → logprob → update (its turn on train) → generate"
        assert str(error.value) == told


def test_a_wait_against_the_order_of_a_pool_is_refused() -> None:
    with pytest.raises(ValueError, match=r"other: logprob → update \(its turn on train\) → logprob"):
        period(two_pools(1, 1, 1, TaskWait("update", "logprob")))


REFUSED: list[tuple[Callable[[], object], type[Exception], str]] = [
    (
        lambda: Schedule((ScheduledTask("a", "host", (), 1.0), ScheduledTask("a", "host", (), 2.0))),
        PlanError,
        "`a` is scheduled twice",
    ),
    (
        lambda: Schedule((ScheduledTask("a", "host", (), -1.0),)),
        ValueError,
        "a: a task takes 0 seconds or more, not -1.0",
    ),
    (lambda: Schedule((ScheduledTask("a", "host", (), float("nan")),)), ValueError, "0 seconds or more, not nan"),
    (lambda: two_pools(1, 1, 1, TaskWait("update", "generte", 1)), UnknownNameError, "no task `generte`"),
    (
        lambda: two_pools(1, 1, 1, TaskWait("update", "generate", -1)),
        ValueError,
        "generate cannot wait for a later step",
    ),
    (lambda: timeline_of(two_pools(1, 1, 1), steps=0), ValueError, "1 step or more, not 0"),
]


@looped("make, error, told", REFUSED)
def test_a_schedule_that_means_nothing_is_refused(
    make: Callable[[], object], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        make()


def busy_graph(pools: int) -> Schedule:
    """Return 60 tasks of unequal length, each waiting for three others, and weights that are late by two."""
    tasks = tuple(ScheduledTask(f"t{i}", "host", (f"pool{i * 7 % pools}",), 1.0 + i * 37 % 11) for i in range(60))
    waits = [TaskWait(f"t{i}", f"t{i + step}") for i in range(60) for step in (1, 5, 9) if i + step < 60]
    return Schedule(tasks, (*waits, *(TaskWait(f"t{59 - i}", f"t{i}", 2) for i in range(20))))


@pytest.mark.parametrize("pools", [1, 4, 20])
def test_sixty_tasks_take_milliseconds(pools: int) -> None:
    """Take the best of five in seconds of processor, so that what runs beside it does not count."""

    def least_s(ask: Callable[[], object]) -> float:
        found = list[float]()
        for _ in range(5):
            before = time.process_time()
            ask()
            found.append(time.process_time() - before)
        return min(found)

    assert least_s(lambda: period(busy_graph(pools))) < 0.005
    assert least_s(lambda: timeline_of(busy_graph(pools), steps=20)) < 0.020
