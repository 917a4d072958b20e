"""The target of `draw` and `diff`: a flow, a plan's or a program's file, or a run's folder. No torch is loaded.

Each part is computed when a picture first needs it: a picture of the flow needs no plan, and one of a plan no search.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.app.planning.flow_inputs import compiled_flow
from flowgraph.app.planning.make_plan import planned_for
from flowgraph.app.planning.plan_result import PlanResult, read_plan
from flowgraph.app.planning.problem import prepare_from
from flowgraph.app.planning.saved_plans import plan_again
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


@dataclass(frozen=True, kw_only=True)
class DrawnPlan:
    """A plan to draw; its flow (`graph`), problem (`planned`) and stored program (`lowered`) are None if not known."""

    plan: Plan
    where: str
    graph: Graph | None = None
    planned: PlanResult | None = None
    lowered: Program | None = None

    @cached_property
    def program(self) -> Program | None:
        """Return the tasks of the plan's step as a program; None if the flow is not known.

        Raises PlanError if the plan breaks a law.
        """
        if self.lowered is not None or self.graph is None:
            return self.lowered
        return lower(self.graph, self.plan, where=self.where, watch=watch_engines)

    @cached_property
    def sizes(self) -> ArrowSizes:
        """Return the bytes of each value that a node reads and of each model's trained weights.

        Empty if the plan's problem is not known.
        """
        if self.planned is None:
            return ArrowSizes()
        problem, graph = self.planned.problem, self.planned.graph if self.program is None else self.program.graph
        return report.arrow_sizes(graph, problem.shapes, problem.workload, self.plan)

    @cached_property
    def search(self) -> report.SearchResult | None:
        """Return the search that found the plan, or run one now; None if the plan's problem is not known.

        Raises ResourceError if the search finds no plan that fits.
        """
        return None if self.planned is None else self.planned.search or search_plan(self.planned.problem)


@dataclass(frozen=True, kw_only=True)
class DrawTarget:
    """A flow, plan, program or run to draw, as named on a command line.

    `flow` and `placed` compute the graph and the plan when they are first needed. `first` is the name of the picture
    that is drawn by default. `drawing` is the picture in a file that holds one, which has no other pictures; otherwise
    None.
    """

    name: str
    kind: Kind
    flow: Callable[[], Graph | None]
    placed: Callable[[], DrawnPlan]
    run: RunFolder | None = None
    first: str = "plan"
    drawing: Drawing | None = None

    @cached_property
    def graph(self) -> Graph | None:
        """Return the flow's graph; None for a file that holds a picture, and if the flow of a plan is not found.

        A changed flow counts as not found for a plan without recorded assumptions. Raises PlanError if the flow of any
        other plan has changed, the errors of `compiled_flow` for a flow, and those of `RunFolder.graph` for a run.
        """
        return self.flow()

    @cached_property
    def placement(self) -> DrawnPlan:
        """Return the plan, with its flow, problem and program where these are known; a flow is planned on first use.

        Raises UsageError for a file that holds a picture, PlanError for a run whose plan cannot be read, the errors of
        `planned_for` for a flow, and those of `prepare_from` and `plan_again` for a saved plan.
        """
        return self.placed()


def find_target(request: Request, say: Say) -> DrawTarget:
    """Return the target of `draw` that the request's flow names: a run's folder, a JSON file, or a flow.

    The file holds a plan, a program or a picture. `say` receives each note of planning; a flow is planned only when a
    picture needs a plan. Raises UsageError for a file that is not JSON, and for options of a flow together with a run's
    folder or a file, which record them; RunFolderError for a folder that is not a run folder; DataError, LawError or
    PlanError for JSON that is not a valid picture, program or plan.
    """
    name, path, is_name = request.flow, Path(request.flow), isinstance(request.workload.flow, str)
    is_run = is_name and ((path / "run.json").is_file() or (path.is_dir() and name != path.name))  # flows are one word
    is_file = is_name and path.suffix == ".json"
    if is_run or is_file:
        refuse_flow_options(request, "a run" if is_run else "a file", name, hint=f"flowgraph draw {name}")
    if is_run:
        run = RunFolder.open(path)
        file = run.path / "plan.json"
        return DrawTarget(
            name=str(path),
            kind="run",
            flow=run.graph,
            placed=lambda: DrawnPlan(plan=read_plan(file), where=str(file), graph=run.graph()),
            run=run,
            first="run",
        )
    if is_file:
        return _file_target(path, say)
    return DrawTarget(
        name=name,
        kind="flow",
        flow=lambda: compiled_flow(request.workload),
        placed=lambda: _drawn(planned_for(request, say, fits=False)),
        first="flow" if request.target == Target() else "plan",
    )


def refuse_flow_options(request: Request, what: str, where: str, hint: str = "") -> None:
    """Raise UsageError if a request sets anything besides its flow, for a target that defines the rest itself.

    `what` is the kind of target for the error, such as `a run`, `where` its name, and `hint` what to do instead.
    """
    if request != Request(workload=Workload(flow=request.workload.flow)):
        raise UsageError(f"{what} already defines its model, data and cluster", where=where, hint=hint)


def plan_target(plan: Plan | PlanResult, where: str, say: Say) -> DrawTarget:
    """Return a plan in memory as a target of `draw`; `where` is the name of the plan in errors and titles.

    A PlanResult is drawn with the forecast and the search that it has. Any other plan is forecast again when a picture
    first needs it, and `say` receives the notes, unless it does not record how it was made or its flow no longer
    exists.
    """
    if isinstance(plan, PlanResult):
        return DrawTarget(name=where, kind="plan", flow=lambda: plan.graph, placed=lambda: _drawn(plan))

    def placed() -> DrawnPlan:
        if plan.assumed is None or _flow_is_gone(plan.assumed.flow):
            return DrawnPlan(plan=plan, where=where, graph=_graph_of(plan, where))
        return _drawn(plan_again(plan, prepare_from(plan, where), where, say, fits=False))

    return DrawTarget(name=where, kind="plan", flow=lambda: _graph_of(plan, where), placed=placed)


def _drawn(planned: PlanResult) -> DrawnPlan:
    return DrawnPlan(plan=planned.plan, where=planned.where, graph=planned.graph, planned=planned)


def _file_target(path: Path, say: Say) -> DrawTarget:
    where = str(path)
    try:
        data = read_json(path)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=where) from None
    except ValueError as error:
        what = f"is not JSON, so it is not a plan, program or picture: {error}"
        raise UsageError(what, where=where) from None
    keys = data if isinstance(data, dict) else {}
    if "picture" in keys:

        def no_plan() -> DrawnPlan:
            raise UsageError("is a picture, which has no plan", where=where)

        drawing = from_json(read_text(path), where)
        return DrawTarget(name=where, kind="picture", flow=lambda: None, placed=no_plan, first="", drawing=drawing)
    if "tasks" in keys and "graph" in keys:
        try:
            program = program_from_json(read_text(path))
        except FlowError as error:
            error.where = error.where or where
            raise
        placement = DrawnPlan(plan=program.plan, where=where, graph=program.graph, lowered=program)
        return DrawTarget(name=where, kind="program", flow=lambda: program.graph, placed=lambda: placement)
    return plan_target(read_plan(path), where, say)


def _graph_of(plan: Plan, where: str) -> Graph | None:
    if plan.assumed is not None:
        return None if _flow_is_gone(plan.assumed.flow) else prepare_from(plan, where).problem.graph
    if not plan.flow.isidentifier():  # a flow's own name: a file's would be run
        return None
    try:
        graph = compiled_flow(Workload(flow=plan.flow))
    except FlowError:
        return None
    return graph if structure_hash(graph) == plan.structure_hash else None


def _flow_is_gone(name: str) -> bool:
    if not name.isidentifier():
        return False
    try:
        find_flow(name)
    except FlowError:
        return True
    return False
