"""Where each setting comes from: a node's default, what is known to work for a model or data set, the flow, `--set`.

Later ones win; every resolved setting keeps its origin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flowgraph.analysis.flat_graph import plain_settings
from flowgraph.errors import SettingError
from flowgraph.files.untrusted import parse_json
from flowgraph.language.graph import Graph, Node, carried_from, rewrite
from flowgraph.language.signature import make_settings


@dataclass(frozen=True)
class Suggestion:
    """Settings by "op.setting" that are known to work, who says so, and for which model parameter (None: any node)."""

    origin: str
    values: Mapping[str, object]
    param: str | None = None


@dataclass(frozen=True)
class ResolvedSetting:
    """One setting as a run uses it, and where it comes from."""

    name: str
    value: Any
    origin: str


def parse_assignment(text: str) -> tuple[str, object]:
    """Read `name=value`; the value is JSON if it can be, else text.

    >>> parse_assignment("policy.generate.n=16"), parse_assignment("score.by=exact")
    (('policy.generate.n', 16), ('score.by', 'exact'))
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise SettingError(
            f"`{text}` is no setting", where="--set", hint="write name=value: --set policy.generate.n=16"
        )
    try:
        return name.strip(), parse_json(value)
    except ValueError:
        return name.strip(), value


def split_assignments(
    graph_settings: Sequence[str], texts: Sequence[str]
) -> tuple[dict[str, object], dict[str, object]]:
    """Sort `--set` texts into settings of the flow itself and settings of its nodes."""
    pairs = dict(parse_assignment(text) for text in texts)
    own = {name: value for name, value in pairs.items() if name in graph_settings}
    return own, {name: value for name, value in pairs.items() if name not in own}


def resolve_settings(
    graph: Graph, suggestions: Sequence[Suggestion], chosen: Mapping[str, object]
) -> tuple[Graph, tuple[ResolvedSetting, ...]]:
    """Set a named graph's settings and say where each comes from.

    `chosen` is by `node.setting` and wins over all; suggestions fill in only what the flow's text leaves open.
    Raises `SettingError` for a name that is not there (with the nearest) and a value out of range.
    """
    wanted = _by_node(graph, chosen)
    origins: dict[str, str] = {}

    def change(node: Node) -> Node:
        values = {name: getattr(node.settings, name) for name in node.settings.model_fields_set}
        told = dict.fromkeys(values, str(node.at))
        for suggestion in suggestions:
            for name, value in _suggested(graph, node, suggestion).items():
                values[name], told[name] = value, suggestion.origin
            make_settings(node.op.settings, values, node.name, suggestion.origin)
        for name, value in wanted.get(node.name, {}).items():
            values[name], told[name] = value, "--set"
        origins.update({f"{node.name}.{name}": origin for name, origin in told.items()})
        return replace(node, settings=make_settings(node.op.settings, values, node.name, "--set"))

    done = rewrite(graph, change)
    own = graph.settings
    flow_settings = [
        ResolvedSetting(name, value, "--set" if own is not None and name in own.model_fields_set else "default")
        for name, value in (plain_settings(own) if own is not None else {}).items()
    ]
    resolved = [
        ResolvedSetting(f"{node.name}.{name}", value, origins.get(f"{node.name}.{name}", "default"))
        for node in done.all_nodes
        for name, value in plain_settings(node.settings).items()
    ]
    return done, (*flow_settings, *resolved)


def settings_compared(one: Graph, other: Graph) -> tuple[Graph, Graph]:
    """Return two named graphs whose nodes of one name and op tell the same settings: those that either has changed.

    So what a text of both tells differently has another value: a default that one of them wrote down is no change.
    """
    nodes = {(node.name, node.op.module, node.op.name): node for node in one.all_nodes}
    pairs = [(nodes.get((node.name, node.op.module, node.op.name)), node) for node in other.all_nodes]
    changed = {first.name: _changed(first) | _changed(node) for first, node in pairs if first is not None}

    def change(node: Node) -> Node:
        told = changed.get(node.name, set()) & set(node.op.settings.model_fields) | _changed(node)
        values = {name: getattr(node.settings, name) for name in node.op.settings.model_fields if name in told}
        return replace(node, settings=make_settings(node.op.settings, values, node.name, "compared"))

    return rewrite(one, change), rewrite(other, change)


def _changed(node: Node) -> set[str]:
    """Return the settings of a node that have no default, or another value."""
    fields = node.op.settings.model_fields
    return {
        name for name, field in fields.items() if field.is_required() or getattr(node.settings, name) != field.default
    }


def setting_faults(graph: Graph, chosen: Mapping[str, object]) -> list[SettingError]:
    """Give every fault in what is chosen by `node.setting` for a named graph: each is tried by itself."""
    found = list[SettingError]()
    for name, value in chosen.items():
        try:
            resolve_settings(graph, (), {name: value})
        except SettingError as error:
            found.append(error)
    return found


def _suggested(graph: Graph, node: Node, suggestion: Suggestion) -> dict[str, object]:
    """Give what is suggested for a node and left open by the flow's text."""
    if suggestion.param not in (None, _model_param(graph, node)):
        return {}
    named = {name.rpartition("."): value for name, value in suggestion.values.items()}
    given = node.settings.model_fields_set
    return {name: value for (op, _, name), value in named.items() if op == node.op.name and name not in given}


def _model_param(graph: Graph, node: Node) -> str | None:
    edge = node.model()
    if edge is None:
        return None
    param = carried_from(edge)
    return param.name if param is not None and param in graph.params else None


def _by_node(graph: Graph, chosen: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """Sort `node.setting` names by node; a node's own name may hold dots."""
    settings = {node.name: node.op.settings.model_fields for node in graph.all_nodes}
    wanted: dict[str, dict[str, object]] = {}
    for dotted, value in chosen.items():
        name, _, setting = dotted.rpartition(".")
        if name not in settings:
            known = [f"{node}.{each}" for node, fields in settings.items() for each in fields]
            own = list(graph.settings.__class__.model_fields) if graph.settings is not None else []
            raise SettingError.no_owner(dotted, [*own, *known])
        if setting not in settings[name]:
            raise SettingError.unknown("--set", name, setting, settings[name])
        wanted.setdefault(name, {})[setting] = value
    return wanted
