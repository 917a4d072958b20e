"""Where models come from: naming, sizing, loading and saving them. Importing this loads no torch or transformers."""

from __future__ import annotations

from flowgraph.models.known import KnownModel, known
from flowgraph.models.loading import Loaded, load
from flowgraph.models.mixers import Attention, Recurrent
from flowgraph.models.saving import save
from flowgraph.models.shapes import ModelShape, shape
from flowgraph.models.sources import ModelSource, resolve
from flowgraph.models.tiny import TinySize

__all__ = [
    "Attention",
    "KnownModel",
    "Loaded",
    "ModelShape",
    "ModelSource",
    "Recurrent",
    "TinySize",
    "known",
    "load",
    "resolve",
    "save",
    "shape",
]
