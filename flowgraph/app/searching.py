"""The search of `plan` and `fit`: what a request asks of it, and the answers beside it. No torch is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from flowgraph.analysis.placed_graph import check_plan
from flowgraph.app.plan_result import PlanResult, sizes_of
from flowgraph.app.problem import PreparedProblem, cluster_of, has_profiles, of_unknown_speed, prepare
from flowgraph.app.request import Request, Say, Search, Target
from flowgraph.cluster.this_machine import warnings_for
from flowgraph.errors import PlanError, ResourceError, UsageError, nearest
from flowgraph.lowering.program import HOST
from placements import PlanRequest
from placements import plan as search_plan
from placements.report.cautions import cautions
from placements.report.search_report import is_disaggregated
from placements.search.named_placements import variant
from placements.search.search import pinned
from placements.search.staleness import MAX_STALENESS, StalenessOption, best_staleness, stalenesses
from placements.search.what_if import WhatIf, changed
from placements.solver.problem import Objective, fused
from placements.solver.solve import Method
from placements.workload.batch_partition import many

if TYPE_CHECKING:
    from placements import PlanningProblem


def searched(prepared: PreparedProblem, target: Target, say: Say) -> PlanResult:
    """Search the fastest plan of a problem. Raises ResourceError where nothing fits."""
    plan_request = plan_request_of(Search(), target, prepared.setting)
    warn(prepared, say)
    search = search_plan(prepared.setting, plan_request)
    plan = search.best.plan(prepared.assumed, plan_request.pins)
    check_plan(plan, prepared.setting.graph, f"plan of {plan.flow}")
    return PlanResult(prepared=prepared, plan=plan, where=str(target), search=search)


def warn(prepared: PreparedProblem, say: Say) -> None:
    """Say that CPU devices are more than the cores they run on, where they are."""
    for line in warnings_for(prepared.setting.cluster):
        say(line)


def search_result(request: Request, say: Say) -> PlanResult:
    """Search the best plan that a request asks for, with all that it asks beside it: other staleness, what-ifs."""
    wanted, target = request.search, request.target
    prepared = _in_ratio(prepare(request).having(streamed=wanted.streamed), wanted.ratio)
    plan_request = plan_request_of(wanted, target, prepared.setting)
    warn(prepared, say)
    for note in prepared.notes:
        say(note)
    prepared, tried = _with_staleness(prepared, wanted, target)
    new = [note for note in cautions(prepared.setting) if note not in prepared.notes]
    for note in new:
        say(note)
    prepared = replace(prepared, notes=(*prepared.notes, *new))
    _refuse_streamed_without_lag(prepared.setting, wanted, say)
    setting = prepared.setting
    search = next((each.found for each in tried if each.staleness == setting.staleness), None)
    if search is None or wanted.robust:
        search = search_plan(setting, plan_request, robust=wanted.robust)
    search = replace(search, named=()) if wanted.objective == "devices" else search
    if wanted.ratio and not is_disaggregated(search.best):
        say(f"--ratio {wanted.ratio} holds nowhere: in the best plan drawing and training share a pool")
    result = PlanResult(
        prepared=prepared,
        plan=search.best.plan(prepared.assumed, plan_request.pins),
        where=str(target),
        search=search,
        what_if=tuple(_what_if(setting, text, wanted, target) for text in wanted.what_if),
        staleness=tried,
    )
    sizes_of(result)
    return result


def _with_staleness(
    prepared: PreparedProblem, wanted: Search, target: Target
) -> tuple[PreparedProblem, tuple[StalenessOption, ...]]:
    """Let rollouts lag as far as is asked for; `auto` tries up to what the flow says, or MAX_STALENESS if it does not.

    Raises UsageError for a text that is not a number of updates, and for more updates than the flow corrects for.
    """
    text, tried = wanted.staleness, tuple[StalenessOption, ...]()
    if not text:
        return prepared, ()
    bound = prepared.setting.staleness_bound
    if text == "auto":
        plan_request = plan_request_of(wanted, target, prepared.setting)
        tried = stalenesses(prepared.setting, bound or MAX_STALENESS, plan_request)
        if not tried:
            return prepared, ()
        chosen = best_staleness(tried).staleness
    elif text == "0" or _is_count(text):
        chosen = int(text)
    else:
        raise UsageError(f"`{text}` is no number of updates", where="--staleness", hint="a whole number, or auto")
    if bound and chosen > bound:
        what = f"{prepared.setting.graph.name} corrects for {bound} at most: stale(…, at_most={bound})"
        raise UsageError(what, where=f"--staleness {chosen}", hint=f"--staleness {bound}, or auto")
    return prepared.having(staleness=chosen), tried


def _refuse_streamed_without_lag(setting: PlanningProblem, wanted: Search, say: Say) -> None:
    """Refuse partial rollouts that continue across steps where weights may not lag; with `auto`, say so."""
    if not wanted.streamed or setting.lag:
        return
    why = "a response that continues in the next step has tokens of older weights, and no staleness was asked for"
    if wanted.staleness != "auto":
        raise UsageError(why, where="--streamed", hint="--staleness 1, or auto")
    say("--streamed changes nothing: no staleness makes the step shorter")


def _in_ratio(prepared: PreparedProblem, text: str) -> PreparedProblem:
    """Fix the ratio of rollout to training devices where these are separate. Raises UsageError for another text."""
    if not text:
        return prepared
    parts = text.split(":")
    if len(parts) != 2 or not all(map(_is_count, parts)):
        raise UsageError("should be two whole numbers from 1", where=f"--ratio {text}", hint="--ratio 3:1")
    return prepared.having(ratio=(int(parts[0]), int(parts[1])))


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0


def _what_if(setting: PlanningProblem, text: str, wanted: Search, target: Target) -> WhatIf:
    """Search again with one thing changed. Raises UsageError for nominal seconds beside those of known devices."""
    other = changed(setting, text, cluster_of)
    if (unknown := of_unknown_speed(other.cluster)) and has_profiles(setting.cluster):
        hint = "name devices of a known kind, as 2x8xh100 does, or in a cluster's file their `model`"
        raise UsageError(f"the speed of {unknown}, is not known", where=f"--what-if {text}", hint=hint)
    try:
        return WhatIf(text, search_plan(other, plan_request_of(wanted, target, other)))
    except ResourceError:
        return WhatIf(text, None)


def plan_request_of(wanted: Search, target: Target, setting: PlanningProblem) -> PlanRequest:
    """Read what is asked of a search; raises UsageError or UnknownNameError for what is not known."""
    plan_request = PlanRequest(
        objective=_one_of("--objective", wanted.objective, get_args(Objective)),
        method=_one_of("--search", wanted.method, get_args(Method)),
        pins=_pins(wanted.pin, setting),
        placement=variant(target.placement).name if target.placement else "",
    )
    _refuse_contradictions(plan_request, setting)
    _refuse_too_few_devices(plan_request, setting)
    unpriced = dict.fromkeys(of.model or f"{of.kind}s" for of in setting.classes if of.price_per_hour is None)
    if plan_request.objective == "cost" and unpriced:
        hint = "say `price_per_hour` of each machine in a cluster's file"
        raise UsageError(f"what {' and '.join(unpriced)} cost is not known", where="--objective cost", hint=hint)
    return plan_request


def _refuse_too_few_devices(plan_request: PlanRequest, setting: PlanningProblem) -> None:
    """Refuse a named placement with more pools than there are devices."""
    chosen = variant(plan_request.placement) if plan_request.placement else None
    parts = chosen.parts_of(setting.graph) if chosen is not None else ()
    devices = sum(of.count for of in setting.classes)
    if chosen is not None and len(parts) > devices:
        pools = f"{chosen.name} puts {setting.graph.name} on {len(parts)} pools, which take a device each"
        notes = [f"pool{place}: {', '.join(part)}" for place, part in enumerate(parts)]
        what = f"{pools}; the cluster has {many(devices, f'{setting.kind} device')}"
        hint = f"--cluster {len(parts)}xcpu" if setting.kind == "cpu" else f"{len(parts)} gpu devices at least"
        raise PlanError(what, where=f"plan of {setting.graph.name}", notes=notes, hint=hint)


def _refuse_contradictions(plan_request: PlanRequest, setting: PlanningProblem) -> None:
    """Refuse pins and a placement where one shares a pool that the other keeps apart."""
    together, apart = pinned(setting, plan_request)
    blocks = fused(together, len(setting.roles))
    for pair in apart:
        if any(pair <= block for block in blocks):
            names = " and ".join(setting.roles[place].name for place in sorted(pair))
            pins = " ".join(f"--pin {role}={pool}" for role, pool in plan_request.pins.items())
            what = f"{names} would share a pool and be apart"
            raise UsageError(what, where=f"--placement {plan_request.placement} {pins}", hint="leave one of them out")


def _one_of(option: str, text: str, known: Sequence[Any]) -> Any:
    if text not in known:
        raise UsageError(f"no `{text}`", where=option, hint=nearest(text, known))
    return text


def _pins(texts: Sequence[str], setting: PlanningProblem) -> Mapping[str, str]:
    known, pins = [role.name for role in setting.roles], dict[str, str]()
    for text in texts:
        role, equals, pool = text.partition("=")
        if not equals or not pool:
            raise UsageError("should be ROLE=POOL", where=f"--pin {text}", hint=f"--pin {known[0]}=pool0")
        if role not in known:
            raise UsageError(f"no role `{role}`", where=f"--pin {text}", hint=nearest(role, known))
        if pool == HOST:
            raise UsageError(
                f"`{HOST}` is where nodes run that have no role", where=f"--pin {text}", hint="another name"
            )
        if pins.get(role, pool) != pool:
            raise UsageError(f"is pinned to `{pins[role]}` too", where=f"--pin {text}", hint="leave one of them out")
        pins[role] = pool
    return pins
