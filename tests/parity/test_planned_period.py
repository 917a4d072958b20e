"""Throughput with engines that take the forecast seconds: the runtime's own driver and interpreter, on a clock.

Tasks do not run: each occupies its pools for the seconds that the plan forecasts for it, on a clock that only advances
when the driver waits. So what is measured is the order in which the runtime submits tasks, and what they wait for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flowgraph.app.planning.overlap import with_overlap
from flowgraph.cluster.calibration import Calibration, Scale
from flowgraph.cluster.plan import Plan
from flowgraph.language.graph import Graph
from flowgraph.language.keys import Key
from flowgraph.language.region import Observations
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import HOST, Home, Run, Switch, Sync, Transfer, results_given
from flowgraph.lowering.task_names import task_name
from flowgraph.runtime.driver import RunSpec, train
from flowgraph.runtime.interpreter import Executor, RowSource, StepResult
from placements.search.plan_builder import RankedPlan, forecast_again
from placements.search.search import SearchResult, find
from placements.workload.planning_problem import PlanningProblem
from tests.looped import looped
from tests.property.test_planned_overlap import of
from tests.unit.placements.small_problems import Of, lagging, problem_of

STEPS, LAST, REPEATED = 84, 8, 60  # steps of a run, the last ones that are not counted, and those that are
MANY_TOKENS: Mapping[str, Any] = {"model": "Qwen/Qwen3-8B", "prompts": 64, "response": "mean=1k,max=8k"}
SEARCHES: tuple[tuple[Of, str, int], ...] = (
    ("decoupled_ppo", "2x8xh100", 2),
    ("decoupled_ppo", "4x8xh100", 4),
    (lagging, "2x8xh100", 1),
    (of(0, 3), "2x8xh100", 2),
    (of(0, 5), "4x8xh100", 5),
    (of(2, 5), "2x8xh100", 4),
)


@dataclass(eq=False)
class ClockedPlaces:
    """Places that compute nothing: items are the seconds at which they exist, and each pool runs its tasks in turn."""

    plan: Plan
    clock_s: float = 0.0
    free_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    ends_s: dict[object, float] = field(default_factory=lambda: defaultdict(float))
    step: object = None
    drawn: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def seconds(self, task: Any) -> float:
        """Return the forecast seconds of a task, of a switch those of the one that moves data."""
        assert self.plan.step is not None
        name = task_name(task)
        named = [each for each in self.plan.step.tasks if each.name == name or each.name.startswith(f"{name} (")]
        return max(each.seconds or 0.0 for each in named)

    def occupy(self, pools: Sequence[str], task: Any, ready_s: Sequence[float] = ()) -> float:
        """Run a task when its pools are free and its items exist, and return when it ends."""
        start_s = max(self.clock_s, *ready_s, *(self.free_s[pool] for pool in pools if pool != HOST))
        end_s = start_s + self.seconds(task)
        self.free_s.update(dict.fromkeys(pools, end_s))
        self.ends_s[self.step] = max(self.ends_s[self.step], end_s)
        return end_s

    def read(self, source: RowSource, step: int) -> float:
        return self.clock_s

    def run(
        self, graph: Graph, task: Run, items: Mapping[str, float], versions: Mapping[str, int], key: Key
    ) -> Mapping[str, float]:
        if any(node.op.kind == "generate" for node in graph.nodes if node.name in task.nodes):
            self.drawn.append((key.step, min(versions.values())))
        nodes = {node.name: node for node in graph.nodes if node.name in task.nodes}
        end_s = self.occupy([task.place], task, [*items.values()])
        return {name: end_s for name, _ in results_given(task, nodes)}

    def transfer(self, task: Transfer, item: float) -> float:
        return self.occupy([], task, [item])

    def sync(self, task: Sync, version: int) -> None:
        self.occupy([task.source.pool, task.target.pool], task)

    def switch(self, home: Home, *, awake: bool) -> None:
        self.occupy([home.pool], Switch(home, awake))

    def work_for(self, step: object) -> None:
        self.step = step

    def finish(self, step: object = None) -> Observations:
        self.clock_s = max(self.clock_s, self.ends_s.pop(step, 0.0))
        return Observations()

    def apply(self, function: Callable[..., Any], items: Sequence[float], *rest: Any) -> Callable[[], Any]:
        raise NotImplementedError

    def keep(self, item: float, path: Path) -> None:
        raise NotImplementedError

    def kept(self, kind: type[Any], path: Path, parts: Any) -> float:
        raise NotImplementedError

    def on_disk(self, home: Home, verb: Any, folder: Path, version: int | None = None) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


@dataclass(eq=False)
class Ends:
    """A listener that takes as long as the forecast says between steps, and notes when each step has ended."""

    places: ClockedPlaces
    ends_s: list[float] = field(default_factory=list[float])

    def stepped(self, step: int, ran: StepResult, seconds: float) -> None:
        assert self.places.plan.step is not None
        self.ends_s.append(self.places.clock_s)
        self.places.clock_s += max((wait.pause_s for wait in self.places.plan.step.waits), default=0.0)

    def checked(self, *_: object) -> None:
        raise NotImplementedError


class NoRows:
    """A source of rows that are never read."""

    def batch(self, step: int) -> Any:
        raise NotImplementedError


def clocked(graph: Graph, plan: Plan) -> tuple[float, list[tuple[int, int]]]:
    """Return the mean seconds of a step of a plan's run once it repeats, and the step and version of what it draws."""
    program = lower(graph, plan)
    places = ClockedPlaces(plan)
    ends = Ends(places)
    sources = {param.name: NoRows() for param in program.graph.params}
    executor = Executor(places)  # type: ignore[arg-type]
    assert train(RunSpec(program, sources, 0, STEPS), executor, [ends]) == STEPS  # type: ignore[arg-type]
    return (ends.ends_s[-LAST] - ends.ends_s[-LAST - REPEATED]) / REPEATED, places.drawn


@cache
def ranked_plans() -> tuple[RankedPlan, ...]:
    """Return twenty plans or more whose steps overlap, at most four of each search."""
    plans = list[RankedPlan]()
    for flow, cluster, staleness in SEARCHES:
        problem = replace(problem_of(flow, cluster, **MANY_TOKENS), staleness=staleness)
        plans += [each for each in find(problem).ranked if any(home.ahead for home in each.homes)][:4]
    return tuple(plans)


def test_twenty_plans_take_what_the_planner_says_within_five_percent() -> None:
    errors = list[tuple[float, str]]()
    for ranked in ranked_plans():
        plan = ranked.plan()
        measured_s, drawn = clocked(ranked.problem.graph, plan)
        assert plan.step is not None and plan.step.period_s is not None
        ahead = {home.role.name: (home.lag, home.ahead) for home in ranked.homes if home.ahead}
        errors.append((abs(measured_s / plan.step.period_s - 1), f"{plan.flow} {ranked.parts()} {ahead}"))
        updates = ranked.problem.running.updates("policy")
        assert max(updates * step - version for step, version in drawn) == max(lag for lag, _ in ahead.values())
    assert len(errors) >= 20
    assert max(errors)[0] <= 0.05, max(errors)


@pytest.mark.parametrize("staleness", [0, 1])
def test_the_best_plan_takes_exactly_what_the_planner_says(staleness: int) -> None:
    """Without overlap, and with it: the difference is rounding."""
    best = find(replace(problem_of("decoupled_ppo", "2x8xh100", **MANY_TOKENS), staleness=staleness)).best
    measured_s, _ = clocked(best.problem.graph, best.plan())
    assert measured_s == pytest.approx(best.step_s, rel=1e-3)


@looped("depth, every", [(1, 1), (1, 3), (2, 1), (2, 2), (3, 1), (3, 3), (4, 2)])
def test_an_overlap_by_hand_takes_what_a_new_forecast_says(depth: int, every: int) -> None:
    """With `--depth` and `--sync-every`, of pools that only read rows, and with syncs that take a third of a step."""
    slow_sync = Scale(phase="sync", device="h100-sxm-80g", factor=30.0, low=29.0, high=31.0)
    problem = problem_of(of(0, 5), "2x8xh100", **MANY_TOKENS)
    problem = replace(problem, calibration=Calibration(source="a test", scales=(slow_sync,)))
    for parts in ("split:openrlhf", "standalone:each-role"):
        ranked = next(each for form, each in found_of(problem).named if form.name == parts)
        assert ranked is not None
        plan = forecast_again(problem, with_overlap(ranked.plan(), problem.graph, depth, every))
        if depth + every - 1 > 5:
            continue
        measured_s, drawn = clocked(problem.graph, plan)
        assert plan.step is not None
        assert measured_s == pytest.approx(plan.step.period_s, rel=1e-3)
        assert max(step - version for step, version in drawn) == depth + every - 1


@cache
def found_of(problem: PlanningProblem) -> SearchResult:
    """Return what is found for a problem, searched once."""
    return find(problem)
