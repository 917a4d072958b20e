"""How full micro-batches are, by the rows that go into them, and what the seconds of passes make of that."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph.cluster.plan import Layout, RoleSettings
from placements.hardware.engine_constants import TrainingConstants, constants
from placements.step.role_costs import footprint, offloaded_seconds, passing_seconds
from placements.time.training import forward_seconds, update_seconds
from placements.workload.lengths import LengthDistribution
from placements.workload.node_workload import ROWS, NodeWorkload, PassTokens, filled_share, rows_tokens
from placements.workload.planning_problem import PlanningProblem
from tests.looped import looped
from tests.unit.placements.small_problems import SMALL, group_of, problem_of, shapes_of

BUDGET = 1000.0
FIXED = LengthDistribution.fixed(100)
FSDP = constants(TrainingConstants, "fsdp")


def problem(response: str) -> PlanningProblem:
    """Return 64 prompts of 512 tokens with eight responses each, on eight devices."""
    return problem_of("grpo", response=response)


def update_of(where: PlanningProblem) -> NodeWorkload:
    """Return the load of the update."""
    return next(load for load in where.loads if load.phase == "update")


@looped(
    "rows, share",
    [
        ([600.0] * 8, 0.6),  # no two fit a budget together
        ([500.0] * 8, 1.0),
        ([501.0] * 8, 0.501),
        ([700.0, 600.0, 300.0, 300.0], 1.0),  # the emptiest, 600 and 300, is left out: other rows would fill it
        ([340.0] * 9, 0.68),  # two to a budget: three would be 1,020
    ],
)
def test_rows_that_do_not_fit_together_leave_a_budget_empty(rows: list[float], share: float) -> None:
    assert filled_share(rows, BUDGET) == pytest.approx(share)


def test_what_one_micro_batch_holds_tells_nothing_of_how_full_they_are() -> None:
    assert filled_share([10.0, 10.0], BUDGET) == filled_share([10.0], BUDGET) == 1.0


def test_a_row_that_exceeds_the_budget_has_a_micro_batch_of_its_own() -> None:
    assert filled_share([1500.0, 1500.0, 600.0, 400.0], BUDGET) == 1.0
    assert filled_share([1500.0, 600.0, 600.0], 1000.0) == 1.0, "no share exceeds one"


@given(st.lists(st.floats(1, 1000), min_size=1, max_size=64))
def test_as_many_micro_batches_as_the_share_says_have_room_for_the_rows(rows: list[float]) -> None:
    """More than half is filled, as of any two but one, the second had no room in the first."""
    share = filled_share(sorted(rows, reverse=True), BUDGET)
    assert 0.5 <= share <= 1.0


def test_rows_stand_for_all_by_their_quantiles_the_longest_first() -> None:
    response = LengthDistribution((100.0, 200.0, 300.0, 400.0))
    assert rows_tokens(FIXED, response, 4) == [500.0, 400.0, 300.0, 200.0]
    assert rows_tokens(FIXED, response, 1) == [100.0 + response.quantile(0.5)]
    assert len(rows_tokens(FIXED, response, 10_000)) == ROWS
    assert rows_tokens(FIXED, response, 0) == rows_tokens(FIXED, response, 1)


def test_a_load_is_packed_by_the_rows_that_it_has() -> None:
    """Rows of 512 + 488 tokens: one fits 1,900, two fit 2,000, and three 3,900."""
    load = update_of(problem("488"))
    assert [load.tokens_in(budget).filled for budget in (1000, 1900, 2000, 3900)] == pytest.approx(
        [1.0, 1000 / 1900, 1.0, 3000 / 3900]
    )
    assert replace(load.tokens_in(1900), filled=1.0) == load.tokens


def tokens(filled: float) -> PassTokens:
    """Return 64 rows of 1,000 tokens."""
    return PassTokens(64_000.0, 64 * 1000**2 / 2, 64_000.0, 64, filled)


@pytest.mark.parametrize("filled", [0.5, 0.7, 1.0])
def test_half_full_budgets_are_as_many_smaller_micro_batches(filled: float) -> None:
    """Without a pipeline a micro-batch has the tokens that it has; only there are more of them."""
    shape = shapes_of(problem("488").graph, SMALL)["policy"]
    links, layout = group_of("1x8xh100", 1).links, Layout()
    packed = forward_seconds(shape, tokens(filled), layout, links, FSDP, micro_batch_tokens=2000)
    as_many = 64_000 / ceil(64_000 / (2000 * filled) - 1e-9)
    assert packed == forward_seconds(shape, tokens(1.0), layout, links, FSDP, micro_batch_tokens=as_many)


def test_a_pipeline_is_paced_by_its_fullest_micro_batch() -> None:
    """Half-full budgets are twice as many micro-batches, each of which takes as long as a full one."""
    shape = shapes_of(problem("488").graph, SMALL)["policy"]
    links, layout, work = group_of("1x8xh100", 4).links, Layout(pipeline=4), ("matmul", "attention", "memory", "launch")
    full, half = (
        update_seconds(shape, tokens(filled), layout, links, FSDP, micro_batch_tokens=2000).parts
        for filled in (1.0, 0.5)
    )
    worked = [sum(parts.get(name) or 0.0 for name in work) for parts in (full, half)]
    assert worked[1] == pytest.approx(2 * worked[0])


def test_a_pipeline_without_a_budget_has_one_micro_batch_of_all_tokens() -> None:
    shape = shapes_of(problem("488").graph, SMALL)["policy"]
    links, layout = group_of("1x8xh100", 4).links, Layout(pipeline=4)
    unbounded, wide = (
        forward_seconds(shape, tokens(1.0), layout, links, FSDP, micro_batch_tokens=most) for most in (None, 1e6)
    )
    assert unbounded == wide


def test_what_is_offloaded_comes_in_each_micro_batch_that_rows_are_packed_into() -> None:
    """Rows of 1,000 tokens in budgets of 1,900: one each, so as often as in budgets of 1,000."""
    where, group, layout = problem("488"), group_of("1x8xh100", 8), Layout(data=8, sharding="full")
    role = next(role for role in where.roles if role.name == "policy.train")
    own = where.loads_of(role)

    def moved_s(micro: int) -> float:
        running = RoleSettings(
            precision="bfloat16", checkpointing="full", micro_batch_tokens=micro, offload=("parameters",)
        )
        held = footprint(where, role, group, "fsdp", layout, running)
        return offloaded_seconds(held, group, layout, running, own).total_s or 0.0

    assert moved_s(1900) == pytest.approx(moved_s(1000))
    assert moved_s(2000) == pytest.approx(moved_s(1000) / 2)


@pytest.mark.parametrize("phase", ["logprob", "update"])
def test_a_pass_is_no_faster_where_rows_fill_its_micro_batches_worse(phase: str) -> None:
    """Budgets of 1,900 tokens are as full as budgets of 1,000 where rows have 1,000."""
    where, group, layout = problem("488"), group_of("1x8xh100", 8), Layout(data=8, sharding="full")
    load = next(load for load in where.loads if load.phase == phase)
    runnings = (RoleSettings(checkpointing="full", micro_batch_tokens=micro) for micro in (1000, 1900, 2000))
    seconds = [passing_seconds(where, group, "fsdp", layout, running, load) for running in runnings]
    assert seconds[0] == seconds[1]
    assert (seconds[2].total_s or 0.0) < (seconds[1].total_s or 0.0)
