"""Flows whose nodes do nothing: what is left is the cost of calling them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flowgraph import flow, node
from nodes import Policy, Prompts, Scores


@node(kind="score")
def begin(prompts: Prompts) -> Scores:
    """Return a zero for each prompt: [B]."""
    import torch

    return Scores(torch.zeros(len(prompts.group.data)))


@node
def on_host(scores: Scores) -> Scores:
    """Return other zeros."""
    return Scores(scores.data.clone())


@node(kind="score")
def on_model(policy: Policy, scores: Scores) -> Scores:
    """Return other zeros, beside a model."""
    assert policy.handle.version >= 0, "the model is here"
    return Scores(scores.data.clone())


@flow
def on_models(prompts: Prompts, policy: Policy, *, calls: Annotated[int, Field(ge=1)] = 1) -> Scores:
    """Call a node beside a model, each on what the last one gave."""
    scores = begin(prompts)
    for _ in range(calls):
        scores = on_model(policy, scores)
    return scores


@flow
def in_turns(prompts: Prompts, policy: Policy, *, calls: Annotated[int, Field(ge=1)] = 1) -> Scores:
    """Call a node beside a model and one on the host, in turns, so that no two host nodes are one task."""
    scores = begin(prompts)
    for _ in range(calls):
        scores = on_host(on_model(policy, scores))
    return scores
