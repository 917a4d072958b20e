"""This machine as a cluster: one node, with virtual CPU devices, its memory for plans and its free memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from flowgraph.cluster.cluster import MOST_DEVICES, Cluster, Device, Machine
from flowgraph.errors import SettingError

GIB = 2**30
SYSTEM_SHARE = 8  # one part in this many is left to the system and to other processes
CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
# Files of one control group, by version: the limit, the use, and the part of the use that is cache and can be dropped.
# Source: Linux kernel documentation, admin-guide/cgroup-v2 (memory) and cgroup-v1/memory.
Names = tuple[str, str, str]
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def laptop(devices: int = 2, memory_bytes: int | None = None) -> Cluster:
    """Return this machine as a cluster of one node, `laptop`, with `devices` virtual CPU devices of equal memory.

    The devices share `memory_bytes`, by default `plannable_bytes()`. Raises SettingError for fewer than 1 or more than
    65,536 devices, and for a `memory_bytes` of less than a byte for each device.
    """
    if not 1 <= devices <= MOST_DEVICES:
        raise SettingError.refused("", "devices", devices, f"should be 1 to {MOST_DEVICES:,}")
    if memory_bytes is not None and memory_bytes < devices:
        raise SettingError.refused("", "memory", memory_bytes, "should be at least a byte for each device")
    memory = plannable_bytes() if memory_bytes is None else memory_bytes
    cpus = (Device(kind="cpu", memory_bytes=max(1, memory // devices)),) * devices
    return Cluster(nodes=(Machine(name="laptop", devices=cpus, host_memory_bytes=memory, cores=available_cores()),))


def core_warnings(cluster: Cluster) -> tuple[str, ...]:
    """Return a warning for each node that has fewer cores than CPU devices, so that its devices must take turns."""
    counts = [(node, sum(device.kind == "cpu" for device in node.devices)) for node in cluster.nodes]
    return tuple(
        f"node {node.name} has {node.cores} core{'s' * (node.cores > 1)} for {count} devices: they will take turns"
        for node, count in counts
        if count > node.cores
    )


def plannable_bytes() -> int:
    """Return how many bytes of this machine's memory a plan may use: seven eighths, rounded down to whole GiB.

    The total is the machine's memory, or the smallest memory limit of this process's cgroups if that is lower. A result
    of at most 1 GiB is not rounded. The memory that other processes use does not change the result, so that the same
    request always gives the same plan.
    """
    import psutil

    total = min([int(psutil.virtual_memory().total), *cgroup_limits(CGROUPS, MEMBERSHIP)])
    rest = total - total // SYSTEM_SHARE
    return max(1, rest - rest % GIB if rest > GIB else rest)


def free_bytes() -> int:
    """Return how many bytes of memory this process can still use, at least 1.

    This is the system's available memory, or what the limits of this process's cgroups leave if that is less.
    """
    import psutil

    return max(1, min([int(psutil.virtual_memory().available), *cgroup_free_bytes(CGROUPS, MEMBERSHIP)]))


def cgroup_free_bytes(root: Path, membership: Path) -> Iterator[int]:
    """Yield the free bytes in each memory cgroup of this process and in its parents: limit - use + cache.

    The cache is the part of the use that the kernel can drop. `root` is the mount point of cgroups, and `membership`
    the file that lists the cgroups of this process. Cgroups without a readable limit or use are skipped.
    """
    for folder, (limit_file, use_file, cache_key) in _groups(root, membership):
        limit, used = _read(folder / limit_file), _read(folder / use_file)
        if limit.isdecimal() and used.isdecimal():
            lines = _read(folder / "memory.stat").splitlines()
            stat = dict(line.split() for line in lines if line.count(" ") == 1)
            yield int(limit) - int(used) + int(stat.get(cache_key, 0))


def cgroup_limits(root: Path, membership: Path) -> Iterator[int]:
    """Yield the memory limit in bytes of each cgroup of this process and of its parents.

    A limit that cannot be read or is `max`, which is none, is skipped; a cgroup of version 1 without a limit yields a
    very large number. `root` is the mount point of cgroups, and `membership` the file that lists the cgroups of this
    process.
    """
    limits = (_read(folder / limit_file) for folder, (limit_file, *_) in _groups(root, membership))
    return (int(limit) for limit in limits if limit.isdecimal())


def _groups(root: Path, membership: Path) -> Iterator[tuple[Path, Names]]:
    for line in _read(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        v1 = "memory" in controllers.split(",")
        if not controllers or v1:
            base = root / "memory" if v1 else root
            group = base / path.strip("/")
            for folder in (group, *(parent for parent in group.parents if parent.is_relative_to(base))):
                yield folder, _V1 if v1 else _V2


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def available_cores() -> int:
    """Return how many CPU cores this process may use; on systems without CPU affinity, all cores of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
