"""What a search is asked for: read from texts as a user writes them, and refused where it is impossible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal, get_args

from flowgraph.errors import PlanError, UsageError, nearest
from flowgraph.lowering.program import HOST
from placements.search.named_placements import variant
from placements.solver.problem import Objective, fused
from placements.solver.solve import Method
from placements.workload.batch_partition import many
from placements.workload.planning_problem import PlanningProblem

Pairs = tuple[frozenset[int], ...]
"""Pairs of roles, each as a set of two indices into the roles of a problem."""


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """A request for a search: the objective, the search method, constraints on the placement, and what else to try.

    `pins` maps roles to pool names: roles with the same name share a pool, roles with different names do not.
    `placement` is the name of a named placement, "" for any. If `robust`, the plan with the least regret comes first.
    `staleness` is in updates, None for the problem's own; `auto` tries several. `what_if` has texts of changes.
    """

    objective: Objective = "step"
    method: Method = "auto"
    pins: Mapping[str, str] = field(default_factory=dict[str, str])
    placement: str = ""
    robust: bool = False
    staleness: int | Literal["auto"] | None = None
    what_if: tuple[str, ...] = ()

    @classmethod
    def read(
        cls,
        problem: PlanningProblem,
        *,
        objective: str = "step",
        method: str = "auto",
        pin: Sequence[str] = (),
        placement: str = "",
        robust: bool = False,
        staleness: str = "",
        what_if: Sequence[str] = (),
    ) -> PlanRequest:
        """Return the request that options describe, in the form in which a user writes them.

        `pin` has texts `ROLE=POOL`. `placement` "" allows any. `staleness` is a number of updates, `auto`, or "" for
        the problem's own. What-ifs are not checked. Raises UnknownNameError for an unknown named placement, UsageError
        for any other invalid value and for options that contradict each other, and PlanError for a placement with more
        pools than there are devices.
        """
        request = cls(
            objective=_one_of("--objective", objective, get_args(Objective)),
            method=_one_of("--search", method, get_args(Method)),
            pins=_pins(pin, problem),
            placement=variant(placement).name if placement else "",
            robust=robust,
            staleness=_staleness(staleness, problem),
            what_if=tuple(what_if),
        )
        refuse_impossible(request, problem)
        return request


def pinned(problem: PlanningProblem, request: PlanRequest) -> tuple[Pairs, Pairs]:
    """Return the pairs of roles that must share a pool, and the pairs that must not, for the pins and named placement.

    Each role is an index into the roles of the problem. Pairs that follow from the returned ones are left out. Raises
    UnknownNameError for an unknown named placement.
    """
    groups = variant(request.placement).parts_of(problem.graph) if request.placement else ()
    pools = dict.fromkeys(request.pins.values())
    pins = tuple(tuple(role for role, name in request.pins.items() if name == pool) for pool in pools)
    place = {role.name: number for number, role in enumerate(problem.roles)}
    together, apart = list[frozenset[int]](), list[frozenset[int]]()
    for parts in (groups, pins):
        numbered = [numbers for part in parts if (numbers := [place[name] for name in part if name in place])]
        together += [frozenset((first, number)) for first, *rest in numbered for number in rest]
        apart += [frozenset((a[0], b[0])) for a, b in combinations(numbered, 2)]
    return tuple(together), tuple(apart)


def _one_of(option: str, text: str, choices: Sequence[Any]) -> Any:
    if text not in choices:
        raise UsageError(f"no `{text}`", where=option, hint=nearest(text, choices))
    return text


def _staleness(text: str, problem: PlanningProblem) -> int | Literal["auto"] | None:
    if text == "auto":
        return "auto"
    if text not in ("", "0") and not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        what, hint = f"`{text}` is not a number of updates", "use a whole number, or auto"
        raise UsageError(what, where="--staleness", hint=hint)
    bound = problem.staleness_bound
    if bound and text and int(text) > bound:
        what = f"{problem.graph.name} corrects for {bound} at most: stale(…, at_most={bound})"
        raise UsageError(what, where=f"--staleness {text}", hint=f"--staleness {bound}, or auto")
    staleness = int(text) if text else None
    return staleness


def _pins(texts: Sequence[str], problem: PlanningProblem) -> Mapping[str, str]:
    choices, pins = [role.name for role in problem.roles], dict[str, str]()
    for text in texts:
        role, equals, pool = text.partition("=")
        if not equals or not pool:
            raise UsageError("should be ROLE=POOL", where=f"--pin {text}", hint=f"--pin {choices[0]}=pool0")
        if role not in choices:
            raise UsageError(f"no role `{role}`", where=f"--pin {text}", hint=nearest(role, choices))
        if pool == HOST:
            what = f"`{HOST}` is the place of nodes without a role"
            raise UsageError(what, where=f"--pin {text}", hint="another name")
        if pins.get(role, pool) != pool:
            raise UsageError(f"is pinned to `{pins[role]}` too", where=f"--pin {text}", hint="leave one of them out")
        pins[role] = pool
    return pins


def refuse_impossible(request: PlanRequest, problem: PlanningProblem) -> None:
    """Raise an error if the devices of a problem cannot serve a request, or if its pins contradict its named placement.

    Raises UsageError for such pins, and for the objective `cost` if devices have no price; PlanError for a placement
    with more pools than there are devices; UnknownNameError for an unknown placement.
    """
    chosen = variant(request.placement) if request.placement else None
    parts = chosen.parts_of(problem.graph) if chosen is not None else ()
    devices = sum(of.count for of in problem.classes)
    together, apart = pinned(problem, request)
    blocks = fused(together, len(problem.roles))
    for pair in apart:
        if any(pair <= block for block in blocks):
            names = " and ".join(problem.roles[place].name for place in sorted(pair))
            pins = " ".join(f"--pin {role}={pool}" for role, pool in request.pins.items())
            what = f"{names} cannot both share a pool and be separate"
            raise UsageError(what, where=f"--placement {request.placement} {pins}", hint="leave one of them out")
    if chosen is not None and len(parts) > devices:
        pools = f"{chosen.name} puts {problem.graph.name} on {len(parts)} pools, which take a device each"
        notes = [f"pool{place}: {', '.join(part)}" for place, part in enumerate(parts)]
        what = f"{pools}; the cluster has {many(devices, f'{problem.kind} device')}"
        hint = f"--cluster {len(parts)}xcpu" if problem.kind == "cpu" else f"{len(parts)} gpu devices at least"
        raise PlanError(what, where=f"plan of {problem.graph.name}", notes=notes, hint=hint)
    unpriced = dict.fromkeys(of.model or f"{of.kind}s" for of in problem.classes if of.price_per_hour is None)
    if request.objective == "cost" and unpriced:
        hint = "set `price_per_hour` of each machine in the cluster file"
        raise UsageError(f"what {' and '.join(unpriced)} cost is not known", where="--objective cost", hint=hint)
