"""Templates of ours, filled so that no name can leave its place: every value is quoted as it is written.

A template holds the keys of its system literally; what is filled in are values. How a value is quoted is settled for
the whole template by `finalize`, so no template can forget it. Comments are of a type of their own.
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
    """A text for a comment, in one line whatever it holds."""

    def __new__(cls, text: str) -> Remark:
        """Make it one printable line."""
        return super().__new__(cls, "".join(letter if letter.isprintable() else " " for letter in text))


def number(value: float) -> str:
    """Write a number so that YAML 1.1, Hydra and a shell read the same.

    >>> number(1e-06), number(3.0), number(5)
    ('1.0e-06', '3.0', '5')
    """
    text = repr(value)
    if "e" not in text or isinstance(value, int):
        return text
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{exponent}"


def plain(text: str) -> bool:
    """Return whether a text is read as itself without quotes: no number, no word of YAML or Hydra."""
    return _PLAIN.fullmatch(text) is not None and text.casefold() not in _WORDS


def hydra(value: Any) -> str:
    """Write a value of a Hydra override, and quote that for a shell.

    >>> hydra(True), hydra("org/name"), shlex.split(hydra("two words")), hydra(["a", 0.5])
    ('True', 'org/name', ["'two words'"], "'[a,0.5]'")
    """
    return shlex.quote(_override(value))


def flag(value: Any) -> str:
    """Write a value of a command-line flag, quoted for a shell.

    >>> flag("two words"), flag(1e-6)
    ("'two words'", '1.0e-06')
    """
    return shlex.quote(value if isinstance(value, str) else _literal(value))


def yaml(value: Any) -> str:
    """Write a YAML value that OmegaConf reads as itself: JSON, with `${` kept from being a reference.

    >>> yaml("a: b"), yaml(None), yaml(1e-6)
    ('"a: b"', 'null', '1.0e-06')
    """
    if not isinstance(value, str):
        return _literal(value).lower()
    quoted = json.dumps(_unreferenced(value), ensure_ascii=False)
    return _UNPRINTED.sub(lambda found: f"\\U{ord(found[0]):08x}", quoted)


def _literal(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "True", False: "False", None: "null"}[value]
    return number(value)


def _override(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_override, value))}]"
    if not isinstance(value, str):
        return _literal(value)
    if plain(value):
        return value
    # A backslash counts only before a quote (and at the end, where the closing quote follows).
    text = re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), _unreferenced(value))
    return f"'{text}'"


def _unreferenced(text: str) -> str:
    """Keep OmegaConf from reading `${` as a reference; backslashes before it count twice there."""
    return re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + "\\${", text)


QUOTES: Mapping[str, Quote] = {"verl": hydra, "openrlhf": flag, "nemo-rl": yaml, "shell": flag}


def render(name: str, quote: str, values: Mapping[str, Any]) -> str:
    """Fill the template at this path in the folder of `interop`; every value is quoted as `quote` says."""
    return str(_environment(quote).get_template(name).render(values))


@cache
def _environment(quote: str) -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, Undefined

    def finalize(value: Any) -> Any:
        if isinstance(value, Undefined):
            return value  # prints as an error that names it
        return str(value) if isinstance(value, Remark) else QUOTES[quote](value)

    folder = FileSystemLoader(FOLDER, encoding="utf-8")
    # No markup is written here: what is escaped, and how, is `finalize`'s.
    return Environment(
        loader=folder,
        finalize=finalize,
        autoescape=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
