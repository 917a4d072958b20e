"""The activations of a decoder in numbers per token, in training and in passes without gradients.

Numbers have the width of the precision that the model computes in (bfloat16: 2 bytes). Not here: weights and logits
(`footprint`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Checkpointing, Layout
    from flowgraph.models import ModelShape
    from placements.memory.footprint import Part

LAST_WIDTHS = 12.0
"""Hidden widths that the last norm and its backward pass hold. Derived and checked as `EAGER`."""

FORWARD_MIXING = 3.5
"""What a pass without gradients holds at once of queries, keys and values, in multiples of their common width."""


@dataclass(frozen=True)
class ActivationWidths:
    """What one layer stores of each token for its backward pass, as multiples of model sizes.

    `hidden`: of the hidden width. `mixing`: of (heads + KV heads) · head dimension. `mlp`: of an MLP's inner width.
    `expert`: of the inner width of all experts that a token is sent to.
    """

    hidden: float
    mixing: float
    mlp: float
    expert: float = 4.0


# Unfused kernels and flash attention, as transformers computes Qwen3: of each norm the input in float32, the normalised
# and the scaled (4 h); of queries and keys the same of their own norm, and after rotation; values; attention's result
# (5 each); of the MLP the gate, its activation, the other branch and their product (4 f), and so of each expert, whose
# inputs are copies (k h), as its results are, which are weighted (k h). Backward, when the product's gradient becomes
# that of both branches: 2 f more; of experts, when their results are weighted: 3 k h more.
# Derived from the autograd graph of transformers 5.12, with torch's FSDPMemTracker in agreement to 1%.
EAGER = ActivationWidths(hidden=8.0, mixing=5.0, mlp=4.0)

# GPT's layer: LayerNorm, an MLP without a gate, dropout (1 byte each). Korthikanti et al. 2022, arXiv 2205.05198,
# section 4.1: 34 bytes of each hidden width, 4 times that wide inside.
PLAIN = ActivationWidths(hidden=5.0, mixing=2.0, mlp=2.0, expert=2.0)


def kept_numbers(shape: ModelShape, layout: Layout, widths: ActivationWidths) -> float:
    """Return how many numbers per token a layer of the largest kind stores for its backward pass, on one device.

    `widths` counts the stored numbers in multiples of model sizes. Ranks of tensor parallelism share all of them
    equally, along columns or along tokens. Source: Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2 (sequence
    parallelism).
    """
    attention = widths.hidden * shape.hidden + widths.mixing * _mixing(shape, layout)
    dense, shared = widths.mlp * shape.intermediate, widths.mlp * shape.shared_intermediate
    k = shape.experts_per_token
    routed = k * ((2.0 + _sent(layout)) * shape.hidden + widths.expert * shape.expert_intermediate)
    # The router's scores in float32, and where each copy of a token goes.
    sparse = shared + routed + 2 * shape.experts if shape.experts else 0.0
    has_dense = not shape.experts or shape.dense_layers
    return (attention + max(dense if has_dense else 0.0, sparse)) / layout.tensor


def checkpointed_numbers(
    shape: ModelShape, layout: Layout, widths: ActivationWidths, mode: Checkpointing
) -> tuple[float, float]:
    """Return how many numbers per token a layer stores for its backward pass, and how many it recomputes then.

    With "full", only the layer's input is stored. With "selective", the expensive results of attention and of every
    second product are stored too: queries, values, the gate of an MLP outside experts, and the last result, of hidden
    width; but never more than with "none", where everything is stored and nothing recomputed.

    Source: torchtitan, activation checkpointing by operation. Megatron-LM calls something else selective: it recomputes
    only attention scores, which flash attention never stores, so it corresponds to "none" here.
    """
    numbers = kept_numbers(shape, layout, widths)
    if mode == "none":
        return numbers, 0.0
    if mode == "full":
        return shape.hidden / layout.tensor, numbers
    mixing = (2 * shape.heads + shape.kv_heads) * shape.head_dim
    inner = shape.shared_intermediate if shape.experts else shape.intermediate
    selected = min((2 * shape.hidden + mixing + inner) / layout.tensor, numbers)
    return selected, numbers - selected


def backward_numbers(shape: ModelShape, layout: Layout) -> float:
    """Return how many numbers per token a layer's backward pass adds at its peak, on one device.

    Tensor ranks that divide the tokens gather them for products, so each then has the layer's whole input and its whole
    gradient.
    """
    dense = 2.0 * max(shape.intermediate if not shape.experts else 0, shape.shared_intermediate)
    k, hidden, inner = shape.experts_per_token, shape.hidden, shape.expert_intermediate
    routed = k * max((3.0 + _sent(layout)) * hidden, hidden + 2.0 * inner)
    gathered = 2 * hidden if layout.tensor > 1 else 0.0
    return (hidden + max(dense, routed)) / layout.tensor + gathered


def row_numbers(shape: ModelShape, layout: Layout, mode: Checkpointing) -> float:
    """Return how many activation numbers per token an update holds at its peak, over all layers, on one device.

    `mode` says what is stored for the backward pass and what is recomputed. Logits are not included. Pipeline stages do
    not change the result: a stage has fewer layers, but holds the activations of proportionally more micro-batches.
    """
    waiting, again = checkpointed_numbers(shape, layout, EAGER, mode)
    return waiting * shape.layers + again + backward_numbers(shape, layout)


def forward_numbers(shape: ModelShape, layout: Layout) -> float:
    """Return how many numbers per token a pass without gradients holds at its peak, in one layer on one device.

    The peak is the largest of three moments: attention, a dense MLP, and experts with their inputs and results. Derived
    and checked as `EAGER`.
    """
    hidden, k = shape.hidden, shape.experts_per_token
    mixing = 3 * hidden + FORWARD_MIXING * _mixing(shape, layout)
    dense = 4 * hidden + 3 * max(shape.intermediate if not shape.experts else 0, shape.shared_intermediate)
    routed = 4 * hidden + k * ((3 + _sent(layout)) * hidden + 2 * shape.expert_intermediate)
    gathered = hidden if layout.tensor > 1 else 0.0
    return max(mixing, dense, routed) / layout.tensor + gathered


def table_numbers(shape: ModelShape) -> float:
    """Return how many numbers per token a pass holds outside the layers: the token's position, and two rotary rows."""
    return 2.0 * shape.head_dim + 4.0


def reading_moment(shape: ModelShape, layout: Layout, token_bytes: float, logits_bytes: float) -> dict[Part, float]:
    """Return the peak bytes of activations and logits in a pass without gradients, by part, on one device.

    The peak is either one layer in progress, with only the key `activations`, or the output of the last layer with its
    logits, with the keys `activations` and `logits`, if that is more. `token_bytes` is the bytes of one number times
    the tokens of the pass; `logits_bytes` is the size of the logits.
    """
    layer = token_bytes * (forward_numbers(shape, layout) + table_numbers(shape))
    last = token_bytes * 2 * shape.hidden / layout.tensor
    if last + logits_bytes > layer:
        return {"activations": last, "logits": logits_bytes}
    return {"activations": layer}


def shared_heads(shape: ModelShape, layout: Layout) -> int:
    """Return the number of KV heads after they are repeated, so that all sequence-parallel ranks have equally many.

    This is the least common multiple of the model's KV heads and the sequence-parallel degree. Source: Jacobs et al.
    2023 (Ulysses), arXiv 2309.14509, section 3.2; verl's Ulysses repeats them too.

    >>> from types import SimpleNamespace
    >>> [shared_heads(SimpleNamespace(kv_heads=4), SimpleNamespace(sequence=ranks)) for ranks in (1, 2, 8)]
    [4, 4, 8]
    """
    return lcm(shape.kv_heads, layout.sequence)


def _mixing(shape: ModelShape, layout: Layout) -> int:
    return (shape.heads + shared_heads(shape, layout)) * shape.head_dim


def _sent(layout: Layout) -> float:
    """Return the copies of a token that experts on other ranks add, in hidden widths: sent, and received.

    Derived from torchtitan's expert parallelism: two all-to-alls, whose inputs are not reused. Not measured.
    """
    return 1.0 if layout.expert > 1 else 0.0
