"""Steps of a plan, simulated: when each task runs and what each pool waits for, as text, as a trace and as a chart."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flowgraph.diagrams.charts import Lanes
from flowgraph.plan import Step
from placements.report.chrome_trace import chrome_trace
from placements.report.timeline import timeline_text
from placements.report.timeline_chart import timeline_chart
from placements.step.idle_time import IdleSpan, idle_spans
from placements.step.step_forecast import schedule_of
from placements.step.timeline import Timeline, TimelineEvent, play


@dataclass(frozen=True)
class Simulation:
    """The timeline of some steps of a plan."""

    timeline: Timeline

    @property
    def period_s(self) -> float | None:
        """Return the seconds from the last step but one to the last; None for one step."""
        return self.timeline.period_s

    @property
    def events(self) -> tuple[TimelineEvent, ...]:
        """Return each step of each task on each pool."""
        return tuple(self.timeline.events)

    @cached_property
    def idle(self) -> tuple[IdleSpan, ...]:
        """Return the spans in which a pool is idle, each with the task that it waits for."""
        return tuple(idle_spans(self.timeline))

    def text(self, columns: int) -> str:
        """Draw a lane for each pool within `columns`, and list what it waits for."""
        return timeline_text(self.timeline, columns)

    def trace(self, name: str) -> dict[str, Any]:
        """Return a Chrome trace, as one process of this name."""
        return chrome_trace(self.timeline, name)

    def chart(self, title: str, *, first_step: int = 0) -> Lanes:
        """Return the lanes of a chart; the first step has the number `first_step`."""
        return timeline_chart(self.timeline, title, first_step=first_step)


def simulate(step: Step, steps: int) -> Simulation:
    """Simulate the first `steps` steps of a plan whose forecast step this is; all its seconds must be known."""
    return Simulation(play(schedule_of(step.tasks, step.waits), steps=steps))
