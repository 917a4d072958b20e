"""How many bytes travel on the arrows of a plan's picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ArrowSizes:
    """Bytes of values by (value, node that reads it), and bytes of weights by parameter.

    What is not known is not there. What a flow returns is read by `return`.
    """

    values: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    weights: Mapping[str, int] = field(default_factory=dict[str, int])


RETURN = "return"
"""Who reads what a flow returns."""
