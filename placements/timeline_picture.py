"""A timeline as lanes to be drawn: a lane for each pool, its tasks as bars, and what it waits for between them."""

from __future__ import annotations

from collections.abc import Iterator

from flowgraph.diagrams.model.charts import Bar, Lane, Lanes
from flowgraph.diagrams.model.quantities import listed, many, show_s
from placements.bubbles import OVER, Bubble, bubbles
from placements.steps import HOST
from placements.timeline import Event, Timeline


def timeline_picture(timeline: Timeline, title: str, *, first_step: int = 0) -> Lanes:
    """Return the lanes of a played schedule, the host's last; a task without a pool is in none.

    The bars of a lane come one after another from 0 to the end; a task that takes no time has none. The first step is
    told as `first_step`.
    """
    idle = bubbles(timeline)
    pools = sorted(timeline.schedule.pools, key=lambda pool: pool == HOST)
    lanes = tuple(Lane(pool, pool, _bars(timeline, idle, pool, first_step)) for pool in pools)
    return Lanes(title, lanes, timeline.end_s, " ".join(_about(timeline, idle)))


def _bars(timeline: Timeline, idle: tuple[Bubble, ...], pool: str, first_step: int) -> tuple[Bar, ...]:
    tasks = (
        _bar(timeline, each, first_step) for each in timeline.events if each.pool == pool and each.end_s > each.start_s
    )
    waits = (_idle(timeline, each, first_step) for each in idle if each.pool == pool)
    return tuple(sorted([*tasks, *waits], key=lambda bar: bar.start_s))


def _bar(timeline: Timeline, event: Event, first_step: int) -> Bar:
    task, run = timeline.schedule.by_name[event.task], timeline.by_job[event.task, event.step]
    lasts = f"{event.task} of step {first_step + event.step} takes {show_s(event.end_s - event.start_s)}"
    where = f" on {listed(task.pools)}" if len(task.pools) > 1 else ""
    after = (
        f"; it starts once {run.freed_by[0]} of step {first_step + run.freed_by[1]} has ended" if run.freed_by else ""
    )
    about = f"{lasts}{where}, from {show_s(event.start_s)} on{after}."
    return Bar(event.start_s, event.end_s, event.task, task.kind, about, first_step + event.step)


def _idle(timeline: Timeline, bubble: Bubble, first_step: int) -> Bar:
    about = f"{bubble.pool} is idle for {show_s(bubble.seconds)}, {bubble.share:.1%} of the time: {bubble.why}."
    return Bar(bubble.start_s, bubble.end_s, bubble.why, "idle", about, first_step + _step_at(timeline, bubble))


def _step_at(timeline: Timeline, bubble: Bubble) -> int:
    """Return the step of what a pool does next after a bubble, or of what it did last."""
    own = [event for event in timeline.events if event.pool == bubble.pool]
    after = (event.step for event in own if event.start_s >= bubble.end_s)
    return next(after, own[-1].step if own else 0)


def _about(timeline: Timeline, idle: tuple[Bubble, ...]) -> Iterator[str]:
    """Say how long the steps take, how busy each pool is, and what the longest wait of a pool of devices is for."""
    period_s = timeline.period_s
    apart = f", {show_s(period_s)} from one to the next" if period_s is not None else ""
    yield f"{many(timeline.steps, 'step')} in {show_s(timeline.end_s)}{apart}."
    busy = [f"{pool} is busy {share:.0%} of the time" for pool, share in timeline.busy().items()]
    yield f"{listed(busy)}." if busy else "No pool has work."
    waits = [each for each in idle if each.pool != HOST and each.why != OVER]
    longest = max(waits, key=lambda each: each.seconds, default=None)
    if longest is not None:
        yield f"The longest idle time is of {longest.pool}: {show_s(longest.seconds)}, {longest.why}."
