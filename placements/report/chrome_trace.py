"""A timeline as a Chrome trace: JSON that Perfetto and chrome://tracing open, one lane for each pool.

Source: Trace Event Format, Google, 2016: complete events (`X`) and metadata (`M`), times in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from placements.step.idle_time import idle_spans
from placements.step.timeline import Timeline


def chrome_trace(timeline: Timeline, name: str = "predicted", *, process: int = 1) -> dict[str, Any]:
    """Return a timeline as a Chrome trace, JSON data, in which it is one process called `name`.

    Tasks without a pool have a lane of their own; each idle span is an event of the category `bubble`, named by what
    its pool waits for.
    """
    used = {pool for task in timeline.schedule.tasks for pool in task.pools or ("",)}
    lanes = {pool: place for place, pool in enumerate((*timeline.schedule.pools, ""), start=1)}
    names = [("process_name", 0, name)]
    names += [("thread_name", lane, pool or "no pool") for pool, lane in lanes.items() if pool in used]
    events: list[dict[str, Any]] = [
        {"name": what, "ph": "M", "pid": process, "tid": lane, "args": {"name": text}} for what, lane, text in names
    ]
    for pool, event in (*_runs(timeline), *_idle(timeline)):
        events.append({**event, "ph": "X", "pid": process, "tid": lanes[pool]})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _runs(timeline: Timeline) -> Iterator[tuple[str, dict[str, Any]]]:
    for run in timeline.runs:
        task = timeline.schedule.by_name[run.task]
        args: dict[str, Any] = {"step": run.step, "seconds": run.end_s - run.start_s, "pools": list(task.pools)}
        if run.freed_by is not None:
            args["freed by"] = f"{run.freed_by[0]}, step {run.freed_by[1]}"
        for pool in task.pools or ("",):
            yield pool, {"name": run.task, "cat": task.kind, **_span(run.start_s, run.end_s), "args": args}


def _idle(timeline: Timeline) -> Iterator[tuple[str, dict[str, Any]]]:
    for idle in idle_spans(timeline):
        args = {"seconds": idle.seconds, "share": idle.share}
        span = _span(idle.start_s, idle.end_s)
        yield idle.pool, {"name": idle.why, "cat": "bubble", **span, "args": args}


def _span(start_s: float, end_s: float) -> dict[str, float]:
    """Return start and duration in microseconds, to the nanosecond."""
    return {"ts": round(1e6 * start_s, 3), "dur": round(1e6 * (end_s - start_s), 3)}
