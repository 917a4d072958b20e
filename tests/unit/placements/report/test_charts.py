"""What a search simulated, as dots and as strips: the front is one, and strips fit the cluster."""

from __future__ import annotations

import pytest

from placements.report.charts import candidates, comparison_chart, fullest_bytes, on_front, plan_parts, search_chart
from placements.search.named_placements import VARIANTS
from tests.unit.placements.small_problems import Of, called, found_of, lagging

EVERY = pytest.mark.parametrize("of", ["ppo", "grpo", "gpg", lagging], ids=called)


@EVERY
def test_a_dot_for_each_plan_that_was_played_and_the_best_first(of: Of) -> None:
    found = found_of(of, "2x8xh100")
    picture = search_chart(found)
    simulated = candidates(found)
    assert simulated[: len(found.ranked)] == list(found.ranked)
    assert {each.blocks for _, each in found.named if each} <= {each.blocks for each in simulated}
    assert [dot.seconds for dot in picture.dots] == [each.step_s for each in simulated]
    assert [dot.mark for dot in picture.dots].count("best") == 1 and picture.dots[0].mark == "best"


@EVERY
def test_the_fullest_device_is_that_of_the_plan(of: Of) -> None:
    for each in found_of(of, "2x8xh100").ranked[:5]:
        peaks = [told.worst.memory_bytes for told in each.plan().forecast if told.worst]
        assert fullest_bytes(each) == max(peaks)


@EVERY
def test_the_front_is_what_no_other_beats_in_both(of: Of) -> None:
    dots = search_chart(found_of(of, "2x8xh100")).dots
    points = [(dot.seconds, dot.memory_bytes) for dot in dots]
    for dot, (seconds, held) in zip(dots[1:], points[1:], strict=True):
        least = min((at for at in points if at[0] <= seconds), key=lambda at: (at[1], at[0]))
        beaten = least[1] < held or least[0] < seconds
        assert (dot.mark == "front") == (not beaten) == on_front((seconds, held), points)


@EVERY
def test_a_strip_for_each_named_placement_within_the_cluster(of: Of) -> None:
    found = found_of(of, "2x8xh100")
    picture = comparison_chart(found)
    labels = [name for strip in picture.strips for name in strip.label.split(", ")]
    assert sorted(labels) == sorted(["this plan", *(variant.name for variant in VARIANTS)])
    assert [strip.chosen for strip in picture.strips] == [True] + [False] * (len(picture.strips) - 1)
    assert picture.devices == 16
    assert all(sum(part.devices for part in strip.parts) <= 16 for strip in picture.strips)
    roles = {role.name for role in found.problem.roles}
    for strip in picture.strips:
        told = [role.split(" ")[0] for part in strip.parts for role in part.roles]
        assert (set(told) == roles and len(told) == len(roles)) or strip.seconds is None


def test_strips_say_what_they_are_and_how_they_stand() -> None:
    picture = comparison_chart(found_of("grpo", "1x8xh100"))
    first, other = picture.strips[0], picture.strips[-1]
    assert first.label == "this plan, hybrid:verl, colocated:deepspeed-chat, split:nemo-aligner"
    assert first.parts[0].roles[0] == "policy.train data=8 sharding=full"
    assert other.why.startswith("+") or other.seconds is None
    assert picture.about.startswith("The fastest is this plan, ")


def test_a_plan_that_is_not_the_best_is_drawn_as_itself_and_the_best_beside_it() -> None:
    found = found_of("ppo", "2x8xh100")
    slow = next(each for variant, each in found.named if variant.name == "hybrid:verl" and each is not None)
    first, second, *others = comparison_chart(found, plan=slow.plan()).strips
    assert first.label.startswith("this plan, hybrid:verl") and first.chosen and first.seconds == slow.step_s
    assert first.why.startswith("+") and first.parts == plan_parts(slow.plan())
    assert (second.label, second.seconds, second.chosen) == ("the best found", found.best.step_s, False)
    assert all("hybrid:verl" not in each.label for each in others)
    assert "This plan is another" in search_chart(found, plan=slow.plan()).about
    assert "another" not in search_chart(found, plan=found.best.plan()).about


def test_a_plan_that_no_search_played_says_only_how_far_it_is_from_the_best() -> None:
    found = found_of("ppo", "2x8xh100")
    plan = found.best.plan()
    assert plan.step is not None
    kept = plan.placed[0].model_copy(update={"engine": "another"})
    own = plan.model_copy(
        update={
            "placed": (kept, *plan.placed[1:]),
            "step": plan.step.model_copy(update={"period_s": 2 * found.best.step_s}),
        }
    )
    first, second, *_ = comparison_chart(found, plan=own).strips
    assert (first.label, first.why, second.label) == ("this plan", "+100.0% compared with the best", "the best found")
