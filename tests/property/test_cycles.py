"""Periods and timelines of random schedules, against a discrete-event simulation, all simple cycles, and laws."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

import networkx
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from placements.step.idle_time import idle_spans
from placements.step.period import period
from placements.step.schedule import Schedule, ScheduledTask, TaskWait, constraints
from placements.step.timeline import timeline_of

STEPS = 30

Seeds = Callable[[int, int], range]


def random_schedule(seed: int) -> Schedule:
    """Return 2 to 8 tasks on 1 to 4 pools, some on two or on none, with delays of 0 to 4 and no circle in one step."""
    rng = random.Random(seed)
    pools = [f"pool{place}" for place in range(rng.randint(1, 4))]
    count = rng.randint(2, 8)
    tasks = [
        ScheduledTask(
            f"t{i}", "host", tuple(rng.sample(pools, min(len(pools), rng.choice([1, 1, 1, 2])))), rng.uniform(0.1, 9)
        )
        for i in range(count)
    ]
    waits = list[TaskWait]()
    for _ in range(rng.randint(0, 2 * count)):
        before, after = rng.randrange(count), rng.randrange(count)
        waits.append(TaskWait(f"t{before}", f"t{after}", rng.randint(0 if before < after else 1, 4)))
    if rng.random() < 0.3:  # a task that occupies nothing, such as a request to a rule on another machine
        tasks.append(ScheduledTask("free", "score", (), rng.uniform(0.1, 20)))
        waits += [TaskWait("t0", "free"), TaskWait("free", f"t{count - 1}", rng.randint(0, 4))]
    return Schedule(tuple(tasks), tuple(waits))


def simulated(schedule: Schedule, steps: int) -> dict[tuple[str, int], tuple[float, float]]:
    """Run a schedule as processes: machines that call their tasks in turn, tasks that meet all of their machines."""
    env = simpy.Environment()
    jobs = [(task.name, step) for step in range(steps) for task in schedule.tasks]
    ended = {job: env.event() for job in jobs}
    called = {(pool, *job): env.event() for job in jobs for pool in schedule.by_name[job[0]].pools}
    spans = dict[tuple[str, int], tuple[float, float]]()

    def machine(pool: str) -> Iterator[Any]:
        for step in range(steps):
            for task in schedule.on(pool):
                called[pool, task.name, step].succeed()
                yield ended[task.name, step]

    def job(task: ScheduledTask, step: int) -> Iterator[Any]:
        data = [ended[w.before, step - w.delay] for w in schedule.waits if w.after == task.name and w.delay <= step]
        yield env.all_of([*data, *(called[pool, task.name, step] for pool in task.pools)])
        start_s = env.now
        yield env.timeout(task.seconds or 0.0)
        spans[task.name, step] = (start_s, env.now)
        ended[task.name, step].succeed()

    for pool in schedule.pools:
        env.process(machine(pool))
    for name, step in jobs:
        env.process(job(schedule.by_name[name], step))
    env.run()
    return spans


def slowest_cycle_s(schedule: Schedule) -> float:
    """Try every simple cycle."""
    graph = networkx.DiGraph()
    for wait in constraints(schedule):
        graph.add_edge(wait.before, wait.after, tokens=wait.delay)
    ratios = [0.0]
    for cycle in networkx.simple_cycles(graph):
        tokens = sum(graph.edges[cycle[i - 1], cycle[i]]["tokens"] for i in range(len(cycle)))
        ratios.append(sum(schedule.by_name[name].seconds or 0.0 for name in cycle) / tokens)
    return max(ratios)


def measured_s(finish_s: Sequence[float], tokens: int) -> float:
    """Return the time from step to step at the end, over as many steps as the tokens of the slowest cycle."""
    return (finish_s[-1] - finish_s[-1 - tokens]) / tokens


def test_the_period_of_random_schedules_is_that_of_their_slowest_simple_cycle(
    seeds: Callable[[int, int], range],
) -> None:
    tried = seeds(60, 2_000)
    for seed in tried:
        schedule = random_schedule(seed)
        found = period(schedule)
        assert found.seconds == pytest.approx(slowest_cycle_s(schedule), rel=1e-12), seed
        whole_s = sum(schedule.by_name[name].seconds or 0.0 for name in found.cycle)
        assert whole_s / found.tokens == pytest.approx(found.seconds, rel=1e-12), seed


def test_the_period_of_random_schedules_is_that_of_a_long_timeline(seeds: Seeds) -> None:
    """Where two cycles take nearly as long, the slower one wins only after thousands of steps; 1e-4 allows for that."""
    tried = seeds(60, 2_000)
    errors = list[float]()
    for seed in tried:
        schedule = random_schedule(seed)
        found = period(schedule)
        measured = measured_s(timeline_of(schedule, steps=150).finish_s, found.tokens)
        errors.append(abs(measured / (found.seconds or inf) - 1))
    assert max(errors) < 1e-4
    assert sum(error < 1e-9 for error in errors) >= 0.99 * len(tried)


def test_timeline_and_period_of_random_schedules_are_those_of_a_discrete_event_simulation(
    seeds: Callable[[int, int], range],
) -> None:
    tried = seeds(60, 2_000)
    for seed in tried:
        schedule = random_schedule(seed)
        found, spans = period(schedule), simulated(schedule, STEPS)
        assert {
            (run.task, run.step): (run.start_s, run.end_s) for run in timeline_of(schedule, steps=STEPS).runs
        } == spans, seed
        finish_s = [max(spans[task.name, step][1] for task in schedule.tasks) for step in range(STEPS)]
        assert measured_s(finish_s, found.tokens) == pytest.approx(found.seconds, rel=0.01), seed


schedules = st.integers(0, 10**6).map(random_schedule)


def changed(schedule: Schedule, name: str, change: Callable[[ScheduledTask], ScheduledTask]) -> Schedule:
    """Return the schedule with one task changed."""
    return replace(schedule, tasks=tuple(change(task) if task.name == name else task for task in schedule.tasks))


def period_s(schedule: Schedule) -> float:
    """Return a period that is known."""
    found = period(schedule).seconds
    assert found is not None
    return found


@given(schedules, st.floats(0, 20), st.data())
def test_a_longer_task_never_shortens_the_period_nor_starts_a_run_sooner(
    schedule: Schedule, more_s: float, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from([task.name for task in schedule.tasks]))
    longer = changed(schedule, name, lambda task: replace(task, seconds=(task.seconds or 0.0) + more_s))
    assert period_s(longer) >= period_s(schedule) * (1 - 1e-11)
    later = {(run.task, run.step): run.start_s for run in timeline_of(longer, steps=8).runs}
    assert all(run.start_s <= later[run.task, run.step] for run in timeline_of(schedule, steps=8).runs)


@given(schedules, st.integers(1, 4), st.data())
def test_more_tokens_never_lengthen_the_period(schedule: Schedule, more: int, data: st.DataObject) -> None:
    waits = list(schedule.waits)
    if waits:
        place = data.draw(st.integers(0, len(waits) - 1))
        waits[place] = replace(waits[place], delay=waits[place].delay + more)
    assert period_s(replace(schedule, waits=tuple(waits))) <= period_s(schedule) * (1 + 1e-11)


@given(schedules, st.floats(1e-6, 1e6))
def test_times_scaled_by_a_factor_scale_the_period(schedule: Schedule, factor: float) -> None:
    scaled = tuple(replace(task, seconds=(task.seconds or 0.0) * factor) for task in schedule.tasks)
    assert period_s(replace(schedule, tasks=scaled)) == pytest.approx(factor * period_s(schedule), rel=1e-11)


@given(schedules)
def test_no_period_is_shorter_than_the_largest_load_of_a_pool(schedule: Schedule) -> None:
    assert period_s(schedule) >= max(schedule.load_s(pool) or 0.0 for pool in schedule.pools)


def alone(schedule: Schedule) -> Schedule:
    """Return the schedule with each task on one pool at most."""
    return replace(schedule, tasks=tuple(replace(task, pools=task.pools[:1]) for task in schedule.tasks))


@given(schedules)
def test_without_end_of_staleness_the_period_is_the_largest_load_of_a_pool(schedule: Schedule) -> None:
    late = replace(alone(schedule), waits=tuple(replace(wait, delay=10**6) for wait in schedule.waits))
    assert period_s(late) == max(late.load_s(pool) or 0.0 for pool in late.pools)


@given(schedules, st.integers(1, 6))
def test_busy_and_idle_shares_of_a_pool_add_up_to_all_the_time(schedule: Schedule, steps: int) -> None:
    timeline = timeline_of(schedule, steps=steps)
    idle = dict.fromkeys(schedule.pools, 0.0)
    for bubble in idle_spans(timeline):
        idle[bubble.pool] += bubble.share
        assert bubble.seconds > 0
    busy = timeline.busy()
    assert all(busy[pool] + idle[pool] == pytest.approx(1.0) for pool in schedule.pools)


@given(schedules, st.integers(1, 6))
def test_no_pool_does_two_things_and_no_task_starts_too_soon(schedule: Schedule, steps: int) -> None:
    timeline = timeline_of(schedule, steps=steps)
    ends = {(run.task, run.step): run.end_s for run in timeline.runs}
    assert len(ends) == steps * len(schedule.tasks) == len(timeline.runs)
    for run in timeline.runs:
        waits = [(w.before, run.step - w.delay) for w in constraints(schedule) if w.after == run.task]
        assert all(run.start_s >= ends[job] for job in waits if job[1] >= 0)
        assert run.start_s == (0.0 if run.freed_by is None else ends[run.freed_by])
    for pool in schedule.pools:
        on = [event for event in timeline.events if event.pool == pool]
        assert all(event.end_s <= then.start_s for event, then in pairwise(on))


@given(st.floats(0.1, 100), st.floats(0.1, 100), st.integers(0, 5))
def test_a_bound_on_staleness_gives_the_sum_on_policy_and_the_larger_pool_from_one_on(
    generate_s: float, train_s: float, at_most: int
) -> None:
    tasks = (
        ScheduledTask("generate", "generate", ("r",), generate_s),
        ScheduledTask("update", "update", ("t",), train_s),
    )
    schedule = Schedule(tasks, (TaskWait("generate", "update"), TaskWait("update", "generate", at_most + 1)))
    wanted_s = generate_s + train_s if at_most == 0 else max(generate_s, train_s)
    assert period_s(schedule) == pytest.approx(wanted_s)
