"""Families from before gated MLPs: GPT-2, OPT, BLOOM, GPT-NeoX, Falcon, Phi. A norm has a scale and a shift."""

from __future__ import annotations

from pydantic import Field

from flowgraph.models.families.decoder import BiasedAttention, Count, Decoder, Tensors, plain_mlp, vector


class Early(Decoder):
    """A decoder with biases, one linear layer for queries, keys and values, and an MLP of two layers, not gated."""

    fused_qkv = True
    layer_norms = 4
    intermediate_size: Count | None = None
    tie_word_embeddings: bool = True

    @property
    def width(self) -> int:
        """Return the hidden width of the MLP; by default four times that of the model."""
        return self.intermediate_size or 4 * self.hidden_size

    def _biases(self) -> tuple[bool, bool]:
        return True, True

    def _mlp(self) -> Tensors:
        return plain_mlp(self.hidden_size, self.width, bias=True)

    def _ends(self) -> Tensors:
        return vector(2 * self.hidden_size)


class GPT2(Early):
    """GPT-2: positions are learned."""

    n_positions: Count = 1024
    intermediate_size: Count | None = Field(default=None, validation_alias="n_inner")

    def _ends(self) -> Tensors:
        return vector((self.n_positions + 2) * self.hidden_size)


class OPT(Early):
    """OPT: positions are learned, from the third row on; queries, keys and values are separate linear layers."""

    fused_qkv = False
    intermediate_size: Count | None = Field(validation_alias="ffn_dim")
    max_position_embeddings: Count | None = 2048
    do_layer_norm_before: bool = True

    def _ends(self) -> Tensors:
        positions = (self.max_position_embeddings or 0) + 2
        return vector((positions + 2 * self.do_layer_norm_before) * self.hidden_size)


class Bloom(Early):
    """BLOOM: the embedding is normalized too."""

    def _ends(self) -> Tensors:
        return vector(4 * self.hidden_size)


class GPTNeoX(BiasedAttention, Early):
    """GPT-NeoX and Pythia."""

    tie_word_embeddings: bool = False
    attention_bias: bool = True


class Phi(Early):
    """Phi-1.5 and Phi-2: one norm for attention and MLP, which run in parallel; the head has a bias."""

    fused_qkv = False
    layer_norms = 2
    tie_word_embeddings: bool = False
    qk_layernorm: bool = False

    def _attention(self) -> Tensors:
        return super()._attention() + vector(4 * self.head_size * self.qk_layernorm)

    def head_vectors(self) -> int:
        """Return the number of parameters in the bias of the language-model head: the size of the vocabulary."""
        return self.vocab_size


class Falcon(Early):
    """Falcon: attention and MLP in parallel, under one norm or two; keys shared by all heads, or in groups."""

    intermediate_size: Count | None = Field(default=None, validation_alias="ffn_hidden_size")
    num_kv_heads: Count | None = None
    new_decoder_architecture: bool = False
    multi_query: bool = True
    parallel_attn: bool = True
    bias: bool = False
    num_ln_in_parallel_attn: int | None = None

    @property
    def kv_heads(self) -> int:
        """Return the number of key-value heads; 1 for multi-query attention."""
        if self.new_decoder_architecture:
            return self.num_kv_heads or self.num_attention_heads
        return 1 if self.multi_query else self.num_attention_heads

    def _biases(self) -> tuple[bool, bool]:
        return self.bias, self.bias

    def _mlp(self) -> Tensors:
        return plain_mlp(self.hidden_size, self.width, bias=self.bias)

    def _norms(self) -> Tensors:
        two = self.new_decoder_architecture and self.num_ln_in_parallel_attn in (None, 2)
        return vector(2 * self.hidden_size * (2 if two or not self.parallel_attn else 1))
