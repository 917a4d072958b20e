"""Measured steps as events of a Chrome trace: a process for each pool, a thread for each of its ranks.

Source: Trace Event Format, Google, 2016: complete events (`X`), metadata (`M`), counters (`C`) and flows (`s`, `f`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flowgraph.lowering.program import HOST
from flowgraph.runtime.measure.measured_step import MeasuredStep
from flowgraph.runtime.measure.measured_task import MeasuredTask

Event = dict[str, Any]


def measured_events(steps: Sequence[MeasuredStep], first_process: int = 1) -> list[Event]:
    """Return the events of these steps, which begin at 0 with the first; processes are numbered from `first_process`.

    Arrows lead from where weights are sent to where they are loaded, and a counter shows the peak of each rank.
    """
    tasks = [(step.step, task) for step in steps for task in step.tasks]
    pools = sorted({task.pool for _, task in tasks}, key=lambda pool: (pool == HOST, pool))
    processes = {pool: process for process, pool in enumerate(pools, start=first_process)}
    start_s = min((task.begin_s for _, task in tasks), default=0.0)

    def begin(task: MeasuredTask) -> Event:
        return {"ts": round(1e6 * (task.begin_s - start_s), 3), "pid": processes[task.pool], "tid": task.rank + 1}

    events = list[Event]()
    for pool, process in processes.items():
        args: Event = {"name": f"{pool}, measured"}
        events.append({"name": "process_name", "ph": "M", "pid": process, "tid": 0, "args": args})
        for rank in sorted({task.rank for _, task in tasks if task.pool == pool}):
            args = {"name": f"rank {rank}"}
            events.append({"name": "thread_name", "ph": "M", "pid": process, "tid": rank + 1, "args": args})
    for number, task in tasks:
        args = {"step": number, "role": task.role, "seconds": task.seconds, "bytes read": task.bytes_read}
        args |= {"bytes given": task.bytes_given, "peak bytes": task.peak_bytes, **dict(task.parts)}
        duration = {"dur": round(1e6 * task.seconds, 3)}
        peak = {"name": f"peak of rank {task.rank}", "ph": "C", "args": {"GiB": task.peak_bytes / 2**30}}
        events.append({"name": task.task, "cat": task.kind, "ph": "X", **begin(task), **duration, "args": args})
        events.append({**peak, **begin(task)})
    for number, (sender, receiver) in enumerate((pair for step in steps for pair in _weights_sent(step)), start=1):
        arrow = {"name": "weights", "cat": "sync", "bp": "e", "id": number}
        events += [{**arrow, "ph": "s", **begin(sender)}, {**arrow, "ph": "f", **begin(receiver)}]
    return events


def _weights_sent(step: MeasuredStep) -> Iterator[tuple[MeasuredTask, MeasuredTask]]:
    """Yield the first rank that sends weights with each rank that loads them in another pool."""
    for name in dict.fromkeys(task.task for task in step.tasks if task.kind == "sync"):
        sender, *ranks = [task for task in step.tasks if task.task == name]
        yield from ((sender, receiver) for receiver in ranks if receiver.pool != sender.pool)
