"""The memory of steps that overlap: rows of each step under way, and weights on their way to a sampler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from placements.search.search import find
from placements.step.memory_forecast import forecasts_of
from placements.step.overlap import overlaps_of, with_overlap
from placements.step.role_placements import RolePlacement
from placements.step.window import has_room_for_window, window_of
from placements.workload.planning_problem import PlanningProblem
from tests.property.test_planned_overlap import of
from tests.unit.placements.small_problems import problem_of

LATE = replace(problem_of("decoupled_ppo", "2x8xh100"), staleness=4)
ON_CPUS = replace(
    problem_of(of(0, 5), "3xcpu-6GiB", model="tiny", prompts=4, prompt_tokens="16", response="8"), staleness=2
)


def homes_of(problem: PlanningProblem, parts: str = "split:openrlhf") -> list[RolePlacement]:
    """Return placements with sampling on devices of its own, whose steps do not overlap."""
    (ranked,) = (each for form, each in find(replace(problem, staleness=0)).named if form.name == parts)
    assert ranked is not None
    return ranked.homes


def sampling(homes: list[RolePlacement], **changes: int) -> list[RolePlacement]:
    """Return placements with other lags of the sampling role."""
    return [replace(home, **changes) if home.role.use == "sample" else home for home in homes]


@pytest.mark.parametrize(
    ("ahead", "lag", "batches", "copies"), [(0, 0, 1, 0), (1, 1, 2, 1), (1, 4, 2, 1), (2, 2, 3, 2), (2, 3, 3, 1)]
)
def test_each_step_ahead_holds_its_rows_and_each_sync_ahead_a_copy(
    ahead: int, lag: int, batches: int, copies: int
) -> None:
    """With a depth of 2 and a sync in every second step, one of the two steps ahead has a sync."""
    homes = sampling(homes_of(LATE), ahead=ahead, lag=lag)
    window, alone = window_of(LATE, homes), window_of(LATE, homes_of(LATE))
    assert (window.batches, window.copies) == (batches, copies)
    assert window.rows_bytes == pytest.approx(batches * alone.rows_bytes)
    role = next(home.role for home in homes if home.role.use == "sample")
    assert window.weights_bytes == copies * 2 * LATE.shape(role).trained


def test_rows_of_a_step_are_all_tokens_of_its_responses() -> None:
    (load,) = (load for load in LATE.loads if load.phase == "generate")
    assert window_of(LATE, homes_of(LATE)).rows_bytes == 128 * load.rows * load.response.most  # type: ignore[union-attr]


def test_on_cpus_the_forecast_of_each_pool_has_the_window() -> None:
    homes = homes_of(ON_CPUS)
    deepest = max(overlaps_of(ON_CPUS, homes, [1, 2]), key=lambda each: max(home.ahead for home in each))
    batches, copies = window_of(ON_CPUS, deepest).batches, window_of(ON_CPUS, deepest).copies
    assert (batches, copies) == (3, 2)
    before, after = (
        {each.pool: each.worst.memory_bytes for each in forecasts_of(ON_CPUS, placed) if each.worst is not None}
        for placed in (homes, deepest)
    )
    role = next(home.role for home in homes if home.role.use == "sample")
    rows_bytes = 128 * ON_CPUS.prompts * 2 * 8
    pool = next(home.pool for home in homes if home.role.use == "sample")
    assert after[pool] - before[pool] == 2 * rows_bytes + 4 * ON_CPUS.shape(role).trained
    (trainer,) = (home for home in homes if home.role.use == "train")
    assert after[trainer.pool] - before[trainer.pool] == 2 * rows_bytes / trainer.layout.data


def test_what_a_host_has_no_room_for_does_not_overlap() -> None:
    homes = homes_of(LATE)
    assert any(home.ahead for home in with_overlap(LATE, homes))
    tight = [
        replace(home, group=replace(home.group, of=replace(home.group.of, host_memory_bytes=2**30))) for home in homes
    ]
    assert not has_room_for_window(LATE, sampling(tight, ahead=1, lag=1))
    assert not any(home.ahead for home in with_overlap(LATE, tight))
