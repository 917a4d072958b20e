"""The numbers of a model that one device holds in a layout, sharded or not, and the bytes of a sequence's cache.

Not here: what else is in memory (`training`, `serving`), and the size of the cache (`time.decode`).
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
"""Bytes of a stored weight: one of 4 bits shares a scale of 8 bits with 15 others, or of 32 bits with 63.

Source: Dettmers et al. 2023 (QLoRA), arXiv 2305.14314, section 3; NVIDIA, NVFP4: blocks of 16 with a scale in FP8.
"""

MORE_TOKENS = 64  # longer contexts, to separate what grows with them from full windows and from states


@dataclass(frozen=True)
class PipelineStage:
    """One stage of a pipeline: its number of layers, and whether it is the first (embedding) or the last (head).

    `in_flight` micro-batches wait there for their backward pass.
    """

    layers: float
    first: bool = True
    last: bool = True
    in_flight: float = 1.0

    @property
    def whole(self) -> bool:
        """Return whether this stage is the whole model."""
        return self.first and self.last


@dataclass(frozen=True)
class ShardedNumbers:
    """Numbers of a model on one device: `rest` is the same on `ranks` devices, `experts` on `expert_ranks` devices."""

    rest: float
    experts: float
    ranks: int
    expert_ranks: int

    @property
    def count(self) -> float:
        """Return how many numbers a device holds without sharding among data ranks."""
        return self.rest + self.experts

    def held(self, *, cut: bool) -> float:
        """Return how many numbers a device holds; with `cut`, ranks that have the same numbers shard them equally.

        Source: Rajbhandari et al. 2020 (ZeRO), arXiv 1910.02054, section 5.

        >>> ShardedNumbers(rest=8.0, experts=8.0, ranks=4, expert_ranks=2).held(cut=True)
        6.0
        """
        return self.rest / self.ranks + self.experts / self.expert_ranks if cut else self.count


def stages(
    shape: ModelShape, layout: Layout, interleaved: int = 1, micro_batches: int | None = None
) -> tuple[PipelineStage, ...]:
    """Return the pipeline stages that may hold the most bytes: the first and the last, or a single one.

    Each of several stages has the layers of the largest one: the model's, divided by the number of stages and rounded
    up. `interleaved` is the number of model pieces in each stage, and `micro_batches` the number of micro-batches in a
    step; None sets no limit. With the schedule "one forward, one backward", the first of p stages holds p
    micro-batches, or (1 + (p - 1) / (p · interleaved)) · p if it has several pieces, but never more than
    `micro_batches`. Source: Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.3.
    """
    depth = layout.pipeline
    if depth == 1:
        return (PipelineStage(shape.layers),)
    layers = ceil(shape.layers / depth)  # of uneven stages, of the larger ones
    in_flight = depth * (1 + (depth - 1) / (depth * interleaved) * (interleaved > 1))
    in_flight = min(in_flight, micro_batches or in_flight)
    return PipelineStage(layers, last=False, in_flight=in_flight), PipelineStage(layers, first=False)


def tables_of(shape: ModelShape, stage: PipelineStage) -> int:
    """Return how many [vocabulary, hidden] matrices a stage of a pipeline holds: embedding, head, or both.

    `stage` is the first or the last one. Where the embedding is tied to the head, each of the two holds a copy. The
    last of several stages has none if the model's head is not over tokens.
    """
    head = shape.head == "tokens"
    return shape.tables if stage.whole else int(stage.first or head)


def root_numbers(shape: ModelShape, layout: Layout, stage: PipelineStage) -> float:
    """Return how many parameters of a stage are outside its layers, per tensor rank: embedding, head and last norm.

    The norm is counted for every stage.
    """
    return (tables_of(shape, stage) * shape.vocabulary + 1) * shape.hidden / layout.tensor


def layer_numbers(shape: ModelShape, layout: Layout, *, adapters: bool = True) -> ShardedNumbers:
    """Return how many numbers (parameters) of an average layer a device holds, before sharding among data ranks.

    Adapters are counted unless `adapters` is False. If only some layers have experts, the experts of one such layer are
    counted.
    """
    experts = shape.expert_parameters / max(1, shape.expert_layers)
    outside = shape.parameters - shape.expert_parameters - (shape.tables * shape.vocabulary + 1) * shape.hidden
    outside -= 0 if adapters else shape.adapters
    data = layout.data * layout.sequence
    return ShardedNumbers(
        rest=max(0.0, outside / shape.layers) / layout.tensor,
        experts=experts / (layout.tensor * layout.expert),
        ranks=data,
        expert_ranks=max(1, data // layout.expert),
    )


def model_numbers(shape: ModelShape, layout: Layout, stage: PipelineStage) -> ShardedNumbers:
    """Return how many parameters of a stage a device holds, without adapters, before sharding among data ranks."""
    layer = layer_numbers(shape, layout, adapters=False)
    share = shape.expert_layers / shape.layers
    return ShardedNumbers(
        rest=layer.rest * stage.layers + root_numbers(shape, layout, stage),
        experts=layer.experts * stage.layers * share,
        ranks=layer.ranks,
        expert_ranks=layer.expert_ranks,
    )


def adapter_numbers(shape: ModelShape, layout: Layout, stage: PipelineStage) -> ShardedNumbers:
    """Return how many trained parameters of a stage a device holds: its adapters, and a head that is trained with them.

    They are counted before sharding among data ranks; a model without adapters has none.
    """
    data = layout.data * layout.sequence
    trained = shape.trained if shape.adapters else 0
    return ShardedNumbers(trained * stage.layers / shape.layers / layout.tensor, 0.0, data, data)


def weights_bytes(shape: ModelShape, layout: Layout, stage: PipelineStage, precision: Precision, *, cut: bool) -> float:
    """Return the bytes of a stage's weights on a device, without adapters; with `cut`, of one data rank's shard.

    Embedding and head take at least 2 bytes per weight, since quantisation leaves them out: the configurations of
    transformers and vLLM skip `lm_head`.
    """
    weight_bytes, numbers = WEIGHT_BYTES[precision], model_numbers(shape, layout, stage)
    root = root_numbers(shape, layout, stage) / (numbers.ranks if cut else 1)
    return weight_bytes * numbers.held(cut=cut) + max(0.0, 2.0 - weight_bytes) * root


def sequence_bytes(shape: ModelShape, tensor: int, context_tokens: float, number_bytes: float) -> float:
    """Return the bytes of the cache of a sequence of `context_tokens` tokens on each of `tensor` devices.

    One number takes `number_bytes` bytes. Keys and values are divided by heads, into at most as many parts as there are
    KV heads. Latents are not divided, and state that does not grow with the context is divided evenly. Source: Pope et
    al. 2022, arXiv 2211.05102, section 3.3; DeepSeek-AI 2024, arXiv 2405.04434, section 2.1.
    """
    context = max(1, round(context_tokens))
    heads = 2 * shape.attention_layers * shape.kv_heads * shape.head_dim * context
    cuts = min(tensor, shape.kv_heads)
    if not shape.mixing:
        return heads / cuts * number_bytes
    numbers = shape.cache_numbers(context)
    growing = (shape.cache_numbers(context + MORE_TOKENS) - numbers) / MORE_TOKENS * context
    steady = max(0.0, numbers - growing)
    return (min(growing, numbers) / (cuts if growing >= heads else 1) + steady / tensor) * number_bytes
