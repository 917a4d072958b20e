"""A record of a flow's description: every call that it makes, and on request every fault.

The graph does not depend on it, because a graph is what its results reach; the record shows what they do not reach.
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
    """The calls of nodes in the description of a flow, in order; if `going_on`, faults are collected, not raised.

    `unknown` are calls whose fault leaves the type of their result unknown; such a result is accepted as any type.
    """

    going_on: bool = False
    calls: list[Node] = field(default_factory=list[Node])
    faults: list[FlowError] = field(default_factory=list[FlowError])
    unknown: set[Node] = field(default_factory=set[Node])


_RECORD: ContextVar[RecordedCalls | None] = ContextVar("record", default=None)


def current_record() -> RecordedCalls | None:
    """Return the record of the flow that is being described in this context; None outside `recording`."""
    return _RECORD.get()


def has_unknown_type(edge: Edge | None) -> bool:
    """Return whether an edge comes from a call whose fault leaves its type unknown; False for None and no record."""
    record = current_record()
    return record is not None and edge is not None and edge.source in record.unknown


@contextmanager
def recording(*, going_on: bool = False) -> Generator[RecordedCalls]:
    """Yield a new record that collects all calls of nodes in the `with` block.

    If `going_on`, the record also collects faults, and a faulty call does not end the description of a flow.
    """
    record = RecordedCalls(going_on)
    token = _RECORD.set(record)
    try:
        yield record
    finally:
        _RECORD.reset(token)
