"""Models: names, sizes, loading and saving. Importing this loads neither torch nor transformers."""

from __future__ import annotations

from flowgraph.models.layer_kinds import Attention, Recurrent
from flowgraph.models.loading import LoadedModel, load
from flowgraph.models.saving import save
from flowgraph.models.sizes import BuiltInModel, ModelShape, built_in_models, shape
from flowgraph.models.sources import ModelSource, resolve
from flowgraph.models.tiny import TinySize

__all__ = [
    "Attention",
    "BuiltInModel",
    "LoadedModel",
    "ModelShape",
    "ModelSource",
    "Recurrent",
    "TinySize",
    "built_in_models",
    "load",
    "resolve",
    "save",
    "shape",
]
