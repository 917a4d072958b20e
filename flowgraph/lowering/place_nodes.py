"""Place nodes: one run for each node, where the plan has its role, and reads of data; nothing is brought yet.

Before: `policy.generate` in `policy.sample`, `score` in no role. After: `read prompts`, `run policy.generate on …`,
`run score on host`, …; nodes that read one forward pass are one run. What a run reads may still be elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from flowgraph.analysis.node_order import order_nodes
from flowgraph.analysis.roles import Role, roles
from flowgraph.cluster.plan import Plan
from flowgraph.errors import PlanError
from flowgraph.language.graph import Edge, Graph, Node, Param, carried_from
from flowgraph.language.region import shared_inputs
from flowgraph.language.values import Model
from flowgraph.lowering.program import HOST, Home, Program, Read, Run, Task, read_by, value_name, values_read

Placings = Mapping[tuple[str, str], tuple[Home, Role]]
"""The home and the role in which a node reads a model, by the names of the parameter and of the node."""


def place_nodes(
    graph: Graph, plan: Plan, origins: Mapping[str, Home], where: str = "plan", *, checked: bool = True
) -> Program:
    """Give the program of a graph whose runs are placed, in an order that is legal to run.

    `origins` says where weights live that another program trains. Raises PlanError, unless not `checked`, for a plan
    that parts models which one node reads, or that splits the rows of a node that needs them all; `where` is the plan's
    file.
    """
    homes = _homes(graph, plan, origins)
    elsewhere = {name: home for name, home in origins.items() if graph.param(name) is not None}
    newest = _newest(homes) | elsewhere
    consumed = [edge for node in graph.nodes if (edge := node.carried()) is not None]
    moving = {*elsewhere, *(root.name for edge in consumed if (root := carried_from(edge)) is not None)}
    frozen = tuple(name for name in newest if name not in moving)
    placings = {(role.param, name): (home, role) for home, role in homes.values() for name in role.nodes}
    runs = tuple(_runs(graph, placings))
    if checked:
        _check(runs, graph, where)
    distinct = tuple(dict.fromkeys(home for home, _ in homes.values()))
    return Program(graph, plan, distinct, tuple(newest.items()), frozen, (*_data(graph), *runs))


def _homes(graph: Graph, plan: Plan, origins: Mapping[str, Home]) -> dict[str, tuple[Home, Role]]:
    """Give the home of each role by its name."""
    placed = {each.role: each for each in plan.placed}
    found = dict[str, tuple[Home, Role]]()
    for role in roles(graph):
        at, param = placed[role.name], origins[role.param].param if role.param in origins else role.param
        found[role.name] = Home(param, at.pool, at.engine, at.layout, at.running), role
    return found


def _newest(homes: Mapping[str, tuple[Home, Role]]) -> dict[str, Home]:
    """Give the home of each model's newest version: where it is trained, else the first that reads it."""
    found = dict[str, Home]()
    for home, role in homes.values():
        found.setdefault(role.param, home)
        found |= {role.param: home} if role.use == "train" else {}
    return found


def _data(graph: Graph) -> Iterator[Task]:
    """Read what the flow takes besides models, if anything reads it."""
    edges = (*graph.outputs, *(edge for node in graph.nodes for edge in node.edges()))
    read = {edge.source for edge in edges}
    return (Read(param.name) for param in graph.params if param in read and not issubclass(param.type, Model))


def _runs(graph: Graph, placings: Placings) -> Iterator[Run]:
    together = defaultdict[object, list[Node]](list)  # nodes that read one forward pass
    for node in graph.nodes:
        together[shared_inputs(node) if node.op.stat is not None else node].append(node)
    done = set[Node]()
    for node in order_nodes(graph):
        if node not in done:
            nodes = together[shared_inputs(node) if node.op.stat is not None else node]
            done.update(nodes)
            yield _run(nodes, placings)


def _run(nodes: Sequence[Node], placings: Placings) -> Run:
    models, role = dict[str, Home](), ""
    for edge, reader in read_by(nodes[0]):
        if issubclass(edge.type, Model):
            home, found = _home(edge, reader, placings)
            models[value_name(edge)], role = home, role or found.name
    place = next(iter(models.values())).pool if models else HOST
    return Run(tuple(node.name for node in nodes), place, values_read(nodes[0]), tuple(models.items()), role)


def _home(edge: Edge, reader: str, placings: Placings) -> tuple[Home, Role]:
    param = carried_from(edge)
    assert isinstance(param, Param), "a model is a version of a parameter"
    return placings[param.name, reader]


def _check(runs: Sequence[Run], graph: Graph, where: str) -> None:
    nodes = {node.name: node for node in graph.nodes}
    for node, homes in ((nodes[name], [home for _, home in run.homes]) for run in runs for name in run.nodes):
        for other in homes[1:]:
            if (other.pool, other.members, other.ranks) != (homes[0].pool, homes[0].members, homes[0].ranks):
                raise PlanError.not_together(where, node.name, str(node.at), str(homes[0]), str(other))
        if homes and homes[0].ranks > 1 and not node.op.separable:
            raise PlanError.not_split(where, node.name, str(node.at), homes[0].ranks)
