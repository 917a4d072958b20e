"""A thread that works in order and never keeps the process from ending, unlike those of `concurrent.futures`."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class DaemonThread:
    """A thread that calls functions in the order in which they are submitted, until it is closed."""

    _work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = field(
        default_factory=queue.SimpleQueue["tuple[Future[Any], Callable[[], Any]] | None"]
    )

    def __post_init__(self) -> None:
        threading.Thread(target=self._loop, daemon=True).start()

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Submit a function to be called after all earlier ones; return a Future of its result or of its error."""
        future = Future[Any]()
        self._work.put((future, function))
        return future

    def close(self) -> None:
        """Make the thread end after the functions that were submitted before; later ones are never called.

        Returns at once, without waiting for the thread.
        """
        self._work.put(None)

    def _loop(self) -> None:
        while (work := self._work.get()) is not None:
            future, function = work
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:  # noqa: BLE001  it belongs to whoever reads the result
                    future.set_exception(error)
            del work, future, function  # this thread may wait for long: nothing of the last call stays in memory
