"""The tasks of a step as rows of a table: transfers and switches too short to matter are one row together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flowgraph.cluster.plan import StepForecast, TaskKind, TimedTask

SHORT_SHARE = 1e-3  # of a step
FOLDED: Mapping[TaskKind, str] = {"transfer": "short transfers", "offload": "short switches"}


@dataclass(frozen=True)
class Row:
    """One row: its label, the tasks that it is of, and their seconds together; None where one's are not known."""

    label: str
    tasks: tuple[TimedTask, ...]

    @property
    def seconds(self) -> float | None:
        """Return the seconds of its tasks together."""
        known = [each.seconds for each in self.tasks if each.seconds is not None]
        return sum(known) if len(known) == len(self.tasks) else None

    @property
    def pools(self) -> tuple[str, ...]:
        """Return the pools that its tasks occupy; of several tasks none."""
        return self.tasks[0].pools if len(self.tasks) == 1 else ()


def step_rows(step: StepForecast) -> tuple[Row, ...]:
    """Return a row for each task, in their order, and last one for the short tasks of each kind that moves things.

    Short tasks that take nothing together have no row.
    """
    return (*_long(step), *_short(step))


def _long(step: StepForecast) -> Iterator[Row]:
    return (Row(_label(each), (each,)) for each in step.tasks if not _is_short(each, step))


def _short(step: StepForecast) -> Iterator[Row]:
    for kind, label in FOLDED.items():
        own = tuple(each for each in step.tasks if each.kind == kind and _is_short(each, step))
        if any(each.seconds for each in own):
            yield Row(label, own)


def _is_short(task: TimedTask, step: StepForecast) -> bool:
    seconds, period_s = task.seconds, step.period_s
    return task.kind in FOLDED and seconds is not None and period_s is not None and seconds < SHORT_SHARE * period_s


def _label(task: TimedTask) -> str:
    """Name a task; a sync by the role that it brings weights to, not by its pool, which another plan has not."""
    return f"{task.name.partition(' to ')[0]} to {task.role}" if task.kind == "sync" and task.role else task.name
