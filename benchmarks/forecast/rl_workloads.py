"""One published run as data, in TOML that a person can read, change and plan by hand; and what of it was measured.

Not here: how rows of a table become runs (`rl_rows`), and what the planner says of them (`rl_steps`).
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.forecast.rl_names import Degrees

FOLDER = Path(__file__).parents[1] / "workloads"


@dataclass(frozen=True)
class Seated:
    """Where a role runs: the name of its pool, and how it is cut, where that is known; else the planner chooses."""

    pool: str
    cut: Degrees | None = None


@dataclass(frozen=True)
class Workload:
    """A run as the planner is asked of it: texts are those of the command line's options.

    `pools` has the devices of each pool; none for a run whose placement the planner is to search. `streamed` says that
    drawing goes on while weights change, so that no step waits for its longest row. `checkpointing` is the trainer's,
    where it is known; else the planner chooses. `assumed` is what the row leaves out, and `measured` what was
    published: seconds by metric.
    """

    label: str
    source: str
    framework: str
    flow: str
    models: Mapping[str, str]
    cluster: str
    batch: int
    prompt_tokens: str
    response_tokens: str
    settings: tuple[str, ...] = ()
    engines: Mapping[str, str] = field(default_factory=dict[str, str])
    precision: str = "bfloat16"
    streamed: bool = False
    checkpointing: str = ""
    assumed: tuple[str, ...] = ()
    pools: Mapping[str, int] = field(default_factory=dict[str, int])
    roles: Mapping[str, Seated] = field(default_factory=dict[str, Seated])
    measured: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def devices(self) -> int:
        """Return the devices of all machines of its cluster."""
        nodes, each, _ = self.cluster.split("x", 2)
        return int(nodes) * int(each)

    @property
    def file(self) -> str:
        """Return the name of its file."""
        return re.sub(r"[^a-z0-9.]+", "-", self.label.casefold()).strip("-") + ".toml"

    @property
    def question(self) -> Workload:
        """Return it without what was measured and where from: two runs that are asked alike are equal in this."""
        return replace(self, label="", source="", measured={})

    @property
    def command(self) -> str:
        """Return the command that plans it, the placement left to the search."""
        words = ["flowgraph", "plan", self.flow, "--cluster", self.cluster, "--batch", str(self.batch)]
        words += ["--prompt-tokens", self.prompt_tokens, "--response-tokens", self.response_tokens]
        for name, model in self.models.items():
            words += ["--model", f"{name}={model}"]
        for each in self.settings:
            words += ["--set", each]
        for use, engine in self.engines.items():
            words += ["--engine", f"{use}={engine}"]
        return shlex.join([*words, "--precision", self.precision])


def to_toml(workload: Workload) -> str:
    """Write a workload; `from_toml` reads it back the same."""
    plain = [f"{name} = {_value(value)}" for name, value in _told(workload) if not isinstance(value, Mapping)]
    tables = [(name, value) for name, value in _told(workload) if isinstance(value, Mapping) and name != "roles"]
    lines = [f"# {workload.command}", "", *plain]
    for name, value in tables:
        lines += ["", f"[{name}]", *(f"{_key(key)} = {_value(each)}" for key, each in value.items())]
    for role, seated in workload.roles.items():
        cut = [] if seated.cut is None else [f"{each.name} = {getattr(seated.cut, each.name)}" for each in _DEGREES]
        lines += ["", f"[roles.{_value(role)}]", f"pool = {_value(seated.pool)}", *cut]
    return "\n".join(lines) + "\n"


_DEGREES = fields(Degrees)


def _told(workload: Workload) -> Iterator[tuple[str, Any]]:
    """Yield what has to be said, and what is said."""
    for each in fields(workload):
        value = getattr(workload, each.name)
        if value or (each.default is MISSING and each.default_factory is MISSING):
            yield each.name, value


def _key(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else _value(text)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(_value, value))}]" if isinstance(value, tuple) else str(value)


def from_toml(text: str) -> Workload:
    """Read a workload as it was written. Raises TypeError for a key that none has, ValueError for what is no TOML."""
    told: dict[str, Any] = tomllib.loads(text)
    groups: dict[str, dict[str, Any]] = told.pop("roles", {})
    cuts = {name: {key: each[key] for key in each if key != "pool"} for name, each in groups.items()}
    roles = {name: Seated(each["pool"], Degrees(**cuts[name]) if cuts[name] else None) for name, each in groups.items()}
    for name, value in told.items():
        told[name] = tuple(value) if isinstance(value, list) else value
    return Workload(**told, roles=roles)


def read(path: Path) -> Workload:
    """Read a workload's file."""
    return from_toml(path.read_text("utf-8"))
