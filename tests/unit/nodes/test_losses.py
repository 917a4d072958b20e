"""Losses by hand: what is averaged, what NaN under the mask does, and shapes that would broadcast unseen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from flowgraph import Aggregation, Loss, Mask
from flowgraph.errors import LawError, SettingError
from flowgraph.loss import Counts, Term
from nodes import (
    Advantages,
    Entropy,
    LogProbs,
    TokenAdvantages,
    clipped,
    entropy_bonus,
    kl_k3,
    policy_gradient,
)

MASK = Mask(torch.tensor([[1.0, 1, 0], [1, 0, 0], [0, 0, 0]]))
NAN = float("nan")
Make = Callable[[torch.Tensor, torch.Tensor], Loss]


def total(loss: Loss) -> torch.Tensor:
    return loss.total([term.counts() for term in loss.terms])


def advantages(values: torch.Tensor) -> Advantages:
    return TokenAdvantages(values)


LOSSES: dict[str, Make] = {
    "clipped": lambda new, x: clipped(LogProbs(new), advantages(x), MASK, old=LogProbs(x - 1)),
    "policy_gradient": lambda new, x: policy_gradient(LogProbs(new), advantages(x), MASK),
    "kl_k3": lambda new, x: kl_k3(LogProbs(new), MASK, ref=LogProbs(x)),
    "entropy_bonus": lambda new, x: entropy_bonus(Entropy(new), MASK),
    "of": lambda new, x: Loss.of(-new, MASK),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("bad", [NAN, float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["new", "other", "both"])
def test_what_is_not_finite_under_the_mask_reaches_neither_value_nor_gradient_nor_metric(
    name: str, bad: float, where: str
) -> None:
    clean = torch.linspace(-2, -1, 9).reshape(3, 3)
    spoilt = torch.where(MASK.data == 0, bad, clean)
    results = []
    for new, other in ((clean, clean.flip(1)), (spoilt if where != "other" else clean, clean.flip(1))):
        leaf = new.clone().requires_grad_()
        second = torch.where(MASK.data == 0, bad, other) if where != "new" and results else other
        loss = LOSSES[name](leaf, second)
        total(loss).backward()
        assert leaf.grad is not None
        results.append((total(loss).item(), leaf.grad, loss.measures))
    assert results[0][0] == results[1][0] and results[0][2] == results[1][2]
    assert torch.equal(results[0][1], results[1][1])


def test_a_row_without_a_token_may_have_an_advantage_that_is_not_finite() -> None:
    new = torch.zeros(3, 3, requires_grad=True)
    for make in (
        lambda: policy_gradient(LogProbs(new), Advantages(torch.tensor([1.0, 2.0, NAN])), MASK),
        lambda: clipped(LogProbs(new), Advantages(torch.tensor([1.0, 2.0, NAN])), MASK, old=LogProbs(new.detach())),
    ):
        (gradient,) = torch.autograd.grad(total(make()), [new])
        assert gradient.isfinite().all() and not gradient[2].any()


def test_each_aggregation_divides_by_the_counts_it_names() -> None:
    values = torch.tensor([[1.0, 3, 9], [5, 9, 9], [9, 9, 9]])
    wanted = {"token-mean": (1 + 3 + 5) / 3, "sequence-mean": (2 + 5) / 2, "sequence-sum": (4 + 5) / 2}
    for name, number in wanted.items():
        assert float(total(Loss.of(values, MASK, Aggregation(name)))) == pytest.approx(number)


def test_a_mask_that_keeps_nothing_gives_zero_and_a_gradient_of_zero() -> None:
    for aggregation in Aggregation:
        values = torch.ones(2, 3, requires_grad=True)
        loss = total(Loss.of(values, Mask(torch.zeros(2, 3)), aggregation))
        loss.backward()
        assert float(loss.detach()) == 0 and values.grad is not None and not values.grad.any()


def test_losses_add_up_as_terms_with_weights_and_keep_their_own_counts() -> None:
    one, two = Loss.of(torch.ones(1, 2), Mask(torch.ones(1, 2))), Loss.of(torch.ones(1, 2), Mask(torch.zeros(1, 2)))
    both = 2 * one - 0.5 * two
    assert [term.weight for term in both.terms] == [2, -0.5]
    assert [term.counts() for term in both.terms] == [Counts(2, 1), Counts(0, 0)]
    assert float(both.total([Counts(4, 1), Counts(2, 1)])) == 1.0


def test_a_mask_may_be_of_booleans() -> None:
    loss = Loss.of(torch.ones(1, 3), Mask(torch.tensor([[True, False, True]])), Aggregation.SEQUENCE_SUM)
    assert loss.terms[0].counts() == Counts(2, 1) and float(total(loss)) == 2


@pytest.mark.parametrize("shape", [(3, 1, 3), (1, 3), (3, 1), (3,)])
def test_terms_and_their_mask_have_one_shape(shape: tuple[int, ...]) -> None:
    term = Term(torch.ones(shape), MASK.data, Aggregation.TOKEN_MEAN)
    with pytest.raises(LawError, match=r"a loss has terms of shape \[.*\] under a mask of \[3, 3\]"):
        term.total(Counts(3, 2))


def test_advantages_with_one_dimension_too_many_are_refused_not_broadcast() -> None:
    loss = clipped(LogProbs(MASK.data), Advantages(torch.ones(3, 1)), MASK, old=LogProbs(MASK.data))
    with pytest.raises(LawError, match=r"a loss has terms of shape \[3, 3, 3\] under a mask of \[3, 3\]"):
        total(loss)


def test_the_clipped_surrogate_by_hand() -> None:
    mask, old = Mask(torch.ones(1, 4)), LogProbs(torch.zeros(1, 4))
    new = torch.tensor([[0.5, 0.5, -0.5, -0.5]]).requires_grad_()
    gains = TokenAdvantages(torch.tensor([[1.0, -1, 1, -1]]))
    loss = clipped(LogProbs(new), gains, mask, old=old, eps=0.2, eps_high=0.3)
    up, down = float(torch.tensor(0.5).exp()), float(torch.tensor(-0.5).exp())
    assert loss.terms[0].values is not None
    assert loss.terms[0].values.tolist()[0] == pytest.approx([-1.3, up, -down, 0.8])
    total(loss).backward()
    assert new.grad is not None
    assert new.grad.tolist()[0] == pytest.approx([0, up / 4, -down / 4, 0])
    told = {each.name: (each.total, each.count) for each in loss.measures}
    assert told == {"clip_fraction": (2, 4), "approx_kl": (0, 4)}


def test_at_the_policy_that_sampled_the_surrogates_gradient_is_the_policy_gradient() -> None:
    old, gains = torch.tensor([[-1.0, -2.0]]), Advantages(torch.tensor([1.5]))
    gradients = []
    for make in (
        lambda new: clipped(LogProbs(new), gains, Mask(torch.ones(1, 2)), old=LogProbs(old)),
        lambda new: policy_gradient(LogProbs(new), gains, Mask(torch.ones(1, 2))),
    ):
        new = old.clone().requires_grad_()
        gradients.append(torch.autograd.grad(total(make(new)), [new])[0])
    assert torch.allclose(*gradients)


def test_log_ratios_beyond_twenty_neither_overflow_nor_pull() -> None:
    new, mask = torch.tensor([[60.0, -60.0]], requires_grad=True), Mask(torch.ones(1, 2))
    losses = [
        clipped(LogProbs(new), Advantages(torch.tensor([-1.0])), mask, old=LogProbs(torch.zeros(1, 2))),
        kl_k3(LogProbs(new), mask, ref=LogProbs(torch.zeros(1, 2))),
    ]
    for loss in losses:
        (gradient,) = torch.autograd.grad(total(loss), [new])
        assert total(loss).isfinite() and gradient.tolist() == [[0, 0]]
    assert losses[1].terms[0].values is not None and losses[1].terms[0].values.tolist() == [[10.0, 10.0]]


def test_the_kl_estimate_is_never_negative_and_exact_where_the_models_are_close() -> None:
    difference = torch.tensor([[1e-3, -1e-3, 1e-5, -1e-5, 1e-7, 0.0, 1e-2, -3e-4]])
    loss = kl_k3(LogProbs(-difference), Mask(torch.ones(1, 8)), ref=LogProbs(torch.zeros(1, 8)))
    values = loss.terms[0].values
    assert values is not None and (values >= 0).all()
    exact = torch.expm1(difference.double()) - difference.double()
    assert torch.allclose(values.double(), exact, rtol=1e-2, atol=1e-10)


@pytest.mark.parametrize(("setting", "value"), [("eps", 0.0), ("eps", 1.0), ("eps_high", 0.0), ("aggregation", "mean")])
def test_settings_out_of_range_are_refused(setting: str, value: object) -> None:
    given = {setting: value}
    with pytest.raises(SettingError, match=f"clipped.{setting}="):
        clipped(LogProbs(MASK.data), Advantages(torch.ones(3)), MASK, old=LogProbs(MASK.data), **given)  # type: ignore[arg-type]
