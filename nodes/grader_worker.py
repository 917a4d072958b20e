"""The parent's hold on one grader process: start it, send it lines, read its answers, kill it and its group.

Which rows it scores, and what a failure means, is decided in `nodes.graders`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import IO, Any

READ_BYTES = 65_536
PRINTED_TAIL_BYTES = 2_048
_LAST_READS = 64
_WORKER_FILE = str(Path(__file__).with_name("grader_process.py"))


class Worker:
    """One grader process: its channel, the rows it owes an answer for, and the end of what it printed.

    `deadline_s`, on the monotonic clock, is infinite while nothing is asked of it.
    """

    def __init__(self) -> None:
        self.channel, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        with theirs, os.fdopen(lifeline):
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-u", _WORKER_FILE, str(theirs.fileno()), str(lifeline)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno(), lifeline],
                bufsize=0,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        self.output: IO[bytes] = self.process.stdout
        os.set_blocking(self.output.fileno(), False)
        self.load_line = b""
        self.ready = False
        self.owed: deque[int] = deque()
        self.deadline_s = math.inf
        self.printed = b""
        self._unread = b""

    def alive(self) -> bool:
        """Tell if an idle worker still holds its end of the channel, and has said nothing unasked."""
        self.channel.setblocking(False)
        try:
            self.channel.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def send(self, line: bytes, limit_s: float) -> None:
        """Send one line to a worker that waits for it; if it has ended, reading finds out."""
        with contextlib.suppress(OSError):
            self.channel.settimeout(limit_s)
            self.channel.sendall(line)

    def answers(self) -> list[dict[str, Any]] | None:
        """Read the answers that have come; None if the worker closed the channel or wrote no JSON on it."""
        with contextlib.suppress(OSError, ValueError):
            read = self.channel.recv(READ_BYTES)
            *lines, self._unread = (self._unread + read).split(b"\n")
            return [json.loads(line) for line in lines] if read else None
        return None

    def read_printed(self) -> bytes | None:
        """Read what was printed and keep its end; empty when all who could print have ended, None if nothing came."""
        read = self.output.read(READ_BYTES)
        self.printed = (self.printed + (read or b""))[-PRINTED_TAIL_BYTES:]
        return read

    def kill(self) -> int:
        """Kill the process and its group, and give its exit code, which is its own if it had ended by itself."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        for _ in range(_LAST_READS):
            if not self.read_printed():
                break
        self.channel.close()
        self.output.close()
        os.close(self._lifeline)
        return code


def kill_all(workers: list[Worker], owner: int) -> None:
    """Kill these workers and forget them, unless this process is a fork of the `owner` that started them."""
    while os.getpid() == owner and workers:
        workers[-1].kill()
        workers.pop()
