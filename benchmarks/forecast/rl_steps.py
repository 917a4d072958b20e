"""What the planner says of a published run: its step, with every role where the run had it, and its phases.

The same path as `flowgraph plan`: a question is posed, roles get the devices and layouts that the run states. What it
does not state is the planner's choice for that pool. Not here: what was measured (`rl_rows`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from pathlib import Path

from benchmarks.forecast.rl_names import Degrees
from benchmarks.forecast.rl_workloads import Workload, from_toml, to_toml
from flowgraph.analysis.roles import Role
from flowgraph.app import make_request
from flowgraph.app.planning.problem import prepare
from flowgraph.cluster.plan import Layout, RoleSettings, StepForecast, TimedTask
from flowgraph.errors import FlowError
from placements.memory.footprint import fits
from placements.search.pool_options import PoolOptions
from placements.search.role_options import RoleOption
from placements.step.overlap import with_overlap
from placements.step.role_costs import DeviceGroup, footprint, passing_seconds
from placements.step.role_placements import RolePlacement, device_group_for
from placements.step.step_forecast import step_of
from placements.workload.planning_problem import PlanningProblem

ROOT = Path(__file__).parents[2]  # what a workload's flow is relative to
SHARED_CACHE, OWN_CACHE = (0.6, 0.5, 0.4, 0.3), (0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
"""What an engine is given of a device, the first that fits: beside training as NeMo-RL sets it, and alone."""


def problem_of(workload: Workload) -> PlanningProblem:
    """Return the planning problem that the command line of a workload poses. Raises what `flowgraph plan` raises."""
    return _planning_problem(to_toml(workload.question))


@cache
def _planning_problem(text: str) -> PlanningProblem:
    workload = from_toml(text)
    request = make_request(
        flow=str(ROOT / workload.flow),
        model=workload.models,
        batch=workload.batch,
        settings=workload.settings,
        cluster=workload.cluster,
        prompt_tokens=workload.prompt_tokens,
        response_tokens=workload.response_tokens,
        engine=workload.engines,
        precision=workload.precision,
    )
    posed = prepare(request)
    # What the flow of a run says is all that it runs; other systems overlap steps, and run layouts that ours do not.
    problem = replace(posed.problem, watched=None, modelled=True)
    lag = problem.staleness_bound
    # What they stream crosses syncs where weights may lag, in whatever order rows finish; else it stays in its step.
    return replace(
        problem,
        staleness=lag or None,
        contract="ready" if workload.streamed and lag else "scheduled",
        streamed=workload.streamed and not lag,
    )


def step(workload: Workload) -> StepForecast | str:
    """Return the forecast of a run's step; where the planner has none, say why."""
    return _step(to_toml(workload.question))


@cache
def _step(text: str) -> StepForecast | str:
    workload = from_toml(text)
    try:
        problem = _planning_problem(text)
        homes = homes_of_workload(workload, problem)
    except FlowError as error:
        return str(error).splitlines()[0]
    return homes if isinstance(homes, str) else step_of(problem, homes)


def step_with(workload: Workload, moved: Mapping[str, Mapping[str, float]]) -> StepForecast | str:
    """Return the forecast of a run's step with other constants, by engine, where roles live as they do with ours."""
    homes = _homes(to_toml(workload.question))
    return homes if isinstance(homes, str) else step_of(replace(problem_of(workload), calibrated=moved), homes)


@cache
def _homes(text: str) -> list[RolePlacement] | str:
    try:
        return homes_of_workload(from_toml(text), _planning_problem(text))
    except FlowError as error:
        return str(error).splitlines()[0]


def homes_of_workload(
    workload: Workload, problem: PlanningProblem, rows: Sequence[int] = (1,)
) -> list[RolePlacement] | str:
    """Return where each role of a run lives; where one cannot, say which.

    A micro-batch of a role whose layout is stated has the best of `rows` of the greatest length: one is what engines
    that pack rows fill it up to. Raises ResourceError for a pool that is too large.
    """
    found = list[RolePlacement]()
    for pool, devices in workload.pools.items():
        here = [role for role in problem.roles if workload.roles[role.name].pool == pool]
        group, shared = device_group_for(problem, pool, devices), any(role.use == "sample" for role in here)
        alone = shared and len(here) == 1
        chosen = _chosen(problem, here, group, {role.name: workload.roles[role.name].cut for role in here})
        ways = _Ways(rows, alone, workload.checkpointing)
        for role in here:
            cut = workload.roles[role.name].cut
            way = chosen.get(role.name) if cut is None else _stated(problem, role, group, cut, ways)
            if way is None:
                return f"{role.name} does not fit {devices} devices as it is said to run"
            engine, lag = problem.engines_of(role.use)[0], problem.lag_of(role)
            found.append(RolePlacement(role, pool, group, engine, *way, shared=shared, lag=lag))
    return with_overlap(problem, found)


Way = tuple[Layout, RoleSettings]


def _chosen(
    problem: PlanningProblem, here: list[Role], group: DeviceGroup, cuts: Mapping[str, Degrees | None]
) -> dict[str, Way]:
    """Return the planner's own choice for the roles of a pool; none where all are told, or nothing fits."""
    if all(cuts.values()):
        return {}
    places = [place for place, role in enumerate(problem.roles) if role in here]
    fitting = PoolOptions(problem).pool_options(frozenset(places), group)
    chosen: tuple[RoleOption, ...] = fitting[0].roles if fitting else ()
    return {problem.roles[place].name: (way.layout, way.running) for place, way in zip(places, chosen, strict=False)}


@dataclass(frozen=True)
class _Ways:
    """What a role of a stated layout may choose from: rows of a micro-batch, and whether it has its pool alone.

    Activations are computed again if `checkpointing` is full, and if it is empty where that is faster or all that fits.
    """

    rows: Sequence[int]
    alone: bool
    checkpointing: str = ""

    def runnings(self, problem: PlanningProblem, role: Role) -> Iterator[RoleSettings]:
        """Yield the ways to run it, those that hold most first."""
        longest = max(load.longest_tokens for load in problem.loads_of(role))
        if role.use == "sample":
            for share in OWN_CACHE if self.alone else SHARED_CACHE:
                yield RoleSettings(precision=problem.sampling_precision, cache_share=share, sleeps=not self.alone)
            return
        for count in self.rows:
            running = RoleSettings(precision="bfloat16", micro_batch_tokens=count * longest)
            if role.use != "train" or self.checkpointing != "full":
                yield running
            if role.use == "train":
                yield running.model_copy(update={"checkpointing": "full"})


def _stated(problem: PlanningProblem, role: Role, group: DeviceGroup, cut: Degrees, ways: _Ways) -> Way | None:
    """Return a layout of stated degrees, and the fastest way to run it that fits; None if none does."""
    layout = cut.layout(group.devices, problem.engines_of(role.use)[0], trains=role.use == "train")
    if layout is None:
        return None
    if role.use == "sample":
        layout = Layout(data=layout.data, tensor=layout.tensor, pipeline=layout.pipeline, expert=layout.expert)
    fitting = [each for each in ways.runnings(problem, role) if _fits(problem, role, group, layout, each)]
    if role.use == "sample" or not fitting:
        return (layout, fitting[0]) if fitting else None
    return layout, min(fitting, key=lambda each: _busy_s(problem, role, group, layout, each))


def _fits(problem: PlanningProblem, role: Role, group: DeviceGroup, layout: Layout, running: RoleSettings) -> bool:
    return fits(
        footprint(problem, role, group, problem.engines_of(role.use)[0], layout, running).peak_bytes,
        group.of.memory_bytes,
    )


def _busy_s(problem: PlanningProblem, role: Role, group: DeviceGroup, layout: Layout, running: RoleSettings) -> float:
    loads = problem.loads_of(role)
    return sum(
        passing_seconds(problem, group, problem.engines_of(role.use)[0], layout, running, load).total_s or inf
        for load in loads
    )


# ---------------------------------------------------------------------------------------------------------- phases


# What the trainer's own clocks name, as phases of nodes and the roles that run them.
PHASES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "generate_sequences": (("generate", "sample"),),
    "gen": (("generate", "sample"), ("sync", "sample")),
    "rollout": (("generate", "sample"), ("sync", "sample")),
    "generation": (("generate", "sample"),),
    "old_log_prob": (("logprob", "policy"),),
    "ref": (("logprob", "ref"),),
    "ref_log_prob": (("logprob", "ref"),),
    "values": (("logprob", "critic"),),
    "update_actor": (("update", "policy"),),
    "policy_train": (("update", "policy"),),
    "update_critic": (("update", "critic"),),
    "forward_pass": (("logprob", "policy"), ("logprob", "ref")),
}


def seconds_of(found: StepForecast, metric: str) -> float | None:
    """Return a step's seconds by the name of what was timed: all of it, or a phase; None for what is not known."""
    if metric == "step" or metric.startswith("time_"):
        return found.period_s
    name = metric.partition("(")[0].strip()
    tasks = [task for task in found.tasks if any(_is(task, *each) for each in PHASES.get(name, ()))]
    seconds = [task.seconds for task in tasks if task.seconds is not None]
    return sum(seconds) if seconds and len(seconds) == len(tasks) else None


def _is(task: TimedTask, kind: str, whose: str) -> bool:
    return task.kind == kind and whose in task.role.split(".")
