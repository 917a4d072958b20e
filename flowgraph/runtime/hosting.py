"""Load models and host them: one copy of the weights for each home, each behind the handle of its engine."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.executors.base import Alone, Handle, Ranks
from flowgraph.executors.layouts import LAYOUTS
from flowgraph.lowering.program import Home

if TYPE_CHECKING:
    from flowgraph.models.sources import ModelSource

Told = dict[str, dict[str, str]]
"""What was loaded, by parameter: its name, the digest of its weights, notes."""


@dataclass(frozen=True)
class ModelSetup:
    """Where weights come from, by parameter, and how their passes are cut; `seed` makes those of `tiny`."""

    sources: Mapping[str, ModelSource]
    seed: int
    cache: Path
    sample_rows: int = 256
    forward_tokens: int = 16384


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

    `ranks` says who works together on a home; without it each home is hosted whole, by the reference engine.
    """
    from flowgraph.models.loading import Loaded, load

    handles, told, loaded = dict[Home, Handle](), Told(), dict[str, Loaded]()
    waiting = [setup.sources[home.param].name for home in homes]
    for home in homes:
        source = setup.sources[home.param]
        if source.name not in loaded:
            loaded[source.name] = load(source, seed=setup.seed, cache=setup.cache, say=say)
        have = loaded[source.name]
        waiting.remove(source.name)
        module: Any = copy.deepcopy(have.model) if source.name in waiting else have.model
        kind = named(LAYOUTS[home.engine if ranks is not None else "local"].handle)
        handles[home] = kind(
            module.to(device),
            have.tokenizer,
            home in trained,
            setup.sample_rows,
            setup.forward_tokens,
            ranks=Alone() if ranks is None else ranks[home],
        )
        told[home.param] = {"name": have.name, "digest": have.digest, "notes": "; ".join(have.notes)}
    return handles, told


def named(name: str) -> Any:
    """Import what `module:name` names, now."""
    module, _, inner = name.partition(":")
    return getattr(importlib.import_module(module), inner)
