"""The devices of a pool as boxes to be drawn: one for each machine, or one for many that are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from flowgraph.cluster.cluster import Cluster, Device, Machine, show_bytes
from flowgraph.cluster.plan import Pool
from flowgraph.diagrams.model.picture import Box
from flowgraph.diagrams.model.quantities import many

MACHINES_IN_FULL = 4  # a pool on more machines than these has one box for those that are alike


def device_boxes(
    pool: Pool, cluster: Cluster, inside: str, ids: Iterator[str], *, unfold: bool = False
) -> Iterator[Box]:
    """Give the boxes of a pool's devices in the frame `inside`, machine by machine, with the devices that are used.

    Of more than MACHINES_IN_FULL machines, those that are alike and of which the same devices are used are one box,
    unless they are to be unfolded.
    """
    machines = {node.name: node for node in cluster.nodes}
    places = dict[str, list[int]]()
    for name, index in pool.devices:
        places.setdefault(name, []).append(index)
    found = [(name, machine_text(machines.get(name)), places_text(used)) for name, used in places.items()]
    if unfold or len(found) <= MACHINES_IN_FULL:
        labels = [(f"{name}: {what}", used, _about(pool, name, what, used)) for name, what, used in found]
    else:
        labels = list(_folded(pool, found))
    for first, second, about in labels:
        yield Box(next(ids), (first, second), "device", inside, about)


def _about(pool: Pool, name: str, what: str, used: str) -> str:
    return f"Pool {pool.name} has {used} of {name}, which has {what}."


def _folded(pool: Pool, found: Sequence[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    """Give a label for the machines that are alike and the same devices of which are used."""
    alike = dict[tuple[str, str], list[str]]()
    for name, what, used in found:
        alike.setdefault((what, used), []).append(name)
    for (what, used), names in alike.items():
        if len(names) == 1:
            yield f"{names[0]}: {what}", used, _about(pool, names[0], what, used)
        else:
            span = f"{names[0]} … {names[-1]}"
            about = f"Pool {pool.name} has {used} of each of {len(names):,} machines, {', '.join(names)}."
            yield f"{many(len(names), 'machine')} of {what}", span, about


def machine_text(machine: Machine | None) -> str:
    """Say which devices a machine has; of one that is not there that it is not.

    >>> cpu = Device(kind="cpu", memory_bytes=2**30)
    >>> machine_text(Machine(name="a", devices=(cpu, cpu), host_memory_bytes=1, cores=1))
    '2 × cpu 1.0 GiB'
    >>> machine_text(None)
    'not in the cluster'
    """
    if machine is None:
        return "not in the cluster"
    return " + ".join(f"{count} × {_device(device)}" for device, count in Counter(machine.devices).items())


def _device(device: Device) -> str:
    return f"{device.model or device.kind} {show_bytes(device.memory_bytes)}"


def places_text(places: Sequence[int]) -> str:
    """Write places among a machine's devices, neighbours as a range.

    >>> places_text([0, 1, 2, 3, 6]), places_text([5])
    ('devices 0–3, 6', 'device 5')
    """
    ordered = sorted(places)
    runs = groupby(enumerate(ordered), key=lambda each: each[1] - each[0])
    spans = [[index for _, index in run] for _, run in runs]
    told = ", ".join(f"{span[0]}–{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans)
    return f"{'device' if len(ordered) == 1 else 'devices'} {told}"
