"""How late weights should be: what each staleness buys, and the least that is worth it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from placements.report.answer_report import answer_data, staleness_text
from placements.search.answer import CANDIDATES, best_staleness, stalenesses
from placements.search.search import SearchResult, find
from tests.looped import looped
from tests.unit.placements.small_problems import problem_of

LONG = {"model": "Qwen/Qwen3-8B", "prompts": 256, "response": "mean=2k,max=16k"}


def data_of(search: SearchResult) -> dict[str, Any]:
    """Return what an answer says of one staleness that was tried."""
    (data,) = answer_data(replace(search, stalenesses=(search,)), 0, ())["staleness"]
    return dict(data)


def test_later_weights_never_make_a_step_longer_nor_syncs_rarer_than_they_may_be() -> None:
    """By the search's own figure, which overlaps three steps at most; weights are as late as makes a step shorter."""
    tried = stalenesses(problem_of("gpg", "2x8xh100", **LONG), 4)
    assert [each.problem.staleness for each in tried] == [0, 1, 2, 3, 4]
    values = [each.solution.best.step_s for each in tried]
    assert values == sorted(values, reverse=True)
    apart = [each for each in tried if len(each.best.blocks) > 1]
    assert apart
    for each in apart:
        (lag,) = {home.lag for home in each.best.homes if home.lag} or {0}
        ahead = max(home.ahead for home in each.best.homes)
        assert lag == (ahead + data_of(each)["sync_every"] - 1 if ahead else 0)
        assert lag <= each.problem.lag


def test_the_least_that_is_within_a_hundredth_of_the_shortest_step_is_chosen() -> None:
    tried = stalenesses(problem_of("gpg", "2x8xh100", **LONG), 8)
    chosen = best_staleness(tried)
    shortest = min(each.best.step_s for each in tried)
    assert chosen.best.step_s <= 1.01 * shortest
    assert all(each.best.step_s > 1.01 * shortest for each in tried if each.problem.lag < chosen.problem.lag)


def test_all_devices_draw_and_train_where_one_pool_does_both() -> None:
    (on_policy,) = stalenesses(problem_of("gpg", "1x8xh100"), 0)
    assert len(on_policy.best.blocks) == 1
    assert data_of(on_policy) == {
        "staleness": 0,
        "step_s": on_policy.best.step_s,
        "devices_that_draw": 8,
        "devices_that_train": 8,
        "sync_every": 1,
    }


def test_devices_that_draw_and_train_are_counted_once() -> None:
    """PPO on eight machines: policy and reference on one pool, the critic on another, which only trains."""
    large = {"model": "Qwen/Qwen3-8B", "prompts": 64, "response": "mean=1k,max=4k"}
    (on_policy,) = stalenesses(problem_of("ppo", "8x8xh100", **large), 0)
    draws, trains = (data_of(on_policy)[f"devices_that_{verb}"] for verb in ("draw", "train"))
    assert draws + trains > 64 >= trains, "some do both"
    assert f"{draws} do both, {trains - draws} train" in staleness_text((on_policy,), 0)


def test_a_depth_is_searched_up_to_what_is_allowed_while_it_makes_a_step_shorter() -> None:
    """Rows in flight gain by each depth until the trainer is always busy; rows that are waited for gain by no third."""
    long = problem_of("decoupled_ppo", "2x8xh100", model="Qwen/Qwen3-8B", prompts=64, response="mean=2k,max=16k")
    flying = [find(replace(long, staleness=lag, contract="in_flight")).best for lag in (1, 2, 4)]
    assert [max(home.ahead for home in best.homes) for best in flying] == [1, 2, 4]
    steps_s = [best.step_s for best in flying]
    assert steps_s == sorted(steps_s, reverse=True) and steps_s[-1] < 0.8 * steps_s[1]
    assert max(home.ahead for home in find(replace(long, staleness=4)).best.homes) <= 2


@looped("at_most", [0, 1, 5, 16, 40])
def test_the_bound_itself_is_looked_at_and_nothing_above(at_most: int) -> None:
    found = [each.problem.staleness for each in stalenesses(problem_of("gpg", "1x2xh100"), at_most)]
    assert found == sorted({each for each in CANDIDATES if each < at_most} | {at_most})


def test_the_text_marks_what_is_chosen() -> None:
    tried = stalenesses(problem_of("gpg", "1x8xh100"), 1)
    marked = [line for line in staleness_text(tried, 1).splitlines() if "→" in line]
    assert len(marked) == 1
    assert marked[0].split()[1] == "1"
