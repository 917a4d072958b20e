"""What all families of decoders share: sizes read from config.json, and the plain layer that they vary.

A family is a class: its fields are what it reads of config.json, with the defaults of transformers, and its methods are
what its layers have. Source of each: the modules of transformers 5.12; tests compare with the real ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, ClassVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from flowgraph.models.layer_kinds import Mixer, grouped
from flowgraph.models.tensors import Tensors, gated, linear, vector

Count = Annotated[int, Field(gt=0)]
WINDOWED = frozenset({"sliding_attention", "chunked_attention"})


@dataclass(frozen=True)
class Experts:
    """The experts of a family: how many there are, how many a token passes, their widths, and the numbers in one.

    `shared` is the width of those that each token passes; `dense_layers` have an MLP in their place, or nothing.
    """

    count: int = 0
    per_token: int = 0
    width: int = 0
    shared: int = 0
    dense_layers: int = 0
    one: Tensors = field(default_factory=Tensors)


class Decoder(BaseModel, ABC):
    """Sizes of any decoder; layers of grouped-query attention and two norms without a bias."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=(), defer_build=True)
    head_size_unsaid: ClassVar[int | None] = None  # where config.json has no head_dim; None: hidden width / heads

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
        """Give the numbers in one head's query."""
        return self.head_dim or self.head_size_unsaid or self.hidden_size // self.num_attention_heads

    @property
    def kv_heads(self) -> int:
        """Count the heads that have keys and values of their own."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def queries(self) -> int:
        """Give the width of all queries."""
        return self.num_attention_heads * self.head_size

    @property
    def keys(self) -> int:
        """Give the width of all keys, which is that of the values."""
        return self.kv_heads * self.head_size

    @property
    @abstractmethod
    def width(self) -> int:
        """Give the width of an MLP that has no experts."""

    def body(self) -> Tensors:
        """Count all but the embedding and the head."""
        return (self.attention() + self.norms()).times(self.num_hidden_layers) + self.mlps() + self.ends()

    def attention(self) -> Tensors:
        """Count what mixes tokens in one layer."""
        return self.projections()

    def projections(self, *, bias: bool = False, out_bias: bool = False) -> Tensors:
        """Count the linear layers of grouped-query attention."""
        into = linear(self.hidden_size, self.queries, bias=bias) + linear(self.hidden_size, self.keys, bias=bias).times(
            2
        )
        return into + linear(self.queries, self.hidden_size, bias=out_bias)

    def norms(self) -> Tensors:
        """Count the norms of one layer."""
        return vector(2 * self.hidden_size)

    def mlps(self) -> Tensors:
        """Count the MLPs of all layers."""
        return self.mlp().times(self.num_hidden_layers)

    @abstractmethod
    def mlp(self) -> Tensors:
        """Count the MLP of one layer without experts."""

    def ends(self) -> Tensors:
        """Count what stands once, before or after all layers."""
        return vector(self.hidden_size)

    def head_vectors(self) -> int:
        """Count the numbers in the bias of a language model's head."""
        return 0

    def experts(self) -> Experts:
        """Describe the experts."""
        return Experts()

    def windowed(self) -> int:
        """Count the layers that see no more than a window, which is shorter than the longest text."""
        if self.sliding_window is None or self.sliding_window >= (self.max_position_embeddings or inf):
            return 0
        if self.layer_types is not None:
            return sum(each in WINDOWED for each in self.layer_types)
        return sum(self.has_window(layer) for layer in range(self.num_hidden_layers))

    def has_window(self, layer: int) -> bool:
        """Say whether a layer has a window, where config.json does not list it."""
        return False

    def mixers(self) -> tuple[Mixer, ...]:
        """Describe what the layers remember."""
        short = self.windowed()
        sizes = self.num_attention_heads, self.kv_heads, self.head_size
        near = grouped(short, *sizes, window=self.sliding_window)
        far = grouped(self.num_hidden_layers - short, *sizes)
        return tuple(each for each in (far, near) if each.layers)


class Gated(Decoder):
    """A decoder whose layers have a gated MLP, as in Llama and most families since."""

    intermediate_size: Count

    @property
    def width(self) -> int:
        """Give the width of an MLP."""
        return self.intermediate_size

    def mlp(self) -> Tensors:
        """Count the MLP of one layer."""
        return gated(self.hidden_size, self.width)
