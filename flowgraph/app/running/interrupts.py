"""Signals during a run: while steps run, the first one stops after the current step; otherwise a signal stops at once.

The signals are SIGINT (Ctrl-C), SIGTERM and SIGHUP.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any, TypeVar

from flowgraph.errors import interrupt_behind

T = TypeVar("T")


class Interrupts:
    """A context in which a signal raises KeyboardInterrupt; inside `patient`, the first signal only makes `asked` true.

    The signals are handled only if the context is entered in the main thread. `where` is the run's folder, which is
    named in the line that `say` receives when a signal is noted. The previous handlers are restored on exit.
    """

    def __init__(self, where: str, say: Callable[[str], None]) -> None:
        self._where, self._say, self._asked, self._patient = where, say, False, False
        self._opening, self._closing, self._stops = False, False, ""
        self._before: dict[int, Any] = {}

    def asked(self) -> bool:
        """Return whether a signal has asked the run to stop after the current step; once true, it stays true."""
        return self._asked

    @contextmanager
    def patient(self, stops: str = "after this step") -> Generator[None]:
        """Open a context in which the first signal only makes `asked` true, so that the current step can finish.

        `stops` is the text that tells the user when the run will stop then. A second signal raises KeyboardInterrupt.
        """
        self._patient, self._stops = True, stops
        try:
            yield
        finally:
            self._patient = False

    @contextmanager
    def kept_from_closing(self, inner: AbstractContextManager[T]) -> Generator[T]:
        """Enter `inner`, yield its value, and ignore signals while `inner` closes, so that all its processes are ended.

        Signals are also ignored while `inner` cleans up after a signal has interrupted its start.
        """
        self._opening = True
        try:
            with inner as value:
                self._opening = False
                try:
                    yield value
                finally:
                    self._closing = True
        finally:
            self._opening = self._closing = False

    def __enter__(self) -> Interrupts:
        in_main = threading.current_thread() is threading.main_thread()  # only there Python takes signals
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if in_main else ():
            self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *error: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._closing or (self._opening and interrupt_behind(sys.exception()) is not None):
            return
        if self._asked or not self._patient:
            raise KeyboardInterrupt
        self._asked = True
        with contextlib.suppress(OSError):  # the terminal may be gone
            self._say(f"stopping {self._stops} (again: at once); the records are in {self._where}")
