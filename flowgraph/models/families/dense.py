"""Families whose layers all have one MLP: Llama and its kin, Qwen, Gemma, Phi-3, OLMo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pydantic import BaseModel

from flowgraph.models.families.decoder import Count, Decoder, Gated
from flowgraph.models.layer_kinds import Mixer, grouped
from flowgraph.models.tensors import Tensors, gated, linear, vector


class Llama(Gated):
    """Llama and Granite: biases where config.json asks for them."""

    attention_bias: bool = False
    mlp_bias: bool = False

    def attention(self) -> Tensors:
        """Count what mixes tokens in one layer."""
        return self.projections(bias=self.attention_bias, out_bias=self.attention_bias)

    def mlp(self) -> Tensors:
        """Count the MLP of one layer."""
        return gated(self.hidden_size, self.width, bias=self.mlp_bias)


class SmolLM3(Llama):
    """SmolLM3: a Llama that may have windows where it has no rotation."""

    tie_word_embeddings: bool = True
    use_sliding_window: bool = False
    no_rope_layer_interval: int = 4

    def has_window(self, layer: int) -> bool:
        """Say whether a layer has a window."""
        return self.use_sliding_window and (layer + 1) % self.no_rope_layer_interval == 0


class Mistral(Gated):
    """Mistral: a window in all layers, or in none."""

    sliding_window: int | None = 4096

    def has_window(self, layer: int) -> bool:
        """Say that each layer has one."""
        return True


class Phi3(Gated):
    """Phi-3 and Phi-4: queries, keys and values are one linear layer, and so are gate and up."""

    def has_window(self, layer: int) -> bool:
        """Say that each layer has one."""
        return True

    def attention(self) -> Tensors:
        """Count what mixes tokens in one layer."""
        return linear(self.hidden_size, self.queries + 2 * self.keys) + linear(self.queries, self.hidden_size)

    def mlp(self) -> Tensors:
        """Count the MLP of one layer."""
        return linear(self.hidden_size, 2 * self.width) + linear(self.width, self.hidden_size)


class Qwen2(Gated):
    """Qwen2 and Qwen2.5: queries, keys and values have biases."""

    use_sliding_window: bool = False
    max_window_layers: int = 28
    sliding_window: int | None = 4096

    def windowed(self) -> int:
        """Count the layers that see no more than a window."""
        return super().windowed() if self.use_sliding_window else 0

    def has_window(self, layer: int) -> bool:
        """Say whether a layer has a window."""
        return layer >= self.max_window_layers

    def attention(self) -> Tensors:
        """Count what mixes tokens in one layer."""
        return self.projections(bias=True)


class Qwen3(Qwen2):
    """Qwen3: queries and keys are normalised in each head."""

    head_size_unsaid = 128
    attention_bias: bool = False

    def attention(self) -> Tensors:
        """Count what mixes tokens in one layer."""
        return self.projections(bias=self.attention_bias, out_bias=self.attention_bias) + vector(2 * self.head_size)


class Olmo2(Gated):
    """OLMo-2: queries and keys are normalised over all heads; norms stand after attention and MLP."""

    attention_bias: bool = False

    def attention(self) -> Tensors:
        """Count what mixes tokens in one layer."""
        own = self.projections(bias=self.attention_bias, out_bias=self.attention_bias)
        return own + vector(self.queries + self.keys)


class Olmo3(Olmo2):
    """OLMo-3: every fourth layer sees everything."""

    sliding_window: int | None = 4096

    def has_window(self, layer: int) -> bool:
        """Say whether a layer has a window."""
        return (layer + 1) % 4 != 0


class Gemma(Gated):
    """Gemma: the embedding is the head."""

    head_size_unsaid = 256
    tie_word_embeddings: bool = True
    attention_bias: bool = False

    def attention(self) -> Tensors:
        """Count what mixes tokens in one layer."""
        return self.projections(bias=self.attention_bias, out_bias=self.attention_bias)


class Gemma2(Gemma):
    """Gemma 2: norms before and after attention and MLP; every second layer has a window."""

    sliding_window: int | None = 4096

    def has_window(self, layer: int) -> bool:
        """Say whether a layer has a window."""
        return layer % 2 == 0

    def norms(self) -> Tensors:
        """Count the norms of one layer."""
        return vector(4 * self.hidden_size)


class Gemma3(Gemma2):
    """Gemma 3, its language model: queries and keys are normalised in each head; few layers see everything."""

    sliding_window_pattern: int = 6

    def has_window(self, layer: int) -> bool:
        """Say whether a layer has a window."""
        return (layer + 1) % self.sliding_window_pattern != 0

    def attention(self) -> Tensors:
        """Count what mixes tokens in one layer."""
        return super().attention() + vector(2 * self.head_size)


class _Attends(BaseModel):
    n_heads_in_group: Count | None = None
    no_op: bool = False


class _Widens(BaseModel):
    ffn_mult: float | None = None
    no_op: bool = False


class _Block(BaseModel):
    attention: _Attends
    ffn: _Widens


class LlamaNemotron(Decoder):
    """Llama-Nemotron Super: a Llama cut by a search; each layer has attention or none, and an MLP of its own width.

    Not in transformers. Source: NVIDIA's `modeling_decilm.py` beside the weights; the count is the published one.
    """

    block_configs: tuple[_Block, ...]

    @property
    def width(self) -> int:
        """Give the width of the widest MLP."""
        return max(self._widths(), default=0)

    @property
    def kv_heads(self) -> int:
        """Count the heads that have keys and values of their own, in the layer that has most."""
        return max(self._groups(), default=0)

    def body(self) -> Tensors:
        """Count all but the embedding and the head; a part that is left out takes its norm with it."""
        one = vector(self.hidden_size)
        attending = (self._attention(heads) + one for heads in self._groups())
        widening = (gated(self.hidden_size, width) + one for width in self._widths())
        return sum((*attending, *widening), self.ends())

    def mlp(self) -> Tensors:
        """Count the widest MLP."""
        return gated(self.hidden_size, self.width)

    def mixers(self) -> tuple[Mixer, ...]:
        """Describe what the layers remember."""
        heads, size = self.num_attention_heads, self.head_size
        return tuple(grouped(layers, heads, each, size) for each, layers in Counter(self._groups()).items())

    def _attention(self, kv_heads: int) -> Tensors:
        into = linear(self.hidden_size, self.queries) + linear(self.hidden_size, kv_heads * self.head_size).times(2)
        return into + linear(self.queries, self.hidden_size)

    def _groups(self) -> Iterator[int]:
        for block in self.block_configs:
            if not block.attention.no_op:
                yield self.num_attention_heads // (block.attention.n_heads_in_group or 1)

    def _widths(self) -> Iterator[int]:
        """Give the width of each MLP: the wanted share of 2/3 of the hidden width, rounded up to a multiple of 256."""
        for block in self.block_configs:
            if not block.ffn.no_op and block.ffn.ffn_mult is not None:
                yield -(-int(2 * block.ffn.ffn_mult * self.hidden_size / 3) // 256) * 256
