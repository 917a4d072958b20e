"""Seconds of a forward pass (log-probs, values, scores) and of an update, of one model in a layout, by part.

A roofline of each kernel, with the share of it that an engine attains and the overheads that it adds as constants. Not
here: generation (`generation`), one pass of a layer (`training_passes`), fitting constants (`calibration`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING

from placements.memory.footprint import BOUNDS
from placements.time.seconds import Seconds
from placements.time.training_collectives import DeviceNumbers, gathered_seconds, reduced_seconds, sent_seconds
from placements.time.training_layers import MicroBatch, memory_bytes_per_s
from placements.time.training_passes import Parts, TrainingPasses, summed

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Checkpointing, Layout, Logits, Offloaded, Precision
    from flowgraph.models import ModelShape
    from placements.hardware.device_profiles import PoolLinks
    from placements.hardware.engine_constants import TrainingConstants
    from placements.workload.node_workload import PassTokens

OPTIMIZER_BYTES = 30
"""Bytes that Adam moves for each number that it changes: it reads the gradient, the weight and both moments in float32,
writes the last three, and a copy of the weight in bfloat16.

Source: Rajbhandari et al. 2019, arXiv 1910.02054, section 3.1.
"""

OFFLOADED_BYTES: Mapping[Offloaded, int] = {"parameters": 4, "gradients": 4, "optimizer": 8}
"""Bytes in host memory for each number: float32 weights and gradients, and Adam's two moments."""

WEIGHT_BYTES = 2.0  # of a weight as data ranks gather it: bfloat16


def forward_seconds(
    shape: ModelShape,
    tokens: PassTokens,
    layout: Layout,
    links: PoolLinks,
    constants: TrainingConstants,
    *,
    micro_batch_tokens: float | None = None,
    precision: Precision = "bfloat16",
) -> Seconds:
    """Return the seconds of a forward pass over all tokens, in micro-batches of `micro_batch_tokens` on each data rank.

    Without `micro_batch_tokens`, each data rank passes its tokens at once. Raises ValueError for a device without a
    peak in this precision or a wider one.
    """
    passes = TrainingPasses(shape, layout, links, constants, precision)
    count, micro = _micro_batches_of_step(tokens, layout, 1, micro_batch_tokens)
    layer, head = passes.forward(micro), passes.head(micro, backward=False)
    parts = _pipelined(passes, layer, head, count, _stage_transfer_s(passes, micro))
    if layout.sharding == "full":
        rounds = count if layout.pipeline == 1 else 1
        gathered_s = _by_layer(passes, _device_numbers(passes), WEIGHT_BYTES)
        parts["data"] = rounds * _exposed(gathered_s, _stage_s(passes, layer, head), constants)
    return _nonzero(parts)


def update_seconds(
    shape: ModelShape,
    tokens: PassTokens,
    layout: Layout,
    links: PoolLinks,
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

    State in `offload` comes from host memory before the update and goes back after it. Activations that
    `checkpointing` discards are recomputed: "full" recomputes whole layers, "selective" attention only. Logits in
    chunks are recomputed too.

    Raises ValueError for a device without a peak in this precision or a wider one.
    """
    passes = TrainingPasses(shape, layout, links, constants, precision)
    count, micro = _micro_batches_of_step(tokens, layout, steps, micro_batch_tokens)
    forward = passes.forward(micro)
    recomputed = {"full": forward, "selective": {"attention": forward["attention"]}, "none": {}}[checkpointing]
    layer = summed((1, forward), (1, passes.backward(micro)), (1, recomputed))
    logit_numbers = micro.read_out * shape.outputs / layout.tensor
    chunked = logits == "chunked" and shape.outputs > 1 and logit_numbers > BOUNDS["chunk_logits"].value
    head = passes.head(micro, backward=True, recompute=chunked)
    optimizer_numbers = _device_numbers(passes, sharded=layout.sharding != "none").trained
    step = _pipelined(passes, layer, head, count, 2 * _stage_transfer_s(passes, micro)) | {
        "data": _data_s(passes, count, _stage_s(passes, layer, head)),
        "optimizer": optimizer_numbers * OPTIMIZER_BYTES / memory_bytes_per_s(links.device),
        "step": constants.step_s,
    }
    offloaded_numbers = _device_numbers(passes, sharded=layout.sharding == "full").trained
    host_bytes = 2 * offloaded_numbers * sum(OFFLOADED_BYTES[state] for state in offload)  # there and back
    return _nonzero(summed((steps, step)) | {"offload": host_bytes / links.device.host_bytes_per_s})


def _nonzero(parts: Parts) -> Seconds:
    return Seconds({name: seconds for name, seconds in parts.items() if seconds > 0})


def micro_batches(tokens: PassTokens, parts: int, budget_tokens: float | None) -> int:
    """Return the micro-batches of whole rows in each of `parts` equal parts of the tokens; 1 without a budget."""
    return max(1, ceil(tokens.tokens / parts / (budget_tokens * tokens.filled) - 1e-9)) if budget_tokens else 1


def _micro_batches_of_step(
    tokens: PassTokens, layout: Layout, steps: int, micro_batch_tokens: float | None
) -> tuple[int, MicroBatch]:
    """Return the number of micro-batches of an optimizer step on each data rank, and a device's part of one.

    The fullest micro-batch sets the pace of a pipeline.
    """
    rank_tokens = tokens.tokens / (layout.data * steps)
    count = micro_batches(tokens, layout.data * steps, micro_batch_tokens)
    paced = layout.pipeline > 1 and micro_batch_tokens is not None
    parts = rank_tokens / min(micro_batch_tokens or rank_tokens, rank_tokens) if paced else count
    devices = layout.data * steps * layout.sequence * parts
    return count, MicroBatch(tokens.tokens / devices, tokens.pairs / devices, tokens.read_out / devices)


# ------------------------------------------------------------------------------------------------- stages of a pipeline


def _pipelined(passes: TrainingPasses, layer: Parts, head: Parts, count: int, transfer_s: float) -> dict[str, float]:
    """Return the seconds of `count` micro-batches through all stages: the parts of the slowest stage, and `pipeline`.

    The slowest stage runs all micro-batches; the others fill and drain the pipeline, which interleaving in `chunks`
    makes that much faster. Source: Narayanan et al. 2021, arXiv 2104.04473, sections 2.2.1 and 2.2.2.
    """
    shape, stages, chunks = passes.shape, passes.layout.pipeline, passes.constants.chunks
    if stages == 1:
        return summed((count * shape.layers, layer), (count, head))
    longest = summed((ceil(shape.layers / stages), layer))
    last = summed((shape.layers / stages, layer), (1, head))
    slowest = max(longest, last, key=_total)
    fill_s = (_total(layer) * shape.layers + _total(head) - _total(slowest)) / chunks
    return summed((count, slowest)) | {"pipeline": max(0.0, fill_s) + transfer_s * (count * chunks + stages - 1)}


def _stage_s(passes: TrainingPasses, layer: Parts, head: Parts) -> float:
    """Return the seconds of a micro-batch in an average stage."""
    return (_total(layer) * passes.shape.layers + _total(head)) / passes.layout.pipeline


def _stage_transfer_s(passes: TrainingPasses, micro: MicroBatch) -> float:
    return passes.constants.exposed * sent_seconds(passes.shape, passes.layout, micro.tokens, passes.links)


def _total(parts: Parts) -> float:
    return sum(parts.values())


# ---------------------------------------------------------------------------------------------- data ranks


def _data_s(passes: TrainingPasses, count: int, stage_s: float) -> float:
    """Return the seconds of transfers between data ranks in an optimizer step that no pass hides.

    Replicated gradients are all-reduced once. Sharded gradients are reduced once, and the weights gathered once; with
    sharded weights each micro-batch gathers them twice and reduces gradients, layer by layer, but in a pipeline a stage
    keeps them for a whole step. Source: Rajbhandari et al. 2019, arXiv 1910.02054, section 7; micro-batches: Zhao et
    al. 2023, arXiv 2304.11277, section 3; pipelines: Liang et al. 2024, arXiv 2410.06511, section 2.
    """
    layout, links, constants = passes.layout, passes.links, passes.constants
    numbers, gradient_bytes = _device_numbers(passes), constants.gradient_bytes
    if layout.sharding == "full":
        gathers, rounds = (2, count) if layout.pipeline == 1 else (1, 1)
        gathered_s = gathers * _by_layer(passes, numbers, WEIGHT_BYTES)
        round_s = gathered_s + _by_layer(passes, numbers.learning, gradient_bytes)
        return rounds * _exposed(round_s, stage_s, constants)
    if layout.sharding == "none":
        return _exposed(reduced_seconds(numbers.learning, layout, links, gradient_bytes), stage_s, constants)
    reduced_s = gathered_seconds(numbers.learning, layout, links, gradient_bytes)
    return _exposed(reduced_s + gathered_seconds(numbers.learning, layout, links, WEIGHT_BYTES), stage_s, constants)


def _by_layer(passes: TrainingPasses, numbers: DeviceNumbers, number_bytes: float) -> float:
    """Return the seconds in which a stage's numbers are gathered, or reduced, layer by layer."""
    layers = max(1.0, passes.shape.layers / passes.layout.pipeline)
    return layers * gathered_seconds(numbers.over(layers), passes.layout, passes.links, number_bytes)


def _exposed(transfer_s: float, pass_s: float, constants: TrainingConstants) -> float:
    """Return the part of a transfer that a pass does not hide.

    >>> from types import SimpleNamespace
    >>> [_exposed(1.0, 4.0, SimpleNamespace(overlap=share)) for share in (0.0, 0.75, 1.0)]
    [1.0, 0.25, 0.0]
    """
    return transfer_s - constants.overlap * min(transfer_s, pass_s)


def _device_numbers(passes: TrainingPasses, *, sharded: bool = False) -> DeviceNumbers:
    """Return the numbers of the model on one device, or in its share if data ranks share them."""
    shape, layout = passes.shape, passes.layout
    experts = shape.expert_parameters / (layout.tensor * layout.pipeline * layout.expert)
    rest = (shape.parameters - shape.expert_parameters) / (layout.tensor * layout.pipeline)
    ranks = layout.data * layout.sequence if sharded else 1
    expert_ranks = max(1, ranks // layout.expert)
    return DeviceNumbers(rest / ranks, experts / expert_ranks, shape.trained / shape.parameters)
