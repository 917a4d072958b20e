"""How long a step takes once steps follow each other: the period of a schedule, and the cycle of tasks that sets it.

Not here: when each task runs (`timeline`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import fsum

from placements.step.schedule import Schedule, constraints, in_order

# Below this share of all seconds a gain is rounding.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Period:
    """Seconds from one step to the next, and why: `cycle` takes them `tokens` times.

    `seconds` is None if tasks are `unknown`.
    """

    seconds: float | None
    cycle: tuple[str, ...] = ()
    tokens: int = 0
    unknown: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.seconds is None:
            return f"a step takes an unknown time: no seconds of {', '.join(self.unknown)}"
        cycle = " → ".join((*self.cycle, *self.cycle[:1]))
        return f"a step takes {self.seconds:,.1f} s{f': {cycle}' if cycle else ''}{self._shared}"

    @property
    def _shared(self) -> str:
        return f", which {self.tokens} steps share" if self.tokens > 1 else ""


def makespan(names: Sequence[str], before: Sequence[Collection[int]], seconds: Sequence[float | None]) -> Period:
    """Return the seconds of one step by itself; the cycle is its critical path, the chain of tasks that takes longest.

    `before` are the places of those that end before each task begins, all earlier than it. Of chains that take as long
    the one through earlier tasks is named; what takes no time is not.
    """
    unknown = tuple(name for name, each in zip(names, seconds, strict=True) if each is None)
    if unknown:
        return Period(None, unknown=unknown)
    ends, freed = list[float](), list[int]()
    for own, each in zip(before, seconds, strict=True):
        last = max(sorted(own), key=ends.__getitem__, default=-1)
        freed.append(last)
        ends.append((ends[last] if last >= 0 else 0.0) + (each or 0.0))
    path, at = list[int](), max(range(len(ends)), key=ends.__getitem__, default=-1)
    while at >= 0:
        path.append(at)
        at = freed[at]
    return Period(max(ends, default=0.0), tuple(names[each] for each in reversed(path) if seconds[each]), 1)


@dataclass(frozen=True)
class _TaskNetwork:
    """Tasks by number, in an order in which those of one step wait for earlier ones only, and what each waits for."""

    names: tuple[str, ...]
    seconds: tuple[float, ...]
    incoming: tuple[tuple[tuple[int, int], ...], ...]  # of each task: (who is waited for, tokens)


def period(schedule: Schedule) -> Period:
    """Return the time from one step to the next: over all cycles, the most seconds per token.

    Starts from the largest load of a pool, and as long as a cycle takes longer goes on from that one. Exact but for
    rounding; of cycles that take as long, a pool's own comes first. Raises ValueError, naming it, for a cycle
    without a token.

    Source: R. Reiter, Scheduling Parallel Computations, JACM 15(4), 1968 (the rate of a marked graph); E. L. Lawler,
    Combinatorial Optimization, 1976 (maximum cycle ratio by testing for positive cycles).
    """
    order = in_order(schedule)
    if schedule.unknown:
        return Period(None, unknown=schedule.unknown)
    place = {task.name: index for index, task in enumerate(order)}
    incoming: list[list[tuple[int, int]]] = [[] for _ in order]
    for wait in constraints(schedule):
        incoming[place[wait.after]].append((place[wait.before], wait.delay))
    net = _TaskNetwork(
        tuple(place), tuple(task.seconds or 0.0 for task in order), tuple(tuple(each) for each in incoming)
    )
    found = _largest_load(schedule)
    while (longer := _longer(net, found.seconds or 0.0)) is not None:
        found = longer
    listed = {task.name: index for index, task in enumerate(schedule.tasks)}
    start = min(range(len(found.cycle)), key=lambda at: listed[found.cycle[at]], default=0)
    return Period(found.seconds, found.cycle[start:] + found.cycle[:start], found.tokens)


def _largest_load(schedule: Schedule) -> Period:
    found = Period(0.0)
    for pool in schedule.pools:
        seconds = schedule.load_s(pool) or 0.0
        if seconds > (found.seconds or 0.0) or not found.cycle:
            found = Period(seconds, tuple(task.name for task in schedule.on(pool)), 1)
    return found


def _longer(net: _TaskNetwork, period_s: float) -> Period | None:
    """Find a cycle that takes more than `period_s` per token: one that is longer the more often it is gone round."""
    late = [0.0] * len(net.names)
    freed: list[tuple[int, int] | None] = [None] * len(net.names)
    least = ROUNDING * fsum(net.seconds)
    while _relaxed(net, period_s, late, freed, least):
        cycle = _circle(freed)
        if cycle:
            tokens = sum(each[1] for at in cycle if (each := freed[at]) is not None)
            seconds = fsum(net.seconds[at] for at in cycle) / tokens
            return Period(seconds, tuple(net.names[at] for at in cycle), tokens) if seconds > period_s else None
    return None


def _relaxed(
    net: _TaskNetwork, period_s: float, late: list[float], freed: list[tuple[int, int] | None], least: float
) -> bool:
    """Let each task start no earlier than what it waits for allows, steps `period_s` apart; say whether one moved."""
    moved = False
    for after, incoming in enumerate(net.incoming):
        for each in incoming:
            before, tokens = each
            start = late[before] + net.seconds[before] - period_s * tokens
            if start > late[after] + least:
                late[after], freed[after], moved = start, each, True
    return moved


def _circle(freed: Sequence[tuple[int, int] | None]) -> list[int]:
    """Return tasks that free each other in a circle, in the order in which they run; none if there is no circle."""
    seen = [-1] * len(freed)
    for start in range(len(freed)):
        at, path = start, list[int]()
        while seen[at] < 0:
            seen[at] = start
            path.append(at)
            by = freed[at]
            if by is None:
                break
            at = by[0]
        else:
            if seen[at] == start:
                return path[path.index(at) :][::-1]
    return []
