"""What every engine on torch decides alike: what a handle offers, which weights it exchanges, what its passes read."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

from flowgraph.errors import LawError
from flowgraph.executors.base import Verb
from flowgraph.models.heads import head_of
from flowgraph.models.lora import adapters_off, carried_names


def verbs_of(model: Any, trainable: bool, under: bool, *, samples: bool) -> frozenset[Verb]:
    """Give the verbs of a handle; `under` reads what adapters stand on, `samples` is what its engine can do."""
    offered: dict[Verb, bool] = {
        "token_stats": True,
        "sample": samples and head_of(model) == "tokens",
        "weights": not under,
        "step": trainable,
    }
    return frozenset(verb for verb, is_offered in offered.items() if is_offered)


def exchanged(model: Any, under: bool) -> frozenset[str]:
    """Name the weights that a handle gives and takes; raise LawError where they are lent by another handle."""
    if under:
        hint = "a model whose weights change needs adapters of its own: give it the same text with +lora="
        raise LawError("these weights are those under another model's adapters: they are read only", hint=hint)
    return carried_names(model)


@contextlib.contextmanager
def reading(model: Any, under: bool) -> Generator[None]:
    """Let passes inside read the model, or what its adapters stand on, without gradients."""
    import torch

    if not under:
        yield
        return
    with torch.no_grad(), adapters_off(model):
        yield
