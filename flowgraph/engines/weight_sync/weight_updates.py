"""Send new weights to running servers, from any process that has the full weights: the trainer, or the handle.

The order is always: pause the servers, send, check, set the version, resume. A server whose update failed gets the
version INCOMPLETE, so that its samples count as samples of neither version.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self
from urllib.parse import urlsplit

from flowgraph.engines.servers.server_control import ServerControl
from flowgraph.engines.servers.server_process import ServerAddress
from flowgraph.engines.weight_sync.weight_checks import WeightChecks
from flowgraph.engines.weight_sync.weight_transports import (
    LOOPBACK,
    ByDisk,
    ByGroup,
    ByMemory,
    WeightTransport,
    buckets,
    call_all,
)
from flowgraph.errors import FlowError, WorkerError

if TYPE_CHECKING:
    from torch import Tensor

By = Literal["disk", "group", "memory"]
Hold = Literal["idle", "retract", "in_place"]
Weights = Iterable[tuple[str, "Tensor"]]

INCOMPLETE = "incomplete"
BUCKET_BYTES = 2**29
LIMIT_S = 1800.0  # of one call: a large model may be read from a slow disk
LOOK_S = 0.02


class WeightUpdates:
    """Updates of the same servers, one after another; a process group remains open between them until `close`.

    `by` is the transport: a folder in `scratch` that the servers can read, a process group at `address`, or memory of
    this machine. `hold` selects how servers pause: "idle" waits until they are idle; "retract" pauses at once, and the
    caches of running requests are recomputed; "in_place" pauses at once, and running requests continue with caches of
    the old weights, which later requests with the same prompt and cache salt use too. Each call may take `limit_s`
    seconds. Raises WorkerError for "disk" without `scratch`.
    """

    control: ClassVar[type[ServerControl]] = ServerControl
    memory: ClassVar[type[ByMemory]] = ByMemory

    def __init__(
        self,
        doors: Sequence[ServerAddress],
        *,
        by: By = "disk",
        scratch: Path | None = None,
        hold: Hold = "idle",
        limit_s: float = LIMIT_S,
        bucket_bytes: int = BUCKET_BYTES,
        address: str = "",
    ) -> None:
        self.doors = tuple(doors)
        self.hold: Hold = hold
        self._limit_s, self._bucket_bytes = limit_s, bucket_bytes
        self._way: WeightTransport
        if by == "memory":
            self._way = self.memory()
        elif by == "group":
            self._way = ByGroup(address or _own_address(self.doors), limit_s)
        else:
            self._way = ByDisk(scratch, Path(doors[0].folder) if doors and doors[0].folder else None)

    def send(self, weights: Weights, version: int) -> None:
        """Replace the weights of every server by `weights`, and set the version that servers report to `version`.

        Servers are paused during the update, and resume afterwards, also after an error. If an error occurs when all
        are paused, the servers that still answer report the version "incomplete", so that their samples are refused.
        Raises WorkerError if weights do not fit or cannot be written, or if a server is not reached, refuses, takes too
        long, or has other weights afterwards; and ModelError if the servers' model folder can be read but has invalid
        weight files.
        """
        checks = WeightChecks(self.doors)
        with self._controls() as controls:
            self._way.stage(buckets(checks.watch(weights), self._bucket_bytes))
            try:
                for control in controls:
                    _pause(control, self.hold, self._limit_s)
                try:
                    with _session([control for control in controls if self._way.session and control.door.session]):
                        self._way.deliver(controls)
                    checks.compare(controls)
                    call_all(controls, lambda control: control.stamp(str(version)))
                except BaseException:
                    _try_each(controls, lambda control: control.stamp(INCOMPLETE))
                    raise
            finally:
                _try_each(controls, lambda control: control.post("/continue_generation"))

    def close(self) -> None:
        """Release what the transport has allocated: its process group, here and on the servers, or its files."""
        with self._controls() as controls:
            self._way.close(controls)

    @contextlib.contextmanager
    def _controls(self) -> Generator[list[ServerControl]]:
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(self.control(door, self._limit_s)) for door in self.doors]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _own_address(doors: Sequence[ServerAddress]) -> str:
    import socket

    for url in (urlsplit(door.url) for door in doors):
        host, port = url.hostname or LOOPBACK, url.port or 80
        if host not in (LOOPBACK, "localhost", "::1"):
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((host, port))  # sends nothing: it asks which of our addresses leads there
                return str(probe.getsockname()[0])
    return LOOPBACK


def _pause(control: ServerControl, hold: Hold, limit_s: float) -> None:
    if hold == "in_place":
        control.post("/pause_generation", mode="in_place")
        return
    until = time.monotonic() + limit_s
    while hold == "idle" and not control.flush():  # refused while there is work
        if time.monotonic() > until:
            what = f"{control.door.name} is not idle after {limit_s:.0f} s"
            raise WorkerError(what, hint="hold='retract' does not wait")
        time.sleep(LOOK_S)
    control.post("/pause_generation", mode="retract")
    while not control.flush():  # requests that had just begun are being retracted
        if time.monotonic() > until:
            raise WorkerError(f"{control.door.name} did not return its requests within {limit_s:.0f} s")
        time.sleep(LOOK_S)


@contextlib.contextmanager
def _session(controls: Sequence[ServerControl]) -> Generator[None]:
    call_all(controls, lambda control: control.post("/begin_weight_update"))
    try:
        yield
    except BaseException:
        _try_each(controls, lambda control: control.post("/end_weight_update"))
        raise
    call_all(controls, lambda control: control.post("/end_weight_update"))


def _try_each(controls: Sequence[ServerControl], call: Callable[[ServerControl], object]) -> None:
    """Make one call to each server, and ignore errors, because the cause is already being raised."""
    for control in controls:
        with contextlib.suppress(FlowError):
            call(control)
