"""One thing changed in a problem, and plans under costs that are other than forecast."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flowgraph.cluster.cluster import Cluster
from flowgraph.errors import FlowError
from placements.search.plan_request import PlanRequest
from placements.search.search import find, regrets
from placements.search.what_if import changed
from tests.looped import looped
from tests.unit.placements.small_problems import cluster_of, problem_of

LENGTHS = {"response": "mean=1k,max=4k"}


def test_each_change_changes_its_one_thing() -> None:
    problem = problem_of("grpo", "2x8xh100", **LENGTHS)
    assert changed(problem, "batch=7").prompts == 7
    assert changed(problem, "staleness=3").lag == 3
    assert changed(problem, "ratio=3:1").ratio == (3, 1)
    assert changed(problem, "precision=fp8").sampling == "fp8"
    assert changed(problem, "prompt.mean=100").prompt.mean == pytest.approx(100)
    assert changed(problem, "length.max=2k").loads[0].response.most <= 2000
    network = changed(problem, "network=400Gbps").cluster.nodes[0].network_bytes_per_s
    assert network == pytest.approx(50e9)
    others = changed(problem, "devices=4x8xh200", cluster_of).classes
    assert [(of.model, of.count) for of in others] == [("h200-sxm-141g", 32)]


@looped(
    "text",
    [
        "",
        "speed=2",
        "batch",
        "batch=0",
        "batch=x",
        "batch.foo=3",
        "batch.=3",
        "ratio=3",
        "ratio=0:1",
        "precision=fp9",
        "network=fast",
        "staleness=-1",
        "length.p99=never",
        "length.p98x=3",
        "batch=99999999999999999999",
        "staleness",
        "devices=4x8xh200",
    ],
)
def test_what_is_no_change_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(FlowError) as caught:
        changed(problem_of("grpo", "1x8xh100", **LENGTHS), text)
    assert str(caught.value)


def test_a_ratio_is_kept_where_drawing_and_training_are_apart() -> None:
    problem = changed(changed(problem_of("gpg", "2x8xh100", **LENGTHS), "ratio=1:3"), "staleness=1")
    for ranked in find(problem).ranked:
        if len(ranked.blocks) == 2:
            sizes = {problem.roles[min(block)].use: sum(option.devices) for block, option in ranked.blocks}
            assert sizes["sample"] == 4
            assert sizes["train"] in (8, 12)


def test_regrets_are_shares_and_the_same_each_time() -> None:
    found = find(problem_of("ppo", "2x8xh100", **LENGTHS)).ranked[:5]
    one, other = regrets(found), regrets(found)
    assert [each.mean for each in one] == [each.mean for each in other]
    assert all(0.0 <= each.mean <= each.worst and 0.0 <= each.best_share <= 1.0 for each in one)
    assert sum(each.best_share for each in one) >= 1.0


def test_a_change_without_a_value_says_so() -> None:
    with pytest.raises(FlowError) as caught:
        changed(problem_of("grpo", "1x8xh100", **LENGTHS), "staleness")
    assert str(caught.value) == "--what-if: staleness='': has no value: write it as in batch=1024"


def test_regrets_are_of_what_was_asked_for() -> None:
    """Of the same seconds, a plan on half of the devices costs half."""
    nodes = tuple(each.model_copy(update={"price_per_hour": 80.0}) for each in cluster_of("2x8xh100").nodes)
    priced = replace(problem_of("ppo", "2x8xh100", **LENGTHS), cluster=Cluster(nodes=nodes))
    plans = find(priced).ranked
    small = min(plans, key=lambda each: each.devices)
    assert small.devices < 16
    by_cost, by_step = (
        {each.ranked.blocks: each.mean for each in regrets(plans, objective)} for objective in ("cost", "step")
    )
    assert by_cost[small.blocks] < by_step[small.blocks]
    found = find(priced, PlanRequest(objective="cost", robust=True))
    assert [each.mean for each in found.regrets] == sorted(each.mean for each in found.regrets)
    assert found.best.cost_per_step <= 1.1 * min(each.cost_per_step for each in found.ranked)


def test_where_devices_count_only_plans_on_the_fewest_are_told_apart_by_regret() -> None:
    found = find(problem_of("ppo", "2x8xh100", **LENGTHS), PlanRequest(objective="devices", robust=True))
    fewest = min(each.devices for each in found.ranked)
    assert found.best.devices == fewest
    assert {each.ranked.devices for each in found.regrets} == {fewest}


def test_without_any_error_the_best_by_the_search_regrets_nothing() -> None:
    found = sorted(find(problem_of("ppo", "2x8xh100", **LENGTHS)).ranked, key=lambda each: each.bound)
    told = regrets(found, error=0.0, draws=2)
    assert told[0].worst == pytest.approx(0.0, abs=1e-9)
    for each in told:
        assert each.worst == pytest.approx(each.ranked.bound / found[0].bound - 1, abs=1e-6)
