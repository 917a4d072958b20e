"""Rollouts that continue across steps: how many batches are in flight, against a simulation of admission."""

from __future__ import annotations

import heapq
from dataclasses import replace
from itertools import product
from math import exp
from random import Random
from statistics import NormalDist, mean
from typing import Any

import pytest

from flowgraph.analysis.roles import Role
from flowgraph.cluster.plan import Layout, RoleSettings
from placements.search.named_placements import variant
from placements.search.plan_builder import homes_of_blocks
from placements.search.plan_request import PlanRequest
from placements.search.pool_options import PoolOptions
from placements.search.search import SearchResult, find, solved
from placements.step.role_costs import best_in_flight, sampling_seconds, streams
from placements.step.step_forecast import synced_every
from placements.time.in_flight import GRAINS, MOST_ADMITTED, InFlight, ways_across_syncs, ways_in_flight
from placements.workload.planning_problem import PlanningProblem
from tests.looped import looped
from tests.unit.placements.small_problems import group_of, problem_of

TOKENS = [min(8000, max(1, int(1000 * exp(0.7 * NormalDist().inv_cdf((i + 0.5) / 200))))) for i in range(200)]
BATCH = 64
STEP_S = 0.02


def simulated_s(lag: int, row_s: float, training_s: float, updates: int = 60) -> float:
    """Return the seconds of a step where rows of TOKENS are admitted as AReaL does, all in flight stepping together."""
    random, flight, ends = Random(0), list[int](), list[float]()
    admitted = finished = taken = tokens = 0
    now_s, training_until = 0.0, None
    while len(ends) < updates:
        while admitted < (len(ends) + lag + 1) * BATCH:
            heapq.heappush(flight, tokens + random.choice(TOKENS))
            admitted += 1
        if training_until is None and finished - taken >= BATCH:
            taken, training_until = taken + BATCH, now_s + training_s
        if flight:
            each_s = STEP_S + row_s * len(flight)
            count = max(1, flight[0] - tokens)
            if training_until is not None:
                count = min(count, int((training_until - now_s) / each_s) + 1)
            now_s, tokens = now_s + count * each_s, tokens + count
        else:
            assert training_until is not None
            now_s = training_until
        while flight and flight[0] <= tokens:
            heapq.heappop(flight)
            finished += 1
        if training_until is not None and now_s >= training_until:
            ends.append(now_s)
            training_until = None
    half = len(ends) // 2
    return (ends[-1] - ends[half]) / (len(ends) - 1 - half)


def simulated_in_flight_s(depth: int, row_s: float, training_s: float, updates: int = 60) -> float:
    """Return the seconds of a step where rows of TOKENS are sent with their weights, and a step waits for all its own.

    Rows of step k are sent when update k - depth has made its weights; the update of step k begins when the last has
    ended. All rows in flight step together.
    """
    random, flight, ends = Random(0), list[tuple[int, int]](), list[float]()
    left, sent, tokens, now_s, training_until = dict[int, int](), 0, 0, 0.0, None
    while len(ends) < updates:
        while sent <= len(ends) + depth:
            for _ in range(BATCH):
                heapq.heappush(flight, (tokens + random.choice(TOKENS), sent))
            left[sent] = BATCH
            sent += 1
        if training_until is None and not left[len(ends)]:
            training_until = now_s + training_s
        each_s = STEP_S + row_s * len(flight)
        if flight:
            count = max(1, flight[0][0] - tokens)
            if training_until is not None:
                count = min(count, int((training_until - now_s) / each_s) + 1)
            now_s, tokens = now_s + count * each_s, tokens + count
        else:
            assert training_until is not None
            now_s = training_until
        while flight and flight[0][0] <= tokens:
            left[heapq.heappop(flight)[1]] -= 1
        if training_until is not None and now_s >= training_until:
            ends.append(now_s)
            training_until = None
    half = len(ends) // 2
    return (ends[-1] - ends[half]) / (len(ends) - 1 - half)


def generated_s(row_s: float, way: InFlight) -> float:
    """Return the seconds of a batch where so many batches step together."""
    return mean(TOKENS) * (STEP_S + row_s * way.batches * BATCH) / way.batches


@looped("lag, row_s, share", [*product((1, 2, 4), (1e-5, 4e-4), (0.1, 0.95, 1.3))])
def test_a_step_takes_what_admission_makes_it_take(lag: int, row_s: float, share: float) -> None:
    """Training takes a `share` of generating with as many batches in flight as the staleness."""
    training_s = share * generated_s(row_s, InFlight(float(lag), lag))
    ways = (way for way in ways_in_flight(lag, streamed=True) if way.sync_every == 1)
    ours_s = min(max(generated_s(row_s, way), way.period_s(training_s), training_s) for way in ways)
    assert ours_s == pytest.approx(simulated_s(lag, row_s, training_s), rel=0.1)


@looped("depth, row_s, share", [*product((1, 2, 4), (1e-5, 4e-4), (0.1, 0.95, 1.3))])
def test_a_step_in_flight_waits_for_its_longest_response_and_not_at_syncs(
    depth: int, row_s: float, share: float
) -> None:
    """The longest of BATCH responses is taken to be the one at its rank; training takes a `share` of its latency."""
    longest = mean(max(Random(seed).choices(TOKENS, k=BATCH)) for seed in range(200))
    stretch = longest / mean(TOKENS)
    training_s = share * longest * STEP_S / depth
    ways = ways_across_syncs(depth, 1, stretch)
    ours_s = min(max(generated_s(row_s, way), way.period_s(training_s), training_s) for way in ways)
    assert ours_s == pytest.approx(simulated_in_flight_s(depth, row_s, training_s), rel=0.1)


@looped("lag, ahead", [(1, 1), (2, 1), (2, 2), (8, 1), (8, 2)])
def test_no_way_spends_more_than_the_staleness(lag: int, ahead: int) -> None:
    for way in ways_in_flight(lag, streamed=True, ahead=ahead):
        assert ahead - 1 + way.admitted + way.sync_every - 1 == lag
        assert way.admitted - 0.5 <= way.batches <= way.admitted + 0.5


def test_a_staleness_without_end_has_a_few_ways_and_rarer_syncs() -> None:
    ways = ways_in_flight(10**9, streamed=True)
    assert len(ways) == MOST_ADMITTED * (GRAINS + 1)
    assert ways[0].sync_every == 10**9 and ways[-1].sync_every == 10**9 - MOST_ADMITTED + 1


def test_rollouts_of_a_role_that_nobody_trains_end_in_their_step() -> None:
    """A judge answers about the rows of a step, so none of its answers continues in the next."""
    problem = streamed(2)
    judge = Role("judge.sample", "judge", "sample", ("judge.generate",))
    assert [streams(problem, role) for role in problem.roles if role.use == "sample"] == [True]
    assert not streams(problem, judge)


def streamed(lag: int, **having: Any) -> PlanningProblem:
    """Return the problem of few long responses on two machines."""
    problem = problem_of("gpg", "2x8xh100", model="Qwen/Qwen3-8B", prompts=32, response="mean=2k,max=16k")
    return replace(problem, staleness=lag, contract="ready", **having)


ALONE = RoleSettings(precision="bfloat16", cache_share=0.8)


def drawn_s(problem: PlanningProblem, running: RoleSettings = ALONE, way: InFlight | None = None) -> dict[str, float]:
    """Return the seconds of generating a step's responses on eight devices, by part."""
    (load,) = (load for load in problem.loads if load.phase == "generate")
    found = sampling_seconds(problem, group_of("2x8xh100", 8), "sglang", Layout(data=8), running, load, way)
    assert found is not None
    return {name: each or 0.0 for name, each in found.parts.items()}


def test_more_staleness_keeps_more_rows_in_flight_so_that_the_weights_are_read_for_more_of_them() -> None:
    found = [sum(drawn_s(streamed(lag, keeps_caches=True)).values()) for lag in (1, 2, 4, 8)]
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.8 * found[0]


def test_a_busy_trainer_leaves_fewer_batches_in_flight() -> None:
    problem = streamed(1, keeps_caches=True)
    (load,) = (load for load in problem.loads if load.phase == "generate")
    place = problem, group_of("2x8xh100", 8), "sglang", Layout(data=8), ALONE, load
    alone_s = sum(drawn_s(problem).values())
    idle, busy = (best_in_flight(*place, training_s=share * alone_s) for share in (0.0, 2.0))
    assert (idle.batches, idle.period_s(0.0)) == (1.5, 0.0)
    assert busy.batches < 1


def test_caches_are_computed_again_after_each_sync_unless_they_are_kept() -> None:
    way = InFlight(1.0, 1, 1)
    again, kept = (drawn_s(streamed(1, keeps_caches=keeps), way=way) for keeps in (False, True))
    assert "resume" not in kept
    assert {**again, "resume": 0.0} == pytest.approx({**kept, "resume": 0.0})
    rarer = drawn_s(streamed(4), way=InFlight(1.0, 1, 4))
    assert rarer["resume"] == pytest.approx(again["resume"] / 4)


def test_an_engine_that_sleeps_in_each_step_computes_its_caches_again_in_each() -> None:
    asleep = ALONE.model_copy(update={"sleeps": True})
    for keeps in (False, True):
        found = drawn_s(streamed(4, keeps_caches=keeps), asleep, InFlight(1.0, 1, 4))
        assert found["resume"] == pytest.approx(4 * drawn_s(streamed(4), way=InFlight(1.0, 1, 4))["resume"])


def apart(problem: PlanningProblem) -> SearchResult:
    """Return the search of a problem with rollouts on a pool of their own."""
    return find(problem, PlanRequest(placement="split:openrlhf"))


def test_a_slow_sync_comes_rarer_and_leaves_fewer_batches_in_flight() -> None:
    problem = streamed(4)
    (load,) = (load for load in problem.loads if load.phase == "generate")
    place = problem, group_of("2x8xh100", 8), "sglang", Layout(data=8), ALONE, load
    quick, slow = (best_in_flight(*place, sync_s=seconds) for seconds in (0.0, 1000.0))
    assert quick.sync_every < slow.sync_every == 4
    assert quick.batches > slow.batches


def test_the_sync_of_a_plan_comes_as_seldom_as_what_is_in_flight_lets_it() -> None:
    problem = streamed(4)
    best = apart(problem).best
    every = synced_every(problem, homes_of_blocks(problem, best.blocks))
    assert 1 <= every <= 4
    drained = replace(problem, contract="scheduled")
    best = apart(drained).best
    assert synced_every(drained, homes_of_blocks(drained, best.blocks)) == 4


@pytest.mark.parametrize("lag", [1, 2, 8])
def test_no_plan_of_a_streamed_setting_is_played_in_less_than_its_bound(lag: int) -> None:
    found = find(streamed(lag))
    assert found.bound is not None
    assert all(each.bound <= each.step_s * (1 + 1e-9) for each in found.ranked)
    assert found.bound <= found.best.step_s * (1 + 1e-9)


def test_rules_score_rows_beside_the_next_ones_that_are_drawn() -> None:
    """The host takes as long for its rules as the rest of a step; drawn across steps, it scores prompt by prompt."""
    plain = replace(problem_of("gpg", "2x8xh100", model="Qwen/Qwen3-8B", prompts=32), staleness=1)
    parts = variant("split:openrlhf").parts_of(plain.graph)

    def step_s(problem: PlanningProblem) -> float:
        found = solved(problem, PoolOptions(problem), parts)
        assert found is not None
        return found.step_s

    alone_s = step_s(plain)
    rows = max(load.rows for load in plain.loads)
    slow = {"host": {"score_row_s": min(0.1, 0.8 * alone_s / rows)}}
    assert step_s(replace(plain, calibrated=slow)) < 1.3 * alone_s
    drawn = replace(plain, contract="ready")
    assert step_s(replace(drawn, calibrated=slow)) < 1.05 * step_s(drawn)
