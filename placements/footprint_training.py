"""The footprint of training a model: states, activations, logits and what sharding gathers, at the worst moment.

Four moments are compared: the loss, the backward pass of a layer, its end, and the optimizer's step. Beside them a pass
without gradients, of a role that reads rows before it trains on them. Not here: the widths of layers (`activations`),
and roles that only read (`footprint_serving`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from flowgraph.cluster.plan import Layout
from placements.activations import (
    EAGER,
    LAST_WIDTHS,
    Widths,
    again_numbers,
    backward_numbers,
    forward_numbers,
    stored_numbers,
    table_numbers,
)
from placements.footprint import (
    Bytes,
    Footprint,
    MemoryConstants,
    Part,
    added,
    logits_bytes,
    process_bytes,
    total_bytes,
    whole,
)
from placements.holding import (
    Stage,
    adapter_numbers,
    layer_numbers,
    model_numbers,
    root_numbers,
    stages,
    weights_bytes,
)

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Checkpointing, Offloaded, Precision
    from flowgraph.models import ModelShape
    from placements.footprint import Logits

WIDTH_BYTES: Mapping[Precision, int] = {"float32": 4, "bfloat16": 2, "fp8": 2, "fp4": 2}
"""Of a number that is computed with: products in fewer bits convert what lies there in bfloat16."""


@dataclass(frozen=True)
class Training:
    """How a model is trained.

    A micro-batch has `micro_batch_tokens` on each data rank. What `offload` names lies in host memory: weights and
    gradients move by the layer, and the optimizer steps there. `logits` says whether a loss makes them all at once, and
    copies them, and `stats` what else it reads from them. `master` is the precision of what the optimizer changes,
    `frozen` of what adapters leave as it is. `spare_adapters` are held beside those that are trained. `interleaved`
    counts the pieces of the model that each stage of a pipeline has, and `micro_batches` those of a step; None: enough
    to fill it. An optimizer that is offloaded steps on the host if it `steps_on_host`; else its states come to the
    device for that.
    """

    layout: Layout = field(default_factory=Layout)
    checkpointing: Checkpointing = "full"
    offload: frozenset[Offloaded] = frozenset()
    micro_batch_tokens: int = 1
    logits: Logits = "chunked"
    precision: Precision = "bfloat16"
    master: Precision = "float32"
    frozen: Precision = "float32"
    optimizer: Literal["adamw", "sgd"] = "adamw"
    stats: frozenset[str] = frozenset()
    widths: Widths = EAGER
    offload_activations: bool = False
    spare_adapters: int = 0
    interleaved: int = 1
    micro_batches: int | None = None
    steps_on_host: bool = True

    @property
    def width_bytes(self) -> int:
        """Return the bytes of a number that is computed with."""
        return WIDTH_BYTES[self.precision]

    @property
    def copies(self) -> bool:
        """Say whether weights are kept as the optimizer changes them, and copied to be computed with.

        Full sharding does, and so does what is not cut at all, where the two widths differ.
        """
        return self.layout.sharding == "full" or (self.layout.sharding == "none" and self.layout.devices == 1)


@dataclass(frozen=True)
class Trained(Footprint):
    """What a role that trains holds; `reading` is all of it while rows pass without gradients, as for log-probs."""

    reading: Bytes = field(default_factory=dict[Part, int])

    def at(self, phase: str) -> Bytes:
        """Return what it holds in a phase, by part: what an update takes in an update only."""
        return self.at_work if phase == "update" else self.reading


@dataclass(frozen=True)
class _Case:
    """One stage of a model that is trained so, with the constants of its devices."""

    shape: ModelShape
    training: Training
    stage: Stage
    tokens: float
    sequence_tokens: int
    constants: MemoryConstants

    @property
    def layout(self) -> Layout:
        return self.training.layout


def training_bytes(
    shape: ModelShape, training: Training, *, sequence_tokens: int = 0, constants: MemoryConstants | None = None
) -> Trained:
    """Return what a role that trains a model holds on each device, that with the most of a pipeline.

    A row has up to `sequence_tokens`, and a micro-batch at least one row. Where rows pass without gradients, another
    device of a pipeline may have the most.
    """
    cases = _cases(shape, training, sequence_tokens, constants or MemoryConstants())
    found = [_footprint(case) for case in cases]
    most = max(found, key=lambda each: each.peak_bytes)
    return replace(most, reading=max((each.reading for each in found), key=total_bytes))


def waiting_bytes(shape: ModelShape, training: Training, *, sequence_tokens: int = 0) -> float:
    """Return the most activations that wait on a device for their backward pass, of all micro-batches in flight."""
    return max(map(_waiting_bytes, _cases(shape, training, sequence_tokens, MemoryConstants())))


def _cases(shape: ModelShape, training: Training, sequence_tokens: int, constants: MemoryConstants) -> list[_Case]:
    tokens = max(training.micro_batch_tokens, sequence_tokens) / training.layout.sequence
    found = stages(shape, training.layout, training.interleaved, training.micro_batches)
    return [_Case(shape, training, stage, tokens, sequence_tokens, constants) for stage in found]


def _footprint(case: _Case) -> Trained:
    training = case.training
    states = state_bytes(case.shape, training, case.stage)
    moves: Mapping[Offloaded, Part] = {"parameters": "weights", "gradients": "gradients", "optimizer": "optimizer"}
    away = {moves[each] for each in training.offload}
    lasting: Bytes = {part: count for part, count in states.items() if _lasts(part, training) and part not in away}
    passing: Bytes = {part: count for part, count in states.items() if part not in lasting and part not in away}
    host: Bytes = {part: count for part, count in states.items() if part in away}
    fetched = 0 if training.steps_on_host else host.get("optimizer", 0)
    if training.offload_activations:
        host = added((host, whole({"activations": _waiting_bytes(case)})))
    context = whole({"context": process_bytes(case.layout.devices, case.constants)})
    working = max((_reserved(moment, case.constants) for moment in _moments(case, fetched)), key=total_bytes)
    resident, reading = added((lasting, context)), _reserved(_reading(case), case.constants)
    reading = added((resident, reading))
    asleep_host: Bytes = {part: count for part, count in lasting.items() if part != "gradients"}
    return Trained(resident, added((passing, working)), host, context, asleep_host, reading=reading)


def _lasts(part: Part, training: Training) -> bool:
    """Say whether a state stays between updates: gradients do where they lie in one buffer of all ranks.

    Source: Megatron-LM's distributed optimizer keeps its buffers; FSDP2 frees gradients when it has stepped. What
    sleeps frees them too, without a copy on the host: verl, `offload_megatron_model_to_cpu`.
    """
    return part != "gradients" or training.layout.sharding in ("optimizer", "gradients")


def _reserved(moment: Mapping[Part, float], constants: MemoryConstants) -> Bytes:
    """Add what an allocator keeps beyond activations and logits; what is gathered has one size, and its blocks fit."""
    varied = moment.get("activations", 0.0) + moment.get("logits", 0.0)
    return whole({**moment, "reserved": constants.unused_share * varied})


def state_bytes(shape: ModelShape, training: Training, stage: Stage) -> Bytes:
    """Return weights, gradients and what the optimizer keeps, of what a device of a stage holds, wherever it lies.

    Bytes of each parameter in mixed precision with AdamW on N ranks:

    | sharding | weights | gradients | optimizer |
    |---|---|---|---|
    | none, optimizer, gradients | 2 | 4, 4, 4 / N | 12, 12 / N, 12 / N |
    | full, or one device | 4 / N | 4 / N | 8 / N |

    In one precision all have its width, and there is no second copy. Gradients are added up in the master's.
    Source: Rajbhandari et al. 2020 (ZeRO), arXiv 1910.02054, section 5; Megatron-LM, distributed optimizer.
    """
    layout, master = training.layout, WIDTH_BYTES[training.master]
    model, adapters = model_numbers(shape, layout, stage), adapter_numbers(shape, layout, stage)
    kept: Precision = training.master if training.copies else "float32" if training.width_bytes == 4 else "bfloat16"
    own = WIDTH_BYTES[kept]
    moments = 2 * master * (training.optimizer == "adamw") + (0 if own == master else master)
    frozen = training.frozen if shape.adapters and training.copies else kept
    trained = adapters if shape.adapters else model
    weights, gradients, optimizer = (layout.sharding in kinds for kinds in _CUT_BY)
    return whole(
        {
            "weights": weights_bytes(shape, layout, stage, frozen, cut=weights),
            "adapters": (1 + training.spare_adapters) * own * adapters.held(cut=weights),
            "gradients": master * trained.held(cut=gradients),
            "optimizer": moments * trained.held(cut=optimizer),
        }
    )


# The shardings that cut weights, gradients and the optimizer's states.
_CUT_BY = ("full",), ("gradients", "full"), ("optimizer", "gradients", "full")


def _moments(case: _Case, fetched_bytes: float) -> Iterator[Mapping[Part, float]]:
    """Return what comes and goes, beside the states, at the moments that may be the worst.

    `fetched_bytes` of an optimizer's states come from the host for its step.
    In a layer's backward pass its gradients come as what they are made from goes, so the larger of both counts; and
    gradients leave only when a layer is through, whose activations are gone then.
    """
    width, tokens, shape, widths = case.training.width_bytes, case.tokens, case.shape, case.training.widths
    waiting = 0.0 if case.training.offload_activations else _waiting_bytes(case)
    waiting += width * tokens * table_numbers(shape)
    if case.stage.last:
        last = width * tokens * LAST_WIDTHS * shape.hidden / case.layout.tensor
        yield {"activations": waiting + last, "logits": _logits_bytes(case), "gathered": _gathered(case, 1)}
    again = again_numbers(shape, case.layout, widths, case.training.checkpointing, case.sequence_tokens)
    back = width * tokens * backward_numbers(shape, case.layout, widths)
    yield {
        "activations": waiting + width * tokens * again + back,
        "gathered": _gathered(case, 2) + _reducing_bytes(case) + max(0.0, _layer_gradient_bytes(case) - back),
    }
    yield {"gathered": _ending_bytes(case)}
    yield {"optimizer": _stepping_bytes(case) + fetched_bytes}


def _reading(case: _Case) -> Mapping[Part, float]:
    """Return what a pass without gradients holds at its worst, as `footprint_serving` does, of weights as here.

    That is a layer in progress, or what went through them all beside its logits.
    """
    training, shape, constants = case.training, case.shape, case.constants
    numbers = training.width_bytes * case.tokens
    layer = numbers * (forward_numbers(shape, case.layout) + table_numbers(shape))
    last, gathered = numbers * 2 * shape.hidden / case.layout.tensor, _gathered(case, 2)
    each = constants.read_logit_bytes + constants.entropy_logit_bytes * ("entropy" in training.stats)
    read = logits_bytes(shape, case.layout, case.tokens, training.logits, each, constants) if case.stage.last else 0.0
    if last + read > layer:
        return {"activations": last, "logits": read, "gathered": gathered}
    return {"activations": layer, "gathered": gathered}


def _waiting_bytes(case: _Case) -> float:
    """Return the activations that wait for their backward pass, of all layers and micro-batches in flight."""
    numbers = stored_numbers(
        case.shape, case.layout, case.training.widths, case.training.checkpointing, case.sequence_tokens
    )
    return case.training.width_bytes * case.tokens * numbers * case.stage.layers * case.stage.in_flight


def _logits_bytes(case: _Case) -> float:
    training, constants = case.training, case.constants
    own = constants.whole_logit_bytes if training.logits == "whole" else constants.logit_bytes
    each = own + 2 * constants.entropy_logit_bytes * ("entropy" in training.stats)
    return logits_bytes(case.shape, case.layout, case.tokens, training.logits, each, constants)


def _piped(case: _Case) -> bool:
    """Say whether a stage of a pipeline keeps all of its sharded weights whole while micro-batches pass.

    Source: torchtitan, which shards weights again after a step only, so as not to gather them for each micro-batch.
    """
    return case.layout.pipeline > 1


def _gathered(case: _Case, layers: int) -> float:
    """Return the bytes of weights that are whole, to be computed with: embedding and head, and so many layers in turn.

    One device has nothing to fetch ahead, and a layer at a time. Derived from torch's FSDP2 with each layer sharded by
    itself and the rest as the root; equal to what its FSDPMemTracker counts as unsharded and as gathered.
    """
    training = case.training
    if not training.copies or (training.precision == training.master and case.layout.devices == 1):
        return 0.0
    layer = layer_numbers(case.shape, case.layout).count
    layer += training.spare_adapters * case.shape.adapters / case.shape.layers / case.layout.tensor
    at_once = case.stage.layers if _piped(case) else layers if case.layout.data * case.layout.sequence > 1 else 1
    return training.width_bytes * (root_numbers(case.shape, case.layout, case.stage) + at_once * layer)


def _gathers_gradients(case: _Case) -> bool:
    """Say whether whole gradients pass beside those that are kept; adapters' are too small to count."""
    return case.training.copies and not case.shape.adapters


def _layer_gradient_bytes(case: _Case) -> float:
    """Return the bytes of the gradients of one layer's weights, whole."""
    return case.training.width_bytes * layer_numbers(case.shape, case.layout).count * _gathers_gradients(case)


def _reducing_bytes(case: _Case) -> float:
    """Return the bytes of whole gradients beside a layer's own: those of the layer before, which leave, and the head's.

    Those that leave do so in the master's width, and in place of that layer's activations. Derived and checked as
    `_gathered`.
    """
    if not _gathers_gradients(case):
        return 0.0
    shape, layout, master = case.shape, case.layout, WIDTH_BYTES[case.training.master]
    layer = master * layer_numbers(shape, layout).count
    leaving = layer * case.stage.layers if _piped(case) else layer * (layout.data * layout.sequence > 1)
    gone = 0.0 if _piped(case) or case.training.offload_activations else _waiting_bytes(case) / case.stage.layers
    head = shape.vocabulary * shape.hidden / layout.tensor * (shape.head == "tokens" and case.stage.last)
    return max(0.0, leaving - gone) + case.training.width_bytes * head


def _ending_bytes(case: _Case) -> float:
    """Return the bytes of the root's gradients when a backward pass ends: whole, and in the master's width to leave."""
    both = case.training.width_bytes + WIDTH_BYTES[case.training.master]
    return both * root_numbers(case.shape, case.layout, case.stage) * _gathers_gradients(case)


def _stepping_bytes(case: _Case) -> float:
    """Return what an optimizer's step makes besides: one number of the master's width for each that it changes.

    Source: torch.optim.AdamW, whose foreach implementation makes lists of temporary tensors. Fused ones, as Megatron-LM
    has for buffers that are not cut with the weights, make none.
    """
    shape, training = case.shape, case.training
    if "optimizer" in training.offload or not training.copies:
        return 0.0
    numbers = (adapter_numbers if shape.adapters else model_numbers)(shape, training.layout, case.stage)
    return WIDTH_BYTES[training.master] * numbers.held(cut=training.layout.sharding == "full")
