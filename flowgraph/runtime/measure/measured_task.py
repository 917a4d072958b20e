"""What one task took on one rank: seconds, bytes in and out, and the most memory in use; measured where it runs.

Not here: a step made of many (`measured_step`).
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
from flowgraph.lowering.task_names import kind_of, pool_of, task_name

DeviceKind = Literal["cpu", "cuda"]

# Linux: 5 makes the peak start anew from what is resident now; see proc_pid_clear_refs(5) and proc_pid_status(5).
CLEAR_REFS, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


@dataclass(frozen=True)
class MeasuredTask:
    """One task on one rank of a pool.

    `begin_s` is in seconds since the epoch, so ranks of several machines compare as far as their clocks agree.
    `bytes_read` and `bytes_given` are of rows or weights. `peak_bytes` is the most that was in use during the task: of
    a CPU the memory of the whole process, of a GPU what torch had allocated and what the process held before; what an
    engine's own processes hold is not in it. `process_bytes` is what the process held before it had any weights.
    `parts` split the seconds, the rest of them being what is around.
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
        """Give when it ended, in seconds since the epoch."""
        return self.begin_s + self.seconds


@dataclass(eq=False)
class Meter:
    """Takes down what a task reads and gives while it runs; `measured` is there once it has ended."""

    measured: MeasuredTask
    device: DeviceKind
    peak: Callable[[], int]
    peak_bytes: int = 0
    read_bytes: int = 0
    given_bytes: int = 0
    parts: dict[str, float] = field(default_factory=dict[str, float])

    def reads(self, *items: Any) -> None:
        """Count rows or weights that the task was given."""
        self.read_bytes += bytes_of(items)

    def gives(self, *items: Any) -> None:
        """Count rows or weights that the task hands on."""
        self.given_bytes += bytes_of(items)

    def took(self, part: str, seconds: float) -> None:
        """Say which seconds of the task were this part of it."""
        self.parts[part] = self.parts.get(part, 0.0) + seconds

    def see_peak(self) -> None:
        """Keep the peak until now, before something starts it anew."""
        self.peak_bytes = max(self.peak_bytes, self.peak())

    def finish(self, seconds: float) -> None:
        """Fill in what was measured."""
        self.see_peak()
        self.measured = replace(
            self.measured,
            seconds=seconds,
            bytes_read=self.read_bytes,
            bytes_given=self.given_bytes,
            peak_bytes=self.peak_bytes,
            process_bytes=_process_bytes.get(self.device, 0),
            parts=tuple(self.parts.items()),
        )


_under_way = list[Meter]()  # of this process: one that begins within another starts the peak anew for both
_process_bytes = dict[str, int]()  # of this process, by kind of device


@contextmanager
def measuring(about: MeasuredTask, device: DeviceKind = "cpu") -> Generator[Meter]:
    """Measure a task that runs in this process, named as in `about_task`; takes less than 0.2 ms.

    A task that fails is not measured. On a GPU the task has ended once the device has.
    """
    for outer in _under_way:
        outer.see_peak()
    meter = Meter(replace(about, begin_s=time.time()), device, begin_peak(device))
    _under_way.append(meter)
    start = time.perf_counter()
    try:
        yield meter
        if device == "cuda":
            import torch

            torch.cuda.synchronize()
        meter.finish(time.perf_counter() - start)
    finally:
        _under_way[:] = [each for each in _under_way if each is not meter]


@dataclass(eq=False)
class Measures:
    """Takes down what one rank's process did, task by task, until it is asked for."""

    rank: int = 0
    device: DeviceKind = "cpu"
    _told: list[MeasuredTask] = field(default_factory=list[MeasuredTask])

    @contextmanager
    def of(self, task: Task, graph: Graph | None = None, pool: str = "") -> Generator[Meter]:
        """Measure a task, named as `about_task` does, and keep what was measured."""
        with measuring(about_task(task, graph, self.rank, pool), self.device) as meter:
            yield meter
        self._told.append(meter.measured)

    def drained(self) -> list[MeasuredTask]:
        """Give what was measured since the last time."""
        told, self._told = self._told, []
        return told


def note_process(device: DeviceKind = "cpu") -> None:
    """Take down what this process holds now, before it has any weights: the libraries, a GPU's context."""
    _process_bytes[device] = _device_used() if device == "cuda" else resident_bytes()


def about_task(task: Task, graph: Graph | None = None, rank: int = 0, pool: str = "") -> MeasuredTask:
    """Name a task for `measuring`, a run with its graph; `pool` where not the task's own, as where a sync is given."""
    role = task.role if isinstance(task, Run) else ""
    return MeasuredTask(task_name(task), kind_of(task, graph), role, pool or pool_of(task), rank)


def bytes_of(item: Any) -> int:
    """Give the bytes of Arrow tables, tensors, arrays, or whatever holds some; what has no size counts as none.

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
    """Start the peak anew from what is in use now, and give what reads it.

    Where a system does not let it start anew, what is resident now is given in its place: at least that was in use.
    """
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return _allocated_bytes
    try:
        CLEAR_REFS.write_bytes(b"5")
    except OSError:  # no such file on macOS, and some containers forbid it
        return resident_bytes
    return _high_water_bytes


def resident_bytes() -> int:
    """Give the memory of this process that is resident now."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def _high_water_bytes() -> int:
    lines = STATUS.read_bytes().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(b"VmHWM:"))


def _allocated_bytes() -> int:
    import torch

    return _process_bytes.get("cuda", 0) + int(torch.cuda.max_memory_allocated())


def _device_used() -> int:
    """Give what is taken of the current GPU beside torch's own reserve: contexts, and what other processes hold."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return int(total - free - torch.cuda.memory_reserved())
