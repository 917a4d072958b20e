"""What a flow's picture shows: parameters, kinds, types, losses, and the way back."""

from __future__ import annotations

import subprocess
import sys

from examples.gpg import gpg
from examples.grpo import grpo
from flowgraph import Flow, Kind, Loss, Trainable, Value, flow, node, stale
from flowgraph.diagrams.build.flow_picture import flow_picture
from flowgraph.diagrams.model.picture import Arrow, ArrowStyle, Frame, Picture
from flowgraph.passes import compile_graph
from nodes import (
    LanguageModel,
    Policy,
    Prompts,
    Reference,
    Rollout,
    Scores,
    gpg_advantages,
    logprobs,
    policy_gradient,
    score,
    update,
)
from nodes import generate as sample
from nodes.evaluation import evaluate


class Judge(LanguageModel, Trainable):
    """A second model that is trained."""


class Marks(Value):
    """What a judge says of each token."""

    kind = Kind.TOKEN


@node(kind="score")
def judge(model: Judge, rollout: Rollout) -> Marks:
    """Mark each token."""
    raise NotImplementedError


@node
def squared(new: Marks, mask: Rollout, *, old: Marks) -> Marks:
    """Compare marks."""
    raise NotImplementedError


@flow
def two_updates(prompts: Prompts, policy: Policy) -> tuple[Policy, Scores]:
    rollout = sample(stale(policy, at_most=4, corrected=False), prompts, n=8)
    scores = score(rollout)
    advantages = gpg_advantages(scores, rollout.group)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    return update(update(policy, loss), loss), scores


@flow
def unchanged(policy: Policy, ref: Reference) -> Policy:
    return policy


def drawn(of: Flow[..., object]) -> Picture:
    return flow_picture(compile_graph(of.graph()))


def arrows(picture: Picture) -> set[tuple[str, str, str, str]]:
    """Give arrows by the names of what they join."""
    names = {box.id: box.label[0] for box in picture.boxes}
    return {(names[a.source], a.label, names[a.target], a.style.value) for a in picture.arrows}


def test_parameters_come_first_as_models_and_data() -> None:
    first = drawn(grpo).boxes[:3]
    assert [(box.label, box.kind) for box in first] == [
        (("prompts",), "data"),
        (("policy",), "model"),
        (("ref",), "model"),
    ]


def test_a_part_of_a_record_shows_the_type_of_the_part() -> None:
    assert ("policy.generate", "Group", "group_normalize", "data") in arrows(drawn(grpo))


def test_edges_between_the_same_two_boxes_are_one_arrow_with_each_type_once() -> None:
    assert ("policy.generate", "Mask, LogProbs", "clipped", "data") in arrows(drawn(grpo))
    ends = [(arrow.source, arrow.target, arrow.style) for arrow in drawn(grpo).arrows]
    assert len(ends) == len(set(ends))


def test_a_loss_is_a_frame_around_what_runs_for_each_part_of_a_batch() -> None:
    picture = drawn(grpo)
    assert picture.frames == (Frame("f0", "loss(pi)"),)
    inside = [box.label[0] for box in picture.boxes if box.inside == "f0"]
    assert inside[:3] == ["logprobs", "clipped", "kl_k3"]
    assert "ref.logprobs" not in inside


def test_a_loss_reads_the_weights_that_its_node_updates() -> None:
    picture = drawn(two_updates)
    assert [box.label[0] for box in picture.boxes if box.kind == "update"] == ["policy.update", "policy.update#2"]
    found = arrows(picture)
    assert ("policy", "Policy", "logprobs", "weights") in found
    assert ("policy.update", "Policy", "logprobs", "weights") in found
    assert ("policy.update", "Policy", "policy.update#2", "weights") in found


def test_the_last_update_is_carried_back_to_its_parameter() -> None:
    assert [one for one in arrows(drawn(two_updates)) if one[3] == "carry"] == [
        ("policy.update#2", "next step", "policy", "carry")
    ]


def test_a_sampling_read_that_may_lag_says_by_how_much() -> None:
    assert ("policy", "Policy ≤ 4 updates late", "policy.generate", "stale") in arrows(drawn(two_updates))


def test_what_is_returned_and_not_carried_is_a_result() -> None:
    assert ("score", "Scores", "Scores", "data") in arrows(drawn(two_updates))
    assert [box.label for box in drawn(evaluate).boxes if box.kind == "result"] == [("Accuracy", "result")]


def test_a_model_that_is_returned_unchanged_has_no_way_back() -> None:
    assert drawn(unchanged).arrows == ()


def test_ids_are_generated_and_every_end_of_an_arrow_is_a_box() -> None:
    for each in (grpo, gpg, two_updates, evaluate):
        picture = drawn(each)
        ids = [box.id for box in picture.boxes]
        assert sorted(ids, key=lambda one: int(one[1:])) == [f"n{i}" for i in range(len(ids))]
        assert {end for arrow in picture.arrows for end in (arrow.source, arrow.target)} <= set(ids)


def test_the_same_flow_gives_the_same_picture() -> None:
    assert drawn(grpo) == drawn(grpo)


def test_drawing_a_flow_loads_no_engine() -> None:
    code = (
        "import sys; from examples.grpo import grpo; from flowgraph.passes import compile_graph\n"
        "from flowgraph.diagrams.build.flow_picture import flow_picture\n"
        "from flowgraph.diagrams.write.mermaid.flowchart import mermaid\n"
        "print(mermaid(flow_picture(compile_graph(grpo.graph()))).count('subgraph'))\n"
        "print({'torch', 'ray', 'transformers', 'jinja2'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\nset()\n"


def test_an_arrow_says_data_unless_told() -> None:
    assert Arrow("n0", "n1", "Mask").style is ArrowStyle.DATA
