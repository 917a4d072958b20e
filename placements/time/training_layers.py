"""The work of one device on one micro-batch in a layer and in the head, and the transfers between a model's devices.

Seconds here are those of bare kernels on an idle device; the share that an engine attains is in `TrainingConstants`.
Ranks lie as engines lay them: tensor ranks next to each other, then sequence, data and pipeline, so the groups of a
later kind share a machine's links (Narayanan et al. 2021, arXiv 2104.04473, section 3). Not here: passes (`training`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from placements.hardware.architectures import attained
from placements.hardware.device_profiles import PoolLinks
from placements.memory.activations import shared_heads
from placements.time.collectives import Collective, collective_seconds, machine_devices
from placements.time.kernels import WIDTH_BYTES, matmul_seconds

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Layout, Precision
    from flowgraph.models import ModelShape
    from placements.hardware.device_profiles import DeviceProfile

Part = Literal["forward", "inputs", "weights"]
"""A product of a pass: `forward` is y = x·w; in backward passes, `inputs` is the gradient of x, `weights` of w."""

ATTENTION_BACKWARD = 2.5
"""FLOPs of attention's backward pass over those of its forward pass: five products to two, as scores are recomputed.

Source: Dao 2023, arXiv 2307.08691, section 3.1.2.
"""

NORM_BYTES = 5
"""Bytes that a norm, a residual and a dropout store for each hidden number. Source: as `activation_bytes`."""

ROUTED_BYTES = 6
"""Bytes of each number that goes to an expert: two each as received, as returned and as weighted.

Source: Gale et al. 2022, arXiv 2211.15841, section 5.
"""

ACTIVATION_BYTES = 2.0  # of a number that is sent between layers, whatever the precision of the products


@dataclass(frozen=True)
class MicroBatch:
    """One device's part of a micro-batch: tokens, attention pairs, and tokens with logits."""

    tokens: float
    pairs: float
    read_out: float


@dataclass(frozen=True)
class ProductPair:
    """Two products of an average layer: from `width` numbers per token to `into`, and from `out` back to `width`.

    `copies` of each token are multiplied, in a `share` of all layers. If `routed`, each copy goes to another expert.
    """

    width: float
    into: float
    out: float
    copies: float = 1.0
    share: float = 1.0
    routed: bool = False


def memory_bytes_per_s(device: DeviceProfile) -> float:
    """Return the bytes per second that kernels reach if they only move data in a device's memory."""
    return device.memory_bytes_per_s * attained(device).memory


def wide(precision: Precision) -> Precision:
    """Return the precision of attention and the head, given that of products: float32 for float32, else bfloat16.

    >>> wide("fp8"), wide("float32")
    ('bfloat16', 'float32')
    """
    return "float32" if precision == "float32" else "bfloat16"


def merges(shape: ModelShape) -> int:
    """Return the number of residual additions in a layer: 2, or 1 if a layer is either a token mixer or an MLP.

    Source: families in which fewer layers mix tokens than there are layers, as Nemotron-H, arXiv 2504.03624, figure 2.
    """
    return 2 if sum(mixer.layers for mixer in shape.mixers) >= shape.layers else 1


def blocks(shape: ModelShape) -> Iterator[ProductPair]:
    """Yield the pairs of matrix products of an average layer, with the weights that a token passes through.

    Routed experts, if there are any, are the first pair. Attention and MLP are separate pairs if all layers have plain
    attention; otherwise one pair represents everything but experts.
    """
    routed = 0.0
    if shape.experts:
        expert = shape.expert_parameters / (shape.expert_layers * shape.experts)
        width = min(shape.hidden, expert / (2 * shape.expert_intermediate))
        share = shape.expert_layers / shape.layers
        routed = expert * shape.experts_per_token * share
        out = shape.expert_intermediate
        yield ProductPair(width, expert / width - out, out, shape.experts_per_token, share, routed=True)
    sides = (shape.matmul_parameters / shape.layers - routed) / shape.hidden
    if not shape.mixing:
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        yield ProductPair(shape.hidden, queries + 2 * keys, queries)
        sides -= 2 * (queries + keys)
    plain = not (shape.mixing or shape.experts)
    inner = min(shape.intermediate, sides / 2) if plain else sides / 3
    if sides > 0:
        yield ProductPair(shape.hidden, sides - inner, inner)


def layer_seconds(
    shape: ModelShape, layout: Layout, tokens: float, part: Part, device: DeviceProfile, precision: Precision
) -> float:
    """Return the total seconds of one product with each weight of an average layer, for `tokens` tokens on one device.

    Each expert has products of its own. `part` chooses the forward product, or one of the two in the backward pass.
    Raises ValueError if the device's peak is unknown.
    """
    seconds, ranks = 0.0, layout.tensor
    for pair in blocks(shape):
        products = shape.experts / layout.expert if pair.routed else 1.0
        rows = tokens * pair.copies / products
        into_s = product_seconds(rows, pair.into / ranks, pair.width, part, device, precision)
        out_s = product_seconds(rows, pair.width, pair.out / ranks, part, device, precision)
        seconds += pair.share * products * (into_s + out_s)
    return seconds


def product_seconds(
    tokens: float, columns: float, inner: float, part: Part, device: DeviceProfile, precision: Precision
) -> float:
    """Return the seconds of a [tokens, inner] × [inner, columns] product, or of one in its backward pass.

    `part` names the product: `forward`, the gradient of the `inputs` or of the `weights`. In a precision narrower than
    two bytes, activations are converted first. Raises ValueError if the device's peak is unknown.
    """
    sizes, cast = {
        "forward": ((tokens, columns, inner), tokens * inner),
        "inputs": ((tokens, inner, columns), tokens * columns),
        "weights": ((inner, columns, tokens), tokens * (columns + inner)),
    }[part]
    width = WIDTH_BYTES[precision]
    cast_s = cast * (2.0 + width) / memory_bytes_per_s(device) if width < 2.0 else 0.0
    return matmul_seconds(*sizes, device, precision) + cast_s


def attention_flops(shape: ModelShape, layout: Layout, micro: MicroBatch) -> float:
    """Return the FLOPs of attention in a forward pass of an average layer on one device.

    If all layers have plain attention, these are 4 · heads · head dimension · pairs, shared by tensor ranks.
    """
    products = shape.attention_products(round(micro.tokens), round(micro.pairs))
    return 2 * products / (shape.layers * layout.tensor)


def activation_bytes(shape: ModelShape, layout: Layout, tokens: float, replicated: float) -> float:
    """Return the bytes that a layer stores on one device for its backward pass in bfloat16, without attention scores.

    They are those of norms, residuals and dropout, which tensor ranks replicate (`replicated` 1) or share (0); of the
    inputs and outputs of products, which they share; and of activations sent to experts. Source: Korthikanti et al.
    2022, arXiv 2205.05198, equations 1 to 4: for GPT 10 and 24 bytes of each hidden number.
    """
    ranks = layout.tensor
    norms = NORM_BYTES * merges(shape) * shape.hidden * (replicated + (1 - replicated) / ranks)
    inner = sum(
        pair.share * pair.copies * (2 * (pair.into + pair.out) + pair.routed * ROUTED_BYTES * pair.width)
        for pair in blocks(shape)
    )
    return tokens * (norms + inner / ranks)


def score_count(shape: ModelShape, layout: Layout, micro: MicroBatch) -> float:
    """Return the number of attention scores of an average layer on one device, including masked pairs.

    Layers with a window or a state count as if they had none.
    """
    return 2 * micro.pairs * shape.heads * shape.attention_layers / (shape.layers * layout.tensor)


# ------------------------------------------------------------------------------------ transfers between devices


def every(links: PoolLinks, stride: int) -> PoolLinks:
    """Return the links of a group that has every `stride`-th device: that share of each domain and machine, at least 1.

    The rate of the network is unchanged: several such groups that cross machines at the same time share it.
    """
    domain, node_devices = max(1, links.domain // stride), max(1, links.node_devices // stride)
    return PoolLinks(links.device, domain, node_devices, links.network_bytes_per_s)


def tensor_seconds(shape: ModelShape, layout: Layout, tokens: float, links: PoolLinks) -> float:
    """Return the seconds of tensor parallelism in one pass of one layer: an all-reduce for each residual.

    `tokens` are those of one tensor group. Source: Shoeybi et al. 2019, arXiv 1909.08053, section 3. With sequence
    parallelism each is a reduce-scatter and an all-gather, which move as many bytes (Korthikanti et al. 2022, arXiv
    2205.05198, section 4.2.2).
    """
    size = tokens * shape.hidden * ACTIVATION_BYTES
    return merges(shape) * collective_seconds("all_reduce", size, layout.tensor, links)


def sequence_seconds(shape: ModelShape, layout: Layout, tokens: float, links: PoolLinks) -> float:
    """Return the seconds of Ulysses in one pass of one layer: all-to-alls of queries, keys, values and output.

    The result is 0 if rows are not divided. `tokens` are those of one device. If there are fewer heads of keys and
    values than ranks, several ranks get each. Source: Jacobs et al. 2023, arXiv 2309.14509, section 3.2.
    """
    if layout.sequence == 1:
        return 0.0
    heads = 2 * (shape.heads + shared_heads(shape, layout)) / layout.tensor
    size = tokens * heads * shape.head_dim * ACTIVATION_BYTES
    return collective_seconds("all_to_all", size, layout.sequence, every(links, layout.tensor))


def ring_seconds(shape: ModelShape, layout: Layout, tokens: float, links: PoolLinks) -> float:
    """Return the seconds in which keys and values pass around a ring of sequence ranks in a forward pass of one layer.

    `tokens` are those of one device. Each rank receives those of all others: an all-gather, block by block. Source: Liu
    et al. 2023, arXiv 2310.01889, section 3.
    """
    numbers = tokens * layout.sequence * 2 * shape.kv_heads * shape.head_dim / layout.tensor
    return collective_seconds("all_gather", numbers * ACTIVATION_BYTES, layout.sequence, every(links, layout.tensor))


def expert_seconds(shape: ModelShape, layout: Layout, tokens: float, links: PoolLinks) -> float:
    """Return the seconds of expert parallelism in one pass of an average layer: sending tokens to experts, and back.

    The average is over all layers, with those that have no experts; the result is 0 if experts are not divided.
    `tokens` are those of one device, and each tensor rank sends its share of each. Each token is assumed to choose its
    experts at random. If the experts are on several machines, a token is sent once to each machine that has one of its
    experts; if they are all on one machine, it is sent once to each device that has one. Source: Lepikhin et al. 2020,
    arXiv 2006.16668, section 3.
    """
    if layout.expert == 1:
        return 0.0
    group = every(links, layout.tensor * layout.sequence)
    inside = machine_devices(layout.expert, group)
    places = layout.expert / inside if layout.expert > inside else layout.expert
    one_way_s = 0.0
    for pair in (pair for pair in blocks(shape) if pair.routed):
        copies = float(places * (1 - (1 - 1 / places) ** pair.copies))
        size = ACTIVATION_BYTES * (tokens * copies * pair.width / layout.tensor)
        one_way_s += pair.share * collective_seconds("all_to_all", size, layout.expert, group)
    return 2 * one_way_s


def sent_seconds(shape: ModelShape, layout: Layout, tokens: float, links: PoolLinks) -> float:
    """Return the seconds to send a micro-batch from one stage of a pipeline to the next; 0 without a pipeline.

    `tokens` are those of one device; each tensor rank sends its share of them. Source: Narayanan et al. 2021, arXiv
    2104.04473, section 4.1.
    """
    if layout.pipeline == 1:
        return 0.0
    size = tokens * shape.hidden * ACTIVATION_BYTES / layout.tensor
    return collective_seconds("broadcast", size, 2, every(links, layout.tensor * layout.sequence * layout.data))


@dataclass(frozen=True)
class DeviceNumbers:
    """Numbers of a model on one device: experts, which only some data ranks hold, and the rest, which all hold.

    `trained_share` is the share of both that an update changes.
    """

    rest: float
    experts: float
    trained_share: float

    @property
    def trained(self) -> float:
        """Return how many numbers an update changes."""
        return (self.rest + self.experts) * self.trained_share

    @property
    def learning(self) -> DeviceNumbers:
        """Return only the numbers that an update changes: the same share of experts and of the rest."""
        return DeviceNumbers(self.rest * self.trained_share, self.experts * self.trained_share, 1.0)

    def over(self, parts: float) -> DeviceNumbers:
        """Return the numbers divided by `parts`, such as the number of layers."""
        return DeviceNumbers(self.rest / parts, self.experts / parts, self.trained_share)


def data_seconds(
    op: Collective, numbers: DeviceNumbers, layout: Layout, links: PoolLinks, number_bytes: float
) -> float:
    """Return the seconds of a collective over data and sequence ranks, plus one over the ranks with the same experts.

    `op` is the collective, and `number_bytes` the bytes of one number. Only the second transfers the numbers of
    experts; a model without experts has only the first.
    """
    ranks = layout.data * layout.sequence
    shared_s = collective_seconds(op, numbers.rest * number_bytes, ranks, every(links, layout.tensor))
    if not numbers.experts:
        return shared_s
    group = every(links, layout.tensor * layout.expert)
    return shared_s + collective_seconds(op, numbers.experts * number_bytes, ranks // layout.expert, group)
