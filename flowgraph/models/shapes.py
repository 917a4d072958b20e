"""How large a model is, read from its config.json without torch: what the planner counts memory from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flowgraph.errors import ModelError
from flowgraph.models import hub, smollm2
from flowgraph.models.folders import read_config, read_header, weight_files
from flowgraph.models.heads import declared
from flowgraph.models.sources import ModelSource
from flowgraph.models.tiny import VOCABULARY, TinySize

if TYPE_CHECKING:
    from flowgraph.values import Head

Count = Annotated[int, Field(gt=0)]


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder: `parameters` counts tied weights once, adapters too; `vocabulary` is in tokens.

    `adapters` counts the numbers in adapters, and `base` names what they stand on, or the model itself.
    """

    parameters: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    adapters: int = 0
    head: Head = "tokens"
    base: str = ""

    @property
    def trained(self) -> int:
        """Count the numbers that an update changes: all, or adapters and the head that gives values."""
        return self.adapters + _HEADS[self.head](self.hidden) if self.adapters else self.parameters

    @property
    def outputs(self) -> int:
        """Count the numbers that the last layer gives at each token."""
        return self.vocabulary if self.head == "tokens" else 1

    @property
    def tables(self) -> int:
        """Count the matrices [vocabulary, hidden]: the embedding, and a language model's output if that is another."""
        return 1 if self.tied or self.head != "tokens" else 2


@dataclass(frozen=True)
class _Family:
    """What the decoders of one `model_type` add to the plain Llama, and what their config.json may leave out."""

    bias: Literal["never", "qkv", "config"] = "never"
    head_norms: int = 0
    head_dim: int | None = None
    mlp_bias: bool = False


# The numbers in a head that gives no logits, by the hidden width: only a classifier of tokens has a bias.
_HEADS: Mapping[Head, Callable[[int], int]] = {
    "tokens": lambda hidden: 0,
    "values": lambda hidden: hidden + 1,
    "score": lambda hidden: hidden,
}

# Source: the modules of transformers 5.12 of the same names; a test compares with the real modules.
_FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(bias="config", mlp_bias=True),
    "mistral": _Family(),
    "qwen2": _Family(bias="qkv"),
    "qwen3": _Family(bias="config", head_norms=2, head_dim=128),
}


class _Config(BaseModel):
    """The fields of config.json that sizes are read from; the defaults are those of transformers."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    model_type: str
    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    intermediate_size: Count
    vocab_size: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False


def shape(source: ModelSource, head: Head = "tokens") -> ModelShape:
    """Read the sizes of a model as it is loaded under a head; for a hub model this fetches config.json at most.

    Llama, Mistral, Qwen2 and Qwen3 are counted exactly from config.json; any other model from the headers of
    its safetensors files.

    Raises ModelError if config.json lacks a size, or if another model has no weights here to count.
    """
    plain = _plain_shape(source, head)
    added = _adapters(plain, source.lora.rank) if source.lora is not None else 0
    return replace(plain, parameters=plain.parameters + added, adapters=added, base=source.base.name)


def _plain_shape(source: ModelSource, head: Head) -> ModelShape:
    if source.kind == "tiny":
        return shape_of(_tiny_config(source.size or TinySize()), source.name, head=head)
    if source.kind == "package":
        return shape_of(smollm2.CONFIG, source.name, head=head)
    folder = source.path if source.path is not None else hub.config_folder(source.base.name)
    return shape_of(read_config(folder), str(folder / "config.json"), folder, head)


def shape_of(config: Mapping[str, Any], where: str, folder: Path | None = None, head: Head = "tokens") -> ModelShape:
    """Read the sizes from the content of a config.json, of the model as it is loaded under a head.

    >>> tiny = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    ...         "intermediate_size": 16, "vocab_size": 20}
    >>> shape_of(tiny, "config.json").parameters
    984

    Raises ModelError as `shape` does.
    """
    try:
        read = _Config.model_validate(config)
    except ValidationError as error:
        first = error.errors()[0]
        raise ModelError.broken(where, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    family = _FAMILIES.get(read.model_type)
    return ModelShape(
        parameters=_body(read, family, where, folder, declared(config)) + _head(read, head),
        hidden=read.hidden_size,
        layers=read.num_hidden_layers,
        heads=read.num_attention_heads,
        kv_heads=read.num_key_value_heads or read.num_attention_heads,
        head_dim=_head_dim(read, family),
        intermediate=read.intermediate_size,
        vocabulary=read.vocab_size,
        tied=read.tie_word_embeddings,
        head=head,
    )


def _adapters(read: ModelShape, rank: int) -> int:
    """Count the numbers in adapters of seven linear layers: four of attention, and three of a gated MLP.

    Source: Hu et al. 2021, arXiv 2106.09685, section 4.1: rank · (in + out) each.
    """
    queries, keys = read.heads * read.head_dim, read.kv_heads * read.head_dim
    attention = 2 * (read.hidden + queries) + 2 * (read.hidden + keys)
    return rank * read.layers * (attention + 3 * (read.hidden + read.intermediate))


def _head_dim(read: _Config, family: _Family | None) -> int:
    default = family.head_dim if family else None
    return read.head_dim or default or read.hidden_size // read.num_attention_heads


def _head(read: _Config, head: Head) -> int:
    untied = head == "tokens" and not read.tie_word_embeddings
    return read.vocab_size * read.hidden_size * untied + _HEADS[head](read.hidden_size)


def _body(read: _Config, family: _Family | None, where: str, folder: Path | None, has: Head) -> int:
    """Count all but the head; a model that is counted from its weights `has` one in them."""
    if family is None:
        return _counted(read.model_type, where, folder) - _head(read, has)
    layer = _attention(read, family) + _mlp(read, family) + 2 * read.hidden_size
    return read.vocab_size * read.hidden_size + read.num_hidden_layers * layer + read.hidden_size


def _attention(read: _Config, family: _Family) -> int:
    head_dim, hidden = _head_dim(read, family), read.hidden_size
    queries = read.num_attention_heads * head_dim
    keys = (read.num_key_value_heads or read.num_attention_heads) * head_dim
    everywhere = family.bias == "config" and read.attention_bias
    biases = (queries + 2 * keys) * (everywhere or family.bias == "qkv") + hidden * everywhere
    return 2 * hidden * queries + 2 * hidden * keys + biases + family.head_norms * head_dim


def _mlp(read: _Config, family: _Family) -> int:
    bias = read.mlp_bias and family.mlp_bias
    return 3 * read.hidden_size * read.intermediate_size + bias * (2 * read.intermediate_size + read.hidden_size)


def _counted(model_type: str, where: str, folder: Path | None) -> int:
    if folder is None:
        raise ModelError.broken(where, f"the parameters of a {model_type} model are not known from its configuration")
    try:
        return sum(read_header(file).numbers for file in weight_files(folder))
    except ModelError as error:
        why = f"the parameters of a {model_type} model are counted from its weights, which are not here"
        raise ModelError(why, where=where, notes=[str(error)], hint=f"known: {', '.join(_FAMILIES)}") from None


def _tiny_config(size: TinySize) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "vocab_size": len(VOCABULARY),
        "hidden_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "intermediate_size": size.intermediate,
    }
