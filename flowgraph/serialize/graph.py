"""Read graphs from JSON: check the structure of the text, then every edge against its port and types, then the laws.

A graph names ops, types and functions, which are imported. A module may be imported if it is imported already, is ours,
or belongs to an installed package that provides flows, rules or passes.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.metadata import entry_points
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from flowgraph.analysis.flat_graph import SCHEMA, full_hash, loaded_module, plain_settings, stored_name, structure_hash
from flowgraph.checks.fits import misfits, part_type, port_types
from flowgraph.errors import FlowError, LawError, with_article
from flowgraph.files.untrusted import json_as
from flowgraph.language import laws
from flowgraph.language.call_laws import check_region
from flowgraph.language.call_site import Site
from flowgraph.language.graph import Edge, Graph, Node, Op, Param, Region, Source
from flowgraph.language.mask_counts import counted
from flowgraph.language.signature import LABEL, Settings, initial_value_fault, is_plain_state, make_settings
from flowgraph.language.values import Value

OURS = ("flowgraph", "nodes", "placements", "examples")
GROUPS = ("flowgraph.flows", "flowgraph.rules", "flowgraph.passes")


class _Flat(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Line = tuple[str, Annotated[int, Field(ge=0, lt=2**31)]]
Plain = dict[str, Any]


class FlatEdge(_Flat):
    """A stored edge: the id of its source, the part that is read ("" for all), its type and staleness in updates."""

    source: str = Field(alias="from")
    part: str
    type: str
    at_most: Annotated[int, Field(ge=0, lt=2**31)] = 0
    corrected: bool = True


class FlatInput(FlatEdge):
    """A stored edge, with the port that reads it."""

    port: str


class FlatParam(_Flat):
    """A stored parameter of the flow or of a loss."""

    id: str
    name: str
    type: str
    owner: str
    at: Line
    initial: Any = None


class FlatNode(_Flat):
    """A stored node; `given` names the settings that were set explicitly, `functions` those that are functions."""

    id: str
    name: str
    label: Annotated[str, Field(pattern=f"^{LABEL}$")] = ""
    op: str
    kind: str
    inputs: list[FlatInput]
    returns: list[str]
    settings: Plain
    given: list[str]
    functions: list[str]
    at: Line


class FlatRegion(_Flat):
    """A stored loss function, with the node and port that take it, its nodes, captured edges, output and masks."""

    node: str
    port: str
    name: str
    params: Annotated[list[str], Field(min_length=1, max_length=1)]
    inner: list[str]
    captures: list[FlatEdge]
    output: FlatEdge
    counts: list[FlatEdge]
    at: Line


class FlatGraph(_Flat):
    """A stored graph: `nodes` include those inside losses, and `inputs` are the ids of the flow's own parameters."""

    version: Literal[2] = Field(alias="schema")
    name: str
    at: Line
    settings: Plain
    given: list[str]
    params: list[FlatParam]
    nodes: list[FlatNode]
    regions: list[FlatRegion]
    inputs: list[str]
    outputs: Annotated[list[FlatEdge], Field(min_length=1)]
    pruned: list[str]
    structure_hash: str = ""
    full_hash: str = ""


def from_json(text: str) -> Graph:
    """Return the graph in a JSON text that `flat_graph.to_json` wrote, after a check of the laws of described graphs.

    Ops, types and functions are imported by name, which runs the code of their modules. Raises LawError for any other
    text, for a name that does not exist or may not be imported, and for edges that do not fit their ports; SettingError
    or FlowTypeError for a setting that its node refuses or lacks; and the FlowError of the first broken law.
    """
    try:
        data = json_as(FlatGraph, text)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        if fault["loc"] == ("schema",) and fault["type"] == "literal_error":
            raise LawError(f"this graph has schema {fault['input']}, not {SCHEMA}") from None
        raise LawError.not_stored(".".join(map(str, fault["loc"])), fault["msg"]) from None
    except ValueError as error:
        raise LawError.not_stored("", f"it is not JSON: {error}") from None
    graph = _GraphReader(data).graph()
    laws.check("described", graph)
    return graph


@dataclass
class _GraphReader:
    data: FlatGraph
    sources: dict[str, Source] = field(default_factory=dict[str, Source])

    def graph(self) -> Graph:
        data = self.data
        ids = [*(param.id for param in data.params), *(node.id for node in data.nodes)]
        _expect(len(set(ids)) == len(ids), "an id appears twice")
        _expect(len(set(data.inputs)) == len(data.inputs), "a parameter appears twice")
        params = tuple(self._param(name) for name in data.inputs)
        regions: dict[str, list[FlatRegion]] = {}
        for region in data.regions:
            regions.setdefault(region.node, []).append(region)
        for node in data.nodes:
            self.sources[node.id] = self._node(node, regions.pop(node.id, []))
        _expect(not regions, "no node uses one of its regions")
        outputs = tuple(self._edge(edge) for edge in data.outputs)
        for name in data.settings:
            usable = name.isidentifier() and not name.startswith("_") and not hasattr(BaseModel, name)
            _expect(usable, f"`{name}` is not a setting")
        # Types of the flow's own settings are unknown, because the flow is not imported.
        untyped: dict[str, Any] = dict.fromkeys(data.settings, (Any, ...))
        model = create_model("settings", __base__=Settings, **untyped)
        settings = model.model_construct(set(data.given), **data.settings)
        graph = Graph(data.name, params, outputs, Site(*data.at), settings, pruned=tuple(data.pruned))
        _expect(len(graph.all_nodes) == len(data.nodes), "it holds nodes that nothing reads")
        for stored, compute in ((data.structure_hash, structure_hash), (data.full_hash, full_hash)):
            _expect(not stored or stored == compute(graph), "its hash is that of another graph")
        return graph

    @cached_property
    def _params(self) -> dict[str, FlatParam]:
        return {param.id: param for param in self.data.params}

    def _param(self, name: str) -> Param:
        """Return a parameter, created when first read: a region's parameter must be newer than the region's inputs."""
        if name not in self.sources:
            _expect(name in self._params, f"`{name}` does not exist, or comes after its reader")
            stored = self._params[name]
            kind, initial = _value(stored.type), stored.initial
            if initial is not None:
                why = initial_value_fault(kind, initial) if is_plain_state(kind) else "it is not plain state"
                _expect(not why, f"`{stored.name}` starts from {initial!r}: {why}")
            self.sources[name] = Param(stored.name, kind, stored.owner, Site(*stored.at), initial=initial)
        param = self.sources[name]
        if not isinstance(param, Param):
            raise LawError.not_stored(name, "is not a parameter")
        return param

    def _node(self, stored: FlatNode, regions: Sequence[FlatRegion]) -> Node:
        op, site = getattr(_find(stored.op), "op", None), Site(*stored.at)
        if not isinstance(op, Op):
            raise LawError(f"`{stored.op}` is not a node")
        inputs = tuple((edge.port, self._edge(edge)) for edge in stored.inputs)
        returns, kinds = tuple(_value(name) for name in stored.returns), port_types(op, inputs)
        for why in misfits(op, inputs, [region.port for region in regions], returns):
            raise LawError.not_stored("", why)
        closed = tuple((region.port, self._region(op, region, kinds, site)) for region in regions)
        _expect(set(stored.given) <= set(stored.settings), f"{op.name} lacks a setting that was given")
        chosen = {name: stored.settings[name] for name in stored.given}
        chosen |= {name: _function(chosen[name]) for name in stored.functions if name in chosen}
        settings = make_settings(op.settings, chosen, op.name, str(site))
        _expect(stored.kind == op.kind, f"{op.name} is of the kind {op.kind}, not {stored.kind}")
        for name, value in plain_settings(settings).items():
            old = stored.settings.get(name)
            _expect(value == old, f"{stored.name or op.name}.{name} was {old!r}, and its default is now {value!r}")
        return Node(op, inputs, settings, closed, returns, site, stored.name, label=stored.label)

    def _region(self, op: Op, stored: FlatRegion, kinds: dict[Any, Any], site: Site) -> Region:
        port, param, output = op.port(stored.port), self._param(stored.params[0]), self._edge(stored.output)
        _expect(param.type is kinds[port.type], f"the loss `{stored.name}` is of another model than {op.name} updates")
        _expect(issubclass(output.type, port.region_returns or Value), f"`{stored.name}` does not return a loss")
        region = Region.of(stored.name, (param,), output, Site(*stored.at))
        inner = {self.sources.get(name) for name in stored.inner}
        _expect(inner == {*region.inner}, f"`{stored.name}` holds other nodes than those that read its parameter")
        captures = {self._edge(edge) for edge in stored.captures}
        _expect(captures == {*region.captures}, f"`{stored.name}` captures other values than it reads")
        if stored.counts:
            region = counted(region)
            counts = {self._edge(edge) for edge in stored.counts}
            _expect(counts == {*region.counts}, f"`{stored.name}` counts other masks")
        check_region(op, region, site)
        return region

    def _edge(self, stored: FlatEdge) -> Edge:
        source = self.sources.get(stored.source) or self._param(stored.source)
        kind, actual = _value(stored.type), part_type(source, stored.part)
        _expect(actual is not None, f"{stored.source} has no part `{stored.part}`")
        _expect(actual is kind, f"`{stored.part}` of {stored.source} is not {with_article(kind.__name__)}")
        return Edge(source, kind, stored.part, stored.at_most, stored.corrected)


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise LawError.not_stored("", otherwise)


def _value(name: str) -> type[Value]:
    kind = _find(name)
    if not (isinstance(kind, type) and issubclass(kind, Value)):
        raise LawError(f"`{name}` is not a value")
    return kind


def _function(name: object) -> Any:
    """Return a setting that is a function: from a user's module or ours, never from the standard library."""
    function = _find(name) if isinstance(name, str) else None
    root = name.partition(":")[0].partition(".")[0] if isinstance(name, str) else ""
    if not (inspect.isfunction(function) or inspect.isclass(function)) or root in sys.stdlib_module_names:
        raise LawError.not_stored(str(name), "is not a function that a setting can be")
    return function


def _find(name: str) -> Any:
    module, _, path = name.partition(":")
    module = loaded_module(module)
    root, last = module.partition(".")[0], module.rpartition(".")[2]
    named = not last.startswith("__") and all(part.isidentifier() for part in module.split("."))
    known = module in sys.modules or (named and (root in OURS or root in _registered_packages(tuple(sys.path))))
    if not known:
        raise LawError.not_stored(name, f"the module `{module}` is neither imported nor a part of flowgraph")
    try:
        target: Any = sys.modules.get(module) or importlib.import_module(module)
        for part in path.split("."):
            target = getattr(target, part)
    except FlowError:
        raise
    except (Exception, SystemExit) as error:
        raise LawError.not_stored(name, f"{type(error).__name__}: {error}") from error
    if not callable(target) or stored_name(target) != name:
        raise LawError.not_stored(name, "is the name of something else")
    return target


@lru_cache(maxsize=4)
def _registered_packages(path: tuple[str, ...]) -> frozenset[str]:
    return frozenset(entry.module.partition(".")[0] for group in GROUPS for entry in entry_points(group=group))
