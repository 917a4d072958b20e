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
        """Put a finished group into the mailbox, or the error of a batch, which `next_group` raises in its turn."""
        with self._changed:
            self._groups.append(group)
            self._changed.notify_all()

    def next_group(self, *, wait: bool = True) -> Any:
        """Wait for the next group that finishes, remove it from the mailbox, and return it.

        If `wait` is False, returns at once, with None if the mailbox has no group. Raises an error that was put in its
        place.
        """
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._groups)
            group = self._groups.popleft() if self._groups else None
        if isinstance(group, BaseException):
            raise group
        return group

    def give(self, batch: BatchKey, index: int, chunk: Any) -> None:
        """Put a chunk of a batch into the mailbox, from which `take` returns it by its index."""
        with self._changed:
            self._chunks[batch, index] = chunk
            self._changed.notify_all()

    def end(self, batch: BatchKey, error: BaseException | None = None) -> None:
        """Note that a batch has ended.

        `take` then returns None for its chunks that were not given, or raises `error` for them if that is not None.
        """
        with self._changed:
            self._ended[batch] = error
            self._changed.notify_all()

    def take(self, batch: BatchKey, index: int, *, last: bool) -> Any:
        """Wait for a chunk, remove it from the mailbox, and return it; None if its batch has ended without it.

        The `last` chunk is returned only when the batch has ended, which is then forgotten: it must be taken after the
        others. Raises the error of the batch if the chunk was not given.
        """
        with self._changed:
            self._changed.wait_for(lambda: batch in self._ended or (not last and (batch, index) in self._chunks))
            chunk, error = self._chunks.pop((batch, index), None), self._ended.get(batch)
            if last:
                self._ended.pop(batch, None)
        if error is not None and chunk is None:
            raise error
        return chunk
