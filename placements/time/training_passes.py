"""One pass of an average layer and of the head on one device, with what an engine attains and adds.

Not here: bare kernels (`training_layers`), and micro-batches, stages and data ranks (`training`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, TypeAlias

from flowgraph.cluster.plan import Layout
from placements.hardware.engine_constants import TrainingConstants
from placements.time.kernels import peak_flops
from placements.time.training_collectives import expert_seconds, ring_seconds, sequence_seconds, tensor_seconds
from placements.time.training_layers import (
    ATTENTION_BACKWARD,
    MicroBatch,
    activation_bytes,
    attention_flops,
    head_seconds,
    layer_seconds,
    memory_bytes_per_s,
    merges,
    score_count,
    wide,
)

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Precision
    from flowgraph.models import ModelShape
    from placements.hardware.device_profiles import PoolLinks
    from placements.time.training_layers import Part

Parts: TypeAlias = Mapping[str, float]
"""Known seconds by part."""


@dataclass(frozen=True)
class TrainingPasses:
    """The passes of one model in a layout, on devices of one kind."""

    shape: ModelShape
    layout: Layout
    links: PoolLinks
    constants: TrainingConstants
    precision: Precision

    def forward(self, micro: MicroBatch) -> Parts:
        """Return the seconds of one layer's forward pass."""
        return _forward(self._rank, micro)

    def backward(self, micro: MicroBatch) -> Parts:
        """Return the seconds of one layer's backward pass; with adapters, frozen weights have no gradient."""
        return _backward(self._rank, micro)

    def head(self, micro: MicroBatch, *, backward: bool, recompute: bool = False) -> Parts:
        """Return the seconds of the head and of the work on its logits, forward alone or with the backward pass.

        Chunked logits are computed again for the backward pass (`recompute`).
        """
        parts = _head(self._rank, micro.read_out, backward)
        return summed((1, parts), (1, _head(self._rank, micro.read_out, False))) if recompute else parts

    @cached_property
    def _rank(self) -> _LayerRank:
        degrees = self.layout.tensor, self.layout.sequence, self.layout.expert
        return _layer_rank(self.shape, *degrees, self.links, self.constants, self.precision)


@dataclass(frozen=True, eq=False)
class _LayerRank:
    """One device in a layer: its passes depend on how a layer is split, not on the number of data ranks or stages."""

    shape: ModelShape
    layout: Layout
    links: PoolLinks
    constants: TrainingConstants
    precision: Precision

    def products_s(self, micro: MicroBatch, part: Part) -> float:
        return layer_seconds(self.shape, self.layout, micro.tokens, part, self.links.device, self.precision)

    def moved_s(self, size_bytes: float) -> float:
        """Return the seconds of a kernel that only moves data."""
        return size_bytes / memory_bytes_per_s(self.links.device)

    def layer(self, micro: MicroBatch, products_s: float, *, attended: float, moved: float) -> Parts:
        """Return the seconds of one pass: the device's work, and how long it waits for the host to launch that."""
        constants, shape, layout = self.constants, self.shape, self.layout
        attention_s = self._attention_s(micro, attended, moved)
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

    def _attention_s(self, micro: MicroBatch, attended: float, moved: float) -> float:
        constants, shape, layout = self.constants, self.shape, self.layout
        peak = peak_flops(self.links.device, wide(self.precision))
        flops = attended * attention_flops(shape, layout, micro)
        scores_s = self.moved_s(moved * constants.score_bytes * score_count(shape, layout, micro))
        rate = min(constants.attention_share * peak, constants.attention_flops)
        return flops / rate + scores_s


# A search asks for the same pass of the same micro-batch at many sizes of a pool.


@lru_cache(maxsize=1024)
def _layer_rank(
    shape: ModelShape,
    tensor: int,
    sequence: int,
    expert: int,
    links: PoolLinks,
    constants: TrainingConstants,
    precision: Precision,
) -> _LayerRank:
    return _LayerRank(shape, Layout(tensor=tensor, sequence=sequence, expert=expert), links, constants, precision)


@lru_cache(maxsize=16_384)
def _forward(rank: _LayerRank, micro: MicroBatch) -> Parts:
    return rank.layer(micro, rank.products_s(micro, "forward"), attended=1.0, moved=1.0)


@lru_cache(maxsize=16_384)
def _backward(rank: _LayerRank, micro: MicroBatch) -> Parts:
    weights_s = 0.0 if rank.shape.adapters else rank.products_s(micro, "weights")
    products_s = rank.products_s(micro, "inputs") + weights_s
    return rank.layer(micro, products_s, attended=ATTENTION_BACKWARD, moved=2.0)


@lru_cache(maxsize=16_384)
def _head(rank: _LayerRank, read_out: float, backward: bool) -> Parts:
    shape, layout, device = rank.shape, rank.layout, rank.links.device
    gradients: tuple[Part, ...] = () if not backward else ("inputs",) if shape.adapters else ("inputs", "weights")
    kinds: tuple[Part, ...] = ("forward", *gradients)
    products = (head_seconds(shape, layout, read_out, part, device, wide(rank.precision)) for part in kinds)
    logits = read_out * shape.outputs / layout.tensor * (1.0 if backward else 1 / 3)
    return {
        "matmul": sum(products) / rank.constants.matmul_share,
        "memory": rank.moved_s(rank.constants.logit_bytes * logits),
    }


def summed(*counted: tuple[float, Parts]) -> dict[str, float]:
    """Add up seconds by part, each mapping multiplied by its count.

    >>> summed((2, {"matmul": 1.0}), (1, {"matmul": 0.5, "launch": 1.0}))
    {'matmul': 2.5, 'launch': 1.0}
    """
    total = dict[str, float]()
    for count, parts in counted:
        for name, seconds in parts.items():
            total[name] = total.get(name, 0.0) + count * seconds
    return total
