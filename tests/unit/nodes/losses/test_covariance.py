"""The choice of tokens by covariance, by hand, and the losses that treat the chosen apart, in a flow."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import torch

from flowgraph import Loss, Mask, flow
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import LawError
from flowgraph.language import Key
from flowgraph.language.values import Group, Sample, Trajectory
from flowgraph.passes import compile_graph
from nodes import Policy, Prompts, clipped, generate, group_normalize, logprobs, score, update
from nodes.data.source import PromptSource
from nodes.losses.covariance import clip_cov_loss, high_covariance, kl_cov_loss, top_covariance
from nodes.values import Advantages, Chosen, LogProbs, Responses

OLD = LogProbs(torch.tensor([[-1.0, -2.0, -3.0], [-4.0, math.nan, math.nan]]))
GAIN = Advantages(torch.tensor([2.0, -2.0]))
MASK = Mask(torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]))
IDS = Responses.of(
    {"group": Group(torch.tensor([4, 7])), "sample": Sample(torch.zeros(2)), "trajectory": Trajectory(torch.zeros(2))}
)
# mean log-prob -2.5, mean advantage 1: covariances 1.5·1, 0.5·1, -0.5·1 and -1.5·-3
COVARIANCES = [[1.5, 0.5, -0.5], [4.5, 0.0, 0.0]]


def test_the_largest_covariances_by_hand() -> None:
    one, half = top_covariance(OLD, GAIN, MASK), top_covariance(OLD, GAIN, MASK, fraction=0.5)
    assert one.data.tolist() == [[0, 0, 0], [1, 0, 0]] and half.data.tolist() == [[1, 0, 0], [1, 0, 0]]
    assert [(each.name, each.total, each.count) for each in half.measures] == [
        ("covariance", pytest.approx(6.0), 4),
        ("chosen_fraction", 2, 4),
    ]
    assert half.data.dtype is torch.float32


def test_only_tokens_between_the_bounds_are_drawn_each_by_its_row_and_the_key() -> None:
    def drawn(seed: int, **settings: float) -> list[list[float]]:
        told: list[list[float]] = high_covariance(OLD, GAIN, MASK, ids=IDS, key=Key(seed), **settings).data.tolist()
        return told

    assert drawn(0, low=0.5, high=4.5, fraction=1.0) == [[1, 0, 0], [0, 0, 0]], "the bounds themselves are outside"
    assert drawn(0, low=0.0, high=9.0, fraction=1.0) == [[1, 1, 0], [1, 0, 0]]
    assert drawn(0, low=5.0, high=9.0, fraction=1.0) == [[0, 0, 0], [0, 0, 0]] == drawn(0, low=2.0, high=1.0)
    ones = [drawn(seed, low=0.0, high=9.0) for seed in range(30)]
    assert all(sum(map(sum, each)) == 1 for each in ones) and len({str(each) for each in ones}) == 3
    assert drawn(3, low=0.0) == drawn(3, low=0.0)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (2, 3)])
def test_where_no_token_counts_none_is_chosen(shape: tuple[int, int]) -> None:
    old, gain, mask = LogProbs(torch.full(shape, math.nan)), Advantages(torch.ones(shape[0])), Mask(torch.zeros(shape))
    ids = Responses.of(
        {
            "group": Group(torch.arange(shape[0])),
            "sample": Sample(torch.arange(shape[0])),
            "trajectory": Trajectory(torch.arange(shape[0])),
        }
    )
    for chosen in (top_covariance(old, gain, mask), high_covariance(old, gain, mask, ids=ids, low=-9.0)):
        assert chosen.data.shape == shape and not chosen.data.any()
        assert [(each.total, each.count) for each in chosen.measures] == [(0, 0), (0, 0)]


def test_chosen_tokens_give_no_gradient_and_are_counted_and_a_penalty_pulls_them_back() -> None:
    old, mask, gain = LogProbs(torch.zeros(1, 2)), Mask(torch.ones(1, 2)), Advantages(torch.tensor([1.0]))
    chosen = Chosen(torch.tensor([[1.0, 0.0]]))
    for make, slopes in (
        (lambda new: clip_cov_loss(new, gain, mask, old=old, chosen=chosen), [0.0, -math.exp(0.1) / 2]),
        (lambda new: kl_cov_loss(new, gain, mask, old=old, chosen=chosen, weight=3.0), [(3 - math.exp(0.1)) / 2] * 1),
    ):
        new = torch.full((1, 2), 0.1, requires_grad=True)
        loss = make(LogProbs(new))
        loss.total([term.counts() for term in loss.terms]).backward()
        assert new.grad is not None
        assert new.grad[0, : len(slopes)].tolist() == pytest.approx(slopes)


# ------------------------------------------------------------------------------------------- in a flow


@flow
def clip_cov(prompts: Prompts, policy: Policy) -> Policy:
    rollout = generate(policy, prompts, n=8, max_tokens=4)
    advantages = group_normalize(score(rollout, by="partial"), rollout.group)
    chosen = high_covariance(rollout.logprobs, advantages, rollout.mask, ids=rollout, low=0.0, fraction=0.5)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        return clip_cov_loss(new, advantages, rollout.mask, old=rollout.logprobs, chosen=chosen)

    return update(policy, loss, lr=1e-3)


@flow
def kl_cov(prompts: Prompts, policy: Policy) -> Policy:
    rollout = generate(policy, prompts, n=8, max_tokens=4)
    advantages = group_normalize(score(rollout, by="partial"), rollout.group)
    chosen = top_covariance(rollout.logprobs, advantages, rollout.mask, fraction=0.1)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        return kl_cov_loss(new, advantages, rollout.mask, old=rollout.logprobs, chosen=chosen)

    return update(policy, loss, lr=1e-3)


@pytest.mark.parametrize("of", [clip_cov, kl_cov])
def test_tokens_are_chosen_from_the_whole_batch_once_however_the_update_cuts_it(
    of: Any, tiny: Callable[..., LocalModel], digit_rows: pa.Table, alone: Any
) -> None:
    told = []
    for tokens in (16384, 9):
        graph = compile_graph(of.graph())
        graph = with_setting(graph, tokens)
        program, executor = alone(graph, {"policy": tiny(trainable=True)})
        told.append(executor.run(program, {"prompts": PromptSource(digit_rows, 4)}, Key(2, 0)).observed.means())
    whole, cut = told
    name = next(each for each in whole if each.endswith("chosen_fraction"))
    assert 0 < whole[name] == cut[name] <= 0.5
    assert cut["policy.update.loss"] == pytest.approx(whole["policy.update.loss"], abs=1e-5)
    if of is clip_cov:  # the penalty's slope is a sign, at first of the rounding that differs with the cut
        assert cut["policy.update.grad_norm"] == pytest.approx(whole["policy.update.grad_norm"], rel=1e-3)


def with_setting(graph: Any, tokens: int) -> Any:
    from flowgraph.flows.settings import resolve_settings

    return resolve_settings(graph, [], {"policy.update.micro_batch_tokens": tokens})[0]


def test_the_choice_cannot_stand_in_a_loss_which_sees_a_few_rows_at_a_time() -> None:
    @flow
    def inside(prompts: Prompts, policy: Policy) -> Policy:
        rollout = generate(policy, prompts)
        advantages = group_normalize(score(rollout), rollout.group)

        def loss(pi: Policy) -> Loss:
            new = logprobs(pi, rollout)
            chosen = top_covariance(new, advantages, rollout.mask)
            kept = clip_cov_loss(new, advantages, rollout.mask, old=rollout.logprobs, chosen=chosen)
            return kept + clipped(new, advantages, rollout.mask, old=rollout.logprobs)

        return update(policy, loss)

    with pytest.raises(LawError, match="top_covariance reads all rows together"):
        inside.graph()
