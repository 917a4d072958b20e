"""Families that cache a latent instead of keys and values: DeepSeek V2 to V3.2, Kimi K2, GLM-5; and DeepSeek V4.

A token's keys and values are cached as one latent vector and a rotated part. Source: DeepSeek-AI 2024, arXiv
2405.04434, section 2.1. Multiplications are counted with keys computed from the latent, as in training and prefill;
engines that decode project queries into the latent space instead.
"""

from __future__ import annotations

from flowgraph.models.families.decoder import Count, Tensors, linear, matrix, nonempty, vector
from flowgraph.models.families.sparse import SharedExperts
from flowgraph.models.layer_kinds import Attention, Mixer


class Latent(SharedExperts):
    """DeepSeek V3, Kimi K2 and Moonlight."""

    first_k_dense_replace: int = 3
    q_lora_rank: Count | None = 1536
    kv_lora_rank: Count
    qk_nope_head_dim: Count
    qk_rope_head_dim: Count
    v_head_dim: Count
    attention_bias: bool = False

    @property
    def head_size(self) -> int:
        """Return the width of a query in one attention head: the part without positions and the rotated part."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def _cached(self) -> int:
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def _products(self) -> int:
        return self.num_attention_heads * (self.head_size + self.v_head_dim)

    def _attention(self) -> Tensors:
        heads, hidden, rank, bias = self.num_attention_heads, self.hidden_size, self.kv_lora_rank, self.attention_bias
        if self.q_lora_rank is None:
            queries = linear(hidden, self.queries)
        else:
            down = linear(hidden, self.q_lora_rank, bias=bias) + vector(self.q_lora_rank)
            queries = down + linear(self.q_lora_rank, self.queries)
        down = linear(hidden, self._cached, bias=bias) + vector(rank)
        up = linear(rank, heads * (self.qk_nope_head_dim + self.v_head_dim))
        return queries + down + up + linear(heads * self.v_head_dim, hidden, bias=bias)

    def mixers(self) -> tuple[Mixer, ...]:
        """Return the sizes of the attention layers, as one group of all layers.

        The cache of a layer has one latent vector and one rotated part for each token.
        """
        return (Attention(self.num_hidden_layers, self._products, self._cached),)


class DeepseekV2(Latent):
    """DeepSeek V2: other defaults where config.json has no count."""

    n_shared_experts: int | None = 2
    first_k_dense_replace: int = 0


class Indexed(Latent):
    """DeepSeek V3.2 and GLM-5: a small index selects the tokens to attend to; several layers may share a selection.

    Source: DeepSeek-AI 2025, arXiv 2512.02556, section 2.
    """

    index_topk: Count = 2048
    index_head_dim: Count = 128
    index_n_heads: Count = 64
    indexer_types: tuple[str, ...] | None = None

    def body(self) -> Tensors:
        """Return the parameter counts of the decoder without embedding and head, including the indexes."""
        index = linear(self.q_lora_rank or self.hidden_size, self.index_n_heads * self.index_head_dim)
        index += linear(self.hidden_size, self.index_head_dim) + linear(self.hidden_size, self.index_n_heads)
        return super().body() + self._indexes() * (index + vector(2 * self.index_head_dim))

    def _indexes(self) -> int:
        return self.num_hidden_layers if self.indexer_types is None else self.indexer_types.count("full")

    def mixers(self) -> tuple[Mixer, ...]:
        """Return the sizes of up to two groups of layers: those with an index, then those that share a selection.

        An index selects the tokens that are attended to, and the other layers use the selection of such a layer. A
        group without layers is left out.
        """
        layers, scan = self._indexes(), self.index_n_heads * self.index_head_dim
        searching = Attention(
            layers, self._products, self._cached + self.index_head_dim, picks=self.index_topk, scan=scan
        )
        sharing = Attention(self.num_hidden_layers - layers, self._products, self._cached, picks=self.index_topk)
        return nonempty(searching, sharing)


class Glm5(Indexed):
    """GLM-5: every `index_topk_freq`-th layer has an index, and the other layers share its selection."""

    index_n_heads: Count = 32
    index_topk_freq: int = 1
    index_skip_topk_offset: int = 2

    def _indexes(self) -> int:
        if self.indexer_types is not None:
            return self.indexer_types.count("full")
        positions = (max(i - self.index_skip_topk_offset + 1, 0) for i in range(self.num_hidden_layers))
        return sum(position % self.index_topk_freq == 0 for position in positions)


_V4_RATIOS = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


class DeepseekV4(SharedExperts):
    """DeepSeek V4: all heads share one key, which is also the value; beyond a short window, tokens share a cache entry.

    Four residual streams are mixed around each layer. Source: transformers 5.12, `deepseek_v4`.
    """

    default_head_dim = 512
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

    def _sparse_layers(self) -> int:
        return self.num_hidden_layers

    def _attention(self) -> Tensors:
        hidden, rank, out_width = self.hidden_size, self.q_lora_rank, self.o_groups * self.o_lora_rank
        qkv = linear(hidden, rank) + linear(rank, self.queries) + linear(hidden, self.head_size)
        out = linear(self.queries // self.o_groups, out_width) + linear(out_width, hidden)
        return qkv + out + vector(rank + self.head_size + self.num_attention_heads)

    def _norms(self) -> Tensors:
        """Return the parameter counts of one layer's norms, and of the mixing of streams before attention and MLP."""
        mixed = (2 + self.hc_mult) * self.hc_mult
        return super()._norms() + 2 * (matrix(mixed, self.hc_mult * self.hidden_size) + vector(mixed + 3))

    def _ends(self) -> Tensors:
        return super()._ends() + matrix(self.hc_mult, self.hc_mult * self.hidden_size) + vector(self.hc_mult + 1)

    def body(self) -> Tensors:
        """Return the parameter counts of the decoder without embedding and head, including compressors and indexes."""
        total = super().body()
        for ratio in filter(None, self._ratios()):
            if not self._indexed(ratio):
                total += self._compressor(ratio, self.head_size, self.head_size)
                continue
            total += self._compressor(ratio, 2 * self.head_size, self.head_size)
            total += self._compressor(ratio, 2 * self.index_head_dim, self.index_head_dim)
            total += linear(self.q_lora_rank, self.index_n_heads * self.index_head_dim)
            total += linear(self.hidden_size, self.index_n_heads)
        return total

    def mixers(self) -> tuple[Mixer, ...]:
        """Return the sizes of attention in groups: the windows of all layers, then the caches of each compression.

        Compressed caches are grouped by how many tokens share an entry, in ascending order. A layer with such a cache
        is in two groups, because it has a window too.
        """
        ratios, size, index = self._ratios(), self.head_size, self.index_head_dim
        products, scan = 2 * self.num_attention_heads * size, self.index_n_heads * index
        mixers = [Attention(len(ratios), products, size, self.sliding_window)]
        for ratio in sorted({*ratios} - {0}):
            layers = ratios.count(ratio)
            if self._indexed(ratio):
                mixers.append(Attention(layers, products, size + index, picks=self.index_topk, scan=scan, stride=ratio))
            else:
                mixers.append(Attention(layers, products, size, stride=ratio))
        return tuple(mixers)

    def _ratios(self) -> tuple[int, ...]:
        """Return, for each layer, how many tokens share a cache entry; 0 for a layer that has only the window."""
        if self.compress_ratios is not None:
            return self.compress_ratios[: self.num_hidden_layers]
        ratios = _V4_RATIOS | (self.compress_rates or {})
        return tuple(ratios.get(kind, 0) for kind in self.layer_types or ())

    def _indexed(self, ratio: int) -> bool:
        return ratio == min(filter(None, self._ratios()))

    def _compressor(self, ratio: int, width: int, size: int) -> Tensors:
        return 2 * linear(self.hidden_size, width) + vector(ratio * width + size)
