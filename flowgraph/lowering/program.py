"""A program as data: what the runtime is told to do in one step, as small frozen tasks in order, and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from flowgraph.cluster.plan import Layout, Plan, RoleSettings
from flowgraph.engines.table import is_server, ranks_of
from flowgraph.language.graph import Edge, Graph, Node
from flowgraph.language.values import Model, Value

AS_USUAL = RoleSettings()
HOST = "host"
"""The place of nodes that read no model: any machine can run them."""


@dataclass(frozen=True)
class Home:
    """Where one copy of a model's weights lives: roles of one model with one pool, engine, layout and running share it.

    `param` is the parameter of the flow that is trained, whatever another flow that reads it calls it.
    """

    param: str
    pool: str
    engine: str
    layout: Layout
    running: RoleSettings = AS_USUAL

    @property
    def ranks(self) -> int:
        """Give over how many ranks rows are split: the data ranks, or the one that speaks for an engine's processes."""
        return ranks_of(self.engine, self.layout.data)

    @property
    def members(self) -> range:
        """Give the devices of the pool, by place, whose actors run its nodes: of an engine with servers the first."""
        return range(1 if is_server(self.engine) else self.layout.devices)

    def rank_of(self, place: int) -> int:
        """Give which of `ranks` a member is: those who share a data rank are neighbours, and get the same rows."""
        return place // (len(self.members) // self.ranks)

    def __str__(self) -> str:
        return f"{self.pool}/{self.engine}"


Parts = tuple[str, ...]
"""Parts of a record as dotted paths; none: the whole value."""


class _Printed:
    """A task as a line: its verb, what it is about, and where; `more` is said of it in a program's text only."""

    @property
    def more(self) -> str:
        """Say which parts of which record, if not the whole."""
        return ""

    @property
    def cells(self) -> tuple[str, str, str]:
        """Give the line in three parts."""
        raise NotImplementedError

    def __str__(self) -> str:
        verb, what, where = self.cells
        return f"{verb:<10}{what}  {where}"


@dataclass(frozen=True)
class Read(_Printed):
    """Get this step's rows of a data parameter, on the host."""

    value: str

    @property
    def cells(self) -> tuple[str, str, str]:
        """Give the line in three parts."""
        return "read", self.value, f"on {HOST}"


@dataclass(frozen=True)
class Run(_Printed):
    """Run nodes at one place: `reads` from its store, weights from `homes`; nodes that read one forward pass together.

    `homes` pairs each value of a model with the home that it is read from; `home` is the one that splits the rows.
    Of the values in `parts` it reads these parts only. Results in `inner` do not leave it; those in `sends` also go as
    these parts to other places.
    """

    nodes: tuple[str, ...]
    place: str
    reads: tuple[str, ...]
    homes: tuple[tuple[str, Home], ...] = ()
    role: str = ""
    inner: tuple[str, ...] = ()
    parts: tuple[tuple[str, Parts], ...] = ()
    sends: tuple[tuple[str, Parts], ...] = ()

    @property
    def home(self) -> Home | None:
        """Give the home whose ranks run it, or None for a host node."""
        return self.homes[0][1] if self.homes else None

    def without(self, recorded: Mapping[str, object], nodes: Mapping[str, Node]) -> Run:
        """Give the run of the other nodes, which read what is recorded of these as they read any value."""
        left = tuple(name for name in self.nodes if name not in recorded)
        if len(left) == len(self.nodes):
            return self
        read = {name for each in left for name in values_read(nodes[each])}
        reads = (*(name for name in self.reads if name in read), *(name for name in recorded if name in read))
        parts = tuple(each for each in self.parts if each[0] in read)
        sends = tuple(each for each in self.sends if each[0] not in recorded)
        return replace(self, nodes=left, reads=reads, parts=parts, sends=sends)

    @property
    def cells(self) -> tuple[str, str, str]:
        """Give the line in three parts."""
        where = f"{self.home}, role {self.role}" if self.home is not None else self.place
        return "run", ", ".join(self.nodes), f"on {where}"

    @property
    def more(self) -> str:
        """Say which parts it reads of which record."""
        return "; ".join(f"of {name}: {', '.join(parts)}" for name, parts in self.parts)


@dataclass(frozen=True)
class Transfer(_Printed):
    """Bring a value from the store of one place to another's; of a record these parts, if any are named."""

    value: str
    source: str
    target: str
    parts: Parts = ()

    @property
    def cells(self) -> tuple[str, str, str]:
        """Give the line in three parts."""
        return "transfer", self.value, f"{self.source} -> {self.target}"

    @property
    def more(self) -> str:
        """Say which parts it brings."""
        return ", ".join(self.parts)


@dataclass(frozen=True)
class Sync(_Printed):
    """Bring a version of a model's weights from one home to another, unless the copy there is recent enough.

    Recent enough is one that is at most `lag` updates old, which the plan chose; its readers allow `at_most`.
    """

    value: str
    source: Home
    target: Home
    at_most: int = 0
    lag: int = 0

    @property
    def cells(self) -> tuple[str, str, str]:
        """Give the line in three parts."""
        return "sync", self.value, f"{self.source} -> {self.target}"

    @property
    def more(self) -> str:
        """Say how old the copy may be, if it may be old."""
        return f"lag {self.lag} of at most {self.at_most}" if self.at_most else ""


@dataclass(frozen=True)
class Switch(_Printed):
    """Let what a home holds leave the memory of its devices, or come back."""

    home: Home
    awake: bool

    @property
    def cells(self) -> tuple[str, str, str]:
        """Give the line in three parts."""
        return "wake" if self.awake else "sleep", self.home.param, f"on {self.home}"


Task = Read | Run | Transfer | Sync | Switch


@dataclass(frozen=True, eq=False)
class Program:
    """One step of a flow under a plan.

    `origins` says where the newest version of each model parameter lives; of those in `frozen` there is only one
    version, which every home has loaded.
    """

    graph: Graph
    plan: Plan
    homes: tuple[Home, ...]
    origins: tuple[tuple[str, Home], ...]
    frozen: tuple[str, ...]
    tasks: tuple[Task, ...]

    @property
    def trained(self) -> tuple[Home, ...]:
        """Give the homes whose weights an update moves on."""
        return tuple(home for name, home in self.origins if name not in self.frozen)

    @cached_property
    def nodes(self) -> Mapping[str, Node]:
        """Give the nodes of the graph by name, those inside losses apart."""
        return {node.name: node for node in self.graph.nodes}

    def without(self, place: int) -> Program:
        """Leave one task out; what is left is for tests to refuse."""
        return replace(self, tasks=self.tasks[:place] + self.tasks[place + 1 :])


def value_name(edge: Edge) -> str:
    """Name the value that an edge reads or is a part of: the parameter, the node, or one of a node's several results.

    Parts of a record have no name of their own: they travel in one value, which may hold some of them only.
    """
    source = edge.source
    if isinstance(source, Node):
        return f"{source.name}.{edge.port.partition('.')[0]}" if len(source.returns) > 1 else source.name
    assert not hasattr(source, "value"), "a graph with real data in it has no program"
    return str(getattr(source, "name", ""))


def results_of(node: Node) -> tuple[str, ...]:
    """Name the results of a node."""
    many = len(node.returns) > 1
    return tuple(f"{node.name}.{i}" for i in range(len(node.returns))) if many else (node.name,)


def typed_results(node: Node) -> tuple[tuple[str, type[Value]], ...]:
    """Name the results of a node, each with its type."""
    return tuple(zip(results_of(node), node.returns, strict=True))


def path_in_value(edge: Edge) -> str:
    """Give the dotted path of the part that an edge reads within its value; "" for all of it."""
    several = isinstance(edge.source, Node) and len(edge.source.returns) > 1
    return edge.port.partition(".")[2] if several else edge.port


def read_by(node: Node) -> Iterator[tuple[Edge, str]]:
    """Give what a node reads, with the name of the node that reads it: its own, or that of one in its regions.

    The state that it carries comes first: the node runs where that is.
    """
    for _, edge in sorted(node.inputs, key=lambda each: each[0] != node.op.carries):
        yield edge, node.name
    for _, region in node.regions:
        for edge in region.captures:
            readers = (inner.name for inner in region.inner for _, read in inner.inputs if read == edge)
            yield edge, next(readers, node.name)


def values_read(node: Node) -> tuple[str, ...]:
    """Name the values that a node reads, each once, models apart."""
    return tuple(dict.fromkeys(value_name(edge) for edge, _ in read_by(node) if not issubclass(edge.type, Model)))


def results_given(task: Run, nodes: Mapping[str, Node]) -> Iterator[tuple[str, type[Value]]]:
    """Name the results that leave a task, each with its type; `nodes` by their names."""
    for each in task.nodes:
        yield from ((name, kind) for name, kind in typed_results(nodes[each]) if name not in task.inner)


def what_is_read(task: Task) -> Iterator[tuple[str, str | Home]]:
    """Give what a task reads: values at places, and versions of weights at homes."""
    if isinstance(task, Transfer | Sync):
        yield task.value, task.source
    elif isinstance(task, Run):
        yield from ((name, task.place) for name in task.reads)
        yield from task.homes


def what_is_given(task: Task, nodes: Mapping[str, Node]) -> Iterator[tuple[str, str | Home]]:
    """Give what is there once a task is done: values at places, and versions of weights at homes."""
    if isinstance(task, Run):
        for name, kind in results_given(task, nodes):
            yield name, task.home if task.home is not None and issubclass(kind, Model) else task.place
    elif isinstance(task, Read):
        yield task.value, HOST
    elif isinstance(task, Transfer | Sync):
        yield task.value, task.target
