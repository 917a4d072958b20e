"""Read files that anyone may have written: plain files of bounded size, and JSON of bounded depth and unique keys.

Every JSON and TOML file, and every JSON text of a command line, comes in here. What it says is checked by whoever asks:
most often by a pydantic model, `json_as`.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel

MOST_BYTES = 2**25  # of a file or text: a plan on 65,536 devices takes a third of it
MOST_PARTS = 2_000_000  # values of one JSON text: so that what is read takes 200 MB at most
MOST_DEPTH = 100  # lists and objects in each other: what we write has fewer than 20
MOST_DIGITS = 20  # of a whole number: 64 bits and a sign

Kind = TypeVar("Kind", bound=BaseModel)


def read_bytes(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return what a plain file holds.

    Raises OSError, its `strerror` the reason: the file is not there, is no plain file (a pipe or a device may have no
    end), is larger than `most_bytes`, or cannot be a path.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError:  # a NUL, or what no file system can encode
        raise OSError(errno.EINVAL, "it is not the path of a file") from None
    with os.fdopen(handle, "rb") as file:
        there = os.fstat(handle)
        if stat.S_ISDIR(there.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(there.st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file", str(path))
        data = file.read(most_bytes + 1) if there.st_size <= most_bytes else b""
        if max(there.st_size, len(data)) > most_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {most_bytes:,} bytes", str(path))
        return data


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """Return a plain file's text. Raises OSError as `read_bytes` does, and ValueError for what is not UTF-8."""
    return read_bytes(path, most_bytes).decode("utf-8")


def read_json(path: Path) -> Any:
    """Return what a file of JSON holds. Raises OSError as `read_bytes` does, and ValueError as `parse_json` does."""
    return parse_json(read_bytes(path))


def parse_json(text: str | bytes, *, finite: bool = True, whole: bool = True) -> Any:
    """Return what a JSON text holds; if `finite`, NaN and infinite numbers are refused, if `whole`, half characters.

    Raises ValueError, which says why in one line: the text is not UTF-8, not JSON, too long or nested too deep, an
    object has a key twice, or a number or string is one that other readers do not take.

    >>> parse_json('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    >>> parse_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: the key `a` stands twice
    """
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 at byte {error.start}") from None
    if len(text) > MOST_BYTES or text.count(",") + text.count("[") + text.count("{") > MOST_PARTS:
        raise ValueError(f"it has more than {MOST_PARTS:,} values or {MOST_BYTES:,} characters")
    try:
        found = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_int=_integer,
            parse_float=_finite if finite else None,
            parse_constant=_no_number if finite else None,
        )
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _refuse_odd(found, whole)
    return found


def json_as(kind: type[Kind], text: str | bytes) -> Kind:
    """Return a JSON text as a pydantic model. Raises ValueError as `parse_json` does, ValidationError as pydantic."""
    parse_json(text)
    return kind.model_validate_json(text)


def parse_toml(text: str) -> dict[str, Any]:
    """Return what a TOML text holds. Raises ValueError for what is no TOML, or is nested too deep.

    >>> parse_toml("a = [1]")
    {'a': [1]}
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


_HALF = re.compile("[\ud800-\udfff]")
_TOO_DEEP = f"it is nested more than {MOST_DEPTH} deep"


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise ValueError(f"the key `{_short(twice)}` stands twice")
    return found


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"the number {_short(digits)} has more than {MOST_DIGITS} digits")
    return int(digits)


def _finite(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError(f"the number {_short(digits)} is too large")
    return value


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number of JSON")


def _refuse_odd(found: Any, whole: bool) -> None:
    """Refuse what is nested too deep, and text that cannot be written or printed again, level by level."""
    level, depth = [found], 0
    while level:
        if depth > MOST_DEPTH:
            raise ValueError(_TOO_DEEP)
        inside = list[Any]()
        for each in level:
            if isinstance(each, dict):
                inside += each
                inside += each.values()
            elif isinstance(each, list):
                inside += each
            elif whole and isinstance(each, str) and not each.isascii() and _HALF.search(each):
                raise ValueError("a string holds half of a character")
        level, depth = inside, depth + 1


def _short(text: str) -> str:
    return ascii(text)[1:-1] if len(text) <= 40 else f"{ascii(text[:39])[1:-1]}…"
