"""Measured steps as events of a Chrome trace: a process for each pool, a thread for each of its ranks.

Source: Trace Event Format, Google, 2016: complete events (`X`), metadata (`M`), counters (`C`) and flows (`s`, `f`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from flowgraph.lowering.program import HOST
from flowgraph.runtime.measure.measured_step import MeasuredStep
from flowgraph.runtime.measure.measured_task import MeasuredTask

Event = dict[str, Any]


def measured_events(steps: Sequence[MeasuredStep], first_process: int = 1) -> list[Event]:
    """Give the events of these steps, which begin at 0 with the first; processes are numbered from `first_process`.

    An arrow goes from where weights are given to where they are taken, and a counter shows the peak of each rank.
    """
    tasks = [(step.step, task) for step in steps for task in step.tasks]
    pools = sorted({task.pool for _, task in tasks}, key=lambda pool: (pool == HOST, pool))
    processes = {pool: place for place, pool in enumerate(pools, start=first_process)}
    start_s = min((task.begin_s for _, task in tasks), default=0.0)
    events = list(_names(processes, [task for _, task in tasks]))
    for number, task in tasks:
        events += _task(number, task, processes[task.pool], start_s)
    arrows = count(1)
    for step in steps:
        events += _arrows(step, processes, start_s, arrows)
    return events


def _names(processes: dict[str, int], tasks: Sequence[MeasuredTask]) -> Iterator[Event]:
    for pool, process in processes.items():
        yield {"name": "process_name", "ph": "M", "pid": process, "tid": 0, "args": {"name": f"{pool}, measured"}}
        for rank in sorted({task.rank for task in tasks if task.pool == pool}):
            name = {"name": f"rank {rank}"}
            yield {"name": "thread_name", "ph": "M", "pid": process, "tid": rank + 1, "args": name}


def _task(step: int, task: MeasuredTask, process: int, start_s: float) -> Iterator[Event]:
    at, lasts = round(1e6 * (task.begin_s - start_s), 3), round(1e6 * task.seconds, 3)
    args: Event = {"step": step, "role": task.role, "seconds": task.seconds, "bytes read": task.bytes_read}
    args |= {"bytes given": task.bytes_given, "peak bytes": task.peak_bytes, **dict(task.parts)}
    place = {"pid": process, "tid": task.rank + 1}
    yield {"name": task.task, "cat": task.kind, "ph": "X", "ts": at, "dur": lasts, **place, "args": args}
    peak = {"name": f"peak of rank {task.rank}", "ph": "C", "args": {"GiB": task.peak_bytes / 2**30}}
    yield {**peak, "ts": at, **place}


def _arrows(step: MeasuredStep, processes: dict[str, int], start_s: float, numbers: Iterator[int]) -> Iterator[Event]:
    """Tie the first rank that gives weights to each that takes them, where these are two pools."""
    for name in dict.fromkeys(task.task for task in step.tasks if task.kind == "sync"):
        gives, *others = [task for task in step.tasks if task.task == name]
        for takes in (each for each in others if each.pool != gives.pool):
            number = next(numbers)
            for end, task in (("s", gives), ("f", takes)):
                at = {"ts": round(1e6 * (task.begin_s - start_s), 3), "pid": processes[task.pool], "tid": task.rank + 1}
                yield {"name": "weights", "cat": "sync", "ph": end, "bp": "e", "id": number, **at}
