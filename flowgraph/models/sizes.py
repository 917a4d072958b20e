"""How large a model is, read from its config.json without torch: what the planner counts memory and work from.

Not here: which modules a family has (`families`), and the sizes of known models of the hub (`table`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from flowgraph.errors import ModelError
from flowgraph.models import hub, smollm2
from flowgraph.models.families import FAMILIES, Decoder, Gated, family_of, language_model
from flowgraph.models.folders import read_config, read_header, weight_files
from flowgraph.models.heads import declared
from flowgraph.models.layer_kinds import Attention, Mixer, grouped
from flowgraph.models.sources import ModelSource
from flowgraph.models.table import listed
from flowgraph.models.tiny import VOCABULARY, TinySize

if TYPE_CHECKING:
    from flowgraph.language.values import Head


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder: `parameters` counts tied weights once, adapters too; `vocabulary` is in tokens.

    `intermediate` is the width of an MLP without experts. All layers but `dense_layers` have `experts` of
    `expert_intermediate` each, of which a token passes `experts_per_token`, and shared ones of `shared_intermediate`
    together. `mixing` says what layers remember if not all attend plainly to everything. `adapters` counts the numbers
    in adapters, and `base` names what they stand on, or the model itself. `positions` are the most tokens of a row,
    None if that is not known.
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
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    dense_layers: int = 0
    expert_numbers: int = 0
    """The numbers in one expert; 0: three matrices [hidden, expert_intermediate]."""
    vectors: int | None = None
    """Of the active parameters those that are no factors of a product; None: two norms in each layer and a last one."""
    mixing: tuple[Mixer, ...] = ()
    positions: int | None = None

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

    @cached_property
    def expert_layers(self) -> int:
        """Count the layers that have experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @cached_property
    def expert_parameters(self) -> int:
        """Count the parameters in routed experts, of all layers; shared experts are none."""
        return self.expert_layers * self.experts * self._one_expert

    @property
    def active(self) -> int:
        """Count the parameters that one token passes, embeddings included: all but the experts it is not sent to."""
        return self.parameters - self.expert_layers * (self.experts - self.experts_per_token) * self._one_expert

    @cached_property
    def matmul_parameters(self) -> int:
        """Count the active parameters that are factors of a product for each token; the head is left out."""
        vectors = (2 * self.layers + 1) * self.hidden if self.vectors is None else self.vectors
        return self.active - self.tables * self.vocabulary * self.hidden - vectors - _HEADS[self.head](self.hidden)

    @cached_property
    def mixers(self) -> tuple[Mixer, ...]:
        """Say what the layers remember."""
        return self.mixing or (grouped(self.layers, self.heads, self.kv_heads, self.head_dim),)

    @cached_property
    def attention_layers(self) -> int:
        """Count the layers that keep something of every token of a context."""
        return sum(each.layers for each in self.mixers if isinstance(each, Attention) and each.window is None)

    def cache_numbers(self, context_tokens: int) -> int:
        """Count the numbers that decoding keeps of one sequence of that length: keys, values, latents and states."""
        return sum(each.cache_numbers(context_tokens) for each in self.mixers)

    def attention_products(self, tokens: int, pairs: int) -> int:
        """Count the multiplications between tokens, in all layers, when so many pass.

        `pairs` are those of a token and one before it, or itself, as if all layers attended to everything.
        """
        return sum(each.pass_products(tokens, pairs) for each in self.mixers)

    @property
    def _one_expert(self) -> int:
        return self.expert_numbers or 3 * self.hidden * self.expert_intermediate


# The numbers in a head that gives no logits, by the hidden width: only a classifier of tokens has a bias.
_HEADS: Mapping[Head, Callable[[int], int]] = {
    "tokens": lambda hidden: 0,
    "values": lambda hidden: hidden + 1,
    "score": lambda hidden: hidden,
}


def shape(source: ModelSource, head: Head = "tokens") -> ModelShape:
    """Read the sizes of a model as it is loaded under a head; for a hub model this fetches config.json at most.

    A model of the table needs no network. The families of `families.FAMILIES` are counted exactly from config.json; any
    other model from the headers of its safetensors files.

    Raises ModelError if config.json lacks a size, or if another model has no weights here to count.
    """
    config, where, folder = _config_of(source)
    rank = source.lora.rank if source.lora is not None else 0
    entry = listed(source.base.name) if source.kind == "hub" else None
    positions = most_positions(config) if entry is None else entry.positions_of(source.base.name)
    return replace(shape_of(config, where, folder, head, rank=rank), base=source.base.name, positions=positions)


def most_positions(config: Mapping[str, Any]) -> int | None:
    """Return the most tokens of a row by a config.json, with a scaling of rotary embeddings; None if it does not say.

    YaRN counts from the positions before it, linear and dynamic scaling from those that are written; others, such as
    that of Llama 3.1, are part of what is written.

    >>> yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    >>> most_positions({"max_position_embeddings": 40960, "rope_scaling": yarn})
    131072
    """
    inner = language_model(config)
    written = inner.get("max_position_embeddings")
    if not isinstance(written, int):
        return None
    scaling = inner.get("rope_scaling")
    if not isinstance(scaling, Mapping):
        return written
    kind = scaling.get("rope_type") or scaling.get("type")
    if kind not in ("yarn", "linear", "dynamic"):
        return written
    before, factor = scaling.get("original_max_position_embeddings", written), scaling.get("factor", 1)
    known = isinstance(factor, int | float) and isinstance(before, int)
    return int(factor * (before if kind == "yarn" else written)) if known else written


def _config_of(source: ModelSource) -> tuple[Mapping[str, Any], str, Path | None]:
    """Give the content of a model's config.json, where it is from, and the folder of its weights if there is one."""
    if source.kind == "tiny":
        return _tiny_config(source.size or TinySize()), source.name, None
    if source.kind == "package":
        return smollm2.CONFIG, source.name, None
    entry = listed(source.base.name) if source.kind == "hub" else None
    if entry is not None:
        return entry.config, source.base.name, None
    folder = source.path if source.path is not None else hub.config_folder(source.base.name)
    return read_config(folder), str(folder / "config.json"), folder


def shape_of(
    config: Mapping[str, Any], where: str, folder: Path | None = None, head: Head = "tokens", *, rank: int = 0
) -> ModelShape:
    """Read the sizes from the content of a config.json, of the model as it is loaded under a head.

    `rank` is that of adapters on all linear layers; 0: there are none.

    >>> tiny = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    ...         "intermediate_size": 16, "vocab_size": 20}
    >>> shape_of(tiny, "config.json").parameters
    984

    Raises ModelError as `shape` does.
    """
    inner = language_model(config)
    family = family_of(inner)
    try:
        read = (family or Gated).model_validate(inner)
    except ValidationError as error:
        first = error.errors()[0]
        raise ModelError.broken(where, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    plain = _sizes(read, head)
    if family is None:
        body = _counted(str(inner.get("model_type")), where, folder) - _head(read, declared(config))
        return _adapted(replace(plain, parameters=body + _head(read, head)), rank * _plain_sides(plain))
    return _adapted(_filled(plain, read), rank * read.body().sides)


def _sizes(read: Decoder, head: Head) -> ModelShape:
    return ModelShape(
        parameters=0,
        hidden=read.hidden_size,
        layers=read.num_hidden_layers,
        heads=read.num_attention_heads,
        kv_heads=read.kv_heads,
        head_dim=read.head_size,
        intermediate=read.width,
        vocabulary=read.vocab_size,
        tied=read.tie_word_embeddings,
        head=head,
    )


def _filled(plain: ModelShape, read: Decoder) -> ModelShape:
    """Add what is counted from config.json alone."""
    body, experts, bias = read.body(), read.experts(), read.head_vectors() * (plain.head == "tokens")
    idle = (plain.layers - experts.dense_layers) * (experts.count - experts.per_token) * experts.one.vectors
    mixing = read.mixers()
    return replace(
        plain,
        parameters=read.vocab_size * read.hidden_size + body.numbers + bias + _head(read, plain.head),
        experts=experts.count,
        experts_per_token=experts.per_token,
        expert_intermediate=experts.width,
        shared_intermediate=experts.shared,
        dense_layers=experts.dense_layers,
        expert_numbers=experts.one.numbers,
        vectors=body.vectors - idle + bias,
        mixing=() if mixing == plain.mixers else mixing,
    )


def _adapted(plain: ModelShape, adapters: int) -> ModelShape:
    return replace(plain, parameters=plain.parameters + adapters, adapters=adapters)


def _plain_sides(read: ModelShape) -> int:
    """Add up inputs and outputs of seven linear layers: four of attention, and three of a gated MLP.

    Source: Hu et al. 2021, arXiv 2106.09685, section 4.1: an adapter has rank · (in + out) numbers.
    """
    queries, keys = read.heads * read.head_dim, read.kv_heads * read.head_dim
    attention = 2 * (read.hidden + queries) + 2 * (read.hidden + keys)
    return read.layers * (attention + 3 * (read.hidden + read.intermediate))


def _head(read: Decoder, head: Head) -> int:
    untied = head == "tokens" and not read.tie_word_embeddings
    return read.vocab_size * read.hidden_size * untied + _HEADS[head](read.hidden_size)


def _counted(model_type: str, where: str, folder: Path | None) -> int:
    if folder is None:
        raise ModelError.broken(where, f"the parameters of a {model_type} model are not known from its configuration")
    try:
        return sum(read_header(file).numbers for file in weight_files(folder))
    except ModelError as error:
        why = f"the parameters of a {model_type} model are counted from its weights, which are not here"
        few = f"{', '.join([*FAMILIES][:4])} and {len(FAMILIES) - 4} more"
        raise ModelError(why, where=where, notes=[str(error)], hint=f"counted from config.json: {few}") from None


def _tiny_config(size: TinySize) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "vocab_size": len(VOCABULARY),
        "hidden_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "intermediate_size": size.intermediate,
        "max_position_embeddings": size.positions,
    }
