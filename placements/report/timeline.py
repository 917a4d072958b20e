"""A timeline as text for a terminal: a lane for each pool, then how busy each is and what it waits for."""

from __future__ import annotations

from collections.abc import Iterator

from placements.hardware.engine_constants import HOST
from placements.step.idle_time import causes, idle_spans
from placements.step.timeline import Timeline, TimelineEvent
from placements.workload.batch_partition import many

IDLE = "·"
STEP_COLUMNS = 4  # the fewest in which a step can be told from the next
DRAWN_SHARE = 1e-3  # of a step: a shorter run is not drawn


def timeline_text(timeline: Timeline, columns: int = 100) -> str:
    """Draw each pool's runs to scale, `│` at the end of each and dots where it is idle, then list why.

    A label is cut to its run. A run of less than a column takes one column as long as there is room for all; a run
    shorter than DRAWN_SHARE of a step is not drawn. If there are too many steps to draw, only the reasons for idle time
    are listed. The host comes last.
    """
    pools = sorted(timeline.schedule.pools, key=lambda pool: pool == HOST)
    margin = max(map(len, pools), default=0)
    width = max(columns - margin - 1, 10)
    period = "" if timeline.period_s is None else f", {timeline.period_s:,.1f} s from step to step"
    lines = [f"{many(timeline.steps, 'step')} in {timeline.end_s:,.1f} s{period}"]
    if timeline.steps * STEP_COLUMNS > width:
        lines.append(f"too many to draw in {columns} columns, which have room for {width // STEP_COLUMNS}")
    else:
        lines += [f"{pool.ljust(margin)} {_lane(timeline, pool, width)}" for pool in pools]
        lines.append(" " * margin + f" {_scale(timeline.end_s, width)}")
    lines += _idle(timeline, pools, margin)
    return "\n".join(line.rstrip() for line in lines)


def _lane(timeline: Timeline, pool: str, width: int) -> str:
    columns_per_s = width / timeline.end_s if timeline.end_s else 0.0
    shortest_s = DRAWN_SHARE * timeline.end_s / timeline.steps
    cells, last = [IDLE] * width, 0
    for event in timeline.events:
        if event.pool != pool or event.end_s - event.start_s <= shortest_s:
            continue
        start = round(event.start_s * columns_per_s)
        start += start < last  # give way to a run too short for a column, by one, so that the scale holds
        last = max(start + 1, round(event.end_s * columns_per_s))
        cells[start:last] = _bar(event, last - start)
    return "".join(cells[:width])


def _bar(event: TimelineEvent, width: int) -> str:
    """Return a run in `width` columns: labelled with its step if that fits, else with the start of its name."""
    name, space, part = event.task.partition(" ")
    short = name.rsplit("/", 1)[-1] + space + part
    label = f"{short} {event.step}"
    if width == 1:
        return short[:1]
    return (label if len(label) < width else short)[: width - 1].ljust(width - 1, "─") + "│"


def _scale(end_s: float, width: int) -> str:
    """Return the first, the last and, if there is room, the middle second under their columns."""
    middle, last = f"{end_s / 2:,.1f}" if width > 40 else "", f"{end_s:,.1f} s"
    line = "0".ljust(max(2, width // 2 - len(middle) // 2)) + middle
    return line.ljust(max(len(line) + 1, width - len(last))) + last


def _idle(timeline: Timeline, pools: list[str], margin: int) -> Iterator[str]:
    reasons, busy = causes(idle_spans(timeline)), timeline.busy()
    for pool in pools:
        yield f"{pool.ljust(margin)}  busy {busy[pool]:6.1%}"
        for (idle_pool, why), (seconds, share, count) in reasons.items():
            if idle_pool == pool and share > DRAWN_SHARE:
                times = f", {count} times" if count > 1 else ""
                yield f"{' ' * margin}  idle {share:6.1%}  {seconds:10,.1f} s  {why}{times}"
