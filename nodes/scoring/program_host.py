"""The host of programs: it forks one process for each program, warm, and never reads a program itself.

`nodes.scoring.programs` starts this file as a script, in a process that is confined already. For each program the host
forks a keeper. The keeper reads the request, forks the program, watches it, sends how it ended, and is gone: so nothing
of one program, neither its code nor its input or output, is in the memory from which the next is forked.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import json
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

READ_BYTES = 65_536
STDERR_TAIL_BYTES = 2_048
REQUEST_BYTES = 256 << 20
CLOSED, LEFT_FILES = 20, 21  # exit codes: of a keeper that read the end of the channel, of a host that is spent
_SUBREAPER, _PARENT_DEATH_SIGNAL = 36, 1  # prctl


def beside(name: str) -> ModuleType:
    """Import a file of this folder, without importing the package, and return its module; `name` has no `.py`."""
    spec = importlib.util.spec_from_file_location(f"_{name}", os.path.join(os.path.dirname(__file__), f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = sys.modules[f"_{name}"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_exactly(descriptor: int, size_bytes: int) -> bytes:
    """Return the next `size_bytes` bytes of a descriptor, or fewer at the end of its channel; block until then."""
    parts: list[bytes] = []
    while size_bytes and (part := os.read(descriptor, min(size_bytes, 1 << 20))):
        parts.append(part)
        size_bytes -= len(part)
    return b"".join(parts)


def write_frame(descriptor: int, message: Mapping[str, object]) -> None:
    """Write one message to a descriptor: its length in eight bytes, and JSON; block until all of it is written."""
    payload = json.dumps(message).encode()
    view = memoryview(struct.pack(">Q", len(payload)) + payload)
    while view:
        view = view[os.write(descriptor, view) :]


class Keeper:
    """Reads one request, runs its program in a fork, and sends how it ended."""

    def __init__(self, questions: int, answers: int, child: ModuleType, names: dict[str, object]) -> None:
        self.questions, self.answers, self.child, self.names = questions, answers, child, names

    def keep(self) -> int:
        """Run the program of the next request and send how it ended; return the exit code of this process.

        The code is 0, `CLOSED` if the channel has ended, and 1 if the request is over 256 MiB or the program could not
        be confined.
        """
        header = read_exactly(self.questions, 8)
        if len(header) < 8:
            return CLOSED
        (size_bytes,) = struct.unpack(">Q", header)
        if size_bytes > REQUEST_BYTES:
            return 1
        request = json.loads(read_exactly(self.questions, size_bytes))
        pipes = [os.pipe() for _ in range(4)]
        began_s = time.monotonic()
        process = os.fork()
        if process == 0:
            self._be_program(request, pipes)
        (stdin_r, stdin), (stdout, stdout_w), (stderr, stderr_w), (walls, walls_w) = pipes
        for descriptor in (stdin_r, stdout_w, stderr_w, walls_w):
            os.close(descriptor)
        up = os.read(walls, 256)
        if up != b"up":
            why = up.decode(errors="replace") or "it ended before its walls were up"
            write_frame(self.answers, {"unheld": why})
            return 1
        watched = Watched(process, stdin, stdout, stderr, request)
        stopped = watched.watch(began_s + request["limits"]["wall_s"])
        for kill in (os.kill, os.killpg):
            with suppress(OSError):
                kill(process, signal.SIGKILL)
        _, status, used = os.wait4(process, 0)
        stopped = stopped or watched.drain()
        limits = request["limits"]
        code, cpu_s = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
        answer = {
            "stdout": watched.stdout.decode(errors="replace"),
            "stderr": watched.stderr.decode(errors="replace"),
            "code": code,
            "stopped": stopped or ("cpu" if code == -signal.SIGXCPU or (code < 0 and cpu_s >= limits["cpu_s"]) else ""),
            "wall_s": time.monotonic() - began_s,
            "cpu_s": cpu_s,
        }
        write_frame(self.answers, answer)
        return 0

    def _be_program(self, request: dict[str, Any], pipes: list[tuple[int, int]]) -> None:
        code = 1
        try:
            end_with_parent()
            os.setpgid(0, 0)
            walls = pipes[3][1]
            try:
                for descriptor, end in enumerate((pipes[0][0], pipes[1][1], pipes[2][1])):
                    os.dup2(end, descriptor)
                self.child.limit({**request["limits"], "core_bytes": 0})
                sys.modules["_grader_inside"].enclose()
                self.child.forbid_processes()
            except OSError as error:
                os.write(walls, str(error).encode())
                os._exit(1)
            os.write(walls, b"up")
            os.closerange(3, self.child.LAST_DESCRIPTOR)
            code = self.child.run(request["code"], self.names)
        finally:
            os._exit(code)


class Watched:
    """A running program: the input that it has not read yet, and the output that it has written so far.

    Of standard error, only the last 2,048 bytes are kept.
    """

    def __init__(self, process: int, stdin: int, stdout: int, stderr: int, request: dict[str, Any]) -> None:
        self.descriptors = (stdin, stdout, stderr)
        for descriptor in self.descriptors:
            os.set_blocking(descriptor, False)
        self.unread = memoryview(request["stdin"].encode(errors="replace"))
        self.stdout, self.stderr, self.written_bytes = bytearray(), bytearray(), 0
        self.limit_bytes = request["limits"]["output_bytes"]
        self.ended = os.pidfd_open(process)
        self.open = {stdout, stderr}

    def watch(self, end_s: float) -> str:
        """Feed and read the program until it ends; return "", or why it must be stopped: "output" or "wall".

        "wall" means that `end_s`, on the monotonic clock, has passed. The program is not killed here.
        """
        stdin, _, _ = self.descriptors
        if not self.unread:
            os.close(stdin)
        while True:
            waiting = [stdin] if self.unread else []
            readable, writable, _ = select.select(
                [self.ended, *self.open], waiting, [], max(0.0, end_s - time.monotonic())
            )
            if writable:
                self._feed(stdin)
            for descriptor in self.open.intersection(readable):
                self._read(descriptor)
            if self.written_bytes > self.limit_bytes:
                return "output"
            if self.ended in readable:
                return ""
            if time.monotonic() >= end_s:
                return "wall"

    def drain(self) -> str:
        """Read what an ended program has left in its pipes; do not wait for processes that still hold them open.

        Returns "output" if the program wrote more than its limit, else "".
        """
        for descriptor in list(self.open):
            while self.written_bytes <= self.limit_bytes and self._read(descriptor):
                pass
        return "output" if self.written_bytes > self.limit_bytes else ""

    def _feed(self, stdin: int) -> None:
        try:
            self.unread = self.unread[os.write(stdin, self.unread[:READ_BYTES]) :]
        except BlockingIOError:
            return
        except OSError:  # it closed its input
            self.unread = self.unread[:0]
        if not self.unread:
            os.close(stdin)

    def _read(self, descriptor: int) -> bool:
        try:
            part = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        if not part:
            self.open.discard(descriptor)
        self.written_bytes += len(part)
        if descriptor == self.descriptors[1]:
            self.stdout += part
        else:
            self.stderr = (self.stderr + part)[-STDERR_TAIL_BYTES:]
        return bool(part)


def confine(readable: list[str], scratch: str) -> None:
    """Allow this process, and all that it starts, only to read the paths `readable` and to write in `scratch`.

    This cannot be undone; `/dev/null` stays writable. Raises the errors of sandlock if the kernel cannot do this.
    """
    import sandlock

    optional = sandlock.Protection
    weaker = [optional.NET_TCP, optional.FS_IOCTL_DEV, optional.SIGNAL_SCOPE, optional.ABSTRACT_UNIX_SOCKET_SCOPE]
    sandlock.confine(sandlock.Sandbox(fs_readable=readable, fs_writable=[scratch, "/dev/null"], allow_degraded=weaker))


def end_with_parent() -> None:
    """Have the kernel kill this process (SIGKILL) when its parent ends."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def main(readable: list[str], scratch: str) -> None:
    """Confine this process, then run programs one after another, until the parent closes the channel; never returns.

    The exit code is 0 after the end of the channel, `LEFT_FILES` if a program left files in `scratch` that cannot be
    removed, and 1 if this process cannot be confined or a keeper fails.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    questions, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    child, inside, guard = (beside(name) for name in ("program_child", "grader_inside", "grader_guard"))
    names = child.prelude()
    os.chdir(scratch)
    try:
        confine(readable, scratch)
        inside.close_sockets()
    except Exception as error:  # noqa: BLE001 - whatever the library raises, no program must run
        write_frame(answers, {"unheld": " ".join(str(error).split())[:300]})
        os._exit(1)
    write_frame(answers, {"ready": True})
    gc.collect()
    gc.freeze()
    while True:
        select.select([questions], [], [])
        keeper = os.fork()
        if keeper == 0:
            code = 1
            try:
                end_with_parent()
                code = Keeper(questions, answers, child, names).keep()
            finally:
                os._exit(code)
        _, status = os.waitpid(keeper, 0)
        if status:
            os._exit(0 if os.waitstatus_to_exitcode(status) == CLOSED else 1)
        if not guard.empty(scratch):
            os._exit(LEFT_FILES)


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    main(arguments["readable"], arguments["scratch"])
