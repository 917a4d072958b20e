"""Ctrl-C, SIGTERM, SIGHUP: while steps run, the first asks to stop after this one; otherwise a signal stops at once."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


class Interrupts:
    """While open, a signal raises KeyboardInterrupt; while `patient`, the first one only sets `asked`."""

    def __init__(self, where: str, say: Callable[[str], None]) -> None:
        self._where, self._say, self._asked, self._patient = where, say, False, False
        self._opening, self._closing = False, False
        self._before: dict[int, Any] = {}

    def asked(self) -> bool:
        """Return whether the run was asked to stop."""
        return self._asked

    @contextmanager
    def patient(self) -> Generator[None]:
        """Let the step that runs be finished: there is something to lose."""
        self._patient = True
        try:
            yield
        finally:
            self._patient = False

    @contextmanager
    def kept_from_closing(self, inner: AbstractContextManager[T]) -> Generator[T]:
        """Hold signals back while `inner` closes: processes that it started would be left behind.

        The same holds after an interrupt of its start: those that follow wait until it has cleaned up.
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
        if self._closing or (self._opening and _interrupted()):
            return
        if self._asked or not self._patient:
            raise KeyboardInterrupt
        self._asked = True
        with contextlib.suppress(OSError):  # the terminal may be gone
            self._say(f"stopping after this step (again: now); {self._where} holds what was recorded")


def _interrupted() -> bool:
    """Return whether an interrupt is handled right now: one that something swallowed is not."""
    error = sys.exception()
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None
