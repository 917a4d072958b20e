"""How many bytes travel on the arrows of a plan's picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flowgraph.cluster.cluster import show_bytes

Parts = Mapping[str, int | None]


@dataclass(frozen=True)
class ArrowSizes:
    """Bytes of values by (value, node that reads it), part by part, and bytes of weights by parameter.

    A part whose bytes are not known has None; what is not there is not known at all. What a flow returns is read by
    `return`.
    """

    values: Mapping[tuple[str, str], Parts] = field(default_factory=dict[tuple[str, str], Parts])
    weights: Mapping[str, int] = field(default_factory=dict[str, int])

    def brought(self, value: str, readers: Iterable[str]) -> str:
        """Say how many bytes of a value go to a place where these nodes read it: each part once.

        >>> sizes = ArrowSizes({("r", "a"): {"tokens": 2048, "text": None}, ("r", "b"): {"tokens": 2048, "mask": 1024}})
        >>> sizes.brought("r", "b"), sizes.brought("r", "ab"), sizes.brought("r", "bc"), sizes.brought("r", "c")
        (' 3.0 KiB', ' ≥ 3.0 KiB', ' ≥ 3.0 KiB', '')
        """
        found = [self.values.get((value, reader), {"": None}) for reader in readers]
        together = {name: size for parts in found for name, size in parts.items()}
        known = sum(size for size in together.values() if size is not None)
        least = "≥ " if None in together.values() else ""
        return f" {least}{show_bytes(known)}" if known or not least else ""


RETURN = "return"
"""Who reads what a flow returns."""
