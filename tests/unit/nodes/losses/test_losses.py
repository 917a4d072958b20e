"""Losses by hand: what is averaged, what NaN under the mask does, and shapes that would broadcast unseen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from flowgraph import Loss, Mask
from flowgraph.errors import LawError, SettingError
from flowgraph.language import Aggregation
from flowgraph.language.loss import Counts, Term
from nodes.kl import kl_abs, kl_k1, kl_k2, kl_k3
from nodes.losses import cispo_loss, clipped, cross_entropy, dppo_loss, entropy_bonus, policy_gradient, value_loss
from nodes.losses.covariance import clip_cov_loss, kl_cov_loss
from nodes.losses.sequence import gmpo_loss, gspo_loss, sapo_loss
from nodes.values import Advantages, Chosen, Entropy, ImportanceWeights, LogProbs, Returns, TokenAdvantages, Values
from tests.looped import looped

MASK = Mask(torch.tensor([[1.0, 1, 0], [1, 0, 0], [0, 0, 0]]))
NAN = float("nan")
Make = Callable[[torch.Tensor, torch.Tensor], Loss]


def total(loss: Loss) -> torch.Tensor:
    return loss.total([term.counts() for term in loss.terms])


def advantages(values: torch.Tensor) -> Advantages:
    return TokenAdvantages(values)


def surrogate(node: Any, **more: Any) -> Make:
    """Return a function that calls a loss with all that it may be given, NaN wherever `x` has it."""

    def make(new: torch.Tensor, x: torch.Tensor) -> Loss:
        given = {"old": LogProbs(x - 1), "weights": ImportanceWeights(x.abs())}
        given |= {"chosen": Chosen(x - x.floor())} if node in (clip_cov_loss, kl_cov_loss) else {}
        return node(LogProbs(new), advantages(x), MASK, **given, **more)  # type: ignore[no-any-return]

    return make


def value(new: torch.Tensor, x: torch.Tensor) -> Loss:
    return value_loss(Values(new), Returns(x), MASK, old=Values(x - 1))


def of_rows(new: torch.Tensor, x: torch.Tensor) -> Loss:
    weights = ImportanceWeights(x.abs())
    return policy_gradient(LogProbs(new), advantages(x), MASK, weights=weights)


LOSSES: dict[str, Make] = {
    "clipped": lambda new, x: clipped(LogProbs(new), advantages(x), MASK, old=LogProbs(x - 1)),
    "clipped, weighed": surrogate(clipped, dual=1.5),
    "policy_gradient": lambda new, x: policy_gradient(LogProbs(new), advantages(x), MASK),
    "policy_gradient, weighed": of_rows,
    "cispo": surrogate(cispo_loss),
    "dppo tv": surrogate(dppo_loss),
    "dppo kl": surrogate(dppo_loss, divergence="kl"),
    "gspo": surrogate(gspo_loss),
    "gmpo": surrogate(gmpo_loss),
    "sapo": surrogate(sapo_loss),
    "clip_cov": surrogate(clip_cov_loss),
    "kl_cov": surrogate(kl_cov_loss),
    "value": value,
    "cross_entropy": lambda new, x: cross_entropy(LogProbs(new), MASK),
    "kl_k1": lambda new, x: kl_k1(LogProbs(new), MASK, ref=LogProbs(x)),
    "kl_k2": lambda new, x: kl_k2(LogProbs(new), MASK, ref=LogProbs(x)),
    "kl_k3": lambda new, x: kl_k3(LogProbs(new), MASK, ref=LogProbs(x)),
    "kl_k3+": lambda new, x: kl_k3(LogProbs(new), MASK, ref=LogProbs(x), straight_through=True),
    "kl_abs": lambda new, x: kl_abs(LogProbs(new), MASK, ref=LogProbs(x)),
    "entropy_bonus": lambda new, x: entropy_bonus(Entropy(new), MASK),
    "of": lambda new, x: Loss.of(-new, MASK),
}
POLICY: dict[str, Any] = {
    "clipped": clipped,
    "cispo": cispo_loss,
    "dppo": dppo_loss,
    "gspo": gspo_loss,
    "gmpo": gmpo_loss,
    "sapo": sapo_loss,
}


@looped("name", LOSSES)
@looped("bad", [NAN, float("inf"), -float("inf")])
@looped("where", ["new", "other", "both"])
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


@looped("name", [*POLICY, "policy_gradient"])
def test_a_row_without_a_token_may_have_an_advantage_that_is_not_finite(name: str) -> None:
    new, gain = torch.zeros(3, 3, requires_grad=True), Advantages(torch.tensor([1.0, 2.0, NAN]))
    given = {"old": LogProbs(torch.zeros(3, 3))} if name in POLICY else {}
    loss = total(POLICY.get(name, policy_gradient)(LogProbs(new), gain, MASK, **given))
    (gradient,) = torch.autograd.grad(loss, [new])
    assert loss.isfinite() and gradient.isfinite().all() and not gradient[2].any() and gradient[0, 0]


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


@looped("name", POLICY)
def test_advantages_with_one_dimension_too_many_are_refused_not_broadcast(name: str) -> None:
    old = LogProbs(MASK.data)
    with pytest.raises(LawError, match=r"a loss has terms of shape \[3, .*3\] under a mask of \[3, 3\]"):
        total(POLICY[name](LogProbs(MASK.data), Advantages(torch.ones(3, 1)), MASK, old=old))


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
    assert told == {"clip_fraction": (2, 4), "clip_fraction_low": (0, 4), "approx_kl": (0, 4)}


@looped("name", POLICY)
def test_at_the_policy_that_sampled_a_surrogates_gradient_is_the_policy_gradient(name: str) -> None:
    old, gains = torch.tensor([[-1.0, -2.0]]), Advantages(torch.tensor([1.5]))
    gradients = []
    for node, given in ((POLICY[name], {"old": LogProbs(old)}), (policy_gradient, {})):
        new = old.clone().requires_grad_()
        loss = node(LogProbs(new), gains, Mask(torch.ones(1, 2)), **given)
        gradients.append(torch.autograd.grad(total(loss), [new])[0])
    assert torch.allclose(*gradients)


def test_a_second_bound_holds_the_term_of_a_negative_advantage() -> None:
    mask, old = Mask(torch.ones(1, 3)), LogProbs(torch.zeros(1, 3))
    new = torch.tensor([[2.0, 1.0, 2.0]]).requires_grad_()
    gains = TokenAdvantages(torch.tensor([[-1.0, -1.0, 1.0]]))
    loss = clipped(LogProbs(new), gains, mask, old=old, dual=3.0)
    assert loss.terms[0].values is not None
    assert loss.terms[0].values.tolist()[0] == pytest.approx([3.0, float(torch.tensor(1.0).exp()), -1.2])
    (gradient,) = torch.autograd.grad(total(loss), [new])
    assert gradient[0].tolist() == pytest.approx([0, float(torch.tensor(1.0).exp()) / 3, 0])
    assert [(each.total, each.count) for each in loss.measures][:2] == [(1, 3), (1, 3)]


def test_a_responses_ratio_is_one_number_for_all_its_tokens() -> None:
    new = torch.tensor([[0.3, -0.1, 9.0], [0.2, 0.0, 0.0]])
    mask = Mask(torch.tensor([[1.0, 1, 0], [1, 0, 0]]))
    old, gains = LogProbs(torch.zeros(2, 3)), Advantages(torch.tensor([-1.0, 2.0]))
    for loss in (
        gspo_loss(LogProbs(new), gains, mask, old=old, eps=0.5, eps_high=0.5),
        gmpo_loss(LogProbs(new), gains, mask, old=old),
    ):
        values = loss.terms[0].values
        assert values is not None and loss.terms[0].aggregation is Aggregation.SEQUENCE_MEAN
        rows = [float(torch.tensor(0.1).exp()), -2 * float(torch.tensor(0.2).exp())]
        assert values[0, :2].tolist() == pytest.approx([rows[0]] * 2) and float(values[1, 0]) == pytest.approx(rows[1])
        assert float(total(loss)) == pytest.approx(sum(rows) / 2)


def test_a_gate_closes_sooner_where_the_advantage_is_negative() -> None:
    new = torch.tensor([[1.0, 1.0]], requires_grad=True)
    gains = TokenAdvantages(torch.tensor([[1.0, -1.0]]))
    loss = sapo_loss(LogProbs(new), gains, Mask(torch.ones(1, 2)), old=LogProbs(torch.zeros(1, 2)))
    (gradient,) = torch.autograd.grad(total(loss), [new])
    assert gradient[0, 0] < 0 < gradient[0, 1] < -gradient[0, 0]


def test_what_moved_with_its_advantage_learns_no_more_and_what_moved_against_it_does() -> None:
    old, new = torch.tensor([[0.5, 0.5, 0.5, 0.5]]).log(), torch.tensor([[0.9, 0.1, 0.9, 0.1]]).log().requires_grad_()
    gains = TokenAdvantages(torch.tensor([[1.0, 1.0, -1.0, -1.0]]))
    for divergence in ("tv", "kl"):
        loss = dppo_loss(LogProbs(new), gains, Mask(torch.ones(1, 4)), old=LogProbs(old), divergence=divergence)  # type: ignore[arg-type]
        (gradient,) = torch.autograd.grad(total(loss), [new])
        assert gradient[0].tolist() == pytest.approx([0, -0.2 / 4, 1.8 / 4, 0])


def test_a_critics_error_is_halved_and_may_not_shrink_by_a_leap() -> None:
    new, old = torch.tensor([[1.0, 0.1, -1.0]], requires_grad=True), Values(torch.zeros(1, 3))
    returns, mask = Returns(torch.ones(1, 3)), Mask(torch.ones(1, 3))
    loss = value_loss(Values(new), returns, mask, old=old, clip=0.2)
    assert loss.terms[0].values is not None
    assert loss.terms[0].values.tolist()[0] == pytest.approx([0.64 / 2, 0.81 / 2, 4 / 2])
    (gradient,) = torch.autograd.grad(total(loss), [new])
    assert gradient[0].tolist() == pytest.approx([0, -0.9 / 3, -2 / 3])
    assert [(each.name, each.total, each.count) for each in loss.measures] == [
        ("value_clip_fraction", 1, 3),
        ("value_error", pytest.approx(4.81), 3),
    ]


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


@pytest.mark.parametrize(("node", "eps"), [(clipped, 1.0), (cispo_loss, 10.0), (gspo_loss, 1.0)])
def test_a_bound_of_1_or_more_bounds_nothing_from_below(node: Any, eps: float) -> None:
    """As in verl's examples: 10 for CISPO. Where the ratio is far below 1, it is not clipped."""
    new, old = LogProbs(MASK.data * -9.0), LogProbs(torch.zeros_like(MASK.data))
    loss = node(new, Advantages(-torch.ones(3)), MASK, old=old, eps=eps)
    assert {each.name: each.total for each in loss.measures}["clip_fraction"] == 0


@looped(
    "node, setting, value",
    [
        (clipped, "eps", 0.0),
        (clipped, "eps_high", 0.0),
        (clipped, "dual", 1.0),
        (clipped, "aggregation", "mean"),
        (clipped, "aggregation", 0.0),
        (cispo_loss, "eps", 0.0),
        (dppo_loss, "divergence", "js"),
        (dppo_loss, "eps", 0.0),
        (gspo_loss, "eps", 0.0),
        (gspo_loss, "aggregation", "token-mean"),
        (gmpo_loss, "eps", 0.0),
        (sapo_loss, "tau_neg", 0.0),
    ],
)
def test_settings_out_of_range_are_refused(node: Any, setting: str, value: object) -> None:
    given, owner = {setting: value}, node.__name__
    with pytest.raises(SettingError, match=rf"{owner}\.{setting}=|{owner} has no setting `{setting}`"):
        node(LogProbs(MASK.data), Advantages(torch.ones(3)), MASK, old=LogProbs(MASK.data), **given)


def test_an_aggregation_may_be_a_constant_length() -> None:
    new = LogProbs(torch.ones(3, 3))
    loss = cross_entropy(new, MASK, aggregation=10.0)
    assert float(total(loss)) == pytest.approx(-(2 + 1) / 10 / 2)
