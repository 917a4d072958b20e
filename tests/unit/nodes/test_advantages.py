"""Advantages by hand; a second writing of each formula is in tests/parity/test_formulas.py."""

from __future__ import annotations

import pytest
import torch

from flowgraph.values import Group
from nodes import Advantages, Scores, TokenAdvantages, gpg_advantages, group_normalize


def scores(*values: float) -> Scores:
    return Scores(torch.tensor(values))


def group(*values: int) -> Group:
    return Group(torch.tensor(values))


def told(value: Advantages) -> dict[str, tuple[float, float]]:
    return {each.name: (each.total, each.count) for each in value.measures}


def test_scores_are_centred_and_divided_by_the_sample_deviation_of_their_group() -> None:
    given = group_normalize(scores(0, 1, 2, 5), group(7, 7, 7, 3))
    assert given.data.tolist() == pytest.approx([-1, 0, 1, 5], abs=1e-5)
    assert given.data.dtype == torch.float32


def test_the_deviation_can_be_left_out() -> None:
    given = group_normalize(scores(0, 4, 2, 5), group(7, 7, 7, 3), deviation=False)
    assert given.data.tolist() == [-2, 2, 0, 5]


def test_rows_of_a_group_need_not_lie_side_by_side() -> None:
    given = group_normalize(scores(0, 10, 2, 30), group(1, 9, 1, 9), deviation=False)
    assert given.data.tolist() == [-1, -10, 1, 10]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [3, 7])
@pytest.mark.parametrize("value", [0.1, 1 / 3, 100.1, -7e5, 1e-9])
def test_equal_scores_give_exactly_nothing(value: float, rows: int, dtype: torch.dtype) -> None:
    """Divided by eps, the rounding of a mean of equal scores would be a signal: 0.88 for scores of 100.1 in float32."""
    equal, one = Scores(torch.tensor([value] * rows, dtype=dtype)), group(*[0] * rows)
    given = group_normalize(equal, one)
    assert given.data.tolist() == [0.0] * rows and told(given)["no_signal"] == (1, 1)
    assert gpg_advantages(equal, one).data.tolist() == [0.0] * rows


def test_groups_without_a_signal_are_counted_and_a_group_of_one_is_such_a_group() -> None:
    given = group_normalize(scores(1, 1, 0, 1, 3), group(0, 0, 1, 1, 2))
    assert told(given)["no_signal"] == (2, 3)


def test_gpg_scales_by_the_share_of_rows_that_score_at_all() -> None:
    given = gpg_advantages(scores(0, 0, 0, 2), group(0, 0, 1, 1))
    assert given.data.tolist() == [0, 0, -4, 4]
    assert told(given) == {"no_signal": (1, 2), "alpha": (4, 1)}
    assert told(gpg_advantages(scores(0, 0), group(0, 0)))["alpha"] == (2, 1)
    assert told(gpg_advantages(scores(-1, 1), group(0, 0)))["alpha"] == (1, 1)


def test_whole_numbers_and_booleans_are_scores_too() -> None:
    for data in (torch.tensor([0, 1]), torch.tensor([False, True])):
        assert group_normalize(Scores(data), group(4, 4), deviation=False).data.tolist() == [-0.5, 0.5]


def test_no_rows_have_no_advantages() -> None:
    nothing = Scores(torch.zeros(0)), Group(torch.zeros(0, dtype=torch.int64))
    assert group_normalize(*nothing).data.shape == gpg_advantages(*nothing).data.shape == (0,)


def test_advantages_of_rows_and_of_tokens_both_broadcast_over_tokens() -> None:
    assert Advantages(torch.tensor([1.0, 2.0])).per_token().shape == (2, 1)
    assert TokenAdvantages(torch.ones(2, 3)).per_token().shape == (2, 3)
