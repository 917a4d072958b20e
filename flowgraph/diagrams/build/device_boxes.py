"""The devices of a pool as boxes: one for each machine, or one for many that are alike."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby

from flowgraph.cluster.cluster import Cluster, Machine, show_bytes
from flowgraph.cluster.plan import Pool
from flowgraph.diagrams.model.picture import Box
from flowgraph.diagrams.model.quantities import many

MACHINES_IN_FULL = 4  # a pool on more machines than these has one box for those that are alike


def device_boxes(
    pool: Pool, cluster: Cluster, inside: str, ids: Iterator[str], *, unfold: bool = False
) -> Iterator[Box]:
    """Yield the boxes of a pool's devices in the frame `inside`, machine by machine, with the devices in the pool.

    With more than MACHINES_IN_FULL machines, those of the same kind and with the same devices in the pool share a box,
    unless `unfold` is set.
    """
    machines = {machine.name: machine for machine in cluster.nodes}
    indices = defaultdict[str, list[int]](list)
    for name, index in pool.devices:
        indices[name].append(index)
    folds = not unfold and len(indices) > MACHINES_IN_FULL
    groups = defaultdict[tuple[str, ...], list[str]](list)
    for name, places in indices.items():
        groups[machine_text(machines.get(name)), places_text(places), "" if folds else name].append(name)
    for (machine, devices, _), names in groups.items():
        if len(names) == 1:
            label = (f"{names[0]}: {machine}", devices)
            about = f"Pool {pool.name} has {devices} of {names[0]}, which has {machine}."
        else:
            label = (f"{many(len(names), 'machine')} of {machine}", f"{names[0]} … {names[-1]}")
            about = f"Pool {pool.name} has {devices} of each of {len(names):,} machines, {', '.join(names)}."
        yield Box(next(ids), label, "device", inside, about)


def machine_text(machine: Machine | None) -> str:
    """Return the devices of a machine.

    >>> from flowgraph.cluster.cluster import Device
    >>> cpu = Device(kind="cpu", memory_bytes=2**30)
    >>> machine_text(Machine(name="a", devices=(cpu, cpu), host_memory_bytes=1, cores=1))
    '2 × cpu 1.0 GiB'
    >>> machine_text(None)
    'not in the cluster'
    """
    if machine is None:
        return "not in the cluster"
    counts = Counter(f"{device.model or device.kind} {show_bytes(device.memory_bytes)}" for device in machine.devices)
    return " + ".join(f"{count} × {device}" for device, count in counts.items())


def places_text(places: Sequence[int]) -> str:
    """Return places among a machine's devices, with neighbours as a range.

    >>> places_text([0, 1, 2, 3, 6]), places_text([5])
    ('devices 0–3, 6', 'device 5')
    """
    runs = groupby(enumerate(sorted(places)), key=lambda numbered: numbered[1] - numbered[0])
    spans = [[index for _, index in run] for _, run in runs]
    texts = ", ".join(f"{span[0]}–{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans)
    return f"{'device' if len(places) == 1 else 'devices'} {texts}"
