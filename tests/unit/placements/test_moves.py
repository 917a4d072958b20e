"""Why a role is where it is: the same flow with the role elsewhere, and in other layouts."""

from __future__ import annotations

import pytest

from flowgraph.plan import Pool
from placements.blocks import Blocks
from placements.finding import solved
from placements.found_text import show_s
from placements.moves import Here, layouts, moves, parts_of
from placements.moves_text import fastest_text, layouts_text, moves_text, plans_text
from placements.named import VARIANTS, parts
from tests.flows.ppo_shaped import ppo_shaped
from tests.unit.placements.small_settings import Of, called, found_of, graph_of, lagging, setting_of

HYBRID = parts(graph_of(ppo_shaped), "hybrid")
CLUSTER = "1x8xh100"


def test_a_role_moves_to_each_other_pool_and_to_one_of_its_own() -> None:
    """Draw: train, sample, critic, ref | judge. The critic can go to the judge, or alone; the judge to the rest."""
    setting = setting_of(ppo_shaped, CLUSTER)
    assert [each.beside for each in moves(setting, HYBRID, "critic.train")] == [("judge.infer",), ()]
    rest = ("policy.train", "policy.sample", "critic.train", "ref.infer")
    assert [each.beside for each in moves(setting, HYBRID, "judge.infer")] == [rest]


@pytest.mark.parametrize("role", ["policy.train", "policy.sample", "critic.train", "ref.infer", "judge.infer"])
@pytest.mark.parametrize("name", ["hybrid", "split", "standalone"])
def test_a_move_changes_the_pool_of_one_role_only(role: str, name: str) -> None:
    setting, before = setting_of(ppo_shaped, CLUSTER), parts(graph_of(ppo_shaped), name)
    for each in moves(setting, before, role):
        assert each.ranked is not None
        after = {frozenset(part) for part in each.ranked.parts()}
        assert frozenset({*each.beside, role}) in after
        rest = {frozenset(part) - {role} for part in before} - {frozenset()}
        assert {part - {role} for part in after} - {frozenset()} == rest
        assert after != {frozenset(part) for part in before}


@pytest.mark.parametrize("of", ["ppo", "grpo", lagging], ids=called)
def test_no_move_from_the_best_plan_is_better_by_the_searchs_figure(of: Of) -> None:
    """The best of all partitions is better than each that differs in one role."""
    setting, found = setting_of(of, "2x8xh100"), found_of(of, "2x8xh100")
    best = next(each for each in found.ranked if each.value == found.answer.value)
    for role in setting.roles:
        for each in moves(setting, best.parts(), role.name):
            assert each.ranked is None or each.ranked.value >= best.value * (1 - 1e-9)


def test_a_move_that_fits_nowhere_is_told() -> None:
    """Each of five roles alone on four devices is one pool too many."""
    setting, before = setting_of(ppo_shaped, "1x4xh100"), parts(graph_of(ppo_shaped), "split")
    here = solved(setting, Blocks(setting), before)
    assert here is not None
    found = list(
        moves(
            setting,
            (("policy.train",), ("policy.sample",), ("ref.infer", "judge.infer"), ("critic.train",)),
            "judge.infer",
        )
    )
    alone = next(each for each in found if not each.beside)
    assert alone.ranked is None
    text = moves_text("judge.infer", ("ref.infer", "judge.infer"), here, found)
    assert text.startswith("judge.infer shares a pool with ref.infer: ")
    assert any(line.split() == ["alone", "does", "not", "fit"] for line in text.splitlines())


def test_moves_are_told_best_first_with_what_takes_longer() -> None:
    setting = setting_of("grpo", CLUSTER, model="Qwen/Qwen3-8B")
    before = parts(setting.graph, "colocated")
    here = solved(setting, Blocks(setting), before)
    assert here is not None
    found = list(moves(setting, before, "policy.sample"))
    (line,) = moves_text("policy.sample", before[0], here, found).splitlines()[1:]
    assert line.split()[0] == "alone"
    assert "%" in line and "policy.update +" in line


def test_a_role_alone_says_so() -> None:
    setting = setting_of("grpo", CLUSTER)
    before = parts(setting.graph, "standalone")
    here = solved(setting, Blocks(setting), before)
    assert here is not None
    text = moves_text("ref.infer", ("ref.infer",), here, list(moves(setting, before, "ref.infer")))
    assert text.startswith("ref.infer has a pool of its own: ")


def test_a_plan_that_is_not_its_pools_fastest_says_so() -> None:
    """A plan from a file may have other sizes than the search would choose for its pools."""
    setting, before = setting_of("grpo", CLUSTER), parts(graph_of("grpo"), "split")
    best = solved(setting, Blocks(setting), before)
    assert best is not None
    assert fastest_text(best, best) == fastest_text(best, None) == ""
    slow = Here(best.step, 2 * best.step_s, 4)
    text = fastest_text(slow, best)
    assert text.startswith(f"a step of this plan takes {show_s(slow.step_s)}; the same pools at their fastest ")
    assert text.endswith(f"{show_s(best.step_s)}, -50.0%, on 8 devices")
    moved = moves_text("policy.sample", ("policy.sample",), slow, list(moves(setting, before, "policy.sample")))
    assert "better than this plan, on 8 devices" in moved


def test_each_layout_is_told_once_at_its_fastest() -> None:
    setting = setting_of("grpo", CLUSTER, model="Qwen/Qwen3-8B")
    role = next(each for each in setting.roles if each.name == "policy.train")
    (of,) = setting.classes
    found = list(layouts(setting, role, of, 8))
    assert [each.choice.layout.tensor for each in found] == list(dict.fromkeys(o.choice.layout.tensor for o in found))
    assert {each.choice.layout.tensor for each in found} == {1, 2, 4, 8}
    totals = [sum(each.choice.stages_s) for each in found]
    assert totals == sorted(totals)
    text = layouts_text(role.name, found, 8)
    assert text.splitlines()[0] == "policy.train on its 8 devices, each layout at its fastest"
    assert len(text.splitlines()) == 1 + len(found)


@pytest.mark.parametrize("name", [each.name for each in VARIANTS])
def test_the_parts_of_a_plan_are_those_it_was_made_of(name: str) -> None:
    setting, asked = setting_of(ppo_shaped, CLUSTER), parts(graph_of(ppo_shaped), name)
    found = solved(setting, Blocks(setting), asked)
    assert found is not None
    assert {frozenset(part) for part in parts_of(found.plan())} == {frozenset(part) for part in asked}


def test_a_pool_without_a_role_is_no_part() -> None:
    plan = found_of("gpg", "1x1xh100").best.plan()
    idle = plan.model_copy(update={"pools": (*plan.pools, Pool(name="idle", devices=(("node-1", 0),)))})
    assert parts_of(idle) == parts_of(plan)


def test_plans_stand_beside_each_other_task_by_task() -> None:
    one, other = found_of("grpo", CLUSTER).best.plan(), found_of("gpg", CLUSTER).best.plan()
    lines = plans_text([("one.json", one), ("other.json", other)]).splitlines()
    assert lines[0].split() == ["one.json", "other.json"]
    rows = {line.split("  ")[0].strip(): line for line in lines}
    assert rows["flow"].split() == ["flow", "grpo", "gpg"]
    assert next(line for line in lines if line.strip().startswith("ref.logprobs")).rstrip().endswith("-")
    assert next(line for line in lines if line.startswith("ref.infer")).rstrip().endswith("-")
    assert rows["devices"].split() == ["devices", "8", "8"]
