"""Ctrl-C and SIGTERM: the first asks the run to stop after its step, the second stops it now."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any


class Interrupts:
    """While open, the first signal sets `asked`; the second raises KeyboardInterrupt."""

    def __init__(self, where: str) -> None:
        self._where, self._asked = where, False
        self._before: dict[int, Any] = {}

    def asked(self) -> bool:
        """Say whether the run was asked to stop."""
        return self._asked

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *error: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        print(f"stopping after this step (again: now); {self._where} holds what was recorded", file=sys.stderr)
