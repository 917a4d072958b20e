"""Every formula against a second writing of it: numpy, float64, loops; values, gradients and metrics."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowgraph import Aggregation, Loss
from flowgraph.values import Group, Mask
from nodes import (
    Advantages,
    Entropy,
    LogProbs,
    Scores,
    TokenAdvantages,
    clipped,
    entropy_bonus,
    gpg_advantages,
    group_normalize,
    kl_k3,
    policy_gradient,
)

Array = np.ndarray


# ------------------------------------------------------------------------------------------- advantages


@st.composite
def scored(draw: st.DrawFn) -> tuple[list[float], list[int]]:
    """Draw scores in uneven groups whose rows lie anywhere; often equal, often 0."""
    rows = draw(st.integers(1, 24))
    number = st.sampled_from([0.0, 0.0, 1.0, 0.1, -1.0]) | st.floats(-100, 100, width=32)
    scores = draw(st.lists(number, min_size=rows, max_size=rows))
    return scores, draw(st.lists(st.integers(0, 6), min_size=rows, max_size=rows))


def loops(scores: list[float], groups: list[int]) -> tuple[list[float], list[float]]:
    """Give each row's score minus its group's mean, and its group's sample deviation."""
    centred, deviations = [], []
    for score, group in zip(scores, groups, strict=True):
        inside = [other for other, its in zip(scores, groups, strict=True) if its == group]
        mean = math.fsum(inside) / len(inside) if len(inside) > 1 else 0.0
        squares = math.fsum((other - mean) ** 2 for other in inside)
        flat = len(inside) > 1 and len(set(inside)) == 1
        centred.append(0.0 if flat else score - mean)
        deviations.append(math.sqrt(squares / (len(inside) - 1)) if len(inside) > 1 else 1.0)
    return centred, deviations


@given(scored(), st.sampled_from([1e-6, 1e-3, 1.0]))
def test_group_normalisation(drawn: tuple[list[float], list[int]], eps: float) -> None:
    scores, groups = drawn
    centred, deviations = loops(scores, groups)
    values = Scores(torch.tensor(scores, dtype=torch.float64)), Group(torch.tensor(groups))
    wanted = [c / (d + eps) for c, d in zip(centred, deviations, strict=True)]
    assert group_normalize(*values, eps=eps).data.tolist() == pytest.approx(wanted, abs=1e-6, rel=1e-6)
    assert group_normalize(*values, deviation=False).data.tolist() == pytest.approx(centred, abs=1e-6, rel=1e-6)


@given(scored())
def test_gpg_advantages(drawn: tuple[list[float], list[int]]) -> None:
    scores, groups = drawn
    alpha = len(scores) / max(1, sum(score != 0 for score in scores))
    wanted = [alpha * each for each in loops(scores, groups)[0]]
    got = gpg_advantages(Scores(torch.tensor(scores, dtype=torch.float64)), Group(torch.tensor(groups)))
    assert got.data.tolist() == pytest.approx(wanted, abs=1e-6, rel=1e-6)


# ------------------------------------------------------------------------------------------- losses


@dataclass(frozen=True)
class Batch:
    """A ragged batch, NaN wherever the mask is 0."""

    new: Array
    old: Array
    gain: Array
    mask: Array


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Draw log-probs near and far from each other, advantages a row or a token, and masks with holes."""
    rows, tokens = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    mask = (random.random((rows, tokens)) < draw(st.sampled_from([0.0, 0.4, 0.8, 1.0]))).astype(float)
    scale = draw(st.sampled_from([0.01, 0.3, 3.0, 30.0]))
    old = random.uniform(-5, 0, mask.shape)
    gain = random.normal(size=(rows, 1) if draw(st.booleans()) else mask.shape)
    spoil = np.where(mask == 0, np.nan, 0.0)
    return Batch(old + random.normal(0, scale, mask.shape) + spoil, old + spoil, gain, mask)


Scalar = Callable[[float, float, float], tuple[float, float]]
"""From new, old and advantage of one token: the term, and its derivative by new."""


def surrogate(eps: float, eps_high: float | None) -> Scalar:
    high = 1 + (eps if eps_high is None else eps_high)

    def term(new: float, old: float, gain: float) -> tuple[float, float]:
        difference = min(max(new - old, -20.0), 20.0)
        ratio = math.exp(difference)
        slope = ratio if abs(new - old) < 20 else 0.0
        plain, bounded = -gain * ratio, -gain * min(max(ratio, 1 - eps), high)
        return (bounded, 0.0) if bounded > plain else (plain, -gain * slope)

    return term


def plain_gradient(new: float, old: float, gain: float) -> tuple[float, float]:
    return -gain * new, -gain


def k3(new: float, old: float, gain: float) -> tuple[float, float]:
    difference = min(max(old - new, -20.0), 20.0)
    estimate = math.expm1(difference) - difference
    inside = abs(old - new) < 20 and estimate < 10
    return min(estimate, 10.0), -math.expm1(difference) if inside else 0.0


def minus(new: float, old: float, gain: float) -> tuple[float, float]:
    return -new, -1.0


def by_loops(term: Scalar, batch: Batch, how: Aggregation) -> tuple[float, Array]:
    """Give the loss and its gradient by the log-probs."""
    kept = [int((row != 0).sum()) for row in batch.mask]
    tokens, rows = max(1, sum(kept)), max(1, sum(count > 0 for count in kept))
    total, gradient = 0.0, np.zeros(batch.mask.shape)
    for i, t in np.argwhere(batch.mask):
        divisor = {"token-mean": tokens, "sequence-mean": kept[i] * rows, "sequence-sum": rows}[how.value]
        value, slope = term(batch.new[i, t], batch.old[i, t], batch.gain[i, t if batch.gain.shape[1] > 1 else 0])
        total, gradient[i, t] = total + value / divisor, slope / divisor
    return total, gradient


def check(make: Callable[[LogProbs], Loss], term: Scalar, batch: Batch, how: Aggregation) -> Loss:
    new = torch.tensor(batch.new, requires_grad=True)
    loss = make(LogProbs(new))
    total = loss.total([each.counts() for each in loss.terms])
    total.backward()
    value, gradient = by_loops(term, batch, how)
    assert float(total.detach()) == pytest.approx(value, abs=1e-6, rel=1e-6)
    assert new.grad is not None
    np.testing.assert_allclose(new.grad.numpy(), gradient, rtol=1e-6, atol=1e-6)
    return loss


def advantages(batch: Batch) -> Advantages:
    gain = torch.tensor(batch.gain)
    return Advantages(gain[:, 0]) if gain.shape[1] == 1 else TokenAdvantages(gain)


def mean(loss: Loss, name: str) -> float:
    (found,) = [each for each in loss.measures if each.name == name]
    return found.total / max(1, found.count)


how = st.sampled_from(list(Aggregation))
bounds = st.sampled_from([(0.2, None), (0.2, 0.28), (0.01, 3.0)])


@given(batches(), how, bounds)
def test_the_clipped_surrogate(batch: Batch, how: Aggregation, bounds: tuple[float, float | None]) -> None:
    eps, high = bounds
    mask, old = Mask(torch.tensor(batch.mask)), LogProbs(torch.tensor(batch.old))

    def make(new: LogProbs) -> Loss:
        return clipped(new, advantages(batch), mask, old=old, eps=eps, eps_high=high, aggregation=how)

    loss = check(make, surrogate(eps, high), batch, how)
    places = [tuple(place) for place in np.argwhere(batch.mask)]
    apart = [min(max(batch.old[p] - batch.new[p], -20), 20) for p in places]
    assert mean(loss, "approx_kl") == pytest.approx(sum(apart) / max(1, len(apart)), abs=1e-6, rel=1e-6)
    over = 0
    for (i, t), difference in zip(places, apart, strict=True):
        gain, ratio = batch.gain[i, t if batch.gain.shape[1] > 1 else 0], math.exp(-difference)
        over += -gain * min(max(ratio, 1 - eps), 1 + (high or eps)) > -gain * ratio
    assert mean(loss, "clip_fraction") * max(1, len(places)) == pytest.approx(over)


@given(batches(), how)
def test_the_policy_gradient(batch: Batch, how: Aggregation) -> None:
    mask = Mask(torch.tensor(batch.mask))
    check(lambda new: policy_gradient(new, advantages(batch), mask, aggregation=how), plain_gradient, batch, how)


@given(batches(), how)
def test_the_k3_estimate_of_kl(batch: Batch, how: Aggregation) -> None:
    mask, ref = Mask(torch.tensor(batch.mask)), LogProbs(torch.tensor(batch.old))
    loss = check(lambda new: kl_k3(new, mask, ref=ref, aggregation=how), k3, batch, how)
    values = [k3(batch.new[tuple(p)], batch.old[tuple(p)], 0)[0] for p in np.argwhere(batch.mask)]
    assert mean(loss, "kl") == pytest.approx(sum(values) / max(1, len(values)), abs=1e-6, rel=1e-6)


@given(batches(), how)
def test_the_entropy_bonus(batch: Batch, how: Aggregation) -> None:
    mask = Mask(torch.tensor(batch.mask))
    loss = check(lambda new: entropy_bonus(Entropy(new.data), mask, aggregation=how), minus, batch, how)
    values = [batch.new[tuple(p)] for p in np.argwhere(batch.mask)]
    assert mean(loss, "policy_entropy") == pytest.approx(sum(values) / max(1, len(values)), abs=1e-6, rel=1e-6)
