"""What one device does for one micro-batch in a layer and in the head: products, attention, activations moved.

Seconds here are those of bare kernels on an idle device; what an engine attains of them is in `TrainingConstants`.
Not here: what devices tell each other (`training_parallel`), and how passes make up an update (`training`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from placements.architectures import attained
from placements.kernels import WIDTH_BYTES, matmul_seconds

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Layout, Precision
    from flowgraph.models import ModelShape
    from placements.profiles import Profile

Part = Literal["forward", "inputs", "weights"]
"""A product of a pass: y = x·w; or of its backward pass, the gradient of its inputs or of its weights."""

ATTENTION_BACKWARD = 2.5
"""FLOPs of attention's backward pass beside its forward pass: five products beside two, as scores are made again.

Source: Dao 2023, arXiv 2307.08691, section 3.1.2.
"""

NORM_BYTES = 5
"""Bytes that a norm, a residual and a dropout hold of each hidden number. Source: as `activation_bytes`."""

ROUTED_BYTES = 6
"""Bytes of each number that goes to an expert: in two bytes as received, as given back and as weighted.

Source: Gale et al. 2022, arXiv 2211.15841, section 5, of what is permuted.
"""


@dataclass(frozen=True)
class Micro:
    """What one device has of a micro-batch: tokens, pairs of a token and one that it sees, and tokens read out."""

    tokens: float
    pairs: float
    read_out: float


@dataclass(frozen=True)
class Block:
    """Two products of an average layer: `width` numbers of a token into `into`, and `out` back into as many.

    Of each token `copies` pass it, in `share` of the layers; `routed` if each goes to an expert of its own.
    """

    width: float
    into: float
    out: float
    copies: float = 1.0
    share: float = 1.0
    routed: bool = False


def memory_bytes_per_s(device: Profile) -> float:
    """Return the rate at which kernels that only move data move it."""
    return device.memory_bytes_per_s * attained(device).memory


def wide(precision: Precision) -> Precision:
    """Return what attention and the head compute in, beside layers whose products are of this precision.

    >>> wide("fp8"), wide("float32")
    ('bfloat16', 'float32')
    """
    return "float32" if precision == "float32" else "bfloat16"


def merges(shape: ModelShape) -> int:
    """Count the residuals of a layer: after what mixes tokens and after its MLP, or one where a layer is either.

    Source: families whose layers that mix are fewer than all, as Nemotron-H, arXiv 2504.03624, figure 2.
    """
    return 2 if sum(each.layers for each in shape.mixers) >= shape.layers else 1


def blocks(shape: ModelShape) -> Iterator[Block]:
    """Return the blocks of an average layer, whose weights sum up to those that a token passes.

    Attention and MLP apart where all layers attend plainly; else one block of everything beside experts.
    """
    routed = 0.0
    if shape.experts:
        one = shape.expert_parameters / (shape.expert_layers * shape.experts)
        width = min(shape.hidden, one / (2 * shape.expert_intermediate))
        share = shape.expert_layers / shape.layers
        routed = one * shape.experts_per_token * share
        out = shape.expert_intermediate
        yield Block(width, one / width - out, out, shape.experts_per_token, share, routed=True)
    sides = (shape.matmul_parameters / shape.layers - routed) / shape.hidden
    if not shape.mixing:
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        yield Block(shape.hidden, queries + 2 * keys, queries)
        sides -= 2 * (queries + keys)
    plain = not (shape.mixing or shape.experts)
    inner = min(shape.intermediate, sides / 2) if plain else sides / 3
    if sides > 0:
        yield Block(shape.hidden, sides - inner, inner)


def layer_seconds(
    shape: ModelShape, layout: Layout, tokens: float, part: Part, device: Profile, precision: Precision
) -> float:
    """Return the seconds of the products of an average layer; each expert of a device has products of its own."""
    found, ranks = 0.0, layout.tensor
    for each in blocks(shape):
        products = shape.experts / layout.expert if each.routed else 1.0
        rows = tokens * each.copies / products
        into_s = product_seconds(rows, each.into / ranks, each.width, part, device, precision)
        out_s = product_seconds(rows, each.width, each.out / ranks, part, device, precision)
        found += each.share * products * (into_s + out_s)
    return found


def product_seconds(
    tokens: float, columns: float, inner: float, part: Part, device: Profile, precision: Precision
) -> float:
    """Return the seconds of [tokens, inner] × [inner, columns], or of a product of its backward pass.

    In a narrower precision than two bytes, what flows through the model is cast first.
    """
    if part == "inputs":
        return matmul_seconds(tokens, inner, columns, device, precision) + _cast_s(tokens * columns, device, precision)
    if part == "weights":
        cast_s = _cast_s(tokens * (columns + inner), device, precision)
        return matmul_seconds(inner, columns, tokens, device, precision) + cast_s
    return matmul_seconds(tokens, columns, inner, device, precision) + _cast_s(tokens * inner, device, precision)


def _cast_s(numbers: float, device: Profile, precision: Precision) -> float:
    """Return the seconds in which numbers of two bytes are read, and written in a narrower precision."""
    width = WIDTH_BYTES[precision]
    return numbers * (2.0 + width) / memory_bytes_per_s(device) if width < 2.0 else 0.0


def head_seconds(shape: ModelShape, layout: Layout, tokens: float, part: Part, device: Profile, to: Precision) -> float:
    """Return the seconds of the head's product for the tokens that are read out."""
    return product_seconds(tokens, shape.outputs / layout.tensor, shape.hidden, part, device, to)


def attention_flops(shape: ModelShape, layout: Layout, micro: Micro) -> float:
    """Return the FLOPs of attention in an average layer, forward: 4 · heads · head dimension · pairs, if all attend."""
    products = shape.attention_products(round(micro.tokens), round(micro.pairs))
    return 2 * products / (shape.layers * layout.tensor)


def activation_bytes(shape: ModelShape, layout: Layout, tokens: float, replicated: float) -> float:
    """Return the bytes that a layer holds for its backward pass, in bfloat16, without attention scores.

    Norms, residuals and dropout, which ranks of tensor parallelism each do (`replicated` 1) or share (0); what lies
    between the products of each block, which they share; and what is sent to experts.
    Source: Korthikanti et al. 2022, arXiv 2205.05198, equations 1 to 4: for GPT 10 and 24 bytes of each hidden number.
    """
    ranks = layout.tensor
    norms = NORM_BYTES * merges(shape) * shape.hidden * (replicated + (1 - replicated) / ranks)
    inner = sum(
        each.share * each.copies * (2 * (each.into + each.out) + each.routed * ROUTED_BYTES * each.width)
        for each in blocks(shape)
    )
    return tokens * (norms + inner / ranks)


def score_count(shape: ModelShape, layout: Layout, micro: Micro) -> float:
    """Count the scores of an average layer where kernels write them out: of every head, and of masked pairs too."""
    return 2 * micro.pairs * shape.heads * shape.attention_layers / (shape.layers * layout.tensor)
