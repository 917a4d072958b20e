"""What a command said, read as its user would."""

from __future__ import annotations

from typing import Any


def text_of(said: Any) -> str:
    """Return what a command printed that went well."""
    assert said.code == 0, said.err
    text: str = said.out
    return text
