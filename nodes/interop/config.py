"""The keys of one run of another system: as the run sets them, or else the defaults of its version.

Values are read as Hydra and YAML read them. Deviation: a list or mapping stays text, since no plan has one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, TypeGuard

from flowgraph.errors import UsageError
from nodes.interop.commands import CommandKey, StartedCommand, words_of
from nodes.interop.imported import NEEDLESS, UNREAD, Imported, SystemRun
from nodes.interop.keys import Keys, keys, versions
from nodes.interop.shell import error_at
from nodes.interop.shipped_flows import MAX_STALENESS, ShippedFlow, placement_of

Scalar = bool | int | float | str | None
MAX_DEPTH = 20  # of references to references
MAX_DIGITS = 39
MAX_INTEGER = 2**31 - 1  # tokens, rows, devices
MISSING = "???"  # what Hydra writes for a value that has to be set
_LAUNCHER = ("hydra", "ray_init", "ray_kwargs")  # keys of what starts a run, in any version
_SECRET = re.compile(r"(?:use_wandb|wandb[._](?:key|proxy)|token|secret|password|api_key)$")  # never printed

_WORDS: dict[str, Scalar] = {"true": True, "false": False, "null": None, "none": None, "~": None, "": None}
# Source: Hydra's OverrideLexer.g4. Other forms stay text: `1_`, and 017, which YAML reads as 15.
_DIGITS, _WHOLE = r"[0-9](?:_?[0-9])*", r"(?:0|[1-9](?:_?[0-9])*)"
_INT = re.compile(rf"[-+]?{_WHOLE}")
_FLOAT = re.compile(rf"[-+]?(?:{_WHOLE}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][-+]?{_DIGITS})?")
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([\w.@-]+)(?:\s*,\s*([^${}]*))?\}")


@dataclass
class Config:
    """The keys of a run, and the names of those that were read, so that the others can be reported."""

    run: StartedCommand
    table: Keys
    overrides: dict[str, CommandKey]
    read: set[str] = field(default_factory=set[str])
    unusable: dict[str, str] = field(default_factory=dict[str, str])  # keys without a usable value, and why
    notes: list[str] = field(default_factory=list[str])

    @classmethod
    def of(cls, run: StartedCommand, table: Keys | None = None) -> Config:
        """Return the configuration of a run, with notes on what is unclear in the run.

        `table` has the known keys of one version. Without it, the version that knows the most keys of the run is used,
        and of several such versions the newest.
        """
        overrides = {key.key: key for key in run.overrides}
        tables = [table] if table else [keys(run.system, version) for version in versions(run.system)]
        # The newest of the versions that know the most keys.
        config = cls(run, max(reversed(tables), key=lambda version: sum(map(version.knows, overrides))), overrides)
        if run.further_lines:
            lines = ", ".join(map(str, run.further_lines))
            config.note(f"the command of line {run.line} is read; further ones start a training on lines {lines}")
        for name, last in config.overrides.items():
            if any(key.key == name and key.text != last.text for key in run.overrides):
                config.note(f"`{name}` is set more than once: the last value is used, {last.text[:60]}")
        for name in run.unread:
            config.note(f"`{name}` may hold further keys; only a running shell knows them")
        return config

    def note(self, text: str) -> None:
        """Add a note, unless it was added before."""
        if text not in self.notes:
            self.notes.append(text)

    def has(self, name: str) -> bool:
        """Return whether the run sets a key."""
        return name in self.overrides

    def get(self, *names: str) -> Scalar:
        """Return the value of the first of these keys that the run sets, else the first default, else None.

        All these keys then count as read. A key without a usable value, for example because only a running shell knows
        it, is skipped, and `unusable` says why. If the run sets a key to null, no default is used. Adds a note for a
        value that is guessed.
        """
        self.read.update(names)
        is_null = False  # set to null, so no default is used
        for name in names:
            key = self.overrides.get(name)
            if key is None:
                continue
            if key.unset or key.text == MISSING:
                unset = f"only a running shell knows its value: {', '.join(key.unset)}"
                self.unusable[name] = unset if key.unset else "it has no value yet"
                continue
            for variable in key.guessed:
                self.note(f"`{variable}` is set under conditions: the first of its values is used, {key.text[:60]}")
            value = self._resolve(name, key.text, scalar(key.text))
            if value is not None:
                return value
            is_null = is_null or name not in self.unusable
        defaults = () if is_null else ((name, self._default(name)) for name in names)
        values = (self._resolve(name, str(value), value) for name, value in defaults if value != MISSING)
        return next((value for value in values if value is not None), None)

    def integer(self, *names: str) -> int | None:
        """Return the value of the keys (see `get`) as a whole number; None if they have no value.

        Raises UsageError with the line for any other value, for an empty text, and for a number beyond ±(2³¹ - 1).
        """
        value = self._number(names, "a whole number")
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_INTEGER):
            return value
        is_large = isinstance(value, int) and not isinstance(value, bool)
        raise self._wrong(names, value, f"at most {MAX_INTEGER:,}" if is_large else "a whole number")

    def positive(self, *names: str) -> int:
        """Return the value of the keys (see `get`), a whole number above 0.

        Raises UsageError with the line for any other value, and if there is none.
        """
        value = self.integer(*names)
        if value is None or value < 1:
            raise self._wrong(names, value, "a whole number above 0")
        return value

    def optional_positive(self, *names: str) -> int | None:
        """Return the value of the keys (see `get`), a whole number above 0; None if they have no value.

        Raises UsageError with the line for any other value, and for an empty text.
        """
        return None if self.integer(*names) is None else self.positive(*names)

    def number(self, *names: str) -> float | None:
        """Return the value of the keys (see `get`), a finite number; None if they have no value.

        Raises UsageError with the line for any other value, and for an empty text.
        """
        value = self._number(names, "a number")
        if value is None or is_number(value):
            return value
        raise self._wrong(names, value, "a number")

    def share(self, *names: str) -> float:
        """Return the value of the keys (see `get`), a number above 0 and at most 1.

        Raises UsageError with the line for any other value, and if there is none.
        """
        value = self.number(*names)
        if value is None or not 0 < value <= 1:
            raise self.error("must be above 0, and at most 1", *names)
        return float(value)

    def flag(self, *names: str) -> bool:
        """Return the value of the keys (see `get`) as a boolean; 0 and 1 are booleans too, and no value is False.

        Raises UsageError with the line for any other value.
        """
        value = self.get(*names)
        if value is None or isinstance(value, bool) or value in (0, 1):
            return bool(value)
        raise self._wrong(names, value, "True or False")

    def text(self, *names: str) -> str:
        """Return the value of the keys (see `get`) as text; "" if they have no value."""
        value = self.get(*names)
        return "" if value is None else str(value)

    def error(self, what: str, *names: str) -> UsageError:
        """Return a UsageError at the line of the first of these keys that the run sets, or else of the command."""
        key = next((self.overrides[name] for name in names if name in self.overrides), None)
        return error_at(self.run.line, what, names[0]) if key is None else error_at(key.line, what, key.key)

    def imported(
        self, flow: ShippedFlow, run: SystemRun, *, settings: Iterable[tuple[str, Scalar]], **facts: Any
    ) -> Imported:
        """Return this run as a flow; call it last, because it reports the keys that were not read until then.

        `run` has the places and layouts of roles; a lag of more than 4 updates becomes 4. `settings` are pairs of a
        setting and its value; None leaves the setting out. `facts` are the other fields of `Imported`: models, unused
        models, batch and lengths.
        """
        ignored = {key.key: why for key in self.overrides.values() if (why := self._ignored(key))}
        # Words for a command of the system: no unknown values, no removals, no secrets.
        unread = (key for name, key in self.overrides.items() if ignored.get(name) in (NEEDLESS, UNREAD))
        literal = (key for key in unread if key.text and not key.unset and "{…}" not in key.text)
        again = (word for key in literal if not _SECRET.search(key.key) for word in words_of(key, self.table))
        return Imported(
            **{**vars(run), "lag": min(run.lag, MAX_STALENESS)},
            **facts,
            system=self.run.system,
            version=self.table.version,
            flow=flow.name,
            settings=settings_text(settings),
            placement=placement_of(flow, run.parts),
            ignored=tuple(ignored.items()),
            notes=tuple(self.notes),
            overrides={name: key.text for name, key in self.overrides.items()},
            again=tuple(again),
        )

    def _ignored(self, key: CommandKey) -> str:
        if key.key in self.unusable:
            return self.unusable[key.key]
        if key.key in self.read:
            return ""
        if key.key.partition(".")[0] in _LAUNCHER:
            return NEEDLESS
        if not self.table.knows(key.key):
            return f"{self.table.system} {self.table.version} has no such key; {self.table.hint(key.key)}"
        if self.table.irrelevant(key.key):
            return NEEDLESS
        default = self.table.defaults.get(key.key)
        value = key.text if key.unset else self._resolve(key.key, key.text, scalar(key.text))
        if isinstance(default, str) and "${" in default:
            default = self._resolve(key.key, default, default)
        is_empty = value in (None, "null", "[]", "{}") and default in (None, [], {})
        return NEEDLESS if value == default or is_empty else UNREAD

    def _default(self, name: str) -> Scalar:
        value = self.table.defaults.get(name)
        return value if isinstance(value, bool | int | float | str) else None

    def _resolve(self, name: str, text: str, value: Scalar) -> Scalar:
        if not isinstance(value, str) or "${" not in value:
            return value
        parent = name.rpartition(".")[0]
        absolute = text.replace("${.", f"${{{parent}.").replace("oc.select:.", f"oc.select:{parent}.")

        def referenced(name: str) -> Scalar:
            if name not in self.overrides or self.overrides[name].unset:
                return self._default(name)
            self.read.add(name)
            return scalar(self.overrides[name].text)

        try:
            return resolve_reference(absolute, referenced)
        except LookupError:
            if name in self.overrides:
                self.unusable[name] = f"it refers to a key without a value: {text[:60]}"
            return None

    def _number(self, names: Sequence[str], expected: str) -> Scalar:
        value, name = self.get(*names), next((name for name in names if name in self.overrides), "")
        if value is None and name and name not in self.unusable:
            if not self.overrides[name].text.strip():
                raise self._wrong(names, "empty", expected)
            if is_number(self.table.defaults.get(name)):
                self.note(f"`{name}` is set to null: the flow's own number is used instead, if it has one")
        return value

    def _wrong(self, names: Sequence[str], value: Scalar, expected: str) -> UsageError:
        return self.error(f"must be {expected}, not {value}", *names)


def settings_text(settings: Iterable[tuple[str, Scalar]]) -> tuple[str, ...]:
    """Return settings as `name=value` texts for `--set`; settings whose value is None are left out.

    >>> settings_text([("policy.update.lr", 1e-6), ("score.by", "data"), ("gae.lam", None), ("whiten", True)])
    ('policy.update.lr=1e-06', 'score.by=data', 'whiten=true')
    """
    texts = ((name, str(value).lower() if isinstance(value, bool) else value) for name, value in settings)
    return tuple(f"{name}={text}" for name, text in texts if text is not None)


def scalar(text: str) -> Scalar:
    """Return the boolean, number, None or string that a text represents in YAML or on a command line.

    Quotes around a string are removed, an empty text is None, and a number of over 39 characters stays a string.

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
    """Return whether a value is a finite int or float; booleans are not numbers here.

    >>> is_number(0.5), is_number(scalar("1e999")), is_number(True)
    (True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def resolve_reference(text: str, value_of: Callable[[str], Scalar], depth: int = 0) -> Scalar:
    """Return the value that `${other.key}` or `${oc.select:other.key,default}` refers to.

    `value_of` returns the value of a key; if it is None, the default counts. `depth` is the number of references that
    led to this one. Raises LookupError for text of another form, and for references that nest more than 20 deep.

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
