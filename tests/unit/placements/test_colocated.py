"""The first rule, its trace, and plans as text."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flowgraph import Graph
from flowgraph.check_plan import check_plan
from flowgraph.cluster import Cluster, Device, Node
from flowgraph.errors import PlanError, UnknownNameError
from flowgraph.machine import laptop
from flowgraph.models import ModelShape
from flowgraph.plan import Plan
from placements import Workload, plan_text, search

SHAPE = ModelShape(
    parameters=100_000,
    hidden=64,
    layers=2,
    heads=4,
    kv_heads=4,
    head_dim=16,
    intermediate=192,
    vocabulary=20,
    tied=False,
)
SHAPES = {"policy": SHAPE, "ref": SHAPE}
WORK = Workload(16, 12)


def test_all_roles_share_one_pool_and_the_plan_is_for_the_graph(graph: Graph) -> None:
    decision = search("colocated", graph, laptop(2**31), SHAPES, WORK)
    check_plan(decision.plan, graph)
    assert Plan.from_json(decision.plan.to_json()) == decision.plan
    assert decision.trace == (
        "roles of grpo: policy.train, policy.sample, ref.infer",
        "pool `all` for all: laptop/0, the roomiest device for `local`, 2.0 GiB",
        "layout data=1 tensor=1 pipeline=1, on one device",
        "generate peaks at 719.6 MiB, in policy.sample",
        "logprob peaks at 793.3 MiB, in ref.infer",
        "update peaks at 1.0 GiB, in policy.train",
    )


def test_a_plan_prints_what_lives_where_and_what_is_left(graph: Graph) -> None:
    plan = search("colocated", graph, laptop(600 * 2**20), SHAPES, WORK).plan
    layout, structure = "data=1 tensor=1 pipeline=1", plan.structure_hash[:12]
    assert plan_text(plan).splitlines() == [
        f"plan of grpo, structure {structure}",
        "pool all: laptop/0, 600.0 MiB each",
        (
            f"  policy.train   local  {layout}  weights 390.6 KiB · gradients 390.6 KiB · optimizer 781.2 KiB"
            " · heap 214.5 MiB · activations 214.5 MiB · logits 4.8 MiB · working 107.3 MiB"
        ),
        f"  policy.sample  local  {layout}  rollout 4.0 MiB · logits 50.0 KiB · kv_cache 50.4 MiB · working 1.1 MiB",
        f"  ref.infer      local  {layout}  weights 390.6 KiB · logits 2.4 MiB · kv_cache 16.1 MiB · working 106.8 MiB",
        "peaks on all, 448.0 MiB of each for the process",
        "  generate  policy.sample  719.6 MiB  119.6 MiB too much",
        "  logprob   ref.infer      793.3 MiB  193.3 MiB too much",
        "  update    policy.train   1.0 GiB    395.0 MiB too much",
    ]


def test_the_same_question_gets_the_same_answer(graph: Graph) -> None:
    first, second = (search("colocated", graph, laptop(2**31), SHAPES, WORK) for _ in range(2))
    assert first == second


def test_the_roomiest_device_is_taken_the_first_of_equals(graph: Graph) -> None:
    sizes = ((1, 3), (3, 2))
    nodes = [
        Node(
            name=f"n{place}",
            devices=tuple(Device(kind="cpu", memory_bytes=size * 2**30) for size in each),
            host_memory_bytes=2**40,
            cores=8,
        )
        for place, each in enumerate(sizes)
    ]
    plan = search("colocated", graph, Cluster(nodes=tuple(nodes)), SHAPES, WORK).plan
    assert [pool.devices for pool in plan.pools] == [(("n0", 1),)]


def test_a_strategy_that_is_not_there_is_refused(graph: Graph) -> None:
    with pytest.raises(UnknownNameError) as caught:
        search("colocate", graph, laptop(2**31), SHAPES, WORK)
    assert str(caught.value) == "no strategy `colocate`\n  hint: did you mean `colocated`?"


def test_an_engine_that_is_not_there_is_refused(graph: Graph) -> None:
    with pytest.raises(UnknownNameError) as caught:
        search("colocated", graph, laptop(2**31), SHAPES, WORK, engine="locl")
    assert str(caught.value) == "no engine `locl`\n  hint: did you mean `local`?"


def test_a_cluster_without_devices_is_refused(graph: Graph) -> None:
    empty = Cluster(nodes=(Node(name="n", devices=(), host_memory_bytes=1, cores=1),))
    with pytest.raises(PlanError) as caught:
        search("colocated", graph, empty, SHAPES, WORK)
    assert str(caught.value) == (
        "plan of grpo: the cluster has no device that the engine `local` runs on\n  hint: it runs on cpu, gpu"
    )


def test_planning_loads_no_torch() -> None:
    program = "import placements, flowgraph.check_plan, flowgraph.machine, sys; flowgraph.machine.laptop();"
    program += "print(sorted({'torch', 'ray', 'transformers', 'pyarrow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
