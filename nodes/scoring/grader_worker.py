"""The parent's side of one grader process and its guard: start them, send lines, read answers, end them.

`nodes.scoring.graders` decides which rows it scores, and how failures are handled.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO, ClassVar

from nodes.scoring.confinement import Allowed, environment
from nodes.scoring.grader_guard import remove
from nodes.scoring.grader_messages import MESSAGE_BYTES
from nodes.scoring.grader_rights import readable
from nodes.scoring.guarded import END_LIMIT_S, start_guarded
from nodes.scoring.rules import RuleRef

READ_BYTES = 65_536
PRINTED_TAIL_BYTES = 2_048
_LAST_READS = 64


class GraderWorker:
    """One grader process: its channel, the questions that it has not answered, and the end of its output.

    `owed` pairs the id of a question with the index of its row (-1 for loading the rule). `deadline_s`, on the pool's
    clock, is infinite while the worker is idle. A subclass may run another `program`, with longer answers.
    """

    program: ClassVar[str] = str(Path(__file__).with_name("grader_process.py"))
    message_bytes: ClassVar[int] = MESSAGE_BYTES

    def __init__(self, rule: RuleRef, may: Allowed, import_path: Sequence[str]) -> None:
        self.scratch = tempfile.mkdtemp(prefix="flowgraph_rule-")  # `flowgraph.runtime.scratch` trusts nothing inside
        questions, self.questions = os.pipe()
        self.answers, answers = os.pipe()
        confined = [] if may.unconfined else ["--confined"]
        no_sockets = [] if may.unconfined or may.endpoints else ["--no-sockets"]
        with os.fdopen(questions), os.fdopen(answers):
            self.process, self._lifeline = start_guarded(
                [sys.executable, "-P", "-u", self.program, *confined, *no_sockets],
                self.scratch,
                may,
                [] if may.unconfined else readable(rule, import_path, may),
                environment(os.environ, self.scratch, may.variables),
                stdin=questions,
                stdout=answers,
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
        """Return whether an idle worker is still usable: its channel is open, and it has sent nothing unasked."""
        try:
            os.read(self.answers, 1)
        except BlockingIOError:
            return not self._unread
        except OSError:
            return False
        return False

    def ask(self, line: bytes) -> None:
        """Send as much of a line as the worker accepts without blocking, and clear `printed`; `send` sends the rest."""
        self.printed, self.unsent = b"", line
        self.send()

    def send(self) -> None:
        """Send as much of the unsent rest as the worker accepts without blocking.

        If the worker has ended, the rest is discarded; the next read shows the end.
        """
        try:
            while self.unsent:
                self.unsent = self.unsent[os.write(self.questions, self.unsent[:READ_BYTES]) :]
        except BlockingIOError:
            return
        except OSError:
            self.unsent = b""

    def lines(self) -> list[bytes] | None:
        """Return the complete lines that have arrived, without waiting; None if the worker closed the channel.

        None also stands for an incomplete line that is longer than any valid answer.
        """
        try:
            read = os.read(self.answers, READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        *lines, self._unread = (self._unread + read).split(b"\n")
        return lines if read and len(self._unread) <= self.message_bytes else None

    def read_printed(self) -> bytes | None:
        """Return the output that has arrived, up to 64 KiB, and keep the last 2,048 bytes of all output in `printed`.

        Returns None if nothing has arrived, and b"" after all processes that could print have ended.
        """
        read = self.output.read(READ_BYTES)
        self.printed = (self.printed + (read or b""))[-PRINTED_TAIL_BYTES:]
        return read

    def kill(self) -> int:
        """End the process and everything that it has started; return its exit code, or minus its signal.

        If the process had already ended, the code is that of this end. A guard that does not end within 5 s is killed.
        Closes the channel and removes the scratch folder.
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
    """Kill all `workers` and clear the list; do nothing in a process other than `owner`, such as its fork."""
    while os.getpid() == owner and workers:
        workers[-1].kill()
        workers.pop()
