"""Families where most layers have a recurrent state instead of a cache: Qwen3-Next, Qwen3.5, Nemotron-H, Nemotron 3.

Source: Yang et al. 2024 (gated delta networks), arXiv 2412.06464; Dao and Gu 2024 (Mamba-2), arXiv 2405.21060.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, model_validator

from flowgraph.models.families.decoder import (
    Count,
    Decoder,
    Gated,
    Tensors,
    linear,
    matrix,
    nonempty,
    plain_mlp,
    vector,
)
from flowgraph.models.families.sparse import QwenSharedMoe, Sparse
from flowgraph.models.layer_kinds import Mixer, Recurrent, grouped_query_attention


class DeltaNet(Decoder):
    """A decoder with three gated delta-network layers for each attention layer; the attention output has a gate."""

    default_head_dim = 256
    fused_inputs: ClassVar[bool] = False
    """Whether a delta network has two linear input layers, convolved with gate and numbers of heads; else four."""

    linear_conv_kernel_dim: Count = 4
    linear_key_head_dim: Count = 128
    linear_value_head_dim: Count = 128
    linear_num_key_heads: Count = 16
    linear_num_value_heads: Count = 32
    full_attention_interval: Count = 4
    attention_bias: bool = False

    @property
    def _values(self) -> int:
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def _convolved(self) -> int:
        return 2 * self.linear_num_key_heads * self.linear_key_head_dim + self._values

    @property
    def _delta_layers(self) -> int:
        if self.layer_types is not None:
            return self.layer_types.count("linear_attention")
        return self.num_hidden_layers - self.num_hidden_layers // self.full_attention_interval

    def body(self) -> Tensors:
        """Return the parameter counts of the decoder without embedding and head."""
        layers, hidden, heads = self.num_hidden_layers, self.hidden_size, self.linear_num_value_heads
        into = [self._convolved, self._values, heads, heads]
        if self.fused_inputs:
            into = [self._convolved + self._values, 2 * heads]
        delta = sum((linear(hidden, width) for width in into), linear(self._values, hidden))
        delta += matrix(self._convolved, self.linear_conv_kernel_dim) + vector(2 * heads + self.linear_value_head_dim)
        mixing = (layers - self._delta_layers) * self._attention() + self._delta_layers * delta
        return mixing + layers * self._norms() + self._mlps() + self._ends()

    def _attention(self) -> Tensors:
        hidden, bias = self.hidden_size, self.attention_bias
        qkv = linear(hidden, 2 * self.queries, bias=bias) + 2 * linear(hidden, self.keys, bias=bias)
        return qkv + linear(self.queries, hidden, bias=bias) + vector(2 * self.head_size)

    def mixers(self) -> tuple[Mixer, ...]:
        """Return the sizes of up to two groups of layers: those with full attention, then the delta networks.

        A delta network has a recurrent state of fixed size instead of a cache. A group without layers is left out.
        """
        # For each token and head, a delta network decays the state [key, value], reads it with the key, adds an outer
        # product, and reads it with the query.
        delta, matrices = self._delta_layers, self._values * self.linear_key_head_dim
        state = matrices + self._convolved * (self.linear_conv_kernel_dim - 1)
        full = grouped_query_attention(
            self.num_hidden_layers - delta, self.num_attention_heads, self.kv_heads, self.head_size
        )
        return nonempty(full, Recurrent(delta, state, 3 * matrices))


class Qwen35(DeltaNet, Gated):
    """Qwen3.5 without experts."""


class Qwen35Moe(DeltaNet, QwenSharedMoe):
    """Qwen3.5 with experts."""


class Qwen3Next(Qwen35Moe):
    """Qwen3-Next: fewer, wider linear layers into a delta network."""

    fused_inputs = True


_LETTERS = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}


class NemotronH(Sparse):
    """Nemotron-H and Nemotron 3: each layer is one of Mamba-2, attention, an MLP or experts, under one norm."""

    default_head_dim = 128
    hybrid_override_pattern: str
    expert_width: int = Field(default=0, validation_alias="moe_intermediate_size")
    moe_shared_expert_intermediate_size: int = 0
    moe_latent_size: Count | None = None
    mlp_bias: bool = False
    mamba_num_heads: Count
    mamba_head_dim: Count
    ssm_state_size: Count
    n_groups: Count = 8
    conv_kernel: Count = 4
    use_bias: bool = False
    use_conv_bias: bool = True

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Derive the pattern (a letter for each layer) and the number of layers; by default without experts."""
        kinds = config.get("layers_block_type") or config.get("layer_types")
        letters = (_LETTERS.get(kind, "?") for kind in kinds or ())
        pattern = "".join(letters) if kinds else config.get("hybrid_override_pattern") or ""
        layers = {"hybrid_override_pattern": pattern, "num_hidden_layers": len(pattern)}
        return {"n_routed_experts": 0, "num_experts_per_tok": 0} | config | layers

    @property
    def _inner(self) -> int:
        return self.mamba_num_heads * self.mamba_head_dim

    @property
    def _convolved(self) -> int:
        return self._inner + 2 * self.n_groups * self.ssm_state_size

    def _shared_width(self) -> int:
        return self.moe_shared_expert_intermediate_size

    def _sparse_layers(self) -> int:
        return self.hybrid_override_pattern.count("E")

    def body(self) -> Tensors:
        """Return the parameter counts of the decoder without embedding and head."""
        routed = self._around_experts() + self.num_experts * self._expert()
        mamba = linear(self.hidden_size, self._inner + self._convolved + self.mamba_num_heads, bias=self.use_bias)
        mamba += matrix(self._convolved, self.conv_kernel) + vector(self._convolved * self.use_conv_bias)
        mamba += linear(self._inner, self.hidden_size, bias=self.use_bias)
        mamba += vector(3 * self.mamba_num_heads + self._inner)
        kinds = {"M": mamba, "*": self._attention(), "-": self._mlp(), "E": routed}
        layers = (self.hybrid_override_pattern.count(letter) * part for letter, part in kinds.items())
        return sum(layers, self._ends() + vector(self.hidden_size * len(self.hybrid_override_pattern)))

    def _mlp(self) -> Tensors:
        return plain_mlp(self.hidden_size, self.width, bias=self.mlp_bias)

    def _expert(self) -> Tensors:
        return matrix(2 * (self.moe_latent_size or self.hidden_size), self.expert_width)

    def _around_experts(self) -> Tensors:
        hidden, bias = self.hidden_size, self.mlp_bias
        latent = plain_mlp(hidden, self.moe_latent_size, bias=bias) if self.moe_latent_size else Tensors()
        return matrix(hidden, self.num_experts) + plain_mlp(hidden, self._shared_width(), bias=bias) + latent

    def mixers(self) -> tuple[Mixer, ...]:
        """Return the sizes of up to two groups of layers: those with full attention, then the Mamba-2 layers.

        A Mamba-2 layer has a recurrent state of fixed size instead of a cache. A group without layers is left out, as
        are layers that are an MLP or experts.
        """
        # For each token, Mamba-2 adds an outer product to the state, and reads it once.
        count, state = self.hybrid_override_pattern.count, self._inner * self.ssm_state_size
        full = grouped_query_attention(count("*"), self.num_attention_heads, self.kv_heads, self.head_size)
        return nonempty(full, Recurrent(count("M"), state + self._convolved * (self.conv_kernel - 1), 2 * state))
