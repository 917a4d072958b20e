"""JSON for golden files: a record is one line where it fits, so that a change to it is one line of a review."""

from __future__ import annotations

import json
from typing import Any

WIDTH = 160


def compact_json(text: str) -> str:
    """Return JSON in which a record that holds no record is one line, and so is all that fits into 160 characters."""
    return _written(json.loads(text), 0) + "\n"


def _written(value: Any, indent: int) -> str:
    line = json.dumps(value)
    if indent + len(line) <= WIDTH or not isinstance(value, dict | list):
        return line
    if isinstance(value, dict) and "{" not in line[1:]:
        return line
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        parts = [f"{inner}{json.dumps(name)}: {_written(part, indent + 1)}" for name, part in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{' ' * indent}}}"
    return "[\n" + ",\n".join(inner + _written(part, indent + 1) for part in value) + f"\n{' ' * indent}]"
