"""Make a plan for `plan`, `run`, `show`, `draw` and `check`: search it, or forecast a saved one. No torch is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from flowgraph.analysis.placed_graph import check_plan
from flowgraph.app.planning.overlap import with_chunks, with_contract, with_overlap
from flowgraph.app.planning.plan_result import PlanResult, plan_of
from flowgraph.app.planning.problem import PreparedProblem, cluster_of, prepare
from flowgraph.app.planning.saved_plans import plan_again, prepare_again, saved_plan
from flowgraph.app.request import Request, Say, Search, Target, option
from flowgraph.cluster.plan import Contract, Plan
from flowgraph.cluster.this_machine import core_warnings
from flowgraph.errors import UsageError
from flowgraph.language.graph import Graph
from flowgraph.passes.prune_nodes import unread_calls
from placements import PlanRequest, report
from placements import plan as search_plan


def make_plan(request: Request, say: Say) -> PlanResult:
    """Search for the best plan for a request, or forecast the plan that it names again; return the plan.

    The overlap, contract and chunks of the request are applied to either. `say` receives each note, and the result has
    all of them. Raises UsageError for invalid or contradictory options of the search, and for an option of the search
    (other than a calibration) or lengths of rows together with a named plan; UnknownNameError for an unknown placement;
    ResourceError if nothing fits, or if the named plan does not; BatchError if the batch, minibatches and ranks do not
    go together; PlanError for a plan that breaks a law; and the errors of `prepare` or `prepare_from`.
    """
    notes = list[str]()

    def note(line: str) -> None:
        notes.append(line)
        say(line)

    if request.target.plan is not None:
        names = [name for name in ("prompt_tokens", "response_tokens") if getattr(request.workload, name) is not None]
        default = Search(calibration=request.search.calibration)
        names += [name for name in Search.model_fields if getattr(request.search, name) != getattr(default, name)]
        if names:
            hint = f"leave out --plan: flowgraph plan {request.flow} --cluster 2x8xh100"
            what = f"{', '.join(map(option, names))}: no effect, because a given plan is not searched"
            raise UsageError(what, where=f"--plan {request.target}", hint=hint)
        result = planned_for(request, note)
        for line in report.scale_notes(result.problem):
            note(line)
    else:
        prepared, search = prepare(request), request.search
        _refuse_contradictions(request)
        prepared = prepared.having(streamed=search.streamed, ratio=_ratio(search.ratio))
        asked = PlanRequest.read(
            prepared.problem,
            objective=search.objective,
            method=search.method,
            pin=search.pin,
            placement=request.target.placement,
            robust=search.robust,
            staleness=search.staleness,
            what_if=search.what_if,
        )
        result = _searched(prepared, asked, request.target, note, prepared.notes)
        _ = result.batch  # refuses sizes that do not go together
    return replace(result, notes=tuple(notes), workload=request.workload)


def _refuse_contradictions(request: Request) -> None:
    target, search = request.target, request.search
    fixed = "--depth" if target.depth is not None else "--sync-every" if target.sync_every is not None else ""
    pairs = (
        (
            bool(fixed and search.staleness),
            fixed,
            "--staleness",
            "fixes the overlap that --staleness lets a search choose",
        ),
        (target.chunks is not None and search.streamed, "--chunks", "--streamed", "fixes what --streamed chooses"),
        (
            target.contract in ("in_flight", "ready") and search.streamed,
            f"--contract {target.contract}",
            "--streamed",
            "rows that cross syncs cannot be handed out in chunks",
        ),
        (
            target.contract == "ready" and bool(search.staleness),
            "--contract ready",
            "--staleness",
            "groups may be late by what the depth leaves of the bound, so name the depth: --depth 1",
        ),
    )
    for contradict, first, second, why in pairs:
        if contradict:
            raise UsageError(f"cannot be combined with {second}: {why}", where=first, hint="leave one of them out")


def _ratio(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    parts = text.split(":")
    if len(parts) != 2 or not all(
        part.isascii() and part.isdigit() and len(part) < 10 and int(part) > 0 for part in parts
    ):
        raise UsageError("should be two whole numbers from 1", where=f"--ratio {text}", hint="--ratio 3:1")
    return int(parts[0]), int(parts[1])


def searched(prepared: PreparedProblem, target: Target, say: Say) -> PlanResult:
    """Search for the fastest plan of a problem, and return the fastest plan found.

    `target` names the plan in errors, and may name a placement that limits the search; its overlap, contract and chunks
    are applied to the plan. `say` receives each note. Raises ResourceError if nothing fits, UnknownNameError for an
    unknown placement, and PlanError for a placement with more pools than devices, or for an overlap, a contract or
    chunks that the plan or the flow does not allow.
    """
    return _searched(prepared, PlanRequest.read(prepared.problem, placement=target.placement), target, say)


def _searched(
    prepared: PreparedProblem, asked: PlanRequest, target: Target, say: Say, notes: Iterable[str] = ()
) -> PlanResult:
    for line in (*core_warnings(prepared.problem.cluster), *notes):
        say(line)
    if target.contract is not None:
        goes_on: Contract = "scheduled" if target.contract == "scheduled" else "in_flight"
        prepared = replace(prepared, problem=replace(prepared.problem, contract=goes_on))
    depth, every = target.depth or 0, target.sync_every or 1
    if depth:  # forecast with steps that overlap, also where the flow would refuse to run so
        prepared = prepared.having(staleness=depth + every - 1)
    search = search_plan(prepared.problem, asked, cluster_of, say)
    if asked.staleness is not None:
        later = (line for line in report.planner_notes(search.problem) if line not in prepared.notes)
        prepared = prepared.having(staleness=search.problem.staleness)
        prepared = replace(prepared, problem=search.problem, notes=(*prepared.notes, *later))
    if target.overlap is not None or (prepared.problem.staleness or 0) <= prepared.problem.staleness_bound:
        prepared = replace(prepared, assumed=prepared.assumed.model_copy(update={"staleness": None}))
    plan = search.best.plan(prepared.assumed, asked.pins)
    where = f"plan of {plan.flow}"
    if asked.staleness is not None:  # the search has chosen the overlap, under this contract
        target = target.model_copy(update={"contract": None})
    if target.overlap is not None:  # what is not asked for is not what the search would have
        target = target.model_copy(update={"depth": depth, "sync_every": every})
    if target.changes_plan:
        saved = saved_plan(_as_asked(plan, prepared.problem.graph, target, where), prepared, where)
        if prepared.problem.streamed and target.overlap is not None:
            saved = saved.with_best_chunks()
        plan = saved.forecast()
    check_plan(plan, prepared.problem.graph, where)
    return PlanResult(prepared=prepared, plan=plan, where=str(target), search=search)


def _as_asked(plan: Plan, graph: Graph, target: Target, where: str) -> Plan:
    """Return a plan with the overlap, the contract and the chunks that a request asks for."""
    plan = plan if target.overlap is None else with_overlap(plan, graph, *target.overlap, where)
    plan = plan if target.contract is None else with_contract(plan, graph, target.contract, where)
    return plan if target.chunks is None else with_chunks(plan, graph, target.chunks, where)


Check = Callable[[PreparedProblem], None]
"""A function that raises an error for a problem that must not be planned."""


def planned_for(request: Request, say: Say, *, fits: bool = True, check: Check | None = None) -> PlanResult:
    """Return a plan for a request: searched on its cluster, or the plan that the request names, with a new forecast.

    The overlap, contract and chunks of the request are applied to either. A named plan is forecast on its own cluster;
    if it does not fit, that is an error only if `fits` is true. `check` is called with the prepared problem first, and
    may raise. `say` receives each note. Raises the errors of `prepare` and `searched`, or, for a named plan, PlanError
    for a file without a plan, the errors of `prepare_again` and `plan_again`, and PlanError for an overlap, a contract
    or chunks that the plan does not allow.
    """
    plan, where = plan_of(request.target), str(request.target)
    prepared = prepare(request) if plan is None else prepare_again(plan, request, where)
    if plan is not None and request.target.changes_plan:
        plan = _as_asked(plan, prepared.problem.graph, request.target, where)
        prepared = prepare_again(plan, request, where)
    if check is not None:
        check(prepared)
    for line in unread_calls(prepared.problem.graph):
        say(line)
    if plan is None:
        return searched(prepared, request.target, say)
    return plan_again(plan, prepared, where, say, fits=fits)


def measured_plan(plan: Path | None, measured_on: Path | None, measured: Sequence[str]) -> Path | None:
    """Return the path of the plan on which seconds were measured: `measured_on`, or else `plan`; None if both are None.

    `measured` are texts `NODE=SECONDS`. Raises UsageError if both paths are given, for `measured_on` without
    `measured`, and if `measured_on` does not exist.
    """
    if measured_on is not None and not measured:
        hint = "--measured policy.generate=142"
        raise UsageError("needs seconds that were measured with it", where=f"--measured-on {measured_on}", hint=hint)
    if measured_on is not None and plan is not None:
        what = f"cannot be combined with --plan {plan}, which --measured belongs to"
        raise UsageError(what, where=f"--measured-on {measured_on}", hint="leave one of them out")
    if measured_on is not None and not measured_on.exists():
        raise UsageError("this file does not exist", where=f"--measured-on {measured_on}", hint="the plan of that run")
    return measured_on or plan
