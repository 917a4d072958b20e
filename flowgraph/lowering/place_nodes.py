"""Place nodes: create a run for each node, where the plan places its role, and a read for each input; no transfers yet.

Before: `policy.generate` in `policy.sample`, `score` in no role.
After: `read prompts`, `run policy.generate on …`, `run score on host`, …; nodes that use the same forward pass are
one run. The inputs of a run may still be elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from flowgraph.analysis.node_order import order_nodes
from flowgraph.analysis.roles import Role, roles
from flowgraph.cluster.plan import Plan
from flowgraph.errors import PlanError
from flowgraph.language.graph import Graph, Node, Param, carried_from
from flowgraph.language.region import shared_inputs
from flowgraph.language.values import Model
from flowgraph.lowering.program import HOST, Home, Program, Read, Run, edges_read, value_name, values_read

Placings = Mapping[tuple[str, str], tuple[Home, Role]]
"""The home and the role in which a node reads a model, by the names of the parameter and of the node."""


def place_nodes(
    graph: Graph, plan: Plan, origins: Mapping[str, Home], where: str = "plan", *, checked: bool = True
) -> Program:
    """Return the program that reads the flow's inputs and runs each node at its place, without syncs and transfers.

    Tasks come after the tasks that make their inputs. `origins` maps model parameters that another program trains to
    the homes of their weights; `where` is the plan's file, for errors. With `checked`, raises PlanError if the plan
    places models that one node reads on different devices or over different numbers of data ranks, or splits the rows
    of a node that needs all of them.
    """
    placed = {role.role: role for role in plan.placed}
    homes, newest, placings = dict[Home, None](), dict[str, Home](), dict[tuple[str, str], tuple[Home, Role]]()
    for role in roles(graph):
        place, origin = placed[role.name], origins.get(role.param)
        param = origin.param if origin is not None else role.param
        home = Home(param, place.pool, place.engine, place.layout, place.running)
        homes[home] = None
        if role.use == "train" or role.param not in newest:  # the newest version is where a model is trained
            newest[role.param] = home
        placings |= {(role.param, name): (home, role) for name in role.nodes}
    elsewhere = {name: home for name, home in origins.items() if graph.param(name) is not None}
    newest |= elsewhere
    moving = {*elsewhere, *(node.root.name for node in graph.nodes if node.root is not None)}
    frozen = tuple(name for name in newest if name not in moving)
    runs = tuple(_runs(graph, placings))
    if checked:
        _check_homes(runs, graph, where)
    read = {edge.source for edge in (*graph.outputs, *(edge for node in graph.nodes for edge in node.edges()))}
    inputs = (Read(param.name) for param in graph.params if param in read and not issubclass(param.type, Model))
    return Program(graph, plan, tuple(homes), tuple(newest.items()), frozen, (*inputs, *runs))


def _runs(graph: Graph, placings: Placings) -> Iterator[Run]:
    groups = defaultdict[object, list[Node]](list)
    for node in graph.nodes:
        groups[_forward_of(node)].append(node)
    for node in order_nodes(graph):
        if nodes := groups.pop(_forward_of(node), None):
            yield _run(nodes, placings)


def _forward_of(node: Node) -> object:
    return shared_inputs(node) if node.op.stat is not None else node


def _run(nodes: Sequence[Node], placings: Placings) -> Run:
    homes, role = dict[str, Home](), ""
    for edge, reader in edges_read(nodes[0]):
        if issubclass(edge.type, Model):
            param = carried_from(edge)
            assert isinstance(param, Param), "a model is a version of a parameter"
            home, use = placings[param.name, reader]
            homes[value_name(edge)], role = home, role or use.name
    place = next(iter(homes.values())).pool if homes else HOST
    return Run(tuple(node.name for node in nodes), place, values_read(nodes[0]), tuple(homes.items()), role)


def _check_homes(runs: Sequence[Run], graph: Graph, where: str) -> None:
    nodes = {node.name: node for node in graph.nodes}
    for node, homes in ((nodes[name], [home for _, home in run.homes]) for run in runs for name in run.nodes):
        for other in homes[1:]:
            if (other.pool, other.members, other.ranks) != (homes[0].pool, homes[0].members, homes[0].ranks):
                raise PlanError.not_together(where, node.name, str(node.at), str(homes[0]), str(other))
        if homes and homes[0].ranks > 1 and not node.op.separable:
            raise PlanError.not_split(where, node.name, str(node.at), homes[0].ranks)
