"""What `draw` and `diff` are about: a flow, a plan's or a program's file, or a run's folder. No torch is loaded.

Each part is found when a picture first asks for it: the flow alone needs no plan, and a plan no search.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.app.flow_inputs import compiled_flow
from flowgraph.app.plan_result import PlanResult, read_plan
from flowgraph.app.planning import planned_for
from flowgraph.app.problem import prepare_from
from flowgraph.app.replan import plan_again
from flowgraph.app.request import Request, Say, Target, Workload
from flowgraph.cluster.plan import Plan
from flowgraph.diagrams.model.arrow_sizes import ArrowSizes
from flowgraph.diagrams.model.charts import Drawing
from flowgraph.diagrams.write.as_data import from_json
from flowgraph.errors import FlowError, UsageError
from flowgraph.files.untrusted import read_json, read_text
from flowgraph.flows.flow_files import find_flow
from flowgraph.language.graph import Graph
from flowgraph.lowering.lower import lower
from flowgraph.runtime.record.run_folder import RunFolder
from flowgraph.serialize.program import program_from_json
from nodes.mismatch import watch_engines
from placements import plan as search_plan
from placements import report

if TYPE_CHECKING:
    from flowgraph.lowering.program import Program

Kind = Literal["flow", "plan", "program", "run", "picture"]


@dataclass(frozen=True)
class DrawnPlan:
    """A plan that is drawn; its flow, and the sizes of what travels, where these are known."""

    plan: Plan
    graph: Graph | None = None
    found: Callable[[], report.SearchResult] | None = None
    planned: PlanResult | None = None
    lowered: Program | None = None
    where: str = "plan"

    @cached_property
    def program(self) -> Program | None:
        """Return what the runtime would be told; None where the flow is not known."""
        if self.lowered is not None or self.graph is None:
            return self.lowered

        return lower(self.graph, self.plan, where=self.where, watch=watch_engines)

    @cached_property
    def sizes(self) -> ArrowSizes:
        """Return the bytes of what travels; none where lengths and models are not known."""
        if self.planned is None:
            return ArrowSizes()
        setting, graph = self.planned.setting, self.planned.graph if self.program is None else self.program.graph
        return report.arrow_sizes(graph, setting.shapes, setting.workload, self.plan)


@dataclass(frozen=True)
class DrawTarget:
    """A flow, plan, program or run that was named on a command line; `first` is the picture that is meant of it.

    A picture from a file is itself all there is to draw.
    """

    name: str
    kind: Kind
    flow: Callable[[], Graph | None]
    placed: Callable[[], DrawnPlan]
    run: RunFolder | None = None
    first: str = "flow"
    drawing: Drawing | None = None

    @cached_property
    def graph(self) -> Graph | None:
        """Return the flow's graph; None for a plan that does not name its flow."""
        return self.flow()

    @cached_property
    def placement(self) -> DrawnPlan:
        """Return the plan, and what is known around it."""
        return self.placed()

    @cached_property
    def found(self) -> report.SearchResult | None:
        """Return the search that found the plan, or that would; None where no seconds are known."""
        return self.placement.found() if self.placement.found is not None else None


def find_target(request: Request, say: Say) -> DrawTarget:
    """Find what a request's flow names: a run's folder, a file of a plan or a program, or else a flow.

    Raises UsageError for a file of JSON that holds neither, and for options that say of a flow what a file says itself.
    """
    name, path = request.flow, Path(request.flow)
    if isinstance(request.workload.flow, str):
        if (path / "run.json").is_file() or (path.is_dir() and name != path.name):  # a flow's name is one word
            _refuse_options(request, "a run")
            return _run(path)
        if path.suffix == ".json":
            _refuse_options(request, "a file")
            return _file(path, say)
    return DrawTarget(
        name=name,
        kind="flow",
        flow=lambda: compiled_flow(request.workload),
        placed=lambda: _of(planned_for(request, say, fits=False)),
        first="flow" if request.target == Target() else "plan",
    )


def plan_target(plan: Plan | PlanResult, say: Say) -> DrawTarget:
    """Return the target of a plan that is here already."""
    if isinstance(plan, Plan):
        return _plan(plan, f"plan of {plan.flow}", say)
    return DrawTarget(name=plan.plan.flow, kind="plan", flow=lambda: plan.graph, placed=lambda: _of(plan), first="plan")


def _refuse_options(request: Request, what: str) -> None:
    if request != Request(workload=Workload(flow=request.workload.flow)):
        hint = f"flowgraph draw {request.flow}"
        raise UsageError(f"{what} says itself what it was made for", where=request.flow, hint=hint)


def _of(made: PlanResult) -> DrawnPlan:
    """Return a plan to be drawn, with the search that found it, or that its file says it comes from."""

    def search() -> report.SearchResult:
        return search_plan(made.setting)

    known = made.search
    return DrawnPlan(made.plan, made.graph, search if known is None else lambda: known, made, where=made.where)


def _file(path: Path, say: Say) -> DrawTarget:
    """Read a plan, a program or a picture, told apart by what the file holds."""
    data = _json(path)
    if isinstance(data, dict) and "picture" in data:
        return _picture(path)
    if isinstance(data, dict) and "tasks" in data and "graph" in data:
        return _program(path)
    return _plan(read_plan(path), str(path), say)


def _plan(plan: Plan, where: str, say: Say) -> DrawTarget:
    return DrawTarget(where, "plan", lambda: _graph_of(plan, where), lambda: _placed(plan, where, say), first="plan")


def _json(path: Path) -> Any:
    try:
        return read_json(path)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except ValueError as error:
        what = f"holds no JSON, so no plan, program or picture: {error}"
        raise UsageError(what, where=str(path)) from None


def _program(path: Path) -> DrawTarget:

    try:
        program = program_from_json(read_text(path))
    except FlowError as error:
        error.where = error.where or str(path)
        raise
    made = DrawnPlan(program.plan, program.graph, None, None, program, where=str(path))
    return DrawTarget(str(path), "program", lambda: program.graph, lambda: made, first="plan")


def _picture(path: Path) -> DrawTarget:

    drawing = from_json(read_text(path), str(path))

    def no_plan() -> DrawnPlan:
        raise UsageError("is a picture, and has no plan", where=str(path))

    return DrawTarget(str(path), "picture", lambda: None, no_plan, first="", drawing=drawing)


def _run(path: Path) -> DrawTarget:

    run = RunFolder.open(path)

    def graph() -> Graph:
        return run.graph()

    def placed() -> DrawnPlan:
        plan = read_plan(run.path / "plan.json")
        return DrawnPlan(plan, graph(), where=str(run.path / "plan.json"))

    return DrawTarget(str(path), "run", graph, placed, run, first="run")


def _placed(plan: Plan, where: str, say: Say) -> DrawnPlan:
    if plan.assumed is None or _flow_is_gone(plan.assumed.flow):
        return DrawnPlan(plan, _graph_of(plan, where), where=where)

    return _of(plan_again(plan, prepare_from(plan, where), where, say, fits=False))


def _graph_of(plan: Plan, where: str) -> Graph | None:
    """Return the graph of a plan's flow, if the flow is found and is still the one that was planned."""
    if plan.assumed is not None:
        return None if _flow_is_gone(plan.assumed.flow) else prepare_from(plan, where).setting.graph
    if not plan.flow.isidentifier():  # a flow's own name: a file's would be run
        return None
    try:
        graph = compiled_flow(Workload(flow=plan.flow))
    except FlowError:
        return None
    return graph if structure_hash(graph) == plan.structure_hash else None


def _flow_is_gone(name: str) -> bool:
    """Return whether a name, of no file, is that of no flow."""
    if not name.isidentifier():
        return False
    try:
        find_flow(name)
    except FlowError:
        return True
    return False
