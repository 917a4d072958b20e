"""Losses, their gradients and metrics, compared with verl's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch

from benchmarks.verl_case import (
    HOW,
    POLICIES,
    TOKENS,
    WEIGHTED,
    Case,
    Columns,
    Given,
    Ours,
    Results,
    clip,
    gain,
    groups,
    lps,
    mask,
    reduced,
)
from flowgraph import Loss
from flowgraph.language import Aggregation
from flowgraph.language.values import Sample, Trajectory
from nodes import kl as k
from nodes import losses as one
from nodes import values as v
from nodes.losses import covariance as cov
from nodes.losses import sequence as rows

ROWS = "seq-mean-token-mean"
VARIANTS = (
    ("", "advantages", False, "token-mean"),
    ("weights, token advantages, sequence mean", "token_advantages", True, ROWS),
)


def policy_loss(
    name: str,
    ours: Callable[[Columns, Given], Loss],
    *metrics: str,
    theirs: Mapping[str, Any],
    how: str = "",
    function: str = "loss",
) -> list[Case]:
    """Compare a loss, its gradient and metrics: one advantage a row, and one a token with importance weights.

    `ours` takes the batch and what all losses take; `how` is verl's aggregation of a loss that has no other.
    """
    return [
        Case(
            name,
            _loss(ours, gains, weighted, how or agg, metrics),
            function,
            {"how": how or agg, "advantages": gains, "weighted": weighted, **theirs},
            by="new",
            kinds=WEIGHTED if weighted else POLICIES,
            variant=variant,
        )
        for variant, gains, weighted, agg in VARIANTS
    ]


def _loss(ours: Callable[[Columns, Given], Loss], gains: str, weighted: bool, how: str, metrics: Sequence[str]) -> Ours:
    def results(columns: Columns) -> Results:
        given: Given = {"new": lps(columns, "new"), "advantages": gain(columns, gains), "mask": mask(columns)}
        given |= {"old": lps(columns, "old"), "aggregation": HOW[how]}
        given |= {"weights": v.ImportanceWeights(columns["weights"])} if weighted else {}
        return reduced(ours(columns, given), *metrics)

    return results


def less(given: Given, *names: str) -> Given:
    """Return what all losses take, without what this one does not."""
    return {name: value for name, value in given.items() if name not in names}


def _dppo(kind: Literal["tv", "kl"], eps: float) -> list[Case]:
    return policy_loss(
        f"dppo_{kind}",
        lambda b, given: one.dppo_loss(**given, divergence=kind, eps=eps),
        *("clip_fraction", "approx_kl"),
        theirs={"name": f"dppo_{kind}", **clip(eps, eps, 20.0)},
    )


def _ids(columns: Columns) -> v.Responses:
    order = torch.arange(len(columns["group"]))
    parts = {"group": groups(columns), "sample": Sample(order), "trajectory": Trajectory(torch.zeros_like(order))}
    return v.Responses.of(parts)


def _clip_cov(columns: Columns, given: Given, at: str, eps: float, high: float) -> Loss:
    drawn, kept = lps(columns, at), given["mask"]
    chosen = cov.high_covariance(drawn, given["advantages"], kept, ids=_ids(columns), fraction=1.0, low=0.3, high=5.0)
    return cov.clip_cov_loss(**given, chosen=chosen, eps=eps, eps_high=high)


def _kl_cov(columns: Columns, given: Given, at: str) -> Loss:
    chosen = cov.top_covariance(lps(columns, at), given["advantages"], given["mask"], fraction=0.1)
    return cov.kl_cov_loss(**given, chosen=chosen, weight=0.5)


COV = {"name": "clip_cov", "clip_cov_ratio": 1.0, "clip_cov_lb": 0.3, "clip_cov_ub": 5.0}
KL_COV = {"name": "kl_cov", "kl_cov_ratio": 0.1, "ppo_kl_coef": 0.5}
DUAL = ("clip_fraction", "clip_fraction_low", "approx_kl")
BOTH = ("clip_fraction", "approx_kl")

POLICY_LOSSES = (
    *policy_loss(
        "vanilla",
        lambda b, given: one.clipped(**given, eps=0.2, eps_high=0.28),
        *BOTH,
        theirs={"name": "vanilla", **clip(0.2, 0.28)},
    ),
    *policy_loss(
        "vanilla, dual clip",
        lambda b, given: one.clipped(**given, eps=0.1, eps_high=0.1, dual=1.2),
        *DUAL,
        theirs={"name": "vanilla", **clip(0.1, 0.1, 1.2)},
    ),
    *policy_loss("gpg loss", lambda b, given: one.policy_gradient(**less(given, "old")), theirs={"name": "gpg"}),
    *policy_loss(
        "reinforce", lambda b, given: one.policy_gradient(**less(given, "old")), theirs={}, function="reinforce"
    ),
    *policy_loss(
        "cispo",
        lambda b, given: one.cispo_loss(**given, eps=0.2, eps_high=0.28),
        *BOTH,
        theirs={"name": "cispo", **clip(0.2, 0.28)},
    ),
    *policy_loss(
        "gspo",
        lambda b, given: rows.gspo_loss(**less(given, "aggregation"), eps=0.03, eps_high=0.04),
        *BOTH,
        theirs={"name": "gspo", **clip(0.03, 0.04)},
        how=ROWS,
    ),
    *policy_loss(
        "sapo",
        lambda b, given: rows.sapo_loss(**less(given, "aggregation"), tau_pos=1.0, tau_neg=1.05),
        "approx_kl",
        theirs={"name": "sapo", "tau_pos": 1.0, "tau_neg": 1.05},
        how=ROWS,
    ),
    *policy_loss(
        "geo_mean",
        lambda b, given: rows.gmpo_loss(**less(given, "aggregation"), eps=0.2, eps_high=0.4),
        theirs={"name": "geo_mean", **clip(0.2, 0.4)},
        how=ROWS,
    ),
    *_dppo("tv", 0.05),
    *_dppo("kl", 0.02),
    *policy_loss(
        "clip_cov, chosen at the newest log-probs",
        lambda b, given: _clip_cov(b, given, "new", 0.9, 5.0),
        theirs={**COV, **clip(0.9, 5.0)},
    ),
    *policy_loss("clip_cov", lambda b, given: _clip_cov(b, given, "old", 0.2, 0.2), theirs={**COV, **clip(0.2, 0.2)}),
    *policy_loss("kl_cov, chosen at the newest log-probs", lambda b, given: _kl_cov(b, given, "new"), theirs=KL_COV),
    *policy_loss("kl_cov", lambda b, given: _kl_cov(b, given, "old"), theirs=KL_COV),
)


def _aggregated(how: str) -> Case:
    factor = {"loss_scale_factor": HOW[how]} if not isinstance(HOW[how], Aggregation) else {}
    return Case(
        f"aggregation {how}",
        lambda b: reduced(Loss.of(b["new"], mask(b), HOW[how])),
        "aggregate",
        {"how": how, **factor},
        by="new",
        kinds=TOKENS,
    )


def _half(how: str) -> Case:
    """Compare a micro-batch's share of the loss of its minibatch."""

    def results(columns: Columns) -> Results:
        half = {name: each[: len(each) // 2] for name, each in columns.items()}

        def loss(b: Columns) -> Loss:
            old = lps(b, "old")
            return one.clipped(lps(b, "new"), gain(b, "advantages"), mask(b), old=old, eps=0.2, aggregation=HOW[how])

        return {"loss": loss(half).total([each.counts() for each in loss(columns).terms])}

    theirs = {"name": "vanilla", "how": how, "advantages": "advantages", "half": True, **clip(0.2, 0.2)}
    return Case(f"half a minibatch, {how}", results, "loss", theirs, by="new", kinds=("ragged", "hidden rows"))


def _kl(node: Callable[..., Loss], kind: str, **settings: Any) -> Case:
    def results(columns: Columns) -> Results:
        return reduced(node(lps(columns, "new"), mask(columns), ref=lps(columns, "ref"), **settings))

    return Case(f"KL {kind}", results, "kl", {"kind": kind, "how": "token-mean"}, by="new", kinds=POLICIES)


def _values(columns: Columns) -> Results:
    new, old = v.Values(columns["new_values"]), v.Values(columns["values"])
    return reduced(
        one.value_loss(new, v.Returns(columns["returns"]), mask(columns), old=old, clip=0.2), "value_clip_fraction"
    )


THROUGH = {"straight_through": True}
OTHERS = (
    *(_aggregated(how) for how in HOW),
    *(_half(how) for how in ("token-mean", ROWS, "seq-mean-token-sum")),
    *(_kl(node, kind) for node, kind in ((k.kl_k1, "k1"), (k.kl_k2, "k2"), (k.kl_k3, "k3"), (k.kl_abs, "abs"))),
    *(_kl(node, kind, **THROUGH) for node, kind in ((k.kl_k1, "k1+"), (k.kl_k3, "k3+"), (k.kl_abs, "abs+"))),
    _kl(k.kl_k2, "k2+"),
    Case("value loss", _values, "value_loss", {"how": "token-mean", "clip": 0.2}, by="new_values", kinds=TOKENS),
    Case(
        "entropy bonus",
        lambda b: reduced(one.entropy_bonus(v.Entropy(b["entropy"]), mask(b))),
        "aggregate",
        {"how": "token-mean", "values": "entropy", "sign": -1.0},
        by="entropy",
        kinds=TOKENS,
    ),
    Case(
        "cross-entropy",
        lambda b: reduced(one.cross_entropy(lps(b, "new"), mask(b))),
        "aggregate",
        {"how": "token-mean", "sign": -1.0},
        by="new",
        kinds=TOKENS,
    ),
)

LOSSES: Sequence[Case] = (*POLICY_LOSSES, *OTHERS)
