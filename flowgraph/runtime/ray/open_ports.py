"""The ports on which Ray and inference servers listen on this machine, and whether other machines reach them."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

# Ray's servers and workers by the names of their processes; inference servers by their command lines.
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
        """Return whether other machines reach it, unless a firewall prevents that."""
        with contextlib.suppress(ValueError):
            address = ipaddress.ip_address(self.address.partition("%")[0])
            return not (getattr(address, "ipv4_mapped", None) or address).is_loopback
        return True

    def __str__(self) -> str:
        where = f"[{self.address}]" if ":" in self.address else self.address
        reach = ", for other machines too" if self.beyond else ""
        return f"{self.process} ({self.pid}) on {where}:{self.port}{reach}"


def listening(processes: Iterable[Any] | None = None) -> list[ListeningSocket]:
    """List the listening sockets of processes (`psutil.Process`), by default of all Ray's and engines' processes here.

    The sockets of other users are left out where the system hides them.
    """
    import psutil

    sockets = set[ListeningSocket]()
    for process in _of_ray_and_engines() if processes is None else processes:
        with contextlib.suppress(psutil.Error):
            for socket in process.net_connections(kind="tcp"):
                if socket.status == psutil.CONN_LISTEN:
                    address, port = str(socket.laddr.ip), int(socket.laddr.port)
                    sockets.add(ListeningSocket(process.name(), int(process.pid), address, port))
    return sorted(sockets, key=lambda socket: (socket.process, socket.pid, socket.port))


def _of_ray_and_engines() -> Iterator[Any]:
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            name, command = process.name(), " ".join(process.cmdline())
            if name.startswith(NAMES) or any(part in command for part in COMMANDS):
                yield process
