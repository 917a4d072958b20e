"""Supervised fine-tuning: make the answers of the data set more likely.

Most users start here. The answer is the column `response` of a row, or its ground truth.
"""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import Policy, Prompts, cross_entropy, demonstrations, logprobs, update


@flow
def sft(prompts: Prompts, policy: Policy) -> Policy:
    """Supervised fine-tuning on the data set's answers."""
    answers = demonstrations(policy, prompts)

    def loss(pi: Policy) -> Loss:
        return cross_entropy(logprobs(pi, answers), answers.mask)

    return update(policy, loss)
