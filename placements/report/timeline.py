"""A timeline as text for a terminal: a lane for each pool, and beneath how busy it is and what it waits for."""

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

    A run too short for its label has as much of it as there is room for, and one of less than a column takes one, as
    long as there is room for all and it is not DRAWN_SHARE of a step. Of more steps than there is room for, only why
    pools are idle is told. The host comes last.
    """
    steps = f"{many(timeline.steps, 'step')} in {timeline.end_s:,.1f} s"
    period = "" if timeline.period_s is None else f", {timeline.period_s:,.1f} s from step to step"
    margin = max((len(pool) for pool in timeline.schedule.pools), default=0)
    width = max(columns - margin - 1, 10)
    lines = [steps + period]
    if timeline.steps * STEP_COLUMNS > width:
        lines.append(f"too many to draw in {columns} columns, which have room for {width // STEP_COLUMNS}")
    else:
        lines += [
            f"{pool.ljust(margin)} {_lane(timeline, pool, width)}" for pool in _host_last(timeline.schedule.pools)
        ]
        lines.append(" " * margin + f" {_scale(timeline.end_s, width)}")
    lines += _idle(timeline)
    return "\n".join(line.rstrip() for line in lines)


def _host_last(pools: tuple[str, ...]) -> list[str]:
    return sorted(pools, key=lambda pool: pool == HOST)


def _lane(timeline: Timeline, pool: str, width: int) -> str:
    columns_per_s = width / timeline.end_s if timeline.end_s else 0.0
    drawn, last = [IDLE] * width, 0
    least_s = DRAWN_SHARE * timeline.end_s / timeline.steps
    for event in (each for each in timeline.events if each.pool == pool and each.end_s - each.start_s > least_s):
        start = round(event.start_s * columns_per_s)
        start += start < last  # give way to a run too short for a column, by one, so that the scale holds
        last = max(start + 1, round(event.end_s * columns_per_s))
        drawn[start:last] = _bar(event, last - start)
    return "".join(drawn[:width])


def _bar(event: TimelineEvent, width: int) -> str:
    """Label a run of so many columns: with its step if there is room, else with what fits of its task's last name."""
    name, space, part = event.task.partition(" ")
    short = name.rsplit("/", 1)[-1] + space + part
    label = f"{short} {event.step}"
    if width == 1:
        return short[:1]
    return (label if len(label) < width else short)[: width - 1].ljust(width - 1, "─") + "│"


def _scale(end_s: float, width: int) -> str:
    """Write the first, the last and, if there is room, the middle second under their columns."""
    middle, last = f"{end_s / 2:,.1f}" if width > 40 else "", f"{end_s:,.1f} s"
    line = "0".ljust(max(2, width // 2 - len(middle) // 2)) + middle
    return line.ljust(max(len(line) + 1, width - len(last))) + last


def _idle(timeline: Timeline) -> Iterator[str]:
    found = causes(idle_spans(timeline))
    busy = timeline.busy()
    width = max((len(pool) for pool in busy), default=0)
    for pool in _host_last(tuple(busy)):
        yield f"{pool.ljust(width)}  busy {busy[pool]:6.1%}"
        for (of, why), (seconds, part, count) in found.items():
            if of == pool and part > DRAWN_SHARE:
                times = f", {count} times" if count > 1 else ""
                yield f"{' ' * width}  idle {part:6.1%}  {seconds:10,.1f} s  {why}{times}"
