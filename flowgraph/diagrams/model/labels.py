"""Text that came from a user, made fit to stand in a picture. Escaping for a format is that format's writer's."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

from flowgraph.diagrams.model.picture import Box, Status

LABEL_CHARACTERS = 60  # a longer label would make its box wider than its neighbours' frames

SIGNS: Mapping[Status, str] = {"same": "", "added": "+ ", "removed": "- ", "changed": "~ "}
"""The sign before a label, so that colour is not the only mark of a difference."""

_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # controls, bidirectional marks, what no font draws
_HIDDEN = ("Cc", "Cf", "Cs", "Cn", "Zl", "Zp")  # controls, direction marks, lone surrogates, what no font has
_JOINERS = "\u200c\u200d"  # of letters of one word, and of the parts of an emoji
_MARKS = re.compile(r"([\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff]{2})[\u0300-\u20ff]*")


def clean(text: str, limit_characters: int = LABEL_CHARACTERS) -> str:
    r"""Return text as one printable line of at most `limit_characters`.

    Each run of white space becomes one space; control, direction and other invisible characters are removed, and at
    most two combining accents in a row are kept. A longer text is cut and ends in an ellipsis. If nothing printable
    remains, the result is "?", so that every box and arrow has a label.

    >>> clean("two\nlines\x1b[31m"), clean("\u202egnp.exe"), clean("")
    ('two lines[31m', 'gnp.exe', '?')
    >>> clean("abcdef", 4)
    'abc…'
    """
    spaced = re.sub(r"\s+", " ", text)
    printable = "".join(letter for letter in spaced if unicodedata.category(letter) not in _INVISIBLE)
    line = unstacked(unicodedata.normalize("NFC", printable)).strip()
    return shortened(line, limit_characters) or "?"


def unstacked(text: str) -> str:
    r"""Return text with at most two combining accents in a row, since more of them would cover other lines.

    >>> len(unstacked("a" + "\u0301" * 100))
    3
    """

    def two_marks(match: re.Match[str]) -> str:
        return match[1] + "".join(letter for letter in match[0][2:] if not unicodedata.combining(letter))

    return _MARKS.sub(two_marks, text)


def escape_controls(text: str) -> str:
    r"""Return text with control, direction and unassigned characters escaped, so that it cannot control a terminal.

    Newlines, tabs and zero-width joiners are kept.

    >>> print(escape_controls("two\nlines\x1b[31m\u202e"))
    two
    lines\x1b[31m\u202e
    """
    return "".join(
        letter.encode("unicode_escape").decode("ascii")
        if letter not in "\n\t" and letter not in _JOINERS and unicodedata.category(letter) in _HIDDEN
        else letter
        for letter in text
    )


def shown_number(value: object) -> str:
    """Return a value of a metric as text: a float with four significant digits, other values in at most 300 characters.

    True, False and None become "yes", "no" and "none". Other values are cleaned by `clean`, so that "" becomes "?".

    >>> shown_number(0.123456), shown_number(float("nan")), shown_number(None), shown_number(True)
    ('0.1235', 'nan', 'none', 'yes')
    """
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:.4g}" if isinstance(value, float) else clean(str(value), 300)


def printable(text: str) -> str:
    r"""Return text without characters that control a terminal or cannot be seen; newlines and tabs are kept.

    >>> printable("two\nlines\x1b[31m\u202e")
    'two\nlines[31m'
    """
    return "".join(letter for letter in text if letter in "\n\t" or unicodedata.category(letter) not in _INVISIBLE)


def signed_label(text: str, status: Status, limit_characters: int = LABEL_CHARACTERS) -> str:
    """Return a label, cleaned by `clean`, with the sign of its status in front: "+ " added, "- " removed, "~ " changed.

    The sign counts towards `limit_characters`. A label with the status "same" has no sign.

    >>> signed_label("policy", "added"), signed_label("policy", "same"), signed_label("", "removed")
    ('+ policy', 'policy', '- ?')
    """
    sign = SIGNS[status]
    return sign + clean(text, limit_characters - len(sign))


def signed_lines(box: Box) -> list[str]:
    """Return the lines of a box's label, cleaned by `clean`; the first has the sign of the box's status in front."""
    return [signed_label(line, "same" if place else box.status) for place, line in enumerate(box.label)]


def shortened(text: str, limit_characters: int) -> str:
    """Return `text` if it has at most `limit_characters` characters (1 or more), else its beginning and an ellipsis.

    >>> shortened("response_length", 9)
    'response…'
    """
    return text if len(text) <= limit_characters else text[: max(0, limit_characters - 1)] + "…"
