"""Supervised fine-tuning: make the answers of the data set more likely.

The answer is the column `response` of a row, or if there is none `extra_info.answer` or the ground truth.
"""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import Policy, Prompts, cross_entropy, demonstrations, logprobs, update


@flow
def sft(prompts: Prompts, policy: Policy) -> Policy:
    """Train the policy to give the data set's answers."""
    answers = demonstrations(policy, prompts)

    def loss(pi: Policy) -> Loss:
        return cross_entropy(logprobs(pi, answers), answers.mask)

    return update(policy, loss)
