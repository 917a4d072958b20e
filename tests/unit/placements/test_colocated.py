"""The first rule, its trace, and plans as text."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flowgraph import Graph, Loss, flow, node
from flowgraph.check_plan import check_plan
from flowgraph.cluster import Cluster, Device, Node
from flowgraph.errors import PlanError, UnknownNameError
from flowgraph.lowering.lower import lower
from flowgraph.machine import laptop
from flowgraph.models import ModelShape
from flowgraph.passes import compile_graph
from flowgraph.plan import Layout, Plan
from nodes import (
    LogProbs,
    Policy,
    Prompts,
    Reference,
    Rollout,
    clipped,
    generate,
    group_normalize,
    kl_k3,
    logprobs,
    score,
    update,
)
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
    decision = search("colocated", graph, laptop(1, 2**31), SHAPES, WORK)
    check_plan(decision.plan, graph)
    assert Plan.from_json(decision.plan.to_json()) == decision.plan
    assert decision.trace == (
        "roles of grpo: policy.train, policy.sample, ref.infer",
        "pool `all` for all roles, which take turns: laptop/0, 2.0 GiB each",
        ("`local` for policy.train, policy.sample, ref.infer: data=1 tensor=1; one device, nothing to cut"),
        "generate peaks at 719.6 MiB, in policy.sample",
        "logprob peaks at 793.3 MiB, in ref.infer",
        "update peaks at 1.0 GiB, in policy.train",
    )


def test_a_plan_prints_what_lives_where_and_what_is_left(graph: Graph) -> None:
    plan = search("colocated", graph, laptop(1, 600 * 2**20), SHAPES, WORK).plan
    layout, structure = "data=1 tensor=1", plan.structure_hash[:12]
    assert plan_text(plan).splitlines() == [
        f"plan of grpo, structure {structure}",
        "pool all: laptop/0, 600.0 MiB each",
        f"  policy.train   local  {layout}",
        "    weights 390.6 KiB · gradients 390.6 KiB · optimizer 781.2 KiB · heap 214.5 MiB",
        "    activations 214.5 MiB · logits 4.8 MiB · working 107.3 MiB",
        f"  policy.sample  local  {layout}",
        "    rollout 4.0 MiB · logits 50.0 KiB · kv_cache 50.4 MiB · working 1.1 MiB",
        f"  ref.infer      local  {layout}",
        "    weights 390.6 KiB · logits 2.4 MiB · kv_cache 16.1 MiB · working 106.8 MiB",
        "peaks on all, 448.0 MiB of each for the process",
        "  generate  policy.sample  719.6 MiB  119.6 MiB too much",
        "  logprob   ref.infer      793.3 MiB  193.3 MiB too much",
        "  update    policy.train   1.0 GiB    395.0 MiB too much",
    ]


def test_the_same_question_gets_the_same_answer(graph: Graph) -> None:
    first, second = (search("colocated", graph, laptop(1, 2**31), SHAPES, WORK) for _ in range(2))
    assert first == second


def cluster(*nodes: tuple[int, ...], kind: str = "cpu") -> Cluster:
    """Give a cluster of nodes n0, n1, …, each with devices of these GiB; a negative one is of the other kind."""
    other = {"cpu": "gpu", "gpu": "cpu"}[kind]
    return Cluster(
        nodes=tuple(
            Node.model_validate(
                {
                    "name": f"n{place}",
                    "devices": tuple(
                        Device.model_validate({"kind": kind if gib > 0 else other, "memory_bytes": abs(gib) * 2**30})
                        for gib in sizes
                    ),
                    "host_memory_bytes": 2**40,
                    "cores": 8,
                }
            )
            for place, sizes in enumerate(nodes)
        )
    )


@pytest.mark.parametrize("nodes", [((2, 2),), ((2,), (2,)), ((2, 2, 2, 2),)])
def test_several_devices_are_all_taken_and_trained_weights_are_cut_over_them(
    graph: Graph, nodes: tuple[tuple[int, ...], ...]
) -> None:
    plan = search("colocated", graph, cluster(*nodes), SHAPES, WORK).plan
    check_plan(plan, graph)
    places = tuple((f"n{node}", index) for node, sizes in enumerate(nodes) for index in range(len(sizes)))
    ranks = len(places)
    assert [pool.devices for pool in plan.pools] == [places]
    assert {each.role: (each.engine, each.layout) for each in plan.placed} == {
        "policy.train": ("fsdp", Layout(data=ranks, sharding="full")),
        "policy.sample": ("local", Layout(data=ranks)),
        "ref.infer": ("local", Layout(data=ranks)),
    }


def test_the_trace_says_each_decision_and_why(graph: Graph) -> None:
    decision = search("colocated", graph, cluster((2, 3), (-4,), kind="gpu"), SHAPES, WORK)
    assert decision.trace == (
        "roles of grpo: policy.train, policy.sample, ref.infer",
        "gpu devices only: one pool is of one kind, GPUs first",
        "pool `all` for all roles, which take turns: n0/0, n0/1, 2.0 GiB to 3.0 GiB each",
        "devices differ in memory: 2.0 GiB, the smallest, decides what fits",
        (
            "`fsdp` for policy.train: data=2 tensor=1 sharding=full;"
            " weights, gradients, optimizer and rows cut over the devices"
        ),
        ("`local` for policy.sample, ref.infer: data=2 tensor=1; whole weights on each device, rows cut over them"),
        "generate peaks at 690.6 MiB, in policy.sample",
        "logprob peaks at 789.9 MiB, in ref.infer",
        "update peaks at 1.0 GiB, in policy.train",
    )


def test_cpu_devices_are_taken_where_there_is_no_gpu(graph: Graph) -> None:
    mixed = search("colocated", graph, cluster((2, -2), (2,)), SHAPES, WORK).plan
    assert mixed.pools[0].devices == (("n0", 1),)
    plain = search("colocated", graph, cluster((2, 2), (2,)), SHAPES, WORK).plan
    assert plain.pools[0].devices == (("n0", 0), ("n0", 1), ("n1", 0))


@node(kind="logprob", separable=False)
def ranked(model: Reference, rollout: Rollout) -> LogProbs:
    """Read all rows together."""
    raise NotImplementedError


@flow
def together(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
    """Describe prompts → generate → score → advantages, log-probs of ref by `ranked` → update."""
    rollout = generate(policy, prompts, n=8, max_tokens=256)
    advantages = group_normalize(score(rollout), rollout.group)
    ref_logprobs = ranked(ref, rollout)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        surrogate = clipped(new, advantages, rollout.mask, old=rollout.logprobs)
        return surrogate + 0.04 * kl_k3(new, rollout.mask, ref=ref_logprobs)

    return update(policy, loss)


def test_a_node_that_reads_all_rows_together_leaves_one_device_the_roomiest() -> None:
    graph = compile_graph(together.graph())
    decision = search("colocated", graph, cluster((1, 3), (3, 2)), SHAPES, WORK)
    lower(graph, decision.plan)
    assert [pool.devices for pool in decision.plan.pools] == [(("n0", 1),)]
    assert decision.trace[1:4] == (
        "one device, the roomiest: ref.ranked reads all rows together, so they cannot be split",
        "pool `all` for all roles, which take turns: n0/1, 3.0 GiB each",
        "`local` for policy.train, policy.sample, ref.infer: data=1 tensor=1; one device, nothing to cut",
    )


def test_an_engine_that_is_asked_for_runs_every_role_or_is_refused(graph: Graph) -> None:
    asked = search("colocated", graph, cluster((2,)), SHAPES, WORK, engine="local")
    assert asked.plan == search("colocated", graph, cluster((2,)), SHAPES, WORK).plan
    assert asked.trace[2] == ("`local` for policy.train, policy.sample, ref.infer: data=1 tensor=1; as asked")
    with pytest.raises(PlanError) as two:
        search("colocated", graph, cluster((2, 2)), SHAPES, WORK, engine="local")
    assert str(two.value) == (
        "plan of grpo: policy.train: the engine `local` does not run `step` on 2 devices\n"
        "  hint: it does that on one device"
    )
    with pytest.raises(PlanError) as sampling:
        search("colocated", graph, cluster((2,)), SHAPES, WORK, engine="fsdp")
    assert str(sampling.value) == (
        "plan of grpo: policy.sample: the engine `fsdp` does not run `sample`\n"
        "  hint: it does step, token_stats, weights"
    )


def test_a_strategy_that_is_not_there_is_refused(graph: Graph) -> None:
    with pytest.raises(UnknownNameError) as caught:
        search("colocate", graph, laptop(1, 2**31), SHAPES, WORK)
    assert str(caught.value) == "no strategy `colocate`\n  hint: did you mean `colocated`?"


def test_an_engine_that_is_not_there_is_refused(graph: Graph) -> None:
    with pytest.raises(UnknownNameError) as caught:
        search("colocated", graph, laptop(1, 2**31), SHAPES, WORK, engine="locl")
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
