"""The keys of one run of another system: as told, else as its version has them by default."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from flowgraph.errors import UsageError
from nodes.interop.char_reader import broken
from nodes.interop.commands import CommandKey, StartedCommand, words_of
from nodes.interop.imported import NEEDLESS, UNREAD
from nodes.interop.keys import Keys, keys, versions
from nodes.interop.needless import needless
from nodes.interop.scalars import Scalar, is_number, referred, scalar

MOST = 2**31 - 1  # of whole numbers: tokens, rows, devices
MISSING = "???"  # what Hydra writes for a value that has to be given
_LAUNCHER = ("hydra", "ray_init", "ray_kwargs")  # keys of what starts a run, in any version
# Keys whose values are nobody's to print.
_SECRET = re.compile(r"(?:use_wandb|wandb[._](?:key|proxy)|token|secret|password|api_key)$")


def version_of(run: StartedCommand) -> Keys:
    """Give the newest version that knows as many of a run's keys as any does."""
    told = {each.key for each in run.told}
    known = [keys(run.system, version) for version in versions(run.system)]
    return max(known, key=lambda each: (sum(each.knows(key) for key in told), known.index(each)))


@dataclass
class Config:
    """What a run says, key by key; it remembers which keys were asked for, so that the others can be reported."""

    run: StartedCommand
    known: Keys
    told: dict[str, CommandKey]
    asked: set[str] = field(default_factory=set[str])
    why: dict[str, str] = field(default_factory=dict[str, str])  # of keys that were asked for, and say nothing usable
    notes: list[str] = field(default_factory=list[str])

    @classmethod
    def of(cls, run: StartedCommand, known: Keys | None = None) -> Config:
        """Read a run with the keys of a version, or of that which fits it best, and say what else its text has."""
        found = cls(run, known or version_of(run), {each.key: each for each in run.told})
        if run.others:
            lines = ", ".join(map(str, run.others))
            found.say(f"the command of line {run.line} is read; further ones start a training on lines {lines}")
        for key, last in found.told.items():
            if any(each.key == key and each.text != last.text for each in run.told):
                found.say(f"`{key}` is told more than once: the last is taken, {last.text[:60]}")
        for name in run.unread:
            found.say(f"`{name}` may hold further keys; only a running shell knows them")
        return found

    def say(self, text: str) -> None:
        """Add a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    def get(self, *names: str) -> Scalar:
        """Give the value of the first of these keys that is told, else of the first that has a default."""
        self.asked.update(names)
        empty = False  # a key is told to be none, so no default stands in its place
        for name in names:
            if name not in self.told:
                continue
            if (value := self._told(self.told[name])) is not None:
                return value
            empty = empty or name not in self.why
        defaults = () if empty else (self._default(name) for name in names)
        return next((value for value in defaults if value is not None), None)

    def has(self, name: str) -> bool:
        """Say whether a key is told."""
        return name in self.told

    def whole(self, *names: str) -> int | None:
        """Give a whole number; raises UsageError with the line for another value."""
        value = self._unless_empty(names, "a whole number")
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MOST):
            return value
        large = isinstance(value, int) and not isinstance(value, bool)
        raise self._wrong(names, value, f"at most {MOST:,}" if large else "a whole number")

    def positive(self, *names: str) -> int:
        """Give a whole number above 0."""
        value = self.whole(*names)
        if value is None or value < 1:
            raise self._wrong(names, value, "a whole number above 0")
        return value

    def counted(self, *names: str) -> int | None:
        """Give a whole number above 0, None where there is none."""
        value = self.whole(*names)
        return value if value is None else self.positive(*names)

    def number(self, *names: str) -> float | None:
        """Give a number; raises UsageError with the line for another value, and for one that is not finite."""
        value = self._unless_empty(names, "a number")
        if value is None or is_number(value):
            return value
        raise self._wrong(names, value, "a number")

    def flag(self, *names: str) -> bool:
        """Give yes or no; what is not told and has no default is no."""
        value = self.get(*names)
        if value is None or isinstance(value, bool) or value in (0, 1):
            return bool(value)
        raise self._wrong(names, value, "True or False")

    def text(self, *names: str) -> str:
        """Give a text, "" where there is none."""
        value = self.get(*names)
        return "" if value is None else str(value)

    def ignored(self) -> tuple[tuple[str, str], ...]:
        """Say of each key that was told and that nothing depends on why."""
        return tuple((each.key, why) for each in self.told.values() if (why := self._ignored(each)))

    def texts(self) -> Mapping[str, str]:
        """Give all keys that are told, with what they were told."""
        return {key: each.text for key, each in self.told.items()}

    def again(self) -> tuple[str, ...]:
        """Give the words that tell what no plan depends on or holds, as a command takes them.

        Left out is what only a running shell knows, what takes a key away, and what is secret.
        """
        told = (each for each in self.told.values() if self._ignored(each) in (NEEDLESS, UNREAD))
        plain = (each for each in told if each.text and not each.unset and "{…}" not in each.text)
        return tuple(word for each in plain if not _SECRET.search(each.key) for word in words_of(each, self.known))

    def _ignored(self, told: CommandKey) -> str:
        if told.key in self.why:
            return self.why[told.key]
        if told.key in self.asked:
            return ""
        if told.key.partition(".")[0] in _LAUNCHER:
            return NEEDLESS
        if not self.known.knows(told.key):
            return f"{self.known.system} {self.known.version} has no such key; {self.known.hint(told.key)}"
        return NEEDLESS if needless(self.known.system, told.key) or self._has_default(told) else UNREAD

    def _has_default(self, told: CommandKey) -> bool:
        """Say whether a key is told what it is without being told."""
        default = self.known.defaults.get(told.key)
        value = told.text if told.unset else self._referred(told.key, told.text, scalar(told.text))
        if isinstance(default, str) and "${" in default:
            default = self._referred(told.key, default, default)
        return value == default or (value in (None, "null", "[]", "{}") and default in (None, [], {}))

    def _told(self, told: CommandKey) -> Scalar:
        if told.unset:
            self.why[told.key] = f"only a running shell knows its value: {', '.join(told.unset)}"
            return None
        if told.text == MISSING:
            self.why[told.key] = "it is left to be given"
            return None
        for name in told.guessed:
            self.say(f"`{name}` is set under conditions: the first of its values is taken, {told.text[:60]}")
        return self._referred(told.key, told.text, scalar(told.text))

    def _default(self, name: str) -> Scalar:
        value = self.known.defaults.get(name)
        if not isinstance(value, str):
            return value if isinstance(value, bool | int | float) else None
        return None if value == MISSING else self._referred(name, value, value)

    def _referred(self, name: str, text: str, value: Scalar) -> Scalar:
        """Put in what a value refers to; one that nobody can put in says nothing."""
        if not isinstance(value, str) or "${" not in value:
            return value
        above = name.rpartition(".")[0]
        full = text.replace("${.", f"${{{above}.").replace("oc.select:.", f"oc.select:{above}.")
        try:
            return referred(full, self._other)
        except LookupError:
            if name in self.told:
                self.why[name] = f"it refers to what is not told: {text[:60]}"
            return None

    def _other(self, name: str) -> Scalar:
        if name in self.told and not self.told[name].unset:
            self.asked.add(name)
            return scalar(self.told[name].text)
        value = self.known.defaults.get(name)
        return value if isinstance(value, bool | int | float | str) else None

    def _unless_empty(self, names: Sequence[str], wanted: str) -> Scalar:
        """Give what a number is told to be; an empty text is no number, and null is said where there is a default."""
        value, name = self.get(*names), next((name for name in names if name in self.told), "")
        if value is None and name and name not in self.why:
            if not self.told[name].text.strip():
                raise self._wrong(names, "empty", wanted)
            if is_number(self.known.defaults.get(name)):
                self.say(f"`{name}` is told to be null: a number of the flow's own stands in its place, if it has one")
        return value

    def _wrong(self, names: Sequence[str], value: Scalar, wanted: str) -> UsageError:
        told = next((self.told[name] for name in names if name in self.told), None)
        line = told.line if told is not None else self.run.line
        return broken(f"should be {wanted}, not {value}", line, names[0] if told is None else told.key)


def settings_text(pairs: Iterator[tuple[str, Scalar]]) -> tuple[str, ...]:
    """Write settings as `--set` takes them; what is None is left to the flow.

    >>> settings_text(iter([("policy.update.lr", 1e-6), ("score.by", "data"), ("gae.lam", None)]))
    ('policy.update.lr=1e-06', 'score.by=data')
    """
    return tuple(f"{name}={_json(value)}" for name, value in pairs if value is not None)


def _json(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
