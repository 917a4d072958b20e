"""Load models and host them: one copy of the weights for each home, each accessed through the handle of its engine.

Weights travel between processes as arrays by name, which an object store passes without copying.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from flowgraph.engines.table import ENGINES
from flowgraph.language.graph import Graph
from flowgraph.language.handle import Handle, Ranks, SingleRank
from flowgraph.language.values import Head, Model
from flowgraph.lowering.program import Home
from flowgraph.models.loading import load
from flowgraph.models.lora import has_adapters, merged_weights

if TYPE_CHECKING:
    from torch import Tensor

    from flowgraph.models.loading import LoadedModel
    from flowgraph.models.sources import ModelSource

REFERENCE = "local"
"""The engine that hosts each home in one process without ranks, whichever engine its plan names."""

LoadedModels = dict[str, dict[str, str]]
"""By parameter what was loaded: its name, the digest of its weights, notes."""


Wire = dict[str, tuple[str, tuple[int, ...], Any]]
"""For each tensor by name: its torch dtype, its shape, and its bytes (`numpy` uint8)."""


@dataclass(frozen=True)
class ModelSetup:
    """The sources of models by parameter, and the settings for loading and running them.

    `seed` initializes `tiny` models and adapters; `cache` is the folder of converted models. `sample_rows` is the most
    rows that are sampled at once, and `forward_tokens` the most tokens in a forward pass without gradients. `heads`
    (see `heads_of`) has the output of a model's last layer where that is not logits. `attached` are servers that
    already run, one for each replica, as the engine's `attach` takes them. Parameters in `frozen` get no new weights.
    `limits_s` bounds how long the servers of a parameter may sample in one step, in seconds.
    """

    sources: Mapping[str, ModelSource]
    seed: int
    cache: Path
    sample_rows: int = 256
    forward_tokens: int = 16384
    heads: Mapping[str, Head] = field(default_factory=dict[str, "Head"])
    attached: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    frozen: frozenset[str] = frozenset()
    limits_s: Mapping[str, float] = field(default_factory=dict[str, float])

    def head(self, param: str) -> Head:
        """Return the output type of the last layer of the model of `param`: by default "tokens", the logits."""
        return self.heads.get(param, "tokens")


def heads_of(graph: Graph) -> dict[str, Head]:
    """Return the output type of each model's last layer, such as "tokens" or "score", by parameter name.

    Parameters that are not models are left out.
    """
    return {param.name: param.type.head for param in graph.params if issubclass(param.type, Model)}


def host(
    homes: Sequence[Home],
    trained: Sequence[Home],
    setup: ModelSetup,
    *,
    device: str = "cpu",
    ranks: Mapping[Home, Ranks] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[dict[Home, Handle], LoadedModels]:
    """Load each model once; return a handle for each home, and the name, digest and notes of each loaded model.

    A home is the place of one copy of a model's weights. Each home gets a separate copy on the torch `device`, with one
    exception: if `shares_base_weights`, a frozen model has no copy, and its handle reads a trained model with the
    adapters off. `trained` are the homes whose weights an update changes. `ranks` are the ranks that share each home;
    if it is None, the engine `local` hosts each home whole. `say` receives messages about loading. Names, digests and
    notes are by parameter. Raises ModelError as `models.loading.load` does.
    """
    moving = {home.param for home in trained}
    lenders = {
        home: lender
        for home in homes
        for lender in trained
        if home.param not in moving and lender in homes and shares_base_weights(lender, home, setup)
    }
    copies = [home for home in homes if home not in lenders]
    # One source under two heads is two models.
    keys: list[tuple[str, Head]] = [(setup.sources[home.param].name, setup.head(home.param)) for home in copies]
    handles, facts, models = dict[Home, Handle](), LoadedModels(), dict[tuple[str, Head], "LoadedModel"]()
    for index, (home, key) in enumerate(zip(copies, keys, strict=True)):
        if key not in models:
            models[key] = load(setup.sources[home.param], seed=setup.seed, cache=setup.cache, head=key[1], say=say)
        loaded = models[key]
        module: Any = copy.deepcopy(loaded.model) if key in keys[index + 1 :] else loaded.model
        engine = REFERENCE if ranks is None else home.engine
        settings: dict[str, Any] = {"ranks": SingleRank() if ranks is None else ranks[home]}
        if engine != REFERENCE:
            settings |= {"running": home.running, "replicas": home.layout.replicas, "sequence": home.layout.sequence}
        handles[home] = resolve_name(ENGINES[engine].handle)(
            module.to(device), loaded.tokenizer, home in trained, setup.sample_rows, setup.forward_tokens, **settings
        )
        facts[home.param] = {"name": loaded.name, "digest": loaded.digest, "notes": "; ".join(loaded.notes)}
    for home, lender in lenders.items():
        adapted: Any = handles[lender]
        handles[home] = adapted.without_adapters()
        note = f"no copy of its own: `{lender.param}` with its adapters off"
        facts[home.param] = facts[lender.param] | {"name": setup.sources[home.param].name, "notes": note}
    return handles, facts


def shares_base_weights(lender: Home, home: Home, setup: ModelSetup) -> bool:
    """Return whether `home` can use the base weights of `lender` instead of a copy of its own.

    This is so if `lender` has adapters over the same model, with the same pool, engine, layout and settings. Both must
    be language models: an update also trains a value head, which stays on when the adapters are off. A model that
    sleeps cannot lend its weights, because `home` would lose them with it.
    """
    source, base = setup.sources[lender.param], setup.sources[home.param]
    same_place = lender.param != home.param and replace(home, param=lender.param) == lender
    both_plain = {setup.head(lender.param), setup.head(home.param)} == {"tokens"}
    return same_place and not lender.running.sleeps and both_plain and source.lora is not None and source.base == base


def stream_full_weights(handle: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the full weights of a handle's model as (name, tensor), for another engine.

    Adapters are merged into their base weights. Of a sharded model, every rank must exhaust the iterator, because
    weights are gathered one at a time.
    """
    if has_adapters(handle.model):
        yield from merged_weights(handle.model, handle.whole()).items()
    else:
        yield from handle.stream()


def to_wire(weights: Mapping[str, Tensor]) -> Wire:
    """Return weights in wire format: by name, the dtype, the shape, and the bytes of each tensor.

    Contiguous CPU tensors share memory with the result; others are copied.
    """
    import torch

    wire = Wire()
    for name, tensor in weights.items():
        flat = tensor.detach().cpu().contiguous()
        data = flat.reshape(-1).view(torch.uint8).numpy()
        wire[name] = str(flat.dtype).removeprefix("torch."), tuple(flat.shape), data
    return wire


def from_wire(wire: Wire) -> dict[str, Tensor]:
    """Return the CPU tensors that `to_wire` encoded, with the same bits, by name; they are copies."""
    import torch

    weights = dict[str, torch.Tensor]()
    for name, (dtype, shape, data) in wire.items():
        weights[name] = torch.empty(shape, dtype=getattr(torch, dtype))
        weights[name].reshape(-1).view(torch.uint8).numpy()[:] = data
    return weights
