"""A timeline as a Chrome trace: JSON that Perfetto and chrome://tracing open, one lane for each pool.

Source: Trace Event Format, Google, 2016: complete events (`X`) and metadata (`M`), times in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from placements.step.idle_time import idle_spans
from placements.step.timeline import Timeline


def chrome_trace(timeline: Timeline, name: str = "predicted", *, process: int = 1) -> dict[str, Any]:
    """Return the trace of a timeline as one process of this name; traces of several are put together event by event.

    Tasks without a pool have a lane of their own; each bubble is an event of the category `bubble`, with what it
    waits for as its name.
    """
    lanes = {pool: place for place, pool in enumerate((*timeline.schedule.pools, ""), start=1)}
    events = [_named("process_name", process, 0, name)]
    used = {pool for task in timeline.schedule.tasks for pool in task.pools or ("",)}
    events += [_named("thread_name", process, lanes[pool], pool or "no pool") for pool in lanes if pool in used]
    for each in (*_runs(timeline), *_bubbles(timeline)):
        events.append({**each, "ph": "X", "pid": process, "tid": lanes[each["tid"]]})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _named(what: str, process: int, lane: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": lane, "args": {"name": name}}


def _runs(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for run in timeline.runs:
        task = timeline.schedule.by_name[run.task]
        args: dict[str, Any] = {"step": run.step, "seconds": run.end_s - run.start_s, "pools": list(task.pools)}
        if run.freed_by is not None:
            args["freed by"] = f"{run.freed_by[0]}, step {run.freed_by[1]}"
        for pool in task.pools or ("",):
            yield {"name": run.task, "cat": task.kind, **_span(run.start_s, run.end_s), "tid": pool, "args": args}


def _bubbles(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for each in idle_spans(timeline):
        args = {"seconds": each.seconds, "share": each.share}
        yield {"name": each.why, "cat": "bubble", **_span(each.start_s, each.end_s), "tid": each.pool, "args": args}


def _span(start_s: float, end_s: float) -> dict[str, float]:
    """Return start and duration in microseconds, to the nanosecond."""
    return {"ts": round(1e6 * start_s, 3), "dur": round(1e6 * (end_s - start_s), 3)}
