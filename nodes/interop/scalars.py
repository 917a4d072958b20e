"""Values as Hydra and YAML read them from text, and references between keys.

Deviation: a list or mapping stays text, since no plan has one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isfinite
from typing import TypeGuard

Scalar = bool | int | float | str | None
MAX_DEPTH = 20  # of references to references
MAX_DIGITS = 39

_WORDS: dict[str, Scalar] = {"true": True, "false": False, "null": None, "none": None, "~": None, "": None}
# Source: Hydra's OverrideLexer.g4. Other forms stay text: `1_`, and 017, which YAML reads as 15.
_DIGITS, _WHOLE = r"[0-9](?:_?[0-9])*", r"(?:0|[1-9](?:_?[0-9])*)"
_INT = re.compile(rf"[-+]?{_WHOLE}")
_FLOAT = re.compile(rf"[-+]?(?:{_WHOLE}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][-+]?{_DIGITS})?")
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([\w.@-]+)(?:\s*,\s*([^${}]*))?\}")


def scalar(text: str) -> Scalar:
    """Return the value of a text.

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
    if len(plain) <= MAX_DIGITS and _FLOAT.fullmatch(plain):
        number = plain.replace("_", "")
        return int(number) if _INT.fullmatch(plain) else float(number)
    return plain


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a finite number; True and False are not.

    >>> is_number(0.5), is_number(scalar("1e999")), is_number(True)
    (True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def resolve_reference(text: str, value_of: Callable[[str], Scalar], depth: int = 0) -> Scalar:
    """Return what `${other.key}` or `${oc.select:other.key,default}` refers to; raises LookupError if it is unknown.

    >>> resolve_reference("${a.b}", {"a.b": 3}.__getitem__), resolve_reference("${oc.select:no,5}", {"no": None}.get)
    (3, 5)
    """
    reference = _REFERENCE.fullmatch(text.strip())
    if reference is None or depth > MAX_DEPTH:
        raise LookupError(text)
    value = value_of(reference[1])
    if isinstance(value, str) and value.startswith("${"):
        value = resolve_reference(value, value_of, depth + 1)
    return scalar(reference[2]) if value is None and reference[2] is not None else value
