"""The passes that change a graph: each with a before and an after, what it reports, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from examples.grpo import grpo
from flowgraph import Flow, Loss, Value, flow, node
from flowgraph.errors import FlowTypeError, LawError, UserCodeError
from flowgraph.flows.settings import resolve_settings
from flowgraph.language import Kind
from flowgraph.language.graph import Graph, rewrite
from flowgraph.language.laws import check, faults
from flowgraph.passes import PASSES, Pass, compile_graph, named, simplified
from flowgraph.passes.count_masks import count_masks
from flowgraph.passes.dedupe_nodes import dedupe_nodes
from flowgraph.passes.name_nodes import name_nodes
from flowgraph.passes.prune_nodes import prune_nodes
from flowgraph.passes.verify import verified, verifying
from flowgraph.serialize.graph_text import graph_text
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
    policy_gradient,
    score,
    update,
)

Golden = Callable[[str, str], None]


class Count(Value):
    kind = Kind.SCALAR


@node
def counted(scores: Scores) -> Count:
    """Count scores."""
    return Count(len(scores.data))


@flow
def written_twice(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
    """Write the same log-probs in the flow and in the loss, and the same of the policy in two terms."""
    rollout = generate(policy, prompts, n=4)
    advantages = group_normalize(score(rollout), rollout.group)
    near = logprobs(ref, rollout)

    def loss(pi: Policy) -> Loss:
        surrogate = clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)
        first = kl_k3(logprobs(pi, rollout), rollout.mask, ref=near)
        return surrogate + 0.1 * first + 0.2 * kl_k3(logprobs(pi, rollout), rollout.mask, ref=logprobs(ref, rollout))

    return update(policy, loss)


@flow
def drawn_twice(prompts: Prompts, policy: Policy) -> tuple[Scores, Scores]:
    """Draw and score twice, alike: two samples, two calls of a rule."""
    return score(generate(policy, prompts)), score(generate(policy, prompts))


@flow
def without_effect(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
    """Write a term of factor 0 and calls that nothing reads."""
    rollout = generate(policy, prompts, n=4)
    scores = score(rollout)
    advantages = group_normalize(scores, rollout.group)
    near = logprobs(ref, rollout)
    counted(scores)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        surrogate = clipped(new, advantages, rollout.mask, old=rollout.logprobs)
        policy_gradient(new, advantages, rollout.mask)
        return surrogate + 0.0 * kl_k3(new, rollout.mask, ref=near)

    return update(policy, loss)


PAIRS: dict[str, tuple[Pass, Flow[Any, Any]]] = {
    "name_nodes": (name_nodes, written_twice),
    "dedupe_nodes": (dedupe_nodes, written_twice),
    "prune_nodes": (prune_nodes, without_effect),
    "count_masks": (count_masks, written_twice),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_pass_makes_of_its_before_its_after(name: str, golden: Golden) -> None:
    each, of = PAIRS[name]
    before = of.graph() if each is name_nodes else named(of.graph())
    golden(f"{graph_text(before)}\n\n{name}\n\n{graph_text(each(before))}", f"passes/{name}.txt")


def test_every_pass_of_the_pipeline_has_a_before_and_an_after() -> None:
    assert {each.__name__ for each in PASSES} < set(PAIRS)


@pytest.mark.parametrize("each", PASSES)
def test_a_pass_that_is_run_again_changes_nothing(each: Pass) -> None:
    for of in (written_twice, without_effect, grpo, drawn_twice):
        once = each(named(of.graph()))
        assert graph_text(each(once)) == graph_text(once)


def test_what_draws_or_has_effects_is_never_taken_for_the_same() -> None:
    names = [each.name for each in compile_graph(drawn_twice.graph()).nodes]
    assert names == ["policy.generate", "score", "policy.generate#2", "score#2"]


def test_two_nodes_with_other_settings_are_two() -> None:
    @flow
    def two(scores: Scores, prompts: Prompts) -> tuple[Scores, Scores]:
        return 2.0 * scores, 2 * scores

    assert len(compile_graph(two.graph()).nodes) == 1

    @flow
    def others(scores: Scores) -> tuple[Scores, Scores]:
        return 2.0 * scores, 3.0 * scores

    assert len(compile_graph(others.graph()).nodes) == 2


def test_a_factor_of_zero_that_is_chosen_by_a_setting_takes_the_reference_out_of_the_step() -> None:
    graph = resolve_settings(named(grpo.graph()), [], {"policy.update.scale.factor": 0})[0]
    left = simplified(graph)
    assert [each.name for each in left.nodes] == ["policy.generate", "score", "group_normalize", "policy.update"]
    assert left.pruned == (
        "ref.logprobs  # grpo.py:18: only a term of factor 0 reads it",
        "policy.update.kl_k3  # grpo.py:23: only a term of factor 0 reads it",
        "policy.update.scale  # grpo.py:23: its factor is 0",
    )


def test_a_loss_of_nothing_but_zeros_keeps_a_term() -> None:
    @flow
    def nothing(prompts: Prompts, policy: Policy) -> Policy:
        rollout = generate(policy, prompts)
        advantages = group_normalize(score(rollout), rollout.group)

        def loss(pi: Policy) -> Loss:
            new = logprobs(pi, rollout)
            term = policy_gradient(new, advantages, rollout.mask)
            return 0.0 * term + 0.0 * clipped(new, advantages, rollout.mask, old=rollout.logprobs)

        return update(policy, loss)

    graph = compile_graph(nothing.graph())
    check("named", graph)
    assert [each.op.name for _, region in graph.nodes[-1].regions for each in region.inner][-1] == "scale"


# ------------------------------------------------------------------------------------------- laws between passes


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda graph: rewrite(graph, _unnamed), "generate has no name"),
        (lambda graph: rewrite(graph, _alike), "two nodes are named same"),
        (lambda graph: prune_nodes(named(written_twice.graph())), "the loss `loss` has a term under a mask that it"),
        (lambda graph: count_masks(named(written_twice.graph())), "ref.logprobs#2 computes the same as ref.logprobs"),
        (lambda graph: count_masks(dedupe_nodes(named(without_effect.graph()))), "nothing reads counted"),
    ],
)
def test_a_graph_that_lacks_what_a_pass_does_is_refused(broken: Callable[[Graph], Graph], said: str) -> None:
    found = [str(each) for each in faults("named", broken(compile_graph(grpo.graph())))]
    assert any(said in each for each in found)


def _unnamed(each: Any) -> Any:
    from dataclasses import replace

    return replace(each, name="")


def _alike(each: Any) -> Any:
    from dataclasses import replace

    return replace(each, name="same")


def test_a_users_pass_runs_last_and_what_it_breaks_is_laid_to_it() -> None:
    graph = named(grpo.graph())
    seen: list[Graph] = []

    def looks(graph: Graph) -> Graph:
        seen.append(graph)
        return graph

    def breaks(graph: Graph) -> Graph:
        return rewrite(graph, _alike)

    assert simplified(graph, [looks]) is seen[0]
    with pytest.raises(LawError, match="two nodes are named same") as raised:
        simplified(graph, [looks, breaks])
    assert raised.value.notes == ("after the pass breaks",)


def test_a_users_pass_that_raises_or_gives_something_else_is_told_by_its_name() -> None:
    graph = named(grpo.graph())
    with pytest.raises(UserCodeError, match="pass divides raised ZeroDivisionError"):
        simplified(graph, [divides])
    with pytest.raises(FlowTypeError, match="gives_none: returned NoneType, but a pass returns a Graph"):
        simplified(graph, [gives_none])


def divides(graph: Graph) -> Graph:
    raise ZeroDivisionError


def gives_none(graph: Graph) -> Any:
    return None


def test_verification_is_on_in_every_test_and_ends_with_its_block() -> None:
    assert verifying()
    with verified(False):
        assert not verifying()
    assert verifying()
