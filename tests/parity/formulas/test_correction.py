"""Off-policy correction and the measures of mismatch, written again in loops over tokens."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nodes.correction import Level, Test, importance_weights, normalized_weights, rejected
from nodes.mismatch import mismatch
from nodes.values import ImportanceWeights, LogProbs
from tests.parity.formulas.batches import Array, Batch, batches, leaf

LEVELS = st.sampled_from(get_args(Level))
TESTS = st.sampled_from(get_args(Test))
SPREADS = st.sampled_from([0.3, 2.0, 15.0])
Rows = list[list[float]]


def pair(batch: Batch, spread: float) -> tuple[Array, Array]:
    """Draw log-probs of two engines: [B, T] each, NaN where masked."""
    behaviour = batch.column("behaviour", -3.0, 0.0)
    return behaviour + batch.column("difference", -spread, spread), behaviour


def differences(batch: Batch, old: Array, behaviour: Array) -> Rows:
    """List the log-ratios of each row's tokens that count."""
    return [
        [float(old[i, t] - behaviour[i, t]) for t in range(batch.shape[1]) if batch.mask[i, t]]
        for i in range(batch.shape[0])
    ]


def held(number: float) -> float:
    return min(max(number, -20.0), 20.0)


def average(numbers: list[float]) -> float:
    return math.fsum(numbers) / len(numbers)


def laid_out(batch: Batch, rows: Rows) -> Array:
    """Put numbers of the tokens that count back where these stand; 0 elsewhere."""
    out = np.zeros(batch.shape)
    for i, row in enumerate(rows):
        places = [t for t in range(batch.shape[1]) if batch.mask[i, t]]
        for t, number in zip(places, row, strict=True):
            out[i, t] = number
    return out


def bounded(weight: float, form: dict[str, Any]) -> float:
    cap: float | None = form["cap"]
    if cap is not None:
        return min(weight, cap)
    inside: bool = form.get("low", 0.0) <= weight <= form.get("high", math.inf)
    return weight if inside else 0.0


FORMS = [{"cap": 2.0}, {"cap": None}, {"cap": None, "low": 0.5, "high": 5.0}, {"cap": None, "high": 1.2}]


@given(batches(), LEVELS, st.sampled_from(FORMS), SPREADS)
def test_importance_weights(batch: Batch, level: Level, form: dict[str, Any], spread: float) -> None:
    old, behaviour = pair(batch, spread)
    wanted = Rows()
    for row in differences(batch, old, behaviour):
        ratios = [sum(row)] * len(row) if level == "sequence" else row
        wanted.append([bounded(math.exp(held(ratio)), form) for ratio in ratios])
    tensor = leaf(old)
    given = importance_weights(
        LogProbs(tensor), batch.masks(), behaviour=LogProbs(torch.from_numpy(behaviour)), level=level, **form
    )
    assert given.data.numpy() == pytest.approx(laid_out(batch, wanted), rel=1e-9)
    assert not given.data.requires_grad
    told = {each.name: (each.total, each.count) for each in given.measures}
    each = [row[0] for row in wanted if row] if level == "sequence" else [one for row in wanted for one in row]
    assert told["weight"] == pytest.approx((math.fsum(each), len(each)), rel=1e-9)
    assert told["weight_squared"] == pytest.approx((math.fsum(one**2 for one in each), len(each)), rel=1e-9)


@given(batches(), LEVELS)
def test_normalized_weights(batch: Batch, level: Level) -> None:
    drawn = batch.column("weights", 0.0, 3.0)
    if level == "sequence":
        drawn = np.where(batch.mask > 0, batch.row("weight", 0.0, 3.0)[:, None], np.nan)
    rows = [[float(drawn[i, t]) for t in range(batch.shape[1]) if batch.mask[i, t]] for i in range(batch.shape[0])]
    numbers = [average(row) for row in rows if row] if level == "sequence" else [one for row in rows for one in row]
    mean = average(numbers) if numbers else 1.0
    given = normalized_weights(ImportanceWeights(torch.from_numpy(drawn)), batch.masks(), level=level)
    assert given.data.numpy() == pytest.approx(laid_out(batch, [[one / mean for one in row] for row in rows]), rel=1e-9)


def divergence(ratio: float, estimator: str) -> float:
    ratio = held(ratio)
    return {"k1": -ratio, "k2": ratio * ratio / 2, "k3": math.exp(ratio) - 1 - ratio}[estimator]


def reduced(scope: str, numbers: list[float]) -> float:
    if scope == "seq_max":
        return max(numbers)
    return math.fsum(numbers) if scope == "seq_sum" else average(numbers)


@given(batches(), TESTS, st.sampled_from([None, 0.2, 0.9]), st.sampled_from([1.05, 1.7, 4.0]), SPREADS)
def test_rejection(batch: Batch, test: Test, low: float | None, high: float, spread: float) -> None:
    old, behaviour = pair(batch, spread)
    scope, _, estimator = test.rpartition("_")
    least = math.log(1 / high if low is None else low) if estimator == "k1" else -math.inf
    most = math.log(high) if estimator == "k1" else high
    wanted = Rows()
    for row in differences(batch, old, behaviour):
        numbers = [divergence(ratio, estimator) for ratio in row]
        if row and scope != "token":
            numbers = [reduced(scope, numbers)] * len(row)
        wanted.append([float(least <= number <= most) for number in numbers])
    drawn = LogProbs(torch.from_numpy(behaviour))
    bounds: dict[str, Any] = {"high": high} if estimator != "k1" else {"low": low, "high": high}
    given = rejected(batch.masks(), old=LogProbs(leaf(old)), behaviour=drawn, test=test, **bounds)
    assert given.data.numpy().tolist() == laid_out(batch, wanted).tolist()
    told = {each.name: (each.total, each.count) for each in given.measures}
    tokens = [one for row in wanted for one in row]
    assert told["rejected"] == (tokens.count(0.0), len(tokens))
    assert told["rejected_rows"] == (sum(not any(row) for row in wanted if row), sum(bool(row) for row in wanted))


@given(batches(), SPREADS, st.sampled_from([1.5, 2.0]))
def test_mismatch(batch: Batch, spread: float, threshold: float) -> None:
    old, behaviour = pair(batch, spread)
    given = mismatch(
        LogProbs(leaf(old)),
        batch.masks(),
        behaviour=LogProbs(torch.from_numpy(behaviour)),
        threshold=threshold,
    )
    means = {each.name: each.total / each.count for each in given.measures if each.count}
    if not batch.mask.any():
        assert means == {} and math.isnan(given.data)
        return
    rows = [row for row in differences(batch, old, behaviour) if row]
    tokens = [one for row in rows for one in row]
    ratios = [math.exp(held(one)) for one in tokens]
    ppl = [
        [math.exp(-average([float(column[i, t]) for t in range(batch.shape[1]) if batch.mask[i, t]])) for i in there]
        for column in (old, behaviour)
        for there in [[i for i in range(batch.shape[0]) if batch.mask[i].any()]]
    ]
    logs = [math.log(one / other) for one, other in zip(*ppl, strict=True)]
    wanted = {
        "kl": -average(tokens),
        "k3_kl": average([divergence(one, "k3") for one in tokens]),
        "training_ppl": average(ppl[0]),
        "rollout_ppl": average(ppl[1]),
        "ppl_ratio": average([one / other for one, other in zip(*ppl, strict=True)]),
        "log_ppl_diff": average(logs),
        "log_ppl_abs_diff": average([abs(one) for one in logs]),
        "log_ppl_diff_max": max(logs),
        "chi2_token": average([one**2 for one in ratios]) - 1,
        "chi2_seq": average([math.exp(2 * held(sum(row))) for row in rows]) - 1,
        "ess": 1 / average([(one / average(ratios)) ** 2 for one in ratios]),
        "weight_high": average([float(one > threshold) for one in ratios]),
        "weight_low": average([float(one < 1 / threshold) for one in ratios]),
        "untold": 0.0,
    }
    assert means == pytest.approx(wanted, rel=1e-6, abs=1e-9)
    assert given.data == pytest.approx(wanted["k3_kl"], rel=1e-6, abs=1e-9)
