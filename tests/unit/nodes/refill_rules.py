"""Rules for `test_refill`, in a file that imports nothing: each is loaded by a process of its own."""

from __future__ import annotations


def by_sample(sample: int) -> float:
    """Return every group signal: a score for each of its places."""
    return float(sample)


def flat(response: str) -> float:
    """Return no group signal."""
    return 0.25


def some(prompt_id: int, sample: int) -> float:
    """Return signal to the prompts of even number."""
    return float(sample) if prompt_id % 2 == 0 else 1.0
