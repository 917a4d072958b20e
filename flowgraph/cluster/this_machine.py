"""This machine as a cluster: one node, its virtual CPU devices, and the memory that is free to us now."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from flowgraph.cluster.cluster import MOST_DEVICES, Cluster, Device, Machine
from flowgraph.errors import SettingError

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
# Files of one control group, by version: the limit, the use, and the part of the use that is cache and can be dropped.
# Source: Linux kernel documentation, admin-guide/cgroup-v2 (memory) and cgroup-v1/memory.
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def laptop(devices: int = 2, memory_bytes: int | None = None) -> Cluster:
    """Give this machine as one node of virtual CPU devices, which share evenly what memory is free, or what is given.

    Raises SettingError for a count of devices, or an amount of memory in all, that cannot be.
    """
    if not 1 <= devices <= MOST_DEVICES:
        raise SettingError.refused("", "devices", devices, f"should be 1 to {MOST_DEVICES:,}")
    if memory_bytes is not None and memory_bytes < devices:
        raise SettingError.refused("", "memory", memory_bytes, "should be at least a byte for each device")
    memory = free_bytes() if memory_bytes is None else memory_bytes
    each = (Device(kind="cpu", memory_bytes=max(1, memory // devices)),) * devices
    return Cluster(nodes=(Machine(name="laptop", devices=each, host_memory_bytes=memory, cores=available_cores()),))


def warnings_for(cluster: Cluster) -> tuple[str, ...]:
    """Say, a line for each node, where CPU devices are more than the cores they run on."""
    counts = [(node, sum(device.kind == "cpu" for device in node.devices)) for node in cluster.nodes]
    return tuple(
        f"node {node.name} has {node.cores} core{'s' * (node.cores > 1)} for {count} devices: they will take turns"
        for node, count in counts
        if count > node.cores
    )


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
