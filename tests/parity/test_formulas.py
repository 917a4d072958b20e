"""Advantages of groups against a second writing of them: float64, loops. Losses and more are in formulas/."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowgraph.language.values import Group
from nodes import Scores, gpg_advantages, group_normalize


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
