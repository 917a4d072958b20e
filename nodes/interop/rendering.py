"""Templates, filled so that no value can escape its place: every value is quoted when it is written.

A template has the keys of its system; values are filled in. `finalize` quotes every value, so that no template can
forget to. Comments have a type of their own.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
_PLAIN = re.compile(r"[A-Za-z_/][\w./-]*", re.ASCII)
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "none", "inf", "nan"})
_UNPRINTED = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u2028\u2029\ufeff]")

Quote = Callable[[Any], str]


class Remark(str):
    """A text for a comment, which is always one line."""

    def __new__(cls, text: str) -> Remark:
        """Return the text with a space in place of each character that is not printable."""
        return super().__new__(cls, "".join(letter if letter.isprintable() else " " for letter in text))


def hydra(value: Any) -> str:
    """Return a string, number, boolean, None or list as written in a Hydra override, for a shell; `${` is escaped.

    >>> hydra(True), hydra("org/name"), shlex.split(hydra("two words")), hydra(["a", 0.5])
    ('True', 'org/name', ["'two words'"], "'[a,0.5]'")
    """
    return shlex.quote(_override(value))


def flag(value: Any) -> str:
    """Return a string, number, boolean or None as written after a command-line flag, quoted for a shell.

    >>> flag("two words"), flag(1e-6)
    ("'two words'", '1.0e-06')
    """
    return shlex.quote(value if isinstance(value, str) else _literal(value))


def yaml(value: Any) -> str:
    """Return a string, number, boolean or None as YAML that OmegaConf reads as the same value; `${` is escaped.

    >>> yaml("a: b"), yaml(None), yaml(1e-6)
    ('"a: b"', 'null', '1.0e-06')
    """
    if not isinstance(value, str):
        return _literal(value).lower()
    quoted = json.dumps(_escape_references(value), ensure_ascii=False)
    return _UNPRINTED.sub(lambda letter: f"\\U{ord(letter[0]):08x}", quoted)


def _literal(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "null" if value is None else str(value)
    mantissa, e, exponent = repr(value).partition("e")
    return f"{mantissa if '.' in mantissa or not e else mantissa + '.0'}{e}{exponent}"


def _override(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_override, value))}]"
    if not isinstance(value, str):
        return _literal(value)
    if _PLAIN.fullmatch(value) is not None and value.casefold() not in _WORDS:
        return value
    # A backslash counts only before a quote (and at the end, where the closing quote follows).
    text = re.sub(r"(\\*)('|\Z)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), _escape_references(value))
    return f"'{text}'"


def _escape_references(text: str) -> str:
    """Return a text without references for OmegaConf, which needs twice the backslashes before `${`."""
    return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", text)


QUOTES: Mapping[str, Quote] = {"verl": hydra, "openrlhf": flag, "nemo-rl": yaml, "shell": flag}


def render(name: str, quote: str, values: Mapping[str, Any]) -> str:
    """Return the text of a template with `values` filled in, each quoted for its place.

    `name` is the template's path below `nodes/interop`; `quote` is a key of `QUOTES`, a system or "shell". A name that
    the template uses and `values` lacks raises jinja2's UndefinedError.
    """
    return str(_environment(quote).get_template(name).render(values))


@cache
def _environment(quote: str) -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, Undefined

    def finalize(value: Any) -> Any:
        if isinstance(value, Undefined):
            return value  # prints as an error that names it
        return str(value) if isinstance(value, Remark) else QUOTES[quote](value)

    folder = FileSystemLoader(FOLDER, encoding="utf-8")
    # This is not markup: `finalize` escapes what has to be.
    return Environment(
        loader=folder,
        finalize=finalize,
        autoescape=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
