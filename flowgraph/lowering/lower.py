"""Lower a graph under a plan: each change of place becomes a transfer, each change of a model's home a sync.

Before: `policy.generate` in `policy.sample` on one engine, `policy.update` in `policy.train` on another, `score` in no
role. After: `sync policy`, `run policy.generate`, `transfer policy.generate -> host`, `run score`, …
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from flowgraph.check_plan import check_plan
from flowgraph.errors import PlanError
from flowgraph.evaluate import shared_inputs
from flowgraph.graph import Edge, Graph, Node, Param, carried_from
from flowgraph.lowering.check_program import check_program
from flowgraph.lowering.program import HOST, Home, Program, Read, Run, Sync, Task, Transfer, typed_results, value_name
from flowgraph.passes.order_nodes import order_nodes
from flowgraph.plan import Plan
from flowgraph.roles import Role, roles
from flowgraph.values import Model


def lower(graph: Graph, plan: Plan, origins: Mapping[str, Home] | None = None, *, where: str = "plan") -> Program:
    """Give the program of one step of a named graph under a plan; `where` is the plan's file.

    `origins` says where weights live that another program trains. Raises PlanError for a plan that is not for this
    graph, that parts models which one node reads, or that splits the rows of a node that needs them all.
    """
    check_plan(plan, graph, where)
    homes = _homes(graph, plan, origins or {})
    elsewhere = {name: home for name, home in (origins or {}).items() if graph.param(name) is not None}
    newest = _origins(homes) | elsewhere
    consumed = [carried_from(dict(node.inputs)[node.op.carries]) for node in graph.nodes if node.op.carries]
    moving = {*elsewhere, *(param.name for param in consumed if param is not None)}
    frozen = tuple(name for name in newest if name not in moving)
    tasks = tuple(_Lowering(graph, homes, newest, frozen, where).tasks())
    distinct = tuple(dict.fromkeys(home for home, _ in homes.values()))
    program = Program(graph, plan, distinct, tuple(newest.items()), frozen, tasks)
    check_program(program)
    return program


def _homes(graph: Graph, plan: Plan, origins: Mapping[str, Home]) -> dict[str, tuple[Home, Role]]:
    """Give the home of each role by its name."""
    placed = {each.role: each for each in plan.placed}
    found = dict[str, tuple[Home, Role]]()
    for role in roles(graph):
        at, param = placed[role.name], origins[role.param].param if role.param in origins else role.param
        found[role.name] = Home(param, at.pool, at.engine, at.layout), role
    return found


def _origins(homes: Mapping[str, tuple[Home, Role]]) -> dict[str, Home]:
    """Give the home of each model's newest version: where it is trained, else the first that reads it."""
    found = dict[str, Home]()
    for home, role in homes.values():
        found.setdefault(role.param, home)
        found |= {role.param: home} if role.use == "train" else {}
    return found


class _Lowering:
    """The tasks of one step as they are found, and where each value is by then."""

    def __init__(
        self,
        graph: Graph,
        homes: Mapping[str, tuple[Home, Role]],
        origins: Mapping[str, Home],
        frozen: Sequence[str],
        where: str,
    ) -> None:
        self._graph, self._where = graph, where
        self._roles = {(found[1].param, name): found for found in homes.values() for name in found[1].nodes}
        self._made: dict[str, str | Home] = dict(origins)  # where a value was made
        self._there = set[tuple[str, str | Home]](origins.items())
        # Each home has loaded what nothing updates.
        self._there |= {(role.param, home) for home, role in homes.values() if role.param in frozen}

    def tasks(self) -> Iterator[Task]:
        edges = (*self._graph.outputs, *(edge for node in self._graph.nodes for edge in node.edges()))
        read = {edge.source for edge in edges}
        for param in (each for each in self._graph.params if each in read and not issubclass(each.type, Model)):
            self._put(param.name, HOST)
            yield Read(param.name)
        done = set[Node]()
        for node in order_nodes(self._graph):
            if node not in done:
                together = self._together(node)
                done.update(together)
                yield from self._run(together)
        for edge in self._graph.outputs:
            if not issubclass(edge.type, Model):
                yield from self._bring(value_name(edge), HOST)

    def _together(self, node: Node) -> list[Node]:
        """Give the nodes that read one forward pass with this one."""
        if node.op.stat is None:
            return [node]
        others = (each for each in self._graph.nodes if each.op.stat is not None)
        return [each for each in others if shared_inputs(each) == shared_inputs(node)]

    def _run(self, nodes: Sequence[Node]) -> Iterator[Task]:
        first = nodes[0]
        models, reads = dict[str, Home](), dict[str, None]()
        named = [(edge, name) for edge, name in _read_by(first)]
        role = ""
        for edge, name in named:
            if issubclass(edge.type, Model):
                home, found = self._home(edge, name)
                models[value_name(edge)], role = home, role or found.name
        place = next(iter(models.values())).pool if models else HOST
        for node in nodes:
            self._check(node, models)
        for edge, _ in named:
            if not issubclass(edge.type, Model):
                reads[value_name(edge)] = None
                yield from self._bring(value_name(edge), place)
        for name, home in models.items():
            yield from self._bring(name, home)
        for node in nodes:
            for name, kind in typed_results(node):
                self._put(name, next(iter(models.values())) if issubclass(kind, Model) else place)
        yield Run(tuple(node.name for node in nodes), place, tuple(reads), tuple(models.items()), role)

    def _home(self, edge: Edge, reader: str) -> tuple[Home, Role]:
        param = carried_from(edge)
        assert isinstance(param, Param), "a model is a version of a parameter"
        return self._roles[param.name, reader]

    def _check(self, node: Node, models: Mapping[str, Home]) -> None:
        homes = list(models.values())
        for other in homes[1:]:
            if (other.pool, other.layout.data) != (homes[0].pool, homes[0].layout.data):
                raise PlanError.not_together(self._where, node.name, str(node.at), str(homes[0]), str(other))
        for each in (node, *(inner for _, region in node.regions for inner in region.inner)):
            if homes and homes[0].layout.data > 1 and not each.op.separable:
                raise PlanError.not_split(self._where, each.name, str(each.at), homes[0].layout.data)

    def _put(self, name: str, place: str | Home) -> None:
        self._made[name] = place
        self._there.add((name, place))

    def _bring(self, name: str, target: str | Home) -> Iterator[Task]:
        if (name, target) in self._there:
            return
        self._there.add((name, target))
        source = self._made[name]
        if isinstance(source, Home) and isinstance(target, Home):
            yield Sync(name, source, target)
        elif isinstance(source, str) and isinstance(target, str):
            yield Transfer(name, source, target)


def _read_by(node: Node) -> Iterator[tuple[Edge, str]]:
    """Give what a node reads, with the name of the node that reads it: its own, or that of one in its regions.

    The state that it carries comes first: the node runs where that is.
    """
    for _, edge in sorted(node.inputs, key=lambda each: each[0] != node.op.carries):
        yield edge, node.name
    for _, region in node.regions:
        for edge in region.captures:
            readers = (inner.name for inner in region.inner for _, read in inner.inputs if read == edge)
            yield edge, next(readers, node.name)
