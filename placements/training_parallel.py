"""What devices of one model tell each other in a pass and an update, in seconds: by way of splitting it.

Ranks lie as engines lay them: tensor next to each other, then sequence, data and pipeline, so the groups of a later one
share a machine's links. Source: Narayanan et al. 2021, arXiv 2104.04473, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from placements.activations import shared_heads
from placements.collectives import Collective, collective_seconds, machine_devices
from placements.profiles import Links
from placements.training_layers import blocks, merges

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Layout
    from flowgraph.models import ModelShape

ACTIVATION_BYTES = 2.0  # of a number that is sent between layers, whatever the products are computed in


def every(links: Links, apart: int) -> Links:
    """Return what every `apart`-th device talks over: fewer of a domain and a machine, each with its own share of it.

    So that groups which cross machines side by side share what the machine has.
    """
    domain, node_devices = max(1, links.domain // apart), max(1, links.node_devices // apart)
    return Links(links.device, domain, node_devices, links.network_bytes_per_s)


def tensor_seconds(shape: ModelShape, layout: Layout, tokens: float, links: Links) -> float:
    """Return the seconds of tensor parallelism in one pass of one layer: an all-reduce for each of its residuals.

    Source: Shoeybi et al. 2019, arXiv 1909.08053, section 3. Sequence parallelism beside it makes each a
    reduce-scatter and an all-gather, as many bytes (Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2).
    """
    size = tokens * shape.hidden * ACTIVATION_BYTES
    return merges(shape) * collective_seconds("all_reduce", size, layout.tensor, links)


def sequence_seconds(shape: ModelShape, layout: Layout, tokens: float, links: Links) -> float:
    """Return the seconds of Ulysses in one pass of one layer: all-to-alls of queries, keys, values and of the output.

    `tokens` are those of one device. Keys and values of fewer heads than there are ranks are sent to several of them.
    Source: Jacobs et al. 2023, arXiv 2309.14509, section 3.2.
    """
    if layout.sequence == 1:
        return 0.0
    heads = 2 * (shape.heads + shared_heads(shape, layout)) / layout.tensor
    size = tokens * heads * shape.head_dim * ACTIVATION_BYTES
    return collective_seconds("all_to_all", size, layout.sequence, every(links, layout.tensor))


def ring_seconds(shape: ModelShape, layout: Layout, tokens: float, links: Links) -> float:
    """Return the seconds in which keys and values go around a ring of ranks in one forward pass of one layer.

    `tokens` are those of one device: each rank gets those of all others. That is an all-gather, block by block.
    Source: Liu et al. 2023, arXiv 2310.01889, section 3.
    """
    numbers = tokens * layout.sequence * 2 * shape.kv_heads * shape.head_dim / layout.tensor
    return collective_seconds("all_gather", numbers * ACTIVATION_BYTES, layout.sequence, every(links, layout.tensor))


def expert_seconds(shape: ModelShape, layout: Layout, tokens: float, links: Links) -> float:
    """Return the seconds of expert parallelism in one pass of one layer: tokens to their experts, and back.

    Source: Lepikhin et al. 2020, arXiv 2006.16668, section 3.
    """
    if layout.expert == 1:
        return 0.0
    apart = every(links, layout.tensor * layout.sequence)
    routed = [each for each in blocks(shape) if each.routed]
    sizes = [tokens * _copies(each.copies, layout.expert, apart) * each.width / layout.tensor for each in routed]
    one_way = (collective_seconds("all_to_all", ACTIVATION_BYTES * each, layout.expert, apart) for each in sizes)
    return 2 * sum(each.share * seconds for each, seconds in zip(routed, one_way, strict=True))


def _copies(experts_per_token: float, devices: int, links: Links) -> float:
    """Return to how many places a token is sent on average: once to each machine that has one of its experts.

    Inside one machine, once to each device that does.
    """
    inside = machine_devices(devices, links)
    places = devices / inside if devices > inside else devices
    return float(places * (1 - (1 - 1 / places) ** experts_per_token))


def sent_seconds(shape: ModelShape, layout: Layout, tokens: float, links: Links) -> float:
    """Return the seconds in which a micro-batch gets from one stage of a pipeline to the next.

    Each rank of tensor parallelism sends its part. Source: Narayanan et al. 2021, arXiv 2104.04473, section 4.1.
    """
    if layout.pipeline == 1:
        return 0.0
    size = tokens * shape.hidden * ACTIVATION_BYTES / layout.tensor
    return collective_seconds("broadcast", size, 2, every(links, layout.tensor * layout.sequence * layout.data))


@dataclass(frozen=True)
class Held:
    """Numbers of a model on one device: what all data ranks hold, and experts, which only some do.

    `learning` are those of both that an update changes, a share of each.
    """

    rest: float
    experts: float
    trained_share: float

    @property
    def trained(self) -> float:
        """Count what an update changes."""
        return (self.rest + self.experts) * self.trained_share

    @property
    def learning(self) -> Held:
        """Return what an update changes, as much of the rest as of experts."""
        return Held(self.rest * self.trained_share, self.experts * self.trained_share, 1.0)

    def over(self, parts: float) -> Held:
        """Return one of so many equal parts."""
        return Held(self.rest / parts, self.experts / parts, self.trained_share)


def gathered_seconds(held: Held, layout: Layout, links: Links, bytes_each: float) -> float:
    """Return the seconds in which data ranks gather what they share; or reduce it so that each has its share."""
    return _over_data("all_gather", held, layout, links, bytes_each)


def reduced_seconds(held: Held, layout: Layout, links: Links, bytes_each: float) -> float:
    """Return the seconds in which data ranks add up what each has, so that all have the sum."""
    return _over_data("all_reduce", held, layout, links, bytes_each)


def _over_data(op: Collective, held: Held, layout: Layout, links: Links, bytes_each: float) -> float:
    """Return the seconds of a collective over data ranks, and of one for experts over ranks that hold the same."""
    ranks = layout.data * layout.sequence
    shared_s = collective_seconds(op, held.rest * bytes_each, ranks, every(links, layout.tensor))
    if not held.experts:
        return shared_s
    alike = ranks // layout.expert
    apart = every(links, layout.tensor * layout.expert)
    return shared_s + collective_seconds(op, held.experts * bytes_each, alike, apart)
