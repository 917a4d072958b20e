"""Groups of processes that we have started: their members, their end, and the memory that they share."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

END_S = 10.0  # for killed processes to be gone
STOPPED_S = 4.0  # how long a signal may stop a process
SHARED = Path("/dev/shm")


def members(leader: int) -> list[Any]:
    """Return the descendants of a process, and the other processes of its session, which may have left its group.

    They are `psutil.Process`es, by id. The leader itself is not among them, and may be gone.
    """
    import psutil

    processes = set[Any]()
    with contextlib.suppress(psutil.NoSuchProcess):
        processes.update(psutil.Process(leader).children(recursive=True))
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):
            if process.pid != leader and os.getsid(process.pid) == leader:
                processes.add(process)
    return sorted(processes, key=lambda process: process.pid)


def kill(leader: int) -> list[Any]:
    """Kill a process and its whole group if they are running, without waiting; return the other members."""
    import psutil

    group = members(leader)
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS raises the second if all have ended
        os.killpg(leader, signal.SIGKILL)  # it leads its group, so the group has its id
    for process in group:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return group


def forget_shared_memory(leader: int) -> None:
    """Unlink the shared memory of a group's processes, so that it is freed with the last of them, however they end.

    Otherwise it stays when they are killed. Files are compared by their inodes: a semaphore is mapped under the name
    that it had while it was created.
    """
    mapped = {inode for pid in (leader, *(process.pid for process in members(leader))) for inode in _shared(pid)}
    for path in SHARED.iterdir() if mapped else ():
        with contextlib.suppress(OSError):
            if path.stat().st_ino in mapped:
                path.unlink()


def _shared(pid: int) -> set[int]:
    """Return the inodes of the shared memory that a process maps; none if the system does not show them."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    return {int(parts[4]) for line in lines if len(parts := line.split(maxsplit=5)) == 6 and str(SHARED) in parts[5]}
