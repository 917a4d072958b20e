"""Weights as they travel between processes: arrays by name, which an object store hands on without a copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from flowgraph.models.lora import adapted, merged

if TYPE_CHECKING:
    from torch import Tensor

Wire = dict[str, tuple[str, tuple[int, ...], Any]]
"""Of each tensor: its dtype as torch names it, its shape, and its bytes (`numpy` uint8)."""


def outgoing(handle: Any) -> Iterator[tuple[str, Tensor]]:
    """Give a model's full weights as another engine takes them, one after another: adapters merged into their base."""
    if adapted(handle.model):
        yield from merged(handle.model, handle.whole()).items()
    else:
        yield from handle.stream()


def to_wire(weights: Mapping[str, Tensor]) -> Wire:
    """Lay weights out as bytes; arrays share memory with tensors on the CPU that are contiguous."""
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
    """Read weights back to the last bit; what is read may be read-only memory, so it is copied."""
    return {name: _read(*told) for name, told in wire.items()}


def _read(dtype: str, shape: tuple[int, ...], data: Any) -> Tensor:
    import torch

    tensor = torch.empty(shape, dtype=getattr(torch, dtype))
    tensor.reshape(-1).view(torch.uint8).numpy()[:] = data
    return tensor
