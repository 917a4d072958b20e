"""Values as Hydra and YAML read them from text, and references between keys put in.

Deviation: a list or mapping stays text, since no plan has one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isfinite
from typing import TypeGuard

Scalar = bool | int | float | str | None
DEEPEST = 20

_WORDS: dict[str, Scalar] = {"true": True, "false": False, "null": None, "none": None, "~": None, "": None}
# Source: Hydra's OverrideLexer.g4. What is no number there stays text: `1_`, and 017, which YAML reads as 15.
_DIGITS, _WHOLE = r"[0-9](?:_?[0-9])*", r"(?:0|[1-9](?:_?[0-9])*)"
_INT = re.compile(rf"[-+]?{_WHOLE}")
_FLOAT = re.compile(rf"[-+]?(?:{_WHOLE}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][-+]?{_DIGITS})?")
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([\w.@-]+)(?:\s*,\s*([^${}]*))?\}")


def scalar(text: str) -> Scalar:
    """Read one value.

    >>> scalar("True"), scalar("1e-6"), scalar("'8'"), scalar("org/name"), scalar("null")
    (True, 1e-06, '8', 'org/name', None)
    >>> scalar("1_000"), scalar("1_"), scalar("017"), scalar("0x10")
    (1000, '1_', '017', '0x10')
    """
    plain = text.strip()
    if len(plain) > 1 and plain[0] == plain[-1] and plain[0] in "'\"":
        return plain[1:-1].replace(f"\\{plain[0]}", plain[0])
    if plain.casefold() in _WORDS:
        return _WORDS[plain.casefold()]
    if len(plain) < 40 and _INT.fullmatch(plain):
        return int(plain.replace("_", ""))
    return float(plain.replace("_", "")) if len(plain) < 40 and _FLOAT.fullmatch(plain) else plain


def is_number(value: object) -> TypeGuard[int | float]:
    """Tell whether a value is a finite number; True and False are none.

    >>> is_number(0.5), is_number(scalar("1e999")), is_number(True)
    (True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def referred(text: str, value_of: Callable[[str], Scalar], deep: int = 0) -> Scalar:
    """Put in what `${other.key}` and `${oc.select:other.key,default}` refer to; LookupError where that is not known.

    >>> referred("${a.b}", {"a.b": 3}.__getitem__), referred("${oc.select:no,5}", {"no": None}.get)
    (3, 5)
    """
    found = _REFERENCE.fullmatch(text.strip())
    if found is None or deep > DEEPEST:
        raise LookupError(text)
    value = value_of(found[1])
    if isinstance(value, str) and value.startswith("${"):
        value = referred(value, value_of, deep + 1)
    return scalar(found[2]) if value is None and found[2] is not None else value
