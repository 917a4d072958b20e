"""The tasks of a step as rows of a table; short transfers, short switches, and chunks of a node, share one row each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from flowgraph.cluster.plan import StepForecast, TaskKind, TimedTask

SHORT_SHARE = 1e-3  # of a step
CHUNK = re.compile(r"(.+) \d+/\d+")  # a task of one chunk, by its name in the program
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
        """Return the pools of the row's tasks; () if they are on different ones."""
        return self.tasks[0].pools if len({task.pools for task in self.tasks}) == 1 else ()


def without_chunk(name: str) -> str:
    """Return the name of a task, with `, in chunks` in place of the number of its chunk if it has one.

    >>> without_chunk("ref.logprobs 3/8"), without_chunk("ref.logprobs")
    ('ref.logprobs, in chunks', 'ref.logprobs')
    """
    chunk = CHUNK.fullmatch(name)
    return f"{chunk[1]}, in chunks" if chunk else name


def task_rows(step: StepForecast) -> tuple[TaskRow, ...]:
    """Return a row for each task in order, then one row for all short transfers, and one for all short switches.

    The tasks of a node's chunks share the row of the first of them. A transfer or switch is short if it takes less than
    a thousandth of a step; none is if the step's seconds are not known. Short tasks whose seconds sum to zero have no
    row. A sync is labelled with the role that gets its weights.
    """
    rows = dict[str, list[TimedTask]]()
    short: dict[TaskKind, list[TimedTask]] = {kind: [] for kind in FOLDED}
    limit_s = SHORT_SHARE * (step.period_s or 0.0)
    for task in step.tasks:
        if task.kind in FOLDED and task.seconds is not None and task.seconds < limit_s:
            short[task.kind].append(task)
            continue
        # A sync is named by the role that it brings weights to: its pool may have another name in another plan.
        sync = task.kind == "sync" and task.role
        label = f"{task.name.partition(' to ')[0]} to {task.role}" if sync else task.name
        rows.setdefault(without_chunk(label), []).append(task)
    rows |= {FOLDED[kind]: tasks for kind, tasks in short.items() if any(task.seconds for task in tasks)}
    return tuple(TaskRow(label, tuple(tasks)) for label, tasks in rows.items())
