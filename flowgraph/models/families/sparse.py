"""Families with experts behind grouped-query attention: Mixtral, Qwen MoE, gpt-oss, GLM-4.5, MiniMax-M2, Llama 4."""

from __future__ import annotations

from abc import abstractmethod

from pydantic import AliasChoices, Field

from flowgraph.models.families.decoder import Count, Decoder, Experts
from flowgraph.models.tensors import Tensors, gated, gated_expert, linear, matrix, vector


class Sparse(Decoder):
    """What they share: in some layers a router sends each token to a few of many experts; some have a shared one."""

    num_experts: int = Field(validation_alias=AliasChoices("n_routed_experts", "num_experts", "num_local_experts"))
    num_experts_per_tok: int
    intermediate_size: int = 0

    @property
    def width(self) -> int:
        """Return the width of an MLP without experts, or of all experts that a token passes if config.json has none."""
        return self.intermediate_size or self.num_experts_per_tok * self.expert_width() + self.shared_width()

    def mlp(self) -> Tensors:
        """Count the MLP of one layer without experts."""
        return gated(self.hidden_size, self.width)

    @abstractmethod
    def expert_width(self) -> int:
        """Return the width of one expert."""

    def shared_width(self) -> int:
        """Return the width of the experts that each token passes."""
        return 0

    def sparse_layers(self) -> int:
        """Count the layers with experts."""
        return self.num_hidden_layers

    def expert(self) -> Tensors:
        """Count one expert."""
        return gated_expert(self.hidden_size, self.expert_width())

    def beside_experts(self) -> Tensors:
        """Count what a layer with experts has besides: the router, and an MLP that each token passes."""
        shared = gated(self.hidden_size, self.shared_width()) if self.shared_width() else Tensors()
        return matrix(self.hidden_size, self.num_experts) + shared

    def mlps(self) -> Tensors:
        """Count the MLPs of all layers."""
        sparse = self.sparse_layers()
        one = self.beside_experts() + self.expert().times(self.num_experts)
        return one.times(sparse) + self.mlp().times(self.num_hidden_layers - sparse)

    def experts(self) -> Experts:
        """Describe the experts."""
        if not self.sparse_layers():
            return Experts()
        dense = self.num_hidden_layers - self.sparse_layers()
        sizes = self.num_experts, self.num_experts_per_tok, self.expert_width(), self.shared_width(), dense
        return Experts(*sizes, one=self.expert())


class Mixtral(Sparse):
    """Mixtral: experts in each layer."""

    def expert_width(self) -> int:
        """Return the width of one expert."""
        return self.intermediate_size

    def has_window(self, layer: int) -> bool:
        """Return that each layer has one, if any."""
        return True


class MiniMaxM2(Mixtral):
    """MiniMax-M2: queries and keys are normalised over all heads."""

    head_size_unsaid = 128

    def has_window(self, layer: int) -> bool:
        """Return that none has."""
        return False

    def attention(self) -> Tensors:
        """Count what mixes tokens in one layer."""
        return super().attention() + vector(self.queries + self.keys)


class GptOss(Mixtral):
    """Gpt-oss: biases everywhere, experts too; a sink for each head; every second layer has a window."""

    head_size_unsaid = 64
    attention_bias: bool = True
    sliding_window: int | None = 128

    def has_window(self, layer: int) -> bool:
        """Return whether a layer has a window."""
        return layer % 2 == 0

    def attention(self) -> Tensors:
        """Count what mixes tokens in one layer."""
        own = self.projections(bias=self.attention_bias, out_bias=self.attention_bias)
        return own + vector(self.num_attention_heads)

    def expert(self) -> Tensors:
        """Count one expert."""
        return super().expert() + vector(2 * self.expert_width() + self.hidden_size)

    def beside_experts(self) -> Tensors:
        """Count the router."""
        return super().beside_experts() + vector(self.num_experts)


class QwenMoe(Sparse):
    """What the Qwen families share: experts in every so many layers but those that are named."""

    moe_intermediate_size: Count
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] | None = None

    def expert_width(self) -> int:
        """Return the width of one expert."""
        return self.moe_intermediate_size

    def sparse_layers(self) -> int:
        """Count the layers with experts."""
        plain = self.mlp_only_layers or ()
        return sum((i + 1) % self.decoder_sparse_step == 0 and i not in plain for i in range(self.num_hidden_layers))


class Qwen2Moe(QwenMoe):
    """Qwen1.5-MoE and Qwen2-57B-A14B: a shared expert, with a gate of its own."""

    shared_expert_intermediate_size: Count
    qkv_bias: bool = True
    use_sliding_window: bool = False
    max_window_layers: int = 28
    sliding_window: int | None = 4096

    def shared_width(self) -> int:
        """Return the width of the shared expert."""
        return self.shared_expert_intermediate_size

    def beside_experts(self) -> Tensors:
        """Count the router, the shared expert and its gate."""
        return super().beside_experts() + linear(self.hidden_size, 1)

    def windowed(self) -> int:
        """Count the layers that see no more than a window."""
        return super().windowed() if self.use_sliding_window else 0

    def has_window(self, layer: int) -> bool:
        """Return whether a layer has a window."""
        return layer % 2 == 0 and layer < self.max_window_layers

    def attention(self) -> Tensors:
        """Count what mixes tokens in one layer."""
        return self.projections(bias=self.qkv_bias)


class Qwen3Moe(QwenMoe):
    """Qwen3 with experts."""

    attention_bias: bool = False

    def windowed(self) -> int:
        """Count the layers that see no more than a window: none of this family is shipped with one."""
        return 0

    def attention(self) -> Tensors:
        """Count what mixes tokens in one layer."""
        return self.projections(bias=self.attention_bias, out_bias=self.attention_bias) + vector(2 * self.head_size)


class Glm4Moe(Sparse):
    """GLM-4.5: dense layers first, then experts and shared ones; norms of queries and keys if config.json says so."""

    moe_intermediate_size: Count
    n_shared_experts: int = 1
    first_k_dense_replace: int = 1
    attention_bias: bool = False
    use_qk_norm: bool = False

    def expert_width(self) -> int:
        """Return the width of one expert."""
        return self.moe_intermediate_size

    def shared_width(self) -> int:
        """Return the width of all shared experts."""
        return self.n_shared_experts * self.moe_intermediate_size

    def sparse_layers(self) -> int:
        """Count the layers with experts."""
        return max(0, self.num_hidden_layers - self.first_k_dense_replace)

    def attention(self) -> Tensors:
        """Count what mixes tokens in one layer."""
        return self.projections(bias=self.attention_bias) + vector(2 * self.head_size * self.use_qk_norm)


class Llama4(Sparse):
    """Llama 4, its language model: experts and a shared one in every so many layers; most layers see only a chunk."""

    head_size_unsaid = 128
    intermediate_size_mlp: Count
    moe_layers: tuple[int, ...] | None = None
    interleave_moe_layer_step: int = 1
    no_rope_layers: tuple[int, ...] | None = None
    no_rope_layer_interval: int = 4
    attention_bias: bool = False
    sliding_window: int | None = Field(default=8192, validation_alias="attention_chunk_size")

    @property
    def width(self) -> int:
        """Return the width of an MLP without experts."""
        return self.intermediate_size_mlp

    def expert_width(self) -> int:
        """Return the width of one expert."""
        return self.intermediate_size

    def shared_width(self) -> int:
        """Return the width of the shared expert."""
        return self.intermediate_size

    def sparse_layers(self) -> int:
        """Count the layers with experts."""
        step = self.interleave_moe_layer_step
        return self.num_hidden_layers // step if self.moe_layers is None else len(self.moe_layers)

    def beside_experts(self) -> Tensors:
        """Count the router, a linear layer here, and the shared expert."""
        return linear(self.hidden_size, self.num_experts) + gated(self.hidden_size, self.shared_width())

    def has_window(self, layer: int) -> bool:
        """Return whether a layer sees only a chunk: those with rotation do."""
        return (
            bool(self.no_rope_layers[layer]) if self.no_rope_layers else (layer + 1) % self.no_rope_layer_interval != 0
        )

    def attention(self) -> Tensors:
        """Count what mixes tokens in one layer."""
        return self.projections(bias=self.attention_bias, out_bias=self.attention_bias)
