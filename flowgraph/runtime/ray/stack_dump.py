"""What the threads of a process are at: asked of the process itself, or written by it when a signal comes.

A thread that holds the interpreter's lock in foreign code answers no question, but the signal's handler still writes:
into a file in memory, which ends with the process, and which others of the same user read (on Linux).
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
WRITTEN_S = 0.5  # how long a process may take to write
MOST_LINES = 24

_written = dict[int, int]()  # the descriptor of this process's file: one that was forked has none of its own yet


def stacks_here() -> list[str]:
    """Give the stacks of all threads but this one, the newest frame last."""
    names, lines, python = {each.ident: each.name for each in threading.enumerate()}, list[str](), cast("Any", sys)
    for ident, frame in python._current_frames().items():
        if ident != threading.get_ident():
            told = traceback.extract_stack(frame)
            lines += [names.get(ident, f"thread {ident}")]
            lines += [f"  {Path(each.filename).name}:{each.lineno} {each.name}" for each in told]
    return lines


def write_on_signal() -> None:
    """Let this process write its stacks when `SIGNAL` comes."""
    if os.getpid() not in _written and hasattr(os, "memfd_create"):
        _written[os.getpid()] = file = os.memfd_create(NAME)
        faulthandler.register(SIGNAL, file=file, all_threads=True)


def stacks_of(pid: int) -> list[str]:
    """Ask a process of this machine for its stacks by the signal; none if it does not write them."""
    try:
        path = next(each for each in Path(f"/proc/{pid}/fd").iterdir() if NAME in str(each.readlink()))
        size = path.stat().st_size
        os.kill(pid, SIGNAL)
    except (OSError, StopIteration):
        return []
    until = time.monotonic() + WRITTEN_S
    with contextlib.suppress(OSError):
        while path.stat().st_size == size and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.05)  # it writes frame by frame
        return path.read_text("utf-8", "replace")[size:].splitlines()
    return []


def shortened(lines: list[str]) -> list[str]:
    """Keep the last lines: those of what runs now."""
    return lines if len(lines) <= MOST_LINES else [f"({len(lines) - MOST_LINES} lines before)", *lines[-MOST_LINES:]]
