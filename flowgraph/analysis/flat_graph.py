"""Graphs as flat JSON, and their two hashes: of the structure, and of everything. `serialize.graph` reads them back.

Ops, types and settings that are functions are named by module and name. Line numbers are in the text and in neither
hash.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from flowgraph.errors import LawError
from flowgraph.language.call_site import Site
from flowgraph.language.graph import Edge, Graph, Node

SCHEMA = 2
ROOM = "flowgraph.language."
STORED = frozenset({"arithmetic", "loss", "values"})  # modules whose names stand in graphs on disk

Flat = dict[str, Any]


def to_json(graph: Graph) -> str:
    """Return a named graph as JSON text, which `serialize.graph.from_json` reads. Raises LawError as `flat` does."""
    return json.dumps(flat(graph), indent=1)


def flat(graph: Graph) -> Flat:
    """Return a graph as JSON-compatible data in the form of `serialize.graph.FlatGraph`, with a schema version.

    All nodes, including those inside losses, are in one list; edges refer to nodes and parameters by id. Dropped calls
    are left out. Raises LawError for a graph that holds real data.
    """
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
        "params": [
            {
                "id": ids[param],
                "name": param.name,
                "type": stored_name(param.type),
                "owner": param.owner,
                "at": _site(param.at),
                **({"initial": param.initial} if param.initial is not None else {}),
            }
            for param in params
        ],
        "nodes": [_flat_node(ids, node) for node in graph.all_nodes],
        "regions": [
            {
                "node": ids[node],
                "port": port,
                "name": region.name,
                "params": [ids[param] for param in region.params],
                "inner": [ids[inner] for inner in region.inner],
                "captures": [_flat_edge(ids, edge) for edge in region.captures],
                "output": _flat_edge(ids, region.output),
                "counts": [_flat_edge(ids, edge) for edge in region.counts],
                "at": _site(region.at),
            }
            for node, port, region in regions
        ],
        "inputs": [ids[param] for param in graph.params],
        "outputs": [_flat_edge(ids, edge) for edge in graph.outputs],
        "pruned": list(graph.pruned),
    }


def _flat_node(ids: Mapping[object, str], node: Node) -> Flat:
    return {
        "id": ids[node],
        "name": node.name,
        **({"label": node.label} if node.label else {}),
        "op": f"{stored_module(node.op.module)}:{node.op.name}",
        "kind": node.op.kind,
        "inputs": [{"port": port, **_flat_edge(ids, edge)} for port, edge in node.inputs],
        "returns": [stored_name(each) for each in node.returns],
        "settings": plain_settings(node.settings),
        "given": sorted(node.settings.model_fields_set),
        "functions": [name for name, value in node.settings if callable(value)],
        "at": _site(node.at),
    }


def _flat_edge(ids: Mapping[object, str], edge: Edge) -> Flat:
    if edge.source not in ids:
        raise LawError("a graph with real data in it cannot be stored")
    lag = {"at_most": edge.at_most, "corrected": edge.corrected} if edge.at_most or not edge.corrected else {}
    return {"from": ids[edge.source], "part": edge.port, "type": stored_name(edge.type), **lag}


def _site(site: Site) -> list[Any]:
    return [site.file, site.line]


def stored_name(thing: Any) -> str:
    """Return `module:name` of a class or function, as it is written to files.

    The module's name is that of `stored_module`, so that hashes and plans stay valid when a module moves.
    """
    return f"{stored_module(getattr(thing, '__module__', ''))}:{getattr(thing, '__qualname__', '')}"


def stored_module(module: str) -> str:
    """Return the name of a module as files have it, without `language` for the modules in `STORED`.

    >>> stored_module("flowgraph.language.values"), stored_module("nodes.values")
    ('flowgraph.values', 'nodes.values')
    """
    inner = module.removeprefix(ROOM)
    return f"flowgraph.{inner}" if module.startswith(ROOM) and inner in STORED else module


def loaded_module(module: str) -> str:
    """Return the name of the module to import for a name in a file; the inverse of `stored_module`.

    >>> loaded_module("flowgraph.values"), loaded_module("flowgraph.cli.run")
    ('flowgraph.language.values', 'flowgraph.cli.run')
    """
    inner = module.removeprefix("flowgraph.")
    return ROOM + inner if module.startswith("flowgraph.") and inner in STORED else module


def plain_settings(settings: BaseModel) -> Flat:
    """Return settings as JSON-compatible data by name.

    A setting that is a function or class becomes `module:name`. An enum becomes its value. Any other value that JSON
    lacks becomes its `str`, and so does a function or class inside a list or dict.
    """

    def plain(leaf: object) -> object:
        return leaf.value if isinstance(leaf, enum.Enum) else str(leaf)

    values = {name: getattr(settings, name) for name in type(settings).model_fields}
    return {
        name: stored_name(value) if callable(value) else json.loads(json.dumps(value, default=plain))
        for name, value in values.items()
    }


def structure_hash(graph: Graph) -> str:
    """Return the SHA-256 of a graph's structure in hexadecimal; a plan stores it to name the graph that it is for.

    The structure is the names, ops, edges, types and regions. Settings, source lines, notes about pruned nodes, the
    initial data of state, and the names of losses and their parameters are ignored. Raises LawError as `flat` does.
    """
    return _hash(_without(flat(graph), {"at", "settings", "given", "functions", "owner", "pruned", "initial"}))


def full_hash(graph: Graph) -> str:
    """Return the SHA-256 of a graph with its settings, in hexadecimal; resuming a run requires an equal hash.

    Source lines, notes about pruned nodes, and the names of losses and their parameters are ignored. Raises as `flat`
    does.
    """
    return _hash(_without(flat(graph), {"at", "given", "owner", "pruned"}))


_OF_USERS = ("settings", "initial")  # their keys may have the names of ours


def _without(data: Any, keys: set[str]) -> Any:
    if isinstance(data, dict):
        entries = ((key, value) for key, value in data.items() if key not in keys)
        rest = {key: value if key in _OF_USERS else _without(value, keys) for key, value in entries}
        return rest | {"name": ""} if "captures" in data else rest  # the name of a region is a local variable
    return [_without(entry, keys) for entry in data] if isinstance(data, list) else data


def _hash(data: Flat) -> str:
    regional = {param for region in data["regions"] for param in region["params"]}
    for param in data["params"]:
        param["name"] = "" if param["id"] in regional else param["name"]
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
