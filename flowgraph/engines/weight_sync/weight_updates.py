"""Bring new weights to running servers. Any process that has the whole weights may: the trainer, or the handle.

The order is always: hold the servers, send, check, stamp the version, let them go on. A server whose update failed is
stamped INCOMPLETE, so that no sample of it is taken for one of either version.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import urlsplit

from flowgraph.engines.servers.server_process import ServerAddress
from flowgraph.engines.sglang.http import ServerControl
from flowgraph.engines.weight_sync.weight_checks import WeightChecks
from flowgraph.engines.weight_sync.weight_transports import (
    LOOPBACK,
    ByDisk,
    ByGroup,
    ByMemory,
    WeightTransport,
    buckets,
    everywhere,
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
    """Updates of the same servers, one after another; a process group is kept between them until `close`.

    `by` is the way: through a folder in `scratch` that the servers can read, a process group at `address`, or memory
    of this machine. `hold` says how servers come to a halt: once they are idle; at once, with running requests put back
    and their caches computed anew; or at once with running requests going on from the old weights' caches, which later
    requests of the same prompts read too. Each call has `limit_s` seconds.
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
        self._way: WeightTransport = (
            self.memory() if by == "memory" else _way(by, self.doors, scratch, address, limit_s)
        )

    def send(self, weights: Weights, version: int) -> None:
        """Replace every server's weights, and have them stamp `version`.

        Raises WorkerError where a server is not reached, refuses, takes too long, or holds other weights after it;
        the servers are then stamped INCOMPLETE, as far as they answer, and go on.
        """
        checks = WeightChecks(self.doors)
        with self._controls() as controls:
            self._way.stage(buckets(checks.watch(weights), self._bucket_bytes))
            with held(controls, self.hold, self._limit_s):
                try:
                    with _session(controls, self._way.session):
                        self._way.deliver(controls)
                    checks.compare(controls)
                    everywhere(controls, lambda control: control.stamp(str(version)))
                except BaseException:
                    _each(controls, lambda control: control.stamp(INCOMPLETE))
                    raise

    def close(self) -> None:
        """End the process group, if there is one, and leave no file."""
        with self._controls() as controls:
            self._way.close(controls)

    @contextlib.contextmanager
    def _controls(self) -> Generator[list[ServerControl]]:
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(self.control(door, self._limit_s)) for door in self.doors]

    def __enter__(self) -> WeightUpdates:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _way(
    by: Literal["disk", "group"], doors: Sequence[ServerAddress], scratch: Path | None, address: str, limit_s: float
) -> WeightTransport:
    if by == "group":
        return ByGroup(address or _address(doors), limit_s)
    if scratch is None:
        raise WorkerError("an update by disk needs a scratch folder that the servers can read")
    folder = Path(doors[0].folder) if doors and doors[0].folder else None
    return ByDisk(scratch, folder if folder is not None and folder.is_dir() else None)


def _address(doors: Sequence[ServerAddress]) -> str:
    """Give the address of this machine that the servers reach: loopback, if all of them are there."""
    import socket

    hosts = [(urlsplit(door.url).hostname or LOOPBACK, urlsplit(door.url).port or 80) for door in doors]
    for host, port in hosts:
        if host not in (LOOPBACK, "localhost", "::1"):
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((host, port))  # sends nothing: it asks which of our addresses leads there
                return str(probe.getsockname()[0])
    return LOOPBACK


@contextlib.contextmanager
def held(controls: Sequence[ServerControl], hold: Hold, limit_s: float) -> Generator[None]:
    """Keep servers from generating inside; afterwards they go on, whatever happened."""
    try:
        for control in controls:
            _hold(control, hold, limit_s)
        yield
    finally:
        _each(controls, lambda control: control.post("/continue_generation"))


def _hold(control: ServerControl, hold: Hold, limit_s: float) -> None:
    if hold == "in_place":
        control.post("/pause_generation", mode="in_place")
        return
    until = time.monotonic() + limit_s
    while hold == "idle" and not control.flush():  # refused while there is work
        if time.monotonic() > until:
            raise WorkerError(
                f"{control.door.name} is not idle after {limit_s:.0f} s", hint="hold='retract' does not wait"
            )
        time.sleep(LOOK_S)
    control.post("/pause_generation", mode="retract")
    while not control.flush():  # what had just begun is being put back
        if time.monotonic() > until:
            raise WorkerError(f"{control.door.name} does not put its requests back within {limit_s:.0f} s")
        time.sleep(LOOK_S)


@contextlib.contextmanager
def _session(controls: Sequence[ServerControl], wanted: bool) -> Generator[None]:
    """Announce and close an update, for versions that want it."""
    asked = [control for control in controls if wanted and control.door.session]
    everywhere(asked, lambda control: control.post("/begin_weight_update"))
    try:
        yield
    except BaseException:
        _each(asked, lambda control: control.post("/end_weight_update"))
        raise
    everywhere(asked, lambda control: control.post("/end_weight_update"))


def _each(controls: Sequence[ServerControl], call: Any) -> None:
    """Make one call to each server that answers; what fails has failed before."""
    for control in controls:
        with contextlib.suppress(FlowError):
            call(control)
