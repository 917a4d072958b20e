"""A server that belongs to a run: a child process group that is started, monitored, and always ended.

Not here: the program of the server (`server_engine`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from flowgraph.engines.servers.process_groups import END_S, STOPPED_S, forget_shared_memory, kill, members
from flowgraph.errors import WorkerError

TAIL_LINES = 12
POLL_S = 0.1


@dataclass(frozen=True)
class ServerAddress:
    """The address and properties of one running server; it can be sent between processes.

    `version` is the engine's version, `folder` the model's folder, `precision` the weights' dtype ("" if unknown), and
    `tensor` the number of devices over which the model is split. `sleeps` means that the server can release memory,
    `keeps` that its weights are restored afterwards, `session` that updates must be announced and closed, `tried` that
    we ran this version on this kind of device. The keys are secret and not shown by `repr`.
    """

    url: str
    name: str
    version: str
    device: str = "cpu"
    precision: str = ""
    tensor: int = 1
    folder: str = ""
    sleeps: bool = False
    keeps: bool = False
    session: bool = True
    tried: bool = True
    key: str = field(default="", repr=False)
    admin_key: str = field(default="", repr=False)


@dataclass(eq=False)
class ServerProcess:
    """A running server that this process started; `log` is the file of its output."""

    door: ServerAddress
    process: subprocess.Popen[bytes]
    log: Path
    _stopped: dict[int, float] = field(default_factory=dict[int, float])

    def __post_init__(self) -> None:
        self._ended = weakref.finalize(self, end_group, self.process)

    def check(self) -> None:
        """Raise WorkerError, with the exit status and the last lines of the log, if the server has ended."""
        if self.process.poll() is not None:
            notes = tail(self.log, (self.door.key, self.door.admin_key))
            raise WorkerError(f"{self.door.name} ended: {describe_exit(self.process)}", notes=notes)

    def check_stopped(self) -> None:
        """Raise WorkerError if a process of the server's group is stopped by a signal, such as SIGSTOP.

        A process counts as stopped if all calls over more than 4 seconds find it stopped: the first call never raises.
        """
        import psutil

        now, stopped = time.monotonic(), dict[int, float]()
        for pid in (self.process.pid, *(member.pid for member in members(self.process.pid))):
            with contextlib.suppress(psutil.Error):
                if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
                    stopped[pid] = self._stopped.get(pid, now)
                    if now - stopped[pid] > STOPPED_S:
                        raise WorkerError.stopped(f"{psutil.Process(pid).name()} ({pid}) of {self.door.name}", [])
        self._stopped = stopped

    def close(self) -> None:
        """Kill the server and its whole group and wait for their end, as `end_group` does; later calls do nothing."""
        self._ended()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start(
    command: Sequence[str], job: Mapping[str, Any], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Start a command as the leader of a new session, send it `job` as a line of JSON, and return the process.

    The line goes to the process's standard input, which stays open: the launcher ends its group when the input ends, so
    that no process remains when this process is killed. `environment` has all environment variables of the process.
    Output is appended to `log`, whose folder is created. Raises OSError if the log or the command cannot be opened.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as out:
        process = subprocess.Popen(
            list(command),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # it ended at once, which `await_ready` reports
        process.stdin.write(json.dumps(dict(job)).encode() + b"\n")
    return process


def await_ready(
    process: subprocess.Popen[bytes],
    ready: Callable[[], bool],
    name: str,
    log: Path,
    secrets: Sequence[str],
    limit_s: float,
) -> None:
    """Wait until `ready()` returns true; it is called again 0.1 seconds after each other result.

    Raises WorkerError if the process ends or `limit_s` seconds pass before that. The error names the server `name`, and
    has the last lines of `log`, with `secrets` masked.
    """
    until = time.monotonic() + limit_s
    while not ready():
        if process.poll() is not None:
            what = f"{name} could not be started: {describe_exit(process)}"
            raise WorkerError(what, notes=tail(log, secrets), hint=f"its log is {log}")
        if time.monotonic() > until:
            what = f"{name} is not ready after {limit_s:.0f} s"
            raise WorkerError(what, notes=tail(log, secrets), hint=f"its log is {log}")
        time.sleep(POLL_S)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its whole group, unlink their shared memory, and wait until they have ended.

    Waits up to 10 seconds for `process`, and then up to 10 seconds for the others. Processes that have already ended
    are ignored. Raises subprocess.TimeoutExpired if `process` has not ended by then; if others have not, this is
    ignored.
    """
    import psutil

    forget_shared_memory(process.pid)
    group = kill(process.pid)
    if process.stdin is not None:
        process.stdin.close()
    process.wait(END_S)
    psutil.wait_procs(group, timeout=END_S)


def describe_exit(process: subprocess.Popen[bytes]) -> str:
    """Return how a process ended, such as "killed by SIGKILL" or "exit status 1"; "it is running" before its end."""
    code = process.poll()
    if code is None:
        return "it is running"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def tail(log: Path, secrets: Sequence[str] = ()) -> list[str]:
    """Return the last 12 non-empty lines of a log, or fewer, with `secrets` masked; [] if the log cannot be read.

    Lines are cut to 400 characters, and only the last 16 KiB are read.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16384))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    return [line[:400] for line in text.splitlines() if line.strip()][-TAIL_LINES:]


def reserve_port(host: str, port: int, name: str) -> socket.socket:
    """Return a socket that reserves a port on address `host` without listening; port 0 reserves any free one.

    Until the socket is closed, the system gives the port to no other process, but a server that sets SO_REUSEADDR, as
    servers of asyncio do, can listen on the port. Raises WorkerError, which names the server `name`, if the port cannot
    be bound, for example because it is taken.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        hint = "leave out the port to use a free one" if port else ""
        raise WorkerError.not_started(name, f"{host}:{port}: {error.strerror}", hint) from None
    return bound
