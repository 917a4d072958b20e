"""Every loss against a second writing of it, from the papers: float64, loops, gradients by hand; and what cuts change.

A formula here gives one token's term and the slope of what it adds to the loss by that token's log-prob.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flowgraph import Loss, Mask
from flowgraph.language import Aggregation
from flowgraph.language.loss import Counts
from nodes.losses import cispo_loss, clipped, cross_entropy, dppo_loss, entropy_bonus, policy_gradient, value_loss
from nodes.losses.covariance import clip_cov_loss, kl_cov_loss
from nodes.losses.sequence import gmpo_loss, gspo_loss, sapo_loss
from nodes.values import Advantages, Chosen, Entropy, ImportanceWeights, LogProbs, Returns, TokenAdvantages, Values
from tests.parity.formulas.batches import Array, Batch, batches, leaf

Slope = tuple[float, float]
How = Aggregation | float


@dataclass(frozen=True)
class Case:
    """What a loss reads, [B, T] each, NaN wherever the mask is 0; `gain` is [B, 1] where it is a row's."""

    new: Array
    old: Array
    gain: Array
    weight: Array
    chosen: Array
    mask: Array

    def gain_at(self, i: int, t: int) -> float:
        return float(self.gain[i, t if self.gain.shape[1] > 1 else 0])

    def kept(self, i: int) -> list[int]:
        return [t for t in range(self.mask.shape[1]) if self.mask[i, t]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw log-probs near and far from each other, and advantages and weights that are 0 at times."""
    batch: Batch = draw(batches())
    scale = draw(st.sampled_from([1e-3, 0.3, 3.0, 30.0]))
    old = batch.column("old", -5.0 - scale, 0.0)
    new = np.minimum(old + scale * batch.column("apart", -1, 1), batch.column("certain", -0.01, 0.0))
    gain = batch.column("gain") * (batch.column("some", 0, 1) > 0.1)
    if draw(st.booleans()):
        gain = np.where(batch.mask.any(1), batch.row("gain"), np.nan)[:, None]
    weight = batch.column("weight", 0.0, 3.0) * (batch.column("zero", 0, 1) > draw(st.sampled_from([0.0, 0.1])))
    chosen = np.where(batch.mask > 0, batch.column("chosen", 0, 1) < 0.3, np.nan)
    return Case(new, old, gain, weight, chosen, batch.mask)


Formula = Callable[[Case, int, int], Slope]


def ratio_of(case: Case, i: int, t: int) -> tuple[float, float]:
    """Return the ratio of one token, its log held within 20, and its slope by the log-prob."""
    apart = case.new[i, t] - case.old[i, t]
    ratio = math.exp(min(max(apart, -20.0), 20.0))
    return ratio, ratio if abs(apart) < 20 else 0.0


def ppo(eps: float, high: float | None, dual: float | None, case: Case, i: int, t: int) -> Slope:
    (ratio, slope), gain = ratio_of(case, i, t), case.gain_at(i, t)
    inside = min(max(ratio, 1 - eps), 1 + (eps if high is None else high))
    value, slope = (-gain * inside, 0.0) if -gain * inside > -gain * ratio else (-gain * ratio, -gain * slope)
    if dual is not None and gain < 0 and value > -gain * dual:
        return -gain * dual, 0.0
    return value, slope


def reinforce(case: Case, i: int, t: int) -> Slope:
    return -case.gain_at(i, t) * case.new[i, t], -case.gain_at(i, t)


def cispo(eps: float, high: float, case: Case, i: int, t: int) -> Slope:
    held = min(max(ratio_of(case, i, t)[0], 1 - eps), 1 + high)
    return -held * case.gain_at(i, t) * case.new[i, t], -held * case.gain_at(i, t)


def dppo(divergence: str, eps: float, case: Case, i: int, t: int) -> Slope:
    gain, after, before = case.gain_at(i, t), math.exp(case.new[i, t]), math.exp(case.old[i, t])
    far = abs(after - before)
    if divergence == "kl":
        rest = math.log(max(1 - before, 1e-8)) - math.log(max(1 - after, 1e-8))
        far = before * (case.old[i, t] - case.new[i, t]) + (1 - before) * rest
    away = after > before if gain > 0 else after < before
    ratio = 0.0 if away and far > eps else min(ratio_of(case, i, t)[0], 20.0)
    return -gain * ratio * case.new[i, t], -gain * ratio


def gspo(eps: float, high: float, case: Case, i: int, t: int) -> Slope:
    """The response's ratio is the length-th root of its likelihood ratio; each token passes on 1/length of it."""
    apart = sum(case.new[i, u] - case.old[i, u] for u in case.kept(i)) / len(case.kept(i))
    ratio, gain = math.exp(min(apart, 10.0)), case.gain_at(i, t)
    inside = min(max(ratio, 1 - eps), 1 + high)
    if -gain * inside > -gain * ratio:
        return -gain * inside, 0.0
    return -gain * ratio, -gain * ratio if apart < 10 else 0.0


def gmpo(eps: float, high: float, case: Case, i: int, t: int) -> Slope:
    """A row's value stands at each of its tokens: the slope of the whole row is spread as the row's mean is taken."""
    logs, moves = [], []
    for u in case.kept(i):
        apart, gain = case.new[i, u] - case.old[i, u], case.gain_at(i, u)
        held = min(apart, high, 20.0) if gain > 0 else max(apart, -eps, -20.0)
        held = min(max(held, -20.0), 20.0) if gain else 0.0
        logs.append(held)
        moves.append((u, gain != 0 and held == apart))
    mean = sum(case.gain_at(i, u) for u in case.kept(i)) / len(logs)
    row = -mean * math.exp(sum(logs) / len(logs))
    return row, row if dict(moves)[t] else 0.0


def sapo(up: float, down: float, case: Case, i: int, t: int) -> Slope:
    (ratio, slope), gain = ratio_of(case, i, t), case.gain_at(i, t)
    tau = up if gain > 0 else down
    gate = 1 / (1 + math.exp(-tau * (ratio - 1))) if tau * (ratio - 1) > -700 else 0.0
    return -gain * gate * 4 / tau, -gain * 4 * gate * (1 - gate) * slope


def clip_cov(case: Case, i: int, t: int) -> Slope:
    return (0.0, 0.0) if case.chosen[i, t] else ppo(0.2, None, None, case, i, t)


def kl_cov(weight: float, case: Case, i: int, t: int) -> Slope:
    (ratio, slope), gain = ratio_of(case, i, t), case.gain_at(i, t)
    apart = case.new[i, t] - case.old[i, t]
    more = weight * case.chosen[i, t]
    return -gain * ratio + more * abs(apart), -gain * slope + more * np.sign(apart)


def value(clip: float | None, case: Case, i: int, t: int) -> Slope:
    """The weight stands for the return; where both squares are equal at a clip there is no gradient to compare."""
    target, new, old = case.weight[i, t], case.new[i, t], case.old[i, t]
    inside = new if clip is None else old + min(max(new - old, -clip), clip)
    if clip is not None and abs(new - old) > clip * (1 - 1e-9):
        assume(abs((inside - target) ** 2 - (new - target) ** 2) > 1e-12)
    if (inside - target) ** 2 > (new - target) ** 2:
        return (inside - target) ** 2 / 2, 0.0
    return (new - target) ** 2 / 2, new - target


def minus(case: Case, i: int, t: int) -> Slope:
    return -case.new[i, t], -1.0


def weighing(formula: Formula, case: Case, i: int, t: int) -> Slope:
    value, slope = formula(case, i, t)
    return value * case.weight[i, t], slope * case.weight[i, t]


def weighing_rows(formula: Formula, case: Case, i: int, t: int) -> Slope:
    value, slope = formula(case, i, t)
    factor = math.prod(case.weight[i, u] for u in case.kept(i)) ** (1 / len(case.kept(i)))
    return value * factor, slope * factor


Make = Callable[[LogProbs, Case, How], Loss]
MEAN = Aggregation.SEQUENCE_MEAN


def advantages(case: Case) -> Advantages:
    gain = torch.from_numpy(case.gain)
    return Advantages(gain[:, 0]) if gain.shape[1] == 1 else TokenAdvantages(gain)


def made(
    node: Any, *, weights: bool = False, chosen: bool = False, old: bool = True, rows: bool = False, **settings: Any
) -> Make:
    """Return a function that calls a policy loss on a case; `rows` for those that take no aggregation."""

    def make(new: LogProbs, case: Case, how: How) -> Loss:
        given: dict[str, Any] = {} if rows else {"aggregation": how}
        given |= {"old": LogProbs(torch.from_numpy(case.old))} if old else {}
        given |= {"weights": ImportanceWeights(torch.from_numpy(case.weight))} if weights else {}
        given |= {"chosen": Chosen(torch.from_numpy(case.chosen))} if chosen else {}
        return node(new, advantages(case), masks(case), **given, **settings)  # type: ignore[no-any-return]

    return make


def masks(case: Case) -> Mask:
    return Mask(torch.from_numpy(case.mask))


def valued(clip: float | None) -> Make:
    def make(new: LogProbs, case: Case, how: How) -> Loss:
        old, returns = Values(torch.from_numpy(case.old)), Returns(torch.from_numpy(case.weight))
        return value_loss(Values(new.data), returns, masks(case), old=old, clip=clip, aggregation=how)

    return make


@dataclass(frozen=True)
class Written:
    """A loss written twice; `rows`: it is a mean over rows of token means, and takes no aggregation."""

    make: Make
    formula: Formula
    rows: bool = False
    linear: bool = True  # in the advantages


TWICE: dict[str, Written] = {
    "clipped": Written(made(clipped), partial(ppo, 0.2, None, None)),
    "clipped higher": Written(made(clipped, eps_high=0.28), partial(ppo, 0.2, 0.28, None)),
    "clipped twice": Written(made(clipped, eps=0.1, dual=3.0), partial(ppo, 0.1, None, 3.0)),
    "clipped, weighed": Written(made(clipped, weights=True, dual=1.5), partial(weighing, partial(ppo, 0.2, None, 1.5))),
    "policy gradient": Written(made(policy_gradient, old=False), reinforce),
    "policy gradient, weighed": Written(made(policy_gradient, old=False, weights=True), partial(weighing, reinforce)),
    "cispo": Written(made(cispo_loss), partial(cispo, 1.0, 0.2)),
    "cispo, both bounds, weighed": Written(
        made(cispo_loss, eps=0.3, eps_high=0.5, weights=True), partial(weighing, partial(cispo, 0.3, 0.5))
    ),
    "dppo tv": Written(made(dppo_loss), partial(dppo, "tv", 0.15)),
    "dppo kl": Written(made(dppo_loss, divergence="kl", eps=0.05), partial(dppo, "kl", 0.05)),
    "dppo, weighed": Written(made(dppo_loss, weights=True), partial(weighing, partial(dppo, "tv", 0.15))),
    "gspo": Written(made(gspo_loss, rows=True), partial(gspo, 3e-4, 4e-4), rows=True),
    "gspo, wide, weighed": Written(
        made(gspo_loss, rows=True, eps=0.9, eps_high=3.0, weights=True),
        partial(weighing, partial(gspo, 0.9, 3.0)),
        rows=True,
    ),
    "gmpo": Written(made(gmpo_loss, rows=True), partial(gmpo, 0.4, 0.4), rows=True),
    "gmpo, wide": Written(made(gmpo_loss, rows=True, eps=25.0, eps_high=2.0), partial(gmpo, 25.0, 2.0), rows=True),
    "gmpo, weighed": Written(
        made(gmpo_loss, rows=True, weights=True), partial(weighing_rows, partial(gmpo, 0.4, 0.4)), rows=True
    ),
    "sapo": Written(made(sapo_loss, rows=True), partial(sapo, 1.0, 1.05), rows=True),
    "sapo, weighed": Written(
        made(sapo_loss, rows=True, tau_pos=0.5, tau_neg=2.0, weights=True),
        partial(weighing, partial(sapo, 0.5, 2.0)),
        rows=True,
    ),
    "clip_cov": Written(made(clip_cov_loss, chosen=True), clip_cov),
    "clip_cov, weighed": Written(made(clip_cov_loss, chosen=True, weights=True), partial(weighing, clip_cov)),
    "kl_cov": Written(made(kl_cov_loss, chosen=True), partial(kl_cov, 1.0), linear=False),
    "kl_cov, weighed": Written(
        made(kl_cov_loss, chosen=True, weight=0.3, weights=True), partial(weighing, partial(kl_cov, 0.3)), linear=False
    ),
    "value": Written(valued(0.2), partial(value, 0.2), linear=False),
    "value, not clipped": Written(valued(None), partial(value, None), linear=False),
    "cross entropy": Written(
        lambda new, case, how: cross_entropy(new, masks(case), aggregation=how), minus, linear=False
    ),
    "entropy": Written(
        lambda new, case, how: entropy_bonus(Entropy(new.data), masks(case), aggregation=how), minus, linear=False
    ),
}


def by_loops(written: Written, case: Case, how: How) -> tuple[float, Array]:
    """Return the loss and its gradient by the log-probs."""
    rows = [i for i in range(len(case.mask)) if case.kept(i)]
    tokens = sum(len(case.kept(i)) for i in rows)
    total, gradient = 0.0, np.zeros(case.mask.shape)
    for i in rows:
        for t in case.kept(i):
            term, slope = written.formula(case, i, t)
            divisor = len(rows) * how if isinstance(how, float) else len(rows)
            divisor = {"token-mean": tokens, "sequence-mean": len(case.kept(i)) * len(rows)}.get(str(how), divisor)
            total, gradient[i, t] = total + term / divisor, slope / divisor
    return total, gradient


def run(written: Written, case: Case, how: How, counts: list[Counts] | None = None) -> tuple[float, Array, Loss]:
    """Return the node's loss, its gradient by the log-probs, and what it returned."""
    new = leaf(case.new)
    loss = written.make(LogProbs(new), case, how)
    total = loss.total(counts or [each.counts() for each in loss.terms])
    total.backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    return float(total.detach()), new.grad.numpy(), loss


def near(one: Any, other: Any) -> None:
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


ways = st.sampled_from([*Aggregation, 7.0])
each_loss = pytest.mark.parametrize("name", TWICE)
few = settings(max_examples=15)  # of each of many losses


@each_loss
@given(case=cases(), how=ways)
def test_a_loss_and_its_gradient_are_those_of_the_formula(name: str, case: Case, how: How) -> None:
    written = TWICE[name]
    how = MEAN if written.rows else how
    value, gradient, loss = run(written, case, how)
    wanted, slopes = by_loops(written, case, how)
    near(value, wanted)
    near(gradient, slopes)
    assert [term.aggregation for term in loss.terms] == [how]


@each_loss
@few
@given(case=cases(), how=ways, seed=st.integers(0, 99))
def test_a_loss_is_the_sum_over_any_cut_of_its_rows_in_any_order(name: str, case: Case, how: How, seed: int) -> None:
    written, random = TWICE[name], np.random.default_rng(seed)
    whole, gradient, loss = run(written, case, how)
    order = random.permutation(len(case.mask))
    parts = np.split(order, sorted(random.integers(0, len(order) + 1, 2)))  # some may be empty
    counts = [each.counts() for each in loss.terms]
    results = [run(written, cut(case, rows), how, counts) for rows in parts]
    near(sum(total for total, _, _ in results), whole)
    near(np.concatenate([slopes for _, slopes, _ in results]), gradient[order])
    for k, measure in enumerate(loss.measures):
        near(sum(part.measures[k].total for _, _, part in results), measure.total)
        near(sum(part.measures[k].count for _, _, part in results), measure.count)


def cut(case: Case, rows: Array) -> Case:
    columns = (case.new, case.old, case.gain, case.weight, case.chosen, case.mask)
    return Case(*(column[rows] for column in columns))


@each_loss
@few
@given(case=cases(), how=ways, columns=st.integers(1, 3))
def test_columns_of_padding_change_nothing(name: str, case: Case, how: How, columns: int) -> None:
    written = TWICE[name]
    plain, gradient, loss = run(written, case, how)
    after, slopes, padded = run(written, pad(case, columns), how)
    near(after, plain)
    near(slopes, np.pad(gradient, ((0, 0), (0, columns))))
    for one, other in zip(loss.measures, padded.measures, strict=True):
        near((one.total, one.count), (other.total, other.count))


def pad(case: Case, columns: int) -> Case:
    wide = [np.pad(each, ((0, 0), (0, columns)), constant_values=np.nan) for each in (case.new, case.old)]
    gain = case.gain if case.gain.shape[1] == 1 else np.pad(case.gain, ((0, 0), (0, columns)), constant_values=np.nan)
    rest = [np.pad(each, ((0, 0), (0, columns)), constant_values=np.nan) for each in (case.weight, case.chosen)]
    return Case(*wide, gain, *rest, np.pad(case.mask, ((0, 0), (0, columns))))


@pytest.mark.parametrize("name", [name for name, written in TWICE.items() if written.linear])
@few
@given(case=cases(), how=ways, factor=st.sampled_from([0.0, 1e-3, 2.0, 50.0]))
def test_scaling_advantages_scales_the_surrogate(name: str, case: Case, how: How, factor: float) -> None:
    written = TWICE[name]
    plain, gradient, _ = run(written, case, how)
    scaled = Case(case.new, case.old, case.gain * factor, case.weight, case.chosen, case.mask)
    after, slopes, _ = run(written, scaled, how)
    np.testing.assert_allclose(after, factor * plain, rtol=1e-9, atol=1e-9 * (1 + abs(plain)))
    np.testing.assert_allclose(slopes, factor * gradient, rtol=1e-9, atol=1e-9)


# ------------------------------------------------------------------------------------------- metrics


def mean(loss: Loss, name: str) -> float:
    (found,) = [each for each in loss.measures if each.name == name]
    return found.total / max(1, found.count)


def over(case: Case, token: Callable[[int, int], float]) -> float:
    """Average over the tokens that the mask keeps."""
    told = [token(i, t) for i in range(len(case.mask)) for t in case.kept(i)]
    return sum(told) / max(1, len(told))


def apart(case: Case, i: int, t: int) -> float:
    return float(np.clip(case.new[i, t] - case.old[i, t], -20, 20))


@pytest.mark.parametrize(
    "name", ["clipped", "cispo", "dppo tv", "gmpo", "sapo", "clip_cov", "kl_cov", "clipped, weighed"]
)
@given(case=cases())
def test_the_mean_difference_of_log_probs(name: str, case: Case) -> None:
    _, _, loss = run(TWICE[name], case, MEAN)
    near(mean(loss, "approx_kl"), over(case, lambda i, t: -apart(case, i, t)))


@pytest.mark.parametrize(
    ("name", "is_clipped"),
    [
        ("clipped", lambda case, i, t: outside(case.gain_at(i, t), math.exp(apart(case, i, t)), 0.8, 1.2)),
        ("clipped higher", lambda case, i, t: outside(case.gain_at(i, t), math.exp(apart(case, i, t)), 0.8, 1.28)),
        ("clip_cov", lambda case, i, t: outside(case.gain_at(i, t), math.exp(apart(case, i, t)), 0.8, 1.2)),
        ("gmpo", lambda case, i, t: outside(case.gain_at(i, t), apart(case, i, t), -0.4, 0.4)),
        ("cispo", lambda case, i, t: math.exp(apart(case, i, t)) > 1.2),
        ("dppo tv", lambda case, i, t: dppo("tv", 0.15, case, i, t)[1] == 0 != case.gain_at(i, t)),
    ],
)
@given(case=cases())
def test_the_share_of_clipped_tokens(name: str, is_clipped: Callable[[Case, int, int], bool], case: Case) -> None:
    _, _, loss = run(TWICE[name], case, MEAN)
    wanted = over(case, lambda i, t: is_clipped(case, i, t))
    if name == "dppo tv":  # where the advantage is 0 nothing is lost, but the token is masked all the same
        wanted += over(case, lambda i, t: case.gain_at(i, t) == 0 and math.exp(case.new[i, t]) < bound(case, i, t))
    assert mean(loss, "clip_fraction") == pytest.approx(wanted)


def bound(case: Case, i: int, t: int) -> float:
    return math.exp(case.old[i, t]) - 0.15


def outside(gain: float, ratio: float, low: float, high: float) -> bool:
    return (gain > 0 and ratio > high) or (gain < 0 and ratio < low)


@given(case=cases())
def test_the_share_of_tokens_that_the_second_bound_holds(case: Case) -> None:
    _, _, loss = run(TWICE["clipped twice"], case, MEAN)
    wanted = over(case, lambda i, t: case.gain_at(i, t) < 0 and math.exp(apart(case, i, t)) > 3)
    assert mean(loss, "clip_fraction_low") == pytest.approx(wanted)


@given(case=cases())
def test_what_a_critic_and_an_imitator_report(case: Case) -> None:
    _, _, loss = run(TWICE["value"], case, MEAN)
    near(mean(loss, "value_error"), over(case, lambda i, t: (case.new[i, t] - case.weight[i, t]) ** 2))
    worse = over(case, lambda i, t: 2 * value(0.2, case, i, t)[0] > (case.new[i, t] - case.weight[i, t]) ** 2)
    assert mean(loss, "value_clip_fraction") == pytest.approx(worse)
    _, _, told = run(TWICE["cross entropy"], case, MEAN)
    near(mean(told, "nll"), over(case, lambda i, t: -case.new[i, t]))
    _, _, told = run(TWICE["entropy"], case, MEAN)
    near(mean(told, "policy_entropy"), over(case, lambda i, t: case.new[i, t]))
