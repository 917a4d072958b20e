"""A placed graph as text: each node with its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from examples.grpo import grpo
from flowgraph import Flow, Model, Trainable, flow, node
from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.analysis.roles import roles
from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import Layout, PlacedRole, Plan, Pool
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Run
from flowgraph.passes import compile_graph
from flowgraph.serialize.graph_text import graph_text
from flowgraph.serialize.placed_text import placed_text
from nodes import Reference

LAPTOP = Machine(name="laptop", devices=(Device(kind="cpu", memory_bytes=2**30),) * 3, host_memory_bytes=2**30, cores=2)


def planned(of: Flow[..., object], engines: Mapping[str, str]) -> Plan:
    """Give a plan with the reference, if there is one, on a pool of its own; `engines` are by role or by use."""
    graph = compile_graph(of.graph())
    found = [(role.name, engines.get(role.name, engines[role.use])) for role in roles(graph)]
    places = [(name, "apart" if name == "ref.infer" else "all", engine) for name, engine in found]
    return Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=Cluster(nodes=(LAPTOP,)),
        pools=(Pool(name="all", devices=(("laptop", 0), ("laptop", 1))), Pool(name="apart", devices=(("laptop", 2),))),
        placed=tuple(
            PlacedRole(
                role=role,
                pool=pool,
                engine=engine,
                layout=Layout(data=1 if pool == "apart" else 2, sharding="full" if engine == "fsdp" else "none"),
            )
            for role, pool, engine in places
        ),
    )


ENGINES = {"train": "fsdp", "sample": "local", "infer": "local"}


def test_every_node_says_where_it_runs(golden: Callable[[str, str], None]) -> None:
    golden(placed_text(compile_graph(grpo.graph()), planned(grpo, ENGINES)), "plans/grpo_placed.txt")


def test_it_is_the_text_of_the_graph_with_more_behind_each_line() -> None:
    graph = compile_graph(grpo.graph())
    for sites in (True, False):
        told, plain = placed_text(graph, planned(grpo, ENGINES), sites=sites), graph_text(graph, sites=sites)
        assert all(new.startswith(old) for new, old in zip(told.splitlines(), plain.splitlines(), strict=False))
        assert ("grpo.py:" in told) == sites


class Average(Trainable):
    """A slow copy of a model."""


@node(carries="slow", pure=False)
def blend_into(fast: Model, *, slow: Average) -> Average:
    """Move a slow copy towards a model."""
    raise NotImplementedError


@flow
def averaging(slow: Average, fast: Reference) -> Average:
    return blend_into(fast, slow=slow)


def test_a_node_of_two_models_runs_where_the_one_is_that_it_moves() -> None:
    graph, plan = compile_graph(averaging.graph()), planned(averaging, ENGINES | {"slow.infer": "fsdp"})
    run = next(task for task in lower(graph, plan).tasks if isinstance(task, Run))
    assert (str(run.home), run.role) == ("all/fsdp", "slow.infer")
    assert (
        placed_text(graph, plan, sites=False).splitlines()[1].endswith("# host, on all/fsdp as slow.infer, fast.infer")
    )
