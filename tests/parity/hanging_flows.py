"""A user's own file: nodes that wait for ever when the step is 1, one beside a model, one on the host."""

from __future__ import annotations

import time

from flowgraph import Loss, flow, node
from flowgraph.language import Key
from nodes import (
    LanguageModel,
    Policy,
    Prompts,
    Rollout,
    generate,
    gpg_advantages,
    logprobs,
    policy_gradient,
    score,
    update,
)


@node(kind="score")
def waits_beside_a_model(model: LanguageModel, rollout: Rollout, *, key: Key = Key()) -> Rollout:
    """Wait for a signal that never comes."""
    assert model.handle.version >= 0
    waits_for_ever(key, "beside a model")
    return rollout


@node
def waits_on_the_host(rollout: Rollout, *, key: Key = Key()) -> Rollout:
    """Wait for a signal that never comes."""
    waits_for_ever(key, "on the host")
    return rollout


def waits_for_ever(key: Key, where: str) -> None:
    """Wait, in step 1."""
    while key.step == 1 and where:
        time.sleep(0.05)


@flow
def beside_a_model(prompts: Prompts, policy: Policy) -> Policy:
    """Train, with a node that waits where the policy is."""
    rollout = waits_beside_a_model(policy, generate(policy, prompts))
    advantages = gpg_advantages(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    return update(policy, loss)


@flow
def on_the_host(prompts: Prompts, policy: Policy) -> Policy:
    """Train, with a node that waits on the host."""
    rollout = waits_on_the_host(generate(policy, prompts))
    advantages = gpg_advantages(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    return update(policy, loss)
