"""Load models and host them: one copy of the weights for each home, each behind the handle of its engine."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.engines.table import ENGINES
from flowgraph.language.graph import Graph
from flowgraph.language.handle import Handle, Ranks, SingleRank
from flowgraph.language.values import Head, Model
from flowgraph.lowering.program import Home
from flowgraph.models.loading import load

if TYPE_CHECKING:
    from flowgraph.models.loading import LoadedModel
    from flowgraph.models.sources import ModelSource

REFERENCE = "local"
"""The engine that hosts every home where no ranks are told."""

Told = dict[str, dict[str, str]]
"""What was loaded, by parameter: its name, the digest of its weights, notes."""


@dataclass(frozen=True)
class ModelSetup:
    """Where weights come from, by parameter, and how their passes are cut; `seed` makes those of `tiny`, and adapters.

    `heads` says what a parameter's last layer gives (`heads_of`), where that is no logits; `attached` are servers that
    run already, for the replicas of an engine's home, each as its engine's `attach` takes it. To parameters of `frozen`
    no new weights come. `limits_s` says how long the samples of a step may take on an engine's servers.
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
        """Say what the last layer of a parameter's model gives."""
        return self.heads.get(param, "tokens")


def heads_of(graph: Graph) -> dict[str, Head]:
    """Say what the last layer of each model parameter of a flow gives, by its type."""
    return {param.name: param.type.head for param in graph.params if issubclass(param.type, Model)}


def host(
    homes: Sequence[Home],
    trained: Sequence[Home],
    setup: ModelSetup,
    *,
    device: str = "cpu",
    ranks: Mapping[Home, Ranks] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[dict[Home, Handle], Told]:
    """Load each model once and give every home a handle on its own copy; say what was loaded.

    A frozen model that adapters of a trained one stand on, in the very place where that is trained, has no copy: its
    handle reads the other's with the adapters off. `ranks` says who works together on a home; without it each home is
    hosted whole, by the reference engine.
    """
    moving, here = {home.param for home in trained}, [home for home in trained if home in homes]
    frozen = [home for home in homes if home.param not in moving]
    lent = {home: lender for home in frozen for lender in here if lends(lender, home, setup)}
    handles, told, loaded = dict[Home, Handle](), Told(), dict[tuple[str, Head], "LoadedModel"]()
    waiting = [_key(setup, home) for home in homes if home not in lent]
    for home in (home for home in homes if home not in lent):
        source, key = setup.sources[home.param], _key(setup, home)
        if key not in loaded:
            loaded[key] = load(source, seed=setup.seed, cache=setup.cache, head=key[1], say=say)
        have = loaded[key]
        waiting.remove(key)
        module: Any = copy.deepcopy(have.model) if key in waiting else have.model
        kind = named(ENGINES[home.engine if ranks is not None else REFERENCE].handle)
        handles[home] = kind(
            module.to(device),
            have.tokenizer,
            home in trained,
            setup.sample_rows,
            setup.forward_tokens,
            **_settings(home, SingleRank() if ranks is None else ranks[home], reference=ranks is None),
        )
        told[home.param] = {"name": have.name, "digest": have.digest, "notes": "; ".join(have.notes)}
    for home, lender in lent.items():
        engine: Any = handles[lender]
        handles[home] = engine.without_adapters()
        note = f"no copy of its own: `{lender.param}` with its adapters off"
        told[home.param] = told[lender.param] | {"name": setup.sources[home.param].name, "notes": note}
    return handles, told


def _settings(home: Home, ranks: Ranks, *, reference: bool) -> dict[str, Any]:
    """Give what a handle is told beside its model: its ranks, and of the plan what its engine goes by."""
    if reference or home.engine == REFERENCE:
        return {"ranks": ranks}
    shape = {"replicas": home.layout.replicas, "sequence": home.layout.sequence}
    return {"ranks": ranks, "running": home.running, **shape}


def lends(lender: Home, home: Home, setup: ModelSetup) -> bool:
    """Say whether one home holds what another wants, under its adapters: one pool, engine and layout, and one source.

    Only language models lend: an update trains a head of numbers too, and it stays on when the adapters are off. What
    sleeps does not lend: the other would be gone with it.
    """
    mine, others = setup.sources[lender.param], setup.sources[home.param]
    same_place = lender.param != home.param and replace(home, param=lender.param) == lender
    both_plain = {setup.head(lender.param), setup.head(home.param)} == {"tokens"}
    return same_place and not lender.running.sleeps and both_plain and mine.lora is not None and mine.base == others


def _key(setup: ModelSetup, home: Home) -> tuple[str, Head]:
    """Name what is loaded for a home: one source under two heads is two models."""
    return setup.sources[home.param].name, setup.head(home.param)


def named(name: str) -> Any:
    """Import what `module:name` names, now."""
    module, _, inner = name.partition(":")
    return getattr(importlib.import_module(module), inner)
