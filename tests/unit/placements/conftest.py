"""A flow of GRPO's shape whose settings stay as they are here, whatever the shipped one has."""

from __future__ import annotations

import pytest

from flowgraph import Graph, Loss, flow
from flowgraph.passes import compile_graph
from nodes import Policy, Prompts, Reference, clipped, generate, group_normalize, kl_k3, logprobs, score, update


@flow
def grpo(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
    """Describe prompts → generate → score → advantages, log-probs of ref → update."""
    rollout = generate(policy, prompts, n=8, max_tokens=256)
    advantages = group_normalize(score(rollout), rollout.group)
    ref_logprobs = logprobs(ref, rollout)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        surrogate = clipped(new, advantages, rollout.mask, old=rollout.logprobs)
        return surrogate + 0.04 * kl_k3(new, rollout.mask, ref=ref_logprobs)

    return update(policy, loss, micro_batch_tokens=16384)


@pytest.fixture(scope="session")
def graph() -> Graph:
    """prompts, policy, ref → generate (n=8, 256 tokens) → score, ref log-probs → update."""
    return compile_graph(grpo.graph())
