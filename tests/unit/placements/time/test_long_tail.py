"""How long a batch of responses takes, against a simulation of continuous batching at the granularity of a token."""

from __future__ import annotations

from heapq import heappop, heappush
from math import exp
from random import Random
from statistics import mean

import pytest

from flowgraph.cluster.plan import Layout
from flowgraph.models import ModelShape
from placements.hardware.device_profiles import DeviceProfile, PoolLinks
from placements.hardware.engine_constants import ServingConstants
from placements.time.generation import generate_seconds
from placements.workload.lengths import LengthDistribution
from tests.looped import looped

# A model and a device that take no time themselves: a step takes what the engine adds, step_s + row_s for each row.
NOTHING = ModelShape(
    parameters=5, hidden=1, layers=1, heads=1, kv_heads=1, head_dim=1, intermediate=1, vocabulary=1, tied=True
)
ENDLESS = PoolLinks(DeviceProfile("endless", 10**12, {"bfloat16": 1e18}, 1e18, 1e18, 8, 1e18, 1e18, {}), 8, 8, 1e18)


def engine(step_s: float, row_s: float, rows: int) -> ServingConstants:
    """Return an engine that runs at most so many rows at a time."""
    return ServingConstants(
        step_s=step_s,
        layer_s=0.0,
        row_s=row_s,
        request_s=0.0,
        expert_layer_s=0.0,
        expert_exchange_s=0.0,
        expert_share=1.0,
        expert_read_share=1.0,
        rollout_step_s=0.0,
        rollout_joined_s=0.0,
        fixed_bytes=0.0,
        joint_bytes=0.0,
        inside=0.0,
        most_rows=rows,
    )


def simulated_s(lengths: list[int], replicas: int, at_once: int, step_s: float, row_s: float) -> float:
    """Return the seconds of the slowest replica, each of which takes its rows in order as places become free."""
    slowest_s = 0.0
    for replica in range(replicas):
        waiting, ends = lengths[replica::replicas][::-1], list[int]()
        now, now_s = 0, 0.0
        while waiting or ends:
            while waiting and len(ends) < at_once:
                heappush(ends, now + waiting.pop())
            now_s += (ends[0] - now) * (step_s + row_s * len(ends))  # all steps until the next one ends are alike
            now = ends[0]
            while ends and ends[0] == now:
                heappop(ends)
        slowest_s = max(slowest_s, now_s)
    return slowest_s


def drawn(count: int, sigma: float, seed: int) -> list[int]:
    """Draw lengths with a median of 2,000 tokens, cut at 20,480."""
    random = Random(seed)
    return [max(1, round(min(20_480, 2000 * exp(random.gauss(0, sigma))))) for _ in range(count)]


def forecast_s(
    response: LengthDistribution, rows: int, replicas: int, at_once: int, step_s: float, row_s: float
) -> float:
    """Forecast what is simulated."""
    found = generate_seconds(
        NOTHING,
        rows,
        LengthDistribution.fixed(1),
        response,
        Layout(data=replicas),
        ENDLESS,
        engine(step_s, row_s, at_once),
        cache_tokens=1e18,
    )
    assert found.total_s is not None
    return found.total_s


@pytest.mark.slow(group="planner")
@looped("sigma", [0.5, 0.7, 0.9])
@looped("replicas", [1, 4, 16, 32, 64, 128])
@looped("at_once, step_s, row_s", [(256, 8e-3, 60e-6), (128, 8e-3, 20e-6), (64, 4e-3, 200e-6)])
def test_a_batch_takes_what_a_simulation_of_it_takes(
    sigma: float, replicas: int, at_once: int, step_s: float, row_s: float
) -> None:
    response = LengthDistribution.parse(f"p50=2k,sigma={sigma},max=20480")
    simulated = mean(simulated_s(drawn(8192, sigma, seed), replicas, at_once, step_s, row_s) for seed in range(4))
    assert -0.05 < forecast_s(response, 8192, replicas, at_once, step_s, row_s) / simulated - 1 < 0.16


@looped("rows", [40, 64, 65, 96, 128, 200, 512])
def test_responses_of_one_length_run_in_waves(rows: int) -> None:
    simulated = simulated_s([1000] * rows, 1, 64, 8e-3, 60e-6)
    assert forecast_s(LengthDistribution.fixed(1000), rows, 1, 64, 8e-3, 60e-6) == pytest.approx(simulated, rel=1e-3)


@looped("sigma", [0.05, 0.1, 0.2, 0.3])
@looped("rounds", [1.1, 1.5, 2, 2.5, 4, 8])
def test_between_waves_and_a_mixture_it_is_near_either(sigma: float, rounds: float) -> None:
    rows = round(256 * rounds)
    simulated = mean(simulated_s(drawn(rows, sigma, seed), 1, 256, 8e-3, 60e-6) for seed in range(3))
    forecast = forecast_s(LengthDistribution.parse(f"p50=2k,sigma={sigma}"), rows, 1, 256, 8e-3, 60e-6)
    assert forecast == pytest.approx(simulated, rel=0.06)


def test_the_longest_response_bounds_a_batch_however_many_replicas_there_are() -> None:
    response = LengthDistribution.parse("p50=2k,sigma=0.9,max=20480")
    few, many = (forecast_s(response, 8192, replicas, 256, 8e-3, 60e-6) for replicas in (32, 1024))
    alone = response.longest_of(8192) * (8e-3 + 60e-6)
    assert alone * 0.99 < many < few < 1.4 * many
