"""This machine as a cluster: one node, one CPU device, and the memory that is free to us now."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from flowgraph.cluster import Cluster, Device, Node
from flowgraph.errors import SettingError

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
# Files of one control group, by version: the limit, the use, and the part of the use that is cache and can be dropped.
# Source: Linux kernel documentation, admin-guide/cgroup-v2 (memory) and cgroup-v1/memory.
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def laptop(memory_bytes: int | None = None) -> Cluster:
    """Give this machine as one node with one CPU device, whose memory is what is free to us or what is given.

    Raises SettingError for an amount that is not positive.
    """
    if memory_bytes is not None and memory_bytes < 1:
        raise SettingError.refused("", "memory", memory_bytes, "should be more than nothing")
    memory = free_bytes() if memory_bytes is None else memory_bytes
    device = Device(kind="cpu", memory_bytes=memory)
    return Cluster(nodes=(Node(name="laptop", devices=(device,), host_memory_bytes=memory, cores=available_cores()),))


def free_bytes() -> int:
    """Give the memory that is free to us: what the system has available, or what our control groups leave."""
    import psutil

    return max(1, min([int(psutil.virtual_memory().available), *cgroup_free_bytes(CGROUPS, MEMBERSHIP)]))


def cgroup_free_bytes(root: Path, membership: Path) -> Iterator[int]:
    """Give what each control group that holds us leaves free, its parents' included: limit - use + droppable cache.

    `root` is where control groups are mounted, `membership` the file that says which are ours. A missing file is no
    error: then that group has no limit that can be read.
    """
    for line in (_read(membership) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        v1 = "memory" in controllers.split(",")
        if not controllers or v1:
            base = root / "memory" if v1 else root
            own = base / path.strip("/")
            for folder in (own, *(parent for parent in own.parents if parent.is_relative_to(base))):
                yield from _left(folder, _V1 if v1 else _V2)


def _left(folder: Path, names: tuple[str, str, str]) -> Iterator[int]:
    limit, used = (_read(folder / name) for name in names[:2])
    if limit is not None and used is not None and limit.isdecimal() and used.isdecimal():
        stat = dict(line.split() for line in (_read(folder / "memory.stat") or "").splitlines() if line.count(" ") == 1)
        cache = int(stat[names[2]]) if names[2] in stat else 0
        yield int(limit) - int(used) + cache


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return None


def available_cores() -> int:
    """Give the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
