"""Watch over what was submitted to Ray: collect results, and end a run whose processes died or do not answer."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from flowgraph.engines.servers.process_groups import STOPPED_S
from flowgraph.errors import FlowError, WorkerError
from flowgraph.runtime.ray.deadlines import Deadlines
from flowgraph.runtime.ray.device import PoolRank
from flowgraph.runtime.ray.stack_dump import shortened, stacks_of

LISTEN_S = 0.1  # how long a signal to this process may wait; two that come within this time are taken for one
BEAT_S = 2.0  # how long without any result before processes are asked whether they are there
STUCK_S = 12.0  # how long a process may leave that unanswered; it answers from a thread of its own
DEAD_S = 3.0  # how long to look for a dead process behind an error: its peers' errors may come first
STACKS_S = 5.0  # how long a process may take to say what its threads are at
RAYS_OWN = ("gcs_server", "raylet")  # a Ray of this process only ends with either, but notices after a minute at most


@dataclass(frozen=True, eq=False)
class Member:
    """The actor of one device, and its process if it is on this machine (0 if it is not)."""

    seat: PoolRank
    actor: Any
    pid: int

    def __str__(self) -> str:
        return f"{self.seat} (process {self.pid})" if self.pid else str(self.seat)

    def ask(self) -> Any:
        """Ask whether it is there."""
        return self.actor.beat.options(concurrency_group="beat").remote()

    def stacks(self) -> list[str]:
        """Ask what its threads are at; none if it does not answer."""
        import ray
        from ray.exceptions import GetTimeoutError, RayError

        try:
            told: list[str] = ray.get(self.actor.stacks.options(concurrency_group="beat").remote(), timeout=STACKS_S)
        except (GetTimeoutError, RayError):
            return []
        return told

    def end(self) -> None:
        """Kill its process, if it is on this machine and still there: one that is stopped heeds nothing else."""
        if self.pid:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(self.pid)
                if "ray::" in " ".join(process.cmdline()):
                    process.kill()


@dataclass(frozen=True)
class PendingCall:
    """Something submitted: its reference, what it is in words, and whose it is (None: a host process's).

    `task` names it from step to step, and `limit_s` is how long nothing at all may be done while it is waited for.
    """

    ref: Any
    said: str
    member: Member | None
    task: str = ""
    limit_s: float | None = None
    since: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class Supervisor:
    """Waits for results; `members` are all processes of the run, `started` says that Ray was started for it.

    While processes are `starting` none is asked to answer soon: on a busy machine imports take long.
    """

    members: Sequence[Member]
    started: bool = False
    deadlines: Deadlines = field(default_factory=Deadlines)
    starting: bool = False
    _asked: dict[Member, tuple[Any, float]] = field(default_factory=dict[Member, tuple[Any, float]])
    _stopped: dict[int, float] = field(default_factory=dict[int, float])

    def results(self, pending: Sequence[PendingCall], limit_s: float | None = None) -> Iterator[Any]:
        """Give each result as it comes.

        Raises what a task raised, or WorkerError: a process died or does not answer, or all took more than `limit_s`.
        """
        import ray

        waiting = {each.ref: each for each in pending}
        start = quiet = moved = time.monotonic()
        while waiting:
            ready, _ = ray.wait(list(waiting), timeout=LISTEN_S)
            for ref in ready:
                result = self._result(waiting[ref], list(waiting.values()))
                done = waiting.pop(ref)
                if done.task:
                    self.deadlines.took(done.task, time.monotonic() - done.since)
                yield result
            if ready:
                quiet = moved = time.monotonic()
            elif time.monotonic() - quiet > BEAT_S:
                self.check(list(waiting.values()))
                quiet = time.monotonic()
            self._check_overdue(list(waiting.values()), time.monotonic() - moved)
            if waiting and limit_s is not None and time.monotonic() - start > limit_s:
                first = next(iter(waiting.values()))
                raise WorkerError.stuck(str(first.member or "a host process"), [first.said], limit_s)

    def _check_overdue(self, waiting: Sequence[PendingCall], quiet_s: float) -> None:
        """Raise WorkerError, with what the processes are at, if nothing was done for longer than any task may take."""
        limits = [each.limit_s for each in waiting if each.limit_s is not None]
        if not limits or len(limits) < len(waiting) or quiet_s < max(limits):
            return
        first, *others = waiting
        at = [line for each in _members(waiting) for line in _told_stacks(each)]
        who = str(first.member or "a host process")
        raise WorkerError.overdue(who, first.said, max(limits), [each.said for each in others], at)

    def in_order(self, pending: Sequence[PendingCall], limit_s: float | None = None) -> list[Any]:
        """Give all results, in the order of `pending`; raises as `results` does."""
        import ray

        for _ in self.results(pending, limit_s):
            pass
        return [ray.get(each.ref) for each in pending]

    def _result(self, done: PendingCall, waiting: Sequence[PendingCall]) -> Any:
        """Give the result of `done`, one of `waiting`, which are in the order they were submitted in."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            return ray.get(done.ref)
        except RayTaskError as error:
            self._find_dead(waiting)
            if isinstance(error.cause, FlowError):
                raise _placed(error.cause, done) from None
            raise WorkerError.failed(done.said, str(error)) from error
        except RayError as error:
            self._find_dead(waiting)
            worker = str(done.member) if done.member is not None else "a host process"
            raise WorkerError.died(worker, [done.said], _how(error)) from error

    def _find_dead(self, pending: Sequence[PendingCall]) -> None:
        """Raise WorkerError if a process died: whatever else went wrong follows from that."""
        import ray
        from ray.exceptions import GetTimeoutError, RayError, RayTaskError

        self._check_ray(_here())
        asked = [(member, member.ask()) for member in self.members]
        until = time.monotonic() + DEAD_S
        for member, ref in asked:
            try:
                ray.get(ref, timeout=max(0.1, until - time.monotonic()))
            except (GetTimeoutError, RayTaskError):  # busy, or there and with a server that is not: its error is known
                continue
            except RayError as error:
                raise WorkerError.died(str(member), _doing(member, pending), _how(error)) from error

    def check(self, pending: Sequence[PendingCall]) -> None:
        """Look whether Ray and every process are there and run; raises WorkerError for one that is not or does not.

        It does not wait: what a process is asked now, a later look finds answered, or left unanswered for too long.
        """
        import ray
        from ray.exceptions import RayError, RayTaskError

        there = _here()
        self._check_ray(there)
        for member in self.members:
            ref, since = self._asked.setdefault(member, (member.ask(), time.monotonic()))
            ready, _ = ray.wait([ref], timeout=0)
            if ready:
                del self._asked[member]
                try:
                    ray.get(ref)
                except RayTaskError as error:  # it is there, and says what of its own is not
                    raise error.cause if isinstance(error.cause, FlowError) else error from None
                except RayError as error:
                    raise WorkerError.died(str(member), _doing(member, pending), _how(error)) from error
            elif time.monotonic() - since > STUCK_S and not self.starting:
                raise WorkerError.stuck(str(member), _doing(member, pending), time.monotonic() - since)
        self._check_stopped(there, pending)

    def _check_ray(self, there: Mapping[int, Process]) -> None:
        """Raise WorkerError if Ray itself has ended: results would be waited for long after."""
        for name in RAYS_OWN if self.started else ():
            if not any(each.name == name and each.runs for each in there.values()):
                raise WorkerError.died(f"Ray's {name}", [], [])

    def _check_stopped(self, there: Mapping[int, Process], pending: Sequence[PendingCall]) -> None:
        """Raise WorkerError for a process of this machine that is stopped: nothing can ask those of host nodes."""
        now, named = time.monotonic(), {member.pid: str(member) for member in self.members}
        self._stopped = {pid: self._stopped.get(pid, now) for pid, each in there.items() if each.stopped}
        for pid, since in self._stopped.items():
            if now - since > STOPPED_S:
                mine = [each.said for each in pending if each.member is None or each.member.pid == pid]
                raise WorkerError.stopped(named.get(pid, f"{there[pid]} ({pid})"), mine)


def _members(pending: Sequence[PendingCall]) -> list[Member | None]:
    """Give whose tasks are waited for, each once, in order."""
    return list(dict.fromkeys(each.member for each in pending))


def _told_stacks(member: Member | None) -> list[str]:
    """Give the stacks of a process, by asking it or, on this machine, by a signal; of None those of host processes."""
    if member is None:
        found = {pid: stacks_of(pid) for pid, each in _here().items() if each.name.startswith("ray::")}
        return [line for pid, lines in found.items() if lines for line in (f"host process {pid}", *shortened(lines))]
    lines = member.stacks() or (stacks_of(member.pid) if member.pid else [])
    return [f"{member} is at", *shortened(lines)] if lines else []


def _placed(error: FlowError, done: PendingCall) -> FlowError:
    """Note what was asked of which process, unless the error says it: a node's does, a sync's does not."""
    if done.member is not None and not any(str(done.member.seat) in note for note in error.notes):
        error.notes = (*error.notes, f"{done.said}, on {done.member.seat}")
    return error


def _doing(member: Member, pending: Sequence[PendingCall]) -> list[str]:
    return [each.said for each in pending if each.member is member]


def _how(error: Exception) -> list[str]:
    """Keep what Ray knows of how a process ended, without its advice.

    >>> _how(RuntimeError("The worker died unexpectedly. Check its log."))
    ['Ray says: The worker died unexpectedly']
    """
    found = re.search(r"Worker exit type: (\w+) Worker exit detail: ([^.]*)", str(error))
    if found is not None:
        return [f"Ray says: {found[2].strip()} ({found[1]})"]
    return [f"Ray says: {line.partition('. ')[0].rstrip('.')}" for line in str(error).splitlines()[:1]]


@dataclass(frozen=True)
class Process:
    """A process that was started on this machine for this run, and its state in the words of psutil."""

    name: str
    state: str

    @property
    def runs(self) -> bool:
        """Say whether it is there; one that has ended waits to be taken note of."""
        return self.state not in ("zombie", "dead")

    @property
    def stopped(self) -> bool:
        """Say whether a signal has stopped it, and Ray or a task of ours runs in it."""
        return self.state == "stopped" and (self.name.startswith("ray::") or self.name in RAYS_OWN)

    def __str__(self) -> str:
        return f"Ray's {self.name}" if self.name in RAYS_OWN else "a host process"


def _here() -> dict[int, Process]:
    """Give the processes that this one has started, and those that they have, by their ids."""
    found = dict[int, Process]()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found[int(process.pid)] = Process(process.name(), process.status())
    return found
