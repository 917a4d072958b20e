"""KL estimators, their metric and the weight that follows it, against a second writing of each: float64 and loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowgraph.language import Aggregation
from nodes.kl import adaptive_kl, kl_abs, kl_estimate, kl_k1, kl_k2, kl_k3
from nodes.values import KLWeight, LogProbs, TokenKL
from tests.parity.formulas.batches import Array, Batch, batches, leaf

NODES: dict[str, Any] = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3, "abs": kl_abs}
ways = st.sampled_from([*Aggregation, 3.5])


def estimate(name: str, new: float, ref: float) -> tuple[float, float]:
    """Return one token's estimate of KL(new, ref), and its slope by `new`."""
    far = new - ref
    if name == "k1":
        return far, 1.0
    if name == "k2":
        return far * far / 2, far
    if name == "abs":
        return abs(far), float(np.sign(far))
    held = min(max(-far, -20.0), 20.0)
    value = math.exp(held) - 1 - held
    return min(value, 10.0), 1 - math.exp(held) if value < 10 and abs(far) < 20 else 0.0


def kept(batch: Batch) -> list[list[int]]:
    return [[t for t in range(batch.shape[1]) if row[t]] for row in batch.mask]


def logs(batch: Batch, scale: float) -> tuple[Array, Array]:
    ref = batch.column("ref", -5, 0)
    return ref + scale * batch.column("apart", -1, 1), ref


def near(one: Any, other: Any) -> None:
    np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8)


scales = st.sampled_from([0.01, 1.0, 5.0, 40.0])
named = pytest.mark.parametrize(
    ("name", "through"), [(n, s) for n in NODES for s in (False, True) if (n, s) != ("k2", True)]
)


@named
@given(batch=batches(), scale=scales, how=ways)
def test_a_kl_loss_its_gradient_and_its_metric(
    name: str, through: bool, batch: Batch, scale: float, how: Aggregation | float
) -> None:
    new, ref = logs(batch, scale)
    tokens = [(i, t) for i, row in enumerate(kept(batch)) for t in row]
    rows = sum(bool(row) for row in kept(batch))
    total, told, gradient = 0.0, 0.0, np.zeros(batch.shape)
    for i, t in tokens:
        value, slope = estimate(name, new[i, t], ref[i, t])
        slope = estimate("k2", new[i, t], ref[i, t])[1] if through else slope
        share = {
            "token-mean": len(tokens),
            "sequence-mean": rows * len(kept(batch)[i]),
            "sequence-sum": rows,
        }.get(str(how), rows * (how if isinstance(how, float) else 1.0))
        total, told, gradient[i, t] = total + value / share, told + value, slope / share
    at = leaf(new)
    extra = {"straight_through": True} if through else {}
    loss = NODES[name](LogProbs(at), batch.masks(), ref=LogProbs(leaf(ref)), aggregation=how, **extra)
    got = loss.total([term.counts() for term in loss.terms])
    got.backward()
    assert at.grad is not None
    near(float(got.detach()), total)
    near(at.grad.numpy(), gradient)
    (measure,) = loss.measures
    near((measure.total, measure.count), (told, len(tokens)))


@pytest.mark.parametrize("name", NODES)
@given(batch=batches(), scale=scales)
def test_the_estimate_of_each_token_and_its_mean_over_rows(name: str, batch: Batch, scale: float) -> None:
    old, ref = logs(batch, scale)
    kl = kl_estimate(LogProbs(leaf(old)), batch.masks(), ref=LogProbs(leaf(ref)), estimator=name)  # type: ignore[arg-type]
    wanted, means = np.zeros(batch.shape), []
    for i, row in enumerate(kept(batch)):
        for t in row:
            wanted[i, t] = estimate(name, old[i, t], ref[i, t])[0]
        means += [sum(wanted[i, t] for t in row) / len(row)] if row else []
    near(kl.data.numpy(), wanted)
    (measure,) = kl.measures
    near((measure.total, measure.count), (sum(means), len(means)))
    assert not kl.data.requires_grad


@given(
    batch=batches(),
    beta=st.floats(1e-4, 10),
    target=st.sampled_from([0.01, 0.1, 1.0]),
    horizon=st.sampled_from([10, 1000, 10000]),
)
def test_the_weight_that_follows_kl(batch: Batch, beta: float, target: float, horizon: int) -> None:
    column = batch.column("kl", -0.01, 0.4) * target * 4
    means = [sum(column[i, t] for t in row) / len(row) for i, row in enumerate(kept(batch)) if row]
    wanted = beta
    if means:
        error = (sum(means) / len(means) - target) / target
        wanted = beta + beta * min(0.2, max(-0.2, error)) * len(means) / horizon
    after = adaptive_kl(
        KLWeight(beta), TokenKL(torch.from_numpy(column)), batch.masks(), target=target, horizon=horizon
    )
    assert after.data == pytest.approx(wanted, rel=1e-9) and isinstance(after.data, float)


@pytest.mark.parametrize("make", NODES.values())
@given(batch=batches(), columns=st.integers(1, 3))
def test_columns_of_padding_and_the_order_of_rows_change_nothing(
    make: Callable[..., Any], batch: Batch, columns: int
) -> None:
    new, ref = logs(batch, 1.0)
    order = np.random.default_rng(batch.seed).permutation(len(new))

    def total(change: Callable[[Array, float], Array]) -> float:
        from flowgraph import Mask

        mask = Mask(torch.from_numpy(change(batch.mask, 0.0).copy()))
        loss = make(LogProbs(leaf(change(new, np.nan))), mask, ref=LogProbs(leaf(change(ref, np.nan))))
        return float(loss.total([term.counts() for term in loss.terms]).detach())

    plain = total(lambda column, fill: column)
    near(total(lambda column, fill: column[order]), plain)
    near(total(lambda column, fill: np.pad(column, ((0, 0), (0, columns)), constant_values=fill)), plain)
