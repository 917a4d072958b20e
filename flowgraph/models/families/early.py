"""Families from before gated MLPs: GPT-2, OPT, BLOOM, GPT-NeoX, Falcon, Phi. A norm has a scale and a shift."""

from __future__ import annotations

from flowgraph.models.families.decoder import Count, Decoder
from flowgraph.models.tensors import Tensors, linear, plain, vector


class Early(Decoder):
    """What they share: biases everywhere, one linear layer for queries, keys and values, an MLP four times as wide."""

    intermediate_size: Count | None = None
    tie_word_embeddings: bool = True

    @property
    def width(self) -> int:
        """Return the width of the MLP."""
        return self.intermediate_size or 4 * self.hidden_size

    def attention(self) -> Tensors:
        """Count what mixes tokens in one layer."""
        into = linear(self.hidden_size, self.queries + 2 * self.keys, bias=True)
        return into + linear(self.queries, self.hidden_size, bias=True)

    def mlp(self) -> Tensors:
        """Count the MLP of one layer."""
        return plain(self.hidden_size, self.width, bias=True)

    def norms(self) -> Tensors:
        """Count the norms of one layer."""
        return vector(4 * self.hidden_size)

    def ends(self) -> Tensors:
        """Count the last norm."""
        return vector(2 * self.hidden_size)


class GPT2(Early):
    """GPT-2: positions are learned."""

    n_positions: Count = 1024
    n_inner: Count | None = None

    @property
    def width(self) -> int:
        """Return the width of the MLP."""
        return self.n_inner or 4 * self.hidden_size

    def ends(self) -> Tensors:
        """Count positions and the last norm."""
        return vector((self.n_positions + 2) * self.hidden_size)


class OPT(Early):
    """OPT: positions are learned, from the third row on; queries, keys and values are linear layers of their own."""

    ffn_dim: Count
    max_position_embeddings: Count | None = 2048
    do_layer_norm_before: bool = True

    @property
    def width(self) -> int:
        """Return the width of the MLP."""
        return self.ffn_dim

    def attention(self) -> Tensors:
        """Count what mixes tokens in one layer."""
        return self.projections(bias=True, out_bias=True)

    def ends(self) -> Tensors:
        """Count positions and the last norm."""
        positions = (self.max_position_embeddings or 0) + 2
        return vector((positions + 2 * self.do_layer_norm_before) * self.hidden_size)


class Bloom(Early):
    """BLOOM: the embedding is normalised too."""

    def ends(self) -> Tensors:
        """Count the first norm and the last."""
        return vector(4 * self.hidden_size)


class GPTNeoX(Early):
    """GPT-NeoX and Pythia."""

    tie_word_embeddings: bool = False
    attention_bias: bool = True

    def attention(self) -> Tensors:
        """Count what mixes tokens in one layer."""
        into = linear(self.hidden_size, self.queries + 2 * self.keys, bias=self.attention_bias)
        return into + linear(self.queries, self.hidden_size, bias=self.attention_bias)


class Phi(Early):
    """Phi-1.5 and Phi-2: one norm for attention and MLP, which stand side by side; the head has a bias."""

    tie_word_embeddings: bool = False
    qk_layernorm: bool = False

    def attention(self) -> Tensors:
        """Count what mixes tokens in one layer."""
        return self.projections(bias=True, out_bias=True) + vector(4 * self.head_size * self.qk_layernorm)

    def norms(self) -> Tensors:
        """Count the norms of one layer."""
        return vector(2 * self.hidden_size)

    def head_vectors(self) -> int:
        """Count the bias of the head."""
        return self.vocab_size


class Falcon(Early):
    """Falcon: attention and MLP side by side, under one norm or two; keys shared by all heads, or in groups."""

    num_kv_heads: Count | None = None
    ffn_hidden_size: Count | None = None
    new_decoder_architecture: bool = False
    multi_query: bool = True
    parallel_attn: bool = True
    bias: bool = False
    num_ln_in_parallel_attn: int | None = None

    @property
    def kv_heads(self) -> int:
        """Count the heads that have keys and values of their own."""
        if self.new_decoder_architecture:
            return self.num_kv_heads or self.num_attention_heads
        return 1 if self.multi_query else self.num_attention_heads

    @property
    def width(self) -> int:
        """Return the width of the MLP."""
        return self.ffn_hidden_size or 4 * self.hidden_size

    def attention(self) -> Tensors:
        """Count what mixes tokens in one layer."""
        into = linear(self.hidden_size, self.queries + 2 * self.keys, bias=self.bias)
        return into + linear(self.queries, self.hidden_size, bias=self.bias)

    def mlp(self) -> Tensors:
        """Count the MLP of one layer."""
        return plain(self.hidden_size, self.width, bias=self.bias)

    def norms(self) -> Tensors:
        """Count the norms of one layer."""
        grouped = self.new_decoder_architecture and self.num_ln_in_parallel_attn in (None, 2)
        return vector(2 * self.hidden_size * (2 if grouped or not self.parallel_attn else 1))
