"""The nodes behind `+` and a factor on values that add: losses, scores."""

from __future__ import annotations

from typing import TypeVar

from flowgraph.language.flow import node
from flowgraph.language.values import Linear

L = TypeVar("L", bound=Linear)


@node
def add(a: L, *, to: L) -> L:
    """Add two values of one type."""
    return a.plus(to)


@node
def scale(a: L, *, factor: float) -> L:
    """Multiply a value by a number."""
    return a.times(factor)
