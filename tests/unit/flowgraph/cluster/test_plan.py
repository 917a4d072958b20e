"""Plans: JSON out and in, and what a plan must be to be for a graph."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from examples.gpg import gpg
from examples.grpo import grpo
from flowgraph import Flow, Graph, Loss, flow, stale
from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.analysis.placed_graph import check_plan
from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import Layout, PhasePeak, PlacedRole, Plan, Pool, PoolForecast
from flowgraph.diagrams.build.plan_picture import plan_picture
from flowgraph.diagrams.write.mermaid.flowchart import mermaid
from flowgraph.errors import PlanError
from flowgraph.language.graph import Node as GraphNode
from flowgraph.language.graph import rewrite
from flowgraph.lowering.lower import lower
from flowgraph.passes import compile_graph
from flowgraph.serialize.placed_text import placed_text
from nodes import (
    LogProbs,
    Policy,
    Prompts,
    Reference,
    Rollout,
    clipped,
    generate,
    group_normalize,
    logprobs,
    score,
    update,
)
from placements.report.search_report import plan_lines
from tests.looped import looped

ROLES = ("policy.train", "policy.sample", "ref.infer")


def cluster(*kinds: str) -> Cluster:
    devices = tuple(Device.model_validate({"kind": kind, "memory_bytes": 2**30}) for kind in kinds)
    return Cluster(nodes=(Machine(name="laptop", devices=devices, host_memory_bytes=2**30, cores=2),))


def plan_of(graph: Graph, **parts: Any) -> Plan:
    """Return a right plan for GRPO, with some parts replaced."""
    given_parts: dict[str, Any] = {
        "flow": graph.name,
        "structure_hash": structure_hash(graph),
        "cluster": cluster("cpu"),
        "pools": (Pool(name="all", devices=(("laptop", 0),)),),
        "placed": tuple(PlacedRole(role=role, pool="all", engine="local") for role in ROLES),
    }
    return Plan(**(given_parts | parts))


@pytest.fixture(scope="module")
def graph() -> Graph:
    """prompts, policy, ref → generate → score, ref log-probs → update."""
    return compile_graph(grpo.graph())


def refusal(plan: Plan, graph: Graph) -> str:
    with pytest.raises(PlanError) as caught:
        check_plan(plan, graph, "plan.json")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return str(caught.value)


def test_a_right_plan_passes(graph: Graph) -> None:
    check_plan(plan_of(graph), graph)


def test_a_setting_does_not_void_a_plan(graph: Graph) -> None:
    def faster(node: GraphNode) -> GraphNode:
        settings = node.settings.model_copy(update={"lr": 1e-3} if node.op.name == "update" else {})
        return replace(node, settings=settings)

    check_plan(plan_of(graph), rewrite(graph, faster))


def test_a_plan_of_another_structure_is_refused_with_both(graph: Graph) -> None:
    other = compile_graph(gpg.graph())
    assert refusal(plan_of(graph), other) == (
        "plan.json: a plan of grpo, not of gpg\n"
        f"    plan: grpo {structure_hash(graph)[:16]}\n"
        f"    flow: gpg {structure_hash(other)[:16]}\n"
        "  hint: flowgraph plan gpg, or run without a flow"
    )


def placed(role: str, **parts: Any) -> PlacedRole:
    return PlacedRole(**({"role": role, "pool": "all", "engine": "local"} | parts))


TRAIN, SAMPLE, INFER = (placed(role) for role in ROLES)


@looped(
    "roles, said",
    [
        ((TRAIN, SAMPLE), "not placed: ref.infer\n  hint: each role of the flow is placed once"),
        ((), "not placed: policy.train, policy.sample, ref.infer\n  hint: each role of the flow is placed once"),
        ((TRAIN, TRAIN, SAMPLE, INFER), "the role `policy.train` is placed twice"),
        ((TRAIN, SAMPLE, placed("ref.infr")), "no role `ref.infr`\n  hint: did you mean `ref.infer`?"),
        ((placed("policy.train", pool="al"),), "no pool of policy.train: `al`\n  hint: did you mean `all`?"),
        (
            (placed("policy.train", engine="lokal"),),
            "no engine of policy.train: `lokal`\n  hint: did you mean `local`?",
        ),
        (
            (placed("policy.train", layout=Layout(tensor=2)),),
            "policy.train: data=1 tensor=2 takes 2 devices, its pool has 1",
        ),
    ],
)
def test_each_role_is_placed_once_on_what_is_there(graph: Graph, roles: tuple[PlacedRole, ...], said: str) -> None:
    assert refusal(plan_of(graph, placed=roles), graph) == f"plan.json: {said}"


def test_an_engine_must_declare_the_layout(graph: Graph) -> None:
    plan = plan_of(
        graph,
        cluster=cluster("cpu", "cpu"),
        pools=(Pool(name="all", devices=(("laptop", 0), ("laptop", 1))),),
        placed=(placed("policy.train", layout=Layout(data=2)),),
    )
    assert refusal(plan, graph) == (
        "plan.json: policy.train: the engine `local` does not run `step` on 2 devices\n"
        "  hint: it does that on one device"
    )


@pytest.mark.parametrize(
    ("pools", "said"),
    [
        (
            (Pool(name="all", devices=(("laptop", 1),)),),
            "no device of pool `all`: `laptop/1`\n  hint: did you mean `laptop/0`?",
        ),
        (
            (Pool(name="all", devices=(("laptop", 0),)), Pool(name="all", devices=(("laptop", 0),))),
            "the pool `all` is named twice",
        ),
        (
            (Pool(name="all", devices=(("laptop", 0),)), Pool(name="b", devices=(("laptop", 0),))),
            "laptop/0 is in two pools, `all` and `b`\n  hint: roles share a pool, not a device",
        ),
    ],
)
def test_pools_hold_devices_that_are_there_and_share_none(graph: Graph, pools: tuple[Pool, ...], said: str) -> None:
    assert refusal(plan_of(graph, pools=pools), graph) == f"plan.json: {said}"


def edited(plan: Plan, change: str) -> str:
    data: dict[str, Any] = json.loads(plan.to_json())
    if change == "pool key":
        data["pools"][0]["nmae"] = data["pools"][0].pop("name")
    elif change == "cluster key":
        data["cluster"]["nodes"][0]["devices"][0]["memory"] = 5
    elif change == "top key":
        data["pool"] = []
    elif change == "schema":
        data["schema"] = 2
    elif change == "negative":
        data["placed"][0]["layout"]["data"] = 0
    elif change == "type":
        data["flow"] = 5
    elif change == "gone":
        del data["pools"]
    return json.dumps(data)


@looped(
    "change, said",
    [
        ("pool key", "pools[0].nmae: a plan has no `nmae` here\n  hint: did you mean `name`?"),
        (
            "cluster key",
            "cluster.nodes[0].devices[0].memory: a plan has no `memory` here\n  hint: did you mean `memory_bytes`?",
        ),
        ("top key", "pool: a plan has no `pool` here\n  hint: did you mean `pools`?"),
        ("schema", "schema: Input should be 1"),
        ("negative", "placed[0].layout.data: Input should be greater than 0"),
        ("type", "flow: Input should be a valid string"),
        ("gone", "pools: Field required"),
    ],
)
def test_a_file_that_is_no_plan_is_refused_with_the_place(graph: Graph, change: str, said: str) -> None:
    with pytest.raises(PlanError) as caught:
        Plan.from_json(edited(plan_of(graph), change), "plan.json")
    assert str(caught.value) == f"plan.json: {said}"


@looped("text", ["", "{", "[]", "null", "\x00", "[" * 5000])
def test_text_that_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match=r"^plan\.json: "):
        Plan.from_json(text, "plan.json")


@given(
    memory=st.dictionaries(st.sampled_from(["weights", "logits"]), st.integers(0, 2**60)),
    degrees=st.tuples(*[st.integers(1, 8)] * 3),
    process_bytes=st.integers(0, 2**40),
    flow=st.text(max_size=8),
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True).filter(lambda text: text != "host"),
)
def test_a_plan_survives_json(
    memory: dict[str, int], degrees: tuple[int, int, int], process_bytes: int, flow: str, name: str
) -> None:
    data, tensor, pipeline = degrees
    layout = Layout(data=data, tensor=tensor, pipeline=pipeline)
    plan = Plan(
        flow=flow,
        structure_hash="0",
        cluster=cluster("cpu", "gpu"),
        pools=(Pool(name=name, devices=(("laptop", 1),)),),
        placed=(PlacedRole(role="a.train", pool=name, engine="local", layout=layout, memory=memory),),
        forecast=(
            PoolForecast(
                pool=name, process_bytes=process_bytes, peaks=(PhasePeak(phase="x", role="y", memory_bytes=1),)
            ),
        ),
    )
    assert Plan.from_json(plan.to_json()) == plan


@looped("name", ["host", "a/b", "..", "", "a b", "é", "x" * 65, "a\n"])
def test_a_pool_that_cannot_be_a_part_of_a_file_name_is_refused(graph: Graph, name: str) -> None:
    text = plan_of(graph).to_json().replace('"all"', json.dumps(name))
    with pytest.raises(PlanError, match=r"^plan\.json: pools\[0\]\.name"):
        Plan.from_json(text, "plan.json")


def test_a_plan_that_says_a_key_twice_is_refused(graph: Graph) -> None:
    text = plan_of(graph).to_json().replace('"flow":', '"flow": "other", "flow":')
    with pytest.raises(PlanError, match="the key `flow` appears twice"):
        Plan.from_json(text, "plan.json")


def test_the_json_says_its_schema(graph: Graph) -> None:
    assert json.loads(plan_of(graph).to_json())["schema"] == 1


def test_the_worst_peak_is_the_first_of_the_largest() -> None:
    peaks = tuple(PhasePeak(phase=phase, role="r", memory_bytes=size) for phase, size in [("a", 1), ("b", 2), ("c", 2)])
    assert PoolForecast(pool="p", process_bytes=0, peaks=peaks).worst == peaks[1]
    assert PoolForecast(pool="p", process_bytes=0, peaks=()).worst is None


@flow
def lagging(prompts: Prompts, policy: Policy, ref: Reference) -> tuple[Policy, LogProbs]:
    rollout = generate(stale(policy, at_most=2), prompts)
    advantages, read = group_normalize(score(rollout), rollout.group), logprobs(ref, rollout)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

    return update(policy, loss), read


def late(of: Flow[..., Any], role: str = "policy.sample", *, lag: int, apart: bool = True) -> tuple[Plan, Graph]:
    """Let a role lag, in a pool of its own if it is to be apart."""
    graph = compile_graph(of.graph())
    there = "apart" if apart else "all"
    moved = tuple(placed(name, pool=there if name == role else "all", lag=lag * (name == role)) for name in ROLES)
    pools = (Pool(name="all", devices=(("laptop", 0),)), Pool(name="apart", devices=(("laptop", 1),)))
    return plan_of(graph, cluster=cluster("cpu", "cpu"), pools=pools, placed=moved), graph


def printed(plan: Plan) -> str:
    """Return a plan as it is printed, its pools without a peak."""
    forecast = tuple(PoolForecast(pool=pool.name, process_bytes=0, peaks=()) for pool in plan.pools)
    return "\n".join(plan_lines(plan.model_copy(update={"forecast": forecast})))


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_what_samples_may_lag_as_far_as_the_flow_lets_it(lag: int) -> None:
    plan, graph = late(lagging, lag=lag)
    check_plan(plan, graph)
    assert Plan.from_json(plan.to_json()) == plan


def test_a_lag_shows_in_the_plan_in_the_placed_graph_and_in_the_drawing() -> None:
    plan, graph = late(lagging, lag=2)
    drawn = mermaid(plan_picture(lower(graph, plan)))
    assert "as policy.sample lag=2" in placed_text(graph, plan) and "lag=2" in printed(plan)
    assert "sync policy, lag 2" in drawn
    plan, graph = late(lagging, lag=0)
    assert "lag=" not in placed_text(graph, plan) + printed(plan)


def test_a_lag_is_never_negative() -> None:
    with pytest.raises(ValidationError):
        PlacedRole(role="policy.sample", pool="all", engine="local", lag=-1)


def test_a_role_lags_no_further_than_the_flow_lets_it() -> None:
    at = line_of(lagging, "policy.generate")
    assert refusal(*late(lagging, lag=3)) == (
        "plan.json: policy.sample: lag=3, but policy.generate reads weights at most 2 updates old\n"
        f"    in the flow at {at}\n"
        "  hint: lag=2 at most"
    )


@pytest.mark.parametrize(("role", "reader"), [("policy.sample", "policy.generate"), ("ref.infer", "ref.logprobs")])
def test_a_role_that_reads_no_stale_weights_does_not_lag(role: str, reader: str) -> None:
    assert refusal(*late(grpo, role, lag=1)) == (
        f"plan.json: {role}: lag=1, but {reader} reads the newest weights\n"
        f"    in the flow at {line_of(grpo, reader)}\n"
        "  hint: in the flow, stale(model, at_most=…) lets a generate node lag"
    )


def test_a_role_that_reads_what_is_trained_in_place_does_not_lag() -> None:
    assert refusal(*late(lagging, lag=1, apart=False)) == (
        "plan.json: policy.sample: lag=1, but it reads the weights of the trainer, policy.train, so no copy could lag\n"
        "  hint: leave lag out, or place it in another pool, engine or layout than training"
    )


@flow
def only_sampled(prompts: Prompts, policy: Policy) -> Rollout:
    return generate(stale(policy, at_most=2), prompts)


def test_a_role_whose_weights_nothing_updates_does_not_lag() -> None:
    graph = compile_graph(only_sampled.graph())
    assert refusal(plan_of(graph, placed=(placed("policy.sample", lag=1),)), graph) == (
        "plan.json: policy.sample: lag=1, but nothing updates its weights, so no copy could lag\n"
        "  hint: leave lag out, or place it in another pool, engine or layout than training"
    )


def line_of(of: Flow[..., Any], name: str) -> str:
    return str(next(each.at for each in compile_graph(of.graph()).all_nodes if each.name == name))
