"""Process groups that flowgraph has started: their members, how to end them, and their shared memory."""

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
    """Return the descendants of process `leader` and the other processes of its session, sorted by process id.

    The results are `psutil.Process` objects. The leader itself is left out, and may already have ended. A member may
    have left the leader's process group.
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
    """Kill process `leader`, its process group and its `members` with SIGKILL; return the members, sorted by id.

    Does not wait until these have ended. Processes that have already ended are ignored.
    """
    import psutil

    group = members(leader)
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS raises the second if all have ended
        os.killpg(leader, signal.SIGKILL)  # it leads its group, so the group has its id
    for process in group:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return group


def forget_shared_memory(leader: int) -> None:
    """Unlink the files in /dev/shm that process `leader` and its `members` map, so that the system can free them.

    The memory of a file is freed when the last process that maps it ends; without this, it would remain after a kill.
    Files that cannot be read or unlinked are ignored.
    """
    mapped = {inode for pid in (leader, *(process.pid for process in members(leader))) for inode in _shared(pid)}
    for path in SHARED.iterdir() if mapped else ():
        with contextlib.suppress(OSError):
            if path.stat().st_ino in mapped:
                path.unlink()


def _shared(pid: int) -> set[int]:
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    return {int(parts[4]) for line in lines if len(parts := line.split(maxsplit=5)) == 6 and str(SHARED) in parts[5]}
