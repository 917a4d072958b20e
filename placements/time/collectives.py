"""Seconds of collectives between the devices of a pool: inside a domain, through the host, between machines.

A long message is limited by the slowest tier that it crosses, a short one by its launch and its steps. Not here: the
collectives of a layout (`training_layers`), and the rates of links (`hardware.architectures`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import ceil, log2, sqrt
from typing import TYPE_CHECKING, Literal

from placements.hardware.architectures import attained

if TYPE_CHECKING:
    from placements.hardware.device_profiles import PoolLinks

Collective = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast"]

PASSES: dict[Collective, int] = {"all_reduce": 2}  # over a ring: a reduce-scatter and an all-gather
STEPS: dict[Collective, float] = {"all_reduce": 2.0, "all_to_all": 0.2}  # one step to each peer, but all at once
TREES: frozenset[Collective] = frozenset(("all_reduce", "broadcast"))  # between machines, where messages are short
# A ring of n devices has only so much of its link: measured on A100, H100, H200 and B200, 2 devices have 0.77, 0.73,
# 0.74 and 0.71 of the rate that 8 have in all-gathers of 512 MiB; 1 - 0.5 / n makes it 0.8.
FEW_DEVICES = 0.5
# Of an adapter's rate, between machines: 0.8 to 0.9. Not measured: no table covers several machines.
NETWORK_SHARE = 0.85
NETWORK_STEP_S = 8e-6  # from machine to machine: not measured; adapters themselves take 1 to 2 µs, proxies the rest


Tier = tuple[int, float]
"""Groups of this many devices that are joined, with the bytes per second of each device."""


@lru_cache(maxsize=65_536)
def collective_seconds(op: Collective, size_bytes: float, devices: int, links: PoolLinks) -> float:
    """Return the seconds of a collective among `devices` devices, which fill machines one by one.

    The result is 0 for one device or no bytes. `size_bytes` is the whole message of one device: after an all-gather, or
    before a reduce-scatter. In a ring, (n - 1) / n of it passes each device, twice for an all-reduce. A message is sent
    in chunks: if p is the seconds of a chunk's step and s those of the message's bytes, the best chunks take about s +
    2·sqrt(p·s). Source: Thakur, Rabenseifner and Gropp 2005, sections 4.1 to 4.5, for rings; Hoefler and Moor 2014 for
    the chunks.
    """
    if devices <= 1 or size_bytes <= 0:
        return 0.0
    attains, inside = attained(links.device), machine_devices(devices, links)
    tiers = list(_machine_tiers(op if devices == inside else "all_gather", inside, links))
    if devices > inside:
        tiers.append((inside, network_bytes_per_s(links)))
    transfer_s = max(_transfer_s(op, size_bytes, devices, *tier) for tier in tiers)
    machines = -(-devices // inside)
    hops = ceil(log2(machines)) if op in TREES else machines - 1
    steps_s = STEPS.get(op, 1.0) * ((inside - 1) * attains.step_s + hops * NETWORK_STEP_S)
    chunk_s = attains.chunk_s + (NETWORK_STEP_S if machines > 1 else 0.0)
    return attains.collective_launch_s + steps_s + transfer_s + 2 * sqrt(chunk_s * transfer_s)


def machine_devices(devices: int, links: PoolLinks) -> int:
    """Return how many of `devices` devices communicate without the network: those of a machine or a larger domain."""
    joined = max(links.domain, links.node_devices) if links.device.joins_machines else links.node_devices
    return min(devices, max(1, joined))


def network_bytes_per_s(links: PoolLinks) -> float:
    """Return the bytes per second that a device sends to other machines in long messages: 85% of its network's rate."""
    return links.network_bytes_per_s * NETWORK_SHARE


def link_bytes_per_s(links: PoolLinks, devices: int) -> float:
    """Return the bytes per second that a device sends among `devices` devices of its machine in long messages.

    The slowest link between them decides; if only one of them is on a machine, this is the rate of the network.
    """
    tiers = _machine_tiers("all_gather", machine_devices(devices, links), links)
    return min((bytes_per_s for _, bytes_per_s in tiers), default=network_bytes_per_s(links))


def _machine_tiers(op: Collective, inside: int, links: PoolLinks) -> Iterator[Tier]:
    attains, device = attained(links.device), links.device
    joined = min(inside, links.domain)
    if joined > 1:
        links_used = min(1.0, (joined - 1) / attains.peers) if attains.peers else 1.0
        shares = {"all_reduce": attains.all_reduce, "all_to_all": attains.all_to_all}
        rate = links_used * device.link_bytes_per_s * shares.get(op, attains.collective) * (1 - FEW_DEVICES / joined)
        yield 1, rate
    if inside > joined:
        yield joined, device.host_bytes_per_s * attains.host * (2 / inside) ** attains.crowding


def _transfer_s(op: Collective, size_bytes: float, devices: int, joined: int, bytes_per_s: float) -> float:
    outside = 1 - joined / devices
    if op == "all_to_all":
        return size_bytes * outside / bytes_per_s
    if op == "broadcast":
        return size_bytes / joined / bytes_per_s
    return PASSES.get(op, 1) * size_bytes * outside / joined / bytes_per_s
