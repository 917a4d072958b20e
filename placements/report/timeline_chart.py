"""A timeline as the lanes of a chart: a lane for each pool, its tasks as bars, and its idle time between them."""

from __future__ import annotations

from collections.abc import Iterator

from flowgraph.diagrams.model.charts import Bar, Lane, Lanes
from flowgraph.diagrams.model.quantities import listed, many, show_s
from placements.hardware.engine_constants import HOST
from placements.step.idle_time import OVER, IdleSpan, idle_spans
from placements.step.timeline import Timeline, TimelineEvent


def timeline_chart(timeline: Timeline, title: str, *, first_step: int = 0) -> Lanes:
    """Return the lanes of a played schedule, the host's last; a task without a pool is in none.

    The bars of a lane follow each other from 0 to the end; a task of no time has none. `first_step` is the number of
    the first step.
    """
    idle = idle_spans(timeline)
    lanes = list[Lane]()
    for pool in sorted(timeline.schedule.pools, key=lambda pool: pool == HOST):
        events = [event for event in timeline.events if event.pool == pool]
        bars = [_task_bar(timeline, event, first_step) for event in events if event.end_s > event.start_s]
        bars += [_idle_bar(events, span, first_step) for span in idle if span.pool == pool]
        lanes.append(Lane(pool, pool, tuple(sorted(bars, key=lambda bar: bar.start_s))))
    return Lanes(title, tuple(lanes), timeline.end_s, " ".join(_about(timeline, idle)))


def _task_bar(timeline: Timeline, event: TimelineEvent, first_step: int) -> Bar:
    task, run = timeline.schedule.by_name[event.task], timeline.by_job[event.task, event.step]
    lasts = f"{event.task} of step {first_step + event.step} takes {show_s(event.end_s - event.start_s)}"
    where = f" on {listed(task.pools)}" if len(task.pools) > 1 else ""
    after = ""
    if run.freed_by is not None:
        name, step = run.freed_by
        after = f"; it starts once {name} of step {first_step + step} has ended"
    about = f"{lasts}{where}, from {show_s(event.start_s)} on{after}."
    return Bar(event.start_s, event.end_s, event.task, task.kind, about, first_step + event.step)


def _idle_bar(events: list[TimelineEvent], idle: IdleSpan, first_step: int) -> Bar:
    """Return the bar of an idle span; its step is that of the pool's next event, or of its last."""
    about = f"{idle.pool} is idle for {show_s(idle.seconds)}, {idle.share:.1%} of the time: {idle.why}."
    after = (event.step for event in events if event.start_s >= idle.end_s)
    step = next(after, events[-1].step if events else 0)
    return Bar(idle.start_s, idle.end_s, idle.why, "idle", about, first_step + step)


def _about(timeline: Timeline, idle: tuple[IdleSpan, ...]) -> Iterator[str]:
    """Yield the seconds of the steps, the busy share of each pool, and the longest wait of a pool of devices."""
    period_s = timeline.period_s
    period = f", {show_s(period_s)} from one to the next" if period_s is not None else ""
    yield f"{many(timeline.steps, 'step')} in {show_s(timeline.end_s)}{period}."
    busy = [f"{pool} is busy {share:.0%} of the time" for pool, share in timeline.busy().items()]
    yield f"{listed(busy)}." if busy else "No pool has work."
    waits = [span for span in idle if span.pool != HOST and span.why != OVER]
    longest = max(waits, key=lambda span: span.seconds, default=None)
    if longest is not None:
        yield f"The longest idle time is of {longest.pool}: {show_s(longest.seconds)}, {longest.why}."
