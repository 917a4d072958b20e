"""Seconds of the transfers between a model's devices in a pass and an update, by the way in which it is split.

Ranks lie as engines lay them: tensor ranks next to each other, then sequence, data and pipeline, so the groups of a
later kind share a machine's links. Source: Narayanan et al. 2021, arXiv 2104.04473, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from placements.hardware.device_profiles import PoolLinks
from placements.memory.activations import shared_heads
from placements.time.collectives import Collective, collective_seconds, machine_devices
from placements.time.training_layers import blocks, merges

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Layout
    from flowgraph.models import ModelShape

ACTIVATION_BYTES = 2.0  # of a number that is sent between layers, whatever the precision of the products


def every(links: PoolLinks, stride: int) -> PoolLinks:
    """Return the links of a group of every `stride`-th device: fewer in a domain and a machine, each with its share.

    Groups that cross machines side by side share the machine's network.
    """
    domain, node_devices = max(1, links.domain // stride), max(1, links.node_devices // stride)
    return PoolLinks(links.device, domain, node_devices, links.network_bytes_per_s)


def tensor_seconds(shape: ModelShape, layout: Layout, tokens: float, links: PoolLinks) -> float:
    """Return the seconds of tensor parallelism in one pass of one layer: an all-reduce for each of its residuals.

    Source: Shoeybi et al. 2019, arXiv 1909.08053, section 3. With sequence parallelism each is a reduce-scatter and an
    all-gather, which move as many bytes (Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2).
    """
    size = tokens * shape.hidden * ACTIVATION_BYTES
    return merges(shape) * collective_seconds("all_reduce", size, layout.tensor, links)


def sequence_seconds(shape: ModelShape, layout: Layout, tokens: float, links: PoolLinks) -> float:
    """Return the seconds of Ulysses in one pass of one layer: all-to-alls of queries, keys, values and of the output.

    `tokens` are those of one device. If there are fewer heads of keys and values than ranks, several ranks get each.
    Source: Jacobs et al. 2023, arXiv 2309.14509, section 3.2.
    """
    if layout.sequence == 1:
        return 0.0
    heads = 2 * (shape.heads + shared_heads(shape, layout)) / layout.tensor
    size = tokens * heads * shape.head_dim * ACTIVATION_BYTES
    return collective_seconds("all_to_all", size, layout.sequence, every(links, layout.tensor))


def ring_seconds(shape: ModelShape, layout: Layout, tokens: float, links: PoolLinks) -> float:
    """Return the seconds in which keys and values go around a ring of ranks in one forward pass of one layer.

    `tokens` are those of one device. Each rank receives those of all others: an all-gather, block by block.
    Source: Liu et al. 2023, arXiv 2310.01889, section 3.
    """
    numbers = tokens * layout.sequence * 2 * shape.kv_heads * shape.head_dim / layout.tensor
    return collective_seconds("all_gather", numbers * ACTIVATION_BYTES, layout.sequence, every(links, layout.tensor))


def expert_seconds(shape: ModelShape, layout: Layout, tokens: float, links: PoolLinks) -> float:
    """Return the seconds of expert parallelism in one pass of one layer: tokens to their experts, and back.

    A token is sent once to each machine that has one of its experts; inside one machine, once to each such device.
    Source: Lepikhin et al. 2020, arXiv 2006.16668, section 3.
    """
    if layout.expert == 1:
        return 0.0
    group = every(links, layout.tensor * layout.sequence)
    inside = machine_devices(layout.expert, group)
    places = layout.expert / inside if layout.expert > inside else layout.expert
    one_way_s = 0.0
    for pair in blocks(shape):
        if pair.routed:
            copies = float(places * (1 - (1 - 1 / places) ** pair.copies))
            size = ACTIVATION_BYTES * (tokens * copies * pair.width / layout.tensor)
            one_way_s += pair.share * collective_seconds("all_to_all", size, layout.expert, group)
    return 2 * one_way_s


def sent_seconds(shape: ModelShape, layout: Layout, tokens: float, links: PoolLinks) -> float:
    """Return the seconds in which a micro-batch gets from one stage of a pipeline to the next.

    Each tensor rank sends its part. Source: Narayanan et al. 2021, arXiv 2104.04473, section 4.1.
    """
    if layout.pipeline == 1:
        return 0.0
    size = tokens * shape.hidden * ACTIVATION_BYTES / layout.tensor
    return collective_seconds("broadcast", size, 2, every(links, layout.tensor * layout.sequence * layout.data))


@dataclass(frozen=True)
class DeviceNumbers:
    """Numbers of a model on one device: experts, which only some data ranks hold, and the rest, which all hold."""

    rest: float
    experts: float
    trained_share: float

    @property
    def trained(self) -> float:
        """Return how many numbers an update changes."""
        return (self.rest + self.experts) * self.trained_share

    @property
    def learning(self) -> DeviceNumbers:
        """Return the numbers that an update changes: the same share of experts and of the rest."""
        return DeviceNumbers(self.rest * self.trained_share, self.experts * self.trained_share, 1.0)

    def over(self, parts: float) -> DeviceNumbers:
        """Return one of `parts` equal parts."""
        return DeviceNumbers(self.rest / parts, self.experts / parts, self.trained_share)


def gathered_seconds(numbers: DeviceNumbers, layout: Layout, links: PoolLinks, number_bytes: float) -> float:
    """Return the seconds in which data ranks gather what they share; or reduce it so that each has its share."""
    return _over_data_ranks("all_gather", numbers, layout, links, number_bytes)


def reduced_seconds(numbers: DeviceNumbers, layout: Layout, links: PoolLinks, number_bytes: float) -> float:
    """Return the seconds in which data ranks add up their numbers, so that all have the sum."""
    return _over_data_ranks("all_reduce", numbers, layout, links, number_bytes)


def _over_data_ranks(
    op: Collective, numbers: DeviceNumbers, layout: Layout, links: PoolLinks, number_bytes: float
) -> float:
    """Return the seconds of a collective over all data ranks, and of one over the ranks with the same experts."""
    ranks = layout.data * layout.sequence
    shared_s = collective_seconds(op, numbers.rest * number_bytes, ranks, every(links, layout.tensor))
    if not numbers.experts:
        return shared_s
    group = every(links, layout.tensor * layout.expert)
    return shared_s + collective_seconds(op, numbers.experts * number_bytes, ranks // layout.expert, group)
