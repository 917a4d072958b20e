"""Where our formulas differ from verl's on purpose, and why; and what only verl has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WEIGHTED = ", weights, token advantages, sequence mean"
"""The end of the key of a loss's second variant."""


def both(*names: str) -> tuple[str, ...]:
    """Return the keys of both variants of losses."""
    return tuple(name + more for name in names for more in ("", WEIGHTED))


def second(*names: str) -> tuple[str, ...]:
    """Return the keys of the second variant of losses."""
    return tuple(name + WEIGHTED for name in names)


@dataclass(frozen=True)
class Reason:
    """Which parts of which cases differ on which kinds of batches, and why. All of these must differ."""

    why: str
    parts: Sequence[str]
    cases: Sequence[str]
    kinds: Sequence[str]

    def covers(self, case: str, kind: str) -> bool:
        """Return whether this is about a case, by its key, on batches of a kind."""
        return kind in self.kinds and case in self.cases


VALUES, GRADIENTS, METRICS = ("values",), ("gradients",), ("metrics",)
LEARNT = ("values", "gradients")
REFUSED = ("refused",)

NAN = "NaN under the mask: verl multiplies it by 0, ours zeroes it first"
ONE_TOKEN = "verl refuses to whiten one token; ours gives 0, or its mean"
NO_TOKEN = "verl counts rows without a token in a mean over rows; ours does not"
DRAWN = "ours takes the covariance at the log-probs that drew the batch, verl at the newest"
OTB = "verl's counts masked tokens into a token's place; ours, as verl's `tir_…`, does not"
HELD = "log-ratios beyond ±20: verl holds them in most losses, not in this; ours in all, without a gradient there"
ALL_ZERO = "verl divides by 0 for its effective sample size where all weights are 0"

OTHER_OTB = "optimal_token_baseline"
NEWEST = ("clip_cov, chosen at the newest log-probs", "kl_cov, chosen at the newest log-probs")
COV = both("clip_cov", "kl_cov")
IN_REWARD = tuple(f"KL {kind} in the reward" for kind in ("k1", "k2", "k3", "abs"))
ROWS = ("sum_k1", "sum_k2", "sum_k3", "mean_k1", "mean_k2", "mean_k3", "max_k2", "max_k3")
OF_ROWS = tuple(f"rejection seq_{test}" for test in ROWS)

REASONS: Sequence[Reason] = (
    # advantages
    Reason("group of one: verl's loop gives the score itself, ours 0", VALUES, ["rloo"], ["groups of one"]),
    Reason(
        "group of one: verl refuses, ours gives 0",
        REFUSED,
        ["grpo_passk", "grpo_passk, no deviation"],
        ["groups of one"],
    ),
    Reason(
        "equal scores: verl divides the rounding of a float32 mean by a tiny deviation, ours gives 0",
        VALUES,
        ["grpo, float32", "grpo_vectorized", "gdpo"],
        ["no signal"],
    ),
    Reason(
        ONE_TOKEN,
        REFUSED,
        ["gae", "gdpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "whiten", "whiten, mean kept"],
        ["one token"],
    ),
    Reason(OTB, VALUES, [OTHER_OTB], ["ragged", "hidden rows", "groups of one", "no signal"]),
    Reason(NAN, VALUES, ["gae", "reinforce_plus_plus", f"tir_{OTHER_OTB}", f"tir_{OTHER_OTB}, weights"], ["NaN"]),
    # rewards
    Reason(NO_TOKEN, ("values", "metrics"), IN_REWARD, ["hidden rows", "one token"]),
    Reason(
        "a last token that is masked: verl rewards it all the same, ours the last one that counts",
        VALUES,
        ["reward's place"],
        ["ragged", "hidden rows", "one token"],
    ),
    # losses
    Reason(NAN, GRADIENTS, ["cispo", "dppo_tv", "dppo_kl", *NEWEST, "value loss"], ["NaN"]),
    Reason(NAN, GRADIENTS, [f"KL {kind}" for kind in ("k2", "k1+", "k3+", "abs+", "k2+")], ["NaN"]),
    Reason(NAN, LEARNT, second("gpg loss", "reinforce", "cispo", "dppo_tv", "dppo_kl", *NEWEST), ["NaN"]),
    Reason(NAN, LEARNT, both("geo_mean", "clip_cov", "kl_cov"), ["NaN"]),
    Reason(NAN, (*LEARNT, "metrics"), both("gspo"), ["NaN"]),
    Reason(NAN, VALUES, [*both("sapo"), *second("vanilla", "vanilla, dual clip")], ["NaN"]),
    Reason(
        NAN,
        VALUES,
        [f"aggregation seq-mean-token-{how}" for how in ("mean", "sum", "sum-norm")],
        ["NaN"],
    ),
    Reason(NO_TOKEN, LEARNT, both("geo_mean"), ["hidden rows", "one token"]),
    Reason("verl takes a weight of 0 as 1e-10, ours as 0", LEARNT, second("geo_mean"), ["zero weights"]),
    Reason(DRAWN, LEARNT, COV, ["ragged", "no holes", "hidden rows", "far", "NaN"]),
    Reason(DRAWN, LEARNT, second("clip_cov", "kl_cov"), ["zero weights"]),
    Reason(HELD, LEARNT, both("geo_mean", *NEWEST), ["far"]),
    # rollout correction
    Reason(NO_TOKEN, METRICS, ["TIS sequence", "TIS sequence, normalised"], ["hidden rows", "one token"]),
    Reason(NO_TOKEN, METRICS, ["mismatch"], ["hidden rows", "one token"]),
    Reason(NO_TOKEN, METRICS, ["IcePop sequence", *OF_ROWS], ["hidden rows"]),
    Reason(ALL_ZERO, REFUSED, ["IcePop token", "IcePop sequence"], ["one token"]),
    Reason("ours holds log-ratios within ±20 in k3_kl too", METRICS, ["mismatch"], ["far"]),
)

ONLY_VERL: Mapping[str, str] = {"loss dro": "minus A·log p, and half beta·(log ratio)²: not in our library"}
"""What verl has by name and we do not."""
