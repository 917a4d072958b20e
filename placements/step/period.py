"""The period of a schedule, the seconds from one step to the next, and the cycle of tasks that sets it.

Not here: when each task runs (`timeline`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import fsum

from placements.step.schedule import Schedule, constraints, in_one, in_order

ROUNDING = 1e-12  # share of all seconds below which a gain is rounding


@dataclass(frozen=True)
class Period:
    """Seconds from one step to the next, and the `cycle` of tasks that determines them, which spans `tokens` steps.

    `seconds` is None if the seconds of some tasks, named in `unknown`, are not known.
    """

    seconds: float | None
    cycle: tuple[str, ...] = ()
    tokens: int = 0
    unknown: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.seconds is None:
            return f"a step takes an unknown time: no seconds of {', '.join(self.unknown)}"
        cycle = f": {' → '.join((*self.cycle, self.cycle[0]))}" if self.cycle else ""
        shared = f", which {self.tokens} steps share" if self.tokens > 1 else ""
        return f"a step takes {self.seconds:,.1f} s{cycle}{shared}"


def makespan(names: Sequence[str], before: Sequence[Collection[int]], seconds: Sequence[float | None]) -> Period:
    """Return the seconds of a single step, and its critical path: the longest chain of tasks.

    `before` has, for each task, the indices of the tasks that must end before it; all are smaller than its index. Of
    equally long chains, the one through earlier tasks is returned, without tasks of zero seconds. If the seconds of any
    task are None, the result only names these tasks.
    """
    unknown = tuple(name for name, task_s in zip(names, seconds, strict=True) if task_s is None)
    if unknown:
        return Period(None, unknown=unknown)
    ends, previous = list[float](), list[int]()
    for earlier, task_s in zip(before, seconds, strict=True):
        last = max(sorted(earlier), key=ends.__getitem__, default=-1)
        previous.append(last)
        ends.append((ends[last] if last >= 0 else 0.0) + (task_s or 0.0))
    path, place = list[str](), max(range(len(ends)), key=ends.__getitem__, default=-1)
    while place >= 0:
        path += [names[place]] if seconds[place] else []
        place = previous[place]
    return Period(max(ends, default=0.0), tuple(reversed(path)), 1)


def period(schedule: Schedule) -> Period:
    """Return the seconds from one step of a schedule to the next in steady state, and the critical cycle of tasks.

    Tasks that wait for each other form cycles, which may span several steps. A cycle takes the sum of its tasks'
    seconds divided by the number of steps that it spans; the period is the largest of these. If some tasks run only in
    some steps, the period is the mean over steps. If the seconds of any task are None, the result only names these
    tasks. Of equally long cycles, one of a single pool is preferred. Raises ValueError, which names the tasks, if tasks
    of the same step wait for each other in a cycle.

    Source: R. Reiter, Scheduling Parallel Computations, JACM 15(4), 1968 (period of a marked graph); E. L. Lawler,
    Combinatorial Optimization, 1976 (maximum cycle ratio by testing for positive cycles).
    """
    repeated, steps, names = in_one(schedule)
    if steps > 1:
        longest = period(repeated)
        cycle = tuple(dict.fromkeys(names[name] for name in longest.cycle))
        unknown = tuple(dict.fromkeys(names[name] for name in longest.unknown))
        return Period(
            None if longest.seconds is None else longest.seconds / steps, cycle, steps * longest.tokens, unknown
        )
    order = in_order(schedule)
    if schedule.unknown:
        return Period(None, unknown=schedule.unknown)
    place = {task.name: index for index, task in enumerate(order)}
    incoming: list[list[tuple[int, int]]] = [[] for _ in order]
    for wait in constraints(schedule):
        incoming[place[wait.after]].append((place[wait.before], wait.delay))
    seconds = [task.seconds or 0.0 for task in order]
    longest = Period(0.0)
    for pool in schedule.serial:
        load_s = schedule.load_s(pool) or 0.0
        if load_s > (longest.seconds or 0.0) or not longest.cycle:
            longest = Period(load_s, tuple(task.name for task in schedule.on(pool)), 1)
    while (longer := _longer([*place], seconds, incoming, longest.seconds or 0.0)) is not None:
        longest = longer
    listed = {task.name: index for index, task in enumerate(schedule.tasks)}
    start = min(range(len(longest.cycle)), key=lambda index: listed[longest.cycle[index]], default=0)
    return Period(longest.seconds, longest.cycle[start:] + longest.cycle[:start], longest.tokens)


def _longer(
    names: Sequence[str], seconds: Sequence[float], incoming: Sequence[Sequence[tuple[int, int]]], period_s: float
) -> Period | None:
    """Return a cycle that takes more than `period_s` per step; `incoming` has (task, delay) waits for each task."""
    starts = [0.0] * len(names)
    freed_by: list[tuple[int, int] | None] = [None] * len(names)
    tolerance = ROUNDING * fsum(seconds)
    moved = True
    while moved:
        moved = False
        for after, waits in enumerate(incoming):
            for wait in waits:
                before, delay = wait
                start = starts[before] + seconds[before] - period_s * delay
                if start > starts[after] + tolerance:
                    starts[after], freed_by[after], moved = start, wait, True
        if moved and (cycle := _circle(freed_by)):
            tokens = sum(freed[1] for place in cycle if (freed := freed_by[place]) is not None)
            longer_s = fsum(seconds[place] for place in cycle) / tokens
            return Period(longer_s, tuple(names[place] for place in cycle), tokens) if longer_s > period_s else None
    return None


def _circle(freed_by: Sequence[tuple[int, int] | None]) -> list[int]:
    visited_from = [-1] * len(freed_by)
    for start in range(len(freed_by)):
        place, path = start, list[int]()
        while visited_from[place] < 0:
            visited_from[place] = start
            path.append(place)
            wait = freed_by[place]
            if wait is None:
                break
            place = wait[0]
        else:
            if visited_from[place] == start:
                return path[path.index(place) :][::-1]
    return []
