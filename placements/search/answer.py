"""The answer to a request: its search, with the searches of other staleness and of what-ifs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from flowgraph.cluster.cluster import Cluster, device_of_unknown_speed
from flowgraph.errors import ResourceError, UsageError
from placements.search.notes import cautions
from placements.search.plan_request import PlanRequest, refuse_impossible
from placements.search.search import SearchResult, find
from placements.search.what_if import changed
from placements.workload.planning_problem import PlanningProblem

WORTH_SHARE = 0.01  # of a step, that one more update of staleness has to save
MAX_STALENESS = 8  # updates that are considered where a flow states no bound
CANDIDATES = (0, 1, 2, 3, 4, 6, 8, 12, 16)

Say = Callable[[str], None]


def answer(
    problem: PlanningProblem,
    request: PlanRequest | None = None,
    clusters: Callable[[str], Cluster] | None = None,
    say: Say = lambda _: None,
) -> SearchResult:
    """Search for the best plan, and return the result with a search for each staleness that was tried and each what-if.

    The problem of the result has the chosen staleness: for `auto`, what `best_staleness` selects among `stalenesses`. A
    what-if for which nothing fits has None in place of a search. For the objective devices, the result has no named
    placements. `clusters` reads the cluster of a what-if `devices=…`; None refuses such what-ifs. `say` is called with
    each caution that the chosen staleness adds, and with a note for each option that has no effect in the best plan.
    Raises ResourceError if no plan fits, UnknownNameError for an unknown named placement, UnknownNameError or
    SettingError for an invalid what-if, and UsageError or PlanError for a what-if with devices that cannot serve the
    request or have an unknown speed. Lets errors of `clusters` through.
    """
    request = request or PlanRequest()
    earlier, tried, staleness = cautions(problem), tuple[SearchResult, ...](), request.staleness
    if staleness == "auto":
        tried = stalenesses(problem, problem.staleness_bound or MAX_STALENESS, request)
        staleness = best_staleness(tried).problem.staleness if tried else None
    if staleness is not None:
        problem = replace(problem, staleness=staleness)
    for note in cautions(problem):
        if note not in earlier:
            say(note)
    search = next((search for search in tried if search.problem.staleness == problem.staleness), None)
    if search is None or request.robust:
        search = find(problem, request)
    search = replace(search, named=()) if request.objective == "devices" else search
    if problem.ratio is not None and not search.best.disaggregated:
        ratio = "{}:{}".format(*problem.ratio)
        say(f"--ratio {ratio} has no effect: in the best plan, rollout and training share a pool")
    if problem.streamed and not any(home.chunks > 1 for home in search.best.homes):
        say("--streamed has no effect: no chunks make the step shorter")
    if problem.contract == "in_flight" and staleness is not None and not any(home.ahead for home in search.best.homes):
        say("--contract in_flight has no effect: in the best plan steps do not overlap")
    what_ifs = tuple((text, _what_if(problem, text, request, clusters)) for text in request.what_if)
    return replace(search, stalenesses=tried, what_ifs=what_ifs)


def stalenesses(problem: PlanningProblem, at_most: int, request: PlanRequest | None = None) -> tuple[SearchResult, ...]:
    """Search for the best plan at each candidate staleness, and return the results in ascending order of staleness.

    Staleness is in policy updates. The candidates are `at_most`, and those of 0, 1, 2, 3, 4, 6, 8, 12 and 16 that are
    smaller. A staleness at which no plan fits is left out; the result may be empty. The request's `robust` is ignored.
    Raises UnknownNameError for an unknown named placement.
    """
    searches, request = list[SearchResult](), replace(request or PlanRequest(), robust=False)
    for staleness in sorted({*(candidate for candidate in CANDIDATES if candidate < at_most), at_most}):
        try:
            searches.append(find(replace(problem, staleness=staleness), request))
        except ResourceError:
            continue
    return tuple(searches)


def best_staleness(searches: Sequence[SearchResult]) -> SearchResult:
    """Return the search with the smallest staleness among those whose step is at most 1% longer than the shortest step.

    `searches` must be in ascending order of staleness. Raises ValueError if `searches` is empty.
    """
    shortest_s = min(search.best.step_s for search in searches)
    return next(search for search in searches if search.best.step_s <= shortest_s * (1 + WORTH_SHARE))


def _what_if(
    problem: PlanningProblem, text: str, request: PlanRequest, clusters: Callable[[str], Cluster] | None
) -> SearchResult | None:
    tried = changed(problem, text, clusters)
    if (unknown := device_of_unknown_speed(tried.cluster)) and not device_of_unknown_speed(problem.cluster):
        hint = "name devices of a known kind, as 2x8xh100 does, or in a cluster's file their `model`"
        raise UsageError(f"the speed of {unknown}, is not known", where=f"--what-if {text}", hint=hint)
    try:
        refuse_impossible(request, tried)
        return find(tried, replace(request, robust=False))
    except ResourceError:
        return None
