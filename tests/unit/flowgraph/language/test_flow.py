"""The language: described lazily, composed as functions are, and the same nodes run on real values."""

from __future__ import annotations

import inspect
import typing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar

import pyarrow as pa
import pytest
import torch
from pydantic import Field

from examples.grpo import grpo
from flowgraph import Flow, Loss, Mask, Model, Trainable, Value, flow, node, stale
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import FlowTypeError, LawError, SettingError
from flowgraph.flows.flow_files import import_file
from flowgraph.language import Key, Kind, Linear
from flowgraph.language.graph import Const, Edge
from flowgraph.language.values import Context, Group, Lengths, Sample, Tokens, Trajectory
from flowgraph.models import tiny
from flowgraph.passes import compile_graph
from flowgraph.serialize.graph_text import graph_text
from nodes import (
    Advantages,
    Columns,
    LogProbs,
    Policy,
    Prompts,
    Rollout,
    Scores,
    clipped,
    generate,
    group_normalize,
    logprobs,
    policy_gradient,
    score,
    update,
)
from nodes.values import Finished, Temperature, Text, Versions

V = TypeVar("V", bound=Linear)


class Points(Linear):
    kind = Kind.ROW


class Places(Value):
    kind = Kind.ROW


@node
def halve(points: Points, *, by: Annotated[int, Field(ge=1)] = 2) -> Points:
    """Divide points."""
    return Points(points.data / by)


@node
def rank(points: Points, *, worst: Places | None = None) -> tuple[Points, Places]:
    order = points.data.argsort()
    return points, Places(order if worst is None else order + worst.data)


@node
def draw(points: Points, *, key: Key = Key()) -> Points:
    return Points(key.bits())


@node
def same(value: V) -> V:
    return value


class Critic(Trainable):
    """A model of a user's own."""


@node
def fit(model: Critic, mask: Mask) -> Loss:
    raise NotImplementedError


@flow
def halving(points: Points, *, rounds: Annotated[int, Field(ge=0)] = 2) -> Points:
    """Halve so many times."""
    for _ in range(rounds):
        points = halve(points)
    return points


@flow
def outer(points: Points, *, twice: bool = True) -> tuple[Points, Places]:
    points = halving(points, rounds=1)
    return rank(halving(points) if twice else points)


# ------------------------------------------------------------------------------------------- on real values


def test_a_node_runs_when_given_real_values() -> None:
    assert halve(Points(8.0)).data == 4.0
    assert halve(points=Points(8.0), by=4).data == 2.0
    points, places = rank(Points(torch.tensor([3.0, 1.0])))
    assert (points.data.tolist(), places.data.tolist()) == ([3.0, 1.0], [1, 0])
    assert rank(Points(torch.tensor([3.0])), worst=Places(torch.tensor([5])))[1].data.tolist() == [5]


def test_a_node_that_draws_uses_the_key_it_is_given() -> None:
    assert draw(Points(0)).data == Key().bits()
    assert draw(Points(0), key=Key(3)).data == Key(3).bits()
    with pytest.raises(FlowTypeError, match=r"draw\(key=\) takes Key, but got int$"):
        draw(Points(0), key=typing.cast("Key", 3))


def test_settings_are_checked_and_converted_on_real_values_too() -> None:
    assert halve(Points(8.0), by=typing.cast("int", "4")).data == 2.0
    with pytest.raises(SettingError, match=r"halve.by=0: should be greater than or equal to 1$"):
        halve(Points(8.0), by=0)
    with pytest.raises(
        SettingError, match=r"test_flow.py:\d+: halving.rounds=-1: should be greater than or equal to 0$"
    ):
        halving(Points(8.0), rounds=-1)


def test_a_flow_runs_on_real_values_with_its_settings_converted() -> None:
    assert halving(Points(8.0)).data == 2.0
    assert halving(Points(8.0), rounds=typing.cast("int", "3")).data == 1.0
    assert [each.data for each in outer(Points(torch.tensor(8.0)))] == [1.0, 0]


def test_an_exception_of_a_body_called_by_hand_is_left_alone() -> None:
    with pytest.raises(AttributeError):
        rank(Points(None))


def test_operators_on_real_values_compute() -> None:
    assert (2 * Points(3.0) - Points(1.0)).data == 5.0


# ------------------------------------------------------------------------------------------- described


def test_a_flow_keeps_its_signature_its_name_and_its_words() -> None:
    def plain(points: Points, *, rounds: int = 2) -> Points:
        """Return what it does.

        And more.
        """
        return points

    made = flow(plain)
    assert isinstance(made, Flow)
    assert inspect.signature(made) == inspect.signature(plain)
    assert (made.__name__, made.__doc__, made.about) == ("plain", plain.__doc__, "Return what it does.")


def test_importing_a_file_describes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "lazy.py"
    file.write_text(
        "from flowgraph import flow\nfrom nodes import Prompts\n\ncalls = []\n\n\n"
        "@flow\ndef lazy(prompts: Prompts) -> Prompts:\n    calls.append(prompts)\n    return prompts\n"
    )
    module = import_file(file)
    assert module.calls == []
    module.lazy.graph()
    module.lazy.graph()
    assert len(module.calls) == 2  # each graph is described anew, from parameters of its own
    assert module.calls[0] is not module.calls[1]


def test_a_flow_in_a_flow_joins_its_graph() -> None:
    assert graph_text(compile_graph(outer.graph()), sites=False) == (
        "flow outer(points: Points)\n"
        "  halve = halve(points=points) -> Points  # host\n"
        "  halve#2 = halve(points=halve) -> Points  # host\n"
        "  halve#3 = halve(points=halve#2) -> Points  # host\n"
        "  rank = rank(points=halve#3) -> Points, Places  # host\n"
        "  return rank.0, rank.1"
    )


def test_a_flows_settings_shape_its_graph() -> None:
    assert [len(halving.graph({"rounds": rounds}).nodes) for rounds in (0, 1, 5)] == [0, 1, 5]
    assert len(outer.graph({"twice": False}).nodes) == 2
    with pytest.raises(SettingError, match=r"^--set: halving has no setting `round`\n  hint: did you mean `rounds`\?$"):
        halving.graph({"round": 1})


def test_a_whole_training_flow_can_be_called_from_another() -> None:
    @flow
    def two_steps(prompts: Prompts, policy: Policy, ref: nodes_reference) -> Policy:
        return grpo(prompts, grpo(prompts, policy, ref), ref)

    graph = compile_graph(two_steps.graph())
    assert [each.name for each in graph.nodes if each.op.name == "update"] == ["policy.update", "policy.update#2"]
    assert graph.carries() == {"policy": 0}


nodes_reference = typing.get_type_hints(grpo.fn)["ref"]


def test_a_type_variable_is_bound_from_the_argument() -> None:
    @flow
    def keeping(points: Points, scores: Scores) -> tuple[Points, Scores]:
        return same(points), same(scores)

    assert [edge.type for edge in keeping.graph().outputs] == [Points, Scores]


def test_an_optional_port_may_be_left_out_or_none() -> None:
    @flow
    def ranking(points: Points, places: Places) -> tuple[Places, Places, Places]:
        return rank(points)[1], rank(points, worst=None)[1], rank(points, worst=places)[1]

    assert [[port for port, _ in each.inputs] for each in ranking.graph().nodes] == [
        ["points"],
        ["points"],
        ["points", "worst"],
    ]


def test_operators_on_edges_are_nodes() -> None:
    @flow
    def mixing(points: Points) -> Points:
        return 2 * points - points

    assert [each.op.name for each in mixing.graph().nodes] == ["scale", "scale", "add"]


def test_stale_marks_the_reading_edge_and_nothing_else() -> None:
    @flow
    def late(prompts: Prompts, policy: Policy) -> tuple[Rollout, Rollout]:
        return generate(stale(policy, at_most=4), prompts), generate(policy, prompts)

    first, second = late.graph().nodes
    policy = dict(second.inputs)["policy"]
    assert dict(first.inputs)["policy"] == replace(policy, at_most=4)
    assert policy.at_most == 0
    assert dict(first.inputs)["prompts"].at_most == 0


# ------------------------------------------------------------------------------------------- losses


@flow
def training(prompts: Prompts, policy: Policy) -> Policy:
    rollout = generate(policy, prompts, n=2)
    advantages = group_normalize(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        old = logprobs(policy, rollout)
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=old)

    return update(policy, loss)


def test_what_does_not_read_pi_is_hoisted_out_of_the_loss() -> None:
    graph = compile_graph(training.graph())
    (_, region), *rest = graph.nodes[-1].regions
    assert rest == []
    assert [each.name for each in graph.nodes][-2:] == ["policy.logprobs", "policy.update"]
    assert [each.name for each in region.inner] == ["policy.update.logprobs", "policy.update.clipped"]
    told = [str(edge) for edge in region.captures]
    assert told == ["policy.generate", "group_normalize", "policy.generate.mask", "policy.logprobs"]


def test_a_lambda_and_a_loss_without_annotations_are_losses_too() -> None:
    @flow
    def short(prompts: Prompts, policy: Policy) -> Policy:
        rollout = generate(policy, prompts)
        advantages = group_normalize(score(rollout), rollout.group)
        return update(policy, lambda pi: policy_gradient(logprobs(pi, rollout), advantages, rollout.mask))

    assert [each.op.name for each in short.graph().all_nodes][-3:] == ["logprobs", "policy_gradient", "update"]


def rollout_of(rows: int, length: int) -> Rollout:
    tokens = torch.arange(rows * length).reshape(rows, length) % 7 + 3
    ragged = pa.array([[1, 5]] * rows, pa.list_(pa.int32()))
    return Rollout(
        group=Group(torch.arange(rows) // 2),
        sample=Sample(torch.arange(rows) % 2),
        trajectory=Trajectory(torch.zeros(rows, dtype=torch.int64)),
        context=Context(ragged),
        tokens=Tokens(tokens),
        mask=Mask(torch.ones(rows, length)),
        lengths=Lengths(torch.full((rows,), length)),
        logprobs=LogProbs(torch.full((rows, length), -2.0)),
        versions=Versions(torch.zeros(rows, length, dtype=torch.int64)),
        finished=Finished(torch.ones(rows, dtype=torch.bool)),
        text=Text(pa.array(["x"] * rows)),
        columns=Columns(pa.table({"prompt": ["x"] * rows})),
        temperature=Temperature(1.0),
    )


def local_policy() -> Policy:
    return Policy(LocalModel(*tiny.build(0), trainable=True))


def test_update_called_by_hand_trains_on_captured_real_values() -> None:
    policy, rollout = local_policy(), rollout_of(4, 3)
    advantages = Advantages(torch.tensor([1.0, -1.0, 1.0, -1.0]))

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    before = logprobs(policy, rollout).data.detach().clone()
    better = update(policy, loss, lr=1e-2)
    after = logprobs(better, rollout).data.detach()
    moved = ((after - before).sum(1) * advantages.data).tolist()
    assert (better.version, type(better)) == (1, Policy)
    assert sum(moved) > 0
    assert {measure.name for measure in better.measures} == {"loss", "grad_norm", "lr", "optimizer_steps"}
    with pytest.raises(LawError, match="version 0 of these weights was consumed by an update"):
        logprobs(policy, rollout)


def test_a_loss_captures_real_values_as_constants() -> None:
    seen: list[Edge] = []
    policy, rollout = local_policy(), rollout_of(2, 2)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        assert new.edge is not None
        seen.extend(new.edge.source.edges() if hasattr(new.edge.source, "edges") else ())
        return policy_gradient(new, Advantages(torch.ones(2)), rollout.mask)

    update(policy, loss, lr=0.0)
    assert [type(edge.source).__name__ for edge in seen] == ["Param", "Const"]
    assert isinstance(seen[1].source, Const)
    assert seen[1].source.value is rollout


def test_real_values_and_edges_do_not_mix_in_one_update() -> None:
    real = local_policy()

    @flow
    def mixed(prompts: Prompts, policy: Policy) -> Policy:
        rollout = generate(policy, prompts)
        advantages = group_normalize(score(rollout), rollout.group)

        def loss(pi: Policy) -> Loss:
            return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

        return update(real, loss)

    with pytest.raises(
        FlowTypeError, match=r"update: real values are mixed with edges: generate from generate at test_flow.py:\d+$"
    ):
        mixed.graph()


def test_stale_changes_nothing_on_real_values() -> None:
    policy = local_policy()
    assert stale(policy, at_most=3) is policy


def test_a_model_of_a_users_own_is_updated_by_a_loss_of_its_own() -> None:
    @flow
    def fitting(rollout: Rollout, critic: Critic) -> Critic:
        return update(critic, lambda one: fit(one, rollout.mask))

    graph = compile_graph(fitting.graph())
    assert (graph.outputs[0].type, graph.carries()) == (Critic, {"critic": 0})
    assert issubclass(graph.outputs[0].type, Model)
