"""Settings of a flow that change nothing in an exported file, so that the system would lose them.

They are found by trial: a setting that is not its default gets another value, and the file stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, get_args

from pydantic import ValidationError

from flowgraph.errors import FlowError
from flowgraph.language.graph import Graph, Node, rewrite
from nodes.interop.algorithm import REPORTS, settings_of

RESOURCE_SETTINGS = frozenset({"workers", "limit_s", "micro_batch_tokens"})  # change how fast, and in how much memory
SHARED_KINDS = frozenset({"generate", "update"})  # kinds whose nodes share one value in a system


def unwritten_settings(graph: Graph, unsaid: tuple[str, ...], write: Callable[[Graph], str]) -> tuple[str, ...]:
    """Return `node.setting=value` of each setting that changes numbers and not what `write` returns.

    Nodes of `unsaid` are left out, since a note names them already, and those that only report.
    """
    text, lost, written = write(graph), list[tuple[Node, str]](), list[tuple[Node, str]]()
    for node in graph.all_nodes:
        if node.name in unsaid or node.op.name in REPORTS:
            continue
        for name, setting in node.op.settings.model_fields.items():
            is_default = not setting.is_required() and getattr(node.settings, name) == setting.default
            if name not in RESOURCE_SETTINGS and not is_default:
                (written if _changes_text(graph, node, name, text, write) else lost).append((node, name))
    shown = [(node, name, getattr(node.settings, name)) for node, name in lost if not _is_shared(node, name, written)]
    return tuple(f"{node.name}.{name}={getattr(value, '__name__', value)}" for node, name, value in shown)


def _changes_text(graph: Graph, node: Node, name: str, text: str, write: Callable[[Graph], str]) -> bool:
    """Return whether another value of a setting changes the file, or is refused."""
    for value in _other_values(node, name):
        try:
            changed = rewrite(graph, partial(_with_setting, node.name, name, value))
        except ValidationError:
            continue  # out of its range
        try:
            if write(changed) != text:
                return True
        except FlowError:
            return True
    return False


def _other_values(node: Node, name: str) -> Iterator[Any]:
    """Yield other values of a setting, its default first; some may be out of its range."""
    setting, value = node.op.settings.model_fields[name], getattr(node.settings, name)
    if not setting.is_required():
        yield setting.default
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1)
    elif isinstance(value, float):
        yield from (value / 2, value + 1)
    yield from (choice for choice in get_args(setting.annotation) if isinstance(choice, str) and choice != value)


def _with_setting(owner: str, name: str, value: Any, node: Node) -> Node:
    """Return the node called `owner` with another value of a setting; any other node as it is."""
    if node.name != owner:
        return node
    settings = {field: getattr(node.settings, field) for field in node.settings.model_fields_set}
    return replace(node, settings=node.op.settings(**{**settings, name: value}))


def _is_shared(node: Node, name: str, written: list[tuple[Node, str]]) -> bool:
    """Return whether another node of this kind writes the same value."""
    value = settings_of(node)[name]
    if (node.op.kind, name, value) == ("generate", "temperature", 0.0):
        return True  # a note names the estimator that reads greedy responses, if a system does not have it
    others = (other for other, setting in written if setting == name and other.op is node.op)
    return node.op.kind in SHARED_KINDS and any(settings_of(other)[name] == value for other in others)
