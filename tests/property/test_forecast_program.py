"""The forecast of a step is of the program that would run: the same tasks in the same order, the same waits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from flowgraph.analysis.roles import roles
from flowgraph.cluster.plan import Layout, Plan
from flowgraph.language.graph import Graph
from flowgraph.lowering.lower import lower
from flowgraph.lowering.task_names import task_kind, task_names
from flowgraph.lowering.waits import waits_for
from nodes.mismatch import watch_engines
from placements.search.plan_builder import forecast_again
from placements.search.search import SearchResult, find
from placements.step.period import period
from placements.step.step_forecast import schedule_of
from placements.step.timeline import timeline_of
from placements.workload.planning_problem import PlanningProblem
from tests.looped import looped
from tests.unit.placements.small_problems import SHIPPED, graph_of, problem_of

CLUSTERS = {
    "1x8xh100": "Qwen/Qwen3-0.6B",
    "2x8xh100": "Qwen/Qwen2.5-7B-Instruct",
    "4x8xh100": "Qwen/Qwen2.5-7B-Instruct",
}
CASES = [(flow, cluster) for flow in SHIPPED for cluster in CLUSTERS]
# Each flow on one of the clusters for each change, on the others in `make slow`.
FOR_EACH_CHANGE = [CASES[3 * i + i % 3] for i in range(len(SHIPPED))]
EVERY = looped("flow, cluster", FOR_EACH_CHANGE, slow=[each for each in CASES if each not in FOR_EACH_CHANGE])


@cache
def watched(graph: Graph) -> Graph:
    """Return the graph that a run has where one engine samples what another trains."""
    return watch_engines(graph, [role.param for role in roles(graph) if role.use == "train"])


@cache
def found_of(flow: str, cluster: str) -> SearchResult:
    """Return what is found for a flow, as the command line asks for it."""
    problem = problem_of(flow, cluster, model=CLUSTERS[cluster])
    return find(replace(problem, watched=watched(problem.graph)))


def plans_of(flow: str, cluster: str) -> Iterator[Plan]:
    """Yield the plans that were simulated, those of named placements, and each as a hand would change it."""
    found = found_of(flow, cluster)
    for ranked in {each.blocks: each for each in (*found.ranked, *(each for _, each in found.named if each))}.values():
        plan = ranked.plan()
        yield plan
        yield from edited(found.problem, plan)


def edited(problem: PlanningProblem, plan: Plan) -> Iterator[Plan]:
    """Yield a plan in which nothing sleeps, and one in which what samples does so in another layout."""
    awake = [
        each.model_copy(update={"running": each.running.model_copy(update={"sleeps": False})}) for each in plan.placed
    ]
    yield forecast_again(problem, plan.model_copy(update={"placed": tuple(awake)}))
    sizes = {pool.name: len(pool.devices) for pool in plan.pools}
    cut = [
        each.model_copy(update={"layout": Layout(data=sizes[each.pool] // 2, tensor=2)})
        if each.role.endswith(".sample") and sizes[each.pool] % 2 == 0
        else each
        for each in plan.placed
    ]
    yield forecast_again(problem, plan.model_copy(update={"placed": tuple(cut)}))


@pytest.mark.slow(group="planner")
@EVERY
def test_the_tasks_of_a_forecast_are_those_of_the_program_and_wait_for_the_same(flow: str, cluster: str) -> None:
    for plan in plans_of(flow, cluster):
        program = lower(graph_of(flow), plan, watch=watch_engines)
        assert plan.step is not None
        names = task_names(program.tasks)
        assert [each.name for each in plan.step.tasks] == list(names)
        assert [each.kind for each in plan.step.tasks] == [task_kind(task, program.graph) for task in program.tasks]
        waits = {(names[need], names[place]) for place, needs in enumerate(waits_for(program)) for need in needs}
        assert {(each.before, each.after) for each in plan.step.waits if not each.delay} == waits
        assert all(each.shift == 0 for each in plan.step.tasks)


@EVERY
def test_a_step_begins_once_the_one_before_has_ended(flow: str, cluster: str) -> None:
    step = found_of(flow, cluster).best.step
    simulated = timeline_of(schedule_of(step.tasks, step.waits), steps=3)
    for number in (1, 2):
        begins = min(run.start_s for run in simulated.runs if run.step == number)
        assert (
            begins
            >= max(run.end_s for run in simulated.runs if run.step == number - 1 and run.task in _names(step)) - 1e-9
        )
    assert step.period_s == pytest.approx(simulated.period_s) == period(schedule_of(step.tasks, step.waits)).seconds


def _names(step: object) -> set[str]:
    return {each.name for each in getattr(step, "tasks", ())}


@EVERY
def test_nothing_trains_before_what_it_trains_on_was_generated(flow: str, cluster: str) -> None:
    """Also where steps overlap, as they may if it is asked for: in the first steps there are no rows to train on."""
    found = found_of(flow, cluster)
    problems = [found.problem, replace(found.problem, staleness=1), replace(found.problem, staleness=2)]
    for problem in problems if found.problem.synced else problems[:1]:
        step = replace(found.best, problem=problem).step
        simulated = timeline_of(schedule_of(step.tasks, step.waits), steps=4)
        kinds = {each.name: each.kind for each in step.tasks}
        shifts = {each.name: each.shift for each in step.tasks}
        drawn = {(run.task, run.step): run.end_s for run in simulated.runs if kinds.get(run.task) == "generate"}
        for run in (each for each in simulated.runs if kinds.get(each.task) == "update" and drawn):
            of_rows = [end_s for (_, number), end_s in drawn.items() if number == run.step - shifts[run.task]]
            assert of_rows and run.start_s >= min(of_rows)
