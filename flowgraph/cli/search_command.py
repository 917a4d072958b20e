"""The search of `plan` and `fit`: what it is asked, what it found, and why the named placements lost. No torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from flowgraph.cli.plan_result import PlanResult, SearchChoices, batch_lines, sizes_of, warn
from flowgraph.cli.planning_request import (
    PlanningProblem,
    PlanRequest,
    cluster_of,
    has_profiles,
    of_unknown_speed,
    pose,
)
from flowgraph.cli.written_files import write_text
from flowgraph.errors import PlanError, ResourceError, UsageError, nearest
from flowgraph.lowering.program import HOST
from placements.cautions import cautions
from placements.cuts import many
from placements.finding import Asked, find, pinned, value_of
from placements.found_text import MEASURES
from placements.late import MOST_STALE, Late, late_text, least, stalenesses
from placements.named import variant
from placements.placing import plan_of
from placements.problem import Objective, fused
from placements.solve import Method

if TYPE_CHECKING:
    from placements.finding import Found
    from placements.ranked import Ranked
    from placements.setting import Setting
    from placements.what_if import Changed


def print_costed(question: PlanRequest, sought: SearchChoices, out: Path | None, as_json: bool) -> None:
    """Print the best plans of a question, and write the best one to `out`."""
    from placements.found_text import apart, found_text, what_if_text

    posed = _in_ratio(pose(question).having(streamed=sought.streamed), sought.ratio)
    asked, named = asked_of(sought, posed.setting), sought.objective != "devices"
    warn(posed)
    for note in posed.notes:
        print(note, file=sys.stderr)
    posed, tried = _late(posed, sought)
    posed = _with_new_cautions(posed)
    _refuse_streamed_without_lag(posed.setting, sought)
    setting = posed.setting
    searched = next((each.found for each in tried if each.staleness == setting.staleness), None)
    if searched is None or sought.robust:
        searched = find(setting, asked, robust=sought.robust)
    found = searched if named else replace(searched, named=())
    if sought.ratio and not apart(found.best):
        print(
            f"--ratio {sought.ratio} holds nowhere: in the best plan drawing and training share a pool", file=sys.stderr
        )
    others = [_changed(setting, text, sought) for text in sought.what_if]
    plan = plan_of(setting, found.best.blocks, posed.assumed, asked.pins)
    planned = PlanResult(posed, plan, question.cluster, found)
    sizes_of(planned)
    if out is not None:
        write_text(out, plan.to_json())
    print(f"searched in {found.seconds:.2f} s", file=sys.stderr)
    if as_json:
        changes = {each.change: _changed_data(each, asked.objective) for each in others}
        late = [_late_data(each) for each in tried]
        data = {"plan": json.loads(plan.to_json()), **found_data(found, asked.objective, sought.top)}
        print(json.dumps(data | {"notes": list(posed.notes), "what_if": changes, "staleness": late}, indent=1))
    else:
        told = [late_text(tried, setting.lag)] if tried else []
        told += [what_if_text(found, others, asked.objective)] if others else []
        shown = found_text(found, plan, top=sought.top, objective=asked.objective)
        print("\n\n".join([shown, *told, "\n".join(batch_lines(planned))]))
    if out is not None:
        print(out, file=sys.stderr)


def _late(posed: PlanningProblem, sought: SearchChoices) -> tuple[PlanningProblem, tuple[Late, ...]]:
    """Let what draws lag as far as is asked for; `auto` tries up to what the flow says, or MOST_STALE if it does not.

    Raises UsageError for what is no number of updates, and for more of them than the flow corrects for.
    """
    text, tried = sought.staleness, tuple[Late, ...]()
    if not text:
        return posed, ()
    if text == "auto":
        tried = stalenesses(posed.setting, posed.setting.staleness_bound or MOST_STALE, asked_of(sought, posed.setting))
        if not tried:
            return posed, ()
        chosen = least(tried).staleness
    elif text == "0" or _is_count(text):
        chosen = int(text)
    else:
        raise UsageError(f"`{text}` is no number of updates", where="--staleness", hint="a whole number, or auto")
    _refuse_staleness_above_bound(posed.setting, chosen)
    return posed.having(staleness=chosen), tried


def _refuse_staleness_above_bound(setting: Setting, staleness: int) -> None:
    """Refuse weights that lag more updates than the flow corrects for. Where it says no bound, a note says so."""
    bound = setting.staleness_bound
    if bound and staleness > bound:
        what = f"{setting.graph.name} corrects for {bound} at most: stale(…, at_most={bound})"
        raise UsageError(what, where=f"--staleness {staleness}", hint=f"--staleness {bound}, or auto")


def _refuse_streamed_without_lag(setting: Setting, sought: SearchChoices) -> None:
    """Refuse partial rollouts that continue across steps where weights may not lag; with `auto`, note it."""
    if not sought.streamed or setting.lag:
        return
    why = "a response that continues in the next step has tokens of older weights, and no staleness was asked for"
    if sought.staleness == "auto":
        print("--streamed changes nothing: no staleness makes the step shorter", file=sys.stderr)
    else:
        raise UsageError(why, where="--streamed", hint="--staleness 1, or auto")


def _with_new_cautions(posed: PlanningProblem) -> PlanningProblem:
    """Return a question with the notes that its own options have added, and print these."""
    added = [note for note in cautions(posed.setting) if note not in posed.notes]
    for note in added:
        print(note, file=sys.stderr)
    return replace(posed, notes=(*posed.notes, *added))


def _in_ratio(posed: PlanningProblem, text: str) -> PlanningProblem:
    """Fix the devices that draw to those that train, where these are apart. Raises UsageError for no such ratio."""
    if not text:
        return posed
    parts = text.split(":")
    if len(parts) != 2 or not all(map(_is_count, parts)):
        raise UsageError("should be two whole numbers from 1", where=f"--ratio {text}", hint="--ratio 3:1")
    return posed.having(ratio=(int(parts[0]), int(parts[1])))


def _changed_data(changed: Changed, objective: Objective) -> dict[str, Any] | None:
    return _ranked_data(changed.found.best, objective) if changed.found is not None else None


def _late_data(late: Late) -> dict[str, Any]:
    draws, trains = late.ratio
    return {
        "staleness": late.staleness,
        "step_s": late.step_s,
        "devices_that_draw": draws,
        "devices_that_train": trains,
        "sync_every": late.sync_every,
    }


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0


_OPTIONS = {"engines": "engine", "pins": "pin", "method": "search"}  # by the field that holds what an option says


def given_options(question: PlanRequest, sought: SearchChoices) -> str:
    """Return the options of a search that a command line gives, as it writes them; "" if it gives none."""
    plain = PlanRequest(question.asked, question.cluster, memory=question.memory)
    names = [each.name for each in fields(question) if getattr(question, each.name) != getattr(plain, each.name)]
    names += [
        each.name
        for each in fields(sought)
        if each.name != "top" and getattr(sought, each.name) != getattr(SearchChoices(), each.name)
    ]
    return ", ".join(f"--{_OPTIONS.get(name, name).replace('_', '-')}" for name in names)


def _changed(setting: Setting, text: str, sought: SearchChoices) -> Changed:
    """Search again with one thing changed. Raises UsageError for nominal seconds beside those of known devices."""
    from placements.what_if import Changed, changed

    other = changed(setting, text, cluster_of)
    if (unknown := of_unknown_speed(other.cluster)) and has_profiles(setting.cluster):
        hint = "name devices of a known kind, as 2x8xh100 does, or in a cluster's file their `model`"
        raise UsageError(f"the speed of {unknown}, is not known", where=f"--what-if {text}", hint=hint)
    try:
        return Changed(text, find(other, asked_of(sought, other)))
    except ResourceError:
        return Changed(text, None)


def asked_of(sought: SearchChoices, setting: Setting) -> Asked:
    """Read what is asked of a search; raises UsageError or UnknownNameError for what is not known."""
    asked = Asked(
        objective=_one_of("--objective", sought.objective, get_args(Objective)),
        method=_one_of("--search", sought.method, get_args(Method)),
        pins=_pins(sought.pins, setting),
        placement=variant(sought.placement).name if sought.placement else "",
    )
    _refuse_contradictions(asked, setting)
    _refuse_too_few_devices(asked, setting)
    unpriced = dict.fromkeys(of.model or f"{of.kind}s" for of in setting.classes if of.price_per_hour is None)
    if asked.objective == "cost" and unpriced:
        hint = "say `price_per_hour` of each machine in a cluster's file"
        raise UsageError(f"what {' and '.join(unpriced)} cost is not known", where="--objective cost", hint=hint)
    return asked


def _refuse_too_few_devices(asked: Asked, setting: Setting) -> None:
    """Refuse a named placement with more pools than there are devices."""
    chosen = variant(asked.placement) if asked.placement else None
    parts = chosen.parts_of(setting.graph) if chosen is not None else ()
    there = sum(of.count for of in setting.classes)
    if chosen is not None and len(parts) > there:
        pools = f"{chosen.name} puts {setting.graph.name} on {len(parts)} pools, which take a device each"
        notes = [f"pool{place}: {', '.join(part)}" for place, part in enumerate(parts)]
        what = f"{pools}; the cluster has {many(there, f'{setting.kind} device')}"
        hint = f"--cluster {len(parts)}xcpu" if setting.kind == "cpu" else f"{len(parts)} gpu devices at least"
        raise PlanError(what, where=f"plan of {setting.graph.name}", notes=notes, hint=hint)


def _refuse_contradictions(asked: Asked, setting: Setting) -> None:
    """Refuse pins and a placement of which one puts on a pool what the other keeps apart."""
    together, apart = pinned(setting, asked)
    blocks = fused(together, len(setting.roles))
    for pair in apart:
        if any(pair <= block for block in blocks):
            names = " and ".join(setting.roles[place].name for place in sorted(pair))
            pins = " ".join(f"--pin {role}={pool}" for role, pool in asked.pins.items())
            what = f"{names} would share a pool and be apart"
            raise UsageError(what, where=f"--placement {asked.placement} {pins}", hint="leave one of them out")


def _one_of(option: str, text: str, known: Sequence[Any]) -> Any:
    if text not in known:
        raise UsageError(f"no `{text}`", where=option, hint=nearest(text, known))
    return text


def _pins(texts: Sequence[str], setting: Setting) -> Mapping[str, str]:
    known, found = [role.name for role in setting.roles], dict[str, str]()
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
        if found.get(role, pool) != pool:
            raise UsageError(f"is pinned to `{found[role]}` too", where=f"--pin {text}", hint="leave one of them out")
        found[role] = pool
    return found


def found_data(found: Found, objective: Objective, top: int) -> dict[str, Any]:
    """Return what a search found as data; `value` and `bound` are in the `unit` of the objective, both as played."""
    return {
        "search": {
            "objective": objective,
            "unit": MEASURES[objective].unit,
            "value": value_of(found.best, objective),
            "bound": found.bound,
            "bound_s": found.bound_s,
            "gap": found.gap,
            "proven": found.proven,
            "cut": found.cut,
            "played": found.played,
            "search_s": found.seconds,
        },
        "ranked": [_ranked_data(each, objective) for each in found.ranked[:top]],
        "named": {v.name: None if each is None else _ranked_data(each, objective) for v, each in found.named},
    }


def _ranked_data(ranked: Ranked, objective: Objective) -> dict[str, Any]:

    blocks = zip(ranked.parts(), ranked.blocks, strict=True)
    return {
        "step_s": ranked.step_s,
        "value": value_of(ranked, objective),
        "bound": ranked.bound,
        "devices": ranked.devices,
        "pools": [{"roles": list(part), "devices": sum(option.devices)} for part, (_, option) in blocks],
    }
