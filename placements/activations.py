"""How many numbers of each token a decoder holds while it trains or reads: of a layer, and around the layers.

Counted in numbers of the width that is computed in (bfloat16: 2 bytes). Not here: weights and logits (`footprint`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Checkpointing, Layout
    from flowgraph.models import ModelShape

LAST_WIDTHS = 12.0
"""Hidden widths that the last norm and its backward pass hold. Derived as `EAGER`, and equal to the same tracker."""

FORWARD_MIXING = 3.5
"""Of queries, keys and values: what a pass without gradients holds of them at once, in their common width."""


@dataclass(frozen=True)
class Widths:
    """What one layer keeps of a token for its backward pass, and what that pass adds at its most, as multiples.

    `hidden` of the hidden width; `mixing` of (heads + KV heads) · head dimension; `mlp` of an MLP's inner width;
    `routed` and `expert` of the hidden and the inner width of all experts that a token is sent to; `scores` of the
    heads times the tokens attended to, where attention keeps them. The last three are what the backward pass adds.
    """

    hidden: float
    mixing: float
    mlp: float
    routed: float = 2.0
    expert: float = 4.0
    scores: float = 0.0
    back_hidden: float = 1.0
    back_mlp: float = 2.0
    back_routed: float = 3.0


# Unfused kernels and flash attention, as transformers computes Qwen3: of each norm the input in float32, the normalised
# and the scaled (4 h); of queries and keys the same of their own norm, and after rotation; values; attention's result
# (5 each); of the MLP the gate, its activation, the other branch and their product (4 f), and so of each expert, whose
# inputs are copies (k h), as its results are, which are weighted (k h). Backward, when the product's gradient becomes
# that of both branches: 2 f more; of experts, when their results are weighted: 3 k h more.
# Derived from the autograd graph of transformers 5.12, with torch's FSDPMemTracker in agreement to 1%.
EAGER = Widths(hidden=8.0, mixing=5.0, mlp=4.0)

# Kernels that keep inputs only and write gradients over what they came from: RMSNorm, rotation and SwiGLU of Liger.
# Source: Hsu et al. 2024 (Liger Kernel), arXiv 2410.10989, section 3.2.
FUSED = Widths(hidden=4.0, mixing=3.0, mlp=3.0, routed=2.0, expert=3.0, back_routed=2.0)

# GPT's layer: LayerNorm, an MLP without a gate, dropout (1 byte each). Korthikanti et al. 2022, arXiv 2205.05198,
# section 4.1: 34 bytes of each hidden width, 4 times that wide inside, and 5 bytes of each score if they are kept.
PLAIN = Widths(hidden=5.0, mixing=2.0, mlp=2.0, expert=2.0)
PLAIN_SCORED = Widths(hidden=5.0, mixing=2.0, mlp=2.0, expert=2.0, scores=2.5)


def kept_numbers(shape: ModelShape, layout: Layout, widths: Widths, sequence_tokens: int = 0) -> float:
    """Return what a layer keeps of each token for its backward pass on one device: of that kind of layer with the most.

    Ranks of `tensor` cut all of it, tokens where not columns. `sequence_tokens` count only where scores are kept.
    Source: Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2 (sequence parallelism).
    """
    attention = widths.hidden * shape.hidden + widths.mixing * _mixing(shape, layout)
    attention += widths.scores * shape.heads * sequence_tokens
    dense, shared = widths.mlp * shape.intermediate, widths.mlp * shape.shared_intermediate
    k = shape.experts_per_token
    routed = k * ((widths.routed + _sent(layout)) * shape.hidden + widths.expert * shape.expert_intermediate)
    # The router's scores in float32, and where each copy of a token goes.
    sparse = shared + routed + 2 * shape.experts if shape.experts else 0.0
    has_dense = not shape.experts or shape.dense_layers
    return (attention + max(dense if has_dense else 0.0, sparse)) / layout.tensor


def backward_numbers(shape: ModelShape, layout: Layout, widths: Widths) -> float:
    """Return what the backward pass of a layer adds for each token to what the layer keeps, on one device.

    Ranks of `tensor` that cut tokens gather them whole for products: its input, and the gradient of that.
    """
    dense = widths.back_mlp * max(shape.intermediate if not shape.experts else 0, shape.shared_intermediate)
    k, hidden, inner = shape.experts_per_token, shape.hidden, shape.expert_intermediate
    routed = k * max((widths.back_routed + _sent(layout)) * hidden, hidden + widths.back_mlp * inner)
    gathered = 2 * hidden if layout.tensor > 1 else 0.0
    return (widths.back_hidden * hidden + max(dense, routed)) / layout.tensor + gathered


def selected_numbers(shape: ModelShape, layout: Layout, widths: Widths) -> float:
    """Return what selective checkpointing keeps of each token in a layer: its input, and results that are dear.

    Those are of attention, and of every second product: queries, values, a gate of an MLP that is no expert's, and the
    last, a hidden width. Where less is kept anyway, it is that.
    Source: torchtitan, activation checkpointing by operation. Deviation: what Megatron-LM calls selective computes
    scores again and nothing else, and flash attention never keeps them: there it is "none".
    """
    mixing = (2 * shape.heads + shape.kv_heads) * shape.head_dim
    inner = shape.shared_intermediate if shape.experts else shape.intermediate
    found = (2 * shape.hidden + mixing + inner) / layout.tensor
    return min(found, kept_numbers(shape, layout, widths))


def stored_numbers(
    shape: ModelShape, layout: Layout, widths: Widths, mode: Checkpointing, sequence_tokens: int
) -> float:
    """Return what waits of each token of each layer from its forward to its backward pass, on one device.

    "full" keeps the layer's input alone, "selective" what is dear.
    """
    if mode == "full":
        return shape.hidden / layout.tensor
    if mode == "selective":
        return selected_numbers(shape, layout, widths)
    return kept_numbers(shape, layout, widths, sequence_tokens)


def again_numbers(
    shape: ModelShape, layout: Layout, widths: Widths, mode: Checkpointing, sequence_tokens: int
) -> float:
    """Return what checkpointing has computed again of each token for the layer in progress, on one device."""
    if mode == "none":
        return 0.0
    kept = kept_numbers(shape, layout, widths, sequence_tokens)
    return kept - (selected_numbers(shape, layout, widths) if mode == "selective" else 0.0)


def row_numbers(shape: ModelShape, layout: Layout, mode: Checkpointing) -> float:
    """Return what an update holds of each token at its most on one device, with all layers of a stage or of a model.

    Stages of a pipeline keep as much: each has fewer layers of as many more micro-batches.
    """
    waiting = stored_numbers(shape, layout, EAGER, mode, 0) * shape.layers
    return waiting + again_numbers(shape, layout, EAGER, mode, 0) + backward_numbers(shape, layout, EAGER)


def forward_numbers(shape: ModelShape, layout: Layout) -> float:
    """Return what a pass without gradients holds of each token at once: a layer in progress, on one device.

    Queries, keys and values, or four hidden widths and three of the MLP, or what experts are sent and give.
    Derived as `EAGER`, and equal to the same tracker.
    """
    hidden, k = shape.hidden, shape.experts_per_token
    mixing = 3 * hidden + FORWARD_MIXING * _mixing(shape, layout)
    dense = 4 * hidden + 3 * max(shape.intermediate if not shape.experts else 0, shape.shared_intermediate)
    routed = 4 * hidden + k * ((3 + _sent(layout)) * hidden + 2 * shape.expert_intermediate)
    gathered = hidden if layout.tensor > 1 else 0.0
    return max(mixing, dense, routed) / layout.tensor + gathered


def table_numbers(shape: ModelShape) -> float:
    """Return what a pass holds of each token once: its position, and the rotation's two rows."""
    return 2.0 * shape.head_dim + 4.0


def shared_heads(shape: ModelShape, layout: Layout) -> int:
    """Return the heads of keys as ranks of a sequence share them: repeated until there is one for each rank.

    Source: Jacobs et al. 2023, arXiv 2309.14509, section 3.2; verl's Ulysses repeats them too.

    >>> from types import SimpleNamespace
    >>> [shared_heads(SimpleNamespace(kv_heads=4), SimpleNamespace(sequence=ranks)) for ranks in (1, 2, 8)]
    [4, 4, 8]
    """
    return lcm(shape.kv_heads, layout.sequence)


def _mixing(shape: ModelShape, layout: Layout) -> int:
    """Return the common width of queries (or attention's result) and keys (or values)."""
    return (shape.heads + shared_heads(shape, layout)) * shape.head_dim


def _sent(layout: Layout) -> float:
    """Return the copies of a token that experts of other ranks add, in its widths: what is sent, and what comes back.

    Derived from torchtitan's expert parallelism: two all-to-alls, whose inputs are not reused. Not measured.
    """
    return 1.0 if layout.expert > 1 else 0.0
