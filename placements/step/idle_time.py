"""Bubbles: when a pool has nothing to do, and what it waits for then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from placements.step.timeline import TaskRun, Timeline

OVER = "nothing left to do"


@dataclass(frozen=True)
class IdleSpan:
    """A span in which a pool is idle: `why`, the task that it waits for ("" if none), and its share of all the time."""

    pool: str
    start_s: float
    end_s: float
    why: str
    task: str
    share: float

    @property
    def seconds(self) -> float:
        """Return how long it is."""
        return self.end_s - self.start_s


def idle_spans(timeline: Timeline) -> tuple[IdleSpan, ...]:
    """Name the idle time of each pool, pool by pool.

    A pool waits for the run whose end lets it go on; as long as that run has not started, for the one that it waits for
    in turn, and so on.
    """
    return tuple(
        IdleSpan(pool, start_s, end_s, why, task, (end_s - start_s) / timeline.end_s)
        for pool in timeline.schedule.pools
        for start_s, end_s, why, task in _spans(timeline, pool)
    )


def causes(found: Iterable[IdleSpan]) -> Mapping[tuple[str, str], tuple[float, float, int]]:
    """Add up bubbles by pool and reason: seconds, share and how many, the longest of a pool first.

    Equal seconds, to a microsecond, stay in the order in which the bubbles come.
    """
    sums = dict[tuple[str, str], tuple[float, float, int]]()
    for bubble in found:
        seconds, share, count = sums.get((bubble.pool, bubble.why), (0.0, 0.0, 0))
        sums[bubble.pool, bubble.why] = (seconds + bubble.seconds, share + bubble.share, count + 1)
    pools = list(dict.fromkeys(pool for pool, _ in sums))
    return dict(sorted(sums.items(), key=lambda each: (pools.index(each[0][0]), -round(each[1][0], 6))))


# From when to when, why, and which task is waited for.
_Span = tuple[float, float, str, str]


def _spans(timeline: Timeline, pool: str) -> Iterator[_Span]:
    since_s = 0.0
    for event in (each for each in timeline.events if each.pool == pool):
        if event.start_s > since_s:
            yield from reversed(list(_waits(timeline, timeline.by_job[event.task, event.step], since_s)))
        since_s = max(since_s, event.end_s)
    if timeline.end_s > since_s:
        yield since_s, timeline.end_s, OVER, ""


def _waits(timeline: Timeline, freed: TaskRun, since_s: float) -> Iterator[_Span]:
    """Return what is waited for before a run, from since when its pool is idle; the latest first."""
    while freed.freed_by is not None and freed.start_s > since_s:
        freed = timeline.by_job[freed.freed_by]
        begin_s = max(since_s, freed.start_s)
        if freed.end_s > begin_s:
            yield begin_s, freed.end_s, f"waits for {freed.task}", freed.task
