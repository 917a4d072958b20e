"""The options of a plan as a user writes them, and the answer: a search, other staleness, and what-ifs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from flowgraph.cluster.cluster import Cluster, of_unknown_speed
from flowgraph.cluster.plan import Plan, PlanAssumptions
from flowgraph.errors import PlanError, ResourceError, UsageError, nearest
from flowgraph.lowering.program import HOST
from placements.hardware.device_profiles import profile
from placements.search.named_placements import variant
from placements.search.plan_builder import homes_of
from placements.search.search import PlanRequest, SearchResult, find, pinned
from placements.search.what_if import WhatIf, changed
from placements.solver.problem import Objective, fused
from placements.solver.solve import Method
from placements.step.step_forecast import synced_every
from placements.time.kernels import WIDER
from placements.workload.batch_partition import many
from placements.workload.node_workload import taken
from placements.workload.planning_problem import PlanningProblem

WORTH_SHARE = 0.01  # of a step, that one more update of staleness has to save
MAX_STALENESS = 8  # updates that are considered where a flow states no bound
CANDIDATES = (0, 1, 2, 3, 4, 6, 8, 12, 16)

Say = Callable[[str], None]


@dataclass(frozen=True)
class StalenessOption:
    """One staleness, in updates, and the search for it."""

    staleness: int
    search: SearchResult

    @property
    def step_s(self) -> float:
        """Return the seconds of a step of the best plan."""
        return self.search.best.step_s

    @property
    def ratio(self) -> tuple[int, int]:
        """Return the numbers of rollout and training devices; devices of a pool that does both count in both."""
        roles = self.search.setting.roles
        generate = train = 0
        for block, option in self.search.best.blocks:
            uses = {roles[place].use for place in block}
            generate += sum(option.devices) * ("sample" in uses)
            train += sum(option.devices) * ("train" in uses)
        return generate, train

    @property
    def sync_every(self) -> int:
        """Return the number of updates between two weight syncs."""
        best = self.search.best
        return synced_every(best.setting, homes_of(best.setting, best.blocks))


def stalenesses(
    setting: PlanningProblem, at_most: int, request: PlanRequest | None = None
) -> tuple[StalenessOption, ...]:
    """Return the best plan for each candidate staleness up to `at_most` updates, if one fits."""
    options = list[StalenessOption]()
    for staleness in sorted({*(candidate for candidate in CANDIDATES if candidate < at_most), at_most}):
        try:
            options.append(StalenessOption(staleness, find(replace(setting, staleness=staleness), request)))
        except ResourceError:
            continue
    return tuple(options)


def best_staleness(options: Sequence[StalenessOption]) -> StalenessOption:
    """Return the smallest staleness whose step is at most 1% longer than the shortest."""
    shortest_s = min(option.step_s for option in options)
    return next(option for option in options if option.step_s <= shortest_s * (1 + WORTH_SHARE))


@dataclass(frozen=True, kw_only=True)
class PlanAnswer:
    """A plan, the search that returned it, and the problem with the staleness that was chosen.

    `what_if` and `staleness` are the searches with one change and with other staleness, if they were requested. `notes`
    are about the chosen staleness.
    """

    problem: PlanningProblem
    plan: Plan
    search: SearchResult
    what_if: tuple[WhatIf, ...] = ()
    staleness: tuple[StalenessOption, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of a plan, as a user writes them on the command line.

    `pin` has texts `ROLE=POOL`, `what_if` texts that `changed` reads. `staleness` is a number of updates or `auto`, and
    `ratio` that of rollout to training devices, `3:1`. If `robust`, the plan with the least regret comes first.
    """

    objective: str = "step"
    method: str = "auto"
    pin: tuple[str, ...] = ()
    placement: str = ""
    what_if: tuple[str, ...] = ()
    robust: bool = False
    staleness: str = ""
    ratio: str = ""
    streamed: bool = False

    def devices_ratio(self) -> tuple[int, int] | None:
        """Return the ratio of rollout to training devices; None without one. Raises UsageError for an invalid text."""
        if not self.ratio:
            return None
        parts = self.ratio.split(":")
        if len(parts) != 2 or not all(map(_is_count, parts)):
            raise UsageError("should be two whole numbers from 1", where=f"--ratio {self.ratio}", hint="--ratio 3:1")
        return int(parts[0]), int(parts[1])

    def request(self, problem: PlanningProblem) -> PlanRequest:
        """Return the request for the search.

        Raises UsageError or UnknownNameError for unknown values, for impossible pools, and for `cost` without prices.
        """
        request = PlanRequest(
            objective=_one_of("--objective", self.objective, get_args(Objective)),
            method=_one_of("--search", self.method, get_args(Method)),
            pins=_pins(self.pin, problem),
            placement=variant(self.placement).name if self.placement else "",
        )
        _refuse_impossible_pools(request, problem)
        unpriced = dict.fromkeys(of.model or f"{of.kind}s" for of in problem.classes if of.price_per_hour is None)
        if request.objective == "cost" and unpriced:
            hint = "set `price_per_hour` of each machine in the cluster file"
            raise UsageError(f"what {' and '.join(unpriced)} cost is not known", where="--objective cost", hint=hint)
        return request

    def answer(
        self, problem: PlanningProblem, assumed: PlanAssumptions, clusters: Callable[[str], Cluster], say: Say
    ) -> PlanAnswer:
        """Search for the best plan, and for the other staleness and what-ifs that these options request.

        `problem` must already have the ratio and the streamed rollouts of these options, see `devices_ratio`.
        `clusters` reads the clusters of what-ifs from text; `say` receives notes as they arise. Raises UsageError for
        options that contradict each other, ResourceError if nothing fits.
        """
        request, earlier = self.request(problem), cautions(problem)
        staleness, tried = self._stalenesses(problem, request)
        if staleness is not None:
            problem = replace(problem, staleness=staleness)
            assumed = assumed.model_copy(update={"staleness": staleness})
        notes = [note for note in cautions(problem) if note not in earlier]
        for note in notes:
            say(note)
        if self.streamed and not problem.lag:
            if self.staleness != "auto":
                why = "a response that continues in the next step has tokens of older weights, but no staleness was"
                raise UsageError(f"{why} asked for", where="--streamed", hint="--staleness 1, or auto")
            say("--streamed has no effect: no staleness makes the step shorter")
        search = next((option.search for option in tried if option.staleness == problem.staleness), None)
        if search is None or self.robust:
            search = find(problem, request, robust=self.robust)
        search = replace(search, named=()) if self.objective == "devices" else search
        if self.ratio and not search.best.disaggregated:
            say(f"--ratio {self.ratio} has no effect: in the best plan, rollout and training share a pool")
        return PlanAnswer(
            problem=problem,
            plan=search.best.plan(assumed, request.pins),
            search=search,
            what_if=tuple(self._what_if(problem, text, clusters) for text in self.what_if),
            staleness=tried,
            notes=tuple(notes),
        )

    def _stalenesses(
        self, problem: PlanningProblem, request: PlanRequest
    ) -> tuple[int | None, tuple[StalenessOption, ...]]:
        """Return the chosen staleness, None for the problem's own, and what `auto` tried.

        It tries up to what the flow says, or MAX_STALENESS if it does not. Raises UsageError for a text that is not a
        number of updates, and for more updates than the flow corrects for.
        """
        text, bound, tried = self.staleness, problem.staleness_bound, tuple[StalenessOption, ...]()
        if not text:
            return None, ()
        if text == "auto":
            tried = stalenesses(problem, bound or MAX_STALENESS, request)
            if not tried:
                return None, ()
            chosen = best_staleness(tried).staleness
        elif text == "0" or _is_count(text):
            chosen = int(text)
        else:
            raise UsageError(
                f"`{text}` is not a number of updates", where="--staleness", hint="use a whole number, or auto"
            )
        if bound and chosen > bound:
            what = f"{problem.graph.name} corrects for {bound} at most: stale(…, at_most={bound})"
            raise UsageError(what, where=f"--staleness {chosen}", hint=f"--staleness {bound}, or auto")
        return chosen, tried

    def _what_if(self, problem: PlanningProblem, text: str, clusters: Callable[[str], Cluster]) -> WhatIf:
        tried = changed(problem, text, clusters)
        if (unknown := of_unknown_speed(tried.cluster)) and not of_unknown_speed(problem.cluster):
            hint = "name devices of a known kind, as 2x8xh100 does, or in a cluster's file their `model`"
            raise UsageError(f"the speed of {unknown}, is not known", where=f"--what-if {text}", hint=hint)
        try:
            return WhatIf(text, find(tried, self.request(tried)))
        except ResourceError:
            return WhatIf(text, None)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0


def _one_of(option: str, text: str, choices: Sequence[Any]) -> Any:
    if text not in choices:
        raise UsageError(f"no `{text}`", where=option, hint=nearest(text, choices))
    return text


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


def _refuse_impossible_pools(request: PlanRequest, problem: PlanningProblem) -> None:
    """Refuse a placement with more pools than devices, and pins and a placement where they contradict each other."""
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


# ---------------------------------------------------------------------------------------- notes to the user


def planner_notes(problem: PlanningProblem) -> tuple[str, ...]:
    """Return notes on the assumptions of every plan of a problem: the load of a step, models, devices and flow."""
    return (*taken(problem.running, problem.prompts), *cautions(problem))


def scale_notes(problem: PlanningProblem) -> list[str]:
    """Return notes on a calibrated forecast: source, factors, and devices without a scale; [] without calibration."""
    calibration, notes = problem.calibration, list[str]()
    if calibration is None:
        return notes
    for device in dict.fromkeys(of.model or of.kind for of in problem.classes):
        here = [scale for scale in calibration.scales if scale.device == device]
        measured = {scale.phase for scale in here if scale.role}
        printed = [scale for scale in here if scale.role or scale.phase not in measured]
        factors = ", ".join(f"{f'{scale.phase} {scale.role}'.strip()} ×{scale.factor:.2f}" for scale in printed)
        unscaled = f"the calibration by {calibration.source} has no scale for {device}, whose seconds are not scaled"
        notes.append(f"calibrated on {device} by {calibration.source}: {factors}" if printed else unscaled)
    return notes


def cautions(problem: PlanningProblem) -> tuple[str, ...]:
    """Return a note for each requirement of a problem that its models, devices or flow do not meet.

    These are models with fewer positions than the longest row has tokens, devices without arithmetic in the precision
    of the weights that generate responses, and staleness for which the flow declares no bound.
    """
    notes, models = list[str](), dict[tuple[str, int], tuple[int, list[str]]]()
    for role in problem.roles:
        shape = problem.shape(role)
        tokens = max((load.longest_tokens for load in problem.loads_of(role)), default=0)
        if shape.positions is not None and tokens > shape.positions:
            longest, params = models.get((shape.base, shape.positions), (0, []))
            models[shape.base, shape.positions] = max(longest, tokens), [*params, role.param]
    for (base, positions), (tokens, params) in models.items():
        notes.append(
            f"rows have up to {tokens:,} tokens, and {base} ({', '.join(dict.fromkeys(params))}) has {positions:,} "
            f"positions: scale its rotary embeddings in config.json, or make rows shorter (--prompt-tokens, "
            f"--response-tokens, max_tokens)"
        )
    precision = problem.sampling_precision
    narrow = precision in ("fp8", "fp4") and any(role.use == "sample" for role in problem.roles)
    for model in dict.fromkeys(devices.model for devices in problem.classes if devices.model):
        if narrow and precision not in (peaks := profile(model).peak_flops):
            wider = next(wider for wider in WIDER[precision] if wider in peaks)
            notes.append(
                f"{model} has no {precision} arithmetic: weights of {precision} are converted to {wider} in each "
                f"product, which saves memory, not operations; not every engine does this"
            )
    if problem.staleness and not problem.staleness_bound and problem.synced:
        param = next(iter(problem.synced)).partition(".")[0]
        notes.append(
            f"{problem.graph.name} declares no staleness bound: its loss is not corrected for stale "
            f"rollouts until the flow has `generate(stale({param}, at_most={problem.staleness}), …)`"
        )
    return tuple(notes)
