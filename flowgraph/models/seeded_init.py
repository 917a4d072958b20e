"""Weights made from a seed: the same whatever was drawn before, and the caller's random state left as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Generator


@contextlib.contextmanager
def seeded(seed: int) -> Generator[None]:
    """Let torch draw from `seed` on the CPU inside; put its random state back after."""
    import torch

    before = torch.get_rng_state()
    try:
        torch.default_generator.manual_seed(seed)
        yield
    finally:
        torch.set_rng_state(before)
