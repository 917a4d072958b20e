"""A hash of a model's weights: equal if and only if every tensor is."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def digest(model: nn.Module) -> str:
    """Hash the parameters and saved buffers by name, type, shape and bytes; tied weights count once.

    Returns the sha256 as 64 hexadecimal digits.
    """
    import torch

    names = set(model.state_dict())
    tensors = dict(model.named_parameters()) | {name: t for name, t in model.named_buffers() if name in names}
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        total.update(plain.view(torch.uint8).numpy().data)
    return total.hexdigest()
