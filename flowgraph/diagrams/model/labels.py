"""Text that came from a user, made fit to stand in a picture. Escaping for a format is that format's writer's."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

from flowgraph.diagrams.model.picture import Status

LABEL_CHARACTERS = 60  # a longer label would make its box wider than its neighbours' frames

SIGNS: Mapping[Status, str] = {"same": "", "added": "+ ", "removed": "- ", "changed": "~ "}
"""What stands before a label, so that what became of a thing is not told by colour alone."""

_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # controls, bidirectional marks, what no font draws
_MARKS = re.compile(r"([\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff]{2})[\u0300-\u20ff]*")


def clean(text: str, limit_characters: int = LABEL_CHARACTERS) -> str:
    r"""Give one line that a person can read: no control or direction characters, no pile of accents, not too long.

    An empty label becomes "?", so that every box and arrow still has one.

    >>> clean("two\nlines\x1b[31m"), clean("\u202egnp.exe"), clean("")
    ('two lines[31m', 'gnp.exe', '?')
    >>> clean("abcdef", 4)
    'abc…'
    """
    spaced = re.sub(r"\s+", " ", text)
    seen = "".join(letter for letter in spaced if unicodedata.category(letter) not in _UNSEEN)
    line = _MARKS.sub(_two_marks, unicodedata.normalize("NFC", seen)).strip()
    return shortened(line, limit_characters) or "?"


def seen(text: str) -> str:
    r"""Give lines of text without what would steer a terminal that they are printed on.

    >>> seen("two\nlines\x1b[31m\u202e")
    'two\nlines[31m'
    """
    return "".join(letter for letter in text if letter in "\n\t" or unicodedata.category(letter) not in _UNSEEN)


def signed(text: str, status: Status, limit_characters: int = LABEL_CHARACTERS) -> str:
    """Give a label as `clean` does, after the sign of what became of its thing.

    >>> signed("policy", "added"), signed("policy", "same"), signed("", "removed")
    ('+ policy', 'policy', '- ?')
    """
    sign = SIGNS[status]
    return sign + clean(text, limit_characters - len(sign))


def _two_marks(found: re.Match[str]) -> str:
    rest = found[0][2:]
    return found[1] + "".join(letter for letter in rest if not unicodedata.combining(letter))


def shortened(text: str, limit_characters: int) -> str:
    """Cut a text to a length, and show that it was cut.

    >>> shortened("response_length", 9)
    'response…'
    """
    return text if len(text) <= limit_characters else text[: max(0, limit_characters - 1)] + "…"
