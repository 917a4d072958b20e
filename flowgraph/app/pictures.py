"""The pictures of a flow, a plan or a run, by name: what each needs, and what is said where it cannot be made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from flowgraph.app.draw_target import DrawTarget
from flowgraph.cluster.plan import Plan
from flowgraph.diagrams.build.flow_picture import flow_picture
from flowgraph.diagrams.build.measured_lanes import lanes_beside, measured_lanes
from flowgraph.diagrams.build.memory_picture import memory_picture
from flowgraph.diagrams.build.plan_picture import plan_picture
from flowgraph.diagrams.build.roles_picture import roles_picture
from flowgraph.diagrams.build.sequence_picture import sequence_picture
from flowgraph.diagrams.model.charts import Comparison, Curves, Drawing, Lanes
from flowgraph.diagrams.model.picture import Picture
from flowgraph.diagrams.model.quantities import many
from flowgraph.errors import UsageError, nearest
from flowgraph.runtime.measure.measured_file import read_measured

STEPS = 2  # of a timeline: one shows what a step is, the next what it waits for
PLANNED = "flowgraph plan FLOW -o plan.json"  # a plan that has every picture but that of a run


@dataclass(frozen=True)
class PictureDetail:
    """How much of a picture is shown: the steps of a timeline, and each device of a pool or folded."""

    steps: int = STEPS
    unfold: bool = False


def picture_named(name: str, subject: DrawTarget, shown: PictureDetail) -> Drawing:
    """Make one picture. Raises UsageError for a name that none has, and where the subject has no such picture."""
    if subject.drawing is not None:
        if name:
            raise UsageError("is one picture already", where=subject.name, hint=f"leave out --picture {name}")
        return subject.drawing
    refuse_unknown_picture(name)
    return PICTURES[name](subject, shown)


def refuse_unknown_picture(name: str) -> None:
    """Raise UsageError for a name that no picture has."""
    if name not in PICTURES:
        hint = nearest(name, PICTURES) or f"known: {', '.join(PICTURES)}"
        raise UsageError(f"no picture `{name}`", where="--picture", hint=hint)


def flow(subject: DrawTarget, _: PictureDetail = PictureDetail()) -> Picture:
    """Draw the flow: nodes by kind, values by type, each loss as a frame."""
    if subject.graph is None:
        flow = subject.placement.plan.flow
        raise _none("flow", subject, f"flow `{flow}` is not found, or is no longer the one that was planned")
    return flow_picture(subject.graph)


def plan(subject: DrawTarget, shown: PictureDetail = PictureDetail()) -> Picture:
    """Draw the plan: pools as frames, in them each copy of weights with what runs on it; roles alone without a flow."""
    program = subject.placement.program
    if program is None:
        return roles_picture(subject.placement.plan, unfold=shown.unfold)
    return plan_picture(program, subject.placement.sizes, unfold=shown.unfold)


def sequence(subject: DrawTarget, _: PictureDetail = PictureDetail()) -> Drawing:
    """Draw who tells whom what in a step."""
    program = subject.placement.program
    if program is None:
        raise _none("sequence", subject, "the plan's flow is not known")
    return sequence_picture(program)


def timeline(subject: DrawTarget, shown: PictureDetail = PictureDetail()) -> Lanes:
    """Draw when each pool works and what it waits for: as forecast, and of a run as measured beside it."""
    steps = [] if subject.run is None else read_measured(subject.run.path)[-shown.steps :]
    forecast = forecast_lanes(subject.placement.plan, len(steps) or shown.steps, steps[0].step if steps else 0)
    if steps:
        title = forecast.title if forecast is not None else f"{subject.placement.plan.flow}, measured"
        return lanes_beside(forecast or Lanes(title, (), 0.0), measured_lanes(steps))
    if forecast is None:
        raise _none("timeline", subject, "no seconds are forecast", PLANNED)
    return forecast


def forecast_lanes(plan: Plan, steps: int, first_step: int = 0) -> Lanes | None:
    """Play steps of a plan; None where it does not forecast the seconds of each task."""
    from placements import simulate

    if plan.step is None or not plan.step.tasks or any(task.seconds is None for task in plan.step.tasks):
        return None
    played = simulate(plan.step, steps)
    return _in_order(played.chart(f"{plan.flow}: {many(steps, 'step')}", first_step=first_step), plan)


def _in_order(lanes: Lanes, plan: Plan) -> Lanes:
    """Sort lanes as the plan has its pools, what runs on any machine last."""
    order = {pool.name: place for place, pool in enumerate(plan.pools)}
    return replace(lanes, lanes=tuple(sorted(lanes.lanes, key=lambda lane: order.get(lane.pool, len(order)))))


def memory(subject: DrawTarget, _: PictureDetail = PictureDetail()) -> Drawing:
    """Draw what each device holds, phase by phase, against what it has."""
    from placements import report

    steps = [] if subject.run is None else read_measured(subject.run.path)
    measured = [each for step in steps for each in step.forecast]
    plan = subject.placement.plan
    if not plan.forecast and not measured:
        raise _none("memory", subject, "the plan forecasts no memory", PLANNED)
    return memory_picture(plan, measured, fills=report.FILLS)


def placements(subject: DrawTarget, _: PictureDetail = PictureDetail()) -> Comparison:
    """Draw the plan beside the named placements, by the seconds of a step."""
    from placements import report

    if subject.found is not None:
        return report.comparison_chart(subject.found, plan=subject.placement.plan)
    raise _none("placements", subject, "nothing was searched", PLANNED)


def search(subject: DrawTarget, _: PictureDetail = PictureDetail()) -> Drawing:
    """Draw the candidates of the search by seconds and memory."""
    from placements import report

    if subject.found is None:
        raise _none("search", subject, "nothing was searched", PLANNED)
    return report.search_chart(subject.found, plan=subject.placement.plan)


def run(subject: DrawTarget, _: PictureDetail = PictureDetail()) -> Curves:
    """Draw the numbers of a run over its steps."""
    from flowgraph.app.run_report import curves_picture

    if subject.run is None:
        raise _none("run", subject, "it is no run's folder", "flowgraph draw runs/grpo-1")
    return curves_picture(subject.run)


PICTURES: Mapping[str, Callable[[DrawTarget, PictureDetail], Drawing]] = {
    "flow": flow,
    "plan": plan,
    "sequence": sequence,
    "timeline": timeline,
    "memory": memory,
    "placements": placements,
    "search": search,
    "run": run,
}


def _none(name: str, subject: DrawTarget, why: str, hint: str = "") -> UsageError:
    return UsageError(f"has no picture `{name}`: {why}", where=subject.name, hint=hint)
