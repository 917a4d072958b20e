"""How many bytes travel on the arrows of a plan's picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ArrowSizes:
    """Bytes of values by (value, node that reads it), part by part, and bytes of weights by parameter.

    What is not known is not there. What a flow returns is read by `return`.
    """

    values: Mapping[tuple[str, str], Mapping[str, int]] = field(
        default_factory=dict[tuple[str, str], Mapping[str, int]]
    )
    weights: Mapping[str, int] = field(default_factory=dict[str, int])

    def brought_bytes(self, value: str, readers: Iterable[str]) -> int | None:
        """Give the bytes of a value that goes once to a place where these nodes read it; None if not known.

        >>> sizes = ArrowSizes({("r", "a"): {"tokens": 8, "mask": 1}, ("r", "b"): {"tokens": 8}})
        >>> sizes.brought_bytes("r", ("a", "b")), sizes.brought_bytes("r", ("a", "c"))
        (9, None)
        """
        found = [self.values.get((value, reader)) for reader in readers]
        known = [parts for parts in found if parts is not None]
        together = {name: size for parts in known for name, size in parts.items()}
        return sum(together.values()) if known and len(known) == len(found) else None


RETURN = "return"
"""Who reads what a flow returns."""
