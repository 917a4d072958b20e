"""Seconds of a forward pass (log-probs, values, scores) and of an update, of one model in a layout, by part.

A roofline of each kernel, with what an engine attains of it and what it adds as constants. Not here: generation
(`generation`), one pass of a layer (`training_passes`), and fitting the constants (`calibrate`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from placements.footprint import BOUNDS
from placements.seconds import Seconds
from placements.training_layers import Micro, memory_bytes_per_s
from placements.training_parallel import Held, gathered_seconds, reduced_seconds, sent_seconds
from placements.training_passes import Parts, Passes, TrainingConstants, summed

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Checkpointing, Layout, Logits, Offloaded, Precision
    from flowgraph.models import ModelShape
    from placements.profiles import Links

__all__ = ["Tokens", "TrainingConstants", "forward_seconds", "micro_batches", "update_seconds"]

OPTIMIZER_BYTES = 30
"""Bytes that Adam moves for each number that it changes: it reads the gradient, the weight and both moments in float32,
writes the last three, and a copy of the weight in bfloat16.

Source: Rajbhandari et al. 2019, arXiv 1910.02054, section 3.1, of what is kept.
"""

OFFLOADED_BYTES: Mapping[Offloaded, int] = {"parameters": 4, "gradients": 4, "optimizer": 8}
"""Bytes in host memory for each number: float32 weights and gradients, and Adam's two moments."""

WEIGHT_BYTES = 2.0  # of a weight as data ranks gather it: bfloat16


@dataclass(frozen=True)
class Tokens:
    """What passes a model in one go, on all its devices together.

    `pairs` are of a token and one that it sees: half the sum of squared lengths. `read_out` counts the tokens that have
    logits. `filled` is the share of a micro-batch's budget that whole rows fill.
    """

    tokens: float
    pairs: float
    read_out: float
    rows: float
    filled: float = 1.0


def forward_seconds(
    shape: ModelShape,
    tokens: Tokens,
    layout: Layout,
    links: Links,
    constants: TrainingConstants,
    *,
    micro_batch_tokens: float | None = None,
    precision: Precision = "bfloat16",
) -> Seconds:
    """Return the seconds of a forward pass over all tokens: `micro_batch_tokens` on a data rank at once, or all.

    Raises ValueError for a device without a peak in this precision or a wider one.
    """
    passes = Passes(shape, layout, links, constants, precision)
    count, micro = _cut(tokens, layout, 1, micro_batch_tokens)
    layer, head = passes.forward(micro), passes.head(micro, backward=False)
    parts = _piped(passes, layer, head, count, _sent(passes, micro))
    if layout.sharding == "full":
        rounds = count if layout.pipeline == 1 else 1
        gathered_s = _by_layer(passes, _held(passes), WEIGHT_BYTES)
        parts["data"] = rounds * _exposed(gathered_s, _stage_s(passes, layer, head), constants)
    return _told(parts)


def update_seconds(
    shape: ModelShape,
    tokens: Tokens,
    layout: Layout,
    links: Links,
    constants: TrainingConstants,
    *,
    micro_batch_tokens: float | None = None,
    checkpointing: Checkpointing = "full",
    logits: Logits = "whole",
    steps: int = 1,
    offload: Sequence[Offloaded] = (),
    precision: Precision = "bfloat16",
) -> Seconds:
    """Return the seconds of an update: forward and backward passes over all tokens, cut into `steps` optimizer steps.

    What is in `offload` comes from host memory before the update and goes back after it. Activations that
    `checkpointing` lets go are computed again: "full" those of whole layers, "selective" those of attention. So are
    `logits` that come in chunks.

    Raises ValueError for a device without a peak in this precision or a wider one.
    """
    passes = Passes(shape, layout, links, constants, precision)
    count, micro = _cut(tokens, layout, steps, micro_batch_tokens)
    forward = passes.forward(micro)
    again = {"full": forward, "selective": {"attention": forward["attention"]}, "none": {}}[checkpointing]
    layer = summed((1, forward), (1, passes.backward(micro)), (1, again))
    head = passes.head(micro, backward=True, again=logits == "chunked" and _in_chunks(passes, micro))
    step = _piped(passes, layer, head, count, 2 * _sent(passes, micro)) | {
        "data": _data_s(passes, count, _stage_s(passes, layer, head)),
        "optimizer": _held(passes, sharded=layout.sharding != "none").trained * OPTIMIZER_BYTES / _rate(passes),
        "step": constants.step_s,
    }
    return _told(summed((steps, step)) | {"offload": _offload_s(passes, offload)})


def _in_chunks(passes: Passes, micro: Micro) -> bool:
    """Return whether the logits of a micro-batch are more than one chunk."""
    logits = micro.read_out * passes.shape.outputs / passes.layout.tensor
    return passes.shape.outputs > 1 and logits > BOUNDS["chunk_logits"].value


def _told(parts: Parts) -> Seconds:
    """Leave out the parts that take no time."""
    return Seconds({name: value for name, value in parts.items() if value > 0})


def micro_batches(tokens: Tokens, parts: int, budget_tokens: float | None) -> int:
    """Return the micro-batches of whole rows in each of so many equal parts of the tokens: one without a budget."""
    return max(1, ceil(tokens.tokens / parts / (budget_tokens * tokens.filled) - 1e-9)) if budget_tokens else 1


def _cut(tokens: Tokens, layout: Layout, steps: int, micro_batch_tokens: float | None) -> tuple[int, Micro]:
    """Return the micro-batches of an optimizer step on each data rank, and what a device has of one.

    A pipeline goes at the pace of its fullest micro-batch.
    """
    local = tokens.tokens / (layout.data * steps)
    count = micro_batches(tokens, layout.data * steps, micro_batch_tokens)
    paced = layout.pipeline > 1 and micro_batch_tokens is not None
    parts = local / min(micro_batch_tokens or local, local) if paced else count
    devices = layout.data * steps * layout.sequence * parts
    return count, Micro(tokens.tokens / devices, tokens.pairs / devices, tokens.read_out / devices)


# ------------------------------------------------------------------------------------------------- stages of a pipeline


def _piped(passes: Passes, layer: Parts, head: Parts, count: int, sent_s: float) -> dict[str, float]:
    """Return the seconds of `count` micro-batches through all stages, by part of the slowest, and what comes on top.

    The slowest stage does all micro-batches; the others fill and drain the pipeline, in `chunks` pieces that much
    faster. Source: Narayanan et al. 2021, arXiv 2104.04473, sections 2.2.1 and 2.2.2.
    """
    shape, stages, chunks = passes.shape, passes.layout.pipeline, passes.constants.chunks
    if stages == 1:
        return summed((count * shape.layers, layer), (count, head))
    longest = summed((ceil(shape.layers / stages), layer))
    last = summed((shape.layers / stages, layer), (1, head))
    slowest = max(longest, last, key=_total)
    fill_s = (_total(layer) * shape.layers + _total(head) - _total(slowest)) / chunks
    return summed((count, slowest)) | {"pipeline": max(0.0, fill_s) + sent_s * (count * chunks + stages - 1)}


def _stage_s(passes: Passes, layer: Parts, head: Parts) -> float:
    """Return the seconds of a micro-batch in an average stage."""
    return (_total(layer) * passes.shape.layers + _total(head)) / passes.layout.pipeline


def _sent(passes: Passes, micro: Micro) -> float:
    return passes.constants.exposed * sent_seconds(passes.shape, passes.layout, micro.tokens, passes.links)


def _total(parts: Parts) -> float:
    return sum(parts.values())


def _rate(passes: Passes) -> float:
    return memory_bytes_per_s(passes.links.device)


# ---------------------------------------------------------------------------------- data ranks, optimizer, host memory


def _data_s(passes: Passes, count: int, stage_s: float) -> float:
    """Return the seconds of transfers between data ranks in an optimizer step that no pass hides.

    Gradients are all-reduced once. Sharded gradients are reduced once, and the weights gathered once; with sharded
    weights each micro-batch gathers them twice and reduces gradients, layer by layer, but in a pipeline a stage keeps
    them for all of a step. Source: Rajbhandari et al. 2019, arXiv 1910.02054, section 7; of micro-batches, Zhao et al.
    2023, arXiv 2304.11277, section 3; of pipelines, Liang et al. 2024, arXiv 2410.06511, section 2.
    """
    layout, links, constants = passes.layout, passes.links, passes.constants
    held, gradient = _held(passes), constants.gradient_bytes
    if layout.sharding == "full":
        gathers, rounds = (2, count) if layout.pipeline == 1 else (1, 1)
        each_s = gathers * _by_layer(passes, held, WEIGHT_BYTES) + _by_layer(passes, held.learning, gradient)
        return rounds * _exposed(each_s, stage_s, constants)
    if layout.sharding == "none":
        return _exposed(reduced_seconds(held.learning, layout, links, gradient), stage_s, constants)
    reduced_s = gathered_seconds(held.learning, layout, links, gradient)
    return _exposed(reduced_s + gathered_seconds(held.learning, layout, links, WEIGHT_BYTES), stage_s, constants)


def _by_layer(passes: Passes, held: Held, bytes_each: float) -> float:
    """Return the seconds of gathering what a stage holds layer by layer, or of reducing it."""
    layers = max(1.0, passes.shape.layers / passes.layout.pipeline)
    return layers * gathered_seconds(held.over(layers), passes.layout, passes.links, bytes_each)


def _exposed(transfer_s: float, pass_s: float, constants: TrainingConstants) -> float:
    """Return what a pass does not hide of a transfer: of the shorter of both, all but the part that overlaps.

    >>> from types import SimpleNamespace
    >>> [_exposed(1.0, 4.0, SimpleNamespace(overlap=part)) for part in (0.0, 0.75, 1.0)]
    [1.0, 0.25, 0.0]
    """
    return transfer_s - constants.overlap * min(transfer_s, pass_s)


def _held(passes: Passes, *, sharded: bool = False) -> Held:
    """Count the numbers of the model on one device, or of its share if data ranks share them."""
    shape, layout = passes.shape, passes.layout
    experts = shape.expert_parameters / (layout.tensor * layout.pipeline * layout.expert)
    rest = (shape.parameters - shape.expert_parameters) / (layout.tensor * layout.pipeline)
    ranks = layout.data * layout.sequence if sharded else 1
    own = max(1, ranks // layout.expert)
    return Held(rest / ranks, experts / own, shape.trained / shape.parameters)


def _offload_s(passes: Passes, offload: Sequence[Offloaded]) -> float:
    """Return the seconds in which what lies in host memory comes to the device and goes back."""
    numbers = _held(passes, sharded=passes.layout.sharding == "full").trained
    return 2 * numbers * sum(OFFLOADED_BYTES[each] for each in offload) / passes.links.device.host_bytes_per_s
