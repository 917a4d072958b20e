"""How one command of a system becomes another: the keys that differ, as one would change them in a script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nodes.interop.commands import CommandKey, StartedCommand, started, words_of
from nodes.interop.imported import Imported
from nodes.interop.keys import keys, system_of

# A key that counts only where another says so: by the last name, or by all of it where both are named otherwise.
BESIDE: Mapping[str, str] = {
    "ppo_max_token_len_per_gpu": "use_dynamic_bsz",
    "log_prob_max_token_len_per_gpu": "log_prob_use_dynamic_bsz",
    "train.max_tokens_per_gpu": "train.dynamic_batch_enable",
    "rollout.max_tokens_per_gpu": "train.dynamic_batch_enable",
    "train_max_tokens_per_gpu": "use_dynamic_batch",
    "rollout_max_tokens_per_gpu": "use_dynamic_batch",
}


@dataclass(frozen=True)
class Change:
    """One key that differs: what it becomes, None where it is left out, and what it was, None where that was nothing.

    `words` tell it on a command line of the system.
    """

    key: str
    value: str | None
    was: str | None
    words: str

    def __str__(self) -> str:
        was = f"  (was {self.was})" if self.was is not None else ""
        return f"{'' if self.value is not None else 'without '}{self.words}{was}"


def changes(read: Imported, before: str, after: str) -> tuple[Change, ...]:
    """Give what differs between two commands that were written for one version, as changes of the run that was read.

    `before` is that run as it is written again. What a key was is what the run told it, else its default.
    """
    ours, theirs = started(before), started(after)
    one, other = _told(ours), _told(theirs)
    differing = [key for key in (*other, *one) if one.get(key) != other.get(key)]
    wanted = dict.fromkeys(each for key in differing for each in (*_needed(key), key))
    switched = [key for key in wanted if key in other and not _same(_was(read, key), other[key])]
    wanted |= dict.fromkeys(key for key in other if any(name in switched for name in _needed(key)))
    found = (_change(read, key, other.get(key), one.get(key)) for key in wanted)
    return (*_module(ours, theirs), *(each for each in found if not _same(each.was, each.value)))


def _change(read: Imported, key: str, value: str | None, before: str | None) -> Change:
    was = _was(read, key)
    known = keys(system_of(read.system), read.version)
    words = " ".join(words_of(CommandKey(key, value or "", 0), known)) if value is not None else key
    return Change(key, value, was if was is not None else before, words)


def _module(ours: StartedCommand, theirs: StartedCommand) -> Iterator[Change]:
    if ours.module != theirs.module:
        yield Change("-m", theirs.module, ours.module, f"python3 -m {theirs.module}")


def _told(run: StartedCommand) -> dict[str, str]:
    """Give all that a command tells, and what its keys count beside, which follow another where they are not told."""
    found = {each.key: each.text for each in run.told}
    return found | {name: "True" for key in found for name in _needed(key) if name not in found}


def _was(read: Imported, key: str) -> str | None:
    """Give what a run tells a key, or its default; a default that refers to another key is what that one is."""
    if key in read.told:
        return read.told[key]
    value = keys(system_of(read.system), read.version).defaults.get(key)
    if isinstance(value, str) and value.startswith("${oc.select:"):
        other, _, default = value[len("${oc.select:") : -1].partition(",")
        found = _was(read, other)
        return found if found is not None else default or None
    return None if value is None else str(value)


def _needed(key: str) -> Iterator[str]:
    """Give the key beside which another counts, if there is one."""
    where, _, last = key.rpartition(".")
    name = BESIDE.get(key) or BESIDE.get(last, "")
    if name:
        yield name if "." in name or not where else f"{where}.{name}"


def _same(one: str | None, other: str | None) -> bool:
    """Say whether two values are the same as they are read: `True` and `true`, 0.6 and 0.60."""
    if one is None or other is None:
        return one is other
    try:
        return float(one) == float(other)
    except ValueError:
        return one.strip("'\"").casefold() == other.strip("'\"").casefold()
