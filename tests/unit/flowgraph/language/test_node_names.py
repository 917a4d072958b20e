"""Names that a flow gives its nodes: `score(rollout, name="format")`, for every node, and arithmetic on them."""

from __future__ import annotations

import pytest
import torch

from flowgraph import Loss, flow, node
from flowgraph.analysis.flat_graph import full_hash, structure_hash, to_json
from flowgraph.app.planning.flow_inputs import compiled_flow
from flowgraph.app.request import Workload
from flowgraph.errors import FlowTypeError
from flowgraph.language import NodeName
from flowgraph.language.values import Group
from flowgraph.passes import compile_graph, named
from flowgraph.serialize.graph import from_json
from nodes import (
    Policy,
    Prompts,
    Reference,
    Scores,
    clipped,
    generate,
    group_normalize,
    kl_k3,
    logprobs,
    score,
    total,
    update,
)

NAMES = [
    "policy.generate",
    "exact",
    "partial",
    "partial.scale",
    "add",
    "trained",
    "group_normalize",
    "ref.near",
    "policy.update.logprobs",
    "policy.update.clipped",
    "policy.update.kl",
    "policy.update.kl.scale",
    "policy.update.add",
    "policy.update",
]


@flow
def rewarded(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
    """Train on two scores with names, by a loss whose KL has one."""
    rollout = generate(policy, prompts, n=2)
    scores = score(rollout, by="exact", name="exact") + 0.5 * score(rollout, by="partial", name="partial")
    advantages = group_normalize(total(scores, rollout.group, name="trained"), rollout.group)
    near = logprobs(ref, rollout, name="near")

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        surrogate = clipped(new, advantages, rollout.mask, old=rollout.logprobs)
        return surrogate + 0.1 * kl_k3(new, rollout.mask, ref=near, name="kl")

    return update(policy, loss)


def test_a_name_takes_the_place_of_the_ops_and_names_the_factor_of_its_value() -> None:
    assert [each.name for each in compile_graph(rewarded.graph()).all_nodes] == NAMES


def test_settings_are_chosen_by_these_names() -> None:
    sets = ("policy.update.kl.scale.factor=0.3", "partial.scale.factor=0.25", "partial.on_error=0")
    graph = compiled_flow(Workload(flow=rewarded, settings=sets))
    found = {each.name: each.settings for each in graph.all_nodes}
    assert getattr(found["policy.update.kl.scale"], "factor", None) == 0.3
    assert getattr(found["partial.scale"], "factor", None) == 0.25
    assert getattr(found["partial"], "on_error", None) == 0


def test_names_are_stored_and_are_the_same_after_they_are_read_and_named_again() -> None:
    graph = compile_graph(rewarded.graph())
    read = from_json(to_json(graph))
    assert [each.name for each in named(read).all_nodes] == NAMES
    assert (structure_hash(read), full_hash(read)) == (structure_hash(graph), full_hash(graph))


def test_a_stored_name_that_is_none_is_refused() -> None:
    from flowgraph.errors import LawError

    text = to_json(compile_graph(rewarded.graph())).replace('"label": "near"', '"label": "../near"')
    with pytest.raises(LawError, match="label"):
        from_json(text)


@node
def halved(scores: Scores) -> Scores:
    """Halve scores; it declares no name of its own."""
    return Scores(scores.data / 2)


@node
def renamed(scores: Scores, *, name: int = 1) -> Scores:
    """Have a setting called `name`."""
    return Scores(scores.data * name)


def test_a_node_of_ones_own_takes_a_name_without_declaring_it() -> None:
    @flow
    def own(prompts: Prompts, policy: Policy) -> Policy:
        rollout = generate(policy, prompts, n=2)
        scores = halved(score(rollout), name="small")  # type: ignore[call-arg]
        scores = renamed(scores, name=3)
        advantages = group_normalize(scores, rollout.group)
        return update(policy, lambda pi: clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs))

    names = [each.name for each in compile_graph(own.graph()).all_nodes]
    assert names[2:4] == ["small", "renamed"], "a setting called `name` stays a setting"


def test_a_name_changes_nothing_where_a_node_runs_on_values() -> None:
    scores, group = Scores(torch.tensor([1.0, 0.0])), Group(torch.tensor([0, 0]))
    assert torch.equal(total(scores, group, name="x").data, scores.data)
    assert {each.name: each.total for each in total(scores, group).measures}["reward"] == 1


@pytest.mark.parametrize("name", ["a.b", "a b", "3a", "x" * 65, "a\n", 3, None])
def test_what_is_no_name_is_refused_with_its_line(name: object) -> None:
    @flow
    def bad(prompts: Prompts, policy: Policy) -> Policy:
        rollout = generate(policy, prompts, name=name)  # type: ignore[arg-type]
        return update(policy, lambda pi: clipped(logprobs(pi, rollout), rollout, rollout.mask, old=rollout.logprobs))  # type: ignore[arg-type]

    with pytest.raises(FlowTypeError, match=r"test_node_names\.py:\d+: generate: cannot be named"):
        bad.graph()


def test_a_node_may_declare_its_name_as_a_keyword_with_an_empty_default_only() -> None:
    @node
    def declared(scores: Scores, *, name: NodeName = "") -> Scores:
        return scores

    assert declared(Scores(torch.ones(1)), name="x").data.tolist() == [1.0]

    def other(scores: Scores, *, title: NodeName = "") -> Scores:
        return scores

    def full(scores: Scores, *, name: NodeName = "x") -> Scores:
        return scores

    for fn in (other, full):
        with pytest.raises(FlowTypeError, match="NodeName"):
            node(fn)


# ------------------------------------------------------------------------------------------------- arithmetic


def test_scores_are_multiplied_divided_and_summed() -> None:
    one, two = Scores(torch.tensor([1.0, 2.0])), Scores(torch.tensor([3.0, 0.5]))
    assert (one * two).data.tolist() == [3.0, 1.0]
    assert (one / 4).data.tolist() == [0.25, 0.5]
    assert sum([one, two, one]).data.tolist() == [5.0, 4.5]
    assert (2 * one - two).data.tolist() == [-1.0, 3.5]


def test_arithmetic_on_scores_is_described() -> None:
    @flow
    def product(prompts: Prompts, policy: Policy) -> Policy:
        rollout = generate(policy, prompts, n=2)
        scores = [score(rollout, by="exact") * score(rollout, by="partial", name="partial"), score(rollout) / 4]
        advantages = group_normalize(sum(scores), rollout.group)
        return update(policy, lambda pi: clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs))

    graph = compile_graph(product.graph())
    assert [each.name for each in graph.all_nodes][1:7] == ["score", "partial", "multiply", "score#2", "scale", "add"]
    assert structure_hash(from_json(to_json(graph))) == structure_hash(graph)


@pytest.mark.parametrize("other", [Scores(torch.ones(1)), 0, 0.0])
def test_division_by_a_value_or_zero_is_refused(other: object) -> None:
    with pytest.raises(FlowTypeError, match="Scores: is divided by"):
        Scores(torch.ones(1)) / other  # type: ignore[operator]


def test_a_product_of_losses_is_refused_with_what_losses_can_do() -> None:
    loss = Loss([])
    with pytest.raises(FlowTypeError, match=r"Loss: is multiplied by Loss\n  hint: Loss can be added"):
        loss * loss  # type: ignore[operator]


def test_a_sum_that_starts_from_another_number_is_refused() -> None:
    with pytest.raises(TypeError):
        sum([Scores(torch.ones(1))], 1)  # type: ignore[call-overload]
