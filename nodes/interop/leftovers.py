"""Settings of a flow that change nothing in what is written for a system: a system that is told so would lose them.

Found by trying: a setting that is not its default is set to another value, and what is written stays the same.
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

NO_NUMBERS = frozenset({"workers", "limit_s", "micro_batch_tokens"})  # how fast, and in how much memory
ALIKE = frozenset({"generate", "update"})  # kinds whose nodes a system gives one value


def left_out(graph: Graph, unsaid: tuple[str, ...], written: Callable[[Graph], str]) -> tuple[str, ...]:
    """Return `node.setting=value` of each setting that changes numbers and that `written` does not depend on.

    Nodes of `unsaid` are named already, and what only reports changes nothing that is learnt.
    """
    before, lost, said = written(graph), list[tuple[Node, str]](), list[tuple[Node, str]]()
    for node in graph.all_nodes:
        if node.name in unsaid or node.op.name in REPORTS:
            continue
        for name in _changed(node):
            told = _depends(graph, f"{node.name}.{name}", _others(node, name), before, written)
            (said if told else lost).append((node, name))
    return tuple(f"{node.name}.{name}={_shown(node, name)}" for node, name in lost if not _alike(node, name, said))


def _changed(node: Node) -> Iterator[str]:
    """Give the settings of a node that change numbers, and have no default or another value."""
    for name, field in node.op.settings.model_fields.items():
        value = getattr(node.settings, name)
        if name not in NO_NUMBERS and (field.is_required() or value != field.default):
            yield name


def _others(node: Node, name: str) -> Iterator[Any]:
    """Give other values of a setting, its default first; some may be out of its range."""
    field, value = node.op.settings.model_fields[name], getattr(node.settings, name)
    if not field.is_required():
        yield field.default
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1)
    elif isinstance(value, float):
        yield from (value / 2, value + 1)
    yield from (each for each in get_args(field.annotation) if isinstance(each, str) and each != value)


def _depends(graph: Graph, name: str, others: Iterator[Any], before: str, written: Callable[[Graph], str]) -> bool:
    """Say whether what is written is another with another value of a setting, or is refused."""
    for value in others:
        try:
            other = rewrite(graph, partial(_with, name, value))
        except ValidationError:
            continue  # out of its range
        try:
            if written(other) != before:
                return True
        except FlowError:
            return True
    return False


def _with(name: str, value: Any, node: Node) -> Node:
    """Return a node with another value of the setting `node.setting`; another node as it is."""
    owner, _, setting = name.rpartition(".")
    if node.name != owner:
        return node
    told = {each: getattr(node.settings, each) for each in node.settings.model_fields_set}
    return replace(node, settings=node.op.settings(**{**told, setting: value}))


def _alike(node: Node, name: str, said: list[tuple[Node, str]]) -> bool:
    """Say whether a system is told the same value by another node of this kind, as of a baseline's greedy samples."""
    value = settings_of(node)[name]
    if (node.op.kind, name, value) == ("generate", "temperature", 0.0):
        return True  # what reads them is named where a system has it not
    others = (other for other, told in said if told == name and other.op is node.op)
    return node.op.kind in ALIKE and any(settings_of(other)[name] == value for other in others)


def _shown(node: Node, name: str) -> str:
    value = getattr(node.settings, name)
    return str(getattr(value, "__name__", value))
