"""What listens on this machine for Ray and for engines: which process, at which address, reached from where."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

# Ray's servers and workers by the names of their processes, and ours: servers of engines are started by this package.
NAMES = ("gcs_server", "raylet", "ray::", "ray-dashboard", "dashboard", "log_monitor", "monitor")
COMMANDS = ("ray/_private", "ray/dashboard", "ray/autoscaler", "flowgraph/engines", "sglang", "vllm")


@dataclass(frozen=True)
class ListeningSocket:
    """One socket that a process listens on."""

    process: str
    pid: int
    address: str
    port: int

    @property
    def beyond(self) -> bool:
        """Say whether other machines reach it, as far as no firewall is between."""
        with contextlib.suppress(ValueError):
            told = ipaddress.ip_address(self.address.partition("%")[0])
            return not (getattr(told, "ipv4_mapped", None) or told).is_loopback
        return True

    def __str__(self) -> str:
        where = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.process} ({self.pid}) on {where}:{self.port}" + (
            ", for other machines too" if self.beyond else ""
        )


def listening(processes: Iterable[Any] | None = None) -> list[ListeningSocket]:
    """List what processes listen on: of these (`psutil.Process`), else of all of Ray and of engines on this machine.

    What belongs to another user is left out where the system does not tell.
    """
    found = {each for process in (_known() if processes is None else processes) for each in _sockets(process)}
    return sorted(found, key=lambda each: (each.process, each.pid, each.port))


def _known() -> Iterator[Any]:
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            name, command = process.name(), " ".join(process.cmdline())
            if name.startswith(NAMES) or any(part in command for part in COMMANDS):
                yield process


def _sockets(process: Any) -> Iterator[ListeningSocket]:
    import psutil

    with contextlib.suppress(psutil.Error):
        for each in process.net_connections(kind="tcp"):
            if each.status == psutil.CONN_LISTEN:
                yield ListeningSocket(process.name(), int(process.pid), str(each.laddr.ip), int(each.laddr.port))
