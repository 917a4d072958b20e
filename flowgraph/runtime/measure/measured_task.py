"""Measure one task on one rank, in the process that runs it: seconds, bytes in and out, and peak memory.

`measured_step` combines the tasks of a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from flowgraph.cluster.plan import TaskKind
from flowgraph.language.graph import Graph
from flowgraph.lowering.program import HOST, Run, Task
from flowgraph.lowering.task_names import task_kind, task_name, task_pool

DeviceKind = Literal["cpu", "cuda"]

# Linux: writing 5 resets the peak to what is resident now; see proc_pid_clear_refs(5) and proc_pid_status(5).
CLEAR_REFS, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


@dataclass(frozen=True)
class MeasuredTask:
    """One task on one rank of a pool, as measured.

    `begin_s` is in seconds since the epoch, so ranks on several machines compare as far as their clocks agree;
    `seconds` is the duration. `bytes_read` and `bytes_given` count rows or weights. `peak_bytes` is the peak memory
    during the task: on a CPU, of the whole process; on a GPU, what torch had allocated plus what the process used
    before. The processes of an inference server are not included. `process_bytes` is the memory that the process used
    before it loaded weights. `parts` splits the seconds by name; the rest is overhead.
    """

    task: str
    kind: TaskKind
    role: str = ""
    pool: str = HOST
    rank: int = 0
    begin_s: float = 0.0
    seconds: float = 0.0
    bytes_read: int = 0
    bytes_given: int = 0
    peak_bytes: int = 0
    process_bytes: int = 0
    parts: tuple[tuple[str, float], ...] = ()

    @property
    def end_s(self) -> float:
        """Return the end of the task, in seconds since the epoch."""
        return self.begin_s + self.seconds


@dataclass(eq=False)
class Meter:
    """Counts the bytes that a task reads and returns while it runs; `measured` is complete after the task has ended."""

    measured: MeasuredTask
    peak: Callable[[], int]
    peak_bytes: int = 0
    read_bytes: int = 0
    given_bytes: int = 0

    def reads(self, *items: Any) -> None:
        """Add the bytes of rows or weights that the task reads, as `bytes_of` counts them."""
        self.read_bytes += bytes_of(items)

    def gives(self, *items: Any) -> None:
        """Add the bytes of rows or weights that the task returns, as `bytes_of` counts them."""
        self.given_bytes += bytes_of(items)

    def see_peak(self) -> None:
        """Update `peak_bytes` with the peak so far; call it before the system's peak is reset."""
        self.peak_bytes = max(self.peak_bytes, self.peak())


_active = list[Meter]()  # of this process: one that begins within another resets the peak for both
_process_bytes = dict[str, int]()  # of this process, by kind of device


@contextmanager
def measuring(about: MeasuredTask, device: DeviceKind = "cpu") -> Generator[Meter]:
    """Measure a task that runs within this block, and yield a `Meter` that counts the task's bytes.

    `about` has the name, kind, role, pool and rank of the task; see `about_task`. After the block, `Meter.measured` is
    complete; if the block raises, it is not. On a GPU, the block ends when the device has finished its work.
    """
    for outer in _active:
        outer.see_peak()
    meter = Meter(replace(about, begin_s=time.time()), begin_peak(device))
    _active.append(meter)
    start = time.perf_counter()
    try:
        yield meter
        if device == "cuda":
            import torch

            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        meter.see_peak()
        meter.measured = replace(
            meter.measured,
            seconds=seconds,
            bytes_read=meter.read_bytes,
            bytes_given=meter.given_bytes,
            peak_bytes=meter.peak_bytes,
            process_bytes=_process_bytes.get(device, 0),
        )
    finally:
        _active.remove(meter)


@dataclass(eq=False)
class Measures:
    """Collects the measurements of one rank's process."""

    rank: int = 0
    device: DeviceKind = "cpu"
    _tasks: list[MeasuredTask] = field(default_factory=list[MeasuredTask])

    @contextmanager
    def of(self, task: Task, graph: Graph | None = None, pool: str = "") -> Generator[Meter]:
        """Measure a task in this block, and store it unless the block raises; `graph` and `pool`: see `about_task`."""
        with measuring(about_task(task, graph, self.rank, pool), self.device) as meter:
            yield meter
        self._tasks.append(meter.measured)

    def split(self, task: Run, ends_s: Mapping[int, float]) -> None:
        """Replace the last measurement, of a task that handed out chunks, by one for each chunk.

        Nothing is done for a task without chunks, or one that reads them. `ends_s` has the time at which each chunk had
        finished, in seconds since the epoch. A chunk that it lacks took no time, except that the last lasts until the
        end of the task. The first chunk has the bytes of the whole task and the others none, and all have the peak
        memory of the whole.
        """
        if task.chunk is None or not task.hands_out:
            return
        measured, begin_s = self._tasks.pop(), 0.0
        for index in range(task.chunk.of):
            begin_s = max(begin_s, measured.begin_s)
            last = index == task.chunk.of - 1
            end_s = measured.end_s if last else min(measured.end_s, max(begin_s, ends_s.get(index, begin_s)))
            name = task_name(replace(task, chunk=replace(task.chunk, index=index)))
            part = replace(measured, task=name, begin_s=begin_s, seconds=max(0.0, end_s - begin_s))
            self._tasks.append(part if not index else replace(part, bytes_read=0, bytes_given=0))
            begin_s = end_s

    def drained(self) -> list[MeasuredTask]:
        """Return the measurements since the last call, in the order in which the tasks ended."""
        tasks, self._tasks = self._tasks, []
        return tasks


def note_process(device: DeviceKind = "cpu") -> None:
    """Store the memory that this process uses now, in bytes, for later measurements; call it before weights are loaded.

    On a CPU, this is the memory of libraries; on a GPU, that of the device's context and of other processes.
    """
    if device == "cuda":
        import torch

        free, total = torch.cuda.mem_get_info()
        # Besides torch's own reserve: contexts, and the memory of other processes.
        _process_bytes[device] = int(total - free - torch.cuda.memory_reserved())
    else:
        _process_bytes[device] = resident_bytes()


def about_task(task: Task, graph: Graph | None = None, rank: int = 0, pool: str = "") -> MeasuredTask:
    """Return a MeasuredTask with only the name, kind, role, pool and rank of a task, as `measuring` needs it.

    `graph` is the graph of the program; without it, every run of nodes is of the kind "host". `pool` replaces the pool
    of the task, for a weight sync that is measured at its source.
    """
    role = task.role if isinstance(task, Run) else ""
    return MeasuredTask(task_name(task), task_kind(task, graph), role, pool or task_pool(task), rank)


def bytes_of(item: Any) -> int:
    """Return the bytes of Arrow tables, tensors, arrays and bytes objects, also inside containers; 0 for anything else.

    >>> bytes_of([b"abc", {"weight": b"12"}, None])
    5
    """
    if isinstance(item, Mapping):
        return bytes_of(tuple(item.values()))
    if isinstance(item, bytes | bytearray | memoryview):
        return len(item)
    if isinstance(size := getattr(item, "nbytes", None), int):
        return size
    return sum(map(bytes_of, item)) if isinstance(item, Sequence) and not isinstance(item, str) else 0


def begin_peak(device: DeviceKind = "cpu") -> Callable[[], int]:
    """Reset this process's peak memory to the memory in use now, and return a function that reads the peak in bytes.

    On a GPU, this is the peak of the device's memory. If the system cannot reset the peak, the function returns the
    resident memory at the time of its call, a lower bound.
    """
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return lambda: _process_bytes.get("cuda", 0) + int(torch.cuda.max_memory_allocated())
    try:
        CLEAR_REFS.write_bytes(b"5")
    except OSError:  # no such file on macOS, and some containers forbid it
        return resident_bytes
    return lambda: next(
        1024 * int(line.split()[1]) for line in STATUS.read_bytes().splitlines() if line.startswith(b"VmHWM:")
    )


def resident_bytes() -> int:
    """Return the resident memory of this process, in bytes."""
    import psutil

    return int(psutil.Process().memory_info().rss)
