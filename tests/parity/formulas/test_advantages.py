"""Each advantage, reward and whitening against a second writing of it in loops, and what must not change a result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flowgraph.language.values import Group, Lengths, Mask, Tokens
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
from nodes.rewards import kl_penalized, overlong_penalty, token_rewards
from nodes.values import (
    Advantages,
    Entropy,
    ImportanceWeights,
    KLWeight,
    LogProbs,
    Rewards,
    Scores,
    SquaredProbs,
    TokenAdvantages,
    TokenKL,
    Values,
)
from nodes.whitening import whiten
from tests.parity.formulas.batches import Array, Batch, batches

OPEN, CLOSE = 7, 8
SCALED = ("scores", "greedy", "rewards", "values", "kl", "advantages", "gains")


@dataclass(frozen=True)
class Case:
    """One batch: columns of a number a row [B], and of a number a token [B, T]; NaN where the mask is 0."""

    rows: dict[str, Array]
    tokens: dict[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.rows[name] if name in self.rows else self.tokens[name]

    def tensor(self, name: str) -> torch.Tensor:
        return torch.from_numpy(self[name].copy())

    def ordered(self, order: Sequence[int]) -> Case:
        """Put the rows into another order."""
        return Case(
            {name: column[list(order)] for name, column in self.rows.items()},
            {name: column[list(order)] for name, column in self.tokens.items()},
        )

    def widened(self, at: int, planted: float) -> Case:
        """Put a masked column before column `at`."""
        stands = dict.fromkeys(self.tokens, planted) | {"mask": 0.0, "ids": CLOSE}
        return replace(self, tokens={n: np.insert(each, at, stands[n], axis=1) for n, each in self.tokens.items()})

    def scaled(self, factor: float) -> Case:
        """Multiply all that is earned or expected."""
        return Case(
            {name: column * factor if name in SCALED else column for name, column in self.rows.items()},
            {name: column * factor if name in SCALED else column for name, column in self.tokens.items()},
        )


def case(batch: Batch) -> Case:
    noise = np.random.default_rng([batch.seed, 3])
    pi = batch.column("pi", 0.01, 0.99)
    rows = {
        "scores": batch.scores(),
        "greedy": np.array([0.1 * each for each in batch.group]),
        "group": batch.group,
        "lengths": batch.lengths,
        "advantages": batch.row("advantages") * (batch.scores("signal") != 0),
    }
    tokens = {
        "mask": batch.mask,
        "ids": noise.choice([OPEN, 1, 1, 2, CLOSE], batch.shape),
        "rewards": batch.column("rewards"),
        "values": batch.column("values"),
        "kl": batch.column("kl"),
        "gains": batch.column("gains"),
        "entropy": batch.column("entropy", 0.0, 2.0),
        "logprobs": np.log(pi),
        "squares": pi**2 + (1 - pi) ** 2 * batch.column("rest", 0.1, 1.0),
        "weights": batch.column("weights", 0.0, 2.0),
    }
    return Case(rows, tokens)


# ------------------------------------------------------------------------------------------- the second writing


def mates(c: Case, i: int) -> list[int]:
    return [j for j in range(len(c["group"])) if c["group"][j] == c["group"][i]]


def kept(c: Case, i: int) -> list[int]:
    return [t for t in range(c["mask"].shape[1]) if c["mask"][i, t] == 1]


def mean(numbers: Sequence[float]) -> float:
    return math.fsum(numbers) / len(numbers)


def deviation(numbers: Sequence[float]) -> float:
    if len(numbers) == 1:
        return 1.0
    if len(set(numbers)) == 1:
        return 0.0
    return math.sqrt(math.fsum((each - mean(numbers)) ** 2 for each in numbers) / (len(numbers) - 1))


def by_row(formula: Callable[[Case, int], float]) -> Callable[[Case], Array]:
    return lambda c: np.array([formula(c, i) for i in range(len(c["group"]))])


def by_token(formula: Callable[[Case, int, int], float]) -> Callable[[Case], Array]:
    """Say what the kept tokens of each row give, counted from 0; the others give 0."""

    def loops(c: Case) -> Array:
        found = np.zeros(c["mask"].shape)
        for i in range(len(found)):
            for k, t in enumerate(kept(c, i)):
                found[i, t] = formula(c, i, k)
        return found

    return loops


def centred(c: Case, i: int) -> float:
    inside = [c["scores"][j] for j in mates(c, i)]
    if len(inside) == 1:
        return float(inside[0])
    return 0.0 if len(set(inside)) == 1 else float(c["scores"][i]) - mean(inside)


def normalised(c: Case, i: int, eps: float = 1e-6) -> float:
    return centred(c, i) / (deviation([c["scores"][j] for j in mates(c, i)]) + eps)


def gpg(c: Case, i: int) -> float:
    return centred(c, i) * len(c["scores"]) / max(1, sum(each != 0 for each in c["scores"]))


def rloo(c: Case, i: int) -> float:
    others = [c["scores"][j] for j in mates(c, i) if j != i]
    return float(c["scores"][i]) - mean(others) if others else 0.0


def opo(c: Case, i: int) -> float:
    inside = mates(c, i)
    tokens = sum(len(kept(c, j)) for j in inside)
    if len(inside) == 1 or tokens == 0:
        return float(c["scores"][i])
    return float(c["scores"][i]) - sum(len(kept(c, j)) * c["scores"][j] for j in inside) / tokens


def pass_at_k(c: Case, i: int) -> float:
    inside = [float(c["scores"][j]) for j in mates(c, i)]
    others = [float(c["scores"][j]) for j in mates(c, i) if j != i]
    return max(0.0, float(c["scores"][i]) - max(others)) / (deviation(inside) + 1e-6) if others else 0.0


def shaped(c: Case, i: int) -> float:
    heard = [c["entropy"][i, t] for t in kept(c, i)]
    return raised(float(c["advantages"][i]), mean(heard) if heard else 0.0)


def raised(advantage: float, entropy: float) -> float:
    return advantage + 0.4 * max(-abs(advantage) / 2, min(abs(advantage) / 2, entropy))


def shaped_between(c: Case, i: int) -> float:
    thought, state = list[float](), "before"
    for t in kept(c, i):
        if state == "before" and c["ids"][i, t] == OPEN:
            state = "in"
        elif state == "in" and c["ids"][i, t] == CLOSE:
            state = "closed"
        elif state == "in":
            thought.append(c["entropy"][i, t])
    return raised(float(c["advantages"][i]), mean(thought) if thought and state == "closed" else 0.0)


def temporal_difference(c: Case, i: int, k: int, gamma: float) -> float:
    at = kept(c, i)
    ahead = c["values"][i, at[k + 1]] if k + 1 < len(at) else 0.0
    return float(c["rewards"][i, at[k]] + gamma * ahead - c["values"][i, at[k]])


def gae_sum(c: Case, i: int, k: int, gamma: float, lam: float) -> float:
    """Sum (γλ)^l δ_{k+l}: equation 16 as it stands, no recursion."""
    last = len(kept(c, i))
    return sum((gamma * lam) ** (j - k) * temporal_difference(c, i, j, gamma) for j in range(k, last))


def to_go(c: Case, i: int, k: int, gamma: float = 1.0) -> float:
    return sum(gamma**l * float(c["rewards"][i, t]) for l, t in enumerate(kept(c, i)[k:]))  # noqa: E741


def energy(c: Case, i: int, k: int, weighted: bool) -> float:
    found = 0.0
    for t in kept(c, i)[: k + 1]:
        pi = math.exp(c["logprobs"][i, t])
        found += (1 - 2 * pi + c["squares"][i, t]) * (c["weights"][i, t] ** 2 if weighted else 1.0)
    return found


def otb(weighted: bool, zero_tail: bool) -> Callable[[Case, int, int], float]:
    def formula(c: Case, i: int, k: int) -> float:
        alive = [j for j in mates(c, i) if len(kept(c, j)) > k]
        others = [j for j in mates(c, i) if j != i and kept(c, j)]
        if not others or (zero_tail and alive == [i]):
            return to_go(c, i, k)
        total = sum(energy(c, j, k, weighted) for j in alive)
        baseline = sum(to_go(c, j, k) * energy(c, j, k, weighted) for j in alive) / (total + 1e-8)
        return to_go(c, i, k) - baseline

    return formula


def whitened(of: Callable[[Case, int, int], float], shift: bool) -> Callable[[Case], Array]:
    def loops(c: Case) -> Array:
        places = [(i, t) for i in range(len(c["group"])) for t in kept(c, i)]
        numbers = [of(c, i, t) for i, t in places]
        found = np.zeros(c["mask"].shape)
        spread = deviation(numbers) ** 2 if len(numbers) > 1 else 0.0
        for place, number in zip(places, numbers, strict=True):
            found[place] = (number - mean(numbers)) / math.sqrt(spread + 1e-8) + (0.0 if shift else mean(numbers))
        return found

    return loops


def score_at_the_end(c: Case, i: int, k: int) -> float:
    return float(c["scores"][i]) if k == len(kept(c, i)) - 1 else 0.0


def less_kl(c: Case, i: int, k: int) -> float:
    return float((c["rewards"] - 0.3 * c["kl"])[i, kept(c, i)[k]])


def less_overlong(c: Case, i: int) -> float:
    length, most, buffer, factor = int(c["lengths"][i]), 4, 3, 0.5
    if length <= most - buffer:
        return float(c["scores"][i])
    taken = (most - buffer - length) / buffer if length <= most else -1.0
    return float(c["scores"][i]) + factor * taken


# ------------------------------------------------------------------------------------------- the nodes


def scores(c: Case) -> Scores:
    return Scores(c.tensor("scores"))


def groups(c: Case) -> Group:
    return Group(c.tensor("group"))


def masks(c: Case) -> Mask:
    return Mask(c.tensor("mask"))


def rewards(c: Case) -> Rewards:
    return Rewards(c.tensor("rewards"))


def run_greedy(c: Case) -> Advantages:
    prompts, first = np.unique(c["group"], return_index=True)
    greedy, other = torch.from_numpy(c["greedy"][first]).flip(0), torch.from_numpy(prompts).flip(0)
    return greedy_baseline(scores(c), groups(c), greedy=Scores(greedy), greedy_group=Group(other))


def run_shaped(between: tuple[int, int] | None) -> Callable[[Case], Advantages]:
    def run(c: Case) -> Advantages:
        heard, ids = Entropy(c.tensor("entropy")), Tokens(c.tensor("ids"))
        return entropy_shaped(Advantages(c.tensor("advantages")), heard, masks(c), ids, between=between)

    return run


def run_otb(weighted: bool, zero_tail: bool) -> Callable[[Case], TokenAdvantages]:
    def run(c: Case) -> TokenAdvantages:
        return optimal_token_baseline(
            rewards(c),
            groups(c),
            masks(c),
            old=LogProbs(c.tensor("logprobs")),
            squares=SquaredProbs(c.tensor("squares")),
            weights=ImportanceWeights(c.tensor("weights")) if weighted else None,
            zero_tail=zero_tail,
        )

    return run


Node = Callable[[Case], Advantages | Scores | Rewards]
ROWS: dict[str, tuple[Node, Callable[[Case], Array]]] = {
    "group_normalize": (lambda c: group_normalize(scores(c), groups(c)), by_row(normalised)),
    "centred": (lambda c: group_normalize(scores(c), groups(c), deviation=False), by_row(centred)),
    "gpg": (lambda c: gpg_advantages(scores(c), groups(c)), by_row(gpg)),
    "rloo": (lambda c: rloo_advantages(scores(c), groups(c)), by_row(rloo)),
    "opo": (lambda c: opo_advantages(scores(c), groups(c), masks(c)), by_row(opo)),
    "pass_at_k": (lambda c: pass_at_k_advantages(scores(c), groups(c)), by_row(pass_at_k)),
    "greedy": (run_greedy, by_row(lambda c, i: float(c["scores"][i] - c["greedy"][i]))),
    "shaped": (run_shaped(None), by_row(shaped)),
    "shaped_between": (run_shaped((OPEN, CLOSE)), by_row(shaped_between)),
    "overlong": (
        lambda c: overlong_penalty(scores(c), Lengths(c.tensor("lengths")), max_tokens=4, buffer=3, factor=0.5),
        by_row(less_overlong),
    ),
}
TOKENS: dict[str, tuple[Node, Callable[[Case], Array]]] = {
    "gae": (
        lambda c: gae(rewards(c), Values(c.tensor("values")), masks(c), gamma=0.9, lam=0.8)[0],
        by_token(lambda c, i, k: gae_sum(c, i, k, 0.9, 0.8)),
    ),
    "gae_defaults": (
        lambda c: gae(rewards(c), Values(c.tensor("values")), masks(c))[0],
        by_token(lambda c, i, k: gae_sum(c, i, k, 1.0, 0.95)),
    ),
    "gae_returns": (
        lambda c: gae(rewards(c), Values(c.tensor("values")), masks(c), gamma=0.9, lam=0.8)[1],
        by_token(lambda c, i, k: gae_sum(c, i, k, 0.9, 0.8) + float(c["values"][i, kept(c, i)[k]])),
    ),
    "returns": (
        lambda c: discounted_returns(rewards(c), masks(c), gamma=0.9),
        by_token(lambda c, i, k: to_go(c, i, k, 0.9)),
    ),
    "otb": (run_otb(False, True), by_token(otb(False, True))),
    "otb_weighted": (run_otb(True, True), by_token(otb(True, True))),
    "otb_with_tail": (run_otb(True, False), by_token(otb(True, False))),
    "whiten": (
        lambda c: whiten(TokenAdvantages(c.tensor("gains")), masks(c)),
        whitened(lambda c, i, t: float(c["gains"][i, t]), True),
    ),
    "whiten_rows": (
        lambda c: whiten(Advantages(c.tensor("advantages")), masks(c), shift_mean=False),
        whitened(lambda c, i, t: float(c["advantages"][i]), False),
    ),
    "token_rewards": (lambda c: token_rewards(scores(c), masks(c)), by_token(score_at_the_end)),
    "kl_penalized": (
        lambda c: kl_penalized(rewards(c), TokenKL(c.tensor("kl")), masks(c), weight=0.3),
        by_token(less_kl),
    ),
    "kl_carried": (
        lambda c: kl_penalized(rewards(c), TokenKL(c.tensor("kl")), masks(c), beta=KLWeight(0.3), weight=9.0),
        by_token(less_kl),
    ),
}
ALL = ROWS | TOKENS
LINEAR = ALL.keys() - {"group_normalize", "pass_at_k", "shaped", "shaped_between", "overlong", "whiten", "whiten_rows"}
WHOLE_BATCH = {"gpg", "whiten", "whiten_rows"}
every = pytest.mark.parametrize("name", ALL)
few = settings(max_examples=20)  # of each of many nodes


def same(found: torch.Tensor, wanted: Array) -> None:
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-9, atol=1e-9)


@every
@given(batch=batches())
def test_the_node_gives_what_the_formula_says(name: str, batch: Batch) -> None:
    node, loops = ALL[name]
    same(node(case(batch)).data, loops(case(batch)))


@every
@few
@given(batch=batches(), random=st.randoms(use_true_random=False))
def test_rows_in_another_order_give_the_same_in_that_order(name: str, batch: Batch, random: Random) -> None:
    node, c = ALL[name][0], case(batch)
    order = random.sample(range(len(c["group"])), len(c["group"]))
    same(node(c.ordered(order)).data, node(c).data.numpy()[order])


@every
@few
@given(batch=batches(), share=st.floats(0, 1), planted=st.sampled_from([math.nan, math.inf, 1e30]))
def test_a_masked_token_more_changes_nothing_wherever_it_stands(
    name: str, batch: Batch, share: float, planted: float
) -> None:
    node, c = ALL[name][0], case(batch)
    at = round(share * batch.shape[1])
    plain = node(c).data.numpy()
    same(node(c.widened(at, planted)).data, np.insert(plain, at, 0.0, axis=1) if name in TOKENS else plain)


@pytest.mark.parametrize("name", sorted(ALL.keys() - WHOLE_BATCH))
@few
@given(batch=batches())
def test_rows_of_other_prompts_change_nothing_where_the_node_says_so(name: str, batch: Batch) -> None:
    node, c = ALL[name][0], case(batch)
    inside = mates(c, 0)
    same(node(c.ordered(inside)).data, node(c).data.numpy()[inside])


def test_what_reads_the_whole_batch_says_so() -> None:
    assert [gpg_advantages.__dict__["op"].separable, whiten.__dict__["op"].separable] == [False, False]


@pytest.mark.parametrize("name", sorted(LINEAR))
@few
@given(batch=batches(), factor=st.floats(0.1, 10))
def test_what_is_linear_scales_with_what_is_earned(name: str, batch: Batch, factor: float) -> None:
    node, c = ALL[name][0], case(batch)
    same(node(c.scaled(factor)).data, factor * node(c).data.numpy())


@given(batches(), st.floats(0.1, 10))
def test_what_is_divided_by_its_deviation_does_not_scale_with_scores(batch: Batch, factor: float) -> None:
    c, several = case(batch), np.array([len(mates(case(batch), i)) > 1 for i in range(len(batch.group))])
    for node in (group_normalize, pass_at_k_advantages):
        plain, scaled = (node(scores(each), groups(each), eps=1e-12).data.numpy() for each in (c, c.scaled(factor)))
        np.testing.assert_allclose(scaled[several], plain[several], rtol=1e-9, atol=1e-9)


@given(batches())
def test_entropy_shapes_the_advantage_of_each_token_by_its_own_size(batch: Batch) -> None:
    c = case(batch)
    heard, ids = Entropy(c.tensor("entropy")), Tokens(c.tensor("ids"))
    found = entropy_shaped(TokenAdvantages(c.tensor("gains")), heard, masks(c), ids)
    assert isinstance(found, TokenAdvantages)

    def formula(c: Case, i: int, k: int) -> float:
        return raised(float(c["gains"][i, kept(c, i)[k]]), mean([c["entropy"][i, t] for t in kept(c, i)]))

    same(found.data, by_token(formula)(c))
