"""Rollout correction compared with verl's: importance weights, rejection, metrics of two engines, bypass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.verl_case import (
    POLICIES,
    TOKENS,
    Case,
    Columns,
    Given,
    Results,
    clip,
    gain,
    lps,
    mask,
    reduced,
    told,
)
from flowgraph.language.values import Mask
from nodes import correction as c
from nodes import losses as one
from nodes.mismatch import mismatch


def _weights(columns: Columns, level: c.Level, normalize: bool = False, **bounds: Any) -> Results:
    old, kept = lps(columns, "old"), mask(columns)
    given = c.importance_weights(old, kept, behaviour=lps(columns, "roll"), level=level, **bounds)
    metrics = told(given, "weight_high", "weight_low", "weight", "weight_squared")
    known = {"rollout_is_ratio_fraction_high": metrics["weight_high"]}
    known["rollout_is_ratio_fraction_low"] = metrics["weight_low"]
    if level == "token":
        known["rollout_is_mean"] = metrics["weight"]
        squared = metrics["weight_squared"]
        known["rollout_is_eff_sample_size"] = metrics["weight"] ** 2 / squared if squared else 0.0
    given = c.normalized_weights(given, kept, level=level) if normalize else given
    return {"weights": given.data, **known}


def _weighing(name: str, level: c.Level, threshold: float | str, normalize: bool = False, **bounds: Any) -> Case:
    theirs = {"level": level, "threshold": threshold, "normalize": normalize}
    return Case(
        name,
        lambda b: _weights(b, level, normalize, **bounds),
        "weights",
        theirs,
        kinds=TOKENS if "low" in bounds else POLICIES,
    )


BOUNDS: Given = {"cap": None, "low": 0.8, "high": 1.5}
TESTS: Mapping[c.Test, float] = {
    "token_k1": 1.4,
    "token_k2": 0.05,
    "token_k3": 0.05,
    "seq_sum_k1": 1.8,
    "seq_sum_k2": 0.5,
    "seq_sum_k3": 0.5,
    "seq_mean_k1": 1.1,
    "seq_mean_k2": 0.05,
    "seq_mean_k3": 0.05,
    "seq_max_k2": 0.2,
    "seq_max_k3": 0.2,
}


def _left(columns: Columns, *tests: tuple[c.Test, Given]) -> Mask:
    left = mask(columns)
    for test, bounds in tests:
        left = c.rejected(left, old=lps(columns, "old"), behaviour=lps(columns, "roll"), test=test, **bounds)
    return left


def _rejecting(test: c.Test, high: float) -> Case:
    def results(columns: Columns) -> Results:
        left = _left(columns, (test, {"high": high}))
        shares = told(left, "rejected", "rejected_rows")
        known = {"rollout_rs_masked_fraction": shares["rejected"]}
        known |= {} if test.startswith("token") else {"rollout_rs_seq_masked_fraction": shares["rejected_rows"]}
        return {"mask": left.data, **known}

    theirs = {"options": test, "threshold": str(high)}
    kinds = [kind for kind in POLICIES if kind != "one token" or test.startswith("token")]
    return Case(f"rejection {test}", results, "rejection", theirs, kinds=kinds)


MISMATCH = ("kl", "k3_kl", "training_ppl", "rollout_ppl", "ppl_ratio", "log_ppl_diff", "log_ppl_abs_diff")
MORE_MISMATCH = ("log_ppl_diff_max", "chi2_token", "chi2_seq")


def _bypass(columns: Columns, loss: str) -> Results:
    new, kept, old = lps(columns, "new"), mask(columns), lps(columns, "old")
    left = c.rejected(kept, old=new, behaviour=old, test="seq_mean_k1", high=1.1)
    gains = gain(columns, "advantages")
    if loss == "ppo_clip":
        return reduced(one.clipped(new, gains, left, old=old, eps=0.2))
    weights = c.importance_weights(new, kept, behaviour=old, cap=1.3)
    return reduced(one.policy_gradient(new, gains, left, weights=weights))


def _bypassing(loss: str) -> Case:
    corrected = {"loss_type": loss, "rollout_is": "token", "rollout_is_threshold": 1.3}
    corrected |= {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "1.1"}
    theirs = {"how": "token-mean", "advantages": "advantages", "correction": corrected, **clip(0.2, 0.2)}
    return Case(f"bypass {loss}", lambda b: _bypass(b, loss), "bypass", theirs, by="new", kinds=("ragged", "no holes"))


CORRECTION = (
    _weighing("TIS token", "token", 1.3, cap=1.3),
    _weighing("TIS sequence", "sequence", 1.3, cap=1.3),
    _weighing("TIS token, normalised", "token", 1.3, True, cap=1.3),
    _weighing("TIS sequence, normalised", "sequence", 1.3, True, cap=1.3),
    _weighing("IcePop token", "token", "0.8_1.5", **BOUNDS),
    _weighing("IcePop sequence", "sequence", "0.8_1.5", **BOUNDS),
    *(_rejecting(test, high) for test, high in TESTS.items()),
    Case(
        "rejection of both",
        lambda b: {"mask": _left(b, ("seq_mean_k1", {"low": 0.9, "high": 1.2}), ("token_k2", {"high": 0.05})).data},
        "rejection",
        {"options": "seq_mean_k1,token_k2", "threshold": "0.9_1.2,0.05"},
    ),
    Case(
        "mismatch",
        lambda b: told(mismatch(lps(b, "old"), mask(b), behaviour=lps(b, "roll")), *MISMATCH, *MORE_MISMATCH),
        "mismatch",
        kinds=POLICIES,
    ),
    *(_bypassing(loss) for loss in ("ppo_clip", "reinforce")),
)
