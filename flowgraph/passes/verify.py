"""A switch for checking the laws of a stage after each pass: on in every test, and with `--verify`."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_ON: ContextVar[bool] = ContextVar("verify", default=False)


def verifying() -> bool:
    """Return whether the laws are checked after each built-in pass, and not only after the last."""
    return _ON.get()


@contextmanager
def verified(on: bool = True) -> Generator[None]:
    """Check the laws after each built-in pass within a `with` block; if `on` is False, only after the last."""
    token = _ON.set(on)
    try:
        yield
    finally:
        _ON.reset(token)
