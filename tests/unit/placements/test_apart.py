"""Named placements on devices whose speed is not known: who shares a pool, who gets which devices, and why."""

from __future__ import annotations

from itertools import product

import pytest

from flowgraph import Graph, Loss, flow, node
from flowgraph.cluster import Cluster, Device, Node
from flowgraph.errors import PlanError, UnknownNameError
from flowgraph.lowering.lower import lower
from flowgraph.machine import laptop
from flowgraph.plan import Layout
from flowgraph.roles import roles
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
from placements import Decision, Workload, search
from placements.apart import Part, kept_together, shared_out
from placements.named import VARIANTS, Variant, parts
from tests.examples.flows.distill import learn_from
from tests.examples.flows.moving_reference import with_average
from tests.examples.flows.two_agents import two_agents
from tests.flows.ppo_shaped import ppo_shaped
from tests.unit.placements.small_settings import SHIPPED, SMALL, Of, called, graph_of, shapes_of

FLOWS = [*SHIPPED, learn_from, with_average, two_agents, ppo_shaped]
WORK = Workload(prompts=16, prompt_tokens=12, response_tokens=64)


def decided(of: Of, placement: str, cluster: Cluster | int, work: Workload = WORK) -> Decision:
    """Place a flow on a cluster, or on a laptop of so many devices."""
    graph = graph_of(of)
    there = laptop(cluster, 2**40) if isinstance(cluster, int) else cluster
    return search(placement, graph, there, shapes_of(graph, SMALL), work)


def shares(decision: Decision) -> dict[str, tuple[int, tuple[str, ...]]]:
    """Give by pool how many devices it has, and its roles."""
    plan = decision.plan
    return {
        pool.name: (len(pool.devices), tuple(each.role for each in plan.placed if each.pool == pool.name))
        for pool in plan.pools
    }


# ------------------------------------------------------------------------------------------- every flow, every name


@pytest.mark.parametrize("of", FLOWS, ids=called)
@pytest.mark.parametrize("each", VARIANTS, ids=lambda each: each.name)
def test_every_flow_can_run_in_every_named_placement(each: Variant, of: Of) -> None:
    graph, decision = graph_of(of), decided(of, each.name, 8)
    lower(graph, decision.plan)
    taken = [device for pool in decision.plan.pools for device in pool.devices]
    assert len(set(taken)) == len(taken) <= 8
    assert decision.trace[0] == f"placement {each.name}: {each.about}"
    assert decided(of, each.name, 8) == decision, "the same question gets the same answer"


@pytest.mark.parametrize("name", ["colocated", "hybrid", "split", "standalone", "split:nemo-aligner"])
def test_pools_are_the_parts_that_were_published(name: str) -> None:
    """policy draws and trains; critic trains; ref is read for log-probs; judge scores: five roles of four models."""
    found = {frozenset(names) for _, names in shares(decided(ppo_shaped, name, 8)).values()}
    assert found == {frozenset(part) for part in parts(graph_of(ppo_shaped), name)}


def test_roles_that_all_share_one_pool_are_placed_as_by_the_rule_without_a_name() -> None:
    plain = decided("grpo", "colocated", 3)
    for name in ("colocated:deepspeed-chat", "hybrid", "split:nemo-aligner"):
        decision = decided("grpo", name, 3)
        assert decision.plan == plain.plan
        assert decision.trace[1:] == plain.trace


# ------------------------------------------------------------------------------------------- devices and layouts


def test_devices_are_shared_out_by_the_work_of_each_pool() -> None:
    decision = decided(ppo_shaped, "split", 5)
    assert [(pool.name, pool.devices) for pool in decision.plan.pools] == [
        ("pool0", (("laptop", 0), ("laptop", 1))),
        ("pool1", (("laptop", 2),)),
        ("pool2", (("laptop", 3), ("laptop", 4))),
    ]
    assert {each.role: (each.pool, each.engine, each.layout) for each in decision.plan.placed} == {
        "policy.train": ("pool0", "fsdp", Layout(data=2, sharding="full")),
        "policy.sample": ("pool1", "local", Layout()),
        "critic.train": ("pool2", "fsdp", Layout(data=2, sharding="full")),
        "judge.infer": ("pool2", "local", Layout(data=2)),
        "ref.infer": ("pool0", "local", Layout(data=2)),
    }
    assert decision.trace == (
        "placement split:openrlhf: three pools: policy and reference | generation | critic and reward model",
        "pool0 for policy.train, ref.infer: laptop/0, laptop/1, 204.8 GiB each; 45% of the FLOPs of a step",
        "pool1 for policy.sample: laptop/2, 204.8 GiB each; 10% of the FLOPs of a step",
        "pool2 for critic.train, judge.infer: laptop/3, laptop/4, 204.8 GiB each; 45% of the FLOPs of a step",
        (
            "`fsdp` for policy.train, critic.train: data=2 tensor=1 sharding=full;"
            " weights, gradients, optimizer and rows cut over the devices"
        ),
        "`local` for policy.sample: data=1 tensor=1; one device, nothing to cut",
        "`local` for judge.infer, ref.infer: data=2 tensor=1; whole weights on each device, rows cut over them",
    )


@pytest.mark.parametrize("flops", [(5, 3, 1), (1, 1, 1), (100, 1, 1), (0, 0, 0), (7, 20, 3)])
@pytest.mark.parametrize("devices", range(3, 9))
def test_the_busiest_pool_has_the_least_that_it_can_have(flops: tuple[int, ...], devices: int) -> None:
    """Beside every other way to share so many devices out."""
    pools = [Part(f"pool{place}", (), each, most=4) for place, each in enumerate(flops)]
    found = [len(share) for share in shared_out([("n", place, 1) for place in range(devices)], pools)]

    def busiest(counts: tuple[int, ...] | list[int]) -> float:
        return max(each / count for each, count in zip(flops, counts, strict=True))

    others = [counts for counts in product(range(1, 5), repeat=3) if sum(counts) <= devices]
    assert sum(found) == min(devices, 12)
    assert busiest(found) == min(map(busiest, others))


def test_no_pool_has_more_ranks_than_rows_go_round() -> None:
    """Two prompts, one minibatch: no third rank of any pool would ever have a row."""
    decision = decided("ppo", "split", 8, Workload(prompts=2, prompt_tokens=12, response_tokens=64))
    assert [count for count, _ in shares(decision).values()] == [2, 2, 2]
    assert "6 of 8 devices: more ranks of any pool would be without a row at times" in decision.trace


def test_devices_of_one_kind_are_taken_and_the_smallest_of_a_pool_decides() -> None:
    gib = 2**30
    sizes = [("gpu", 40), ("gpu", 80), ("cpu", 8), ("gpu", 40)]
    devices = tuple(Device.model_validate({"kind": kind, "memory_bytes": size * gib}) for kind, size in sizes)
    there = Cluster(nodes=(Node(name="n", devices=devices, host_memory_bytes=2**40, cores=8),))
    decision = decided("grpo", "split", there)
    assert [pool.devices for pool in decision.plan.pools] == [(("n", 0), ("n", 1)), (("n", 3),)]
    assert "gpu devices only: one pool is of one kind, GPUs first" in decision.trace
    assert "devices of pool0 differ in memory: 40.0 GiB, the smallest, decides what fits" in decision.trace


# ------------------------------------------------------------------------------------------- what must be together


def test_roles_whose_models_one_node_reads_share_a_pool_whatever_the_name_says() -> None:
    """The reference is averaged with the trained policy by one node, so it cannot be elsewhere."""
    decision = decided(with_average, "standalone", 3)
    assert sorted(names for _, names in shares(decision).values()) == [
        ("policy.sample",),
        ("policy.train", "ref.infer"),
    ]
    told = "ref.infer shares the pool of policy.train: ref.averaged reads its model beside another"
    assert decision.trace[1] == told


def test_what_shares_a_pool_anyway_is_not_said_to_be_moved() -> None:
    graph = graph_of(with_average)
    assert kept_together(graph, parts(graph, "split")) == (parts(graph, "split"), ())
    assert kept_together(graph_of("ppo"), parts(graph_of("ppo"), "standalone"))[1] == ()


@node(kind="logprob", separable=False)
def ranked(model: Reference, rollout: Rollout) -> LogProbs:
    """Read all rows together."""
    raise NotImplementedError


@flow
def together(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
    """Describe prompts → generate → score → advantages, log-probs of ref by `ranked` → update."""
    rollout = generate(policy, prompts, n=8, max_tokens=256)
    advantages, ref_logprobs = group_normalize(score(rollout), rollout.group), ranked(ref, rollout)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        surrogate = clipped(new, advantages, rollout.mask, old=rollout.logprobs)
        return surrogate + 0.04 * kl_k3(new, rollout.mask, ref=ref_logprobs)

    return update(policy, loss)


def test_only_the_pool_of_a_node_that_reads_all_rows_together_has_one_device() -> None:
    found = shares(decided(together, "standalone", 6))
    assert {names: count for count, names in found.values()}["ref.infer",] == 1
    assert sum(count for count, _ in found.values()) == 6


# ------------------------------------------------------------------------------------------- what is refused


def test_fewer_devices_than_pools_are_refused_with_how_many_it_takes() -> None:
    with pytest.raises(PlanError) as caught:
        decided("ppo", "standalone", 2)
    assert str(caught.value) == (
        "plan of ppo: standalone:each-role puts ppo on 4 pools, which take a device each;"
        " the cluster has 2 cpu devices\n"
        "    pool0: policy.train\n"
        "    pool1: policy.sample\n"
        "    pool2: critic.train\n"
        "    pool3: ref.infer\n"
        "  hint: --cluster 4xcpu"
    )


def test_a_name_that_none_has_and_an_engine_that_is_not_there_are_refused(graph: Graph) -> None:
    shapes = shapes_of(graph, SMALL)
    with pytest.raises(UnknownNameError, match="no strategy `splitt`\n  hint: did you mean `split`"):
        search("splitt", graph, laptop(3, 2**40), shapes, WORK)
    with pytest.raises(UnknownNameError, match="no engine `locl`\n  hint: did you mean `local`"):
        search("split", graph, laptop(3, 2**40), shapes, WORK, engine="locl")


def test_an_engine_that_is_asked_for_runs_every_role(graph: Graph) -> None:
    decision = search("split", graph, laptop(2, 2**40), shapes_of(graph, SMALL), WORK, engine="local")
    assert {each.engine for each in decision.plan.placed} == {"local"}
    assert len(decision.plan.placed) == len(roles(graph))
    assert decision.trace[-1].endswith("; as asked")
