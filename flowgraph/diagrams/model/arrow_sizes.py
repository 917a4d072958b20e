"""How many bytes travel on the arrows of a plan's picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flowgraph.cluster.cluster import show_bytes

Parts = Mapping[str, int | None]


@dataclass(frozen=True)
class ArrowSizes:
    """The bytes that travel on the arrows of a plan's picture; missing values and parts of size None are unknown.

    `values` maps (value, name of the node that reads it) to the bytes of each part that the node reads; the reader of a
    flow's results is called `return`. `weights` maps parameters to bytes.
    """

    values: Mapping[tuple[str, str], Parts] = field(default_factory=dict[tuple[str, str], Parts])
    weights: Mapping[str, int] = field(default_factory=dict[str, int])

    def brought(self, value: str, readers: Iterable[str]) -> str:
        """Return the bytes of a value that are sent to one place, as text after a space; "" if none are known.

        `readers` are the names of the nodes at this place that read the value; a part that several nodes read is
        counted once. `≥` marks a lower bound: the size of some part is unknown.

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
