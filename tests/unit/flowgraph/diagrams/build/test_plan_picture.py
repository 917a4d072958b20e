"""What a plan's picture shows: pools, copies of weights, what runs on them, and what goes between places."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import count
from math import ceil

import pytest

from examples.gpg import gpg
from examples.grpo import grpo
from flowgraph import Flow, Graph, Loss, Model, Trainable, flow, node, stale
from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.analysis.roles import roles
from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import Layout, PlacedRole, Plan, Pool
from flowgraph.diagrams.build.flow_picture import flow_picture
from flowgraph.diagrams.build.plan_picture import plan_picture
from flowgraph.diagrams.build.roles_picture import device_boxes, devices_text
from flowgraph.diagrams.model.arrow_sizes import ArrowSizes
from flowgraph.diagrams.model.picture import Picture
from flowgraph.diagrams.model.quantities import layout_text
from flowgraph.diagrams.write.mermaid.flowchart import mermaid
from flowgraph.language.values import State
from flowgraph.lowering.follow import plan_second_flow
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Program, Transfer
from flowgraph.passes import compile_graph
from nodes import Policy, Prompts, Rollout, Scores, evaluate, generate, gpg_advantages, logprobs, policy_gradient, score
from nodes import update as train
from placements.report.charts import arrow_sizes
from placements.workload.graph_workload import StepWorkload
from tests.looped import looped
from tests.unit.placements.small_problems import found_of

Golden = Callable[[str, str], None]
Place = tuple[str, str, Layout]

SHARDED: Place = ("all", "fsdp", Layout(data=2, sharding="full"))
COPIED: Place = ("all", "local", Layout(data=2))
APART: Place = ("apart", "local", Layout())
ALONE: Place = ("all", "local", Layout())


def placed(graph: Graph, places: Mapping[str, Place], memory: Mapping[str, dict[str, int]] | None = None) -> Plan:
    """Place roles by their name or their use, on pools of two devices."""
    cpu = Device(kind="cpu", memory_bytes=2**30)
    laptop = Machine(name="laptop", devices=(cpu,) * 4, host_memory_bytes=2**31, cores=2)
    told = [(role.name, places.get(role.name) or places[role.use]) for role in roles(graph)]
    return Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=Cluster(nodes=(laptop,)),
        pools=tuple(
            Pool(name=name, devices=(("laptop", i), ("laptop", i + 1))) for name, i in (("all", 0), ("apart", 2))
        ),
        placed=tuple(
            PlacedRole(role=role, pool=pool, engine=engine, layout=layout, memory=(memory or {}).get(role, {}))
            for role, (pool, engine, layout) in told
        ),
    )


def program_of(of: Flow[..., object], places: Mapping[str, Place], **parts: dict[str, dict[str, int]]) -> Program:
    graph = compile_graph(of.graph())
    return lower(graph, placed(graph, places, **parts))


class Beta(State):
    """A coefficient that is carried."""


class Average(Trainable):
    """A slow copy of a model."""


@node(carries="beta", pure=False)
def adapt(beta: Beta, scores: Scores) -> Beta:
    """Move a coefficient."""
    raise NotImplementedError


@flow
def sampled_again(prompts: Prompts, policy: Policy, beta: Beta) -> tuple[Policy, Beta, Scores]:
    rollout = generate(stale(policy, at_most=2, corrected=False), prompts, n=8)
    scores = score(rollout)
    advantages = gpg_advantages(scores, rollout.group)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    trained = train(policy, loss)
    return trained, adapt(beta, scores), score(generate(trained, prompts))


@node
def compared(model: Model, rollout: Rollout, *, other: Average) -> Scores:
    """Read two models."""
    raise NotImplementedError


@flow
def comparing(prompts: Prompts, policy: Policy, slow: Average) -> Scores:
    return compared(policy, generate(policy, prompts), other=slow)


TWO = {"train": SHARDED, "sample": COPIED, "infer": COPIED}
PROGRAMS = {
    "grpo_two_devices": program_of(grpo, TWO),
    "grpo_reference_apart": program_of(grpo, TWO | {"ref.infer": APART}),
    "gpg_one_device": program_of(gpg, dict.fromkeys(TWO, ALONE)),
    "sampled_again": program_of(sampled_again, TWO | {"sample": APART}),
    "comparing": program_of(comparing, TWO),
}


def names(picture: Picture) -> dict[str, str]:
    """Name each box by its frame and its first line."""
    frames = {frame.id: frame.label.partition(" ·")[0].partition(":")[0] for frame in picture.frames}
    outer = {frame.id: frame.parent for frame in picture.frames}
    pool = {frame.id: frames[outer[frame.id] or frame.id] for frame in picture.frames}
    return {
        box.id: f"{pool[box.inside or '']}/{frames[box.inside or '']} {box.label[0]}"
        for box in picture.boxes
        if box.kind != "device"
    }


def arrows(name: str, style: str) -> list[tuple[str, str, str]]:
    """Return the arrows of one style by the names of what they join."""
    picture = plan_picture(PROGRAMS[name])
    named = names(picture)
    return [(named[a.source], a.label, named[a.target]) for a in picture.arrows if a.style.value == style]


@pytest.mark.parametrize("name", ["grpo_two_devices", "grpo_reference_apart", "gpg_one_device"])
def test_a_placed_flow_is_drawn_as_its_golden(name: str, golden: Golden) -> None:
    golden(mermaid(plan_picture(PROGRAMS[name])), f"plans/{name}.mmd")


def test_pools_and_homes_are_frames_that_say_what_they_are() -> None:
    picture = plan_picture(PROGRAMS["grpo_reference_apart"])
    labels = {frame.id: frame.label for frame in picture.frames}
    assert [(labels.get(frame.parent or "", ""), frame.label, frame.kind) for frame in picture.frames] == [
        ("", "all: laptop/0, laptop/1", "pool"),
        ("all: laptop/0, laptop/1", "policy · fsdp · data=2 sharding=full", "home"),
        ("all: laptop/0, laptop/1", "policy · local · data=2", "home"),
        ("", "apart: laptop/2, laptop/3", "pool"),
        ("apart: laptop/2, laptop/3", "ref · local · one device", "home"),
        ("", "host", "anywhere"),
    ]


def test_a_pool_that_nothing_uses_is_not_drawn() -> None:
    labels = [frame.label for frame in plan_picture(PROGRAMS["gpg_one_device"]).frames]
    assert labels == ["all: laptop/0, laptop/1", "policy · local · one device", "host"]


def test_every_node_stands_where_it_runs() -> None:
    assert sorted(names(plan_picture(PROGRAMS["grpo_reference_apart"])).values()) == [
        "all/all Advantages",
        "all/all LogProbs",
        "all/all Prompts",
        "all/policy policy",
        "all/policy policy",
        "all/policy policy.generate",
        "all/policy policy.update",
        "apart/apart Rollout",
        "apart/ref ref",
        "apart/ref ref.logprobs",
        "host/host Rollout",
        "host/host group_normalize",
        "host/host prompts",
        "host/host score",
    ]


def test_a_loss_is_a_line_of_the_node_that_has_it() -> None:
    labels = [box.label for box in plan_picture(PROGRAMS["grpo_two_devices"]).boxes if box.kind == "update"]
    assert labels == [("policy.update", "loss(pi)")]


def test_a_value_goes_once_to_each_place_where_it_is_read_and_from_there_to_each_who_reads_it() -> None:
    assert arrows("grpo_reference_apart", "transfer") == [
        ("host/host prompts", "Prompts", "all/all Prompts"),
        ("all/policy policy.generate", "Rollout", "host/host Rollout"),
        ("all/policy policy.generate", "Rollout", "apart/apart Rollout"),
        ("apart/ref ref.logprobs", "LogProbs", "all/all LogProbs"),
        ("host/host group_normalize", "Advantages", "all/all Advantages"),
    ]
    assert arrows("grpo_reference_apart", "data") == [
        ("all/all Prompts", "Prompts", "all/policy policy.generate"),
        ("host/host Rollout", "Rollout", "host/host score"),
        ("host/host score", "Scores", "host/host group_normalize"),
        ("host/host Rollout", "Group", "host/host group_normalize"),
        ("apart/apart Rollout", "Rollout", "apart/ref ref.logprobs"),
        ("all/policy policy.generate", "Rollout, Mask, LogProbs", "all/policy policy.update"),
        ("all/all Advantages", "Advantages", "all/policy policy.update"),
        ("all/all LogProbs", "LogProbs", "all/policy policy.update"),
    ]


def test_syncs_go_from_home_to_home_and_each_version_is_a_box() -> None:
    assert arrows("sampled_again", "sync") == [
        ("all/policy policy", "sync policy", "apart/policy policy"),
        ("all/policy policy.update", "sync policy.update", "apart/policy policy.update"),
    ]
    assert arrows("sampled_again", "weights") == [
        ("all/policy policy", "Policy", "all/policy policy.update"),
        ("apart/policy policy.update", "Policy", "apart/policy policy.generate#2"),
    ]
    assert arrows("sampled_again", "stale") == [
        ("apart/policy policy", "Policy ≤ 2 updates late", "apart/policy policy.generate")
    ]


def test_one_home_needs_no_sync_and_one_box_for_its_weights() -> None:
    assert arrows("gpg_one_device", "sync") == []
    boxes = plan_picture(PROGRAMS["gpg_one_device"]).boxes
    assert [box.label for box in boxes if box.kind == "model"] == [("policy", "policy.train", "policy.sample")]


def test_what_is_carried_goes_back_to_where_it_lives() -> None:
    assert arrows("sampled_again", "carry") == [
        ("all/policy policy.update", "next step", "all/policy policy"),
        ("host/host adapt", "next step", "host/host beta"),
    ]


def test_a_result_stands_on_the_host() -> None:
    assert ("host/host score#2", "Scores", "host/host Scores") in arrows("sampled_again", "data")


def test_a_node_that_reads_two_models_has_an_arrow_from_each() -> None:
    assert arrows("comparing", "weights")[1:] == [
        ("all/policy policy", "Policy", "all/policy policy.compared"),
        ("all/slow slow", "Average", "all/policy policy.compared"),
    ]


def test_memory_is_told_by_role_where_the_plan_has_it() -> None:
    told = {"policy.train": {"weights": 2**20, "optimizer": 2**21}, "policy.sample": {"kv_cache": 2**30}}
    boxes = plan_picture(program_of(grpo, dict.fromkeys(TWO, ALONE), memory=told)).boxes
    assert [box.label for box in boxes if box.kind == "model"] == [
        ("policy", "policy.train 3.0 MiB", "policy.sample 1.0 GiB"),
        ("ref", "ref.infer"),
    ]


def test_a_check_shows_the_home_that_its_weights_come_from() -> None:
    trained, check = PROGRAMS["grpo_two_devices"], compile_graph(evaluate.graph())
    picture = plan_picture(
        lower(check, plan_second_flow(trained.plan, check, {"policy": "policy"}), dict(trained.origins))
    )
    assert [frame.label for frame in picture.frames] == [
        "all: laptop/0, laptop/1",
        "policy · local · data=2",
        "policy · fsdp · data=2 sharding=full",
        "host",
    ]
    assert [arrow.label for arrow in picture.arrows if arrow.style.value == "sync"] == ["sync policy"]
    assert [box.label for box in picture.boxes if box.kind == "result"] == [("Accuracy", "result")]


def test_many_devices_are_counted() -> None:
    def pool(*counts: int) -> Pool:
        return Pool(name="p", devices=tuple((f"node-{n}", i) for n, count in enumerate(counts) for i in range(count)))

    said = [devices_text(pool(*counts)) for counts in ((1,), (2, 2), (5,), (8, 8, 4), (8,) * 16)]
    assert said == [
        "node-0/0",
        "node-0/0, node-0/1, node-1/0, node-1/1",
        "5 of node-0",
        "8 of node-0, 8 of node-1, 4 of node-2",
        "128 on 16 nodes",
    ]
    assert layout_text(Layout(data=10, tensor=2)) == "data=10 tensor=2"


@looped("name", PROGRAMS)
def test_ids_are_generated_and_every_end_of_an_arrow_is_a_box(name: str) -> None:
    picture = plan_picture(PROGRAMS[name])
    ids, frames = [box.id for box in picture.boxes], [frame.id for frame in picture.frames]
    assert sorted(ids, key=lambda one: int(one[1:])) == [f"n{i}" for i in range(len(ids))]
    assert {end for arrow in picture.arrows for end in (arrow.source, arrow.target)} <= set(ids)
    assert len(set(frames)) == len(frames) and {box.inside for box in picture.boxes} <= {*frames}
    joined = {arrow.source for arrow in picture.arrows} | {arrow.target for arrow in picture.arrows}
    assert joined == {box.id for box in picture.boxes if box.kind != "device"}


# ------------------------------------------------------------------------------------------- devices, bytes, words


def device_labels(pool: Pool, machines: int, *, unfold: bool = False) -> list[tuple[str, ...]]:
    gpu = Device(kind="gpu", memory_bytes=80 * 2**30, model="h100")
    nodes = (Machine(name=f"node-{i}", devices=(gpu,) * 8, host_memory_bytes=1, cores=1) for i in range(machines))
    ids = map("n{}".format, count())
    return [box.label for box in device_boxes(pool, Cluster(nodes=tuple(nodes)), "f1", ids, unfold=unfold)]


def test_a_pool_has_a_box_for_each_machine_and_one_for_many() -> None:
    few = Pool(name="p", devices=(*(("node-0", i) for i in range(8)), ("node-1", 0), ("node-1", 2)))
    assert device_labels(few, 2) == [
        ("node-0: 8 × h100 80.0 GiB", "devices 0–7"),
        ("node-1: 8 × h100 80.0 GiB", "devices 0, 2"),
    ]
    large = Pool(name="p", devices=tuple((f"node-{i // 8}", i % 8) for i in range(1024)))
    assert device_labels(large, 128) == [("128 machines of 8 × h100 80.0 GiB", "node-0 … node-127")]
    assert len(device_labels(large, 128, unfold=True)) == 128
    rest = Pool(name="p", devices=tuple((f"node-{i // 8}", i % 8) for i in range(44)))
    assert device_labels(rest, 6) == [
        ("5 machines of 8 × h100 80.0 GiB", "node-0 … node-4"),
        ("node-5: 8 × h100 80.0 GiB", "devices 0–3"),
    ]
    assert device_labels(few, 1)[1] == ("node-1: not in the cluster", "devices 0, 2")


def test_arrows_between_places_say_how_many_bytes_travel() -> None:
    parts = {("policy.generate", "ref.logprobs"): {"tokens": 3 * 2**20, "mask": 2 * 2**20}}
    sizes = ArrowSizes(parts, {"policy": 14 * 2**30, "ref": 1})
    told = {arrow.label for arrow in plan_picture(PROGRAMS["grpo_reference_apart"], sizes).arrows}
    plain = {arrow.label for arrow in plan_picture(PROGRAMS["grpo_reference_apart"]).arrows}
    assert told - plain == {"Rollout 5.0 MiB", "sync policy 14.0 GiB"}


@pytest.mark.parametrize("flow", ["grpo", "ppo"])
def test_a_found_plan_says_the_bytes_of_what_it_transfers_and_syncs(flow: str) -> None:
    found = found_of(flow, "2x8xh100")
    plan = found.best.plan()
    program = lower(found.problem.graph, plan)
    problem = found.problem
    sizes = arrow_sizes(problem.graph, problem.shapes, StepWorkload(problem.prompts, ceil(problem.prompt.most)), plan)
    labels = [(each.style.value, each.label) for each in plan_picture(program, sizes).arrows]
    assert [label for style, label in labels if style == "sync"] == ["sync policy 1.1 GiB"]
    moved = [label for style, label in labels if style == "transfer" and "Rollout" in label]
    assert any(label.endswith(("KiB", "MiB")) for label in moved)
    transferred = {task.value for task in program.tasks if isinstance(task, Transfer)}
    assert transferred & {value for value, _ in sizes.values}


def test_pictures_say_in_sentences_what_is_to_be_seen() -> None:
    picture = plan_picture(PROGRAMS["grpo_reference_apart"])
    assert picture.about == (
        "all has 2 devices for policy.train and policy.sample. apart has 2 devices for ref.infer. "
        "The host runs score and group_normalize. In a step 5 values are transferred and weights synced 1 time."
    )
    assert all(box.about.endswith(".") for box in (*picture.boxes, *flow_picture(PROGRAMS["comparing"].graph).boxes))
    assert flow_picture(compile_graph(grpo.graph())).about.startswith("A step of grpo reads prompts, policy and ref.")
    assert {frame.pool for frame in picture.frames} == {"all", "apart", ""}


def test_the_frame_with_the_newest_weights_comes_first_wherever_its_pool_stands() -> None:
    found = PROGRAMS["grpo_reference_apart"]
    turned = found.plan.model_copy(update={"pools": found.plan.pools[::-1]})
    text = mermaid(plan_picture(lower(found.graph, turned)))
    assert text.index("all#58;") < text.index("apart#58;") < text.index('["host"]')


def test_drawing_a_plan_loads_no_engine() -> None:
    code = (
        "import sys, flowgraph.diagrams.build.plan_picture\n"
        "print({'torch', 'ray', 'transformers', 'networkx', 'jinja2'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
