"""The footprint of training a model: states, activations, logits and gathered weights, at the peak.

Four moments are compared: the loss, the backward pass of a layer, its end, and the optimizer's step; in addition, a
pass without gradients of a role that reads rows before it trains on them. Not here: the widths of layers
(`activations`), and roles that only read (`serving`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from flowgraph.cluster.plan import Layout
from placements.memory.activations import (
    EAGER,
    LAST_WIDTHS,
    ActivationWidths,
    backward_numbers,
    checkpointed_numbers,
    reading_moment,
    table_numbers,
)
from placements.memory.footprint import (
    SHIPPED,
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
from placements.memory.model_shards import (
    PipelineStage,
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
    from placements.memory.footprint import Logits

STATES: Mapping[Offloaded, Part] = {"parameters": "weights", "gradients": "gradients", "optimizer": "optimizer"}

WIDTH_BYTES: Mapping[Precision, int] = {"float32": 4, "bfloat16": 2, "fp8": 2, "fp4": 2}
"""Bytes of a number that is computed with: products in fewer bits convert from bfloat16."""


@dataclass(frozen=True)
class TrainingSettings:
    """The settings with which a model is trained.

    A micro-batch has `micro_batch_tokens` on each data rank. `offload` names the state in host memory: weights and
    gradients are copied layer by layer; the optimizer steps on the host if `steps_on_host`, else its states are copied
    to the device for the step. `logits` says whether a loss computes all logits at once, and copies them; `stats` names
    what else is computed from logits, such as entropy. `master` is the precision of the weights that the optimizer
    changes, `frozen` that of weights under adapters. `spare_adapters` are held in addition to those that are trained.
    `interleaved` is the number of model pieces of each pipeline stage, and `micro_batches` the number in a step; None:
    enough to fill the pipeline.
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
    widths: ActivationWidths = EAGER
    offload_activations: bool = False
    spare_adapters: int = 0
    interleaved: int = 1
    micro_batches: int | None = None
    steps_on_host: bool = True

    @property
    def width_bytes(self) -> int:
        """Return the bytes of one number that is computed with; 2 for fp8 and fp4, which convert from bfloat16."""
        return WIDTH_BYTES[self.precision]

    @property
    def copies(self) -> bool:
        """Return whether weights are stored in the optimizer's precision and cast for each computation.

        This is so with full sharding, and on a single device without sharding.
        """
        return self.layout.sharding == "full" or (self.layout.sharding == "none" and self.layout.devices == 1)


@dataclass(frozen=True)
class TrainingFootprint(Footprint):
    """The bytes of a role that trains; `reading` are its bytes during passes without gradients, as for log-probs."""

    reading: Bytes = field(default_factory=dict[Part, int])

    def at(self, phase: str) -> Bytes:
        """Return the bytes on a device in a phase, by part: `at_work` in an update, else `reading`."""
        return self.at_work if phase == "update" else self.reading


def training_bytes(
    shape: ModelShape, training: TrainingSettings, *, sequence_tokens: int = 0, constants: MemoryConstants = SHIPPED
) -> TrainingFootprint:
    """Return the bytes of a role that trains a model, on the pipeline stage that has the most at its peak.

    A micro-batch has the tokens of `training`, but at least one row of up to `sequence_tokens` tokens. The result's
    `reading`, the bytes of a pass without gradients, is that of the stage which has the most in such a pass.
    """
    stages = _stages(shape, training, sequence_tokens, constants)
    footprints = [stage.footprint() for stage in stages]
    largest = max(footprints, key=lambda footprint: footprint.peak_bytes)
    return replace(largest, reading=max((footprint.reading for footprint in footprints), key=total_bytes))


def waiting_bytes(shape: ModelShape, training: TrainingSettings, *, sequence_tokens: int = 0) -> float:
    """Return the bytes of activations that wait for the backward pass per device, of all micro-batches in flight.

    Of several pipeline stages, the one with the most bytes counts. A micro-batch has at least `sequence_tokens` tokens.
    Activations that are offloaded to the host are included.
    """
    return max(stage.waiting_bytes for stage in _stages(shape, training, sequence_tokens, SHIPPED))


def _stages(
    shape: ModelShape, training: TrainingSettings, sequence_tokens: int, constants: MemoryConstants
) -> list[_StageModel]:
    tokens = max(training.micro_batch_tokens, sequence_tokens) / training.layout.sequence
    cut = stages(shape, training.layout, training.interleaved, training.micro_batches)
    return [_StageModel(shape, training, stage, tokens, constants) for stage in cut]


def state_bytes(shape: ModelShape, training: TrainingSettings, stage: PipelineStage) -> Bytes:
    """Return the bytes of weights, adapters, gradients and optimizer states for one device of a stage, by part.

    States that are offloaded to the host are counted too; parts without bytes are left out. With AdamW in mixed
    precision on N ranks, a parameter takes these bytes:

    | sharding | weights | gradients | optimizer |
    |---|---|---|---|
    | none, optimizer, gradients | 2 | 4, 4, 4 / N | 12, 12 / N, 12 / N |
    | full, or one device | 4 / N | 4 / N | 8 / N |

    If weights, gradients and optimizer states have one precision, weights have no second copy. Gradients have the
    precision of the master weights. Source: Rajbhandari et al. 2020 (ZeRO), arXiv 1910.02054, section 5; Megatron-LM,
    distributed optimizer.
    """
    layout, master, sharding = training.layout, WIDTH_BYTES[training.master], training.layout.sharding
    model, adapters = model_numbers(shape, layout, stage), adapter_numbers(shape, layout, stage)
    precision: Precision = training.master if training.copies else "float32"
    if not training.copies and training.width_bytes != 4:
        precision = "bfloat16"
    width = WIDTH_BYTES[precision]
    moments = 2 * master * (training.optimizer == "adamw") + (0 if width == master else master)
    frozen = training.frozen if shape.adapters and training.copies else precision
    trained = adapters if shape.adapters else model
    cuts_weights = sharding == "full"
    return whole(
        {
            "weights": weights_bytes(shape, layout, stage, frozen, cut=cuts_weights),
            "adapters": (1 + training.spare_adapters) * width * adapters.held(cut=cuts_weights),
            "gradients": master * trained.held(cut=sharding in ("gradients", "full")),
            "optimizer": moments * trained.held(cut=sharding in ("optimizer", "gradients", "full")),
        }
    )


@dataclass(frozen=True)
class _StageModel:
    shape: ModelShape
    training: TrainingSettings
    stage: PipelineStage
    tokens: float
    constants: MemoryConstants

    @property
    def layout(self) -> Layout:
        return self.training.layout

    def footprint(self) -> TrainingFootprint:
        training = self.training
        states = state_bytes(self.shape, training, self.stage)
        offloaded = {STATES[name] for name in training.offload}
        # Gradients stay between updates where they lie in one buffer of all ranks: Megatron-LM's distributed optimizer
        # keeps its buffers; FSDP2 frees gradients when it has stepped.
        keeps_gradients = training.layout.sharding in ("optimizer", "gradients")
        lasting, passing, host = dict[Part, int](), dict[Part, int](), dict[Part, int]()
        for part, size in states.items():
            lasts = part != "gradients" or keeps_gradients
            (host if part in offloaded else lasting if lasts else passing)[part] = size
        fetched_bytes = 0 if training.steps_on_host else host.get("optimizer", 0)
        if training.offload_activations:
            host = added((host, whole({"activations": self.waiting_bytes})))
        context = whole({"context": process_bytes(self.layout.devices, self.constants)})
        working = max(map(self._with_reserve, self._moments(fetched_bytes)), key=total_bytes)
        resident = added((lasting, context))
        # Rows that pass without gradients, as in `serving`, of weights as here.
        logits = self._logits_bytes(self.constants.read_logit_bytes, 1) if self.stage.last else 0.0
        moment = reading_moment(self.shape, self.layout, training.width_bytes * self.tokens, logits)
        reading = added((resident, self._with_reserve({**moment, "gathered": self._gathered(2)})))
        # A sleeping role frees gradients without a copy on the host. Source: verl, `offload_megatron_model_to_cpu`.
        asleep_host: Bytes = {part: size for part, size in lasting.items() if part != "gradients"}
        return TrainingFootprint(resident, added((passing, working)), host, context, asleep_host, reading=reading)

    def _with_reserve(self, moment: Mapping[Part, float]) -> Bytes:
        """Add what an allocator keeps beyond activations and logits; gathered blocks have one size, and fit."""
        varied = moment.get("activations", 0.0) + moment.get("logits", 0.0)
        return whole({**moment, "reserved": self.constants.unused_share * varied})

    def _moments(self, fetched_bytes: float) -> Iterator[Mapping[Part, float]]:
        """Yield what comes and goes, besides the states, at the moments that may be the worst.

        `fetched_bytes` of an optimizer's states come from the host for its step. In a layer's backward pass its
        gradients come as what they are made from goes, so the larger of both counts; and gradients leave only when a
        layer is through, whose activations are gone then.
        """
        shape, layout, training = self.shape, self.layout, self.training
        width, master, tokens = training.width_bytes, WIDTH_BYTES[training.master], self.tokens
        waiting = 0.0 if training.offload_activations else self.waiting_bytes
        waiting += width * tokens * table_numbers(shape)
        if self.stage.last:
            last = width * tokens * LAST_WIDTHS * shape.hidden / layout.tensor
            copied, constants = training.logits != "whole", self.constants
            logits = self._logits_bytes(constants.logit_bytes if copied else constants.whole_logit_bytes, 2)
            yield {"activations": waiting + last, "logits": logits, "gathered": self._gathered(1)}
        _, again = checkpointed_numbers(shape, layout, training.widths, training.checkpointing)
        back = width * tokens * backward_numbers(shape, layout)
        layer_gradients = width * layer_numbers(shape, layout).count * self._gathers_gradients
        yield {
            "activations": waiting + width * tokens * again + back,
            "gathered": self._gathered(2) + self._reducing_bytes() + max(0.0, layer_gradients - back),
        }
        # The root's gradients when a backward pass ends: whole, and in the master's width to leave.
        yield {"gathered": (width + master) * root_numbers(shape, layout, self.stage) * self._gathers_gradients}
        # An optimizer's step makes one number of the master's width for each that it changes. Source:
        # torch.optim.AdamW, whose foreach implementation makes lists of temporary tensors. Fused ones, as Megatron-LM
        # has for buffers that are not cut with the weights, make none.
        stepping = 0.0
        if training.copies and "optimizer" not in training.offload:
            numbers = (adapter_numbers if shape.adapters else model_numbers)(shape, layout, self.stage)
            stepping = master * numbers.held(cut=layout.sharding == "full")
        yield {"optimizer": stepping + fetched_bytes}

    @property
    def waiting_bytes(self) -> float:
        training, stage = self.training, self.stage
        waiting, _ = checkpointed_numbers(self.shape, self.layout, training.widths, training.checkpointing)
        return training.width_bytes * self.tokens * waiting * stage.layers * stage.in_flight

    def _logits_bytes(self, logit_bytes: float, entropies: int) -> float:
        logit_bytes += entropies * self.constants.entropy_logit_bytes * ("entropy" in self.training.stats)
        return logits_bytes(self.shape, self.layout, self.tokens, self.training.logits, logit_bytes, self.constants)

    def _gathered(self, layers: int) -> float:
        """Return the bytes of whole weights to compute with: embedding and head, and `layers` in turn.

        One device has nothing to fetch ahead, and a layer at a time. Derived from torch's FSDP2 with each layer sharded
        by itself and the rest as the root; equal to what its FSDPMemTracker counts as unsharded and as gathered. A
        stage of a pipeline keeps all of its weights whole while micro-batches pass. Source: torchtitan, which shards
        weights again after a step only, so as not to gather them for each micro-batch.
        """
        training, shape, layout = self.training, self.shape, self.layout
        if not training.copies or (training.precision == training.master and layout.devices == 1):
            return 0.0
        layer = layer_numbers(shape, layout).count
        layer += training.spare_adapters * shape.adapters / shape.layers / layout.tensor
        in_turn = layers if layout.data * layout.sequence > 1 else 1
        at_once = self.stage.layers if layout.pipeline > 1 else in_turn
        return training.width_bytes * (root_numbers(shape, layout, self.stage) + at_once * layer)

    @property
    def _gathers_gradients(self) -> bool:
        return self.training.copies and not self.shape.adapters

    def _reducing_bytes(self) -> float:
        """Return the bytes of whole gradients besides a layer's own: of the layer before, which leave, and the head's.

        Those that leave do so in the master's width, and in place of that layer's activations; in a pipeline all
        layers' do at the end. Derived and checked as `_gathered`.
        """
        if not self._gathers_gradients:
            return 0.0
        shape, layout, piped = self.shape, self.layout, self.layout.pipeline > 1
        layer = WIDTH_BYTES[self.training.master] * layer_numbers(shape, layout).count
        leaving = layer * self.stage.layers if piped else layer * (layout.data * layout.sequence > 1)
        stays = piped or self.training.offload_activations
        gone = 0.0 if stays else self.waiting_bytes / self.stage.layers
        head = shape.vocabulary * shape.hidden / layout.tensor * (shape.head == "tokens" and self.stage.last)
        return max(0.0, leaving - gone) + self.training.width_bytes * head
