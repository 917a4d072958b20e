"""The spans of time in which a pool has nothing to do, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from placements.step.timeline import Timeline

OVER = "nothing left to do"


@dataclass(frozen=True)
class IdleSpan:
    """A span in which a pool is idle, with the reason, the awaited task ("" if none), and its share of the timeline."""

    pool: str
    start_s: float
    end_s: float
    why: str
    task: str
    share: float

    @property
    def seconds(self) -> float:
        """Return the length of the span in seconds."""
        return self.end_s - self.start_s


def idle_spans(timeline: Timeline) -> tuple[IdleSpan, ...]:
    """Return the spans of time in which each pool is idle, pool by pool in order of time, with reasons.

    An idle pool waits for the task whose end frees its next run. While that task has not started, the pool waits for
    the task that frees that one, and so on; each of these waits is a span. After its last run, a pool has nothing left
    to do.
    """
    return tuple(
        IdleSpan(pool, start_s, end_s, f"waits for {task}" if task else OVER, task, (end_s - start_s) / timeline.end_s)
        for pool in timeline.schedule.pools
        for start_s, end_s, task in _spans(timeline, pool)
    )


def causes(spans: Iterable[IdleSpan]) -> Mapping[tuple[str, str], tuple[float, float, int]]:
    """Return (seconds, share, count) of idle spans, summed by (pool, reason); each pool's longest reason comes first.

    The share is of the seconds of the timeline. Sums that are equal to a microsecond stay in the order of the spans.
    """
    sums = dict[tuple[str, str], tuple[float, float, int]]()
    for span in spans:
        seconds, share, count = sums.get((span.pool, span.why), (0.0, 0.0, 0))
        sums[span.pool, span.why] = (seconds + span.seconds, share + span.share, count + 1)
    pools = list(dict.fromkeys(pool for pool, _ in sums))
    return dict(sorted(sums.items(), key=lambda item: (pools.index(item[0][0]), -round(item[1][0], 6))))


def _spans(timeline: Timeline, pool: str) -> Iterator[tuple[float, float, str]]:
    since_s = 0.0
    for event in timeline.events:
        if event.pool != pool:
            continue
        run, waits = timeline.by_job[event.task, event.step], list[tuple[float, float, str]]()
        while run.freed_by is not None and run.start_s > since_s:
            run = timeline.by_job[run.freed_by]
            begin_s = max(since_s, run.start_s)
            if run.end_s > begin_s:
                waits.append((begin_s, run.end_s, run.task))
        yield from reversed(waits)
        since_s = max(since_s, event.end_s)
    if timeline.end_s > since_s:
        yield since_s, timeline.end_s, ""
