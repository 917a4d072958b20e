"""Families with experts behind grouped-query attention: Mixtral, Qwen MoE, gpt-oss, GLM-4.5, MiniMax-M2, Llama 4."""

from __future__ import annotations

from typing import ClassVar

from pydantic import AliasChoices, Field

from flowgraph.models.families.decoder import (
    BiasedAttention,
    Count,
    Decoder,
    Experts,
    Tensors,
    Windows,
    gated_mlp,
    linear,
    matrix,
    vector,
)


class Sparse(Decoder):
    """A decoder with layers in which a router sends each token to a few of many experts.

    Some families have a shared expert too, which every token uses.
    """

    num_experts: int = Field(validation_alias=AliasChoices("n_routed_experts", "num_experts", "num_local_experts"))
    num_experts_per_tok: int
    intermediate_size: int = 0
    expert_width: Count = Field(validation_alias="moe_intermediate_size")

    @property
    def width(self) -> int:
        """Return the hidden width of an MLP in a layer without experts.

        If config.json has no such width, return the total width of the experts that a token uses.
        """
        return self.intermediate_size or self.num_experts_per_tok * self.expert_width + self._shared_width()

    def _shared_width(self) -> int:
        return 0

    def _sparse_layers(self) -> int:
        return self.num_hidden_layers

    def _expert(self) -> Tensors:
        """Return the parameter counts of one expert, which gets no adapters: a layer's experts are one tensor."""
        return matrix(self.hidden_size, 3 * self.expert_width)

    def _around_experts(self) -> Tensors:
        shared = gated_mlp(self.hidden_size, self._shared_width()) if self._shared_width() else Tensors()
        return matrix(self.hidden_size, self.num_experts) + shared

    def _mlps(self) -> Tensors:
        sparse = self._sparse_layers()
        experts = self._around_experts() + self.num_experts * self._expert()
        return sparse * experts + (self.num_hidden_layers - sparse) * self._mlp()

    def experts(self) -> Experts:
        """Return the number and sizes of the experts; `count` is 0 if no layer has any."""
        sparse = self._sparse_layers()
        if not sparse:
            return Experts()
        return Experts(
            count=self.num_experts,
            per_token=self.num_experts_per_tok,
            width=self.expert_width,
            shared=self._shared_width(),
            dense_layers=self.num_hidden_layers - sparse,
            expert=self._expert(),
        )


class Mixtral(Sparse):
    """Mixtral: experts in each layer; a window in all layers, or in none."""

    windows: ClassVar[Windows] = "all"
    expert_width: int = Field(default=0, validation_alias="intermediate_size")


class MiniMaxM2(Mixtral):
    """MiniMax-M2: queries and keys are normalized over all heads; no windows."""

    default_head_dim = 128
    qk_norm = "layer"
    windows = "none"


class GptOss(BiasedAttention, Mixtral):
    """Gpt-oss: biases in experts and router too; a sink for each head; every second layer has a window."""

    default_head_dim = 64
    windows = "even"
    attention_bias: bool = True
    sliding_window: int | None = 128

    def _attention(self) -> Tensors:
        return super()._attention() + vector(self.num_attention_heads)

    def _expert(self) -> Tensors:
        return super()._expert() + vector(2 * self.expert_width + self.hidden_size)

    def _around_experts(self) -> Tensors:
        return super()._around_experts() + vector(self.num_experts)


class QwenMoe(Sparse):
    """The Qwen families with experts: in every `decoder_sparse_step`-th layer, except in `mlp_only_layers`."""

    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] | None = None

    def _sparse_layers(self) -> int:
        dense = self.mlp_only_layers or ()
        return sum((i + 1) % self.decoder_sparse_step == 0 and i not in dense for i in range(self.num_hidden_layers))


class QwenSharedMoe(QwenMoe):
    """The Qwen families with a shared expert, which has a separate gate."""

    shared_expert_intermediate_size: Count

    def _shared_width(self) -> int:
        return self.shared_expert_intermediate_size

    def _around_experts(self) -> Tensors:
        return super()._around_experts() + linear(self.hidden_size, 1)


class Qwen2Moe(BiasedAttention, QwenSharedMoe):
    """Qwen1.5-MoE and Qwen2-57B-A14B."""

    out_bias = False
    attention_bias: bool = Field(default=True, validation_alias="qkv_bias")
    use_sliding_window: bool = False
    max_window_layers: int = 28
    sliding_window: int | None = 4096

    def windowed(self) -> int:
        """Return the number of layers with an attention window; 0 unless config.json sets `use_sliding_window`.

        It is also 0 if the window is not shorter than the number of positions.
        """
        return super().windowed() if self.use_sliding_window else 0

    def _has_window(self, layer: int) -> bool:
        return layer % 2 == 0 and layer < self.max_window_layers


class Qwen3Moe(BiasedAttention, QwenMoe):
    """Qwen3 with experts; no model of this family is published with a window."""

    qk_norm = "head"

    def windowed(self) -> int:
        """Return 0: no layer has a window."""
        return 0


class SharedExperts(Sparse):
    """Families whose first layers have no experts, and whose shared experts are as wide as the others."""

    n_shared_experts: int | None = 1
    first_k_dense_replace: int = 0

    def _shared_width(self) -> int:
        return (self.n_shared_experts or 0) * self.expert_width

    def _sparse_layers(self) -> int:
        return max(0, self.num_hidden_layers - self.first_k_dense_replace)


class Glm4Moe(BiasedAttention, SharedExperts):
    """GLM-4.5: norms of queries and keys if config.json says so."""

    out_bias = False
    first_k_dense_replace: int = 1
    use_qk_norm: bool = False

    def _attention(self) -> Tensors:
        return super()._attention() + vector(2 * self.head_size * self.use_qk_norm)


class Llama4(BiasedAttention, Sparse):
    """The language model of Llama 4: experts and a shared one in every nth layer; most layers attend within a chunk."""

    default_head_dim = 128
    intermediate_size: Count = Field(validation_alias="intermediate_size_mlp")
    expert_width: int = Field(default=0, validation_alias="intermediate_size")
    moe_layers: tuple[int, ...] | None = None
    interleave_moe_layer_step: int = 1
    no_rope_layers: tuple[int, ...] | None = None
    no_rope_layer_interval: int = 4
    sliding_window: int | None = Field(default=8192, validation_alias="attention_chunk_size")

    def _shared_width(self) -> int:
        return self.expert_width

    def _sparse_layers(self) -> int:
        step = self.interleave_moe_layer_step
        return self.num_hidden_layers // step if self.moe_layers is None else len(self.moe_layers)

    def _around_experts(self) -> Tensors:
        return linear(self.hidden_size, self.num_experts) + gated_mlp(self.hidden_size, self._shared_width())

    def _has_window(self, layer: int) -> bool:
        """Return whether a layer attends only within a chunk: layers with rotary positions do."""
        if self.no_rope_layers:
            return bool(self.no_rope_layers[layer])
        return (layer + 1) % self.no_rope_layer_interval != 0
