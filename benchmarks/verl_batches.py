"""Random ragged batches on which our formulas and verl's are compared: numpy columns, the same for the same seed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

Array = np.ndarray
Batch = Mapping[str, Array]

KINDS: Mapping[str, str] = {
    "no holes": "as ragged, but masks keep all tokens of a response",
    "ragged": "24 rows in groups of 2 to 6, of 1 to 16 tokens, masks with holes",
    "far": "log-probs as far apart as 50 nats",
    "groups of one": "some groups have one row",
    "no signal": "all scores of a group are equal",
    "hidden rows": "the masks of some rows keep no token",
    "one token": "the mask keeps one token of the whole batch",
    "zero weights": "some importance weights are 0",
    "NaN": "NaN wherever the mask is 0",
}

TOKENS = 16
SIZES: Mapping[str, tuple[int, ...]] = {
    "groups of one": (1, 3, 1, 4, 6, 1, 2),
    "one token": (2, 3),
    "no signal": (8, 3, 8, 6),
}
SCORES = (0.0, 0.0, 1.0, 1.0, 0.1, -1.0, 2.5)


def draw(kind: str, seed: int) -> Batch:
    """Draw one batch of a kind: row columns [B], token columns [B, 16]."""
    random = np.random.default_rng([seed, *kind.encode()])
    sizes = SIZES.get(kind, (4, 5, 3, 4, 2, 6))
    group = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    shape = len(group), TOKENS
    lengths = random.integers(2, TOKENS + 1, len(group))
    lengths[0], lengths[-1] = 1, TOKENS
    mask = _mask(kind, lengths, random)
    scores = _scores(kind, group, random)
    rows = {
        "group": group,
        "lengths": lengths,
        "scores": scores,
        "style": random.choice((0.0, 0.5, 1.0), len(group)),
        "greedy": random.choice(SCORES, len(sizes))[group],
        "advantages": random.choice((-1.5, -0.5, 0.0, 0.5, 2.0), len(group)),
    }
    tokens = {
        **_policies(15.0 if kind == "far" else 0.3, shape, random),
        **{name: random.normal(size=shape) for name in ("rewards", "values", "returns", "token_advantages")},
        "entropy": random.uniform(0, 3, shape),
        "weights": random.uniform(0.2, 2, shape) * (random.random(shape) > 0.2 * (kind == "zero weights")),
    }
    tokens["squared"] = random.uniform(np.exp(2 * tokens["old"]), 1)
    tokens["same"] = tokens["old"]
    tokens["new_values"] = tokens["values"] + random.normal(0, 0.4, shape)
    if kind == "NaN":
        tokens = {name: np.where(mask > 0, each, np.nan) for name, each in tokens.items()}
    kept_last = np.where(mask.any(1), TOKENS - 1 - mask[:, ::-1].argmax(1), 0)
    placed = {"outcome": _at(lengths - 1, scores), "earned": _at(kept_last, scores) * mask}
    return {"mask": mask, **rows, **tokens, **placed}


def _scores(kind: str, group: Array, random: np.random.Generator) -> Array:
    """Draw scores [B] that differ in each group of two or more, or in none; equal ones are as hard to sum as 0.1 is."""
    if kind == "no signal":
        levels = random.choice((0.1, 0.7, -1.3, 0.9), group.max() + 1)
        return np.take(levels, group)
    scores = random.choice(SCORES, len(group))
    for each in range(group.max() + 1):
        scores[np.flatnonzero(group == each)[1:2]] = -2.0
    return scores


def _mask(kind: str, lengths: Array, random: np.random.Generator) -> Array:
    """Draw a mask [B, 16] of 0 and 1: each row keeps its first token, and most of the others."""
    mask = np.arange(TOKENS) < lengths[:, None]
    if kind != "no holes":
        mask &= random.random((len(lengths), TOKENS)) > 0.25
        mask[:, 0] = True
    if kind == "hidden rows":
        mask[random.permutation(len(lengths))[:3]] = False
    if kind == "one token":
        mask[:, :] = False
        mask[1, 0] = True
    return mask.astype(np.int64)


def _policies(apart: float, shape: tuple[int, int], random: np.random.Generator) -> dict[str, Array]:
    """Draw the log-probs of four policies, `apart` nats from each other by their deviation."""
    old = random.uniform(-5, 0, shape) * (1 + apart)
    others = {name: old + random.normal(0, apart, shape) for name in ("new", "ref", "roll")}
    return {"old": old, **{name: -np.abs(each) for name, each in others.items()}}


def _at(places: Array, scores: Array) -> Array:
    """Return each row's score at one place [B], 0 elsewhere: [B, 16]."""
    return np.where(np.arange(TOKENS) == places[:, None], scores[:, None], 0.0)


def cast(batch: Batch, dtype: str) -> Batch:
    """Return a batch with its floating-point columns in a dtype."""
    return {name: each.astype(dtype) if each.dtype.kind == "f" else each for name, each in batch.items()}
