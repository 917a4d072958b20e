"""Advantages and rewards, compared with verl's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.verl_case import (
    FLOAT32,
    FLOAT64,
    GROUPS,
    POLICIES,
    TOKENS,
    Case,
    Columns,
    Given,
    Results,
    gain,
    groups,
    lps,
    mask,
    scores,
    told,
)
from flowgraph.language.values import Lengths
from nodes import advantages as a
from nodes import kl as k
from nodes import rewards as r
from nodes import values as v
from nodes.whitening import whiten


def estimator(
    name: str,
    ours: Callable[[Columns], v.Advantages | tuple[v.Advantages, v.Returns]],
    *,
    theirs: str = "",
    rewards: str = "outcome",
    kinds: Sequence[str] = GROUPS,
    tolerance: float = FLOAT64,
    dtype: str = "float64",
    **settings: Any,
) -> Case:
    """Compare advantages, and returns where ours gives them."""

    def results(columns: Columns) -> Results:
        given = ours(columns)
        found, returns = given if isinstance(given, tuple) else (given, None)
        known = {} if returns is None else {"returns": returns.data}
        return {"advantages": found.per_token() * (columns["mask"] > 0), **known}

    told = {"name": theirs or name, "rewards": rewards, **settings}
    return Case(name, results, "estimator", told, kinds=kinds, tolerance=tolerance, dtype=dtype)


def _gae(columns: Columns) -> tuple[v.Advantages, v.Returns]:
    given, returns = a.gae(
        v.Rewards(columns["rewards"]), v.Values(columns["values"]), mask(columns), gamma=0.9, lam=0.8
    )
    return whiten(given, mask(columns)), returns


def _from_here(columns: Columns, gamma: float) -> v.TokenAdvantages:
    return whiten(a.discounted_returns(v.Rewards(columns["rewards"]), mask(columns), gamma=gamma), mask(columns))


def _against_greedy(columns: Columns) -> v.Advantages:
    given, own = scores(columns), groups(columns)
    return a.greedy_baseline(given, own, greedy=scores(columns, "greedy"), greedy_group=own)


def _gdpo(columns: Columns) -> v.Advantages:
    parts = [a.group_normalize(scores(columns, name), groups(columns)) for name in ("scores", "style")]
    return whiten(parts[0].plus(parts[1].times(0.5)), mask(columns))


def _otb(columns: Columns, **settings: Any) -> v.Advantages:
    rewards, squares = v.Rewards(columns["rewards"]), v.SquaredProbs(columns["squared"])
    logprobs = lps(columns, "old")
    return a.optimal_token_baseline(rewards, groups(columns), mask(columns), old=logprobs, squares=squares, **settings)


def _normalized(columns: Columns, **settings: Any) -> v.Advantages:
    return a.group_normalize(scores(columns), groups(columns), **settings)


PLAIN: Given = {"norm_adv_by_std_in_grpo": False}
OTB = "tir_optimal_token_baseline"
PARTS: Given = {"gdpo_reward_keys": ["scores", "style"], "gdpo_reward_weights": [1.0, 0.5]}

ADVANTAGES = (
    estimator("gae", _gae, rewards="rewards", kinds=TOKENS, gamma=0.9, lam=0.8),
    estimator("grpo", _normalized),
    estimator("grpo, no deviation", lambda b: _normalized(b, deviation=False), theirs="grpo", **PLAIN),
    estimator("grpo, float32", _normalized, theirs="grpo", tolerance=FLOAT32, dtype="float32"),
    estimator("grpo_vectorized", _normalized, tolerance=FLOAT32, dtype="float32"),
    estimator("grpo_passk", lambda b: a.pass_at_k_advantages(scores(b), groups(b)), norm_adv_by_std_in_grpo=True),
    estimator(
        "grpo_passk, no deviation",
        lambda b: a.pass_at_k_advantages(scores(b), groups(b), deviation=False),
        theirs="grpo_passk",
        **PLAIN,
    ),
    estimator("gdpo", _gdpo, tolerance=FLOAT32, **PARTS),
    estimator("reinforce_plus_plus", lambda b: _from_here(b, 0.9), rewards="rewards", kinds=TOKENS, gamma=0.9),
    estimator("reinforce_plus_plus_baseline", lambda b: whiten(_normalized(b, deviation=False), mask(b))),
    estimator("rloo", lambda b: a.rloo_advantages(scores(b), groups(b))),
    estimator("rloo_vectorized", lambda b: a.rloo_advantages(scores(b), groups(b))),
    estimator("remax", _against_greedy, rewards="earned"),
    estimator("opo", lambda b: a.opo_advantages(scores(b), groups(b), mask(b))),
    estimator("gpg", lambda b: a.gpg_advantages(scores(b), groups(b))),
    estimator(OTB, _otb, rewards="rewards", kinds=(*GROUPS, "NaN")),
    estimator(
        f"{OTB}, weights",
        lambda b: _otb(b, weights=v.ImportanceWeights(b["weights"])),
        theirs=OTB,
        rewards="rewards",
        kinds=(*GROUPS, "NaN", "zero weights"),
        weighted=True,
    ),
    estimator(
        f"{OTB}, tail", lambda b: _otb(b, zero_tail=False), theirs=OTB, rewards="rewards", handle_zero_tail=False
    ),
    estimator("optimal_token_baseline", _otb, rewards="rewards"),
    Case("whiten", lambda b: {"tokens": whiten(gain(b, "rewards"), mask(b)).data}, "whiten", {"values": "rewards"}),
    Case(
        "whiten, mean kept",
        lambda b: {"tokens": whiten(gain(b, "rewards"), mask(b), shift_mean=False).data},
        "whiten",
        {"values": "rewards", "shift_mean": False},
    ),
)


def _penalized(columns: Columns, kind: k.Estimator) -> Results:
    kept, beta = mask(columns), v.KLWeight(0.05)
    kl = k.kl_estimate(lps(columns, "old"), kept, ref=lps(columns, "ref"), estimator=kind)
    rewards = r.kl_penalized(v.Rewards(columns["earned"]), kl, kept, beta=beta)
    factor = k.adaptive_kl(beta, kl, kept, target=0.1, horizon=1000)
    return {"rewards": rewards.data, "factor": float(factor.data), **told(kl, "kl")}


def _in_reward(kind: k.Estimator) -> Case:
    theirs = {"kind": kind, "beta": 0.05, "target": 0.1, "horizon": 1000.0}
    return Case(f"KL {kind} in the reward", lambda b: _penalized(b, kind), "kl_in_reward", theirs, kinds=POLICIES)


def _overlong(columns: Columns) -> Results:
    given = r.overlong_penalty(scores(columns), Lengths(columns["lengths"]), max_tokens=16, buffer=5, factor=1.5)
    return {"scores": given.data}


REWARDS = (
    *(_in_reward(kind) for kind in ("k1", "k2", "k3", "abs")),
    Case("overlong", _overlong, "overlong", {"longest": 16, "buffer": 5, "factor": 1.5}, tolerance=FLOAT32),
    Case(
        "reward's place",
        lambda b: {"rewards": r.token_rewards(scores(b), mask(b)).data},
        "overlong",
        {"longest": 16, "buffer": 5, "factor": 0.0},
        tolerance=FLOAT32,
    ),
)
