"""Seconds of a forward pass (log-probs, values, scores) and of an update, of one model in a layout, by part.

A roofline of each kernel, with the share of it that an engine attains and the overheads that it adds as constants. Not
here: generation (`generation`), bare kernels (`training_layers`), fitting constants (`calibration`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, TypeAlias

from flowgraph.cluster.plan import Layout
from placements.hardware.engine_constants import TrainingConstants
from placements.memory.footprint import BOUNDS
from placements.time.kernels import peak_flops
from placements.time.seconds import Seconds
from placements.time.training_layers import (
    ATTENTION_BACKWARD,
    DeviceNumbers,
    MicroBatch,
    activation_bytes,
    attention_flops,
    data_seconds,
    expert_seconds,
    layer_seconds,
    memory_bytes_per_s,
    merges,
    product_seconds,
    ring_seconds,
    score_count,
    sent_seconds,
    sequence_seconds,
    tensor_seconds,
    wide,
)

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Checkpointing, Logits, Offloaded, Precision
    from flowgraph.models import ModelShape
    from placements.hardware.device_profiles import PoolLinks
    from placements.time.training_layers import Part
    from placements.workload.node_workload import PassTokens

OPTIMIZER_BYTES = 30
"""Bytes that Adam moves for each number that it changes: it reads the gradient, the weight and both moments in float32,
writes the last three, and a copy of the weight in bfloat16.

Source: Rajbhandari et al. 2019, arXiv 1910.02054, section 3.1.
"""

OFFLOADED_BYTES: Mapping[Offloaded, int] = {"parameters": 4, "gradients": 4, "optimizer": 8}
"""Bytes in host memory for each number: float32 weights and gradients, and Adam's two moments."""

WEIGHT_BYTES = 2.0  # of a weight as data ranks gather it: bfloat16

Parts: TypeAlias = Mapping[str, float]
"""Known seconds by part."""


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
    """Return the seconds of a forward pass over all tokens of a step, by kind of work.

    The keys are those of `LayerPasses.layer`, for all layers and the head, or in a pipeline for its slowest stage;
    `pipeline` for filling and draining it and for sending between its stages; and `data` for gathering sharded weights.
    Keys of zero seconds are left out. A micro-batch has at most `micro_batch_tokens` tokens on each data rank; None
    passes all of a rank's tokens at once. Raises ValueError if `peak_flops` knows no peak of the device for this
    precision.
    """
    passes = layer_passes(shape, layout, links, constants, precision)
    count, micro = _micro_batches_of_step(tokens, layout, 1, micro_batch_tokens)
    layer, head = forward_pass(passes, micro), head_pass(passes, micro.read_out, False)
    sent_s = constants.exposed * sent_seconds(shape, layout, micro.tokens, links)
    parts = _pipelined(passes, layout, layer, head, count, sent_s)
    if layout.sharding == "full":
        rounds = count if layout.pipeline == 1 else 1
        gathered_s = _by_layer(shape, layout, links, _device_numbers(shape, layout), WEIGHT_BYTES)
        parts["data"] = rounds * _exposed(gathered_s, _stage_s(shape, layout, layer, head), constants)
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
    """Return the seconds of an update over all tokens in `steps` optimizer steps, by kind of work.

    The update has forward and backward passes. The keys are those of `forward_seconds`, where `data` is for weights and
    gradients; `optimizer` for the memory traffic and `step` for the constant overhead of optimizer steps; and
    `offload`. Keys of zero seconds are left out. A micro-batch has at most `micro_batch_tokens` tokens on each data
    rank; None passes a rank's tokens of an optimizer step at once. State in `offload` is copied from host memory before
    the update and back after it. Activations that `checkpointing` discards are recomputed: "full" recomputes whole
    layers, "selective" attention only. Logits in chunks are recomputed too, if there are several chunks. Raises
    ValueError if `peak_flops` knows no peak of the device for this precision.
    """
    passes = layer_passes(shape, layout, links, constants, precision)
    count, micro = _micro_batches_of_step(tokens, layout, steps, micro_batch_tokens)
    forward = forward_pass(passes, micro)
    recomputed = {"full": forward, "selective": {"attention": forward["attention"]}, "none": {}}[checkpointing]
    layer = summed((1, forward), (1, backward_pass(passes, micro)), (1, recomputed))
    head = head_pass(passes, micro.read_out, True)
    logit_numbers = micro.read_out * shape.outputs / layout.tensor
    if logits == "chunked" and shape.outputs > 1 and logit_numbers > BOUNDS["chunk_logits"].value:
        head = summed((1, head), (1, head_pass(passes, micro.read_out, False)))
    optimizer_numbers = _device_numbers(shape, layout, sharded=layout.sharding != "none").trained
    sent_s = constants.exposed * sent_seconds(shape, layout, micro.tokens, links)
    step = _pipelined(passes, layout, layer, head, count, 2 * sent_s) | {
        "data": _data_s(passes, layout, count, _stage_s(shape, layout, layer, head)),
        "optimizer": optimizer_numbers * OPTIMIZER_BYTES / memory_bytes_per_s(links.device),
        "step": constants.step_s,
    }
    offloaded_numbers = _device_numbers(shape, layout, sharded=layout.sharding == "full").trained
    host_bytes = 2 * offloaded_numbers * sum(OFFLOADED_BYTES[state] for state in offload)  # there and back
    return _nonzero(summed((steps, step)) | {"offload": host_bytes / links.device.host_bytes_per_s})


def _nonzero(parts: Parts) -> Seconds:
    return Seconds({name: seconds for name, seconds in parts.items() if seconds > 0})


def micro_batches(tokens: PassTokens, parts: int, budget_tokens: float | None) -> int:
    """Return how many micro-batches one of `parts` equal parts of a pass needs; 1 without a token budget.

    `parts` is the number of ways in which the tokens are divided first: data-parallel ranks, times optimizer steps in
    an update. A micro-batch holds at most `budget_tokens` tokens. Because rows are never split, it is filled to the
    share `tokens.filled` of that budget on average.
    """
    return max(1, ceil(tokens.tokens / parts / (budget_tokens * tokens.filled) - 1e-9)) if budget_tokens else 1


def _micro_batches_of_step(
    tokens: PassTokens, layout: Layout, steps: int, micro_batch_tokens: float | None
) -> tuple[int, MicroBatch]:
    rank_tokens = tokens.tokens / (layout.data * steps)
    count = micro_batches(tokens, layout.data * steps, micro_batch_tokens)
    paced = layout.pipeline > 1 and micro_batch_tokens is not None
    parts = rank_tokens / min(micro_batch_tokens or rank_tokens, rank_tokens) if paced else count
    devices = layout.data * steps * layout.sequence * parts
    return count, MicroBatch(tokens.tokens / devices, tokens.pairs / devices, tokens.read_out / devices)


# ------------------------------------------------------------------------------------------------- stages of a pipeline


def _pipelined(
    passes: LayerPasses, layout: Layout, layer: Parts, head: Parts, count: int, transfer_s: float
) -> dict[str, float]:
    """Return the seconds of `count` micro-batches through all stages: the parts of the slowest stage, and `pipeline`.

    The slowest stage runs all micro-batches; the others fill and drain the pipeline, which interleaving in `chunks`
    makes that much faster. Source: Narayanan et al. 2021, arXiv 2104.04473, sections 2.2.1 and 2.2.2.
    """
    shape, stages, chunks = passes.shape, layout.pipeline, passes.constants.chunks
    if stages == 1:
        return summed((count * shape.layers, layer), (count, head))
    longest = summed((ceil(shape.layers / stages), layer))
    last = summed((shape.layers / stages, layer), (1, head))
    slowest = max(longest, last, key=_total)
    fill_s = (_total(layer) * shape.layers + _total(head) - _total(slowest)) / chunks
    return summed((count, slowest)) | {"pipeline": max(0.0, fill_s) + transfer_s * (count * chunks + stages - 1)}


def _stage_s(shape: ModelShape, layout: Layout, layer: Parts, head: Parts) -> float:
    return (_total(layer) * shape.layers + _total(head)) / layout.pipeline


def _total(parts: Parts) -> float:
    return sum(parts.values())


# ---------------------------------------------------------------------------------------------- data ranks


def _data_s(passes: LayerPasses, layout: Layout, count: int, stage_s: float) -> float:
    """Return the seconds of transfers between data ranks in an optimizer step that no pass hides.

    Replicated gradients are all-reduced once. Sharded gradients are reduced once, and the weights gathered once; with
    sharded weights each micro-batch gathers them twice and reduces gradients, layer by layer, but in a pipeline a stage
    keeps them for a whole step. Source: Rajbhandari et al. 2019, arXiv 1910.02054, section 7; micro-batches: Zhao et
    al. 2023, arXiv 2304.11277, section 3; pipelines: Liang et al. 2024, arXiv 2410.06511, section 2.
    """
    shape, links, constants = passes.shape, passes.links, passes.constants
    numbers, gradient_bytes = _device_numbers(shape, layout), constants.gradient_bytes
    if layout.sharding == "full":
        gathers, rounds = (2, count) if layout.pipeline == 1 else (1, 1)
        gathered_s = gathers * _by_layer(shape, layout, links, numbers, WEIGHT_BYTES)
        round_s = gathered_s + _by_layer(shape, layout, links, numbers.learning, gradient_bytes)
        return rounds * _exposed(round_s, stage_s, constants)
    if layout.sharding == "none":
        reduced_s = data_seconds("all_reduce", numbers.learning, layout, links, gradient_bytes)
        return _exposed(reduced_s, stage_s, constants)
    reduced_s = data_seconds("all_gather", numbers.learning, layout, links, gradient_bytes)
    gathered_s = data_seconds("all_gather", numbers.learning, layout, links, WEIGHT_BYTES)
    return _exposed(reduced_s + gathered_s, stage_s, constants)


def _by_layer(
    shape: ModelShape, layout: Layout, links: PoolLinks, numbers: DeviceNumbers, number_bytes: float
) -> float:
    layers = max(1.0, shape.layers / layout.pipeline)
    return layers * data_seconds("all_gather", numbers.over(layers), layout, links, number_bytes)


def _exposed(transfer_s: float, pass_s: float, constants: TrainingConstants) -> float:
    return transfer_s - constants.overlap * min(transfer_s, pass_s)


def _device_numbers(shape: ModelShape, layout: Layout, *, sharded: bool = False) -> DeviceNumbers:
    experts = shape.expert_parameters / (layout.tensor * layout.pipeline * layout.expert)
    rest = (shape.parameters - shape.expert_parameters) / (layout.tensor * layout.pipeline)
    ranks = layout.data * layout.sequence if sharded else 1
    expert_ranks = max(1, ranks // layout.expert)
    return DeviceNumbers(rest / ranks, experts / expert_ranks, shape.trained / shape.parameters)


# ---------------------------------------------------------------------------------------------- one pass of a layer


@dataclass(frozen=True, eq=False)
class LayerPasses:
    """The passes of one layer on one device; they depend on tensor, sequence and expert ranks only."""

    shape: ModelShape
    layout: Layout
    links: PoolLinks
    constants: TrainingConstants
    precision: Precision

    def products_s(self, micro: MicroBatch, part: Part) -> float:
        """Return the total seconds of the matrix products of a micro-batch with the weights of the layer.

        `part` selects the products: those of the forward pass (`forward`), or of the backward pass for the gradient of
        the `inputs` or of the `weights`. Raises ValueError if the device's peak is unknown.
        """
        return layer_seconds(self.shape, self.layout, micro.tokens, part, self.links.device, self.precision)

    def moved_s(self, size_bytes: float) -> float:
        """Return the seconds of a kernel that only moves `size_bytes` bytes of memory."""
        return size_bytes / memory_bytes_per_s(self.links.device)

    def layer(self, micro: MicroBatch, products_s: float, *, attended: float, moved: float) -> Parts:
        """Return the seconds of one pass of the layer by kind: the device's work, and its wait for kernel launches.

        The keys are `matmul`; `attention`; `memory` for kernels that only move memory; `tensor`, `sequence` and
        `expert` for transfers between the ranks of each kind, as far as no work hides them; and `launch` for the wait.
        `products_s` are the seconds of matrix products; `attended` and `moved` are multiples of a forward pass's
        attention and memory traffic. Raises ValueError if the device's peak is unknown.
        """
        constants, shape, layout = self.constants, self.shape, self.layout
        attention_flops_per_s = min(
            constants.attention_share * peak_flops(self.links.device, wide(self.precision)), constants.attention_flops
        )
        scores_s = self.moved_s(moved * constants.score_bytes * score_count(shape, layout, micro))
        attention_s = attended * attention_flops(shape, layout, micro) / attention_flops_per_s + scores_s
        stored_bytes = activation_bytes(shape, layout, micro.tokens, constants.replicated)
        device_s = {
            "matmul": products_s / constants.matmul_share,
            "attention": attention_s,
            "memory": moved * constants.traffic * self.moved_s(stored_bytes),
            "tensor": constants.exposed * tensor_seconds(shape, layout, micro.tokens, self.links),
            "sequence": self._sequence_s(micro, moved, attention_s),
            "expert": constants.exposed * expert_seconds(shape, layout, micro.tokens, self.links),
        }
        calls = 2 * sum(degree > 1 for degree in (layout.tensor, layout.sequence, layout.expert))
        experts_s = moved * constants.expert_launch_s * shape.expert_layers / shape.layers
        launch_s = merges(shape) / 2 * constants.launch_s + experts_s + calls * constants.call_s
        return device_s | {"launch": max(0.0, launch_s - sum(device_s.values()))}

    def _sequence_s(self, micro: MicroBatch, moved: float, attention_s: float) -> float:
        """Return the seconds of transfers between the ranks of a sequence that attention does not hide.

        In a ring, a block of keys and values goes on to the next rank while attention reads it; backward, with its
        gradient. Ulysses trades tokens for heads before attention, and back after it. Source of rings: Liu et al. 2023,
        arXiv 2310.01889, section 3.
        """
        shape, layout, links, constants = self.shape, self.layout, self.links, self.constants
        if layout.sequence == 1:
            return 0.0
        if not constants.ring:
            return constants.exposed * sequence_seconds(shape, layout, micro.tokens, links)
        return max(0.0, moved * ring_seconds(shape, layout, micro.tokens, links) - attention_s)


# A search asks for the same pass of the same micro-batch at many sizes of a pool.


def layer_passes(
    shape: ModelShape, layout: Layout, links: PoolLinks, constants: TrainingConstants, precision: Precision
) -> LayerPasses:
    """Return an object that computes the seconds of one layer's passes in a layout, on devices of one kind."""
    return _layer_passes(shape, layout.tensor, layout.sequence, layout.expert, links, constants, precision)


@lru_cache(maxsize=1024)
def _layer_passes(
    shape: ModelShape,
    tensor: int,
    sequence: int,
    expert: int,
    links: PoolLinks,
    constants: TrainingConstants,
    precision: Precision,
) -> LayerPasses:
    return LayerPasses(shape, Layout(tensor=tensor, sequence=sequence, expert=expert), links, constants, precision)


@lru_cache(maxsize=16_384)
def forward_pass(passes: LayerPasses, micro: MicroBatch) -> Parts:
    """Return the seconds of one layer's forward pass over a device's share of a micro-batch, by kind of work.

    The keys are `matmul`, `attention`, `memory`, `tensor`, `sequence`, `expert` and `launch`, as in
    `LayerPasses.layer`. Raises ValueError if the device's peak is unknown.
    """
    return passes.layer(micro, passes.products_s(micro, "forward"), attended=1.0, moved=1.0)


@lru_cache(maxsize=16_384)
def backward_pass(passes: LayerPasses, micro: MicroBatch) -> Parts:
    """Return the seconds of one layer's backward pass over a device's share of a micro-batch, by kind of work.

    The keys are `matmul`, `attention`, `memory`, `tensor`, `sequence`, `expert` and `launch`, as in
    `LayerPasses.layer`. With adapters, frozen weights have no gradient. Recomputing a forward pass is not included.
    Raises ValueError if the device's peak is unknown.
    """
    weights_s = 0.0 if passes.shape.adapters else passes.products_s(micro, "weights")
    products_s = passes.products_s(micro, "inputs") + weights_s
    return passes.layer(micro, products_s, attended=ATTENTION_BACKWARD, moved=2.0)


@lru_cache(maxsize=16_384)
def head_pass(passes: LayerPasses, read_out: float, backward: bool) -> Parts:
    """Return the seconds of the head for `read_out` tokens on one device, under the keys `matmul` and `memory`.

    The forward pass is always included, the backward pass only if `backward`; with adapters, the head's weights have no
    gradient. Raises ValueError if the device's peak is unknown.
    """
    shape, precision = passes.shape, wide(passes.precision)
    gradients: tuple[Part, ...] = () if not backward else ("inputs",) if shape.adapters else ("inputs", "weights")
    kinds: tuple[Part, ...] = ("forward", *gradients)
    columns = shape.outputs / passes.layout.tensor
    products = (
        product_seconds(read_out, columns, shape.hidden, part, passes.links.device, precision) for part in kinds
    )
    logits = read_out * shape.outputs / passes.layout.tensor * (1.0 if backward else 1 / 3)
    return {
        "matmul": sum(products) / passes.constants.matmul_share,
        "memory": passes.moved_s(passes.constants.logit_bytes * logits),
    }


def summed(*counted: tuple[float, Parts]) -> dict[str, float]:
    """Return the weighted sum of several mappings of seconds, key by key; each argument is a weight and a mapping.

    >>> summed((2, {"matmul": 1.0}), (1, {"matmul": 0.5, "launch": 1.0}))
    {'matmul': 2.5, 'launch': 1.0}
    """
    total = dict[str, float]()
    for count, parts in counted:
        for name, seconds in parts.items():
            total[name] = total.get(name, 0.0) + count * seconds
    return total
