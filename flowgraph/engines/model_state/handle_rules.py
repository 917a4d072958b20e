"""What every engine on torch decides alike: what a handle offers and heeds, what it exchanges, what its passes read."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flowgraph.cluster.plan import RoleSettings
from flowgraph.engines.table import ENGINES
from flowgraph.errors import LawError
from flowgraph.language.handle import Verb
from flowgraph.models.heads import head_of
from flowgraph.models.lora import adapters_off, carried_names

if TYPE_CHECKING:
    from torch import Tensor, device


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
    if not under:
        yield
        return
    with torch.no_grad(), adapters_off(model):
        yield


def heed(running: RoleSettings, engine: str) -> RoleSettings:
    """Give settings back if an engine heeds all that are not as by default; raise LawError for one that it does not.

    What it heeds is in the table of engines.
    """
    supported, plain = ENGINES[engine].supported, RoleSettings()
    heeds = supported.settings if supported is not None else {}
    for name, told in running:
        if heeds is None or told == getattr(plain, name):
            continue
        takes = heeds.get(name)
        if takes is None or (takes and told not in takes):
            known = f"it takes {', '.join(map(_said, takes))}" if takes else f"it heeds {', '.join(heeds)}"
            raise LawError(f"the engine `{engine}` does not run with {name}={_said(told)}", hint=known)
    return running


def _said(told: object) -> str:
    """Write a setting as a plan prints it."""
    if isinstance(told, tuple):
        return "+".join(map(str, told)) or "none"
    return f"{told:g}" if isinstance(told, float) else str(told)


def named_once(model: Any, names: Iterable[str]) -> list[tuple[list[str], Tensor]]:
    """Give those parameters and buffers of a model that have one of these names, each once with all such names of its.

    They come in the model's own order, which is the same in each process and however it is cut.
    """
    wanted, found = {*names}, dict[int, tuple[list[str], "Tensor"]]()
    every = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for name, tensor in every:
        if name in wanted:
            found.setdefault(id(tensor), ([], tensor))[0].append(name)
    return list(found.values())


def computes_on(model: Any, place: device) -> None:
    """Note on which device a model computes whose weights may lie elsewhere."""
    model.flowgraph_device = place


def device_of(model: Any) -> device:
    """Say on which device a model computes: there its inputs go, and its outputs come from."""
    told: device = getattr(model, "flowgraph_device", None) or next(model.parameters()).device
    return told


@dataclass(eq=False)
class SleepState:
    """Whether the memory of a model is away from its device; shared by all handles on that memory."""

    asleep: bool = False

    def refuse(self) -> None:
        """Raise LawError while the model is asleep."""
        if self.asleep:
            raise LawError("this model is asleep: its weights have left the device", hint="wake it first")
