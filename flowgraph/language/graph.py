"""The IR: immutable nodes that hold their inputs; a graph is everything that is reachable from the returned values.

Every traversal is a loop. Nodes have a creation stamp, which gives the order of the flow; it is also a topological
order, since an input is always older than its reader.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, cast

from pydantic import BaseModel

from flowgraph.errors import FlowTypeError, UnknownNameError, with_article
from flowgraph.language.call_site import Site
from flowgraph.language.notebook import mimebundle
from flowgraph.language.traits import By, RowTrait
from flowgraph.language.values import Kind, Metric, Model, State, Value

_stamps = itertools.count()


ValueType = type[Value]


NodeKind = Literal["generate", "score", "logprob", "advantage", "update", "host"]
"""The five kinds of node in reinforcement learning, and `host` for nodes that any machine can run."""


@dataclass(frozen=True)
class Port:
    """One input of an op: a value, or a region (a function that takes a model and returns a loss)."""

    name: str
    type: Any  # a Value subclass, or a TypeVar bound to one
    optional: bool = False
    region: bool = False
    region_returns: type[Value] | None = None
    parts: tuple[str, ...] = ()  # of a record, those that the body reads; none for all
    by: By | None = None
    other_rows: bool = False
    no_rows: bool = False  # of a state that holds no rows of earlier steps
    kind: Kind | None = None  # the kind that it takes, where subclasses of its type have several
    initial: Any = None  # of a flow's parameter: the data that this carried state starts from
    corrects: str | None = None  # it corrects for the weights that sampled the rows, on the node's port of this name

    @property
    def value_type(self) -> type[Value]:
        """Return the type that values on this port must have: the port's type, or the bound of its TypeVar."""
        bound: type[Value] = getattr(self.type, "__bound__", None) or self.type
        return bound

    def wants(self) -> str:
        """Return the type that this port takes as text for errors, such as `a Mask` or `a function of a Policy`."""
        value = with_article(self.value_type.__name__)
        return f"a function of {value}" if self.region else value


@dataclass(frozen=True, eq=False)
class Op:
    """A `@node` function as data: ports, settings, and the traits that passes and planners read."""

    name: str
    module: str
    kind: NodeKind
    ports: tuple[Port, ...]
    returns: tuple[Any, ...]
    settings: type[BaseModel]
    body: Callable[..., Any]
    pure: bool = True
    key: str | None = None  # the keyword parameter that takes a Key, if it uses random numbers
    carries: str | None = None  # the port whose state has the result as its next version
    stat: str | None = None  # the statistic of a model's forward pass that it reads
    separable: bool = True  # the result of a row does not depend on rows of other groups
    rows: RowTrait = "kept"
    regroups: bool = False  # its rows answer other prompts, or not all of them, so they are divided among ranks again
    on_policy: bool = False  # the newest weights must have sampled the rows that it reads
    hands_out: bool = False  # it passes `gather` what makes rows of finished groups, so that they can be read early
    samples: tuple[str, ...] | None = None  # settings whose product is the number of its responses to each prompt
    metrics: tuple[Metric, ...] = ()
    about: str = ""

    def port(self, name: str) -> Port:
        """Return the port of this name. Raises UnknownNameError if there is none."""
        for port in self.ports:
            if port.name == name:
                return port
        raise UnknownNameError.of(f"port of {self.name}", name, [port.name for port in self.ports])


@dataclass(frozen=True, eq=False)
class Param:
    """A parameter of a flow or of a region."""

    name: str
    type: type[Value]
    owner: str
    at: Site
    stamp: int = field(default_factory=lambda: next(_stamps))
    initial: Any = None  # the data of carried state before the first step, if the flow declares it


@dataclass(frozen=True, eq=False)
class Const:
    """A real value among the inputs of a call on edges, as in a loss when `update` is called on real values."""

    value: Value
    at: Site
    stamp: int = field(default_factory=lambda: next(_stamps))


@dataclass(frozen=True)
class Edge:
    """One result of a source, or a part of that result, as a node reads it; `port` is the dotted path of the part.

    `at_most` is the number of updates by which the weights of a model that samples may lag. If `corrected`, a loss on
    these samples must correct for the lag.
    """

    source: Node | Param | Const
    type: type[Value]
    port: str = ""
    at_most: int = 0
    corrected: bool = True

    def part(self, name: str, kind: ValueType) -> Edge:
        """Return an edge to the part `name`, of type `kind`, of the record on this edge."""
        return replace(self, port=f"{self.port}.{name}" if self.port else name, type=kind)

    def made(self) -> str:
        """Return the origin of the value as text for errors, such as `from generate at grpo.py:8` or `a real value`."""
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
    """A loss: the nodes that depend on its parameters are `inner` and run again for each micro-batch.

    `captures` are the other values that these nodes read; `counts` are the distinct masks whose counts divide terms.
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
        """Return the region that computes `output`, without counts; inner nodes are those that depend on `params`."""
        inner, inside = list[Node](), set[Source](params)
        for source in reachable([output], newer=min(param.stamp for param in params)):
            if isinstance(source, Node) and any(edge.source in inside for edge in source.edges()):
                inner.append(source)
                inside.add(source)
        reads = itertools.chain([output], (edge for node in inner for edge in node.edges()))
        captures = dict.fromkeys(edge for edge in reads if edge.source not in inside)
        return cls(name, params, output, tuple(inner), tuple(captures), at)


@dataclass(frozen=True, eq=False)
class Node:
    """One call of an op, with its inputs; immutable.

    `label` is the name that the call gives the node, and `name` the unique one that the compiler makes of it or the op.
    """

    op: Op
    inputs: tuple[tuple[str, Edge], ...]
    settings: BaseModel
    regions: tuple[tuple[str, Region], ...]
    returns: tuple[type[Value], ...]
    at: Site
    name: str = ""
    stamp: int = field(default_factory=lambda: next(_stamps))
    label: str = ""
    root: Param | None = field(init=False, repr=False, default=None)  # the parameter whose next version this makes

    def __post_init__(self) -> None:
        before = self.carried()
        if before is not None:
            object.__setattr__(self, "root", carried_from(before))

    def edges(self) -> Iterable[Edge]:
        """Yield every edge that this node reads, including the captures of its regions."""
        yield from (edge for _, edge in self.inputs)
        for _, region in self.regions:
            yield from region.captures

    def input(self, port: str) -> Edge | None:
        """Return the edge on the port with this name, or None if the port has none."""
        return next((edge for name, edge in self.inputs if name == port), None)

    def carried(self) -> Edge | None:
        """Return the edge to the state whose next version this node makes, without the lag of `stale`; None if none."""
        edge = self.input(self.op.carries) if self.op.carries is not None else None
        return newest(edge) if edge is not None else None

    def model(self) -> Edge | None:
        """Return the edge of the first model among this node's inputs, or None if it reads no model."""
        return next((edge for _, edge in self.inputs if issubclass(edge.type, Model)), None)

    def __repr__(self) -> str:
        return f"<{self.name or self.op.name} at {self.at}>"


Source = Node | Param | Const


def reachable(edges: Iterable[Edge], *, newer: int = -1) -> list[Source]:
    """Return every source that `edges` depend on, directly or indirectly, in the order of the flow.

    A source is a node, a parameter or a constant. Sources whose stamp is at most `newer` are left out, with everything
    on which only they depend.
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
    """A described flow: its parameters and its results; everything else is reachable from the results.

    `dropped` are calls whose results nothing reads; `pruned` says why each removed node is gone.
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
        """Return the nodes on which the results depend, without those inside losses, in the order of the flow."""
        return tuple(source for source in reachable(self.outputs) if isinstance(source, Node))

    @cached_property
    def all_nodes(self) -> tuple[Node, ...]:
        """Return the nodes on which the results depend, including those inside losses, in the order of the flow."""
        inner = (inner for node in self.nodes for _, region in node.regions for inner in region.inner)
        return tuple(sorted({*self.nodes, *inner}, key=lambda node: node.stamp))

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return mimebundle(self)

    def param(self, name: str) -> Param | None:
        """Return the parameter with this name, or None if there is none."""
        return next((param for param in self.params if param.name == name), None)

    def updates(self, param: str) -> int:
        """Return how many nodes of a step change the weights of the model that is this parameter; 0 if none does."""
        updated = (node for node in self.nodes if node.root is not None and node.root.name == param)
        return sum(any(issubclass(kind, Model) for kind in node.returns) for node in updated)

    def carries(self) -> dict[str, int]:
        """Return, by the name of each carried parameter, the index of the result that is its value in the next step."""
        roots = [(carried_from(edge), i) for i, edge in enumerate(self.outputs) if issubclass(edge.type, State)]
        return {root.name: i for root, i in roots if root is not None and root in self.params}


def lag_text(at_most: int) -> str:
    """Return the maximum lag of weights, `at_most` updates, as text.

    >>> lag_text(1), lag_text(4)
    ('up to 1 update late', 'up to 4 updates late')
    """
    return f"up to {at_most} update{'s' if at_most > 1 else ''} late"


def newest(edge: Edge) -> Edge:
    """Return the edge without the lag that `stale` permits; the same edge if none is permitted."""
    return replace(edge, at_most=0, corrected=True) if edge.at_most or not edge.corrected else edge


def carried_from(edge: Edge) -> Param | None:
    """Return the parameter whose value, or whose later version, is on an edge; None for parts and other values."""
    if isinstance(edge.source, Node):
        return edge.source.root if edge.port in ("", "0") else None
    return edge.source if isinstance(edge.source, Param) and not edge.port else None


def rewrite(graph: Graph, change: Callable[[Node], Node | Edge]) -> Graph:
    """Return a graph in which `change` has replaced every node, including those inside losses.

    `change` gets a node whose inputs are already replaced. It returns a node, or an edge of the new graph that replaces
    the node's only result. The order of nodes stays; nodes that nothing reads disappear. The same graph is returned if
    nothing changes. Raises FlowTypeError if `change` returns anything else.
    """
    new: dict[Source, Node | Edge] = {}  # replacements, without nodes that stay the same
    for node in graph.all_nodes:
        changed = change(_rebuilt(node, new))
        if not isinstance(cast("object", changed), Node | Edge):
            why = f"returns {type(changed).__name__} for {node}"
            raise FlowTypeError.bad_call("", "rewrite", why, "a change returns a node, or an edge that replaces it")
        if changed is not node:
            new[node] = changed
    return replace(graph, outputs=tuple(_moved(edge, new) for edge in graph.outputs)) if new else graph


def _rebuilt(node: Node, new: Mapping[Source, Node | Edge]) -> Node:
    inner = (inner for _, region in node.regions for inner in region.inner)
    if new.keys().isdisjoint(itertools.chain((edge.source for edge in node.edges()), inner)):
        return node
    inputs = tuple((port, _moved(edge, new)) for port, edge in node.inputs)
    regions = list[tuple[str, Region]]()
    for port, region in node.regions:
        moved = Region.of(region.name, region.params, _moved(region.output, new), region.at)
        counts = dict.fromkeys(_moved(edge, new) for edge in region.counts)
        regions.append((port, replace(moved, counts=tuple(edge for edge in counts if edge in moved.captures))))
    return replace(node, inputs=inputs, regions=tuple(regions))


def _moved(edge: Edge, new: Mapping[Source, Node | Edge]) -> Edge:
    target = new.get(edge.source)
    if target is None or isinstance(target, Node):
        return edge if target is None else replace(edge, source=target)
    return replace(edge, source=target.source, port=".".join(filter(None, (target.port, edge.port))))
