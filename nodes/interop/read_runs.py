"""Runs of other systems, read from a launch script of verl or OpenRLHF, or a configuration of verl. Nothing is run."""

from __future__ import annotations

from nodes.interop.commands import CommandKey, StartedCommand, started
from nodes.interop.from_openrlhf import from_openrlhf
from nodes.interop.from_verl import from_verl
from nodes.interop.imported import Imported
from nodes.interop.yaml_text import told_by


def read_command(text: str) -> Imported:
    """Read the command of a launch script of verl or OpenRLHF.

    Variables, defaults, arrays and arithmetic are put in; what only a running shell knows is among `ignored`.
    Raises UsageError, with the line and the word, for a text that no shell reads, that starts no training, or whose
    numbers make no run.
    """
    found = started(text)
    return from_verl(found) if found.system == "verl" else from_openrlhf(found)


def read_yaml(text: str) -> Imported:
    """Read a configuration of verl, whole or the part that differs from its defaults.

    Raises UsageError with the line for text that is no YAML, and as `read_command` does.
    """
    found = told_by(text)
    told = tuple(each for each in found if each.key.split(".")[0] not in ("defaults", "hydra"))
    inherited = tuple(
        CommandKey("--config-name", name.strip(" '\""), each.line, each.unset)
        for each in found
        if each.key == "defaults"
        for name in each.text.strip("[]").split(",")
        if name.strip(" '\"") not in ("", "_self_", "{…}")
    )
    return from_verl(StartedCommand("verl", "a configuration", 1, told, inherited))
