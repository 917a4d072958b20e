"""Which tokens are chosen by covariance, against a second writing: float64 and loops; rows anywhere, padded anyhow."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from flowgraph import Mask
from flowgraph.language import Key
from flowgraph.language.values import Group, Sample, Trajectory
from nodes.losses.covariance import high_covariance, top_covariance
from nodes.values import Chosen, LogProbs, Responses, TokenAdvantages
from tests.parity.formulas.batches import Array, Batch, batches

Place = tuple[int, int]
fractions = st.sampled_from([2e-4, 0.1, 0.35, 1.0])


def covariances(batch: Batch) -> dict[Place, float]:
    """Return each kept token's covariance of log-prob and advantage."""
    logprob, gain = batch.column("old"), batch.column("gain", -3, 3)
    places = [(int(i), int(t)) for i, t in np.argwhere(batch.mask)]
    middle = [sum(column[place] for place in places) / max(1, len(places)) for column in (logprob, gain)]
    return {place: (logprob[place] - middle[0]) * (gain[place] - middle[1]) for place in places}


def tensors(batch: Batch, order: Array | None = None, columns: int = 0) -> tuple[LogProbs, TokenAdvantages, Mask]:
    """Return what is read, its rows in another order and padded by more columns."""
    rows = np.arange(len(batch.mask)) if order is None else order
    wide = ((0, 0), (0, columns))
    given = (batch.column("old"), batch.column("gain", -3, 3))
    old, gain = (torch.from_numpy(np.pad(each[rows], wide, constant_values=np.nan)) for each in given)
    return LogProbs(old), TokenAdvantages(gain), Mask(torch.from_numpy(np.pad(batch.mask[rows], wide)))


def ids(batch: Batch, order: Array | None = None) -> Responses:
    rows = torch.arange(len(batch.mask)) if order is None else torch.from_numpy(order)
    zeros = torch.zeros_like(rows)
    return Responses.of({"group": Group(rows // 2), "sample": Sample(rows % 2), "trajectory": Trajectory(zeros)})


def places_of(chosen: Chosen) -> set[Place]:
    return {(int(i), int(t)) for i, t in np.argwhere(chosen.data.numpy())}


def told(chosen: Chosen, name: str) -> float:
    (found,) = [each for each in chosen.measures if each.name == name]
    return found.total / max(1, found.count)


@given(batch=batches(), fraction=fractions)
def test_the_tokens_of_the_largest_covariance(batch: Batch, fraction: float) -> None:
    found = covariances(batch)
    most = max(1, int(fraction * len(found))) if found else 0
    chosen = top_covariance(*tensors(batch), fraction=fraction)
    assert places_of(chosen) == set(sorted(found, key=lambda place: -found[place])[:most])
    np.testing.assert_allclose(told(chosen, "covariance"), sum(found.values()) / max(1, len(found)), atol=1e-9)
    assert told(chosen, "chosen_fraction") == most / max(1, len(found))
    assert chosen.data.dtype is torch.float64 and set(chosen.data.unique().tolist()) <= {0.0, 1.0}


@given(batch=batches(), fraction=fractions, seed=st.integers(0, 5), low=st.sampled_from([-1.0, 0.2, 1.0]))
def test_the_tokens_drawn_from_between_two_bounds(batch: Batch, fraction: float, seed: int, low: float) -> None:
    found = covariances(batch)
    between = {place for place, value in found.items() if low < value < 2.0}
    chosen = high_covariance(*tensors(batch), ids=ids(batch), fraction=fraction, low=low, high=2.0, key=Key(seed))
    assert places_of(chosen) <= between
    assert len(places_of(chosen)) == min(len(between), max(1, int(fraction * len(found))))


@given(batch=batches(), fraction=fractions, columns=st.integers(0, 3), seed=st.integers(0, 99))
def test_a_token_is_chosen_wherever_its_row_stands_and_however_far_it_is_padded(
    batch: Batch, fraction: float, columns: int, seed: int
) -> None:
    values = sorted(covariances(batch).values())
    assume(all(b - a > 1e-9 for a, b in pairwise(values)))  # of equal ones the earlier row wins
    order = np.random.default_rng(seed).permutation(len(batch.mask))
    settings = {"fraction": fraction, "low": -1.0, "high": 2.0, "key": Key(3)}
    plain = high_covariance(*tensors(batch), ids=ids(batch), **settings)  # type: ignore[arg-type]
    moved = high_covariance(*tensors(batch, order, columns), ids=ids(batch, order), **settings)  # type: ignore[arg-type]
    tops = [top_covariance(*tensors(batch, *how), fraction=fraction) for how in ((None, 0), (order, columns))]
    for one, other in ((plain, moved), tops):
        np.testing.assert_array_equal(other.data.numpy(), np.pad(one.data.numpy()[order], ((0, 0), (0, columns))))
