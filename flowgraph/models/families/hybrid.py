"""Families where most layers keep a state in place of a cache: Qwen3-Next, Qwen3.5, Nemotron-H and Nemotron 3.

Source: Yang et al. 2024 (gated delta networks), arXiv 2412.06464; Dao and Gu 2024 (Mamba-2), arXiv 2405.21060.
"""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from flowgraph.models.families.decoder import Count, Decoder, Gated
from flowgraph.models.families.sparse import QwenMoe, Sparse
from flowgraph.models.layer_kinds import Mixer, Recurrent, grouped
from flowgraph.models.tensors import Tensors, linear, matrix, plain, vector


class DeltaNet(Decoder):
    """What they share: three gated delta networks to one layer of attention, whose output has a gate."""

    head_size_unsaid = 256
    linear_conv_kernel_dim: Count = 4
    linear_key_head_dim: Count = 128
    linear_value_head_dim: Count = 128
    linear_num_key_heads: Count = 16
    linear_num_value_heads: Count = 32
    full_attention_interval: Count = 4
    attention_bias: bool = False

    @property
    def _mixed(self) -> int:
        """Give the width of what a delta network convolves: queries, keys and values."""
        values = self.linear_num_value_heads * self.linear_value_head_dim
        return 2 * self.linear_num_key_heads * self.linear_key_head_dim + values

    def recurrent(self) -> int:
        """Count the layers that keep a state."""
        if self.layer_types is not None:
            return self.layer_types.count("linear_attention")
        return self.num_hidden_layers - self.num_hidden_layers // self.full_attention_interval

    def body(self) -> Tensors:
        """Count all but the embedding and the head."""
        attending = self.num_hidden_layers - self.recurrent()
        mixing = self.attention().times(attending) + self.delta().times(self.recurrent())
        return mixing + self.norms().times(self.num_hidden_layers) + self.mlps() + self.ends()

    def attention(self) -> Tensors:
        """Count what mixes tokens in one layer that attends; queries come with a gate."""
        hidden, bias = self.hidden_size, self.attention_bias
        into = linear(hidden, 2 * self.queries, bias=bias) + linear(hidden, self.keys, bias=bias).times(2)
        return into + linear(self.queries, hidden, bias=bias) + vector(2 * self.head_size)

    def delta(self) -> Tensors:
        """Count one gated delta network."""
        heads, size = self.linear_num_value_heads, self.linear_value_head_dim
        around = self.into_delta() + matrix(self._mixed, self.linear_conv_kernel_dim)
        return around + vector(2 * heads + size) + linear(heads * size, self.hidden_size)

    def into_delta(self) -> Tensors:
        """Count the linear layers into a delta network: what is convolved, a gate, and two numbers for each head."""
        heads = self.linear_num_value_heads
        gate = linear(self.hidden_size, heads * self.linear_value_head_dim)
        return linear(self.hidden_size, self._mixed) + gate + linear(self.hidden_size, heads).times(2)

    def mixers(self) -> tuple[Mixer, ...]:
        """Describe what the layers remember.

        A token decays a head's state [key, value], reads it with its key, adds an outer product, reads with its query.
        """
        matrices = self.linear_num_value_heads * self.linear_key_head_dim * self.linear_value_head_dim
        state = matrices + self._mixed * (self.linear_conv_kernel_dim - 1)
        layers = self.num_hidden_layers - self.recurrent()
        attending = grouped(layers, self.num_attention_heads, self.kv_heads, self.head_size)
        keeping = Recurrent(self.recurrent(), state, 3 * matrices)
        return tuple(each for each in (attending, keeping) if each.layers)


class Qwen35(DeltaNet, Gated):
    """Qwen3.5 without experts."""


class Qwen35Moe(DeltaNet, QwenMoe):
    """Qwen3.5 with experts, a shared one among them that has a gate of its own."""

    shared_expert_intermediate_size: Count

    def shared_width(self) -> int:
        """Give the width of the shared expert."""
        return self.shared_expert_intermediate_size

    def beside_experts(self) -> Tensors:
        """Count the router, the shared expert and its gate."""
        return super().beside_experts() + linear(self.hidden_size, 1)


class Qwen3Next(Qwen35Moe):
    """Qwen3-Next: fewer, wider linear layers into a delta network."""

    def into_delta(self) -> Tensors:
        """Count the linear layers into a delta network."""
        heads = self.linear_num_value_heads
        width = self._mixed + heads * self.linear_value_head_dim
        return linear(self.hidden_size, width) + linear(self.hidden_size, 2 * heads)


_BLOCKS = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}


class NemotronH(Sparse):
    """Nemotron-H and Nemotron 3: each layer is one of Mamba-2, attention, an MLP or experts, under one norm."""

    head_size_unsaid = 128
    hybrid_override_pattern: str
    moe_intermediate_size: int = 0
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
        """Write the layers as letters; how many there are, and that there are no experts, may be left unsaid."""
        kinds = config.get("layers_block_type") or config.get("layer_types")
        letters = (_BLOCKS.get(each, "?") for each in kinds or ())
        pattern = "".join(letters) if kinds else config.get("hybrid_override_pattern") or ""
        known = {"hybrid_override_pattern": pattern, "num_hidden_layers": len(pattern)}
        return {"n_routed_experts": 0, "num_experts_per_tok": 0} | config | known

    @property
    def _inner(self) -> int:
        return self.mamba_num_heads * self.mamba_head_dim

    @property
    def _mixed(self) -> int:
        return self._inner + 2 * self.n_groups * self.ssm_state_size

    def expert_width(self) -> int:
        """Give the width of one expert."""
        return self.moe_intermediate_size

    def shared_width(self) -> int:
        """Give the width of the shared expert."""
        return self.moe_shared_expert_intermediate_size

    def sparse_layers(self) -> int:
        """Count the layers with experts."""
        return self.hybrid_override_pattern.count("E")

    def body(self) -> Tensors:
        """Count all but the embedding and the head."""
        kinds = {"M": self.mamba(), "*": self.projections(), "-": self.mlp(), "E": self._routed()}
        layers = (part.times(self.hybrid_override_pattern.count(letter)) for letter, part in kinds.items())
        return sum(layers, self.ends() + vector(self.hidden_size * len(self.hybrid_override_pattern)))

    def mlp(self) -> Tensors:
        """Count an MLP, which has no gate."""
        return plain(self.hidden_size, self.width, bias=self.mlp_bias)

    def expert(self) -> Tensors:
        """Count one expert, which has no gate, and may work on fewer numbers than the hidden width."""
        return matrix(2 * (self.moe_latent_size or self.hidden_size), self.moe_intermediate_size)

    def beside_experts(self) -> Tensors:
        """Count the router, the shared expert, and what leads to the experts' own width and back."""
        shared = plain(self.hidden_size, self.shared_width(), bias=self.mlp_bias)
        latent = (
            plain(self.hidden_size, self.moe_latent_size, bias=self.mlp_bias) if self.moe_latent_size else Tensors()
        )
        return matrix(self.hidden_size, self.num_experts) + shared + latent

    def _routed(self) -> Tensors:
        return self.beside_experts() + self.expert().times(self.num_experts)

    def mamba(self) -> Tensors:
        """Count one Mamba-2 layer."""
        into = linear(self.hidden_size, self._inner + self._mixed + self.mamba_num_heads, bias=self.use_bias)
        kernel = matrix(self._mixed, self.conv_kernel) + vector(self._mixed * self.use_conv_bias)
        out = linear(self._inner, self.hidden_size, bias=self.use_bias)
        return into + kernel + out + vector(3 * self.mamba_num_heads + self._inner)

    def mixers(self) -> tuple[Mixer, ...]:
        """Describe what the layers remember; a token adds an outer product to the state, and reads it once."""
        state = self._inner * self.ssm_state_size
        keeping = Recurrent(
            self.hybrid_override_pattern.count("M"), state + self._mixed * (self.conv_kernel - 1), 2 * state
        )
        attending = grouped(
            self.hybrid_override_pattern.count("*"), self.num_attention_heads, self.kv_heads, self.head_size
        )
        return tuple(each for each in (attending, keeping) if each.layers)
