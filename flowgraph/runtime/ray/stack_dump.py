"""The stacks of a process's threads: returned by the process itself, or written by it when a signal arrives.

A thread that holds the interpreter's lock in foreign code blocks all responses, but the signal handler still writes, to
a file in memory. That file ends with the process, and other processes of the same user can read it (on Linux).
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, cast

SIGNAL = signal.SIGUSR2
NAME = "flowgraph-stacks"
WRITTEN_S = 5.0  # how long a process may take to write: on a busy machine it waits for a core
MAX_LINES = 24

_files = dict[int, int]()  # the descriptor of this process's file, by process id: a fork has none of its own yet


def thread_stacks() -> list[str]:
    """Return the stacks of all threads except the current one as lines of text, with the newest frame last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines, python = list[str](), cast("Any", sys)
    for ident, frame in python._current_frames().items():
        if ident != threading.get_ident():
            stack = traceback.extract_stack(frame)
            lines += [names.get(ident, f"thread {ident}")]
            lines += [f"  {Path(line.filename).name}:{line.lineno} {line.name}" for line in stack]
    return lines


def write_on_signal() -> None:
    """Make this process write the stacks of its threads to a file in memory when it receives SIGUSR2.

    Does nothing on systems without `memfd_create`, and in a process that has called it before.
    """
    if os.getpid() not in _files and hasattr(os, "memfd_create"):
        _files[os.getpid()] = file = os.memfd_create(NAME)
        faulthandler.register(SIGNAL, file=file, all_threads=True)


def request_stacks(pid: int) -> list[str]:
    """Send SIGUSR2 to a process of this machine, and return the stacks that it writes, as lines of text.

    Waits at most 5 seconds. Returns [] if the process has not called `write_on_signal` or does not exist.
    """
    try:
        path = next(file for file in Path(f"/proc/{pid}/fd").iterdir() if NAME in str(file.readlink()))
        start = size = path.stat().st_size
        os.kill(pid, SIGNAL)
    except (OSError, StopIteration):
        return []
    until = time.monotonic() + WRITTEN_S
    with contextlib.suppress(OSError):
        while time.monotonic() < until:
            time.sleep(0.05)
            before, size = size, path.stat().st_size
            if size == before > start:  # it writes frame by frame
                break
        return path.read_bytes()[start:].decode("utf-8", "replace").splitlines()
    return []


def shortened(lines: list[str]) -> list[str]:
    """Return lines of stacks cut to the last 24, the innermost frames, after a line with the number of the others.

    At most 24 lines are returned unchanged.
    """
    return lines if len(lines) <= MAX_LINES else [f"({len(lines) - MAX_LINES} lines before)", *lines[-MAX_LINES:]]
