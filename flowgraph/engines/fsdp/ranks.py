"""The ranks of a pool as a `torch.distributed` process group: how they connect, and what they exchange."""

from __future__ import annotations

import os
import socket
from collections.abc import Generator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psutil
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from flowgraph.errors import WorkerError

if TYPE_CHECKING:
    from torch import Tensor

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}  # by device type; counts and sums always travel on the CPU
_GROUPS = dict[tuple[int, ...], Any]()
"""Groups of this process in the current meeting, by their members."""

LOOPBACK, LOCALHOST = frozenset({"127.0.0.1", "::1"}), "localhost"


@dataclass(frozen=True)
class ProcessRanks:
    """The processes of one group, seen from one of them; every rank makes the same calls in the same order.

    A rank that waits longer than `limit_s` seconds for the others gets torch's RuntimeError.
    """

    group: Any  # torch.distributed.ProcessGroup
    limit_s: float

    @property
    def rank(self) -> int:
        """Return the index of this process in the group, from 0."""
        return dist.get_rank(self.group)

    @property
    def count(self) -> int:
        """Return the number of processes in the group."""
        return dist.get_world_size(self.group)

    def total(self, numbers: Tensor) -> Tensor:
        """Return the elementwise sum [n], in float64, of `numbers` [n] over all ranks; n is the same on each rank.

        Every rank must call this. The result is on the device of `numbers`.
        """
        summed = numbers.detach().to("cpu", torch.float64, copy=True)
        if len(summed):
            dist.all_reduce(summed, group=self.group)
        return summed.to(numbers.device)

    def union(self, numbers: Tensor) -> Tensor:
        """Return the `numbers` [n] of all ranks as one int64 tensor, in order of rank; n may differ between ranks.

        Every rank must call this. The result is on the device of `numbers`.
        """
        local = numbers.detach().to("cpu", torch.int64)
        lengths = torch.cat(self._gather(torch.tensor([len(local)]))).tolist()
        padded = torch.zeros(max(lengths), dtype=torch.int64)
        padded[: len(local)] = local
        parts = self._gather(padded) if len(padded) else [padded]
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=False)]).to(numbers.device)

    def _gather(self, numbers: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(numbers) for _ in range(self.count)]
        dist.all_gather(parts, numbers, group=self.group)
        return parts

    def part(self, count: int) -> ProcessRanks | None:
        """Return the group of the first `count` ranks of this group, or None on all other ranks.

        Every process that has joined must call this. If `count` is the number of ranks, the result is this group.
        """
        if count == self.count:
            return self
        members = dist.get_process_group_ranks(self.group)[:count]
        group = dist.new_group(members, timeout=timedelta(seconds=self.limit_s))
        return ProcessRanks(group, self.limit_s) if dist.get_rank() in members else None

    def grid(self, width: int) -> tuple[ProcessRanks, ProcessRanks]:
        """Arrange the ranks in rows of `width` adjacent ranks; return the groups of this rank's column and of its row.

        `width` must divide the number of ranks. Every rank of this group must call this; other processes need not.
        """
        members: list[int] = dist.get_process_group_ranks(self.group)
        start = self.rank - self.rank % width
        column, row = members[self.rank % width :: width], members[start : start + width]
        return self._of(column), self._of(row)

    def _of(self, members: list[int]) -> ProcessRanks:
        if len(members) == self.count:
            return self
        if tuple(members) not in _GROUPS:
            with _named_by_members(members):
                limit = timedelta(seconds=self.limit_s)
                _GROUPS[tuple(members)] = dist.new_group(members, timeout=limit, use_local_synchronization=True)
        return ProcessRanks(_GROUPS[tuple(members)], self.limit_s)

    def leave(self) -> None:
        """Destroy this group; has no effect if this process is in no group.

        If this is the group of all processes, all smaller groups end too, and the process may join another group.
        """
        if dist.is_initialized():
            dist.destroy_process_group(self.group)


@contextmanager
def _named_by_members(members: list[int]) -> Generator[None]:
    """Name a new group after its members: torch names it by each process's number of groups, which may differ."""
    untyped: Any = c10d
    plain = untyped._hash_ranks_to_str
    untyped._hash_ranks_to_str = lambda ranks: f"laid out: {'-'.join(map(str, members))}"
    try:
        yield
    finally:
        untyped._hash_ranks_to_str = plain


def join(rank: int, count: int, meeting: Path | str, *, device: str = "cpu", limit_s: float) -> ProcessRanks:
    """Connect this process to the others as rank `rank` of `count`, and return the group of all processes.

    Blocks until all ranks have joined. A process is in one such group at a time. `meeting` is the path of a new file if
    all processes are on one machine; they then listen on loopback only. For several machines it is `tcp://host:port`,
    where rank 0 listens on that port of all its addresses. `device` is `cpu`, `cuda`, or one device such as `cuda:1`,
    which becomes the current one. `limit_s` is the longest wait for the others in seconds, here and in each later call;
    torch raises RuntimeError after it. Raises WorkerError for a machine without loopback. Sets the environment
    variables for the network interfaces of gloo and NCCL.
    """
    if ":" in device:
        torch.cuda.set_device(torch.device(device))
    host = LOCALHOST if isinstance(meeting, Path) else urlsplit(meeting).hostname or LOCALHOST
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        # By default each listens on the address of the machine's own name, which is often 127.0.1.1.
        if host in {*LOOPBACK, LOCALHOST}:
            os.environ[name] = loopback_interface()
        elif interface := interface_to(host):
            os.environ.setdefault(name, interface)
    where: dict[str, Any] = {"init_method": meeting}
    if isinstance(meeting, Path):
        untyped: Any = dist
        where = {"store": untyped.FileStore(str(meeting), count)}
    backend, limit = BACKENDS[torch.device(device).type], timedelta(seconds=limit_s)
    dist.init_process_group(backend, rank=rank, world_size=count, timeout=limit, **where)
    _GROUPS.clear()
    assert dist.group.WORLD is not None, "the group of all processes was just made"
    return ProcessRanks(dist.group.WORLD, limit_s)


def loopback_interface() -> str:
    """Return the name of the loopback network interface, such as `lo`; raise WorkerError if the machine has none."""
    for name in _interfaces(LOOPBACK):
        return name
    raise WorkerError.not_started(
        "the ranks of a pool", "no network interface has a loopback address", "ip link set lo up"
    )


def interface_to(host: str) -> str:
    """Return the name of the network interface that routes to `host`; "" if `host` is unknown or has no route.

    `host` is a name or an address, also of this machine. Nothing is sent to it.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing: the system only chooses a route
            local = str(probe.getsockname()[0])
    except OSError:
        return ""
    return next(iter(_interfaces({local})), "")


def _interfaces(addresses: Set[str]) -> list[str]:
    bound = psutil.net_if_addrs().items()
    return [name for name, ends in bound if any(end.address.partition("%")[0] in addresses for end in ends)]
