"""One pass of an average layer and of the head on one device, with what an engine attains and adds.

Not here: bare kernels (`training_layers`), and micro-batches, stages and data ranks (`training`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, TypeAlias

from flowgraph.cluster.plan import Layout
from placements.constants import Constants
from placements.kernels import peak_flops
from placements.training_layers import (
    ATTENTION_BACKWARD,
    Micro,
    activation_bytes,
    attention_flops,
    head_seconds,
    layer_seconds,
    memory_bytes_per_s,
    merges,
    score_count,
    wide,
)
from placements.training_parallel import expert_seconds, ring_seconds, sequence_seconds, tensor_seconds

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Precision
    from flowgraph.models import ModelShape
    from placements.profiles import Links
    from placements.training_layers import Part

Parts: TypeAlias = Mapping[str, float]
"""Seconds by part, all of them known."""


@dataclass(frozen=True)
class TrainingConstants(Constants):
    """What an engine attains and adds when it trains.

    matmul_share: of the rate at which products run alone, what they attain between other kernels.
    attention_share: of the device's peak, what attention attains, counting the pairs that the mask leaves.
    attention_flops: the most that its kernels do in a second on any device; a later generation's they do not use.
    score_bytes: bytes moved for an attention score in a forward pass; 0 for kernels that keep scores to themselves.
    traffic: how often what a layer keeps for its backward pass is moved in a forward pass.
    replicated: 1 if each rank of tensor parallelism does all norms and residuals, 0 if ranks share them.
    logit_bytes: bytes moved for a logit, a third of them forward and the rest backward.
    launch_s: what the host takes to launch one pass of one layer that has both attention and an MLP.
    expert_launch_s: what it takes besides in a layer with experts: routing, sorting, counts that it waits for.
    call_s: what one collective adds to that.
    step_s: what an optimizer step takes besides.
    exposed: the part of transfers inside a layer and between stages that products do not hide.
    overlap: of the shorter of a pass and a transfer between data ranks, the part in which both go on.
    gradient_bytes: of a number of the gradient, as data ranks exchange it.
    ring: 1 if keys and values go around the ranks of a sequence, 0 if these trade tokens for heads (Ulysses).
    chunks: pieces of a pipeline stage, between which micro-batches take turns.
    """

    matmul_share: float
    attention_share: float
    attention_flops: float
    score_bytes: float
    traffic: float
    replicated: float
    logit_bytes: float
    launch_s: float
    expert_launch_s: float
    call_s: float
    step_s: float
    exposed: float
    overlap: float
    gradient_bytes: float
    ring: float
    chunks: float


@dataclass(frozen=True)
class Passes:
    """The passes of one model in a layout, on devices of one kind."""

    shape: ModelShape
    layout: Layout
    links: Links
    constants: TrainingConstants
    precision: Precision

    def forward(self, micro: Micro) -> Parts:
        """Return the seconds of one layer's forward pass."""
        return _forward(self._one, micro)

    def backward(self, micro: Micro) -> Parts:
        """Return the seconds of one layer's backward pass; where only adapters learn, its weights have no gradient."""
        return _backward(self._one, micro)

    def head(self, micro: Micro, *, backward: bool, again: bool = False) -> Parts:
        """Return the seconds of the head and of what is made of its logits, forward alone or with the backward pass.

        For that, logits that came in chunks are made `again`.
        """
        once = _head(self._one, micro.read_out, backward)
        return summed((1, once), (1, _head(self._one, micro.read_out, False))) if again else once

    @cached_property
    def _one(self) -> _Rank:
        cut = self.layout.tensor, self.layout.sequence, self.layout.expert
        return _rank(self.shape, *cut, self.links, self.constants, self.precision)


@dataclass(frozen=True, eq=False)
class _Rank:
    """One device in a layer: its passes depend on how a layer is cut, not on how many ranks or stages do the same."""

    shape: ModelShape
    layout: Layout
    links: Links
    constants: TrainingConstants
    precision: Precision

    def products_s(self, micro: Micro, part: Part) -> float:
        """Return the seconds of the products of an average layer."""
        return layer_seconds(self.shape, self.layout, micro.tokens, part, self.links.device, self.precision)

    def layer(self, micro: Micro, products_s: float, *, attended: float, moved: float) -> Parts:
        """Return the seconds of one pass: what the device does, and what it waits for the host to launch that."""
        constants, shape, layout = self.constants, self.shape, self.layout
        attention_s = self._attention_s(micro, attended, moved)
        device_s = {
            "matmul": products_s / constants.matmul_share,
            "attention": attention_s,
            "memory": moved
            * constants.traffic
            * self.moved_s(activation_bytes(shape, layout, micro.tokens, constants.replicated)),
            "tensor": constants.exposed * tensor_seconds(shape, layout, micro.tokens, self.links),
            "sequence": self._sequence_s(micro, moved, attention_s),
            "expert": constants.exposed * expert_seconds(shape, layout, micro.tokens, self.links),
        }
        calls = 2 * sum(degree > 1 for degree in (layout.tensor, layout.sequence, layout.expert))
        experts_s = moved * constants.expert_launch_s * shape.expert_layers / shape.layers
        launch_s = merges(shape) / 2 * constants.launch_s + experts_s + calls * constants.call_s
        return device_s | {"launch": max(0.0, launch_s - sum(device_s.values()))}

    def _sequence_s(self, micro: Micro, moved: float, attention_s: float) -> float:
        """Return the seconds of what ranks of a sequence tell each other that attention does not hide.

        A block of keys and values goes on to the next rank while attention reads it; backward its gradient goes along.
        Tokens are traded for heads before attention, and back after it. Source of rings: Liu et al. 2023,
        arXiv 2310.01889, section 3.
        """
        shape, layout, links, constants = self.shape, self.layout, self.links, self.constants
        if layout.sequence == 1:
            return 0.0
        if not constants.ring:
            return constants.exposed * sequence_seconds(shape, layout, micro.tokens, links)
        return max(0.0, moved * ring_seconds(shape, layout, micro.tokens, links) - attention_s)

    def _attention_s(self, micro: Micro, attended: float, moved: float) -> float:
        constants, shape, layout = self.constants, self.shape, self.layout
        peak = peak_flops(self.links.device, wide(self.precision))
        flops = attended * attention_flops(shape, layout, micro)
        scores_s = self.moved_s(moved * constants.score_bytes * score_count(shape, layout, micro))
        rate = min(constants.attention_share * peak, constants.attention_flops)
        return flops / rate + scores_s

    def moved_s(self, size_bytes: float) -> float:
        """Return the seconds of what only moves data."""
        return size_bytes / memory_bytes_per_s(self.links.device)


# A search asks for the same pass of the same micro-batch at many sizes of a pool.


@lru_cache(maxsize=1024)
def _rank(
    shape: ModelShape,
    tensor: int,
    sequence: int,
    expert: int,
    links: Links,
    constants: TrainingConstants,
    precision: Precision,
) -> _Rank:
    return _Rank(shape, Layout(tensor=tensor, sequence=sequence, expert=expert), links, constants, precision)


@lru_cache(maxsize=16_384)
def _forward(one: _Rank, micro: Micro) -> Parts:
    return one.layer(micro, one.products_s(micro, "forward"), attended=1.0, moved=1.0)


@lru_cache(maxsize=16_384)
def _backward(one: _Rank, micro: Micro) -> Parts:
    weights_s = 0.0 if one.shape.adapters else one.products_s(micro, "weights")
    products_s = one.products_s(micro, "inputs") + weights_s
    return one.layer(micro, products_s, attended=ATTENTION_BACKWARD, moved=2.0)


@lru_cache(maxsize=16_384)
def _head(one: _Rank, read_out: float, backward: bool) -> Parts:
    shape, layout, device = one.shape, one.layout, one.links.device
    later: tuple[Part, ...] = () if not backward else ("inputs",) if shape.adapters else ("inputs", "weights")
    kinds: tuple[Part, ...] = ("forward", *later)
    products = (head_seconds(shape, layout, read_out, each, device, wide(one.precision)) for each in kinds)
    logits = read_out * shape.outputs / layout.tensor * (1.0 if backward else 1 / 3)
    return {
        "matmul": sum(products) / one.constants.matmul_share,
        "memory": one.moved_s(one.constants.logit_bytes * logits),
    }


def summed(*counted: tuple[float, Parts]) -> dict[str, float]:
    """Add up parts, each so many times.

    >>> summed((2, {"matmul": 1.0}), (1, {"matmul": 0.5, "launch": 1.0}))
    {'matmul': 2.5, 'launch': 1.0}
    """
    found = dict[str, float]()
    for count, parts in counted:
        for name, value in parts.items():
            found[name] = found.get(name, 0.0) + count * value
    return found
