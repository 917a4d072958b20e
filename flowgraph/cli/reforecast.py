"""A plan for costing, read from its file: forecast again, and what is wrong with it. No torch is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flowgraph import spec
from flowgraph.check_plan import PlacedGraph, check_plan
from flowgraph.cli.inputs import Asked
from flowgraph.cli.plan import FORWARD_TOKENS, SAMPLE_ROWS, Planned, sizes_of
from flowgraph.cli.setting import Posed, posed_by
from flowgraph.errors import FlowError, PlanError
from flowgraph.plan import Plan, Step

if TYPE_CHECKING:
    from flowgraph.cluster import Cluster
    from placements import Workload
    from placements.setting import Setting


def planned_again(plan: Plan, asked: Asked, where: str, *, fits: bool = True) -> Planned:
    """Forecast a costed plan again for a flow, with the models, rows and lengths that its file names.

    What the command line says of them goes before it. Raises what is wrong with the plan; if `fits`, that it does not
    fit too.
    """
    from placements.placing import forecast_again
    from placements.short import overflows

    posed = posed_by(plan, where, asked=asked)
    setting = posed.setting
    check_plan(plan, setting.graph, where, experts=experts_of(setting))
    found = Planned(
        graph=setting.graph,
        plan=forecast_again(setting, plan, posed.assumed),
        trace=(),
        shapes=setting.shapes,
        work=work_of(setting),
    )
    if fits:
        sizes_of(found)
        for fault in overflows(found.plan, where):
            raise fault
    return found


def faults_of(plan: Plan, posed: Posed, where: str, cluster: Cluster | None = None) -> Iterator[FlowError]:
    """Find what is wrong with a plan on its own cluster, or on another: its laws, seconds and bytes.

    What is found last is looked for only in a plan that keeps the laws.
    """
    from placements.placing import forecast_again, homes_by, plan_from
    from placements.short import overflows

    setting = posed.setting
    found = list(spec.faults("placed", PlacedGraph(setting.graph, plan, where, experts_of(setting))))
    yield from found
    if found or not plan.costed:
        return
    try:
        elsewhere = cluster is not None
        there = plan_from(setting, homes_by(setting, plan)) if elsewhere else forecast_again(setting, plan)
        known_step(there.step, where)
    except FlowError as error:
        yield error
        return
    yield from overflows(there, where)


def known_step(step: Step | None, where: str) -> tuple[Step, float]:
    """Give a step and its seconds. Raises PlanError where there is none, or where they are not known."""
    if step is None:
        why = "has no forecast of seconds; `plan` makes one on devices of a known kind"
        raise PlanError.unreadable(where, "", why)
    unknown = [task.name for task in step.tasks if task.seconds is None]
    if unknown or step.period_s is None:
        raise PlanError.unreadable(where, "step", f"the seconds of {', '.join(unknown) or 'a step'} are not known")
    return step, step.period_s


def work_of(setting: Setting) -> Workload:
    """Give what a step of a setting reads, its prompts as long as the longest."""
    from placements import Workload

    longest = int(setting.prompt.most)
    return Workload(
        prompts=setting.prompts, prompt_tokens=longest, sample_rows=SAMPLE_ROWS, forward_tokens=FORWARD_TOKENS
    )


def experts_of(setting: Setting) -> dict[str, int]:
    """Give how many experts a layer of each model has; 0 for a model without."""
    return {name: each.experts for name, each in setting.shapes.items()}
