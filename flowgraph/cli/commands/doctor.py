"""`doctor`: what this machine has."""

from __future__ import annotations

from typing import Any

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import print_json, print_table
from flowgraph.cluster.cluster import show_bytes


def doctor(json: opt.Json = False) -> None:
    """Show what this machine has: versions, memory, GPUs."""
    facts = app.machine_facts()
    if json:
        print_json(facts)
    else:
        print_table(["what", "here"], [(name.replace("_", " "), _shown(value)) for name, value in facts.items()])


def _shown(value: Any) -> str:
    if value is None:
        return "not installed"
    if isinstance(value, list):
        return "\n".join(map(str, value)) or "none"
    return show_bytes(value) if isinstance(value, int) and value > 1_000_000 else str(value)
