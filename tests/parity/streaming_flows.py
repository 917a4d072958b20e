"""A user's own file: a flow with a long tail of response lengths, and readers that take a while for each response."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from pydantic import Field

from flowgraph import Loss, Metric, flow, node
from flowgraph.language import Key, Measure
from flowgraph.language.handle import Completion, SampleRequest
from nodes import (
    LanguageModel,
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
    update,
)
from nodes.sampling import METRICS

TAIL = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 2.0)
"""How long the responses to each prompt of a step take, in units of `unit_s`: most are short, one is long."""

Seconds = Annotated[float, Field(ge=0)]


class Slow:
    """A handle whose responses take a while, each group as long as its place in the batch and the step say."""

    def __init__(self, handle: Any, prompts: list[int], step: int, unit_s: float) -> None:
        self._handle, self._unit_s = handle, unit_s
        self._shares = {prompt: TAIL[(5 * place + step) % len(TAIL)] for place, prompt in enumerate(prompts)}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    async def sample(self, request: SampleRequest) -> Completion:
        completion: Completion = await self._handle.sample(request)
        await asyncio.sleep(self._unit_s * self._shares[request.prompt])
        return completion


@node(kind="generate", hands_out=True, metrics=METRICS)
def tailed(policy: LanguageModel, prompts: Prompts, *, unit_s: Seconds = 1.0, key: Key = Key()) -> Rollout:
    """Sample responses that take as long as `TAIL` says."""
    slow = Slow(policy.handle, prompts.group.data.tolist(), key.step, unit_s)
    return generate(type(policy)(slow, policy.version), prompts, n=2, max_tokens=4, key=key)


@node(kind="score", pure=False, metrics=(Metric("graded"),))
def graded(rollout: Rollout, *, row_s: Seconds = 0.1, fails_on: int = -1) -> Scores:
    """Score each response after a while; `fails_on` is a prompt on which the rule breaks."""
    if fails_on in rollout.group.data.tolist():
        raise ValueError(f"no rule for prompt {fails_on}")
    time.sleep(row_s * len(rollout.lengths.data))
    scores = (rollout.tokens.data[:, 0] % 7).float() / 3 + 0.1 * rollout.lengths.data
    return Scores(scores, [Measure.of_rows("graded", scores)])


@node(kind="logprob")
def read_slowly(model: Reference, rollout: Rollout, *, row_s: Seconds = 0.1) -> LogProbs:
    """Return log-probs of a model that takes a while for each response."""
    time.sleep(row_s * len(rollout.lengths.data))
    return logprobs(model, rollout)


@flow
def long_tail(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
    """Sample on one pool, and read on another and on the host."""
    rollout = tailed(policy, prompts)
    advantages, far = group_normalize(graded(rollout), rollout.group), read_slowly(ref, rollout)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        return clipped(new, advantages, rollout.mask, old=rollout.logprobs, eps=0.2) + kl_k3(new, rollout.mask, ref=far)

    return update(policy, loss, lr=0.1, optimizer="sgd")
