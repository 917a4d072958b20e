"""Advantages by hand: the cases at the edge; a second writing of each formula is in tests/parity/formulas."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from flowgraph.errors import LawError, SettingError
from flowgraph.language.values import Group, Mask, Tokens
from nodes.advantages import (
    discounted_returns,
    entropy_shaped,
    gae,
    gpg_advantages,
    greedy_baseline,
    group_normalize,
    opo_advantages,
    optimal_token_baseline,
    pass_at_k_advantages,
    rloo_advantages,
)
from nodes.values import (
    Advantages,
    Entropy,
    ImportanceWeights,
    LogProbs,
    Returns,
    Rewards,
    Scores,
    SquaredProbs,
    TokenAdvantages,
    Values,
)


def scores(*values: float) -> Scores:
    return Scores(torch.tensor(values))


def group(*values: int) -> Group:
    return Group(torch.tensor(values, dtype=torch.int64))


def mask(*rows: list[int]) -> Mask:
    return Mask(torch.tensor(rows, dtype=torch.float32))


def rewards(*rows: list[float]) -> Rewards:
    return Rewards(torch.tensor(rows, dtype=torch.float32))


def told(value: Advantages) -> dict[str, tuple[float, float]]:
    return {each.name: (each.total, each.count) for each in value.measures}


Grouped = Callable[[Scores, Group], Advantages]
GROUPED: dict[str, Grouped] = {
    "group_normalize": group_normalize,
    "gpg": gpg_advantages,
    "rloo": rloo_advantages,
    "opo": lambda values, group: opo_advantages(values, group, Mask(torch.ones(len(values.data), 2))),
    "pass_at_k": pass_at_k_advantages,
}
grouped = pytest.mark.parametrize("node", GROUPED.values(), ids=list(GROUPED))


def test_scores_are_centred_and_divided_by_the_sample_deviation_of_their_group() -> None:
    given = group_normalize(scores(0, 1, 2, 5), group(7, 7, 7, 3))
    assert given.data.tolist() == pytest.approx([-1, 0, 1, 5], abs=1e-5)


def test_the_deviation_can_be_left_out() -> None:
    given = group_normalize(scores(0, 4, 2, 5), group(7, 7, 7, 3), deviation=False)
    assert given.data.tolist() == [-2, 2, 0, 5]


def test_rows_of_a_group_need_not_lie_side_by_side() -> None:
    given = group_normalize(scores(0, 10, 2, 30), group(1, 9, 1, 9), deviation=False)
    assert given.data.tolist() == [-1, -10, 1, 10]


@grouped
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [3, 7])
@pytest.mark.parametrize("value", [0.1, 1 / 3, 100.1, -7e5, 1e-9])
def test_equal_scores_give_exactly_nothing(node: Grouped, value: float, rows: int, dtype: torch.dtype) -> None:
    """Divided by eps, the rounding of a mean of equal scores would be a signal: 0.88 for scores of 100.1 in float32."""
    given = node(Scores(torch.tensor([value] * rows, dtype=dtype)), group(*[0] * rows))
    assert given.data.tolist() == [0.0] * rows and told(given)["no_signal"] == (1, 1)


@grouped
def test_groups_without_a_signal_are_counted_and_a_group_of_one_is_such_a_group(node: Grouped) -> None:
    assert told(node(scores(1, 1, 0, 1, 3), group(0, 0, 1, 1, 2)))["no_signal"] == (2, 3)


@grouped
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_advantages_have_the_dtype_of_their_scores(node: Grouped, dtype: torch.dtype) -> None:
    assert node(Scores(torch.tensor([0, 1], dtype=dtype)), group(4, 4)).data.dtype == dtype


@grouped
def test_whole_numbers_and_booleans_are_scores_too(node: Grouped) -> None:
    wanted = node(scores(0, 1), group(4, 4)).data
    for data in (torch.tensor([0, 1]), torch.tensor([False, True])):
        given = node(Scores(data), group(4, 4)).data
        assert given.dtype == torch.float32 and given.tolist() == wanted.tolist()


@grouped
def test_no_rows_have_no_advantages(node: Grouped) -> None:
    assert node(scores(), group()).data.shape == (0,)


@pytest.mark.parametrize(("name", "wanted"), [("group_normalize", 3), ("gpg", 3), ("opo", 3), ("rloo", 0)])
def test_a_group_of_one_keeps_its_score_unless_it_is_compared_with_others(name: str, wanted: float) -> None:
    assert GROUPED[name](scores(3), group(5)).data.tolist() == pytest.approx([wanted], rel=1e-5)
    assert pass_at_k_advantages(scores(3), group(5)).data.tolist() == [0]


def test_gpg_scales_by_the_share_of_rows_that_score_at_all() -> None:
    given = gpg_advantages(scores(0, 0, 0, 2), group(0, 0, 1, 1))
    assert given.data.tolist() == [0, 0, -4, 4]
    assert told(given) == {"no_signal": (1, 2), "alpha": (4, 1)}
    assert told(gpg_advantages(scores(0, 0), group(0, 0)))["alpha"] == (2, 1)
    assert told(gpg_advantages(scores(-1, 1), group(0, 0)))["alpha"] == (1, 1)


def test_each_response_is_compared_with_the_mean_of_the_others() -> None:
    assert rloo_advantages(scores(0, 3, 6, 1, 2), group(0, 0, 0, 1, 1)).data.tolist() == [-4.5, 0, 4.5, -1, 1]


def test_long_responses_weigh_more_in_the_baseline_that_is_weighted_by_length() -> None:
    given = opo_advantages(scores(0, 4), group(1, 1), mask([1, 1, 1], [0, 1, 0]))
    assert given.data.tolist() == [-1, 3]


def test_the_baseline_by_length_is_0_where_no_response_of_a_group_has_a_token() -> None:
    given = opo_advantages(scores(2, 4, 1, 3), group(0, 0, 1, 1), mask([0, 0], [0, 0], [1, 0], [1, 0]))
    assert given.data.tolist() == [2, 4, -1, 1]


def test_only_the_best_response_of_a_group_has_an_advantage() -> None:
    given = pass_at_k_advantages(scores(1, 5, 3, 9), group(0, 0, 0, 1), deviation=False)
    assert given.data.tolist() == [0, 2, 0, 0]
    assert pass_at_k_advantages(scores(1, 5, 3), group(0, 0, 0)).data.tolist() == pytest.approx([0, 1, 0])


def test_two_best_responses_have_none() -> None:
    assert pass_at_k_advantages(scores(5, 1, 5), group(0, 0, 0)).data.tolist() == [0, 0, 0]


def test_a_greedy_response_is_found_by_its_prompt_and_several_are_averaged() -> None:
    given = greedy_baseline(scores(1, 0, 5), group(3, 3, 8), greedy=scores(2, 1, 4, 9), greedy_group=group(8, 3, 8, 4))
    assert given.data.tolist() == [0, -1, 2]
    assert told(given) == {"no_signal": (0, 2)}


def test_a_group_that_scores_as_its_greedy_response_has_no_signal() -> None:
    given = greedy_baseline(scores(1, 1, 0, 1), group(0, 0, 1, 1), greedy=scores(1, 1), greedy_group=group(0, 1))
    assert told(given) == {"no_signal": (1, 2)}


@pytest.mark.parametrize("others", [(), (4,)])
def test_a_prompt_without_a_greedy_response_is_refused(others: tuple[int, ...]) -> None:
    with pytest.raises(LawError) as raised:
        greedy_baseline(scores(1, 0), group(3, 8), greedy=scores(*others), greedy_group=group(*others))
    assert str(raised.value) == (
        "the rows of `scores` are not those of `greedy`: no greedy response answers prompt 3, 8"
    )


def test_no_rows_need_no_greedy_response() -> None:
    none = scores(), group()
    assert greedy_baseline(*none, greedy=none[0], greedy_group=none[1]).data.shape == (0,)
    assert greedy_baseline(*none, greedy=scores(1), greedy_group=group(2)).data.shape == (0,)


# ------------------------------------------------------------------------------------------- entropy


def shaped(
    advantages: Advantages, ids: list[int], kept: list[int], between: tuple[int, int] | None = None
) -> list[float]:
    heard = Entropy(torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5]]))
    given = entropy_shaped(advantages, heard, mask(kept), Tokens(torch.tensor([ids])), weight=1.0, between=between)
    return [round(each, 4) for each in given.data.flatten().tolist()]


def test_entropy_raises_an_advantage_by_no_more_than_a_share_of_its_size() -> None:
    ids, all_kept = [1] * 5, [1] * 5
    assert shaped(Advantages(torch.tensor([1.0])), ids, all_kept) == [1.3]
    assert shaped(Advantages(torch.tensor([-1.0])), ids, all_kept) == [-0.7]
    assert shaped(Advantages(torch.tensor([0.2])), ids, all_kept) == [0.3]
    assert shaped(Advantages(torch.tensor([0.0])), ids, all_kept) == [0.0]
    assert shaped(Advantages(torch.tensor([1.0])), ids, [0] * 5) == [1.0]


@pytest.mark.parametrize(
    ("ids", "kept", "wanted"),
    [
        ([8, 7, 1, 1, 8], [1, 1, 1, 1, 1], 1.35),  # a closing token before the first opening one is none
        ([7, 1, 7, 8, 1], [1, 1, 1, 1, 1], 1.25),  # an opening token within is a token like others
        ([7, 1, 1, 8, 8], [1, 1, 0, 1, 1], 1.2),  # a masked token within does not count
        ([7, 1, 8, 1, 8], [1, 1, 0, 1, 1], 1.3),  # nor does it close
        ([7, 1, 7, 1, 8], [0, 1, 1, 1, 1], 1.4),  # nor open
        ([7, 8, 1, 1, 1], [1, 1, 1, 1, 1], 1.0),  # nothing within
        ([7, 1, 1, 1, 1], [1, 1, 1, 1, 1], 1.0),  # never closed
        ([7, 1, 1, 1, 8], [1, 1, 1, 1, 0], 1.0),  # never closed: what closes is padding
        ([1, 1, 1, 1, 8], [1, 1, 1, 1, 1], 1.0),  # never opened
        ([7, 1, 8, 7, 1], [1, 1, 1, 1, 1], 1.2),  # the first thought only
    ],
)
def test_entropy_is_that_of_the_tokens_between_two_tokens(ids: list[int], kept: list[int], wanted: float) -> None:
    assert shaped(Advantages(torch.tensor([1.0])), ids, kept, (7, 8)) == [wanted]


def test_one_token_may_both_open_and_close() -> None:
    assert shaped(Advantages(torch.tensor([1.0])), [7, 1, 7, 1, 7], [1] * 5, (7, 7)) == [1.2]


def test_advantages_of_tokens_are_shaped_one_by_one() -> None:
    of_tokens = TokenAdvantages(torch.tensor([[1.0, -1.0, 0.2, 0.0, float("nan")]]))
    assert shaped(of_tokens, [1] * 5, [1, 1, 1, 1, 0]) == [1.25, -0.75, 0.3, 0.0, 0.0]


def test_a_bound_that_could_turn_a_sign_is_refused() -> None:
    with pytest.raises(SettingError):
        entropy_shaped(
            Advantages(torch.ones(1)), Entropy(torch.ones(1, 1)), mask([1]), Tokens(torch.ones(1, 1)), bound=1.0
        )


# ------------------------------------------------------------------------------------------- tokens


def test_what_a_critic_expected_is_carried_through_tokens_of_tools() -> None:
    earned, expected = rewards([0, 9, 0, 4]), Values(torch.tensor([[1.0, 7.0, 2.0, 3.0]]))
    given, returns = gae(earned, expected, mask([1, 0, 1, 1]), gamma=1.0, lam=0.5)
    assert given.data.tolist() == [[1 + 0.5 * 1.5, 0, 1 + 0.5 * 1, 1]]  # each δ is 1
    assert returns.data.tolist() == [[2.75, 0, 3.5, 4]]
    assert isinstance(given, TokenAdvantages) and isinstance(returns, Returns)


def test_a_response_of_one_token_is_what_it_earns_less_what_was_expected() -> None:
    given, returns = gae(rewards([5, 0]), Values(torch.tensor([[2.0, 9.0]])), mask([1, 0]))
    assert given.data.tolist() == [[3, 0]] and returns.data.tolist() == [[5, 0]]


def test_a_return_is_carried_through_tokens_of_tools() -> None:
    given = discounted_returns(rewards([0, 9, 2, 4]), mask([1, 0, 1, 1]), gamma=0.5)
    assert given.data.tolist() == [[2, 0, 4, 4]]


def test_rows_without_a_token_have_no_advantage_at_any() -> None:
    spoilt = torch.full((2, 3), float("nan"))
    none = Mask(torch.zeros(2, 3))
    given, returns = gae(Rewards(spoilt), Values(spoilt), none)
    for each in (given, returns, discounted_returns(Rewards(spoilt), none), baseline(spoilt, none, group(0, 0))):
        assert each.data.tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
def test_no_rows_or_no_tokens_have_no_advantages(shape: tuple[int, int]) -> None:
    empty, rows = torch.zeros(shape), group(*range(shape[0]))
    for each in gae(Rewards(empty), Values(empty), Mask(empty)):
        assert each.data.shape == shape
    assert discounted_returns(Rewards(empty), Mask(empty)).data.shape == shape
    assert baseline(empty, Mask(empty), rows).data.shape == shape


# ------------------------------------------------------------------------------------------- a baseline each token


def baseline(
    earned: torch.Tensor,
    kept: Mask,
    rows: Group,
    *,
    energy: torch.Tensor | float = 1.0,
    weights: torch.Tensor | None = None,
    zero_tail: bool = True,
) -> TokenAdvantages:
    """Run the node on tokens of probability 1/2 whose energies, 1 - 2π + Σπ², are as told."""
    half = torch.full(earned.shape, 0.5, dtype=earned.dtype)
    return optimal_token_baseline(
        Rewards(earned),
        rows,
        kept,
        old=LogProbs(half.log()),
        squares=SquaredProbs(torch.zeros_like(half) + energy),
        weights=None if weights is None else ImportanceWeights(weights),
        zero_tail=zero_tail,
    )


def near(value: Advantages, *rows: list[float]) -> bool:
    return torch.allclose(value.data, torch.tensor(rows, dtype=value.data.dtype), atol=1e-6)


def test_a_response_of_more_energy_weighs_more_in_the_baseline() -> None:
    earned, kept = torch.tensor([[0.0, 0.0], [0.0, 4.0]]), mask([1, 1], [1, 1])
    energy = torch.tensor([[3.0, 0.0], [1.0, 2.0]])  # summed: 3, 3 and 1, 3
    assert near(baseline(earned, kept, group(0, 0), energy=energy), [-1, -2], [3, 2])
    weights = torch.tensor([[1.0, 1.0], [3.0, 0.0]])  # squared: 9, 0, so that the second has 9 and 9
    assert near(baseline(earned, kept, group(0, 0), energy=energy, weights=weights), [-3, -3], [1, 1])


def test_beyond_all_others_a_response_has_the_baseline_0_or_the_advantage_0() -> None:
    earned, kept = torch.tensor([[0.0, 0.0, 4.0], [0.0, 2.0, 0.0]]), mask([1, 1, 1], [1, 1, 0])
    assert near(baseline(earned, kept, group(0, 0)), [1, 1, 4], [-1, -1, 0])
    assert near(baseline(earned, kept, group(0, 0), zero_tail=False), [1, 1, 0], [-1, -1, 0])


def test_two_longest_responses_compare_with_each_other_to_the_end() -> None:
    earned, kept = torch.tensor([[0.0, 4.0], [0.0, 2.0], [3.0, 0.0]]), mask([1, 1], [1, 1], [1, 0])
    assert near(baseline(earned, kept, group(0, 0, 0)), [1, 1], [-1, -1], [0, 0])


@pytest.mark.parametrize("zero_tail", [True, False])
def test_without_another_response_that_has_a_token_there_is_no_baseline(zero_tail: bool) -> None:
    earned, kept = torch.tensor([[0.0, 4.0], [0.0, 5.0], [9.0, 9.0]]), mask([1, 1], [1, 1], [0, 0])
    assert near(baseline(earned, kept, group(0, 1, 1), zero_tail=zero_tail), [4, 4], [5, 5], [0, 0])


def test_energies_that_sum_to_nothing_give_the_baseline_0() -> None:
    sure = torch.zeros(2, 1)
    below = optimal_token_baseline(
        rewards([4], [2]),
        group(0, 0),
        mask([1], [1]),
        old=LogProbs(sure),
        squares=SquaredProbs(torch.tensor([[1.0], [1.0 - 1e-6]])),
    )
    assert below.data.tolist() == [[4], [2]]


def test_groups_whose_rewards_sum_to_the_same_have_no_signal() -> None:
    earned, kept = torch.tensor([[1.0, 1.0], [0.0, 2.0], [0.0, 9.0], [1.0, 0.0]]), mask(*[[1, 1]] * 4)
    assert told(baseline(earned, kept, group(0, 0, 1, 1))) == {"no_signal": (1, 2)}


def test_advantages_of_rows_and_of_tokens_both_broadcast_over_tokens() -> None:
    assert Advantages(torch.tensor([1.0, 2.0])).per_token().shape == (2, 1)
    assert TokenAdvantages(torch.ones(2, 3)).per_token().shape == (2, 3)
