"""The pictures of a flow, a plan or a run, by name, and the errors for those that cannot be drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from flowgraph.app.drawing.draw_target import DrawTarget
from flowgraph.app.running.run_report import curves_picture
from flowgraph.diagrams.build.flow_picture import flow_picture
from flowgraph.diagrams.build.measured_lanes import lanes_beside, measured_lanes
from flowgraph.diagrams.build.memory_picture import memory_picture
from flowgraph.diagrams.build.plan_picture import plan_picture
from flowgraph.diagrams.build.roles_picture import roles_picture
from flowgraph.diagrams.build.sequence_picture import sequence_picture
from flowgraph.diagrams.model.charts import Comparison, Curves, Drawing, Lanes
from flowgraph.diagrams.model.picture import Picture
from flowgraph.diagrams.model.quantities import many
from flowgraph.errors import SettingError, UsageError, nearest
from flowgraph.runtime.measure.measured_step import read_measured
from placements import report, simulate

STEPS = 2  # of a timeline: one shows what a step is, the next what it waits for
PLANNED = "flowgraph plan FLOW -o plan.json"  # a plan that has every picture but that of a run


@dataclass(frozen=True)
class PictureDetail:
    """How much a picture shows: the number of steps of a timeline, and whether each machine of a pool is drawn.

    Raises SettingError for fewer than one step.
    """

    steps: int = STEPS
    unfold: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise SettingError.refused("--steps", "steps", self.steps, "should be a whole number from 1")


def picture_named(name: str, target: DrawTarget, detail: PictureDetail) -> Drawing:
    """Return the picture called `name` of a target; "" for the picture of a file that holds one.

    Raises UsageError for an unknown name, for any name if the target's file holds a picture, and if the target lacks
    what the picture shows, such as a search; and the errors of planning if a flow must be planned first.
    """
    if target.drawing is not None:
        if name:
            raise UsageError("is already one picture", where=target.name, hint=f"leave out --picture {name}")
        return target.drawing
    refuse_unknown_picture(name)
    return PICTURES[name](target, detail)


def refuse_unknown_picture(name: str) -> None:
    """Raise UsageError if no picture is called `name`; the hint names the nearest picture, or else all of them."""
    if name not in PICTURES:
        raise UsageError(f"no picture `{name}`", where="--picture", hint=nearest(name, PICTURES))


def flow(target: DrawTarget, _: PictureDetail = PictureDetail()) -> Picture:
    """Return the picture of the flow: nodes with their kinds, edges with the types of values, losses as frames.

    Raises UsageError or PlanError if the flow is not found or has changed since it was planned.
    """
    if target.graph is None:
        flow = target.placement.plan.flow
        raise _lacks("flow", target, f"flow `{flow}` was not found, or has changed since it was planned")
    return flow_picture(target.graph)


def plan(target: DrawTarget, detail: PictureDetail = PictureDetail()) -> Picture:
    """Return the picture of the plan: a frame for each pool, with its copies of weights and the nodes that run on it.

    If the flow is not known, only the roles are shown. If a pool is on more than 4 machines, machines with equal
    devices share a box, unless `detail.unfold` is true.
    """
    program = target.placement.program
    if program is None:
        return roles_picture(target.placement.plan, unfold=detail.unfold)
    return plan_picture(program, target.placement.sizes, unfold=detail.unfold)


def sequence(target: DrawTarget, _: PictureDetail = PictureDetail()) -> Drawing:
    """Return the sequence diagram of a step, call by call. Raises UsageError if the flow is not known."""
    program = target.placement.program
    if program is None:
        raise _lacks("sequence", target, "the plan's flow is not known")
    return sequence_picture(program)


def timeline(target: DrawTarget, detail: PictureDetail = PictureDetail()) -> Lanes:
    """Return the timeline of `detail.steps` steps: when each pool works and what it waits for.

    The last measured steps of a run, at most as many, are shown next to the forecast of as many steps, or alone if the
    plan does not forecast the seconds of every task. Raises UsageError if nothing is forecast or measured.
    """
    plan = target.placement.plan
    steps = [] if target.run is None else read_measured(target.run.path)[-detail.steps :]
    forecast: Lanes | None = None
    if plan.step is not None and plan.step.tasks and all(task.seconds is not None for task in plan.step.tasks):
        count = len(steps) or detail.steps
        lanes = simulate(plan.step, count).chart(
            f"{plan.flow}: {many(count, 'step')}", first_step=steps[0].step if steps else 0
        )
        order = {pool.name: place for place, pool in enumerate(plan.pools)}  # tasks without a pool come last
        in_order = sorted(lanes.lanes, key=lambda lane: order.get(lane.pool, len(order)))
        forecast = replace(lanes, lanes=tuple(in_order))
    if steps:
        title = forecast.title if forecast is not None else f"{plan.flow}, measured"
        return lanes_beside(forecast or Lanes(title, (), 0.0), measured_lanes(steps))
    if forecast is None:
        raise _lacks("timeline", target, "no seconds are forecast", PLANNED)
    return forecast


def memory(target: DrawTarget, _: PictureDetail = PictureDetail()) -> Drawing:
    """Return the memory chart of a plan: the bytes that each device holds in each phase, next to the device's capacity.

    Measured bytes of a run are shown too. Raises UsageError if memory is neither forecast nor measured.
    """
    steps = [] if target.run is None else read_measured(target.run.path)
    measured = [pool for step in steps for pool in step.forecast]
    plan = target.placement.plan
    if not plan.forecast and not measured:
        raise _lacks("memory", target, "the plan forecasts no memory", PLANNED)
    return memory_picture(plan, measured, fills=report.FILLS)


def placements(target: DrawTarget, _: PictureDetail = PictureDetail()) -> Comparison:
    """Return the comparison of the plan with the named placements, by the seconds of a step.

    A search is run if there was none, which may take long. Raises UsageError if the plan's problem is not known, and
    ResourceError if no plan fits.
    """
    if target.placement.search is None:
        raise _lacks("placements", target, "nothing was searched", PLANNED)
    return report.comparison_chart(target.placement.search, plan=target.placement.plan)


def search(target: DrawTarget, _: PictureDetail = PictureDetail()) -> Drawing:
    """Return the scatter plot of the plans that the search found, by the seconds of a step and memory.

    A search is run if there was none, which may take long. Raises UsageError if the plan's problem is not known, and
    ResourceError if no plan fits.
    """
    if target.placement.search is None:
        raise _lacks("search", target, "nothing was searched", PLANNED)
    return report.search_chart(target.placement.search, plan=target.placement.plan)


def run(target: DrawTarget, _: PictureDetail = PictureDetail()) -> Curves:
    """Return the curves of a run's metrics. Raises UsageError for other targets, RunFolderError for damaged files."""
    if target.run is None:
        raise _lacks("run", target, "it is not a run folder", "flowgraph draw runs/grpo-1")
    return curves_picture(target.run)


PICTURES: Mapping[str, Callable[[DrawTarget, PictureDetail], Drawing]] = {
    picture.__name__: picture for picture in (flow, plan, sequence, timeline, memory, placements, search, run)
}


def _lacks(name: str, target: DrawTarget, why: str, hint: str = "") -> UsageError:
    return UsageError(f"has no picture `{name}`: {why}", where=target.name, hint=hint)
