"""The nodes behind `+`, a factor and `*` of values: losses add, scores can be multiplied too."""

from __future__ import annotations

from typing import TypeVar

from flowgraph.language.flow import node
from flowgraph.language.traits import NodeName
from flowgraph.language.values import Elementwise, Linear

L = TypeVar("L", bound=Linear)
E = TypeVar("E", bound=Elementwise)


@node
def add(a: L, *, to: L, name: NodeName = "") -> L:
    """Add two values of one type."""
    return a.plus(to)


@node
def scale(a: L, *, factor: float, name: NodeName = "") -> L:
    """Multiply a value by a number."""
    return a.times(factor)


@node
def multiply(a: E, *, by: E, name: NodeName = "") -> E:
    """Multiply two values of one type, entry by entry."""
    return a.multiplied(by)
