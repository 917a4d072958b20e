"""Runs of other systems, read from a launch script of verl or OpenRLHF, or a configuration of verl. Nothing is run."""

from __future__ import annotations

from nodes.interop.commands import CommandKey, StartedCommand, started
from nodes.interop.config import Config
from nodes.interop.imported import Imported
from nodes.interop.openrlhf.read import read_openrlhf
from nodes.interop.verl.read import read_verl
from nodes.interop.yaml_keys import keys_of_yaml


def read_command(text: str) -> Imported:
    """Return the run that a launch script of verl or OpenRLHF starts.

    Variables, defaults, arrays and arithmetic are substituted; keys that need a running shell are among `ignored`.
    Raises UsageError, with the line and the word, for text that is not a script, that starts no training, or whose
    numbers contradict each other.
    """
    run = started(text)
    return read_verl(Config.of(run)) if run.system == "verl" else read_openrlhf(Config.of(run))


def read_yaml(text: str) -> Imported:
    """Return the run of a verl configuration, whole or with only what differs from the defaults.

    Raises UsageError with the line for text that is not YAML, and as `read_command` does.
    """
    keys = keys_of_yaml(text)
    inherited = tuple(
        CommandKey("--config-name", name.strip(" '\""), key.line, key.unset)
        for key in keys
        if key.key == "defaults"
        for name in key.text.strip("[]").split(",")
        if name.strip(" '\"") not in ("", "_self_", "{…}")
    )
    overrides = tuple(key for key in keys if key.key.split(".")[0] not in ("defaults", "hydra"))
    return read_verl(Config.of(StartedCommand("verl", "a configuration", 1, overrides, inherited)))
