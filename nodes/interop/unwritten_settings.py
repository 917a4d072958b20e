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
from nodes.interop.algorithm import REPORTS

RESOURCE_SETTINGS = frozenset({"workers", "limit_s", "micro_batch_tokens"})  # change how fast, and in how much memory
SHARED_KINDS = frozenset({"generate", "update"})  # kinds whose nodes share one value in a system


def unwritten_settings(graph: Graph, unsaid: tuple[str, ...], write: Callable[[Graph], str]) -> tuple[str, ...]:
    """Return the settings of a graph, as `node.setting=value`, that do not change the text which `write` returns.

    To find them, `write` is called with a few other values of each setting. The result leaves out settings that have
    their default, change only speed and memory, or reach the text through another node of the same op; greedy
    temperatures; nodes that only report; and nodes named in `unsaid`, since a note names them already.
    """
    text, lost, written = write(graph), list[tuple[Node, str]](), list[tuple[Node, str]]()
    for node in graph.all_nodes:
        if node.name in unsaid or node.op.name in REPORTS:
            continue
        for name, setting in node.op.settings.model_fields.items():
            is_default = not setting.is_required() and getattr(node.settings, name) == setting.default
            if name not in RESOURCE_SETTINGS and not is_default:
                changed = _with_other_values(graph, node, name, write)
                (lost if all(variant == text for variant in changed) else written).append((node, name))
    texts = list[str]()
    for node, name in lost:
        value = getattr(node.settings, name)
        peers = (peer for peer, setting in written if setting == name and peer.op is node.op)
        is_shared = node.op.kind in SHARED_KINDS and any(getattr(peer.settings, name) == value for peer in peers)
        # A note names the estimator that reads greedy responses, if a system does not have it.
        is_greedy = (node.op.kind, name, value) == ("generate", "temperature", 0.0)
        if not (is_shared or is_greedy):
            text = str(getattr(value, "__name__", value))
            texts.append(f"{node.name}.{name}={text if text.isprintable() else repr(text)}")
    return tuple(texts)


def _with_other_values(graph: Graph, owner: Node, name: str, write: Callable[[Graph], str]) -> Iterator[str]:
    """Yield what is written with each of some other values of a node's setting, its default first; "" if refused."""

    def change(node: Node, settings: Any) -> Node:
        return replace(node, settings=settings) if node.name == owner.name else node

    setting, value = owner.op.settings.model_fields[name], getattr(owner.settings, name)
    values = list[Any]() if setting.is_required() else [setting.default]
    if isinstance(value, bool):
        values.append(not value)
    elif isinstance(value, int):
        values += [value + 1, value - 1]
    elif isinstance(value, float):
        values += [value / 2, value + 1]
    values += [choice for choice in get_args(setting.annotation) if isinstance(choice, str) and choice != value]
    settings_set = {field: getattr(owner.settings, field) for field in owner.settings.model_fields_set}
    for candidate in values:
        try:
            settings = owner.op.settings(**{**settings_set, name: candidate})
        except ValidationError:
            continue  # out of its range
        variant = rewrite(graph, partial(change, settings=settings))
        try:
            yield write(variant)
        except FlowError:
            yield ""
