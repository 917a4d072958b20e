"""What is overheard while a flow is described: every call it makes, and, when asked, every fault in it.

The graph does not depend on it: a graph is what its results reach. It only says what they do not reach.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from flowgraph.errors import FlowError
from flowgraph.language.graph import Edge, Node


@dataclass
class RecordedCalls:
    """The calls of a description in their order; with `going_on` its faults too, each call then standing as it can.

    `unknown` are calls that stand for a type which the fault leaves open: their results are taken for any.
    """

    going_on: bool = False
    calls: list[Node] = field(default_factory=list[Node])
    faults: list[FlowError] = field(default_factory=list[FlowError])
    unknown: set[Node] = field(default_factory=set[Node])


_HEARD: ContextVar[RecordedCalls | None] = ContextVar("overheard", default=None)


def heard() -> RecordedCalls | None:
    """Give the description that is going on, if one is."""
    return _HEARD.get()


def left_open(edge: Edge | None) -> bool:
    """Say whether an edge comes from a call whose fault leaves open what it gives."""
    overheard = heard()
    return overheard is not None and edge is not None and edge.source in overheard.unknown


@contextmanager
def overhearing(*, going_on: bool = False) -> Generator[RecordedCalls]:
    """Overhear the description in this block."""
    overheard = RecordedCalls(going_on)
    before = _HEARD.set(overheard)
    try:
        yield overheard
    finally:
        _HEARD.reset(before)
