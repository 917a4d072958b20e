"""Weights as they travel between processes: arrays by name, which an object store passes on without a copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from flowgraph.models.lora import adapted, merged

if TYPE_CHECKING:
    from torch import Tensor

Wire = dict[str, tuple[str, tuple[int, ...], Any]]
"""For each tensor by name: its torch dtype, its shape, and its bytes (`numpy` uint8)."""


def outgoing(handle: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield a model's full weights one by one, as another engine takes them: adapters merged into their base."""
    if adapted(handle.model):
        yield from merged(handle.model, handle.whole()).items()
    else:
        yield from handle.stream()


def to_wire(weights: Mapping[str, Tensor]) -> Wire:
    """Lay weights out as bytes; arrays share memory with contiguous tensors on the CPU."""
    import torch

    flat = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    return {
        name: (
            str(tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
            tensor.reshape(-1).view(torch.uint8).numpy(),
        )
        for name, tensor in flat.items()
    }


def from_wire(wire: Wire) -> dict[str, Tensor]:
    """Read weights back to the last bit, as copies: the wire may be read-only memory."""
    import torch

    weights = dict[str, torch.Tensor]()
    for name, (dtype, shape, data) in wire.items():
        weights[name] = torch.empty(shape, dtype=getattr(torch, dtype))
        weights[name].reshape(-1).view(torch.uint8).numpy()[:] = data
    return weights
