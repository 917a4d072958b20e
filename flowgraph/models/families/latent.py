"""Families that keep a latent in place of keys and values: DeepSeek V2 to V3.2, Kimi K2, GLM-5; and DeepSeek V4.

A token's keys and values are kept as one latent vector and a rotated part. Source: DeepSeek-AI 2024, arXiv 2405.04434,
section 2.1. Multiplications are counted with keys made of the latent, as prompts are read and models trained; engines
that decode bring queries into the latent space instead.
"""

from __future__ import annotations

from flowgraph.models.families.decoder import Count
from flowgraph.models.families.sparse import Sparse
from flowgraph.models.layer_kinds import Attention, Mixer
from flowgraph.models.tensors import Tensors, linear, matrix, vector


class Latent(Sparse):
    """DeepSeek V3, Kimi K2 and Moonlight: dense layers first, then experts and shared ones."""

    moe_intermediate_size: Count
    n_shared_experts: int | None = 1
    first_k_dense_replace: int = 3
    q_lora_rank: Count | None = 1536
    kv_lora_rank: Count
    qk_nope_head_dim: Count
    qk_rope_head_dim: Count
    v_head_dim: Count
    attention_bias: bool = False

    @property
    def head_size(self) -> int:
        """Give the numbers in one head's query."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    def expert_width(self) -> int:
        """Give the width of one expert."""
        return self.moe_intermediate_size

    def shared_width(self) -> int:
        """Give the width of all shared experts."""
        return (self.n_shared_experts or 0) * self.moe_intermediate_size

    def sparse_layers(self) -> int:
        """Count the layers with experts."""
        return max(0, self.num_hidden_layers - self.first_k_dense_replace)

    def attention(self) -> Tensors:
        """Count what mixes tokens in one layer."""
        heads, hidden, rank, bias = self.num_attention_heads, self.hidden_size, self.kv_lora_rank, self.attention_bias
        down = linear(hidden, rank + self.qk_rope_head_dim, bias=bias) + vector(rank)
        up = linear(rank, heads * (self.qk_nope_head_dim + self.v_head_dim))
        return self._queries() + down + up + linear(heads * self.v_head_dim, hidden, bias=bias)

    def _queries(self) -> Tensors:
        if self.q_lora_rank is None:
            return linear(self.hidden_size, self.queries)
        down = linear(self.hidden_size, self.q_lora_rank, bias=self.attention_bias) + vector(self.q_lora_rank)
        return down + linear(self.q_lora_rank, self.queries)

    def mixers(self) -> tuple[Mixer, ...]:
        """Describe what the layers remember."""
        products = self.num_attention_heads * (self.head_size + self.v_head_dim)
        return (Attention(self.num_hidden_layers, products, self.kv_lora_rank + self.qk_rope_head_dim),)


class DeepseekV2(Latent):
    """DeepSeek V2: other counts where config.json leaves them out."""

    n_shared_experts: int | None = 2
    first_k_dense_replace: int = 0


class Indexed(Latent):
    """DeepSeek V3.2 and GLM-5: a small index picks the tokens that are attended to; layers may share one's picks.

    Source: DeepSeek-AI 2025, arXiv 2512.02556, section 2.
    """

    index_topk: Count = 2048
    index_head_dim: Count = 128
    index_n_heads: Count = 64
    indexer_types: tuple[str, ...] | None = None

    def body(self) -> Tensors:
        """Count all but the embedding and the head."""
        reads = linear(self.q_lora_rank or self.hidden_size, self.index_n_heads * self.index_head_dim)
        reads += linear(self.hidden_size, self.index_head_dim) + linear(self.hidden_size, self.index_n_heads)
        return super().body() + (reads + vector(2 * self.index_head_dim)).times(self.indexes())

    def indexes(self) -> int:
        """Count the layers with an index of their own."""
        return self.num_hidden_layers if self.indexer_types is None else self.indexer_types.count("full")

    def mixers(self) -> tuple[Mixer, ...]:
        """Describe what the layers remember."""
        products = self.num_attention_heads * (self.head_size + self.v_head_dim)
        cached, own, scan = self.kv_lora_rank + self.qk_rope_head_dim, self.indexes(), self.index_n_heads
        searching = Attention(
            own, products, cached + self.index_head_dim, picks=self.index_topk, scan=scan * self.index_head_dim
        )
        sharing = Attention(self.num_hidden_layers - own, products, cached, picks=self.index_topk)
        return tuple(each for each in (searching, sharing) if each.layers)


class Glm5(Indexed):
    """GLM-5: every so many layers search, the others share."""

    index_n_heads: Count = 32
    index_topk_freq: int = 1
    index_skip_topk_offset: int = 2

    def indexes(self) -> int:
        """Count the layers with an index of their own."""
        if self.indexer_types is not None:
            return self.indexer_types.count("full")
        after = (max(i - self.index_skip_topk_offset + 1, 0) for i in range(self.num_hidden_layers))
        return sum(each % self.index_topk_freq == 0 for each in after)


_V4_RATES = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


class DeepseekV4(Sparse):
    """DeepSeek V4: keys that are values too, one for all heads; beyond a short window, groups of tokens made one.

    Four residual streams are mixed around each layer. Source: transformers 5.12, `deepseek_v4`.
    """

    head_size_unsaid = 512
    moe_intermediate_size: Count
    n_shared_experts: int = 1
    q_lora_rank: Count = 1024
    o_groups: Count = 8
    o_lora_rank: Count = 1024
    hc_mult: Count = 4
    index_n_heads: Count = 64
    index_head_dim: Count = 128
    index_topk: Count = 512
    sliding_window: int | None = 128
    compress_ratios: tuple[int, ...] | None = None
    compress_rates: dict[str, int] | None = None

    def expert_width(self) -> int:
        """Give the width of one expert."""
        return self.moe_intermediate_size

    def shared_width(self) -> int:
        """Give the width of all shared experts."""
        return self.n_shared_experts * self.moe_intermediate_size

    def attention(self) -> Tensors:
        """Count what mixes tokens in one layer, compression apart."""
        hidden, groups = self.hidden_size, self.o_groups
        into = (
            linear(hidden, self.q_lora_rank) + linear(self.q_lora_rank, self.queries) + linear(hidden, self.head_size)
        )
        out = linear(self.queries // groups, groups * self.o_lora_rank) + linear(groups * self.o_lora_rank, hidden)
        return into + out + vector(self.q_lora_rank + self.head_size + self.num_attention_heads)

    def norms(self) -> Tensors:
        """Count the norms of one layer, and what mixes the residual streams before attention and before the MLP."""
        mixed = (2 + self.hc_mult) * self.hc_mult
        streams = matrix(mixed, self.hc_mult * self.hidden_size) + vector(mixed + 3)
        return super().norms() + streams.times(2)

    def ends(self) -> Tensors:
        """Count the last norm, and what makes one stream of all."""
        return super().ends() + matrix(self.hc_mult, self.hc_mult * self.hidden_size) + vector(self.hc_mult + 1)

    def body(self) -> Tensors:
        """Count all but the embedding and the head."""
        return sum((self._compressing(ratio) for ratio in self._ratios()), super().body())

    def mixers(self) -> tuple[Mixer, ...]:
        """Describe what the layers remember."""
        ratios, heads, size = self._ratios(), self.num_attention_heads, self.head_size
        near = Attention(len(ratios), 2 * heads * size, size, self.sliding_window)
        far = (self._reaching(ratio, ratios.count(ratio)) for ratio in sorted({*ratios} - {0}))
        return (near, *far)

    def _ratios(self) -> tuple[int, ...]:
        """Give how many tokens become one entry, layer by layer; 0 where there is only the window."""
        if self.compress_ratios is not None:
            return self.compress_ratios[: self.num_hidden_layers]
        rates = _V4_RATES | (self.compress_rates or {})
        return tuple(rates.get(each, 0) for each in self.layer_types or ())

    def _reaching(self, ratio: int, layers: int) -> Attention:
        products, size = 2 * self.num_attention_heads * self.head_size, self.head_size
        if not self._indexed(ratio):
            return Attention(layers, products, size, stride=ratio)
        scan = self.index_n_heads * self.index_head_dim
        return Attention(layers, products, size + self.index_head_dim, picks=self.index_topk, scan=scan, stride=ratio)

    def _indexed(self, ratio: int) -> bool:
        return ratio == min(each for each in self._ratios() if each)

    def _compressing(self, ratio: int) -> Tensors:
        if ratio == 0:
            return Tensors()
        if not self._indexed(ratio):
            return self._compressor(ratio, self.head_size, self.head_size)
        index = self._compressor(ratio, 2 * self.index_head_dim, self.index_head_dim)
        index += linear(self.q_lora_rank, self.index_n_heads * self.index_head_dim)
        index += linear(self.hidden_size, self.index_n_heads)
        return self._compressor(ratio, 2 * self.head_size, self.head_size) + index

    def _compressor(self, ratio: int, width: int, size: int) -> Tensors:
        return linear(self.hidden_size, width).times(2) + vector(ratio * width + size)
