"""The one command of a launch script that starts a training, as keys and their values.

Hydra's overrides (`key=value`, `+key=value`) of verl, and OpenRLHF's flags (`--flag value`). Not here: what keys mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flowgraph.errors import UsageError
from nodes.interop.keys import System, keys, versions
from nodes.interop.shell import Command, Word, broken, commands

_VERL = re.compile(r"(?:verl|recipe)(?:\.\w+)+")
_OPENRLHF = re.compile(r"openrlhf(?:\.\w+)+")
_OTHER = re.compile(r".*(?:^|/)run_(?:grpo|ppo)\w*\.py")
_NO_TRAINING = re.compile("eval|generation|merge")
_SCRIPTS: dict[str, System] = {"train_ppo_ray.py": "openrlhf", "main_ppo.py": "verl"}
_KEY = re.compile(r"(\+\+|\+|~)?([A-Za-z_][\w.@/-]*)")


@dataclass(frozen=True)
class Told:
    """One key as it was told: its text, where it stands, and what in it only a running shell knows."""

    key: str
    text: str
    line: int
    unset: tuple[str, ...] = ()


@dataclass(frozen=True)
class Started:
    """What a command starts: the system, its module, and the keys it is told, the last of each winning."""

    system: System
    module: str
    line: int
    told: tuple[Told, ...]
    options: tuple[Told, ...] = ()  # Hydra's own: --config-name


def started(text: str) -> Started:
    """Find the command of verl or OpenRLHF in a shell text.

    Raises UsageError with the line and the word for a text without one, or with a word that is no key and value.
    """
    found = [each for command in commands(text) if (each := _started(command)) is not None]
    if not found:
        hint = "it should hold python3 -m verl.trainer.main_ppo … or python3 -m openrlhf.cli.train_ppo_ray …"
        raise UsageError("no command of verl or OpenRLHF is in this text", where="the command", hint=hint)
    return found[0]


def _started(command: Command) -> Started | None:
    words = [word for word in command if word.text or word.unset]
    if words and words[0].text in ("echo", "printf"):
        return None
    for place, word in enumerate(words):
        if _OTHER.fullmatch(word.text):
            raise broken(
                "NeMo RL is started from a configuration; plans are exported to it, not read", word.line, word.text
            )
        system = _system(word.text)
        if system is None:
            continue
        _refuse_others(word)
        rest = words[place + 1 :]
        if system == "openrlhf":
            return Started("openrlhf", word.text, word.line, tuple(_flags(rest)))
        told = list(_overrides(rest))
        options = tuple(each for each in told if each.key.startswith("--"))
        return Started("verl", word.text, word.line, tuple(each for each in told if each not in options), options)
    return None


def _system(text: str) -> System | None:
    """Give the system whose training a module or a script starts; merging, evaluating and generating start none."""
    name = text.rpartition("/")[2]
    if _VERL.fullmatch(text):
        last = text.rpartition(".")[2]
        return "verl" if "sft" in last or ("main" in last and not _NO_TRAINING.search(last)) else None
    if _OPENRLHF.fullmatch(text):
        return "openrlhf" if ".train_" in text else None
    return _SCRIPTS.get(name)


def _refuse_others(word: Word) -> None:
    """Refuse what is of a known system, but trains no policy on responses that it draws."""
    name = word.text.rpartition(".")[2] if not word.text.endswith(".py") else word.text
    if "sft" in name or (word.text.startswith("openrlhf.") and name != "train_ppo_ray"):
        raise broken("trains on no responses that it draws; what starts PPO and its kin is read", word.line, word.text)


def _overrides(words: Sequence[Word]) -> Iterator[Told]:
    """Read Hydra's overrides; `--config-name x` and `--config-name=x` are its options."""
    waiting: Word | None = None
    for word in words:
        if waiting is not None:
            yield Told(waiting.text, word.text, waiting.line, word.unset)
            waiting = None
            continue
        name, equals, value = word.text.partition("=")
        if word.text.startswith("-"):
            if equals:
                yield Told(name, value, word.line, word.unset)
            else:
                waiting = (
                    word if word.text in ("--config-name", "--config-path", "--config-dir", "-cn", "-cp") else None
                )
            continue
        found = _KEY.fullmatch(name)
        if not equals and word.unset and not name:
            continue  # a variable of further overrides that nobody set: "$@" of another name
        if found is None or not (equals or found[1] == "~"):
            raise broken("is no override, which is written key=value", word.line, word.text[:60])
        yield Told(found[2], value, word.line, word.unset)


def _flags(words: Sequence[Word]) -> Iterator[Told]:
    """Read flags and their values: as many as the flag takes, in the newest version that has it."""
    place = 0
    while place < len(words):
        word = words[place]
        name, equals, value = word.text.partition("=")
        place += 1
        if not name.startswith("--"):
            if word.unset and not word.text:
                continue
            raise broken("belongs to no flag", word.line, word.text[:60])
        values = [Word(value, word.line, word.unset)] if equals else []
        if not equals:
            many = _values_of(name[2:])
            while place < len(words) and _follows(words[place], values, many):
                values.append(words[place])
                place += 1
            if many != "*" and len(values) < (1 if many == "+" else int(many)):
                raise broken("lacks its value", word.line, word.text[:60])
        unset = tuple(each for value in values for each in value.unset)
        yield Told(name[2:], " ".join(value.text for value in values) if values else "True", word.line, unset)


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
