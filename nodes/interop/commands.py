"""The one command of a launch script that starts a training, as keys and their values.

Hydra's overrides (`key=value`, `+key=value`) of verl, and OpenRLHF's flags (`--flag value`). Not here: what keys mean.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from flowgraph.errors import UsageError
from nodes.interop.char_reader import broken
from nodes.interop.keys import Keys, System, keys, versions
from nodes.interop.shell import Command, Word, commands

_VERL = re.compile(r"(?:verl|recipe)(?:\.\w+)+")
_OPENRLHF = re.compile(r"openrlhf(?:\.\w+)+")
_OTHER = re.compile(r".*(?:^|/)run_(?:grpo|ppo)\w*\.py")
_NO_TRAINING = re.compile("eval|generation|merge")
_SCRIPTS: dict[str, System] = {"train_ppo_ray.py": "openrlhf", "main_ppo.py": "verl"}
_OPTIONS = {name: name for name in ("--config-name", "--config-path", "--config-dir")} | {
    "-cn": "--config-name",
    "-cp": "--config-path",
    "-cd": "--config-dir",
}
_KEY = re.compile(r"(\+\+|\+|~)?([A-Za-z_][\w.@/-]*)")


@dataclass(frozen=True)
class CommandKey:
    """One key as it was told: its text, where it stands, and what in it only a running shell knows.

    `guessed` names variables of which the first of several values was taken.
    """

    key: str
    text: str
    line: int
    unset: tuple[str, ...] = ()
    guessed: tuple[str, ...] = ()


@dataclass(frozen=True)
class StartedCommand:
    """What a command starts: the system, its module, and the keys it is told, the last of each winning.

    `unread` names what may hold further keys and only a running shell knows; `others` are the lines of further
    commands that start a training.
    """

    system: System
    module: str
    line: int
    told: tuple[CommandKey, ...]
    options: tuple[CommandKey, ...] = ()  # Hydra's own: --config-name
    unread: tuple[str, ...] = ()
    others: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Beginning:
    """The word of a command that names what is started, what follows it, and why it cannot be read, None if it can."""

    system: System | None
    word: Word
    rest: Sequence[Word]
    refusal: UsageError | None


def started(text: str) -> StartedCommand:
    """Find the first command of verl or OpenRLHF in a shell text that trains a policy.

    Raises UsageError with the line and the word for a text without one, or with a word that is no key and value.
    """
    found = [each for command in commands(text) if (each := _beginning(command)) is not None]
    read = [each for each in found if each.refusal is None]
    if not read and found and found[0].refusal is not None:
        raise found[0].refusal
    if not read:
        hint = "it should hold python3 -m verl.trainer.main_ppo … or python3 -m openrlhf.cli.train_ppo_ray …"
        raise UsageError("no command of verl or OpenRLHF is in this text", where="the command", hint=hint)
    return replace(_started(read[0]), others=tuple(each.word.line for each in read[1:]))


def words_of(told: CommandKey, known: Keys) -> tuple[str, ...]:
    """Give the words that tell one key, quoted for a shell: an override of Hydra, or a flag and its values.

    >>> words_of(CommandKey("trainer.project_name", "two words", 1), keys("verl", "0.9.1"))
    ("'trainer.project_name=two words'",)
    >>> words_of(CommandKey("train.colocate_all", "True", 1), keys("openrlhf", "0.11.2"))
    ('--train.colocate_all',)
    """
    if known.system == "openrlhf":
        many = known.values.get(told.key, 1)
        values = [told.text] if many == 1 else told.text.split() if many != 0 else []
        return (f"--{told.key}", *map(shlex.quote, values))
    added = "" if told.key in known.defaults else "++"
    return (shlex.quote(f"{added}{told.key}={told.text}"),)


def _beginning(command: Command) -> _Beginning | None:
    if command[0].text in ("echo", "printf"):
        return None
    for place, word in enumerate(command):
        rest = command[place + 1 :]
        if _OTHER.fullmatch(word.text):
            what = "NeMo RL is started from a configuration; plans are exported to it, not read"
            return _Beginning(None, word, rest, broken(what, word.line, word.text))
        named = place > 0 and command[place - 1].text in ("-m", "--module")
        system = _system(word.text, named)
        if system is not None:
            return _Beginning(system, word, rest, _refusal(word))
    return None


def _started(found: _Beginning) -> StartedCommand:
    assert found.system is not None, "it was not refused"
    read = list((_flags if found.system == "openrlhf" else _overrides)(found.rest))
    return StartedCommand(
        found.system,
        found.word.text,
        found.word.line,
        told=tuple(each for each in read if each.key and not each.key.startswith("--")),
        options=tuple(each for each in read if each.key.startswith("--")),
        unread=tuple(dict.fromkeys(name for each in read if not each.key for name in each.unset)),
    )


def _system(text: str, named: bool) -> System | None:
    """Give the system whose training a module or a script starts; merging, evaluating and generating start none.

    A module is one where it is `named` as such: a script that imports it says its name too.
    """
    name = text.rpartition("/")[2]
    if named and _VERL.fullmatch(text):
        last = text.rpartition(".")[2]
        return "verl" if "sft" in last or ("main" in last and not _NO_TRAINING.search(last)) else None
    if named and _OPENRLHF.fullmatch(text):
        return "openrlhf" if ".train_" in text else None
    return _SCRIPTS.get(name)


def _refusal(word: Word) -> UsageError | None:
    """Refuse what is of a known system, but trains no policy on responses that it draws."""
    name = word.text.rpartition(".")[2] if not word.text.endswith(".py") else word.text
    if "sft" not in name and (not word.text.startswith("openrlhf.") or name == "train_ppo_ray"):
        return None
    return broken("trains on no responses that it draws; what starts PPO and its kin is read", word.line, word.text)


def _overrides(words: Sequence[Word]) -> Iterator[CommandKey]:
    """Read Hydra's overrides; `--config-name x` and `--config-name=x` are its options.

    A key of no name stands for a word that only a running shell knows: a variable of further overrides.
    """
    waiting: Word | None = None
    for word in words:
        if waiting is not None:
            yield CommandKey(_OPTIONS[waiting.text], word.text, waiting.line, word.unset, word.guessed)
            waiting = None
            continue
        if not word.text and not word.unset:
            continue  # an argument that nobody gave
        name, equals, value = word.text.partition("=")
        if word.text.startswith("-"):
            if equals and name in _OPTIONS:
                yield CommandKey(_OPTIONS[name], value, word.line, word.unset, word.guessed)
            waiting = word if word.text in _OPTIONS else None
            continue
        found = _KEY.fullmatch(name)
        if not equals and word.unset and not name:
            yield CommandKey("", "", word.line, word.unset)
            continue
        if found is None or not (equals or found[1] == "~"):
            raise broken("is no override, which is written key=value", word.line, word.text[:60])
        yield CommandKey(found[2], value, word.line, word.unset, word.guessed)


def _flags(words: Sequence[Word]) -> Iterator[CommandKey]:
    """Read flags and their values: as many as the flag takes, in the newest version that has it."""
    place = 0
    while place < len(words):
        word = words[place]
        name, equals, value = word.text.partition("=")
        place += 1
        if not name.startswith("--"):
            if not word.text:
                yield CommandKey("", "", word.line, word.unset)
                continue
            raise broken("belongs to no flag", word.line, word.text[:60])
        values = [Word(value, word.line, word.unset, word.guessed)] if equals else []
        if not equals:
            many = _values_of(name[2:])
            while place < len(words) and _follows(words[place], values, many):
                values.append(words[place])
                place += 1
            if many != "*" and len(values) < (1 if many == "+" else int(many)):
                raise broken("lacks its value", word.line, word.text[:60])
        unset = tuple(each for value in values for each in value.unset)
        guessed = tuple(each for value in values for each in value.guessed)
        text = " ".join(value.text for value in values) if values else "True"
        yield CommandKey(name[2:], text, word.line, unset, guessed)


def _follows(word: Word, values: Sequence[Word], many: int | str) -> bool:
    number = re.fullmatch(r"-\d+(\.\d+)?([eE][-+]?\d+)?|-\.\d+|-?inf", word.text) is not None
    if word.text.startswith("--") or (word.text.startswith("-") and not number):
        return False
    if many == "unknown":
        return not values
    return many in ("*", "+") or len(values) < int(many)


def _values_of(flag: str) -> int | str:
    """Give how many values follow a flag: of one that no version has, one if there is one."""
    for version in reversed(versions("openrlhf")):
        known = keys("openrlhf", version)
        if known.knows(flag):
            return known.values.get(flag, 1)
    return "*"
