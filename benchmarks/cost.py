"""Run a command and tell what all processes that came of it cost: `python cost.py REPORT.json SECONDS COMMAND …`.

Trusts nothing that the command says of itself. Linux only, standard library only.

A subreaper waits for every descendant, so that the kernel adds up their CPU seconds. A parent that ignores SIGCHLD has
its children reaped with no account kept; those are read from /proc while they live.
Source: prctl(2), PR_SET_CHILD_SUBREAPER; wait(2), notes; proc(5), /proc/pid/stat.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36
_WAIT_S, _LOOK_S = 0.05, 0.2
_GRACE_S = 30.0
_SIGCHLD_BIT = 1 << (signal.SIGCHLD - 1)
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """What a command cost. `cpu_s` is all of it; `unwaited_s` the part that was read from /proc.

    `largest_bytes` is the most memory that one process held; `killed` names the processes that had to be ended.
    """

    code: int
    cpu_s: float
    user_s: float
    system_s: float
    unwaited_s: float
    wall_s: float
    largest_bytes: int
    killed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Process:
    """One process as /proc tells of it; `cpu_s` counts the children that it has waited for."""

    pid: int
    parent: int
    started: int
    name: str
    cpu_s: float

    @classmethod
    def parse(cls, text: str) -> Process:
        """Read the text of /proc/PID/stat; a name may hold spaces and brackets.

        >>> Process.parse("7 (a) b) S 3 7 7 0 -1 0 0 0 0 0 100 20 3 0 20 0 1 0 555 0").parent
        3
        """
        head, _, tail = text.rpartition(")")
        pid, _, name = head.partition(" (")
        fields = tail.split()
        return cls(int(pid), int(fields[1]), int(fields[19]), name, sum(map(int, fields[11:15])) * _TICK_S)


@dataclass
class Watch:
    """The descendants of this process, and the CPU seconds of those whose parent will not account for them."""

    unwaited: dict[tuple[int, int], float] = field(default_factory=dict[tuple[int, int], float])

    def look(self) -> None:
        """Note what each descendant has used whose parent ignores SIGCHLD; forget one that has another parent now."""
        ignoring: dict[int, bool] = {}
        for each in descendants(os.getpid()):
            if each.parent not in ignoring:
                ignoring[each.parent] = each.parent != os.getpid() and ignores_children(each.parent)
            if ignoring[each.parent]:
                self.unwaited[each.pid, each.started] = each.cpu_s
            else:
                self.unwaited.pop((each.pid, each.started), None)

    def total_s(self) -> float:
        """Add up what was noted."""
        return sum(self.unwaited.values())


def descendants(root: int) -> list[Process]:
    """List the processes below `root`, parents first."""
    children: dict[int, list[Process]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                process = Process.parse((entry / "stat").read_text("utf-8", "replace"))
                children.setdefault(process.parent, []).append(process)
    found = list(children.get(root, ()))
    for each in found:  # grows while it is read
        found.extend(children.get(each.pid, ()))
    return found


def used_s() -> float:
    """Return the CPU seconds of this process and of those that it has started, in steps of 10 ms."""
    return sum(os.times()[:4]) + sum(each.cpu_s for each in descendants(os.getpid()))


def ignores_children(pid: int) -> bool:
    """Tell if a process ignores SIGCHLD, so that its children leave no account."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    ignored = next((line.split()[1] for line in lines if line.startswith("SigIgn:")), "0")
    return bool(int(ignored, 16) & _SIGCHLD_BIT)


def become_subreaper() -> None:
    """Make orphans of this process's descendants its own children. Raises OSError where the system cannot."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def measure(command: Sequence[str], limit_s: float, grace_s: float = _GRACE_S) -> Cost:
    """Run a command to its end and that of all its descendants, and give what they cost.

    What lives `grace_s` after the command, or `limit_s` after its start, is killed and named.
    """
    become_subreaper()
    start, watch = time.monotonic(), Watch()
    child = subprocess.Popen(command)
    try:
        code, killed = _wait(child.pid, watch, start + limit_s, grace_s)
    except BaseException:
        _end()
        raise
    child.returncode = code  # it has been waited for
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = used.ru_utime + used.ru_stime
    unwaited = watch.total_s()
    wall_s = time.monotonic() - start
    return Cost(code, own + unwaited, used.ru_utime, used.ru_stime, unwaited, wall_s, used.ru_maxrss * 1024, killed)


def _wait(command: int, watch: Watch, deadline: float, grace_s: float) -> tuple[int, tuple[str, ...]]:
    """Wait for the command and every orphan; give the command's exit code and the names of what was killed."""
    code, killed, looked = -1, tuple[str, ...](), 0.0
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code, killed
        now = time.monotonic()
        if pid == command:
            code, deadline = os.waitstatus_to_exitcode(status), min(deadline, now + grace_s)
        if pid:
            continue
        if now - looked >= _LOOK_S:
            watch.look()
            looked = now
        if now > deadline:
            killed = (*killed, *_end())
        time.sleep(_WAIT_S)


def _end() -> tuple[str, ...]:
    """Kill every descendant, and name them."""
    found = descendants(os.getpid())
    for each in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each.pid, signal.SIGKILL)
    return tuple(each.name for each in found)


def main() -> int:
    """Measure the command of the command line, write the report, and end as the command did.

    Ended itself, or when the process that started it ends, it leaves no descendant behind.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    _prctl(_SET_PDEATHSIG, signal.SIGTERM)
    cost = measure(sys.argv[3:], float(sys.argv[2]))
    Path(sys.argv[1]).write_text(json.dumps(asdict(cost), indent=1), "utf-8")
    return cost.code if cost.code >= 0 else 128 - cost.code


if __name__ == "__main__":
    sys.exit(main())
