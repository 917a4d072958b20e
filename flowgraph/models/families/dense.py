"""Families whose layers all have one gated MLP: Llama and similar models, Qwen, Gemma, Phi-3, OLMo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pydantic import BaseModel

from flowgraph.models.families.decoder import BiasedAttention, Count, Decoder, Gated, Tensors, gated_mlp, linear, vector
from flowgraph.models.layer_kinds import Mixer, grouped_query_attention


class Llama(BiasedAttention, Gated):
    """Llama and Granite."""

    mlp_bias: bool = False

    def _mlp(self) -> Tensors:
        return gated_mlp(self.hidden_size, self.width, bias=self.mlp_bias)


class SmolLM3(Llama):
    """SmolLM3: a Llama whose layers without rotary positions may have windows."""

    tie_word_embeddings: bool = True
    use_sliding_window: bool = False
    no_rope_layer_interval: int = 4

    def _has_window(self, layer: int) -> bool:
        return self.use_sliding_window and (layer + 1) % self.no_rope_layer_interval == 0


class Mistral(Gated):
    """Mistral: a window in all layers, or in none."""

    windows = "all"
    sliding_window: int | None = 4096


class Phi3(Gated):
    """Phi-3 and Phi-4: gate and up are one linear layer too; a window in all layers, or in none."""

    fused_qkv = True
    windows = "all"

    def _mlp(self) -> Tensors:
        return linear(self.hidden_size, 2 * self.width) + linear(self.width, self.hidden_size)


class Qwen2(Gated):
    """Qwen2 and Qwen2.5: queries, keys and values have biases."""

    use_sliding_window: bool = False
    max_window_layers: int = 28
    sliding_window: int | None = 4096

    def windowed(self) -> int:
        """Return the number of layers with an attention window; 0 unless config.json sets `use_sliding_window`.

        It is also 0 if the window is not shorter than the number of positions.
        """
        return super().windowed() if self.use_sliding_window else 0

    def _has_window(self, layer: int) -> bool:
        return layer >= self.max_window_layers

    def _biases(self) -> tuple[bool, bool]:
        return True, False


class Qwen3(BiasedAttention, Qwen2):
    """Qwen3: queries and keys are normalized in each head."""

    default_head_dim = 128
    qk_norm = "head"


class Olmo2(BiasedAttention, Gated):
    """OLMo-2: queries and keys are normalized over all heads; norms come after attention and MLP."""

    qk_norm = "layer"


class Olmo3(Olmo2):
    """OLMo-3: every fourth layer has no window."""

    sliding_window: int | None = 4096

    def _has_window(self, layer: int) -> bool:
        return (layer + 1) % 4 != 0


class Gemma(BiasedAttention, Gated):
    """Gemma: the embedding is the head."""

    default_head_dim = 256
    tie_word_embeddings: bool = True


class Gemma2(Gemma):
    """Gemma 2: norms before and after attention and MLP; every second layer has a window."""

    layer_norms = 4
    windows = "even"
    sliding_window: int | None = 4096


class Gemma3(Gemma2):
    """The language model of Gemma 3: queries and keys are normalized in each head; few layers have no window."""

    qk_norm = "head"
    sliding_window_pattern: int = 6

    def _has_window(self, layer: int) -> bool:
        return (layer + 1) % self.sliding_window_pattern != 0


class _AttentionBlock(BaseModel):
    n_heads_in_group: Count | None = None
    no_op: bool = False


class _MlpBlock(BaseModel):
    ffn_mult: float | None = None
    no_op: bool = False


class _Block(BaseModel):
    attention: _AttentionBlock
    ffn: _MlpBlock


class LlamaNemotron(Decoder):
    """Llama-Nemotron Super: a pruned Llama, whose layers may lack attention or MLP, and whose MLPs differ in width.

    Not in transformers. Source: NVIDIA's `modeling_decilm.py`, published with the weights; the count is the published
    one.
    """

    block_configs: tuple[_Block, ...]

    @property
    def width(self) -> int:
        """Return the hidden width of the widest MLP; 0 if there is none."""
        return max(self._widths(), default=0)

    @property
    def kv_heads(self) -> int:
        """Return the largest number of key-value heads in a layer; 0 if no layer has attention."""
        return max(self._kv_heads(), default=0)

    def body(self) -> Tensors:
        """Return the parameter counts of the decoder without embedding and head.

        A layer without attention or MLP lacks the norm of that part too.
        """
        hidden, norm = self.hidden_size, vector(self.hidden_size)
        query_and_out = linear(hidden, self.queries) + linear(self.queries, hidden)
        attentions = (query_and_out + 2 * linear(hidden, heads * self.head_size) + norm for heads in self._kv_heads())
        mlps = (gated_mlp(hidden, width) + norm for width in self._widths())
        return sum((*attentions, *mlps), self._ends())

    def mixers(self) -> tuple[Mixer, ...]:
        """Return the sizes of the attention layers, grouped by their number of key-value heads.

        Groups are in the order of their first layers. Layers without attention are left out.
        """
        heads, size = self.num_attention_heads, self.head_size
        return tuple(
            grouped_query_attention(layers, heads, kv_heads, size)
            for kv_heads, layers in Counter(self._kv_heads()).items()
        )

    def _kv_heads(self) -> Iterator[int]:
        for block in self.block_configs:
            if not block.attention.no_op:
                yield self.num_attention_heads // (block.attention.n_heads_in_group or 1)

    def _widths(self) -> Iterator[int]:
        """Yield the hidden width of each MLP: `ffn_mult` · 2/3 of the hidden width, rounded up to a multiple of 256."""
        for block in self.block_configs:
            if not block.ffn.no_op and block.ffn.ffn_mult is not None:
                yield -(-int(2 * block.ffn.ffn_mult * self.hidden_size / 3) // 256) * 256
