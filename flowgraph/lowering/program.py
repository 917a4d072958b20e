"""A program as data: what the runtime is told to do in one step, as small frozen tasks in order, and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from flowgraph.graph import Edge, Graph, Node
from flowgraph.plan import Layout, Plan
from flowgraph.values import Value

HOST = "host"
"""The place of nodes that read no model: any machine can run them."""


@dataclass(frozen=True)
class Home:
    """Where one copy of a model's weights lives: roles of one model with one pool, engine and layout share it.

    `param` is the parameter of the flow that is trained, whatever another flow that reads it calls it.
    """

    param: str
    pool: str
    engine: str
    layout: Layout

    def __str__(self) -> str:
        return f"{self.pool}/{self.engine}"


class _Printed:
    """A task as a line: its verb, what it is about, and where."""

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
    """Run nodes that share their inputs at one place: `reads` from its store, `models` from these homes.

    `homes` pairs each value of a model with the home that it is read from; `home` is the one that splits the rows.
    """

    nodes: tuple[str, ...]
    place: str
    reads: tuple[str, ...]
    homes: tuple[tuple[str, Home], ...] = ()
    role: str = ""

    @property
    def home(self) -> Home | None:
        """Give the home whose ranks run it, or None for a host node."""
        return self.homes[0][1] if self.homes else None

    @property
    def cells(self) -> tuple[str, str, str]:
        """Give the line in three parts."""
        where = f"{self.home}, role {self.role}" if self.home is not None else self.place
        return "run", ", ".join(self.nodes), f"on {where}"


@dataclass(frozen=True)
class Transfer(_Printed):
    """Bring a value from the store of one place to another's."""

    value: str
    source: str
    target: str

    @property
    def cells(self) -> tuple[str, str, str]:
        """Give the line in three parts."""
        return "transfer", self.value, f"{self.source} -> {self.target}"


@dataclass(frozen=True)
class Sync(_Printed):
    """Bring a version of a model's weights from one home to another."""

    value: str
    source: Home
    target: Home

    @property
    def cells(self) -> tuple[str, str, str]:
        """Give the line in three parts."""
        return "sync", self.value, f"{self.source} -> {self.target}"


Task = Read | Run | Transfer | Sync


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

    def without(self, place: int) -> Program:
        """Leave one task out; what is left is for tests to refuse."""
        return replace(self, tasks=self.tasks[:place] + self.tasks[place + 1 :])


def value_name(edge: Edge) -> str:
    """Name the value that an edge reads or is a part of: the parameter, the node, or one of a node's several results.

    A record travels whole, so its parts have no name of their own.
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


def program_text(program: Program) -> str:
    """Print a program: where each copy of weights lives, then the tasks of a step in order."""
    lines = [f"program {program.graph.name}, structure {program.plan.structure_hash[:12]}"]
    pools = [[pool.name, ", ".join(f"{node}/{index}" for node, index in pool.devices)] for pool in program.plan.pools]
    lines += [f"  pool  {line}" for line in columns(pools)]
    newest = {home for _, home in program.origins}
    homes = [
        [home.param, str(home), str(home.layout), "" if home in newest else "a copy, by sync"] for home in program.homes
    ]
    lines += [f"  home  {line}" for line in columns(homes)]
    tasks = [[str(i), *task.cells] for i, task in enumerate(program.tasks, 1)]
    return "\n".join([*lines, "step", *(f"  {line}" for line in columns(tasks, right=(0,)))])


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> Iterator[str]:
    """Lay rows of cells out in columns, those in `right` flush right.

    >>> list(columns([["a", "bc"], ["def", "g"]]))
    ['a    bc', 'def  g']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, strict=True)
        padded = (cell.rjust(width) if i in right else cell.ljust(width) for i, (cell, width) in enumerate(cells))
        yield "  ".join(padded).rstrip()
