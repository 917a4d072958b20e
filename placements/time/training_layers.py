"""The work of one device on one micro-batch in a layer and in the head: products, attention, activations moved.

Seconds here are those of bare kernels on an idle device; the share of them that an engine attains is in
`TrainingConstants`. Not here: transfers between devices (`training_collectives`), and updates made of passes
(`training`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from placements.hardware.architectures import attained
from placements.time.kernels import WIDTH_BYTES, matmul_seconds

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Layout, Precision
    from flowgraph.models import ModelShape
    from placements.hardware.device_profiles import DeviceProfile

Part = Literal["forward", "inputs", "weights"]
"""A product of a pass: y = x·w; or of its backward pass, the gradient of its inputs or of its weights."""

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


@dataclass(frozen=True)
class MicroBatch:
    """One device's part of a micro-batch: tokens, pairs of a token and one that it attends to, and tokens read out."""

    tokens: float
    pairs: float
    read_out: float


@dataclass(frozen=True)
class ProductPair:
    """Two products of an average layer: `width` numbers of a token into `into`, and `out` numbers back into `width`.

    `copies` of each token pass it, in a `share` of the layers; `routed` if each copy goes to a different expert.
    """

    width: float
    into: float
    out: float
    copies: float = 1.0
    share: float = 1.0
    routed: bool = False


def memory_bytes_per_s(device: DeviceProfile) -> float:
    """Return the rate at which kernels that only move data move it."""
    return device.memory_bytes_per_s * attained(device).memory


def wide(precision: Precision) -> Precision:
    """Return the precision in which attention and the head compute, given that of a layer's products.

    >>> wide("fp8"), wide("float32")
    ('bfloat16', 'float32')
    """
    return "float32" if precision == "float32" else "bfloat16"


def merges(shape: ModelShape) -> int:
    """Return the number of residuals of a layer: two (token mixer and MLP), or one where a layer is either of them.

    Source: families in which fewer layers mix tokens than there are layers, as Nemotron-H, arXiv 2504.03624, figure 2.
    """
    return 2 if sum(mixer.layers for mixer in shape.mixers) >= shape.layers else 1


def blocks(shape: ModelShape) -> Iterator[ProductPair]:
    """Yield the pairs of products of an average layer; their weights add up to those that a token passes.

    Attention and MLP are separate where all layers attend plainly; else one pair stands for everything but experts.
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
    """Return the seconds of the products of an average layer; each expert on a device has products of its own."""
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
    """Return the seconds of [tokens, inner] × [inner, columns], or of a product of its backward pass.

    In a precision narrower than two bytes, activations are cast first.
    """
    sizes, cast = {
        "forward": ((tokens, columns, inner), tokens * inner),
        "inputs": ((tokens, inner, columns), tokens * columns),
        "weights": ((inner, columns, tokens), tokens * (columns + inner)),
    }[part]
    width = WIDTH_BYTES[precision]
    cast_s = cast * (2.0 + width) / memory_bytes_per_s(device) if width < 2.0 else 0.0
    return matmul_seconds(*sizes, device, precision) + cast_s


def head_seconds(
    shape: ModelShape, layout: Layout, tokens: float, part: Part, device: DeviceProfile, to: Precision
) -> float:
    """Return the seconds of the head's product for the tokens that are read out."""
    return product_seconds(tokens, shape.outputs / layout.tensor, shape.hidden, part, device, to)


def attention_flops(shape: ModelShape, layout: Layout, micro: MicroBatch) -> float:
    """Return the FLOPs of attention in an average layer, forward: 4 · heads · head dimension · pairs, if all attend."""
    products = shape.attention_products(round(micro.tokens), round(micro.pairs))
    return 2 * products / (shape.layers * layout.tensor)


def activation_bytes(shape: ModelShape, layout: Layout, tokens: float, replicated: float) -> float:
    """Return the bytes that a layer stores for its backward pass, in bfloat16, without attention scores.

    Norms, residuals and dropout, which tensor ranks replicate (`replicated` 1) or share (0); inputs and outputs of the
    products, which they share; and activations sent to experts.
    Source: Korthikanti et al. 2022, arXiv 2205.05198, equations 1 to 4: for GPT 10 and 24 bytes of each hidden number.
    """
    ranks = layout.tensor
    norms = NORM_BYTES * merges(shape) * shape.hidden * (replicated + (1 - replicated) / ranks)
    inner = sum(
        pair.share * pair.copies * (2 * (pair.into + pair.out) + pair.routed * ROUTED_BYTES * pair.width)
        for pair in blocks(shape)
    )
    return tokens * (norms + inner / ranks)


def score_count(shape: ModelShape, layout: Layout, micro: MicroBatch) -> float:
    """Return the number of attention scores of an average layer, masked pairs included, for kernels that write them."""
    return 2 * micro.pairs * shape.heads * shape.attention_layers / (shape.layers * layout.tensor)
