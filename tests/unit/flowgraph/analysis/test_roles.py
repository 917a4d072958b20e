"""Roles, read from graphs."""

from __future__ import annotations

from collections.abc import Callable

from examples.gpg import gpg
from examples.grpo import grpo
from flowgraph import Graph, Loss, Model, Trainable, flow, node
from flowgraph.analysis.roles import Role, roles
from flowgraph.passes import compile_graph
from nodes import (
    LogProbs,
    Policy,
    Prompts,
    Reference,
    Rollout,
    clipped,
    evaluate,
    generate,
    group_normalize,
    kl_k3,
    logprobs,
    policy_gradient,
    score,
    update,
)
from tests.examples.flows.moving_reference import with_average, with_refreshes


def named(graph: Graph) -> dict[str, tuple[str, ...]]:
    return {role.name: role.nodes for role in roles(compile_graph(graph))}


def test_a_policy_trains_and_samples_and_a_frozen_model_infers() -> None:
    """prompts, policy → generate → score → group_normalize ┐
    ref ─→ logprobs ──────────────────────┴→ update(loss: logprobs(pi))."""
    assert roles(compile_graph(grpo.graph())) == (
        Role("policy.train", "policy", "train", ("policy.update.logprobs", "policy.update")),
        Role("policy.sample", "policy", "sample", ("policy.generate",)),
        Role("ref.infer", "ref", "infer", ("ref.logprobs",)),
    )


def test_two_roles_are_all_that_a_flow_without_reference_has() -> None:
    assert list(named(gpg.graph())) == ["policy.train", "policy.sample"]


def test_a_model_that_nothing_updates_only_samples() -> None:
    """policy → generate → score → accuracy."""
    assert named(evaluate.graph()) == {"policy.sample": ("policy.generate",)}


def test_log_probs_of_a_trained_model_outside_its_loss_run_in_its_train_role() -> None:
    """policy → generate ─→ logprobs(policy) ─→ update(loss reads them as old)."""

    @flow
    def ppo_like(prompts: Prompts, policy: Policy) -> Policy:
        rollout = generate(policy, prompts)
        advantages, old = group_normalize(score(rollout), rollout.group), logprobs(policy, rollout)

        def loss(pi: Policy) -> Loss:
            return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=old)

        return update(policy, loss)

    assert named(ppo_like.graph()) == {
        "policy.train": ("policy.logprobs", "policy.update.logprobs", "policy.update"),
        "policy.sample": ("policy.generate",),
    }


def test_later_versions_of_a_model_are_the_same_model() -> None:
    """policy → update → update; the second samples from what the first returned."""

    @flow
    def twice(prompts: Prompts, policy: Policy) -> Policy:
        for _ in range(2):
            policy = update(policy, _loss_of(generate(policy, prompts)))
        return policy

    found = named(twice.graph())
    assert found["policy.sample"] == ("policy.generate", "policy.generate#2")
    assert found["policy.train"][-1] == "policy.update#2"
    assert list(found) == ["policy.train", "policy.sample"]


def _loss_of(rollout: Rollout) -> Callable[[Policy], Loss]:
    advantages = group_normalize(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    return loss


@node(kind="logprob")
def blended(first: Policy, rollout: Rollout, *, second: Reference) -> LogProbs:
    """Give log-probs from two models."""
    raise NotImplementedError


def test_a_node_in_a_loss_that_reads_two_models_stands_in_a_role_of_each() -> None:
    """update(loss: blended(pi, ref)): ref is read only there."""

    @flow
    def mixed(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
        rollout = generate(policy, prompts)

        def loss(pi: Policy) -> Loss:
            return kl_k3(blended(pi, rollout, second=ref), rollout.mask, ref=rollout.logprobs)

        return update(policy, loss)

    assert named(mixed.graph()) == {
        "policy.train": ("policy.update.blended", "policy.update"),
        "policy.sample": ("policy.generate",),
        "ref.infer": ("policy.update.blended",),
    }


class Average(Trainable):
    """A slow copy of a model."""


@node(carries="slow", pure=False)
def follow(slow: Average, *, fast: Model) -> Average:
    """Move a slow copy towards a model."""
    raise NotImplementedError


@node(kind="update", carries="slow", pure=False)
def step(slow: Average, *, towards: LogProbs) -> Average:
    """Step an optimizer in a way of its own, without a region."""
    raise NotImplementedError


def test_a_model_that_is_moved_without_a_loss_is_not_trained() -> None:
    """slow, fast → follow → slow: no gradient and no optimizer, though weights are carried."""

    @flow
    def averaged(slow: Average, fast: Reference) -> Average:
        return follow(slow, fast=fast)

    assert named(averaged.graph()) == {"slow.infer": ("slow.follow",), "fast.infer": ("slow.follow",)}


def test_log_probs_of_a_moving_reference_are_those_of_a_model_that_nothing_trains() -> None:
    """generate → ref.logprobs → update; ref, the new policy → averaged → ref."""
    for moving in (with_average, with_refreshes):
        found = named(moving.graph())
        assert list(found) == ["policy.train", "policy.sample", "ref.infer"]
        assert found["ref.infer"][0] == "ref.logprobs" and len(found["ref.infer"]) == 2


def test_a_moving_model_that_draws_has_the_role_that_moves_it_first() -> None:
    """slow → sampled; slow, fast → follow → slow: the newest weights are where `follow` runs."""

    @flow
    def drawn(prompts: Prompts, slow: Average, fast: Reference) -> tuple[Rollout, Average]:
        return sampled(slow, prompts), follow(slow, fast=fast)

    @flow
    def frozen(prompts: Prompts, slow: Reference) -> tuple[Rollout, LogProbs]:
        rollout = generate(slow, prompts)
        return rollout, logprobs(slow, rollout)

    assert list(named(drawn.graph())) == ["slow.infer", "slow.sample", "fast.infer"]
    assert list(named(frozen.graph())) == ["slow.sample", "slow.infer"]


@node(kind="generate")
def sampled(model: Model, prompts: Prompts) -> Rollout:
    """Draw from any model."""
    raise NotImplementedError


def test_an_update_trains_with_or_without_a_region() -> None:
    """fast → logprobs → step of slow, then slow follows fast: one update of two movers is enough."""

    @flow
    def both(prompts: Prompts, slow: Average, fast: Reference) -> Average:
        rollout = generate(fast, prompts)
        return follow(step(slow, towards=logprobs(fast, rollout)), fast=fast)

    assert named(both.graph())["slow.train"] == ("slow.step", "slow.follow")


@node
def counted(prompts: Prompts) -> LogProbs:
    """Count."""
    raise NotImplementedError


def test_host_nodes_have_no_role() -> None:
    """prompts → counted."""

    @flow
    def host(prompts: Prompts) -> LogProbs:
        return counted(prompts)

    assert named(host.graph()) == {}
