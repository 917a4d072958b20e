"""The layouts that each executor can run, as data without torch: what a search may choose from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Offer:
    """What one engine can run: its verbs, device kinds, and the largest degree of each way to split a model."""

    verbs: frozenset[str]
    devices: frozenset[str]
    data: int = 1
    tensor: int = 1
    pipeline: int = 1


LAYOUTS: dict[str, Offer] = {
    "local": Offer(frozenset({"token_stats", "sample", "step", "weights"}), frozenset({"cpu", "gpu"})),
}
