"""Evaluation: how often greedy responses to held-out prompts get full marks."""

from __future__ import annotations

from flowgraph import Measure, Metric, flow, node
from nodes.sampling import generate
from nodes.scoring import FULL_MARKS, Rule, score
from nodes.values import Accuracy, Policy, Prompts, Scores


@node(metrics=(Metric("accuracy", headline=True, about="share of held-out prompts answered with full marks"),))
def accuracy(scores: Scores) -> Accuracy:
    """Give the share of scores that are full marks, 1."""
    full = float((scores.data >= FULL_MARKS).sum())
    count = len(scores.data)
    return Accuracy(full / count if count else 0.0, [Measure("accuracy", full, count)])


@flow
def evaluate(prompts: Prompts, policy: Policy, *, by: Rule = "data", max_tokens: int = 256) -> Accuracy:
    """Answer held-out prompts greedily and score them."""
    rollout = generate(policy, prompts, temperature=0.0, max_tokens=max_tokens)
    return accuracy(score(rollout, by=by))
