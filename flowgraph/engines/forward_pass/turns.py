"""Turns on one model: passes of several threads, and replacements of its weights, one at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager

from flowgraph.errors import LawError

PassTurn = Callable[[], AbstractContextManager[int]]
"""Opens the turn of one pass over a model; the result is the version of its weights, which stay until the turn ends."""


class Turns(AbstractContextManager["Turns"]):
    """A lock that threads get in the order in which they ask for it, so that none waits for more than one turn of each.

    A lock of `threading` would let a thread that draws token after token keep the model to itself.
    """

    def __init__(self) -> None:
        self._line = deque[object]()
        self._moved = threading.Condition()
        self._closed = False

    def __enter__(self) -> Turns:
        """Wait until all who asked before have had their turn. Raises LawError after `close`."""
        place = object()
        with self._moved:
            self._line.append(place)
            try:
                self._moved.wait_for(lambda: self._closed or self._line[0] is place)
                if self._closed:
                    raise LawError("the responses under way were aborted: the run has ended")
            except BaseException:  # also an interrupt: those behind must not wait for this place
                self._line.remove(place)
                self._moved.notify_all()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        """End this turn, and begin that of the next."""
        with self._moved:
            self._line.popleft()
            self._moved.notify_all()

    def close(self) -> None:
        """Raise LawError in all threads that wait for a turn or ask for one later; the present turn goes on."""
        with self._moved:
            self._closed = True
            self._moved.notify_all()
