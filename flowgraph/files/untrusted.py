"""Read files from untrusted sources: plain files of bounded size, and JSON of bounded depth without duplicate keys.

Every JSON and TOML file, and every JSON text of a command line, is read here. The caller checks the content, usually
with a pydantic model: `json_as`.
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
    """Return the bytes of a plain file of at most `most_bytes` bytes.

    Raises OSError with the reason in `strerror` if the file does not exist, cannot be opened, is larger, is not a plain
    file (a pipe or a device may have no end), or if the path is invalid.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError:  # a NUL, or what no file system can encode
        raise OSError(errno.EINVAL, "it is not the path of a file") from None
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file", str(path))
        data = file.read(most_bytes + 1) if status.st_size <= most_bytes else b""
        if max(status.st_size, len(data)) > most_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {most_bytes:,} bytes", str(path))
        return data


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """Return the text of a plain file. Raises OSError as `read_bytes` does, and ValueError if it is not UTF-8."""
    return read_bytes(path, most_bytes).decode("utf-8")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file. Raises OSError as `read_bytes` does, and ValueError as `parse_json` does."""
    return parse_json(read_bytes(path))


def parse_json(text: str | bytes, *, finite: bool = True, whole: bool = True) -> Any:
    """Return the content of a JSON text, within limits that make it safe to read.

    Raises ValueError with a one-line reason if the text is not UTF-8 or not JSON, has more than 2²⁵ characters or 100
    levels, has a key twice in one object, or has an integer of more than 20 characters. A text with more than 2 million
    `,`, `[` and `{` together, which bound the number of its values, is refused too. So are NaN and infinite numbers,
    unless `finite` is False, and half surrogate pairs, unless `whole` is False.

    >>> parse_json('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    >>> parse_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: the key `a` appears twice
    """
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 at byte {error.start}") from None
    if len(text) > MOST_BYTES or text.count(",") + text.count("[") + text.count("{") > MOST_PARTS:
        raise ValueError(f"it has more than {MOST_PARTS:,} values or {MOST_BYTES:,} characters")
    try:
        content = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_int=_integer,
            parse_float=_finite if finite else None,
            parse_constant=_no_number if finite else None,
        )
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _refuse_deep_or_broken(content, whole)
    return content


def json_as(kind: type[Kind], text: str | bytes) -> Kind:
    """Return the content of a JSON text as an instance of the pydantic class `kind`.

    Raises ValueError as `parse_json` does, or pydantic's ValidationError, a ValueError, if the content does not fit
    `kind`.
    """
    parse_json(text)
    return kind.model_validate_json(text)


def parse_toml(text: str) -> dict[str, Any]:
    """Return the content of a TOML text. Raises ValueError if it is not TOML, or is nested too deep.

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
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise ValueError(f"the key `{_short(twice)}` appears twice")
    return content


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"the number {_short(digits)} has more than {MOST_DIGITS} digits")
    return int(digits)


def _finite(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError(f"the number {_short(digits)} is too large")
    return value


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


def _refuse_deep_or_broken(content: Any, whole: bool) -> None:
    level, depth = [content], 0
    while level:
        if depth > MOST_DEPTH:
            raise ValueError(_TOO_DEEP)
        inside = list[Any]()
        for value in level:
            if isinstance(value, dict):
                inside += [*value, *value.values()]
            elif isinstance(value, list):
                inside += value
            elif whole and isinstance(value, str) and not value.isascii() and _HALF.search(value):
                raise ValueError("a string contains half of a surrogate pair")
        level, depth = inside, depth + 1


def _short(text: str) -> str:
    return ascii(text)[1:-1] if len(text) <= 40 else f"{ascii(text[:39])[1:-1]}…"
