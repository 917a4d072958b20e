"""What a command or configuration of another system says, in our words; and the text it is read from.

`read_command` reads a launch script of verl or OpenRLHF, `read_yaml` a configuration of verl. Nothing is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flowgraph.plan import Layout, Running
from flowgraph.roles import Use


@dataclass(frozen=True)
class Shared:
    """Roles that share devices, how many, and how many of each machine."""

    roles: tuple[str, ...]
    devices: int
    devices_per_node: int


@dataclass(frozen=True)
class Imported:
    """A run of another system as a flow that is shipped, its settings, models and batch, and where roles run.

    `settings` are texts for `--set`. `unused` are models that the flow has and the run does not. `placement` is the
    name of a placement with these `parts`, "" where none has them. `lag` is how many updates old the weights may be
    that responses are drawn with. `ignored` says of every key that nothing here depends on why, and names the nearest
    key for one that the system does not know.
    """

    system: str
    version: str
    flow: str
    settings: tuple[str, ...]
    models: Mapping[str, str] = field(hash=False)
    unused: tuple[str, ...]
    batch: int
    prompt_tokens: int
    response_tokens: int
    devices: int
    devices_per_node: int
    placement: str
    parts: tuple[Shared, ...]
    engines: Mapping[Use, str] = field(hash=False)
    layouts: Mapping[str, Layout] = field(hash=False)
    running: Mapping[str, Running] = field(hash=False)
    lag: int
    ignored: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def read_command(text: str) -> Imported:
    """Read the command of a launch script of verl or OpenRLHF.

    Variables, defaults, arrays and arithmetic are put in; what only a running shell knows is among `ignored`.
    Raises UsageError, with the line and the word, for a text that no shell reads, that starts no training, or whose
    numbers make no run.
    """
    from nodes.interop.commands import started
    from nodes.interop.from_openrlhf import from_openrlhf
    from nodes.interop.from_verl import from_verl

    found = started(text)
    return from_verl(found) if found.system == "verl" else from_openrlhf(found)


def read_yaml(text: str) -> Imported:
    """Read a configuration of verl, whole or the part that differs from its defaults.

    Raises UsageError with the line for text that is no YAML, and as `read_command` does.
    """
    from nodes.interop.commands import Started
    from nodes.interop.from_verl import from_verl
    from nodes.interop.yaml_text import told_by

    told = tuple(each for each in told_by(text) if each.key.split(".")[0] not in ("defaults", "hydra"))
    return from_verl(Started("verl", "a configuration", 1, told))
