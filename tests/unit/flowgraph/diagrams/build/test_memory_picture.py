"""A plan's memory as a chart: who holds what, what fits, and what was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from flowgraph import Graph
from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import PhasePeak, Plan, Pool, PoolForecast
from flowgraph.diagrams.build.memory_picture import bytes_by_role, memory_picture
from placements.memory.footprint import FILLS, FITS_SHARE
from tests.unit.placements.small_problems import found_of, problem_of

GIB = 2**30


def plan_of(*forecast: PoolForecast, memory_bytes: int = 10 * GIB) -> Plan:
    devices = Device(kind="gpu", memory_bytes=2 * memory_bytes), Device(kind="gpu", memory_bytes=memory_bytes)
    machine = Machine(name="m", devices=devices, host_memory_bytes=GIB, cores=1)
    pools = tuple(Pool(name=each.pool, devices=(("m", 0), ("m", 1))) for each in forecast)
    return Plan(
        flow="f", structure_hash="", cluster=Cluster(nodes=(machine,)), pools=pools, placed=(), forecast=forecast
    )


@pytest.mark.parametrize("flow", ["grpo", "ppo", "gpg"])
def test_roles_of_a_found_plan_hold_all_of_each_peak(flow: str) -> None:
    plans = [each.plan() for each in found_of(flow, "2x8xh100").ranked[:8]]
    peaks = [peak for plan in plans for told in plan.forecast for peak in told.peaks]
    assert [sum(peak.held.values()) for peak in peaks] == [peak.memory_bytes for peak in peaks]
    for plan in plans:
        roles = {"process", *(each.role for each in plan.placed)}
        assert all(set(peak.held) <= roles for told in plan.forecast for peak in told.peaks)


@pytest.mark.parametrize("flow", ["grpo", "ppo"])
def test_roles_and_the_process_of_a_plan_of_this_machine_hold_all_of_each_peak(
    flow: str, one_device: Callable[[Graph], Plan]
) -> None:
    from placements import forecast

    problem = problem_of(flow, prompts=4, prompt_tokens="16")
    plan = one_device(problem.graph)
    plan = forecast(replace(problem, cluster=plan.cluster), plan)
    peaks = plan.forecast[0].peaks
    assert peaks and all(sum(peak.held.values()) == peak.memory_bytes for peak in peaks)
    assert set(peaks[0].held) <= {"process", *(each.role for each in plan.placed)}


def test_a_chart_has_the_phases_of_each_pool_against_its_smallest_device() -> None:
    plan = found_of("grpo", "1x8xh100").best.plan()
    chart = memory_picture(plan, fills=FILLS)
    (store,) = chart.stores
    assert [phase.label for phase in store.phases] == ["to generate", "generate", "logprob", "update"]
    assert [phase.transition for phase in store.phases] == [True, False, False, False]
    assert [phase.size_bytes for phase in store.phases] == [peak.memory_bytes for peak in plan.forecast[0].peaks]
    assert store.room_bytes == int(FITS_SHARE * store.capacity_bytes)
    assert chart.about.startswith("On all the highest phase is generate: ")


def test_what_is_too_much_is_said_and_what_was_measured_stands_beside() -> None:
    peaks = (
        PhasePeak(phase="update", role="a.train", memory_bytes=12 * GIB),
        PhasePeak(phase="logprob", role="a.train", memory_bytes=GIB),
        PhasePeak(phase="logprob", role="b.infer", memory_bytes=3 * GIB),
    )
    measured = [
        PoolForecast(
            pool="p", process_bytes=0, peaks=(PhasePeak(phase="update", role="a.train", memory_bytes=size * GIB),)
        )
        for size in (11, 13, 12)
    ]
    plan = plan_of(PoolForecast(pool="p", process_bytes=0, peaks=peaks))
    chart = memory_picture(plan, measured, fills={"gpu": 0.5, "cpu": 1.0})
    (store,) = chart.stores
    assert (store.capacity_bytes, store.room_bytes, store.label) == (10 * GIB, 5 * GIB, "p: each of 2 devices")
    assert [phase.label for phase in store.phases] == ["update", "logprob (a.train)", "logprob (b.infer)"]
    assert [phase.measured_bytes for phase in store.phases] == [13 * GIB, None, None]
    assert store.phases[0].held == (("a.train", 12 * GIB),)
    assert chart.about == (
        "On p the highest phase is update: 12.0 GiB of 10.0 GiB, 2.0 GiB too much. "
        "Measured, update took more than forecast."
    )


def test_a_plan_may_fill_all_of_a_cpu_device(one_device: Callable[[Graph], Plan]) -> None:
    from placements import forecast

    problem = problem_of("grpo", prompts=4, prompt_tokens="16")
    plan = one_device(problem.graph)
    plan = forecast(replace(problem, cluster=plan.cluster), plan)
    (store,) = memory_picture(plan, fills=FILLS).stores
    assert store.room_bytes == store.capacity_bytes == plan.cluster.nodes[0].devices[0].memory_bytes


def test_a_plan_without_a_forecast_has_an_empty_chart() -> None:
    assert memory_picture(plan_of(), fills=FILLS).stores == ()


def test_a_plan_that_does_not_say_who_holds_what_still_reads_and_stays_as_it_is() -> None:
    plan = plan_of(
        PoolForecast(pool="p", process_bytes=0, peaks=(PhasePeak(phase="update", role="a", memory_bytes=1),))
    )
    assert '"held"' not in plan.to_json()
    assert Plan.from_json(plan.to_json()) == plan
    told = PhasePeak(phase="update", role="a", memory_bytes=1, held={"a": 1})
    assert PhasePeak.model_validate_json(told.model_dump_json()) == told
    assert len({told, told}) == 1


def test_parts_that_are_not_all_of_an_edited_peak_are_not_shown() -> None:
    peak = PhasePeak(phase="update", role="a", memory_bytes=3, held={"a": 1, "b": 1})
    assert bytes_by_role(peak) == (("a", 3),)
    assert bytes_by_role(peak.model_copy(update={"memory_bytes": 2})) == (("a", 1), ("b", 1))
