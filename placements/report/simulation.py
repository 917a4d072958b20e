"""The simulated steps of a plan as text, as a Chrome trace and as a chart: when tasks run, and what pools wait for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flowgraph.cluster.plan import StepForecast
from flowgraph.diagrams.model.charts import Bar, Lane, Lanes
from flowgraph.diagrams.model.quantities import listed, many, show_s
from placements.hardware.engine_constants import HOST
from placements.step.idle_time import OVER, IdleSpan, causes, idle_spans
from placements.step.step_forecast import schedule_of
from placements.step.timeline import Timeline, TimelineEvent, timeline_of

IDLE = "·"
STEP_COLUMNS = 4  # the fewest in which a step can be told from the next
DRAWN_SHARE = 1e-3  # of a step: a shorter run is not drawn


def simulate(step: StepForecast, steps: int) -> Simulation:
    """Simulate the first `steps` steps of a plan from the forecast of its step, and return when each task runs.

    Raises ValueError if the seconds of a task are unknown, negative or infinite, if `steps` is below 1, or if tasks of
    a step wait for each other in a cycle; PlanError for duplicate tasks; UnknownNameError for waits of unknown tasks.
    """
    return Simulation(timeline_of(schedule_of(step.tasks, step.waits), steps=steps))


@dataclass(frozen=True)
class Simulation:
    """The simulated timeline of some steps of a plan."""

    timeline: Timeline

    @property
    def period_s(self) -> float | None:
        """Return the seconds from one step to the next in the last simulated steps; None for a single step."""
        return self.timeline.period_s

    @property
    def events(self) -> tuple[TimelineEvent, ...]:
        """Return one event for each run of a task on a pool, pool by pool, sorted by start."""
        return self.timeline.events

    @cached_property
    def idle(self) -> tuple[IdleSpan, ...]:
        """Return the spans of time in which a pool is idle, each with the task that the pool waits for ("" if none)."""
        return idle_spans(self.timeline)

    @cached_property
    def _pools(self) -> list[str]:
        return sorted(self.timeline.schedule.pools, key=lambda pool: pool == HOST)

    # ---------------------------------------------------------------------------------------- text

    def text(self, columns: int) -> str:
        """Return a text with a lane to scale for each pool, at most `columns` wide, and why each pool is idle.

        A lane has at least 10 columns besides the pool's name, even if `columns` is less; lines with reasons are not
        broken. `│` marks the end of a run and dots mark idle time. A label is cut to the width of its run. A run
        shorter than one column takes one while there is space; a run shorter than a thousandth of a step is not drawn.
        If the steps need more columns, lanes are left out; so are reasons for less than a thousandth of the time. The
        host's lane is last.
        """
        timeline, margin = self.timeline, max(map(len, self._pools), default=0)
        width = max(columns - margin - 1, 10)
        period = "" if timeline.period_s is None else f", {timeline.period_s:,.1f} s from step to step"
        lines = [f"{many(timeline.steps, 'step')} in {timeline.end_s:,.1f} s{period}"]
        if timeline.steps * STEP_COLUMNS > width:
            lines.append(f"too many to draw in {columns} columns, which have room for {width // STEP_COLUMNS}")
        else:
            lines += [f"{pool.ljust(margin)} {self._lane(pool, width)}" for pool in self._pools]
            # The first, the last and, if there is room, the middle second under their columns.
            middle, last = f"{timeline.end_s / 2:,.1f}" if width > 40 else "", f"{timeline.end_s:,.1f} s"
            scale = "0".ljust(max(2, width // 2 - len(middle) // 2)) + middle
            lines.append(" " * margin + f" {scale.ljust(max(len(scale) + 1, width - len(last))) + last}")
        reasons, busy = causes(self.idle), timeline.busy()
        for pool in self._pools:
            lines.append(f"{pool.ljust(margin)}  busy {busy[pool]:6.1%}")
            for (idle_pool, why), (seconds, share, count) in reasons.items():
                if idle_pool == pool and share > DRAWN_SHARE:
                    times = f", {count} times" if count > 1 else ""
                    lines.append(f"{' ' * margin}  idle {share:6.1%}  {seconds:10,.1f} s  {why}{times}")
        return "\n".join(line.rstrip() for line in lines)

    def _lane(self, pool: str, width: int) -> str:
        end_s = self.timeline.end_s
        columns_per_s = width / end_s if end_s else 0.0
        shortest_s = DRAWN_SHARE * end_s / self.timeline.steps
        cells, last = [IDLE] * width, 0
        for event in self.events:
            if event.pool != pool or event.end_s - event.start_s <= shortest_s:
                continue
            start = round(event.start_s * columns_per_s)
            start += start < last  # give way to a run too short for a column, by one, so that the scale holds
            last = max(start + 1, round(event.end_s * columns_per_s))
            # Labelled with its step if that fits, else with the start of its name.
            room, (name, space, part) = last - start - 1, event.task.partition(" ")
            short = name.rsplit("/", 1)[-1] + space + part
            label = f"{short} {event.step}"
            text = (label if len(label) <= room else short)[:room].ljust(room, "─") + "│"
            cells[start:last] = text if room else short[:1]
        return "".join(cells[:width])

    # ---------------------------------------------------------------------------------------- a trace

    def trace(self, name: str) -> dict[str, Any]:
        """Return a Chrome trace (for Perfetto or chrome://tracing) with one process called `name`; times are in µs.

        Each pool has a lane, and tasks without a pool share a separate lane. Each idle span is an event of the category
        `bubble`, named by what its pool waits for.

        Source: Trace Event Format, Google, 2016: complete events (`X`) and metadata (`M`), times in microseconds.
        """
        schedule = self.timeline.schedule
        used = {pool for task in schedule.tasks for pool in task.pools or ("",)}
        lanes = {pool: place for place, pool in enumerate((*schedule.pools, ""), start=1)}
        names = [("process_name", 0, name)]
        names += [("thread_name", lane, pool or "no pool") for pool, lane in lanes.items() if pool in used]
        events: list[dict[str, Any]] = [
            {"name": what, "ph": "M", "pid": 1, "tid": lane, "args": {"name": text}} for what, lane, text in names
        ]
        for run in self.timeline.runs:
            task = schedule.by_name[run.task]
            args: dict[str, Any] = {"step": run.step, "seconds": run.end_s - run.start_s, "pools": list(task.pools)}
            if run.freed_by is not None:
                args["freed by"] = f"{run.freed_by[0]}, step {run.freed_by[1]}"
            span = _trace_span(run.start_s, run.end_s)
            for pool in task.pools or ("",):
                place = {"ph": "X", "pid": 1, "tid": lanes[pool]}
                events.append({"name": run.task, "cat": task.kind, **span, "args": args, **place})
        for idle in self.idle:
            span, args = _trace_span(idle.start_s, idle.end_s), {"seconds": idle.seconds, "share": idle.share}
            place = {"ph": "X", "pid": 1, "tid": lanes[idle.pool]}
            events.append({"name": idle.why, "cat": "bubble", **span, "args": args, **place})
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    # ---------------------------------------------------------------------------------------- a chart

    def chart(self, title: str, *, first_step: int = 0) -> Lanes:
        """Return a timeline with a lane for each pool, the host's last; tasks without a pool are left out.

        The bars of a lane are sorted by start; a task of zero seconds has none, and idle bars have the reason.
        `first_step` is the number of the first simulated step. `about` has the busy shares and the longest idle time.
        """
        lanes = list[Lane]()
        for pool in self._pools:
            events = [event for event in self.events if event.pool == pool]
            bars = [self._task_bar(event, first_step) for event in events if event.end_s > event.start_s]
            for idle in (span for span in self.idle if span.pool == pool):
                about = f"{pool} is idle for {show_s(idle.seconds)}, {idle.share:.1%} of the time: {idle.why}."
                after = (event.step for event in events if event.start_s >= idle.end_s)
                step = next(after, events[-1].step if events else 0)
                bars.append(Bar(idle.start_s, idle.end_s, idle.why, "idle", about, first_step + step))
            lanes.append(Lane(pool, pool, tuple(sorted(bars, key=lambda bar: bar.start_s))))
        period = f", {show_s(self.period_s)} from one to the next" if self.period_s is not None else ""
        about = f"{many(self.timeline.steps, 'step')} in {show_s(self.timeline.end_s)}{period}."
        busy = [f"{pool} is busy {share:.0%} of the time" for pool, share in self.timeline.busy().items()]
        about += f" {listed(busy)}." if busy else " No pool has work."
        waits = [span for span in self.idle if span.pool != HOST and span.why != OVER]
        longest = max(waits, key=lambda span: span.seconds, default=None)
        if longest is not None:
            about += f" The longest idle time is that of {longest.pool}: {show_s(longest.seconds)}, {longest.why}."
        return Lanes(title, tuple(lanes), self.timeline.end_s, about)

    def _task_bar(self, event: TimelineEvent, first_step: int) -> Bar:
        task, run = self.timeline.schedule.by_name[event.task], self.timeline.by_job[event.task, event.step]
        lasts = f"{event.task} of step {first_step + event.step} takes {show_s(event.end_s - event.start_s)}"
        where = f" on {listed(task.pools)}" if len(task.pools) > 1 else ""
        after = ""
        if run.freed_by is not None:
            name, step = run.freed_by
            after = f"; it starts once {name} of step {first_step + step} has ended"
        about = f"{lasts}{where}, from {show_s(event.start_s)} on{after}."
        return Bar(event.start_s, event.end_s, event.task, task.kind, about, first_step + event.step)


def _trace_span(start_s: float, end_s: float) -> Mapping[str, float]:
    return {"ts": round(1e6 * start_s, 3), "dur": round(1e6 * (end_s - start_s), 3)}
