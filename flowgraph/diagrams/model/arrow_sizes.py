"""How many bytes travel on the arrows of a plan's picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flowgraph.cluster.cluster import show_bytes

Parts = Mapping[str, int | None]


@dataclass(frozen=True)
class ArrowSizes:
    """Bytes of values by (value, node that reads it) and part, and bytes of weights by parameter.

    A part of unknown size is None, and a missing value is unknown. Results of a flow are read by `return`.
    """

    values: Mapping[tuple[str, str], Parts] = field(default_factory=dict[tuple[str, str], Parts])
    weights: Mapping[str, int] = field(default_factory=dict[str, int])

    def brought(self, value: str, readers: Iterable[str]) -> str:
        """Return as text how many bytes of a value are sent to one place for all `readers`, each part counted once.

        `readers` are the nodes there that read it. `≥` marks a lower bound, where the size of a part is unknown.
        Returns "" if nothing is known.

        >>> sizes = ArrowSizes({("r", "a"): {"tokens": 2048, "text": None}, ("r", "b"): {"tokens": 2048, "mask": 1024}})
        >>> sizes.brought("r", "b"), sizes.brought("r", "ab"), sizes.brought("r", "bc"), sizes.brought("r", "c")
        (' 3.0 KiB', ' ≥ 3.0 KiB', ' ≥ 3.0 KiB', '')
        """
        parts = dict[str, int | None]()
        for reader in readers:
            parts |= self.values.get((value, reader), {"": None})
        total_bytes = sum(size or 0 for size in parts.values())
        bound = "≥ " if None in parts.values() else ""
        return f" {bound}{show_bytes(total_bytes)}" if total_bytes or not bound else ""


RETURN = "return"
"""The reader of a flow's results."""
