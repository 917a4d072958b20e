"""Graphs as flat JSON, out and in, and their two hashes: of the structure, and of everything.

Ops and types are named by module and name; settings that are functions by theirs. Line numbers are kept in the text and
left out of both hashes.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, create_model

from flowgraph import spec
from flowgraph.errors import FlowError, LawError
from flowgraph.graph import Edge, Graph, Node, Op, Param, Region, Site
from flowgraph.signature import Settings, make_settings
from flowgraph.values import Value, fields

SCHEMA = 2

Flat = dict[str, Any]


def to_json(graph: Graph) -> str:
    """Write a named graph as JSON with a schema version; `from_json` reads it back."""
    return json.dumps(flat(graph), indent=1)


def flat(graph: Graph) -> Flat:
    """Give a named graph as plain data: one list of nodes, those of regions included, edges by id."""
    regions = [(node, port, region) for node in graph.nodes for port, region in node.regions]
    params = [*graph.params, *(param for _, _, region in regions for param in region.params)]
    ids: dict[object, str] = {param: f"p{i}" for i, param in enumerate(params)}
    ids |= {node: f"n{i}" for i, node in enumerate(graph.all_nodes)}
    return {
        "schema": SCHEMA,
        "name": graph.name,
        "at": _site(graph.at),
        "settings": plain_settings(graph.settings) if graph.settings is not None else {},
        "given": sorted(graph.settings.model_fields_set) if graph.settings is not None else [],
        "params": [_flat_param(ids, param) for param in params],
        "nodes": [_flat_node(ids, node) for node in graph.all_nodes],
        "regions": [{"node": ids[node], "port": port, **_flat_region(ids, region)} for node, port, region in regions],
        "inputs": [ids[param] for param in graph.params],
        "outputs": [_flat_edge(ids, edge) for edge in graph.outputs],
        "pruned": list(graph.pruned),
    }


def _flat_param(ids: Mapping[object, str], param: Param) -> Flat:
    return {
        "id": ids[param],
        "name": param.name,
        "type": name_of(param.type),
        "owner": param.owner,
        "at": _site(param.at),
    }


def _flat_node(ids: Mapping[object, str], node: Node) -> Flat:
    return {
        "id": ids[node],
        "name": node.name,
        "op": f"{node.op.module}:{node.op.name}",
        "kind": node.op.kind,
        "inputs": [{"port": port, **_flat_edge(ids, edge)} for port, edge in node.inputs],
        "returns": [name_of(each) for each in node.returns],
        "settings": plain_settings(node.settings),
        "given": sorted(node.settings.model_fields_set),
        "functions": [name for name, value in node.settings if callable(value)],
        "at": _site(node.at),
    }


def _flat_region(ids: Mapping[object, str], region: Region) -> Flat:
    return {
        "name": region.name,
        "params": [ids[param] for param in region.params],
        "inner": [ids[node] for node in region.inner],
        "captures": [_flat_edge(ids, edge) for edge in region.captures],
        "output": _flat_edge(ids, region.output),
        "counts": [_flat_edge(ids, edge) for edge in region.counts],
        "at": _site(region.at),
    }


def _flat_edge(ids: Mapping[object, str], edge: Edge) -> Flat:
    if edge.source not in ids:
        raise LawError("a graph with real data in it cannot be stored")
    return {"from": ids[edge.source], "part": edge.port, "type": name_of(edge.type), **_flat_lag(edge)}


def _flat_lag(edge: Edge) -> Flat:
    return {"at_most": edge.at_most, "corrected": edge.corrected} if edge.at_most else {}


def _site(site: Site) -> list[Any]:
    return [site.file, site.line]


def name_of(thing: Any) -> str:
    """Name a class or function by module and name."""
    return f"{thing.__module__}:{thing.__qualname__}"


def plain_settings(settings: BaseModel) -> Flat:
    """Give settings as JSON can hold them, a function by its module and name."""
    values = {name: getattr(settings, name) for name in type(settings).model_fields}
    return {name: name_of(value) if callable(value) else _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def structure_hash(graph: Graph) -> str:
    """Hash what a plan is for: ops, edges, types and regions, without settings, lines or names of variables."""
    return _hash(_without(flat(graph), {"at", "settings", "given", "functions", "owner", "pruned"}))


def full_hash(graph: Graph) -> str:
    """Hash what a resume is for: the structure and every setting."""
    return _hash(_without(flat(graph), {"at", "given", "owner", "pruned"}))


def _without(data: Any, keys: set[str]) -> Any:
    if isinstance(data, dict):
        kept = {key: _without(value, keys) for key, value in data.items() if key not in keys}
        if "captures" in data:  # a region: the name of its function and of its parameter are local variables
            kept["name"] = ""
        return kept
    return [_without(each, keys) for each in data] if isinstance(data, list) else data


def _hash(data: Flat) -> str:
    regional = {param for region in data["regions"] for param in region["params"]}
    for param in data["params"]:
        param["name"] = "" if param["id"] in regional else param["name"]
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def from_json(text: str) -> Graph:
    """Read a graph back; its ops and types are imported by name.

    Raises `LawError` for text that is no such graph, names what cannot be imported, or breaks a law.
    """
    try:
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            raise LawError(f"this graph has schema {data['schema']}; {SCHEMA} is read here")
        graph = _graph(data)
        spec.check("described", graph)
        return graph
    except FlowError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ImportError, RecursionError) as error:
        raise LawError(f"this is no stored graph: {type(error).__name__}: {error}") from error


def _graph(data: Flat) -> Graph:
    sources: dict[str, Param | Node] = {}
    for each in data["params"]:
        sources[each["id"]] = Param(each["name"], _find(each["type"]), each["owner"], Site(*each["at"]))
    regions: dict[str, list[Flat]] = {}
    for each in data["regions"]:
        regions.setdefault(each["node"], []).append(each)
    for each in data["nodes"]:
        closed = tuple((region["port"], _region(sources, region)) for region in regions.get(each["id"], []))
        op = _op(each["op"])
        inputs = tuple((edge["port"], _edge(sources, edge)) for edge in each["inputs"])
        stored = each["settings"]
        given = {name: _import(stored[name]) if name in each["functions"] else stored[name] for name in each["given"]}
        _check_ports(op, [*(edge["port"] for edge in each["inputs"]), *(port for port, _ in closed)])
        returns = tuple(_find(name) for name in each["returns"])
        settings = make_settings(op.settings, given, op.name, f"{each['at'][0]}:{each['at'][1]}")
        sources[each["id"]] = Node(op, inputs, settings, closed, returns, Site(*each["at"]), each["name"])
    params = tuple(sources[each] for each in data["inputs"])
    outputs = tuple(_edge(sources, edge) for edge in data["outputs"])
    own = tuple(param for param in params if isinstance(param, Param))
    at, pruned = Site(*data["at"]), tuple(str(each) for each in data["pruned"])
    return Graph(data["name"], own, outputs, at, _flow_settings(data), pruned=pruned)


def _flow_settings(data: Flat) -> BaseModel:
    """Give the flow's own settings as they were stored; their types are the flow's, which is not imported."""
    loose: dict[str, Any] = dict.fromkeys(data["settings"], (Any, ...))
    model = create_model(f"{data['name']}.settings", __base__=Settings, **loose)
    return model.model_construct(set(data["given"]), **data["settings"])


def _check_ports(op: Op, given: Sequence[str]) -> None:
    """Refuse a call that lacks a port of its op, or has one more: the op has changed since it was stored."""
    known = {port.name: port.optional for port in op.ports}
    wrong = [name for name in given if name not in known]
    wrong += [name for name, optional in known.items() if not optional and name not in given]
    if wrong:
        raise LawError(f"this is no stored graph: {op.name} takes {', '.join(known)}; see `{wrong[0]}`")


def _region(sources: Mapping[str, Param | Node], data: Flat) -> Region:
    return Region(
        data["name"],
        tuple(p for p in (sources[each] for each in data["params"]) if isinstance(p, Param)),
        _edge(sources, data["output"]),
        tuple(n for n in (sources[each] for each in data["inner"]) if isinstance(n, Node)),
        tuple(_edge(sources, edge) for edge in data["captures"]),
        Site(*data["at"]),
        tuple(_edge(sources, edge) for edge in data["counts"]),
    )


def _edge(sources: Mapping[str, Param | Node], data: Flat) -> Edge:
    source, kind = sources[data["from"]], _find(data["type"])
    given: Any = source.returns if isinstance(source, Node) else source.type
    for name in data["part"].split(".") if data["part"] else ():
        given = given[int(name)] if name.isdigit() else fields(given[0] if isinstance(given, tuple) else given)[name]
    if given not in (kind, (kind,)):
        raise LawError(f"this is no stored graph: `{data['part']}` of {data['from']} is no {kind.__name__}")
    return Edge(source, kind, data["part"], data.get("at_most", 0), data.get("corrected", True))


def _find(name: str) -> type[Value]:
    found = _import(name)
    if not (isinstance(found, type) and issubclass(found, Value)):
        raise LawError(f"`{name}` is no value")
    return found


def _op(name: str) -> Op:
    op = getattr(_import(name), "op", None)
    if not isinstance(op, Op):
        raise LawError(f"`{name}` is no node")
    return op


def _import(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module) or importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found
