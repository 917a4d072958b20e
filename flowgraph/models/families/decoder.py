"""The base of all families of decoders: counts of parameters, sizes read from config.json, and a standard layer.

A family is a class. Its fields are read from config.json, with the defaults of transformers; a method that it overrides
counts one part of its layers. Source of each: the modules of transformers 5.12; tests compare with them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, ClassVar, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from flowgraph.models.layer_kinds import Mixer, grouped_query_attention

Count = Annotated[int, Field(gt=0)]
Windows = Literal["none", "all", "even"]
WINDOWED = frozenset({"sliding_attention", "chunked_attention"})


@dataclass(frozen=True)
class Tensors:
    """The numbers of parameters in some modules.

    `products` counts factors of a matrix product, which each token uses once; `vectors` counts parameters that are
    added, scaled by or looked up. `sides` is the sum of inputs and outputs of linear layers: adapters of rank r on all
    of them have r · sides parameters.
    """

    products: int = 0
    vectors: int = 0
    sides: int = 0

    def __add__(self, term: Tensors) -> Tensors:
        return Tensors(self.products + term.products, self.vectors + term.vectors, self.sides + term.sides)

    def __rmul__(self, count: int) -> Tensors:
        return Tensors(count * self.products, count * self.vectors, count * self.sides)

    @property
    def numbers(self) -> int:
        """Return the number of all parameters.

        >>> linear(4, 3, bias=True).numbers
        15
        """
        return self.products + self.vectors


def linear(inputs: int, outputs: int, *, bias: bool = False) -> Tensors:
    """Return the parameter counts of a linear layer, with as many bias parameters as outputs if `bias`.

    >>> 2 * linear(4, 3) + vector(4)
    Tensors(products=24, vectors=4, sides=14)
    """
    return Tensors(inputs * outputs, outputs * bias, inputs + outputs)


def matrix(rows: int, columns: int) -> Tensors:
    """Return the parameter counts of a matrix that gets no adapters, such as a router, an expert or a convolution."""
    return Tensors(rows * columns)


def vector(numbers: int) -> Tensors:
    """Return the parameter counts of `numbers` parameters that are added or multiplied elementwise, as in a norm."""
    return Tensors(0, numbers)


def gated_mlp(hidden: int, width: int, *, bias: bool = False) -> Tensors:
    """Return the parameter counts of an MLP with three linear layers (gate, up and down); its width is `width`."""
    return 2 * linear(hidden, width, bias=bias) + linear(width, hidden, bias=bias)


def plain_mlp(hidden: int, width: int, *, bias: bool = False) -> Tensors:
    """Return the parameter counts of an MLP with two linear layers (up and down); its width is `width`."""
    return linear(hidden, width, bias=bias) + linear(width, hidden, bias=bias)


@dataclass(frozen=True)
class Experts:
    """The experts of a family: their number, the number per token, their width, and the counts of one expert.

    `shared` is the total width of the experts that every token uses; `dense_layers` is the number of layers without
    experts.
    """

    count: int = 0
    per_token: int = 0
    width: int = 0
    shared: int = 0
    dense_layers: int = 0
    expert: Tensors = field(default_factory=Tensors)


class Decoder(BaseModel, ABC):
    """The sizes of a decoder; by default, layers have grouped-query attention and two norms, without biases."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=(), defer_build=True)

    default_head_dim: ClassVar[int | None] = None
    """The width of a head if config.json has no head_dim; None: hidden width / heads."""
    qk_norm: ClassVar[Literal["none", "head", "layer"]] = "none"
    """Whether queries and keys are normalized: not, in each head, or over all heads at once."""
    fused_qkv: ClassVar[bool] = False
    """Whether queries, keys and values are one linear layer."""
    layer_norms: ClassVar[int] = 2
    """Vectors of the hidden width in the norms of one layer."""
    windows: ClassVar[Windows] = "none"
    """Which layers have a window, counted from 0, if config.json does not list the layers' types."""

    hidden_size: Count = Field(validation_alias=AliasChoices("hidden_size", "n_embd", "n_embed"))
    num_hidden_layers: Count = Field(validation_alias=AliasChoices("num_hidden_layers", "n_layer"))
    num_attention_heads: Count = Field(validation_alias=AliasChoices("num_attention_heads", "n_head"))
    vocab_size: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    tie_word_embeddings: bool = False
    layer_types: tuple[str, ...] | None = None
    sliding_window: int | None = None
    max_position_embeddings: Count | None = None

    @property
    def head_size(self) -> int:
        """Return the width of a query in one head: `head_dim`, the family's default, or else hidden width / heads."""
        return self.head_dim or self.default_head_dim or self.hidden_size // self.num_attention_heads

    @property
    def kv_heads(self) -> int:
        """Return the number of key-value heads; by default that of query heads."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def queries(self) -> int:
        """Return the total width of the queries of all heads."""
        return self.num_attention_heads * self.head_size

    @property
    def keys(self) -> int:
        """Return the total width of the keys of all KV heads, which is also that of the values."""
        return self.kv_heads * self.head_size

    @property
    @abstractmethod
    def width(self) -> int:
        """Return the hidden width of an MLP in a layer without experts."""

    def body(self) -> Tensors:
        """Return the parameter counts of the decoder without embedding and head."""
        return self.num_hidden_layers * (self._attention() + self._norms()) + self._mlps() + self._ends()

    def _biases(self) -> tuple[bool, bool]:
        """Return whether attention has biases on queries, keys and values, and whether it has one on its output."""
        return False, False

    def _attention(self) -> Tensors:
        bias, out_bias = self._biases()
        if self.fused_qkv:
            qkv = linear(self.hidden_size, self.queries + 2 * self.keys, bias=bias)
        else:
            qkv = linear(self.hidden_size, self.queries, bias=bias) + 2 * linear(self.hidden_size, self.keys, bias=bias)
        norms = {"none": 0, "head": 2 * self.head_size, "layer": self.queries + self.keys}[self.qk_norm]
        return qkv + linear(self.queries, self.hidden_size, bias=out_bias) + vector(norms)

    def _norms(self) -> Tensors:
        return vector(self.layer_norms * self.hidden_size)

    def _mlps(self) -> Tensors:
        return self.num_hidden_layers * self._mlp()

    def _mlp(self) -> Tensors:
        return gated_mlp(self.hidden_size, self.width)

    def _ends(self) -> Tensors:
        return vector(self.hidden_size)

    def head_vectors(self) -> int:
        """Return the number of parameters in the bias of the language-model head; 0 if it has none."""
        return 0

    def experts(self) -> Experts:
        """Return the number and sizes of the experts; `count` is 0 for a family without experts."""
        return Experts()

    def windowed(self) -> int:
        """Return the number of layers with an attention window; 0 if it is not shorter than the number of positions.

        If the number of positions is unknown, every window counts. The result is also 0 if config.json has no window.
        """
        if self.sliding_window is None or self.sliding_window >= (self.max_position_embeddings or inf):
            return 0
        if self.layer_types is not None:
            return sum(kind in WINDOWED for kind in self.layer_types)
        return sum(self._has_window(layer) for layer in range(self.num_hidden_layers))

    def _has_window(self, layer: int) -> bool:
        return self.windows == "all" or (self.windows == "even" and layer % 2 == 0)

    def mixers(self) -> tuple[Mixer, ...]:
        """Return the sizes of up to two groups of layers: those with full attention, then those with a window.

        A group without layers is left out.
        """
        windowed, sizes = self.windowed(), (self.num_attention_heads, self.kv_heads, self.head_size)
        full = grouped_query_attention(self.num_hidden_layers - windowed, *sizes)
        return nonempty(full, grouped_query_attention(windowed, *sizes, window=self.sliding_window))


class BiasedAttention(Decoder):
    """A decoder whose attention has biases if config.json says so; `out_bias` says whether its output has one too."""

    out_bias: ClassVar[bool] = True
    attention_bias: bool = False

    def _biases(self) -> tuple[bool, bool]:
        return self.attention_bias, self.attention_bias and self.out_bias


class Gated(Decoder):
    """A decoder whose layers have a gated MLP, as in Llama and most families since."""

    intermediate_size: Count

    @property
    def width(self) -> int:
        """Return the hidden width of an MLP."""
        return self.intermediate_size


def nonempty(*mixers: Mixer) -> tuple[Mixer, ...]:
    """Return, in the same order, the groups of attention or recurrent layers that have at least one layer."""
    return tuple(mixer for mixer in mixers if mixer.layers)
