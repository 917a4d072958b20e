"""The plan that the search gives is the best of all plans as they are simulated, and nothing that fits is refused."""

from __future__ import annotations

import pytest

from tests.placement.simulated_oracle import judge

SETTINGS, MANY = 8, 500


def refuse_nothing_better(seeds: range) -> None:
    """Judge the settings of seeds: no plan is better than the answer beyond its gap, none fits that was refused."""
    judged = [judge(seed) for seed in seeds]
    faults = [f"problem {each.seed}: {fault}" for each in judged for fault in each.faults]
    assert not faults, "\n".join(faults)
    assert any(each.answer is None for each in judged) or len(seeds) < MANY
    assert sum(each.whole for each in judged) > len(seeds) / 4, "every plan was simulated in few settings"


@pytest.mark.slow(group="planner")
def test_no_plan_is_better_than_the_answer_and_none_that_fits_is_refused() -> None:
    refuse_nothing_better(range(SETTINGS))


@pytest.mark.slow
def test_no_plan_of_many_settings_is_better_than_the_answer() -> None:
    refuse_nothing_better(range(SETTINGS, SETTINGS + MANY))
