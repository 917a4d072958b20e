"""The command of a launch script that starts a training, as keys and their values.

Hydra's overrides (`key=value`, `+key=value`) of verl, and OpenRLHF's flags (`--flag value`). Not here: what keys mean.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from flowgraph.errors import UsageError
from nodes.interop.keys import Keys, System, keys, versions
from nodes.interop.shell import Word, commands, error_at

_VERL = re.compile(r"(?:verl|recipe)(?:\.\w+)+")
_OPENRLHF = re.compile(r"openrlhf(?:\.\w+)+")
_NEMO_RL = re.compile(r".*(?:^|/)run_(?:grpo|ppo)\w*\.py")
_NO_TRAINING = re.compile("eval|generation|merge")
_SCRIPTS: dict[str, System] = {"train_ppo_ray.py": "openrlhf", "main_ppo.py": "verl"}
_OPTIONS = {
    **{name: name for name in ("--config-name", "--config-path", "--config-dir")},
    "-cn": "--config-name",
    "-cp": "--config-path",
    "-cd": "--config-dir",
}
NOT_READ = "NeMo RL starts from a configuration; plans are exported to it, not imported from it"
OFF_POLICY = "does not train on responses that it generates; only PPO and related algorithms are read"
_KEY = re.compile(r"(\+\+|\+|~)?([A-Za-z_][\w.@/-]*)")
_FLAG = re.compile(r"-(?!(?:\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|\.\d+|inf)\Z)")  # -0.5 is a value


@dataclass(frozen=True)
class CommandKey:
    """A key of a command, its value as text, and its line, counted from 1.

    `unset` names what only a running shell knows in the value. `guessed` names variables that have several values; the
    first value is used.
    """

    key: str
    text: str
    line: int
    unset: tuple[str, ...] = ()
    guessed: tuple[str, ...] = ()


@dataclass(frozen=True)
class StartedCommand:
    """The training that a command starts: the system, its module, and the command's keys in order.

    `options` are Hydra's own, such as `--config-name`. `unread` names variables that may hold further keys.
    `further_lines` are the lines of further commands that start a training.
    """

    system: System
    module: str
    line: int
    overrides: tuple[CommandKey, ...]
    options: tuple[CommandKey, ...] = ()  # Hydra's own: --config-name
    unread: tuple[str, ...] = ()
    further_lines: tuple[int, ...] = ()


def started(text: str) -> StartedCommand:
    """Return the first command in a shell script that trains a policy with verl or OpenRLHF; nothing is run.

    Raises UsageError for a text without such a command, and with the line for a text that is not a script, for one that
    only trains with NeMo RL or on given responses, and for a word of the command that is not a key and a value.
    """
    starts, refusals = list[tuple[System, Word, Sequence[Word]]](), list[UsageError]()
    for command in commands(text):
        for index, word in enumerate(command):
            system = _system(word.text, is_module=index > 0 and command[index - 1].text in ("-m", "--module"))
            if system is None or command[0].text in ("echo", "printf"):
                continue
            name = word.text if word.text.endswith(".py") else word.text.rpartition(".")[2]
            if system == "nemo-rl":
                refusals.append(error_at(word.line, NOT_READ, word.text))
            elif "sft" in name or (word.text.startswith("openrlhf.") and name != "train_ppo_ray"):
                refusals.append(error_at(word.line, OFF_POLICY, word.text))
            else:
                starts.append((system, word, command[index + 1 :]))
            break
    if not starts and refusals:
        raise refusals[0]
    if not starts:
        hint = "it must contain python3 -m verl.trainer.main_ppo … or python3 -m openrlhf.cli.train_ppo_ray …"
        raise UsageError("this text has no command of verl or OpenRLHF", where="the command", hint=hint)
    system, start, arguments = starts[0]
    read = list(_flags(arguments) if system == "openrlhf" else _overrides(arguments))
    return StartedCommand(
        system,
        start.text,
        start.line,
        overrides=tuple(key for key in read if key.key and not key.key.startswith("--")),
        options=tuple(key for key in read if key.key.startswith("--")),
        unread=tuple(dict.fromkeys(name for key in read if not key.key for name in key.unset)),
        further_lines=tuple(word.line for _, word, _ in starts[1:]),
    )


def words_of(key: CommandKey, table: Keys) -> tuple[str, ...]:
    """Return the command-line words that set one key, quoted for a shell: a Hydra override, or a flag with its values.

    >>> words_of(CommandKey("trainer.project_name", "two words", 1), keys("verl", "0.9.1"))
    ("'trainer.project_name=two words'",)
    >>> words_of(CommandKey("train.colocate_all", "True", 1), keys("openrlhf", "0.11.2"))
    ('--train.colocate_all',)
    """
    if table.system == "openrlhf":
        count = table.values.get(key.key, 1)
        values = [key.text] if count == 1 else key.text.split() if count != 0 else []
        return (f"--{key.key}", *map(shlex.quote, values))
    prefix = "" if key.key in table.defaults else "++"
    return (shlex.quote(f"{prefix}{key.key}={key.text}"),)


def _system(text: str, is_module: bool) -> System | None:
    """Return the system whose training a word starts, as a script or as a module after `-m`; None for another word."""
    if _NEMO_RL.fullmatch(text):
        return "nemo-rl"
    if is_module and _VERL.fullmatch(text):
        last = text.rpartition(".")[2]
        return "verl" if "sft" in last or ("main" in last and not _NO_TRAINING.search(last)) else None
    if is_module and _OPENRLHF.fullmatch(text):
        return "openrlhf" if ".train_" in text else None
    return _SCRIPTS.get(text.rpartition("/")[2])


def _overrides(words: Sequence[Word]) -> Iterator[CommandKey]:
    """Yield Hydra's overrides and options; a key without a name is a word that only a running shell knows."""
    remaining = iter(words)
    for word in remaining:
        name, equals, value = word.text.partition("=")
        option, key = _OPTIONS.get(name), _KEY.fullmatch(name)
        if word.text.startswith("-"):
            if option and equals:
                yield CommandKey(option, value, word.line, word.unset, word.guessed)
            elif option and (following := next(remaining, None)):
                yield CommandKey(option, following.text, word.line, following.unset, following.guessed)
        elif not word.text:
            if word.unset:
                yield CommandKey("", "", word.line, word.unset)
        elif key is not None and (equals or key[1] == "~"):
            yield CommandKey(key[2], value, word.line, word.unset, word.guessed)
        else:
            raise error_at(word.line, "is not an override, which is written key=value", word.text[:60])


def _flags(words: Sequence[Word]) -> Iterator[CommandKey]:
    remaining, newest_first = deque(words), [keys("openrlhf", version) for version in reversed(versions("openrlhf"))]
    while remaining:
        word = remaining.popleft()
        if not word.text:
            yield CommandKey("", "", word.line, word.unset)
            continue
        name, equals, value = word.text.partition("=")
        if not name.startswith("--"):
            raise error_at(word.line, "does not belong to a flag", word.text[:60])
        count = next((table.values.get(name[2:], 1) for table in newest_first if table.knows(name[2:])), "*")
        minimum, maximum = (count, count) if isinstance(count, int) else (1 if count == "+" else 0, math.inf)
        values = [replace(word, text=value)] if equals else []
        while not equals and remaining and not _FLAG.match(remaining[0].text) and len(values) < maximum:
            values.append(remaining.popleft())
        if not equals and len(values) < minimum:
            raise error_at(word.line, "has no value", word.text[:60])
        text = " ".join(value.text for value in values) if values else "True"
        unset = tuple(name for value in values for name in value.unset)
        guessed = tuple(name for value in values for name in value.guessed)
        yield CommandKey(name[2:], text, word.line, unset, guessed)
