"""Weights from a seed: the same in every process, with the caller's random state unchanged."""

from __future__ import annotations

import contextlib
from collections.abc import Generator


@contextlib.contextmanager
def seeded(seed: int) -> Generator[None]:
    """Seed torch's random numbers on the CPU inside, and restore their state after."""
    import torch

    before = torch.get_rng_state()
    try:
        torch.default_generator.manual_seed(seed)
        yield
    finally:
        torch.set_rng_state(before)
