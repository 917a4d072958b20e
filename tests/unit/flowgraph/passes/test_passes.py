"""Passes: names that do not depend on variables, and an order in which readers come before what consumes."""

from __future__ import annotations

import pytest

from examples.gpg import gpg
from examples.grpo import grpo
from flowgraph import Loss, flow, node, stale
from flowgraph.analysis.node_order import blocked_reader, order_nodes
from flowgraph.errors import LawError
from flowgraph.language.graph import Graph, Node
from flowgraph.passes import NAMING, PASSES, compile_graph
from flowgraph.passes.count_masks import count_masks
from flowgraph.passes.dedupe_nodes import dedupe_nodes
from flowgraph.passes.name_nodes import name_nodes
from flowgraph.passes.prune_nodes import prune_nodes
from nodes import (
    LogProbs,
    Policy,
    Prompts,
    Reference,
    Rollout,
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


@node(kind="score")
def read(late: LogProbs) -> Scores:
    raise NotImplementedError


def names(graph: Graph) -> list[str]:
    return [each.name for each in graph.all_nodes]


def ordered(graph: Graph) -> list[str]:
    return [each.name for each in order_nodes(compile_graph(graph))]


@flow
def late_reader(prompts: Prompts, policy: Policy) -> tuple[Policy, Scores, Scores]:
    rollout = generate(policy, prompts)
    advantages = group_normalize(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    better = update(policy, loss)
    sampled = generate(stale(policy, at_most=2), prompts)
    return better, read(logprobs(policy, rollout)), score(sampled)


@flow
def two_updates(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
    rollout = generate(policy, prompts)
    advantages = group_normalize(score(rollout), rollout.group)

    def first(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    def second(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        old = logprobs(policy, rollout)
        return clipped(new, advantages, rollout.mask, old=old) + kl_k3(new, rollout.mask, ref=logprobs(ref, rollout))

    return update(update(policy, first), second)


def test_the_pipeline_is_two_literal_tuples() -> None:
    assert (name_nodes,) == NAMING
    assert (prune_nodes, dedupe_nodes, count_masks) == PASSES


def test_nodes_are_named_by_their_model_and_op_and_those_of_a_loss_under_it() -> None:
    assert names(compile_graph(grpo.graph())) == [
        "policy.generate",
        "score",
        "group_normalize",
        "ref.logprobs",
        "policy.update.logprobs",
        "policy.update.clipped",
        "policy.update.kl_k3",
        "policy.update.scale",
        "policy.update.add",
        "policy.update",
    ]


def test_repeats_are_numbered_and_inner_nodes_that_read_another_model_say_so() -> None:
    assert names(compile_graph(two_updates.graph())) == [
        "policy.generate",
        "score",
        "group_normalize",
        "policy.update.logprobs",
        "policy.update.policy_gradient",
        "policy.update",
        "policy.update#2.logprobs",
        "policy.logprobs",
        "policy.update#2.clipped",
        "ref.logprobs",
        "policy.update#2.kl_k3",
        "policy.update#2.add",
        "policy.update#2",
    ]


def test_every_name_is_given_once_and_naming_again_changes_nothing() -> None:
    for each in (grpo, gpg, two_updates, late_reader):
        graph = compile_graph(each.graph())
        assert len(set(names(graph))) == len(graph.all_nodes)
        assert names(name_nodes(graph)) == names(graph)


def test_a_flow_is_run_as_it_was_written_where_the_law_of_versions_allows() -> None:
    for each in (grpo, gpg):
        graph = compile_graph(each.graph())
        assert order_nodes(graph) == graph.nodes


def test_readers_of_a_version_run_before_the_update_that_consumes_it_stale_ones_too() -> None:
    assert [each.name for each in compile_graph(late_reader.graph()).nodes][3] == "policy.update"
    assert ordered(late_reader.graph()) == [
        "policy.generate",
        "score",
        "group_normalize",
        "policy.generate#2",
        "policy.logprobs",
        "policy.update",
        "read",
        "score#2",
    ]


def test_an_old_log_prob_that_only_a_second_loss_reads_is_taken_before_the_first_update() -> None:
    told = ordered(two_updates.graph())
    assert told.index("policy.logprobs") < told.index("policy.update") < told.index("policy.update#2")


def test_a_legal_graph_has_no_blocked_reader() -> None:
    assert blocked_reader(two_updates.graph()) is None


def test_the_blocked_reader_is_the_one_that_needs_the_update_it_must_precede() -> None:
    found: list[tuple[Node, Node]] = []

    def catch(prompts: Prompts, policy: Policy) -> Policy:
        rollout = generate(policy, prompts)
        advantages = group_normalize(score(rollout), rollout.group)

        def loss(pi: Policy) -> Loss:
            return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

        once = update(policy, loss)
        later = generate(once, prompts)
        late = logprobs(policy, later)

        def again(pi: Policy) -> Loss:
            return clipped(logprobs(pi, later), advantages, later.mask, old=late)

        last = update(once, again)
        assert last.edge is not None
        graph = Graph("catch", (), (last.edge,), last.edge.source.at)
        pair = blocked_reader(graph)
        assert pair is not None
        found.append(pair)
        return policy

    with pytest.raises(LawError, match="is dropped"):
        flow(catch).graph()
    (reader, consumer), *_ = found
    assert (reader.op.name, consumer.op.name) == ("logprobs", "update")
    assert dict(reader.inputs)["model"] == dict(consumer.inputs)["model"]


def test_ordering_keeps_every_node_once() -> None:
    graph = compile_graph(late_reader.graph())
    assert sorted(order_nodes(graph), key=lambda each: each.stamp) == list(graph.nodes)
    assert Rollout in {kind for each in graph.nodes for kind in each.returns}
