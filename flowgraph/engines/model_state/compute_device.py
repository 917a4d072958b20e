"""The device on which a model computes, which may differ from where its weights lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def computes_on(model: Any, device: torch.device) -> None:
    """Record on which device a model computes."""
    model.flowgraph_device = device


def device_of(model: Any) -> torch.device:
    """Return the device on which a model computes: its inputs go there, and its outputs come from there."""
    device: torch.device = getattr(model, "flowgraph_device", None) or next(model.parameters()).device
    return device
