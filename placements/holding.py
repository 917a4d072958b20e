"""How many of a model's numbers one device holds in a layout, before and after ranks cut them further.

Not here: of what width they are, and what else is held (`footprint_training`, `footprint_serving`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowgraph.cluster.plan import Layout, Precision
    from flowgraph.models import ModelShape

WEIGHT_BYTES: Mapping[Precision, float] = {"float32": 4.0, "bfloat16": 2.0, "fp8": 1.0, "fp4": 0.5625}
"""Of a weight as it lies there: one of 4 bits shares a scale of 8 bits with 15 others, or of 32 bits with 63.

Source: Dettmers et al. 2023 (QLoRA), arXiv 2305.14314, section 3; NVIDIA, NVFP4: blocks of 16 with a scale in FP8.
"""


@dataclass(frozen=True)
class Stage:
    """One stage of a pipeline: its `layers`, whether it has the embedding and the head, and its micro-batches.

    `in_flight` of them wait there for their backward pass.
    """

    layers: float
    first: bool = True
    last: bool = True
    in_flight: float = 1.0

    @property
    def whole(self) -> bool:
        """Say whether this is all of the model."""
        return self.first and self.last


@dataclass(frozen=True)
class Numbers:
    """Numbers of a model on one device: `rest` is alike on `ranks` of them, `experts` on fewer, `expert_ranks`."""

    rest: float
    experts: float
    ranks: int
    expert_ranks: int

    @property
    def count(self) -> float:
        """Return how many there are."""
        return self.rest + self.experts

    def held(self, *, cut: bool) -> float:
        """Return how many a device holds if ranks that are alike each keep a part, or else all.

        Source: Rajbhandari et al. 2020 (ZeRO), arXiv 1910.02054, section 5.

        >>> Numbers(rest=8.0, experts=8.0, ranks=4, expert_ranks=2).held(cut=True)
        6.0
        """
        return self.rest / self.ranks + self.experts / self.expert_ranks if cut else self.count


def stages(
    shape: ModelShape, layout: Layout, interleaved: int = 1, micro_batches: int | None = None
) -> tuple[Stage, ...]:
    """Return the stages of a pipeline that may hold most: the first, with most micro-batches in flight, and the last.

    One forward, one backward: the first of p stages keeps p of them, or (1 + (p - 1) / (p · pieces)) · p where each
    stage has several pieces, if there are so many.
    Source: Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.3.
    """
    depth = layout.pipeline
    if depth == 1:
        return (Stage(shape.layers),)
    layers = ceil(shape.layers / depth)  # of stages that are not even, of one that has more
    in_flight = depth * (1 + (depth - 1) / (depth * interleaved) * (interleaved > 1))
    in_flight = min(in_flight, micro_batches or in_flight)
    return Stage(layers, last=False, in_flight=in_flight), Stage(layers, first=False)


def tables_of(shape: ModelShape, stage: Stage) -> int:
    """Count the matrices [vocabulary, hidden] of a stage: of tied ones each end of a pipeline has its own copy."""
    head = shape.head == "tokens"
    return shape.tables if stage.whole else int(stage.first or head)


def root_numbers(shape: ModelShape, layout: Layout, stage: Stage) -> float:
    """Count what a stage holds beside its layers: embedding, head and the last norm, cut over `tensor` ranks."""
    return (tables_of(shape, stage) * shape.vocabulary + 1) * shape.hidden / layout.tensor


def layer_numbers(shape: ModelShape, layout: Layout, *, adapters: bool = True) -> Numbers:
    """Count an average layer's numbers that a device of `tensor` and `expert` ranks works on, adapters with it or not.

    Of layers with and without experts it is those that have them.
    """
    experts = shape.expert_parameters / max(1, shape.expert_layers)
    outside = shape.parameters - shape.expert_parameters - (shape.tables * shape.vocabulary + 1) * shape.hidden
    outside -= 0 if adapters else shape.adapters
    data = layout.data * layout.sequence
    return Numbers(
        rest=max(0.0, outside / shape.layers) / layout.tensor,
        experts=experts / (layout.tensor * layout.expert),
        ranks=data,
        expert_ranks=max(1, data // layout.expert),
    )


def model_numbers(shape: ModelShape, layout: Layout, stage: Stage) -> Numbers:
    """Count the numbers of a model without adapters on a device of a stage, before data ranks cut them."""
    layer = layer_numbers(shape, layout, adapters=False)
    share = shape.expert_layers / shape.layers
    return Numbers(
        rest=layer.rest * stage.layers + root_numbers(shape, layout, stage),
        experts=layer.experts * stage.layers * share,
        ranks=layer.ranks,
        expert_ranks=layer.expert_ranks,
    )


def adapter_numbers(shape: ModelShape, layout: Layout, stage: Stage) -> Numbers:
    """Count the numbers of a stage's adapters on a device, and of a head that is trained beside them."""
    data = layout.data * layout.sequence
    trained = shape.trained if shape.adapters else 0
    return Numbers(trained * stage.layers / shape.layers / layout.tensor, 0.0, data, data)


def weights_bytes(shape: ModelShape, layout: Layout, stage: Stage, precision: Precision, *, cut: bool) -> float:
    """Return the bytes of a model's weights on a device, without adapters; embedding and head are never below 2 each.

    Quantised models leave these as they were: transformers' and vLLM's configurations skip `lm_head`.
    """
    each, numbers = WEIGHT_BYTES[precision], model_numbers(shape, layout, stage)
    root = root_numbers(shape, layout, stage) / (numbers.ranks if cut else 1)
    return each * numbers.held(cut=cut) + max(0.0, 2.0 - each) * root
