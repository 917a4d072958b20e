"""The parent's hold on one grader process and its guard: start them, send lines, read answers, end them.

Which rows it scores, and what a failure means, is decided in `nodes.graders`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from nodes.confinement import PROCESSES, Allowed, environment, readable
from nodes.grader_guard import remove
from nodes.grader_messages import MESSAGE_BYTES
from nodes.rules import RuleRef

READ_BYTES = 65_536
PRINTED_TAIL_BYTES = 2_048
END_LIMIT_S = 5.0
_LAST_READS = 64
_PROCESS_FILE, _GUARD_FILE = (str(Path(__file__).with_name(name)) for name in ("grader_process.py", "grader_guard.py"))


class GraderWorker:
    """One grader process: its channel, the rows it owes an answer for, and the end of what it printed.

    `deadline_s`, on the pool's clock, is infinite while nothing is asked of it.
    """

    def __init__(self, rule: RuleRef, may: Allowed, import_path: Sequence[str]) -> None:
        self.scratch = tempfile.mkdtemp(prefix="flowgraph_rule-")  # `flowgraph.runtime.scratch` believes nothing inside
        questions, self.questions = os.pipe()
        self.answers, answers = os.pipe()
        lifeline, self._lifeline = os.pipe()
        held = [] if may.unconfined else ["--confined"] if may.network else ["--confined", "--no-sockets"]
        spec = {
            "command": [sys.executable, "-P", "-u", _PROCESS_FILE, *held],
            "lifeline": lifeline,
            "scratch": self.scratch,
            "confined": not may.unconfined,
            "readable": [] if may.unconfined else readable(rule, import_path, may),
            "network": may.network,
            "processes": PROCESSES,
            "memory_bytes": may.memory_bytes,
        }
        told = os.path.join(self.scratch, "spec.json")  # removed by the guard before anything else starts
        with open(told, "w") as file:
            json.dump(spec, file)
        with os.fdopen(questions), os.fdopen(answers), os.fdopen(lifeline):
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-u", _GUARD_FILE, told],
                env=environment(os.environ, self.scratch, may.variables),
                stdin=questions,
                stdout=answers,
                stderr=subprocess.PIPE,
                pass_fds=[lifeline],
                bufsize=0,
                start_new_session=True,
            )
        assert self.process.stderr is not None
        self.output: IO[bytes] = self.process.stderr
        for descriptor in (self.output.fileno(), self.answers, self.questions):
            os.set_blocking(descriptor, False)
        self.ready = False
        self.owed: deque[tuple[int, int]] = deque()
        self.deadline_s = math.inf
        self.printed = b""
        self.unsent = b""
        self._unread = b""

    def idle(self) -> bool:
        """Tell if a worker of which nothing is asked still holds its end of the channel, and has said nothing."""
        try:
            os.read(self.answers, 1)
        except BlockingIOError:
            return not self._unread
        except OSError:
            return False
        return False

    def ask(self, line: bytes) -> None:
        """Send one line, as far as the worker takes it now; `send` sends the rest."""
        self.printed, self.unsent = b"", line
        self.send()

    def send(self) -> None:
        """Send what the worker takes now of what is unsent; if it has ended, reading finds out."""
        try:
            while self.unsent:
                self.unsent = self.unsent[os.write(self.questions, self.unsent[:READ_BYTES]) :]
        except BlockingIOError:
            return
        except OSError:
            self.unsent = b""

    def lines(self) -> list[bytes] | None:
        """Read the answers that have come; None if the worker closed the channel.

        One that says more than an answer can hold without ending its line has closed it too.
        """
        try:
            read = os.read(self.answers, READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        *lines, self._unread = (self._unread + read).split(b"\n")
        return lines if read and len(self._unread) <= MESSAGE_BYTES else None

    def read_printed(self) -> bytes | None:
        """Read what was printed and keep its end; empty when all who could print have ended, None if nothing came."""
        read = self.output.read(READ_BYTES)
        self.printed = (self.printed + (read or b""))[-PRINTED_TAIL_BYTES:]
        return read

    def kill(self) -> int:
        """End the process and all it has started, and return its exit code, which is its own if it had ended itself.

        The guard does that when the lifeline closes; one that does not answer is killed.
        """
        os.close(self._lifeline)
        try:
            code = self.process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            code = self.process.wait()
        for _ in range(_LAST_READS):
            if not self.read_printed():
                break
        self.output.close()
        os.close(self.questions)
        os.close(self.answers)
        remove(self.scratch)
        return code


def kill_all(workers: list[GraderWorker], owner: int) -> None:
    """Kill these workers and forget them, unless this process is a fork of the `owner` that started them."""
    while os.getpid() == owner and workers:
        workers[-1].kill()
        workers.pop()
