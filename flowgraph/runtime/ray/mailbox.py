"""Chunks and groups that a node hands out in one thread of an actor, until calls in another thread come for them."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

BatchKey = tuple[int, tuple[str, ...], int]
"""What names a batch in an actor: the index of the graph, the nodes that sample it, and the step."""


@dataclass(eq=False)
class Mailbox:
    """Chunks by batch and index; each is taken once. A batch that ends with an error gives it to all that wait.

    Also groups of any batch, in the order in which they finish.
    """

    _changed: threading.Condition = field(default_factory=threading.Condition)
    _chunks: dict[tuple[BatchKey, int], Any] = field(default_factory=dict[tuple[BatchKey, int], Any])
    _ended: dict[BatchKey, BaseException | None] = field(default_factory=dict[BatchKey, "BaseException | None"])

    _groups: deque[Any] = field(default_factory=deque[Any])

    def post(self, group: Any) -> None:
        """Put a group that has finished into the mailbox, or the error of a batch whose other groups will not."""
        with self._changed:
            self._groups.append(group)
            self._changed.notify_all()

    def next_group(self, *, wait: bool = True) -> Any:
        """Return the next group that finishes; None, without `wait`, if there is none now.

        Raises an error that was put in its place.
        """
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._groups)
            group = self._groups.popleft() if self._groups else None
        if isinstance(group, BaseException):
            raise group
        return group

    def give(self, batch: BatchKey, index: int, chunk: Any) -> None:
        """Put a chunk into the mailbox."""
        with self._changed:
            self._chunks[batch, index] = chunk
            self._changed.notify_all()

    def end(self, batch: BatchKey, error: BaseException | None = None) -> None:
        """Note that a batch has ended: chunks that were not given are empty, or there are none after an `error`."""
        with self._changed:
            self._ended[batch] = error
            self._changed.notify_all()

    def take(self, batch: BatchKey, index: int, *, last: bool) -> Any:
        """Wait for a chunk, and return it; None if its batch has ended without it. Raises the error of the batch.

        The `last` chunk comes when the batch has ended, and nobody comes for more of it.
        """
        with self._changed:
            self._changed.wait_for(lambda: batch in self._ended or (not last and (batch, index) in self._chunks))
            chunk, error = self._chunks.pop((batch, index), None), self._ended.get(batch)
            if last:
                self._ended.pop(batch, None)
        if error is not None and chunk is None:
            raise error
        return chunk
