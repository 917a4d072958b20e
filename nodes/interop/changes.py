"""The keys that differ between two commands of a system, as one would change them in a script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nodes.interop.commands import CommandKey, StartedCommand, started, words_of
from nodes.interop.imported import Imported
from nodes.interop.keys import keys, system_of

# A key that counts only if a switch is on: by its last name, or by its whole name if the switch is elsewhere.
SWITCHES: Mapping[str, str] = {
    "ppo_max_token_len_per_gpu": "use_dynamic_bsz",
    "log_prob_max_token_len_per_gpu": "log_prob_use_dynamic_bsz",
    "train.max_tokens_per_gpu": "train.dynamic_batch_enable",
    "rollout.max_tokens_per_gpu": "train.dynamic_batch_enable",
    "train_max_tokens_per_gpu": "use_dynamic_batch",
    "rollout_max_tokens_per_gpu": "use_dynamic_batch",
}


@dataclass(frozen=True)
class Change:
    """A key that differs: its new value, None to remove the key, and its old value, None if it had none.

    `words` are the command-line words that set the key.
    """

    key: str
    value: str | None
    was: str | None
    words: str

    def __str__(self) -> str:
        was = f"  (was {self.was})" if self.was is not None else ""
        return f"{'' if self.value is not None else 'without '}{self.words}{was}"


def changes(read: Imported, before: str, after: str) -> tuple[Change, ...]:
    """Return the changes to a run's command after which the run does what the command `after` starts.

    `before` is the plan of the run `read`, exported as a command for the same version as `after`. The keys that differ
    between these two commands are changed, unless the run has their new values already; a change of the trainer's
    module comes first, with the key `-m`. The old value of a key is the one that the run sets, or its default. Raises
    UsageError if a text has no command.
    """
    old_run, new_run = started(before), started(after)
    old, new = _texts(old_run), _texts(new_run)
    differing = [key for key in (*new, *old) if old.get(key) != new.get(key)]
    keys_to_change = dict.fromkeys(name for key in differing for name in (_switch(key), key) if name)
    switched = [key for key in keys_to_change if key in new and not _equal(_old_value(read, key), new[key])]
    keys_to_change |= dict.fromkeys(key for key in new if _switch(key) in switched)
    table = keys(system_of(read.system), read.version)
    changed = [Change("-m", new_run.module, old_run.module, f"python3 -m {new_run.module}")]
    for key in keys_to_change:
        value, was = new.get(key), _old_value(read, key)
        words = key if value is None else " ".join(words_of(CommandKey(key, value, 0), table))
        changed.append(Change(key, value, old.get(key) if was is None else was, words))
    return tuple(change for change in changed if not _equal(change.was, change.value))


def _texts(run: StartedCommand) -> dict[str, str]:
    texts = {key.key: key.text for key in run.overrides}
    return texts | {switch: "True" for key in texts if (switch := _switch(key)) and switch not in texts}


def _old_value(read: Imported, key: str) -> str | None:
    """Return the value that a run sets for a key, or its default, also one that refers to another key."""
    if key in read.overrides:
        return read.overrides[key]
    value = keys(system_of(read.system), read.version).defaults.get(key)
    if isinstance(value, str) and value.startswith("${oc.select:"):
        key, _, default = value[len("${oc.select:") : -1].partition(",")
        old = _old_value(read, key)
        return old if old is not None else default or None
    return None if value is None else str(value)


def _switch(key: str) -> str:
    parent, _, last = key.rpartition(".")
    switch = SWITCHES.get(key) or SWITCHES.get(last, "")
    return f"{parent}.{switch}" if switch and parent and "." not in switch else switch


def _equal(a: str | None, b: str | None) -> bool:
    """Return whether a system reads two values alike: `True` and `true`, 0.6 and 0.60."""
    if a is None or b is None:
        return a is b
    try:
        return float(a) == float(b)
    except ValueError:
        return a.strip("'\"").casefold() == b.strip("'\"").casefold()
