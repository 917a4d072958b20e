"""Values as Hydra and YAML read them from text, and references between keys put in.

Deviation: a list or mapping stays text, since no plan has one.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Scalar = bool | int | float | str | None
DEEPEST = 20

_WORDS: dict[str, Scalar] = {"true": True, "false": False, "null": None, "none": None, "~": None, "": None}
_INT = re.compile(r"[-+]?\d[\d_]*")
_FLOAT = re.compile(r"[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d+)(?:[eE][-+]?\d+)?")
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([\w.@-]+)(?:\s*,\s*([^${}]*))?\}")


def scalar(text: str) -> Scalar:
    """Read one value.

    >>> scalar("True"), scalar("1e-6"), scalar("'8'"), scalar("org/name"), scalar("null")
    (True, 1e-06, '8', 'org/name', None)
    """
    plain = text.strip()
    if len(plain) > 1 and plain[0] == plain[-1] and plain[0] in "'\"":
        return plain[1:-1].replace(f"\\{plain[0]}", plain[0])
    if plain.casefold() in _WORDS:
        return _WORDS[plain.casefold()]
    if len(plain) < 40 and _INT.fullmatch(plain):
        return int(plain.replace("_", ""))
    return float(plain.replace("_", "")) if len(plain) < 40 and _FLOAT.fullmatch(plain) else plain


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
