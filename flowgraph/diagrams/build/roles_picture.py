"""Draw a plan without its flow: pools as frames, in them their roles and their devices, machine by machine."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import count, groupby

from flowgraph.cluster.cluster import Cluster, Machine, show_bytes
from flowgraph.cluster.plan import Plan, Pool
from flowgraph.diagrams.model.picture import Box, Frame, Picture
from flowgraph.diagrams.model.quantities import layout_text, many

MACHINES_IN_FULL = 4  # a pool on more machines than these has one box for those that are alike
DEVICES_IN_FULL = 4  # a pool of more is described by how many it has of each machine
NODES_IN_FULL = 3  # and a pool on more machines than these by how many machines


def roles_picture(plan: Plan, *, unfold: bool = False) -> Picture:
    """Return the picture of a plan without its flow: its pools as frames, with their devices and the roles on them.

    If a pool is on more than 4 machines, machines with equal devices share a box, unless `unfold` is set. Roles in a
    pool that the plan lacks are left out.
    """
    frames = {
        pool.name: Frame(f"f{place}", f"{pool.name}: {devices_text(pool)}", None, "pool", pool.name)
        for place, pool in enumerate(plan.pools)
    }
    boxes = list[Box]()
    for place, placed in enumerate(plan.placed):
        if placed.pool in frames:
            memory_bytes = sum(placed.memory.values())
            size = [show_bytes(memory_bytes)] if memory_bytes else []
            label = (placed.role, f"{placed.engine} · {layout_text(placed.layout)}", *size)
            boxes.append(Box(f"n{place}", label, "model", frames[placed.pool].id))
    ids = (f"n{place}" for place in count(len(plan.placed)))
    for pool in plan.pools:
        boxes += device_boxes(pool, plan.cluster, frames[pool.name].id, ids, unfold=unfold)
    about = f"{many(len(plan.placed), 'role')} on {many(len(plan.pools), 'pool')}."
    return Picture(plan.flow, tuple(boxes), tuple(frames.values()), (), about)


def devices_text(pool: Pool) -> str:
    """Return the devices of a pool as text, in the pool's order.

    Up to 4 devices are listed one by one; more are counted on each machine, and on more than 3 machines only in total.

    >>> devices_text(Pool(name="all", devices=(("laptop", 0), ("laptop", 1))))
    'laptop/0, laptop/1'
    >>> devices_text(Pool(name="all", devices=tuple((f"node-{i // 8}", i % 8) for i in range(16))))
    '8 of node-0, 8 of node-1'
    """
    if len(pool.devices) <= DEVICES_IN_FULL:
        return ", ".join(f"{node}/{index}" for node, index in pool.devices)
    counts = Counter(node for node, _ in pool.devices)
    if len(counts) <= NODES_IN_FULL:
        return ", ".join(f"{devices} of {node}" for node, devices in counts.items())
    return f"{len(pool.devices)} on {len(counts)} nodes"


def device_boxes(
    pool: Pool, cluster: Cluster, inside: str, ids: Iterator[str], *, unfold: bool = False
) -> Iterator[Box]:
    """Yield the boxes of a pool's devices, one for each machine; `ids` supplies their ids.

    `inside` is the id of the frame around the boxes. If a pool is on more than 4 machines, those of the same kind and
    with the same device indices in the pool share a box, unless `unfold` is set.
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
    """Return a text with the number, model and memory of a machine's devices; "not in the cluster" for None.

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
    """Return the indices of devices on a machine as text, in ascending order, with consecutive indices as a range.

    >>> places_text([0, 1, 2, 3, 6]), places_text([5])
    ('devices 0–3, 6', 'device 5')
    """
    runs = groupby(enumerate(sorted(places)), key=lambda numbered: numbered[1] - numbered[0])
    spans = [[index for _, index in run] for _, run in runs]
    texts = ", ".join(f"{span[0]}–{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans)
    return f"{'device' if len(places) == 1 else 'devices'} {texts}"
