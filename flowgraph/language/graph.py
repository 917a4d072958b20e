"""The IR: immutable nodes that hold their inputs; a graph is what is reachable from the returned values.

Every traversal is a loop. Nodes carry a creation stamp, which orders them as the flow wrote them; an input is always
older than its reader, so that order is also a topological one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, cast

from pydantic import BaseModel

from flowgraph.errors import FlowTypeError, with_article
from flowgraph.language.call_site import Site
from flowgraph.language.notebook import mimebundle
from flowgraph.language.traits import By, RowTrait
from flowgraph.language.values import Kind, Metric, Model, State, Value

_stamps = itertools.count()


ValueType = type[Value]


NodeKind = Literal["generate", "score", "logprob", "advantage", "update", "host"]
"""What a node is, as the field draws it: the five kinds, and what any host can run."""


@dataclass(frozen=True)
class Port:
    """One input of an op: a value, or a region (a function of a model, described when the node is)."""

    name: str
    type: Any  # a Value subclass, or a TypeVar bound to one
    optional: bool = False
    region: bool = False
    region_returns: type[Value] | None = None
    parts: tuple[str, ...] = ()  # of a record, those that the body reads; none named: all
    by: By | None = None
    other_rows: bool = False
    no_rows: bool = False  # of a state, which brings no rows of earlier steps
    kind: Kind | None = None  # the one it takes, where subclasses of its type are of several
    initial: Any = None  # of a flow's parameter: the data that this carried state starts from
    corrects: str | None = None  # it corrects for the weights that drew the rows, on the node's port of this name

    @property
    def value_type(self) -> type[Value]:
        """Give the type a value must have, a TypeVar's bound included."""
        bound: type[Value] = getattr(self.type, "__bound__", None) or self.type
        return bound

    def wants(self) -> str:
        """Say what it takes: `a Mask`, `a function of a Policy`."""
        value = with_article(self.value_type.__name__)
        return f"a function of {value}" if self.region else value


@dataclass(frozen=True, eq=False)
class Op:
    """What a `@node` function is, as data: ports, settings, and the traits that passes and planners read."""

    name: str
    module: str
    kind: NodeKind
    ports: tuple[Port, ...]
    returns: tuple[Any, ...]
    settings: type[BaseModel]
    body: Callable[..., Any]
    pure: bool = True
    key: str | None = None  # the keyword parameter that takes a Key, if it draws
    carries: str | None = None  # the port whose state the result is the next version of
    stat: str | None = None  # the statistic of a model's forward pass that it reads
    separable: bool = True  # the result of a row does not depend on rows of other groups
    rows: RowTrait = "kept"
    regroups: bool = False  # its rows answer other prompts, or not all: ranks are dealt them anew
    on_policy: bool = False  # what it reads must be drawn by the newest weights
    samples: tuple[str, ...] | None = None  # settings whose product is how many responses it draws to each prompt
    metrics: tuple[Metric, ...] = ()
    about: str = ""

    def port(self, name: str) -> Port:
        """Give the port of this name."""
        return next(port for port in self.ports if port.name == name)


@dataclass(frozen=True, eq=False)
class Param:
    """A parameter of a flow or of a region."""

    name: str
    type: type[Value]
    owner: str
    at: Site
    stamp: int = field(default_factory=lambda: next(_stamps))
    initial: Any = None  # the data that carried state has before the first step, where the flow says it


@dataclass(frozen=True, eq=False)
class Const:
    """A real value caught in a region that was described by hand (`update` called on real values)."""

    value: Value
    at: Site
    stamp: int = field(default_factory=lambda: next(_stamps))


@dataclass(frozen=True)
class Edge:
    """One output of a source, as a reader sees it; `at_most` is how many versions a sampling read may lag.

    `corrected` says whether a loss on what it draws has to correct for the lag.
    """

    source: Node | Param | Const
    type: type[Value]
    port: str = ""
    at_most: int = 0
    corrected: bool = True

    def part(self, name: str, kind: ValueType) -> Edge:
        """Give the edge of one part of a record."""
        return replace(self, port=f"{self.port}.{name}" if self.port else name, type=kind)

    def made(self) -> str:
        """Say where this came from: `from generate at grpo.py:8`."""
        source = self.source
        if isinstance(source, Node):
            return f"from {source.op.name} at {source.at}"
        return f"the parameter `{source.name}` of {source.owner}" if isinstance(source, Param) else "a real value"

    def __str__(self) -> str:
        source = self.source
        name = (source.name or source.op.name) if isinstance(source, Node) else getattr(source, "name", "value")
        return f"{name}.{self.port}" if self.port else name


@dataclass(frozen=True, eq=False)
class Region:
    """A loss: what reads its own parameters is `inner`, computed again for each part; the rest is captured.

    `counts` are the masks that its terms are divided by the counts of, each once.
    """

    name: str
    params: tuple[Param, ...]
    output: Edge
    inner: tuple[Node, ...]
    captures: tuple[Edge, ...]
    at: Site
    counts: tuple[Edge, ...] = ()

    @classmethod
    def of(cls, name: str, params: tuple[Param, ...], output: Edge, at: Site) -> Region:
        """Close the region around what reads its parameters, as found from its output."""
        inner, start = dict[Node, None](), min(param.stamp for param in params)
        for source in reachable([output], newer=start):
            if isinstance(source, Node) and any(e.source in params or e.source in inner for e in source.edges()):
                inner[source] = None
        reads = itertools.chain([output], (edge for each in inner for edge in each.edges()))
        captures = dict.fromkeys(edge for edge in reads if edge.source not in params and edge.source not in inner)
        return cls(name, params, output, tuple(inner), tuple(captures), at)


@dataclass(frozen=True, eq=False)
class Node:
    """One call of an op; immutable, holds its inputs."""

    op: Op
    inputs: tuple[tuple[str, Edge], ...]
    settings: BaseModel
    regions: tuple[tuple[str, Region], ...]
    returns: tuple[type[Value], ...]
    at: Site
    name: str = ""
    stamp: int = field(default_factory=lambda: next(_stamps))
    root: Param | None = field(init=False, repr=False, default=None)  # whose state this makes the next version of

    def __post_init__(self) -> None:
        before = self.carried()
        if before is not None:
            object.__setattr__(self, "root", carried_from(before))

    def edges(self) -> Iterable[Edge]:
        """Give every edge this node reads, the captures of its regions included."""
        yield from (edge for _, edge in self.inputs)
        for _, region in self.regions:
            yield from region.captures

    def input(self, port: str) -> Edge | None:
        """Give the edge on a port, if there is one."""
        return next((edge for name, edge in self.inputs if name == port), None)

    def carried(self) -> Edge | None:
        """Give the version of state that this node consumes, if its op carries any, however late it is read."""
        edge = self.input(self.op.carries) if self.op.carries is not None else None
        return newest(edge) if edge is not None else None

    def model(self) -> Edge | None:
        """Give the edge of the first model this node reads, if any."""
        return next((edge for _, edge in self.inputs if issubclass(edge.type, Model)), None)

    def __repr__(self) -> str:
        return f"<{self.name or self.op.name} at {self.at}>"


Source = Node | Param | Const


def reachable(edges: Iterable[Edge], *, newer: int = -1) -> list[Source]:
    """Give every source that `edges` depend on, in the order they were written; a loop, so depth is no limit.

    Those whose stamp is not above `newer` are left out, with all that they depend on.
    """
    todo, seen = [edge.source for edge in edges], set[Source]()
    while todo:
        source = todo.pop()
        if source not in seen and source.stamp > newer:
            seen.add(source)
            todo += [edge.source for edge in source.edges()] if isinstance(source, Node) else []
    return sorted(seen, key=lambda source: source.stamp)


@dataclass(frozen=True, eq=False)
class Graph:
    """A described flow: its parameters and what it returns; everything else is reachable from there.

    `dropped` are calls that the flow made and nothing reads; `pruned` says of each node that is gone why.
    """

    name: str
    params: tuple[Param, ...]
    outputs: tuple[Edge, ...]
    at: Site
    settings: BaseModel | None = None
    dropped: tuple[Node, ...] = ()
    pruned: tuple[str, ...] = ()

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Give the nodes of the flow itself (not those inside regions), in the order they were written."""
        return tuple(source for source in reachable(self.outputs) if isinstance(source, Node))

    @cached_property
    def all_nodes(self) -> tuple[Node, ...]:
        """Give the nodes of the flow and of its regions, in the order they were written."""
        inner = (node for each in self.nodes for _, region in each.regions for node in region.inner)
        return tuple(sorted({*self.nodes, *inner}, key=lambda node: node.stamp))

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return mimebundle(self)

    def param(self, name: str) -> Param | None:
        """Give the parameter of this name, if there is one."""
        return next((param for param in self.params if param.name == name), None)

    def carries(self) -> dict[str, int]:
        """Map each carried parameter to the output that is its next version, matched by the state trait."""
        roots = [(carried_from(edge), i) for i, edge in enumerate(self.outputs) if issubclass(edge.type, State)]
        return {root.name: i for root, i in roots if root is not None and root in self.params}


def how_late(at_most: int) -> str:
    """Say how late weights may be read.

    >>> how_late(1), how_late(4)
    ('up to 1 update late', 'up to 4 updates late')
    """
    return f"up to {at_most} update{'s' if at_most > 1 else ''} late"


def newest(edge: Edge) -> Edge:
    """Give the version of weights that an edge reads, however late it may read it."""
    return replace(edge, at_most=0, corrected=True) if edge.at_most or not edge.corrected else edge


def carried_from(edge: Edge) -> Param | None:
    """Give the parameter that an edge is a version of, through any number of ops that carry it."""
    if isinstance(edge.source, Node):
        return edge.source.root if edge.port in ("", "0") else None
    return edge.source if isinstance(edge.source, Param) and not edge.port else None


def rewrite(graph: Graph, change: Callable[[Node], Node | Edge]) -> Graph:
    """Rebuild a graph with `change` applied to every node, those inside regions included.

    `change` gets the node with its inputs already rebuilt, and gives what stands in its place: a node, or an edge of
    the new graph for its one result. Stamps are kept, so is the order; what nothing reads any more is gone.
    """
    new: dict[Source, Node | Edge] = {}  # what is not as it was
    for node in graph.all_nodes:
        given = change(_rebuilt(node, new))
        if not isinstance(cast("object", given), Node | Edge):
            why = f"gives {type(given).__name__} for {node}"
            raise FlowTypeError.bad_call("", "rewrite", why, "a change gives a node, or an edge that stands for it")
        if given is not node:
            new[node] = given
    return replace(graph, outputs=tuple(_moved(edge, new) for edge in graph.outputs)) if new else graph


def _rebuilt(node: Node, new: Mapping[Source, Node | Edge]) -> Node:
    if not any(edge.source in new for edge in node.edges()) and not any(
        inner in new for _, region in node.regions for inner in region.inner
    ):
        return node
    inputs = tuple((port, _moved(edge, new)) for port, edge in node.inputs)
    regions = tuple((port, _moved_region(region, new)) for port, region in node.regions)
    return replace(node, inputs=inputs, regions=regions)


def _moved(edge: Edge, new: Mapping[Source, Node | Edge]) -> Edge:
    there = new.get(edge.source)
    if there is None:
        return edge
    if isinstance(there, Node):
        return Edge(there, edge.type, edge.port, edge.at_most, edge.corrected)
    port = ".".join(each for each in (there.port, edge.port) if each)
    return Edge(there.source, edge.type, port, edge.at_most, edge.corrected)


def _moved_region(region: Region, new: Mapping[Source, Node | Edge]) -> Region:
    moved = Region.of(region.name, region.params, _moved(region.output, new), region.at)
    counts = dict.fromkeys(_moved(edge, new) for edge in region.counts)
    return replace(moved, counts=tuple(edge for edge in counts if edge in moved.captures))
