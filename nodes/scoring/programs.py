"""Programs that a model wrote: run as Python scripts, each in a process of its own, which the kernel confines.

A host process (`program_host`) stays warm and forks one process for each program. Where the kernel cannot confine one,
running programs is refused. Not here: comparing what they print (`nodes.scoring.program_tests`), and the remote choice
(`nodes.scoring.sandbox_fusion`).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, Self, cast

from flowgraph.errors import RuleError
from nodes.scoring.confinement import Allowed, environment, lacks, system_paths
from nodes.scoring.grader_guard import ADDRESS_SPACE_RATIO
from nodes.scoring.guarded import END_LIMIT_S, start_guarded

START_LIMIT_S = 60.0
GRACE_S = 10.0
LOOK_S = 0.5
WHY_CHARACTERS = 200
HOST_BYTES = 512 << 20  # of the host and a keeper, besides what its program may use
JSON_BYTES_OF_BYTE = 6  # at most: a control character is written \u0000
_FILES = ("program_host.py", "program_child.py", "grader_inside.py", "grader_guard.py")
_OWN_FILES = [str(Path(__file__).with_name(name)) for name in _FILES]


@dataclass(frozen=True)
class ProgramLimits:
    """What one program may use: seconds of time and of CPU time, bytes of memory, output and a file, open files.

    A program is one process: it may start threads, but neither processes nor other programs.
    """

    wall_s: float = 10.0
    cpu_s: int = 10
    memory_bytes: int = 1 << 30
    output_bytes: int = 4 << 20
    file_bytes: int = 16 << 20
    open_files: int = 64


@dataclass(frozen=True)
class Outcome:
    """How a program ended: what it printed, its exit code (minus the signal that killed it), and why it was stopped.

    `stopped` is empty for a program that ended by itself, also by an exception; `stderr` is the end of its standard
    error.
    """

    stdout: str
    exit_code: int
    stopped: str = ""
    stderr: str = ""
    wall_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def failure(self) -> str:
        """Return why the program failed: a limit, a signal, its last line on standard error, its exit code; else ""."""
        if self.stopped or self.exit_code == 0:
            return self.stopped
        lines = [line for line in self.stderr.splitlines() if line.strip()]
        return lines[-1].strip()[:WHY_CHARACTERS] if lines else f"exit code {self.exit_code}"


class Runner(Protocol):
    """Runs programs: a host on this machine, or a remote sandbox."""

    def run(self, code: str, stdin: str = "", limits: ProgramLimits = ...) -> Outcome:
        """Run a Python program within `limits`, with the standard input `stdin`, and return how it ended.

        Raises RuleError if the runner cannot run programs.
        """
        ...


class ProgramHost:
    """Runs programs one after another in one warm host process, which starts with the first program.

    Several hosts can run side by side. A host, with everything that its programs have left, ends on `close`, at exit,
    and when this process dies.
    """

    def __init__(self) -> None:
        self._started: _Started | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the host process; a later `run` starts another."""
        if self._started is not None:
            self._started.end()
        self._started = None

    def run(self, code: str, stdin: str = "", limits: ProgramLimits = ProgramLimits()) -> Outcome:
        """Run a Python program with the text `stdin` as its standard input, and return how it ended.

        The call blocks until the program ends or reaches its limits. If the host dies, `stopped` of the result says
        why. Raises RuleError if this machine cannot confine the program.
        """
        allowed = {**asdict(limits), "address_bytes": limits.memory_bytes * ADDRESS_SPACE_RATIO}
        with self._lock:
            if self._started is None or self._started.spent(limits.memory_bytes):
                self.close()
                self._started = _Started(limits.memory_bytes)
            try:
                self._started.send({"code": code, "stdin": stdin, "limits": allowed})
                largest = JSON_BYTES_OF_BYTE * limits.output_bytes + HOST_BYTES // 64
                answer = self._started.receive(limits.wall_s + GRACE_S, largest)
            except BaseException:  # KeyboardInterrupt too: an answer that comes later is that of another program
                self.close()
                raise
            if answer is None:
                why = self._started.last_words() or "its process was ended from outside"
                self.close()
                return Outcome(stdout="", exit_code=-signal.SIGKILL, stopped=why)
        if "unheld" in answer:
            self.close()
            raise RuleError.no_sandbox(str(answer["unheld"]))
        return _outcome(answer, limits)


def run_program(code: str, stdin: str = "", limits: ProgramLimits = ProgramLimits()) -> Outcome:
    r"""Run a Python program that a model wrote, confined by the kernel; return how it ended.

    The program has no network, no files but Python's and an empty scratch folder, one process, and the resources of
    `limits`. Programs of one thread share a warm host. Raises RuleError if this machine cannot confine a program.

    >>> run_program("print(int(input()) * 2)", "21").stdout  # doctest: +SKIP
    '42\n'
    """
    host, process = getattr(_OF_THREAD, "host", (None, 0))
    if host is None or process != os.getpid():  # a fork must not use the host of its parent
        host = ProgramHost()
        _OF_THREAD.host = host, os.getpid()
    return host.run(code, stdin, limits)


_OF_THREAD = threading.local()


class _Started:
    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes, self.owner = memory_bytes, os.getpid()
        # In a confined grader, or a fork of one, what starts here is confined already.
        inside = "--confined" in sys.orig_argv and any(word.endswith("grader_process.py") for word in sys.orig_argv)
        if not inside and (why := lacks()):
            raise RuleError.no_sandbox(why)
        questions, self.questions = os.pipe()
        self.answers, answers = os.pipe()
        within = os.environ["HOME"] if inside else None
        self.scratch = tempfile.mkdtemp(prefix="flowgraph_program-", dir=within)
        inner = os.path.join(self.scratch, "files")
        os.mkdir(inner)
        arguments = json.dumps({"readable": system_paths(), "scratch": inner})
        command = [sys.executable, "-P", _OWN_FILES[0], arguments]
        variables = {**environment(os.environ, inner), "PYTHONHASHSEED": "0"}
        lifeline: int | None = None
        with os.fdopen(questions), os.fdopen(answers):
            if inside:
                process = subprocess.Popen(
                    command, env=variables, stdin=questions, stdout=answers, stderr=-1, bufsize=0
                )
            else:
                may = Allowed(memory_bytes=memory_bytes + HOST_BYTES)
                paths = [*system_paths(), *_OWN_FILES]
                process, lifeline = start_guarded(
                    command, self.scratch, may, paths, variables, stdin=questions, stdout=answers
                )
        self.process = process
        assert process.stderr is not None
        os.set_blocking(process.stderr.fileno(), False)
        descriptors = [self.questions, self.answers, *([] if lifeline is None else [lifeline])]
        self._end = weakref.finalize(self, _end, process, descriptors, self.scratch, self.owner)
        ready = self.receive(START_LIMIT_S, HOST_BYTES)
        if ready is None or "ready" not in ready:
            why = str((ready or {}).get("unheld") or self.last_words() or f"no host within {START_LIMIT_S:g} s")
            self.end()
            raise RuleError.no_sandbox(why)

    def spent(self, memory_bytes: int) -> bool:
        """Return whether a program of `memory_bytes` needs another host: this one ended, or its guard allows less."""
        ended = self.process.poll() is not None or bool(select.select([self.answers], [], [], 0.0)[0])
        return ended or memory_bytes > self.memory_bytes

    def send(self, message: dict[str, object]) -> None:
        payload = json.dumps(message).encode()
        view = memoryview(struct.pack(">Q", len(payload)) + payload)
        with contextlib.suppress(BrokenPipeError):  # reading shows that it ended
            while view:
                view = view[os.write(self.questions, view) :]

    def receive(self, limit_s: float, largest_bytes: int) -> dict[str, object] | None:
        """Return the next message; None if the host ended or was late, or if the message is too long or broken."""
        header = self._read(8, limit_s)
        size_bytes = struct.unpack(">Q", header)[0] if len(header) == 8 else largest_bytes + 1
        if size_bytes > largest_bytes:
            return None
        with contextlib.suppress(ValueError):
            message: object = json.loads(self._read(size_bytes, limit_s))
            if isinstance(message, dict):
                return cast("dict[str, object]", message)
        return None

    def _read(self, size_bytes: int, limit_s: float) -> bytes:
        """Read `size_bytes` bytes, or fewer at the limit; time in which this process was stopped does not count."""
        read = bytearray()
        while len(read) < size_bytes and limit_s > 0:
            began_s = time.monotonic()
            if select.select([self.answers], [], [], LOOK_S)[0]:
                part = os.read(self.answers, size_bytes - len(read))
                if not part:
                    break
                read += part
            limit_s -= min(time.monotonic() - began_s, 2 * LOOK_S)
        return bytes(read)

    def last_words(self) -> str:
        """Return the last line that the guard or the host wrote, cut to 200 characters; "" if there is none."""
        assert self.process.stderr is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(LOOK_S)
        lines = (self.process.stderr.read() or b"").decode(errors="replace").splitlines()
        return lines[-1].removeprefix("flowgraph ended this process: ")[:WHY_CHARACTERS] if lines else ""

    def end(self) -> None:
        self._end()


def _end(process: subprocess.Popen[bytes], descriptors: list[int], scratch: str, owner: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
    if os.getpid() != owner:
        return
    try:
        process.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stderr is not None:
        process.stderr.close()
    shutil.rmtree(scratch, ignore_errors=True)


def _outcome(answer: dict[str, object], limits: ProgramLimits) -> Outcome:
    code, stderr = cast("int", answer["code"]), str(answer["stderr"])
    reasons = {
        "": "",
        "wall": f"over {limits.wall_s:g} s",
        "cpu": f"over {limits.cpu_s} s of CPU time",
        "output": f"over {limits.output_bytes >> 10} KiB of output",
    }
    stopped = reasons[str(answer["stopped"])]
    if not stopped and code < 0:
        stopped = f"killed by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"killed by {-code}"
    if not stopped and code and "MemoryError" in stderr.splitlines()[-1:]:
        stopped = f"over {limits.memory_bytes >> 20} MiB of memory"
    seconds = {name: cast("float", answer[name]) for name in ("wall_s", "cpu_s")}
    return Outcome(stdout=str(answer["stdout"]), exit_code=code, stopped=stopped, stderr=stderr, **seconds)
