"""List the ports on which Ray and inference servers listen on this machine, and whether other machines reach them."""

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
    """A socket on which a process listens."""

    process: str
    pid: int
    address: str
    port: int

    @property
    def beyond(self) -> bool:
        """Return whether other machines can reach the address, ignoring firewalls; True if it is not an IP address."""
        with contextlib.suppress(ValueError):
            address = ipaddress.ip_address(self.address.partition("%")[0])
            return not (getattr(address, "ipv4_mapped", None) or address).is_loopback
        return True

    def __str__(self) -> str:
        where = f"[{self.address}]" if ":" in self.address else self.address
        reach = ", for other machines too" if self.beyond else ""
        return f"{self.process} ({self.pid}) on {where}:{self.port}{reach}"


def listening_sockets(processes: Iterable[Any] | None = None) -> list[ListeningSocket]:
    """Return the listening TCP sockets of `processes` (`psutil.Process`), sorted by process name, pid and port.

    By default these are all processes of Ray and of inference engines on this machine. Processes of other users are
    left out if the system denies access to them.
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
