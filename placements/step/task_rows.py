"""The tasks of a step as rows of a table; short transfers, and short switches, share one row each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flowgraph.cluster.plan import StepForecast, TaskKind, TimedTask

SHORT_SHARE = 1e-3  # of a step
FOLDED: Mapping[TaskKind, str] = {"transfer": "short transfers", "offload": "short switches"}


@dataclass(frozen=True)
class TaskRow:
    """One row of a table: a task, or the short tasks of one kind."""

    label: str
    tasks: tuple[TimedTask, ...]

    @property
    def seconds(self) -> float | None:
        """Return the sum of the seconds of the row's tasks; None if the seconds of any task are unknown."""
        seconds = [task.seconds for task in self.tasks if task.seconds is not None]
        return sum(seconds) if len(seconds) == len(self.tasks) else None

    @property
    def pools(self) -> tuple[str, ...]:
        """Return the pools of the row's only task; () for several tasks."""
        return self.tasks[0].pools if len(self.tasks) == 1 else ()


def task_rows(step: StepForecast) -> tuple[TaskRow, ...]:
    """Return a row for each task in order, then one row for all short transfers, and one for all short switches.

    A transfer or switch is short if it takes less than a thousandth of a step. Short tasks whose seconds sum to zero
    have no row. A sync is labelled with the role that gets its weights.
    """
    rows = list[TaskRow]()
    short: dict[TaskKind, list[TimedTask]] = {kind: [] for kind in FOLDED}
    limit_s = SHORT_SHARE * (step.period_s or 0.0)
    for task in step.tasks:
        if task.kind in FOLDED and task.seconds is not None and task.seconds < limit_s:
            short[task.kind].append(task)
            continue
        # A sync is named by the role that it brings weights to: its pool may have another name in another plan.
        sync = task.kind == "sync" and task.role
        rows.append(TaskRow(f"{task.name.partition(' to ')[0]} to {task.role}" if sync else task.name, (task,)))
    rows += [
        TaskRow(FOLDED[kind], tuple(tasks)) for kind, tasks in short.items() if any(task.seconds for task in tasks)
    ]
    return tuple(rows)
