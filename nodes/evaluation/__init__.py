"""Evaluation: the share of responses to held-out prompts with full marks, and flows that sample and score them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flowgraph import Metric, flow, node
from flowgraph.language import Measure, NodeName
from flowgraph.language.values import Group
from nodes.evaluation.estimates import chance_at_k
from nodes.sampling import generate
from nodes.scoring import FULL_MARKS, Rule, score
from nodes.values import Accuracy, Policy, Prompts, Rollout, Scores


@node(
    separable=False,
    metrics=(Metric("accuracy", headline=True, about="share of responses to held-out prompts with full marks"),),
)
def accuracy(scores: Scores, *, name: NodeName = "") -> Accuracy:
    """Return the share (0 to 1) of responses with full marks, a score of at least 1 up to rounding; 0 without any.

    `scores` [B] has the score of each response; a score of 1 - 1e-6 or more has full marks.
    """
    full = float((scores.data >= FULL_MARKS).sum())
    count = len(scores.data)
    return Accuracy(full / count if count else 0.0, [Measure("accuracy", full, count)])


@node(
    separable=False,
    metrics=(Metric("pass_at_k", headline=True, about="probability that at least one of k responses has full marks"),),
)
def pass_at_k(scores: Scores, group: Group, *, k: Annotated[int, Field(ge=1)] = 1, name: NodeName = "") -> Accuracy:
    """Return an unbiased estimate of the probability that at least one of `k` responses to a prompt has full marks.

    A response has full marks if its score is at least 1. `scores` [B] and `group` [B] have the score and the prompt's
    id of each response. The estimate is the mean over prompts of 1 - C(n - c, k) / C(n, k), for n responses to a
    prompt, c of them with full marks; it is 0 without prompts. Raises LawError if a prompt has fewer than `k`
    responses.
    Source: Chen et al. 2021 (Codex), arXiv 2107.03374, equation 1.

    >>> import torch
    >>> scores, group = Scores(torch.tensor([1.0, 0.0, 0.0, 0.0])), Group(torch.tensor([3, 3, 3, 3]))
    >>> pass_at_k(scores, group, k=2).data
    0.5
    """
    import torch

    _, index, counts = torch.unique(group.data, return_inverse=True, return_counts=True)
    full = torch.zeros_like(counts).index_add(0, index, (scores.data >= FULL_MARKS).to(counts))
    chances = [chance_at_k(n, c, k) for n, c in zip(counts.tolist(), full.tolist(), strict=True)]
    mean = sum(chances) / len(chances) if chances else 0.0
    return Accuracy(mean, [Measure("pass_at_k", sum(chances), len(chances))])


@flow
def evaluate(
    prompts: Prompts,
    policy: Policy,
    *,
    n: int = 1,
    temperature: float = 0.0,
    by: Rule = "data",
    max_tokens: int = 256,
) -> Accuracy:
    """Sample `n` responses to each held-out prompt, greedy by default, and return the share with full marks.

    The rule `by` scores the responses; full marks are a score of at least 1.
    """
    rollout = generate(policy, prompts, n=n, temperature=temperature, max_tokens=max_tokens)
    return accuracy(score(rollout, by=by))


@flow
def evaluate_at_k(
    prompts: Prompts,
    policy: Policy,
    *,
    n: int = 8,
    k: int = 4,
    temperature: float = 1.0,
    by: Rule = "data",
    max_tokens: int = 256,
) -> Accuracy:
    """Sample `n` responses to each held-out prompt and return pass@k: the chance that one of `k` has full marks.

    The rule `by` scores the responses; full marks are a score of at least 1. `n` must be at least `k`.
    """
    rollout = generate(policy, prompts, n=n, temperature=temperature, max_tokens=max_tokens)
    return pass_at_k(score(rollout, by=by), rollout.group, k=k)


@flow
def respond(
    prompts: Prompts, policy: Policy, *, n: int = 1, temperature: float = 1.0, max_tokens: int = 256
) -> Rollout:
    """Sample `n` responses to each prompt and return them."""
    return generate(policy, prompts, n=n, temperature=temperature, max_tokens=max_tokens)


@flow
def respond_and_score(
    prompts: Prompts,
    policy: Policy,
    *,
    n: int = 1,
    temperature: float = 1.0,
    max_tokens: int = 256,
    by: Rule = "data",
) -> tuple[Rollout, Scores]:
    """Sample `n` responses to each prompt, and return them with their scores by the rule `by`."""
    rollout = generate(policy, prompts, n=n, temperature=temperature, max_tokens=max_tokens)
    return rollout, score(rollout, by=by)
