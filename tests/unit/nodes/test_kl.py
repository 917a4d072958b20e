"""KL by hand: the estimators, what a controller does at its edges, and a weight that is carried from step to step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
import torch

from flowgraph import Key, Loss, Mask, Value, flow
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import SettingError
from flowgraph.passes import compile_graph
from nodes import LogProbs, Policy, Prompts, Reference, clipped, generate, group_normalize, logprobs, score, update
from nodes.data.source import PromptSource
from nodes.kl import adaptive_kl, kl_abs, kl_estimate, kl_k1, kl_k2, kl_k3, weighted
from nodes.values import KLWeight, TokenKL

TARGET = 0.01
ONES = Mask(torch.ones(1, 3))
REF = LogProbs(torch.zeros(1, 3))


def values_of(loss: Loss) -> list[float]:
    values = loss.terms[0].values
    assert values is not None
    return values.flatten().tolist()


def gradient_of(make: Callable[[LogProbs], Loss], at: list[float]) -> list[float]:
    new = torch.tensor([at], requires_grad=True)
    loss = make(LogProbs(new))
    loss.total([term.counts() for term in loss.terms]).backward()
    assert new.grad is not None
    return (new.grad * len(at)).flatten().tolist()


@pytest.mark.parametrize(
    ("make", "wanted", "slopes"),
    [
        (kl_k1, [1.0, -1.0, 0.0], [1.0, 1.0, 1.0]),
        (kl_k2, [0.5, 0.5, 0.0], [1.0, -1.0, 0.0]),
        (kl_k3, [math.exp(-1), math.e - 2, 0.0], [1 - math.exp(-1), 1 - math.e, 0.0]),
        (kl_abs, [1.0, 1.0, 0.0], [1.0, -1.0, 0.0]),
    ],
)
def test_the_estimators_by_hand(make: Any, wanted: list[float], slopes: list[float]) -> None:
    at = [1.0, -1.0, 0.0]
    assert values_of(make(LogProbs(torch.tensor([at])), ONES, ref=REF)) == pytest.approx(wanted, abs=1e-6)
    assert gradient_of(lambda new: make(new, ONES, ref=REF), at) == pytest.approx(slopes, abs=1e-6)


@pytest.mark.parametrize("make", [kl_k1, kl_k3, kl_abs])
def test_straight_through_keeps_the_value_and_takes_the_gradient_of_k2(make: Any) -> None:
    at = [1.0, -3.0, 25.0]
    new = LogProbs(torch.tensor([at]))
    plain, straight = (make(new, ONES, ref=REF, straight_through=each) for each in (False, True))
    assert values_of(straight) == values_of(plain) and straight.measures == plain.measures
    assert gradient_of(lambda new: make(new, ONES, ref=REF, straight_through=True), at) == pytest.approx(at)


def test_the_estimate_for_a_reward_is_zero_where_masked_and_its_metric_is_a_mean_over_rows() -> None:
    mask = Mask(torch.tensor([[1.0, 1, 0], [1, 0, 0], [0, 0, 0]]))
    old = LogProbs(torch.tensor([[1.0, 3, math.nan], [5, 9, 9], [9, math.inf, 9]], requires_grad=True))
    kl = kl_estimate(old, mask, ref=LogProbs(torch.zeros(3, 3)))
    assert kl.data.tolist() == [[1, 3, 0], [5, 0, 0], [0, 0, 0]] and not kl.data.requires_grad
    assert [(each.name, each.total, each.count) for each in kl.measures] == [("kl", 7.0, 2.0)]


def follow(beta: float, per_token: float, rows: int = 100, masked: int = 0, **settings: Any) -> float:
    mask = torch.ones(rows + masked, 2)
    mask[rows:] = 0
    kl = torch.full_like(mask, per_token).masked_fill(mask == 0, math.nan)
    after = adaptive_kl(KLWeight(beta), TokenKL(kl), Mask(mask), **settings)
    assert [(each.name, each.total, each.count) for each in after.measures] == [("kl_weight", after.data, 1)]
    number: float = after.data
    return number


def test_the_weight_grows_where_kl_is_over_its_target_and_shrinks_where_it_is_under() -> None:
    assert follow(0.5, 0.11) == pytest.approx(0.5 * (1 + 0.1 * 100 / 10000))
    assert follow(0.5, 0.095) == pytest.approx(0.5 * (1 - 0.05 * 100 / 10000))
    assert follow(0.5, 0.1) == pytest.approx(0.5)
    assert follow(0.5, 50.0) == pytest.approx(0.5 * 1.002) and follow(0.5, -50.0) == pytest.approx(0.5 * 0.998)
    assert follow(0.5, 0.3, target=0.25, horizon=1000) == pytest.approx(0.5 * (1 + 0.2 * 100 / 1000))


def test_rows_without_a_token_change_nothing_and_a_batch_of_none_leaves_the_weight() -> None:
    assert follow(0.5, 0.11, masked=40) == follow(0.5, 0.11)
    assert follow(0.5, 0.11, rows=0, masked=3) == 0.5 == follow(0.5, 0.11, rows=0)


def test_a_horizon_that_could_turn_the_weight_negative_is_refused() -> None:
    assert follow(1.0, 0.0, horizon=21) == pytest.approx(1 - 20 / 21)
    with pytest.raises(SettingError, match="horizon=20: a step of 100 rows could take the weight to 0 or below"):
        follow(1.0, 0.0, horizon=20)
    with pytest.raises(SettingError, match=r"adaptive_kl\.target=0\.0"):
        follow(1.0, 0.0, target=0.0)


def test_a_weighted_loss_has_the_weight_as_its_factor_and_reports_what_it_was_given() -> None:
    loss = kl_k2(LogProbs(torch.ones(1, 3)), ONES, ref=REF)
    scaled = weighted(loss, KLWeight(0.25))
    assert [term.weight for term in scaled.terms] == [0.25] and scaled.measures == loss.measures


# ------------------------------------------------------------------------------------------- carried


@flow
def adapting(prompts: Prompts, policy: Policy, ref: Reference, beta: KLWeight) -> tuple[Policy, KLWeight]:
    """Train with a KL term whose weight follows the KL."""
    rollout = generate(policy, prompts, n=8, max_tokens=4)
    advantages = group_normalize(score(rollout, by="partial"), rollout.group)
    ref_logprobs = logprobs(ref, rollout)
    kl = kl_estimate(rollout.logprobs, rollout.mask, ref=ref_logprobs, estimator="k3")

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        surrogate = clipped(new, advantages, rollout.mask, old=rollout.logprobs)
        return surrogate + weighted(kl_k3(new, rollout.mask, ref=ref_logprobs), beta)

    return update(policy, loss, lr=1e-2), adaptive_kl(beta, kl, rollout.mask, target=TARGET, horizon=100)


@dataclass(frozen=True)
class Constant:
    """A source that gives the same every step."""

    value: Value

    def batch(self, step: int) -> Value:
        return self.value


def test_a_weight_is_carried_from_step_to_step_and_scales_the_loss_of_the_next(
    tiny: Callable[..., LocalModel], digit_rows: pa.Table, alone: Any
) -> None:
    graph = compile_graph(adapting.graph())
    assert graph.carries() == {"policy": 0, "beta": 1}
    told = {}
    for start in (0.0, 0.5):
        ref = tiny()
        with torch.no_grad():
            ref.model.lm_head.weight.mul_(1.5)
        program, executor = alone(graph, {"policy": tiny(trainable=True), "ref": ref})
        sources = {"prompts": PromptSource(digit_rows, 3), "beta": Constant(KLWeight(start))}
        told[start] = [executor.run(program, sources, Key(3, step)).observed.means() for step in range(2)]
    weight, rows = 0.5, 3 * 8
    for each in told[0.5]:
        error = min(max(each["kl_estimate.kl"] / TARGET - 1, -0.2), 0.2)
        weight *= 1 + error * rows / 100
        assert each["adaptive_kl.kl_weight"] == pytest.approx(weight) and error != 0
    assert executor.carried["beta"].value.data == pytest.approx(weight)
    with_kl, without = (told[start][0]["policy.update.loss"] for start in (0.5, 0.0))
    assert with_kl - without == pytest.approx(0.5 * told[0.5][0]["policy.update.kl_k3.kl"], rel=1e-4)
