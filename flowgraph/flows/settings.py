"""Settings and their origins: a node's default, a suggestion for a model or data set, the flow, or `--set`.

A later origin in this list overrides an earlier one; every resolved setting records its origin.
"""

from __future__ import annotations

from collections import defaultdict
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
    """Suggested settings by "op.setting", and their origin; for nodes that read the model `param`, or all if None."""

    origin: str
    values: Mapping[str, object]
    param: str | None = None


@dataclass(frozen=True)
class ResolvedSetting:
    """One setting with the value that a run uses, and the origin of this value."""

    name: str
    value: Any
    origin: str


def parse_assignment(text: str) -> tuple[str, object]:
    """Return the name and value of a text `name=value`; the value is parsed as JSON, or else is the text itself.

    White space around the name is removed. Raises SettingError for a text without a name or an equals sign.

    >>> parse_assignment("policy.generate.n=16"), parse_assignment("score.by=exact")
    (('policy.generate.n', 16), ('score.by', 'exact'))
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        hint = "write name=value: --set policy.generate.n=16"
        raise SettingError(f"`{text}` is not a setting", where="--set", hint=hint)
    try:
        return name.strip(), parse_json(value)
    except ValueError:
        return name.strip(), value


def split_assignments(
    graph_settings: Sequence[str], texts: Sequence[str]
) -> tuple[dict[str, object], dict[str, object]]:
    """Return the values of `--set` texts by name, as (settings of the flow, settings of its nodes).

    `graph_settings` are the names of the flow's own settings; every other name counts as a node's setting and is not
    checked. If a name occurs twice, the last text counts. Raises SettingError for a text that is not `name=value`.
    """
    pairs = dict(parse_assignment(text) for text in texts)
    of_flow = {name: pairs.pop(name) for name in [*pairs] if name in graph_settings}
    return of_flow, pairs


def resolve_settings(
    graph: Graph, suggestions: Sequence[Suggestion], chosen: Mapping[str, object]
) -> tuple[Graph, tuple[ResolvedSetting, ...]]:
    """Return a graph with the settings that a run uses, and all settings, each with its origin.

    The nodes of `graph` must have names. `chosen` has values by `node.setting`, which override all others. Suggestions
    apply only to settings that the flow's text does not set; a later suggestion overrides an earlier one. The flow's
    own settings come first. Raises SettingError for an unknown name in `chosen`, with the nearest one, and for a value
    that its setting refuses.
    """
    chosen_by_node = _by_node(graph, chosen)
    origins: dict[str, str] = {}

    def change(node: Node) -> Node:
        values = {name: getattr(node.settings, name) for name in node.settings.model_fields_set}
        origin, model = dict.fromkeys(values, str(node.at)), node.model()
        param = carried_from(model) if model is not None else None
        for suggestion in suggestions:
            applies = suggestion.param is None or (param is not None and param is graph.param(suggestion.param))
            for dotted, value in suggestion.values.items() if applies else ():
                op, _, name = dotted.rpartition(".")
                if op == node.op.name and name not in node.settings.model_fields_set:
                    values[name], origin[name] = value, suggestion.origin
            make_settings(node.op.settings, values, node.name, suggestion.origin)
        for name, value in chosen_by_node.get(node.name, {}).items():
            values[name], origin[name] = value, "--set"
        origins.update({f"{node.name}.{name}": text for name, text in origin.items()})
        return replace(node, settings=make_settings(node.op.settings, values, node.name, "--set"))

    resolved = rewrite(graph, change)
    values: dict[str, object] = {}
    if graph.settings is not None:
        values |= plain_settings(graph.settings)
        origins |= dict.fromkeys(graph.settings.model_fields_set, "--set")
    for node in resolved.all_nodes:
        values |= {f"{node.name}.{name}": value for name, value in plain_settings(node.settings).items()}
    settings = (ResolvedSetting(name, value, origins.get(name, "default")) for name, value in values.items())
    return resolved, tuple(settings)


def align_shown_settings(first: Graph, second: Graph) -> tuple[Graph, Graph]:
    """Return two graphs with named nodes, in which nodes with the same name and op show the same settings.

    These are the settings without a default, and those that differ from their default in either graph. A value that one
    flow states and the other takes by default then reads the same in both texts.
    """
    nodes = {(node.name, node.op.module, node.op.name): node for node in first.all_nodes}
    pairs = ((nodes.get((node.name, node.op.module, node.op.name)), node) for node in second.all_nodes)
    changed = {node.name: _changed(match) | _changed(node) for match, node in pairs if match is not None}

    def change(node: Node) -> Node:
        names = changed.get(node.name, set()) | _changed(node)
        values = {name: getattr(node.settings, name) for name in node.op.settings.model_fields if name in names}
        return replace(node, settings=make_settings(node.op.settings, values, node.name, "compared"))

    return rewrite(first, change), rewrite(second, change)


def _changed(node: Node) -> set[str]:
    fields = node.op.settings.model_fields.items()
    return {name for name, field in fields if field.is_required() or getattr(node.settings, name) != field.default}


def setting_faults(graph: Graph, chosen: Mapping[str, object]) -> list[SettingError]:
    """Return a SettingError for each value in `chosen`, by `node.setting`, that a graph with named nodes refuses.

    Each value is checked without the others.
    """
    faults = list[SettingError]()
    for name, value in chosen.items():
        try:
            resolve_settings(graph, (), {name: value})
        except SettingError as error:
            faults.append(error)
    return faults


def _by_node(graph: Graph, chosen: Mapping[str, object]) -> dict[str, dict[str, object]]:
    fields = {node.name: node.op.settings.model_fields for node in graph.all_nodes}
    by_node = defaultdict[str, dict[str, object]](dict)
    for dotted, value in chosen.items():
        node, _, setting = dotted.rpartition(".")
        if node not in fields:
            of_nodes = [f"{name}.{field}" for name, settings in fields.items() for field in settings]
            of_flow = type(graph.settings).model_fields if graph.settings is not None else ()
            raise SettingError.no_owner(dotted, [*of_flow, *of_nodes])
        if setting not in fields[node]:
            raise SettingError.unknown("--set", node, setting, fields[node])
        by_node[node][setting] = value
    return by_node
