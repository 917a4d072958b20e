"""A rule that gives the samples of a prompt different scores, whatever a model with random weights says."""

from __future__ import annotations


def even(sample: int) -> float:
    """Score every other sample 1, the rest 0."""
    return float(sample % 2 == 0)
