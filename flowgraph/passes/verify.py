"""Whether the law of a stage is checked between passes: on in every test, and with `--verify`."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_ON: ContextVar[bool] = ContextVar("verify", default=False)


def verifying() -> bool:
    """Return whether the law is checked after each pass, and not only after the last."""
    return _ON.get()


@contextmanager
def verified(on: bool = True) -> Generator[None]:
    """Check the law after each pass within this block."""
    before = _ON.set(on)
    try:
        yield
    finally:
        _ON.reset(before)
