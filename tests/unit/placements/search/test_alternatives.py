"""Why a role is where it is: the same flow with the role elsewhere, and in other layouts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flowgraph.cluster.plan import Layout, PlacedRole, Plan, Pool, RoleSettings
from placements.report.explain_report import alternatives_text, fastest_text, layouts_text, plans_text
from placements.report.search_report import show_s
from placements.search.alternatives import CurrentPlan, alternative_layouts, alternative_pools, parts_of
from placements.search.named_placements import VARIANTS, variant
from placements.search.pool_options import PoolOptions
from placements.search.search import solved
from tests.flows.ppo_shaped import ppo_shaped
from tests.looped import looped
from tests.unit.placements.small_problems import Of, called, found_of, graph_of, lagging, problem_of

HYBRID = variant("hybrid").parts_of(graph_of(ppo_shaped))
CLUSTER = "1x8xh100"


def test_a_role_moves_to_each_other_pool_and_to_one_of_its_own() -> None:
    """Draw: train, sample, critic, ref | judge. The critic can go to the judge, or alone; the judge to the rest."""
    problem = problem_of(ppo_shaped, CLUSTER)
    assert [each.neighbours for each in alternative_pools(problem, HYBRID, "critic.train")] == [("judge.infer",), ()]
    rest = ("policy.train", "policy.sample", "critic.train", "ref.infer")
    assert [each.neighbours for each in alternative_pools(problem, HYBRID, "judge.infer")] == [rest]


@looped("role", ["policy.train", "policy.sample", "critic.train", "ref.infer", "judge.infer"])
@looped("name", ["hybrid", "split", "standalone"])
def test_a_move_changes_the_pool_of_one_role_only(role: str, name: str) -> None:
    problem, before = problem_of(ppo_shaped, CLUSTER), variant(name).parts_of(graph_of(ppo_shaped))
    for each in alternative_pools(problem, before, role):
        assert each.ranked is not None
        after = {frozenset(part) for part in each.ranked.parts()}
        assert frozenset({*each.neighbours, role}) in after
        rest = {frozenset(part) - {role} for part in before} - {frozenset()}
        assert {part - {role} for part in after} - {frozenset()} == rest
        assert after != {frozenset(part) for part in before}


@pytest.mark.parametrize("of", ["ppo", "grpo", lagging], ids=called)
def test_no_move_from_the_best_plan_is_better_by_the_searchs_figure(of: Of) -> None:
    """The best of all partitions is better than each that differs in one role."""
    problem, found = problem_of(of, "2x8xh100"), found_of(of, "2x8xh100")
    best = next(each for each in found.ranked if each.bound == found.solution.value)
    for role in problem.roles:
        for each in alternative_pools(problem, best.parts(), role.name):
            assert each.ranked is None or each.ranked.bound >= best.bound * (1 - 1e-9)


def test_a_move_that_fits_nowhere_is_told() -> None:
    """Each of five roles alone on four devices is one pool too many."""
    problem, before = problem_of(ppo_shaped, "1x4xh100"), variant("split").parts_of(graph_of(ppo_shaped))
    here = solved(problem, PoolOptions(problem), before)
    assert here is not None
    found = list(
        alternative_pools(
            problem,
            (("policy.train",), ("policy.sample",), ("ref.infer", "judge.infer"), ("critic.train",)),
            "judge.infer",
        )
    )
    alone = next(each for each in found if not each.neighbours)
    assert alone.ranked is None
    text = alternatives_text("judge.infer", ("ref.infer", "judge.infer"), here, found)
    assert text.startswith("judge.infer shares a pool with ref.infer: ")
    assert any(line.split() == ["alone", "does", "not", "fit"] for line in text.splitlines())


def test_moves_are_told_best_first_with_what_takes_longer() -> None:
    problem = problem_of("grpo", CLUSTER, model="Qwen/Qwen3-8B")
    before = variant("colocated").parts_of(problem.graph)
    here = solved(problem, PoolOptions(problem), before)
    assert here is not None
    found = list(alternative_pools(problem, before, "policy.sample"))
    (line,) = alternatives_text("policy.sample", before[0], here, found).splitlines()[1:]
    assert line.split()[0] == "alone"
    assert "%" in line and "policy.update +" in line


def test_a_role_alone_says_so() -> None:
    problem = problem_of("grpo", CLUSTER)
    before = variant("standalone").parts_of(problem.graph)
    here = solved(problem, PoolOptions(problem), before)
    assert here is not None
    text = alternatives_text("ref.infer", ("ref.infer",), here, list(alternative_pools(problem, before, "ref.infer")))
    assert text.startswith("ref.infer has a pool of its own: ")


def test_a_plan_that_is_not_its_pools_fastest_says_so() -> None:
    """A plan from a file may have other sizes than the search would choose for its pools."""
    problem, before = problem_of("grpo", CLUSTER), variant("split").parts_of(graph_of("grpo"))
    best = solved(problem, PoolOptions(problem), before)
    assert best is not None
    assert fastest_text(best, best) == fastest_text(best, None) == ""
    slow = CurrentPlan(best.step, 2 * best.step_s, 4)
    text = fastest_text(slow, best)
    assert text.startswith(f"a step of this plan takes {show_s(slow.step_s)}; the same pools at their fastest ")
    assert text.endswith(f"{show_s(best.step_s)}, -50.0%, on 8 devices")
    moved = alternatives_text(
        "policy.sample", ("policy.sample",), slow, list(alternative_pools(problem, before, "policy.sample"))
    )
    assert "better than this plan, on 8 devices" in moved


def way_of(plan: Plan, role: str) -> PlacedRole:
    """Return where a plan has a role, and how."""
    return next(each for each in plan.placed if each.role == role)


def with_way(plan: Plan, role: str, **parts: Any) -> Plan:
    """Return a plan with another layout or other settings of a role."""
    placed = (each.model_copy(update=parts) if each.role == role else each for each in plan.placed)
    return plan.model_copy(update={"placed": tuple(placed)})


def test_each_tensor_degree_is_told_at_its_fastest_that_fits_and_the_plans_own_way_is_marked() -> None:
    problem = replace(problem_of("grpo", CLUSTER, model="Qwen/Qwen3-8B"), modelled=True)
    plan = found_of("grpo", CLUSTER, model="Qwen/Qwen3-8B")
    own = way_of(plan.best.plan(), "policy.train")
    found = alternative_layouts(problem, plan.best.plan(), "policy.train")
    assert {1, 2, 4} <= {each.layout.tensor for each in found}
    assert [each.seconds for each in found] == sorted(each.seconds for each in found)
    assert [(each.layout, each.running) for each in found if each.current] == [(own.layout, own.running)]
    assert all(each.fits for each in found), "on eight devices an 8B model does in each degree"
    text = layouts_text("policy.train", found, 8)
    assert text.splitlines()[0] == (
        "policy.train on its 8 devices: the current layout (→), and the fastest that fits of each layout"
    )
    assert len([line for line in text.splitlines() if "→ " in line]) == 1
    assert max(map(len, text.splitlines())) <= 100
    assert "does not fit" not in text


def test_a_way_that_no_search_would_choose_is_told_if_it_is_the_plans_own() -> None:
    """An 8B model that is trained from host memory on devices that have room for it."""
    problem = problem_of("grpo", CLUSTER, model="Qwen/Qwen3-8B")
    plan = found_of("grpo", CLUSTER, model="Qwen/Qwen3-8B").best.plan()
    running = way_of(plan, "policy.train").running.model_copy(update={"offload": ("optimizer",), "sleeps": False})
    slow = with_way(plan, "policy.train", running=running)
    (own,) = (each for each in alternative_layouts(problem, slow, "policy.train") if each.current)
    assert own.running == running
    assert own.seconds > min(each.seconds for each in alternative_layouts(problem, slow, "policy.train"))


def test_a_way_that_overfills_its_devices_says_so() -> None:
    """Two devices hold neither the states of an 8B model whole nor, at any speed, half of them beside the rest."""
    problem = problem_of("grpo", "1x2xh100", model="Qwen/Qwen3-8B")
    plan = found_of("grpo", "1x2xh100", model="Qwen/Qwen3-8B").best.plan()
    whole = with_way(plan, "policy.train", layout=Layout(data=2), running=RoleSettings(precision="bfloat16"))
    found = alternative_layouts(problem, whole, "policy.train")
    (own,) = (each for each in found if each.current)
    assert not own.fits and own.peak_bytes > 80e9
    assert all(each.fits for each in found if not each.current)
    (line, *_) = (line for line in layouts_text("policy.train", found, 2).splitlines() if "→ " in line)
    assert "does not fit" in line


def test_an_overfull_device_is_marked_beside_other_plans() -> None:
    plan = found_of("gpg", CLUSTER).best.plan()
    (told,) = plan.forecast
    peak = told.peaks[-1].model_copy(update={"memory_bytes": 143 * 2**30})
    full = plan.model_copy(update={"forecast": (told.model_copy(update={"peaks": (peak,)}),)})
    text = plans_text([("right.json", plan), ("full.json", full)], 200)
    (line,) = (line for line in text.splitlines() if line.startswith("fullest device"))
    assert line.count("does not fit") == 1
    assert line.endswith(f"143.0 GiB on all, {peak.role}: does not fit, it has 79.6 GiB")


def test_the_fullest_device_of_a_plan_whose_devices_its_cluster_lacks_is_not_known() -> None:
    plan = found_of("gpg", CLUSTER).best.plan()
    lost = plan.model_copy(update={"pools": (Pool(name=plan.pools[0].name, devices=(("gone", 0),)),), "step": None})
    (line,) = (line for line in plans_text([("lost.json", lost)]).splitlines() if line.startswith("fullest device"))
    assert line.split() == ["fullest", "device", "-"]


def test_plans_that_have_no_room_beside_each_other_stand_below_each_other() -> None:
    plans = [(f"{name}.json", found_of("grpo", CLUSTER).best.plan()) for name in "abc"]
    text = plans_text(plans, 100)
    assert max(map(len, text.splitlines())) <= 100
    blocks = text.split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == ["a.json", "b.json", "c.json"]
    assert len({block.partition("\n")[2] for block in blocks}) == 1
    assert plans_text(plans, 200).splitlines()[0].split() == ["a.json", "b.json", "c.json"]


@looped("name", [each.name for each in VARIANTS])
def test_the_parts_of_a_plan_are_those_it_was_made_of(name: str) -> None:
    problem, asked = problem_of(ppo_shaped, CLUSTER), variant(name).parts_of(graph_of(ppo_shaped))
    found = solved(problem, PoolOptions(problem), asked)
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
