"""Groups of processes that we have started: who is in one, and its end, with the memory that they share."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

END_S = 10.0  # how long killed processes may take to be gone
STOPPED_S = 4.0  # how long a process may be stopped, as by a signal
SHARED = Path("/dev/shm")


def members(leader: int) -> list[Any]:
    """Return the processes that stem from one, itself left out, and those of its session: some may have left its group.

    They are `psutil.Process`es, by id. The leader may be gone.
    """
    import psutil

    try:
        under = set(psutil.Process(leader).children(recursive=True))
    except psutil.NoSuchProcess:
        under = set()
    for each in psutil.process_iter():
        try:
            if each.pid != leader and os.getsid(each.pid) == leader:
                under.add(each)
        except (ProcessLookupError, PermissionError, psutil.Error):
            continue
    return sorted(under, key=lambda each: each.pid)


def kill(leader: int) -> list[Any]:
    """Kill a process and its whole group, without waiting; return the others. One that is gone is no error."""
    import psutil

    others = members(leader)
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says the second where all have ended
        os.killpg(leader, signal.SIGKILL)  # it leads its group, so the group has its id
    for each in others:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    return others


def forget_shared_memory(leader: int) -> None:
    """Take the names off the memory that a group's processes share.

    It is freed with the last of them, however they end; by itself it stays when they are killed. Files are compared by
    their inodes: a semaphore is mapped under the name that it had while it was made.
    """
    mapped = {each for pid in (leader, *(each.pid for each in members(leader))) for each in _shared(pid)}
    for path in SHARED.iterdir() if mapped else ():
        with contextlib.suppress(OSError):
            if path.stat().st_ino in mapped:
                path.unlink()


def _shared(pid: int) -> set[int]:
    """Return the inodes of what a process maps of shared memory; none where the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    return {int(parts[4]) for line in lines if len(parts := line.split(maxsplit=5)) == 6 and str(SHARED) in parts[5]}
