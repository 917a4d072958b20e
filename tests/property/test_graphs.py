"""Random graphs of host nodes: laws that hold for any of them, and sizes at which a recursion would fail."""

from __future__ import annotations

from typing import Any

import networkx
from hypothesis import given
from hypothesis import strategies as st

from flowgraph import Kind, Linear, Loss, Mask, Trainable, flow, node
from flowgraph.analysis.flat_graph import flat, full_hash, structure_hash, to_json
from flowgraph.analysis.node_order import blocked_reader, order_nodes
from flowgraph.language.call_site import Site
from flowgraph.language.graph import Edge, Graph, Node, Param, newest, reachable, rewrite
from flowgraph.passes import compile_graph
from flowgraph.serialize.graph import from_json
from flowgraph.serialize.graph_text import graph_text
from nodes import LogProbs, update


class Level(Linear):
    kind = Kind.SCALAR


class Net(Trainable):
    """Weights."""


@node
def join(a: Level, *, b: Level, weight: float = 1.0) -> Level:
    raise NotImplementedError


@node
def pair(a: Level) -> tuple[Level, Level]:
    raise NotImplementedError


@node
def observe(model: Net, level: Level) -> Level:
    raise NotImplementedError


@node
def evaluate(model: Net, level: Level) -> LogProbs:
    raise NotImplementedError


@node
def select(level: Level) -> Mask:
    raise NotImplementedError


@node
def descend(new: LogProbs, mask: Mask, *, level: Level) -> Loss:
    raise NotImplementedError


def levels(steps: list[tuple[str, int, int]], start: Level, net: Net) -> tuple[Level, Net]:
    """Write a flow: each step reads values made before it; `update` consumes the newest weights."""
    made = [start]
    for what, left, right in steps:
        a, b = made[left % len(made)], made[right % len(made)]
        if what == "join":
            made.append(join(a, b=b, weight=float(left)))
        elif what == "pair":
            made.extend(pair(a))
        elif what == "sum":
            made.append(2.0 * a + b)
        elif what == "observe":
            made.append(observe(net, a))
        else:
            net = update(net, _loss_of(a, b), epochs=1 + left)
    return made[-1], net


def _loss_of(a: Level, b: Level) -> Any:
    def loss(pi: Net) -> Loss:
        return descend(evaluate(pi, join(a, b=b)), select(b), level=a)

    return loss


STEP = st.tuples(st.sampled_from(["join", "pair", "sum", "observe", "update"]), st.integers(0, 30), st.integers(0, 30))
STEPS = st.lists(STEP, min_size=1, max_size=25)


def graph_of(steps: list[tuple[str, int, int]]) -> Graph:
    @flow
    def random(start: Level, net: Net) -> tuple[Level, Net]:
        return levels(steps, start, net)

    return compile_graph(random.graph())


def readers(graph: Graph) -> list[tuple[Node, Edge]]:
    return [(each, newest(edge)) for each in graph.nodes for edge in each.edges()]


@given(STEPS)
def test_the_order_of_stamps_is_an_order_of_inputs(steps: list[tuple[str, int, int]]) -> None:
    graph = graph_of(steps)
    for each in graph.all_nodes:
        assert all(edge.source.stamp < each.stamp for edge in each.edges())
        for _, region in each.regions:
            assert all(inner.stamp < each.stamp for inner in region.inner)


@given(STEPS)
def test_the_running_order_keeps_inputs_first_and_the_law_of_versions(steps: list[tuple[str, int, int]]) -> None:
    graph = graph_of(steps)
    order = order_nodes(graph)
    place: dict[Any, int] = {each: i for i, each in enumerate(order)}
    assert set(order) == set(graph.nodes)
    assert len(order) == len(graph.nodes)
    assert blocked_reader(graph) is None
    for reader, edge in readers(graph):
        assert place.get(edge.source, -1) < place[reader]
    consumers = {newest(dict(each.inputs)[each.op.carries]): each for each in graph.nodes if each.op.carries}
    for reader, edge in readers(graph):
        if edge in consumers:
            assert place[reader] <= place[consumers[edge]]
    assert order_nodes(graph) == order


@given(st.lists(st.tuples(st.sampled_from(["observe", "update"]), st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_a_reader_is_blocked_where_and_only_where_the_constraints_have_a_cycle(
    steps: list[tuple[str, int, int]],
) -> None:
    """Old versions are read at any time; a second writing of the law, as a plain graph of constraints, must agree."""
    params = tuple(
        Param(name, kind, "flow hand", Site("hand.py", 1)) for name, kind in (("start", Level), ("net", Net))
    )
    made, nets = [Level.at(Edge(params[0], Level))], [Net.at(Edge(params[1], Net))]
    for what, left, right in steps:
        if what == "observe":
            made.append(observe(nets[left % len(nets)], made[right % len(made)]))
        else:
            nets.append(update(nets[-1], _loss_of(made[left % len(made)], made[right % len(made)])))
    outputs = [each.edge for each in (*made, nets[-1]) if each.edge is not None]
    graph = Graph("hand", params, tuple(outputs), Site("hand.py", 1))
    consumers = {newest(dict(each.inputs)[each.op.carries]): each for each in graph.nodes if each.op.carries}
    constraints = networkx.DiGraph((edge.source, reader) for reader, edge in readers(graph))
    constraints.add_edges_from(
        (reader, consumers[edge])
        for reader, edge in readers(graph)
        if edge in consumers and consumers[edge] is not reader
    )
    found = blocked_reader(graph)
    assert (found is None) == networkx.is_directed_acyclic_graph(constraints)
    if found is not None:
        reader, consumer = found
        assert networkx.has_path(constraints, consumer, reader)
        assert any(consumers.get(newest(edge)) is consumer for edge in reader.edges())


@given(STEPS)
def test_rewriting_keeps_the_text_and_every_node(steps: list[tuple[str, int, int]]) -> None:
    graph = graph_of(steps)
    again = rewrite(graph, lambda each: each)
    assert graph_text(again) == graph_text(graph)
    assert [each.stamp for each in again.all_nodes] == [each.stamp for each in graph.all_nodes]


@given(STEPS)
def test_a_graph_comes_back_from_json_as_it_was(steps: list[tuple[str, int, int]]) -> None:
    graph = graph_of(steps)
    back = from_json(to_json(graph))
    assert to_json(back) == to_json(graph)
    assert graph_text(back) == graph_text(graph)
    assert (structure_hash(back), full_hash(back)) == (structure_hash(graph), full_hash(graph))


@given(STEPS)
def test_the_same_flow_described_twice_is_the_same_graph_with_other_nodes(steps: list[tuple[str, int, int]]) -> None:
    one, two = graph_of(steps), graph_of(steps)
    assert graph_text(one) == graph_text(two)
    assert full_hash(one) == full_hash(two)
    assert set(one.all_nodes).isdisjoint(two.all_nodes)


@given(STEPS)
def test_every_name_is_given_once(steps: list[tuple[str, int, int]]) -> None:
    names = [each.name for each in graph_of(steps).all_nodes]
    assert len(set(names)) == len(names)


# ------------------------------------------------------------------------------------------- sizes

CHAIN, WIDE = 5_000, 10_000


@flow
def chain(start: Level, *, length: int = CHAIN) -> Level:
    for _ in range(length):
        start = join(start, b=start)
    return start


@flow
def wide(start: Level) -> Level:
    ends = [join(start, b=start, weight=float(i)) for i in range(WIDE // 2)]
    while len(ends) > 1:
        ends = [join(a, b=b) for a, b in zip(ends[::2], ends[1::2], strict=False)] + ends[len(ends) // 2 * 2 :]
    return ends[0]


@flow
def deep_loss(start: Level, net: Net) -> Net:
    def loss(pi: Net) -> Loss:
        level = observe(pi, start)
        for _ in range(CHAIN // 5):
            level = join(level, b=start)
        return descend(evaluate(pi, level), select(start), level=start)

    return update(net, loss)


def test_a_chain_of_thousands_is_described_named_ordered_printed_and_stored() -> None:
    graph = compile_graph(chain.graph())
    assert len(graph.nodes) == CHAIN
    assert order_nodes(graph) == graph.nodes
    assert len(graph_text(graph).splitlines()) == CHAIN + 2
    assert len(reachable(graph.outputs)) == CHAIN + 1
    back = from_json(to_json(graph))
    assert full_hash(back) == full_hash(graph)


def test_ten_thousand_nodes_are_described_and_printed() -> None:
    graph = compile_graph(wide.graph())
    assert len(graph.nodes) == WIDE - 1
    assert len(graph_text(graph).splitlines()) == WIDE + 1
    assert len(order_nodes(graph)) == WIDE - 1
    assert len(flat(graph)["nodes"]) == WIDE - 1


def test_a_loss_of_a_thousand_nodes_is_described_and_printed() -> None:
    graph = compile_graph(deep_loss.graph())
    assert len(graph.all_nodes) == CHAIN // 5 + 5
    assert len(graph_text(graph).splitlines()) == CHAIN // 5 + 10
