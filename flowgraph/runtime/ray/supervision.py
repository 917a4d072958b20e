"""Supervise calls on Ray: collect results, and end a run if a process died or does not respond."""

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
from flowgraph.runtime.ray.stack_dump import request_stacks, shortened

LISTEN_S = 0.1  # how long a signal to this process may wait; two that come within this time count as one
BEAT_S = 2.0  # how long without any result before the processes are asked for a sign of life
STUCK_S = 12.0  # how long a process may leave that unanswered; it answers from a thread of its own
DEAD_S = 3.0  # how long to look for a dead process behind an error: its peers' errors may come first
STACKS_S = 5.0  # how long a process may take to return its stacks
RAYS_OWN = ("gcs_server", "raylet")  # a Ray of this process only ends with either, but notices after a minute at most


@dataclass(frozen=True, eq=False)
class Member:
    """The actor of one device, its process id if it is on this machine (else 0), and facts from `RankActor.about`."""

    seat: PoolRank
    actor: Any
    pid: int = 0
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __str__(self) -> str:
        return f"{self.seat} (process {self.pid})" if self.pid else str(self.seat)

    def ask(self) -> Any:
        """Submit a heartbeat call to the actor, and return the reference of its answer."""
        return self.actor.beat.options(concurrency_group="beat").remote()

    def stacks(self) -> list[str]:
        """Return the stacks of the actor's threads as lines: from the actor, else by a signal; [] if both fail.

        Takes at most 10 seconds.
        """
        import ray
        from ray.exceptions import GetTimeoutError, RayError

        lines = list[str]()
        with contextlib.suppress(GetTimeoutError, RayError):
            lines = ray.get(self.actor.stacks.options(concurrency_group="beat").remote(), timeout=STACKS_S)
        return lines or (request_stacks(self.pid) if self.pid else [])

    def end(self) -> None:
        """Kill the process of the actor if it still runs on this machine, even if a signal has stopped it."""
        if self.pid:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(self.pid)
                if "ray::" in " ".join(process.cmdline()):
                    process.kill()


@dataclass(frozen=True)
class PendingCall:
    """A call that was submitted: its reference, its description, and its member (None: a host process).

    `task` names the call in the same way in every step. `limit_s` bounds the seconds during which no call at all
    completes. `step` is the step that the call belongs to; None: to none.
    """

    ref: Any
    about: str
    member: Member | None
    task: str = ""
    limit_s: float | None = None
    step: object = None
    since: float = field(default_factory=time.monotonic)

    @property
    def process(self) -> str:
        """Return the name of the process that runs the call."""
        return str(self.member or "a host process")


@dataclass(eq=False)
class Supervisor:
    """Waits for results; `members` are all actors of the run, and `started` is True if Ray was started for it.

    While processes are `starting`, slow responses are not an error: on a busy machine imports delay them.
    """

    members: Sequence[Member]
    started: bool = False
    deadlines: Deadlines = field(default_factory=Deadlines)
    starting: bool = False
    _asked: dict[Member, tuple[Any, float]] = field(default_factory=dict[Member, tuple[Any, float]])
    _stopped: dict[int, float] = field(default_factory=dict[int, float])

    def results(self, pending: Sequence[PendingCall], limit_s: float | None = None) -> Iterator[Any]:
        """Yield the result of each call as soon as it is available. Raises the errors of `of_calls`."""
        yield from (result for _, result in self.of_calls(pending, limit_s))

    def of_calls(
        self, pending: Sequence[PendingCall], limit_s: float | None = None
    ) -> Iterator[tuple[PendingCall, Any]]:
        """Yield each call with its result, as soon as it is available.

        The durations of calls that have a `task` are recorded in `deadlines`. Raises the FlowError of a call, and
        WorkerError for any other error of a call, if a process died or does not respond, or if all calls together take
        more than `limit_s` seconds (None: no limit). It also raises WorkerError if none completes for longer than the
        largest `limit_s` of the calls that are left, unless one of them has no limit.
        """
        import ray

        waiting = {call.ref: call for call in pending}
        start = checked = progress = time.monotonic()
        while waiting:
            ready, _ = ray.wait(list(waiting), timeout=LISTEN_S)
            for ref in ready:
                result = self._result(waiting[ref], list(waiting.values()))
                call = waiting.pop(ref)
                if call.task:
                    self.deadlines.took(call.task, time.monotonic() - call.since)
                yield call, result
            if ready:
                checked = progress = time.monotonic()
            elif time.monotonic() - checked > BEAT_S:
                self.check(list(waiting.values()))
                checked = time.monotonic()
            _refuse_overdue(list(waiting.values()), time.monotonic() - progress)
            if waiting and limit_s is not None and time.monotonic() - start > limit_s:
                first = next(iter(waiting.values()))
                raise WorkerError.stuck(first.process, [first.about], limit_s)

    def in_order(self, pending: Sequence[PendingCall], limit_s: float | None = None) -> list[Any]:
        """Return the results of all calls, in the order of `pending`.

        Raises the same errors as `results`, also if all calls together take more than `limit_s` seconds.
        """
        import ray

        for _ in self.results(pending, limit_s):
            pass
        return [ray.get(call.ref) for call in pending]

    def _result(self, call: PendingCall, waiting: Sequence[PendingCall]) -> Any:
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            return ray.get(call.ref)
        except RayTaskError as error:
            self._refuse_dead(waiting)
            if not isinstance(error.cause, FlowError):
                raise WorkerError.failed(call.about, str(error)) from error
            cause, member = error.cause, call.member
            if member is not None and not any(str(member.seat) in note for note in cause.notes):
                cause.notes = (*cause.notes, f"{call.about}, on {member.seat}")  # a node's error has it, a sync's not
            raise cause from None
        except RayError as error:
            self._refuse_dead(waiting)
            raise WorkerError.died(call.process, [call.about], _exit_reason(error)) from error

    def _refuse_dead(self, pending: Sequence[PendingCall]) -> None:
        """Raise WorkerError if a process died: other errors are consequences of that."""
        import ray
        from ray.exceptions import GetTimeoutError, RayError, RayTaskError

        self._check_ray(_children())
        answers = [(member, member.ask()) for member in self.members]
        until = time.monotonic() + DEAD_S
        for member, ref in answers:
            try:
                ray.get(ref, timeout=max(0.1, until - time.monotonic()))
            except (GetTimeoutError, RayTaskError):  # busy, or alive with a server that failed: its error is known
                continue
            except RayError as error:
                raise WorkerError.died(str(member), _calls_of(member, pending), _exit_reason(error)) from error

    def check(self, pending: Sequence[PendingCall]) -> None:
        """Raise WorkerError if an actor's process has ended, is stopped by a signal, or does not respond.

        A process does not respond if it leaves a heartbeat unanswered for 12 seconds; while processes are `starting`,
        this does not matter. The error of a failed inference server is raised, too. If Ray was started for this run,
        its own processes are checked as well. Host processes are checked only for being stopped. Does not wait: later
        calls check the heartbeats sent now. The error names the process's calls among `pending`.
        """
        import ray
        from ray.exceptions import RayError, RayTaskError

        children = _children()
        self._check_ray(children)
        for member in self.members:
            if member not in self._asked:
                self._asked[member] = member.ask(), time.monotonic()
            ref, since = self._asked[member]
            ready, _ = ray.wait([ref], timeout=0)
            if ready:
                del self._asked[member]
                try:
                    ray.get(ref)
                except RayTaskError as error:  # it is alive, and one of its servers has failed
                    raise error.cause if isinstance(error.cause, FlowError) else error from None
                except RayError as error:
                    raise WorkerError.died(str(member), _calls_of(member, pending), _exit_reason(error)) from error
            elif time.monotonic() - since > STUCK_S and not self.starting:
                raise WorkerError.stuck(str(member), _calls_of(member, pending), time.monotonic() - since)
        now, names = time.monotonic(), {member.pid: str(member) for member in self.members}
        stopped = {pid: name for pid, (name, state) in children.items() if state == psutil.STATUS_STOPPED}
        ours = [pid for pid, name in stopped.items() if name.startswith("ray::") or name in RAYS_OWN]
        self._stopped = {pid: self._stopped.get(pid, now) for pid in ours}
        for pid, since in self._stopped.items():
            if now - since > STOPPED_S:  # no question reaches the processes of host nodes
                about = [call.about for call in pending if call.member is None or call.member.pid == pid]
                process = f"Ray's {stopped[pid]}" if stopped[pid] in RAYS_OWN else "a host process"
                raise WorkerError.stopped(names.get(pid, f"{process} ({pid})"), about)

    def _check_ray(self, children: Mapping[int, tuple[str, str]]) -> None:
        """Raise WorkerError if a Ray that was started here has ended: waiting for its results would take long."""
        for name in RAYS_OWN if self.started else ():
            running = (child for child, state in children.values() if state not in ("zombie", "dead"))
            if name not in running:
                raise WorkerError.died(f"Ray's {name}", [], [])


def _refuse_overdue(waiting: Sequence[PendingCall], quiet_s: float) -> None:
    limits = [call.limit_s for call in waiting if call.limit_s is not None]
    if not limits or len(limits) < len(waiting) or quiet_s < max(limits):
        return
    stacks = list[str]()
    for member in dict.fromkeys(call.member for call in waiting):
        if member is not None:
            lines = member.stacks()
            stacks += [f"{member} is at", *shortened(lines)] if lines else []
            continue
        for pid, (name, _) in _children().items():
            if name.startswith("ray::") and (lines := request_stacks(pid)):
                stacks += [f"host process {pid}", *shortened(lines)]
    first, *rest = waiting
    raise WorkerError.overdue(first.process, first.about, max(limits), [call.about for call in rest], stacks)


def _calls_of(member: Member, pending: Sequence[PendingCall]) -> list[str]:
    return [call.about for call in pending if call.member is member]


def _exit_reason(error: Exception) -> list[str]:
    """Return what Ray knows about the end of a process, without its advice.

    >>> _exit_reason(RuntimeError("The worker died unexpectedly. Check its log."))
    ['Ray says: The worker died unexpectedly']
    """
    reason = re.search(r"Worker exit type: (\w+) Worker exit detail: ([^.]*)", str(error))
    if reason is not None:
        return [f"Ray says: {reason[2].strip()} ({reason[1]})"]
    return [f"Ray says: {line.partition('. ')[0].rstrip('.')}" for line in str(error).splitlines()[:1]]


def _children() -> dict[int, tuple[str, str]]:
    children = dict[int, tuple[str, str]]()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            children[int(process.pid)] = process.name(), process.status()
    return children
