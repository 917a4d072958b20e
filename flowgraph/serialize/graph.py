"""Graphs back from JSON: first its shape, then every edge against the ports and types of today, then the laws.

What a graph names is imported, so only what is imported already, is ours, or belongs to a package that brings flows,
rules or passes to us is looked at.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.metadata import entry_points
from typing import Annotated, Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from flowgraph.analysis.flat_graph import SCHEMA, full_hash, loaded_module, name_of, plain_settings, structure_hash
from flowgraph.checks.fits import kinds_of, misfits, type_at
from flowgraph.errors import FlowError, LawError
from flowgraph.files.untrusted import json_as
from flowgraph.language import laws
from flowgraph.language.call_laws import check_region
from flowgraph.language.call_site import Site
from flowgraph.language.graph import Edge, Graph, Node, Op, Param, Port, Region, Source
from flowgraph.language.mask_counts import counted
from flowgraph.language.signature import Settings, bad_start, is_plain_state, make_settings
from flowgraph.language.values import Value

OURS = ("flowgraph", "nodes", "placements", "examples")
GROUPS = ("flowgraph.flows", "flowgraph.rules", "flowgraph.passes")


class _Flat(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Line = tuple[str, Annotated[int, Field(ge=0, lt=2**31)]]
Plain = dict[str, Any]


class FlatEdge(_Flat):
    """An edge: the id it comes from, the part of it, its type, and how late it may be read."""

    source: str = Field(alias="from")
    part: str
    type: str
    at_most: Annotated[int, Field(ge=0, lt=2**31)] = 0
    corrected: bool = True


class FlatInput(FlatEdge):
    """An edge on a port."""

    port: str


class FlatParam(_Flat):
    """A parameter of the flow or of a region."""

    id: str
    name: str
    type: str
    owner: str
    at: Line
    initial: Any = None


class FlatNode(_Flat):
    """A node, its regions left out."""

    id: str
    name: str
    op: str
    kind: str
    inputs: list[FlatInput]
    returns: list[str]
    settings: Plain
    given: list[str]
    functions: list[str]
    at: Line


class FlatRegion(_Flat):
    """A region, and the node and port that it is for."""

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
    """A stored graph."""

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
    """Read a graph that `store.to_json` wrote; its ops, types and functions are found by name.

    Raises `LawError` for text that is no such graph, for one that names what is not there or may not be imported, whose
    edges do not fit the ports of today, or that breaks a law of its stage.
    """
    try:
        data = json_as(FlatGraph, text)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        if fault["loc"] == ("schema",) and fault["type"] == "literal_error":
            raise LawError(f"this graph has schema {fault['input']}; {SCHEMA} is read here") from None
        raise LawError.not_stored(".".join(map(str, fault["loc"])), fault["msg"]) from None
    except ValueError as error:
        raise LawError.not_stored("", f"is no JSON: {error}") from None
    graph = _GraphReader(data).graph()
    laws.check("described", graph)
    return graph


@dataclass
class _GraphReader:
    """What has been read of a stored graph: its sources by id, each before its readers."""

    data: FlatGraph
    sources: dict[str, Source] = field(default_factory=dict[str, Source])

    @cached_property
    def _params(self) -> dict[str, FlatParam]:
        return {each.id: each for each in self.data.params}

    def graph(self) -> Graph:
        data = self.data
        ids = [*(each.id for each in data.params), *(each.id for each in data.nodes)]
        _expect(len(set(ids)) == len(ids), "an id stands twice")
        _expect(len(set(data.inputs)) == len(data.inputs), "a parameter stands twice")
        params = tuple(self._param(each) for each in data.inputs)
        regions: dict[str, list[FlatRegion]] = {}
        for region in data.regions:
            regions.setdefault(region.node, []).append(region)
        for each in data.nodes:
            self.sources[each.id] = self._node(each, regions.pop(each.id, []))
        _expect(not regions, "a region is for no node")
        outputs = tuple(self._edge(each) for each in data.outputs)
        graph = Graph(data.name, params, outputs, Site(*data.at), self._settings(), pruned=tuple(data.pruned))
        _expect(len(graph.all_nodes) == len(data.nodes), "it holds nodes that nothing reads")
        for told, now in ((data.structure_hash, structure_hash), (data.full_hash, full_hash)):
            _expect(not told or told == now(graph), "its hash is that of another graph")
        return graph

    def _param(self, name: str) -> Param:
        """Give a parameter, made when it is first read: what a region reads is older than the region's own."""
        if name not in self.sources:
            _expect(name in self._params, f"`{name}` is not there, or stands behind what reads it")
            told = self._params[name]
            kind, initial = _value(told.type), told.initial
            why = (
                "" if initial is None else bad_start(kind, initial) if is_plain_state(kind) else "it is no plain state"
            )
            _expect(not why, f"`{told.name}` starts from {initial!r}: {why}")
            self.sources[name] = Param(told.name, kind, told.owner, Site(*told.at), initial=initial)
        found = self.sources[name]
        if not isinstance(found, Param):
            raise LawError.not_stored(name, "is no parameter")
        return found

    def _node(self, told: FlatNode, regions: Sequence[FlatRegion]) -> Node:
        op, site = _op(told.op), Site(*told.at)
        inputs = tuple((each.port, self._edge(each)) for each in told.inputs)
        returns, kinds = tuple(_value(name) for name in told.returns), kinds_of(op, inputs)
        for why in misfits(op, inputs, [each.port for each in regions], returns):
            raise LawError.not_stored("", why)
        closed = tuple((each.port, self._region(op, op.port(each.port), each, kinds, site)) for each in regions)
        _expect(set(told.given) <= set(told.settings), f"{op.name} lacks a setting that was given")
        given = {name: told.settings[name] for name in told.given}
        given |= {name: _function(given[name]) for name in told.functions if name in given}
        settings = make_settings(op.settings, given, op.name, str(site))
        _expect(told.kind == op.kind, f"{op.name} is of the kind {op.kind}, not {told.kind}")
        for name, value in plain_settings(settings).items():
            was = told.settings.get(name)
            _expect(value == was, f"{told.name or op.name}.{name} was {was!r}, and is {value!r} by default now")
        return Node(op, inputs, settings, closed, returns, site, told.name)

    def _region(self, op: Op, port: Port, told: FlatRegion, kinds: dict[Any, Any], site: Site) -> Region:
        param, output = self._param(told.params[0]), self._edge(told.output)
        _expect(param.type is kinds[port.type], f"the loss `{told.name}` is of another model than {op.name} updates")
        _expect(issubclass(output.type, port.region_returns or Value), f"`{told.name}` gives no loss")
        region = Region.of(told.name, (param,), output, Site(*told.at))
        stored = [self.sources.get(each) for each in told.inner]
        _expect(set(stored) == set(region.inner), f"`{told.name}` holds other nodes than those that read its parameter")
        captures = {self._edge(each) for each in told.captures}
        _expect(captures == set(region.captures), f"`{told.name}` captures something else than what it reads")
        if told.counts:
            region = counted(region)
            counts = {self._edge(each) for each in told.counts}
            _expect(counts == set(region.counts), f"`{told.name}` counts other masks")
        check_region(op, region, site)
        return region

    def _edge(self, told: FlatEdge) -> Edge:
        source = self.sources.get(told.source) or self._param(told.source)
        kind, there = _value(told.type), type_at(source, told.part)
        _expect(there is not None, f"{told.source} has no part `{told.part}`")
        _expect(there is kind, f"`{told.part}` of {told.source} is no {kind.__name__}")
        return Edge(source, kind, told.part, told.at_most, told.corrected)

    def _settings(self) -> BaseModel:
        """Give the flow's own settings as they were stored; their types are the flow's, which is not imported."""
        for name in self.data.settings:
            _expect(name.isidentifier() and not name.startswith("_"), f"`{name}` is no setting")
            _expect(not hasattr(BaseModel, name), f"`{name}` is no setting")
        loose: dict[str, Any] = dict.fromkeys(self.data.settings, (Any, ...))
        model = create_model("settings", __base__=Settings, **loose)
        return model.model_construct(set(self.data.given), **self.data.settings)


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise LawError.not_stored("", otherwise)


def _value(name: str) -> type[Value]:
    found = _find(name)
    if not (isinstance(found, type) and issubclass(found, Value)):
        raise LawError(f"`{name}` is no value")
    return found


def _op(name: str) -> Op:
    op = getattr(_find(name), "op", None)
    if not isinstance(op, Op):
        raise LawError(f"`{name}` is no node")
    return op


def _function(name: object) -> Any:
    """Give a setting that is a function: of a user's module or of ours, never of the standard library."""
    found = _find(name) if isinstance(name, str) else None
    root = name.partition(":")[0].partition(".")[0] if isinstance(name, str) else ""
    if not (inspect.isfunction(found) or inspect.isclass(found)) or root in sys.stdlib_module_names:
        raise LawError.not_stored(str(name), "is no function that a setting can be")
    return found


def _find(name: str) -> Any:
    """Give what a name `module:path` stands for."""
    module, _, path = name.partition(":")
    module = loaded_module(module)
    if module not in sys.modules and not _may_import(module):
        raise LawError.not_stored(name, f"the module `{module}` is not imported, and not one of ours")
    try:
        found: Any = sys.modules.get(module) or importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except FlowError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a module's own lines are any code
        _not_found(name, error)
    if not callable(found) or name_of(found) != name:
        raise LawError.not_stored(name, "is the name of something else")
    return found


def _not_found(name: str, error: BaseException) -> NoReturn:
    raise LawError.not_stored(name, f"{type(error).__name__}: {error}") from error


def _may_import(module: str) -> bool:
    """Say whether a module may be imported because a file names it: ours, or of a package that has joined us."""
    root, last = module.partition(".")[0], module.rpartition(".")[2]
    if last.startswith("__") or not all(part.isidentifier() for part in module.split(".")):
        return False
    return root in OURS or root in _joined(tuple(sys.path))


@lru_cache(maxsize=4)
def _joined(path: tuple[str, ...]) -> frozenset[str]:
    """Name the packages that have joined us, of those on a path; to look takes milliseconds, and a step asks often."""
    return frozenset(entry.module.partition(".")[0] for group in GROUPS for entry in entry_points(group=group))
