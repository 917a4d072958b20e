"""What the devices of a pool talk over, read from where they stand: a second writing of `DeviceClass.links`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from flowgraph.cluster.cluster import Cluster, Machine
from placements.profiles import Links, Place, domain_of, domains, network_share, profile_of


def links_of(cluster: Cluster, devices: Sequence[Place]) -> Links | None:
    """Say what these devices of a cluster talk over; None where that is not known.

    It is not for a device without a profile, nor where there is another machine and no network is known to it. Of
    devices of several kinds the slowest at arithmetic counts. The network of a machine is shared by all its devices,
    since another pool on them may use it at the same time.
    """
    nodes = {node.name: node for node in cluster.nodes}
    here = [nodes[name].devices[index] for name, index in devices]
    known = [profile_of(device) for device in here]
    if not known:
        return None
    rates = [network_share(nodes[name], kind) for (name, _), kind in zip(devices, known, strict=True)]
    told = [rate for rate in rates if rate is not None]
    if len(told) < len(rates) and len(nodes) > 1:
        return None
    slowest = min(known, key=lambda each: (each.peak_flops["bfloat16"], each.memory_bytes_per_s))
    racked = any(kind.joins_machines for kind in known)  # then it counts which machines are before these
    return Links(
        device=replace(slowest, memory_bytes=min(device.memory_bytes for device in here)),
        domain=_domain(cluster.nodes if racked else [nodes[name] for name in dict.fromkeys(dict(devices))], devices),
        node_devices=min(Counter(name for name, _ in devices).values()),
        network_bytes_per_s=min(told, default=slowest.host_bytes_per_s),  # alone, a machine never asks for it
    )


def _domain(nodes: Sequence[Machine], devices: Sequence[Place]) -> int:
    numbers = domains(nodes)
    held = Counter(numbers[place] for place in devices)
    if len(held) > 1:
        return min(held.values())
    name, index = devices[0]
    node = next(node for node in nodes if node.name == name)
    return domain_of(node, node.devices[index], node.devices.count(node.devices[index]))
