"""Estimates from a model's scored responses: means and pass@k with 95% intervals. This module needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING, Any

from flowgraph.errors import LawError
from nodes.scoring import FULL_MARKS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Column = NDArray[Any]

INTERVAL = "95% interval: 1.96 standard errors over prompts"
_STANDARD_ERRORS = 1.96


@dataclass(frozen=True)
class Marks:
    """Scored responses, one row each: prompt, score, and optional columns.

    `prompt` [B] int64, `score` [B] float32, `tokens` [B] int64, `finished` [B] bool, `source` [B] text.
    """

    prompt: Column
    score: Column
    tokens: Column | None = None
    finished: Column | None = None
    source: Column | None = None

    def of(self, rows: Column) -> Marks:
        """Return the marks of the rows where `rows`, a boolean array [B], is true."""
        parts = (self.prompt, self.score, self.tokens, self.finished, self.source)
        prompt, score, *rest = (None if part is None else part[rows] for part in parts)
        assert prompt is not None and score is not None, "every response has a prompt and a score"
        return Marks(prompt, score, *rest)

    def by_source(self) -> dict[str, Marks]:
        """Return the rows of each `source`, in order of name; empty if there are fewer than two sources."""
        names = [] if self.source is None else sorted(set(self.source.tolist()))
        return {name: self.of(self.source == name) for name in names} if len(names) > 1 else {}


@dataclass(frozen=True)
class Estimate:
    """A mean over prompts, and half the width of its 95% interval; None if all prompts have the same value."""

    mean: float
    half_width: float | None


@dataclass(frozen=True)
class ResponseLengths:
    """The mean, the median and the maximum of the lengths of responses, in tokens."""

    mean: float
    median: float
    most: int

    @classmethod
    def of(cls, tokens: Column) -> ResponseLengths:
        """Return the mean, median and maximum of the lengths `tokens` (int64 [B]) of one or more responses."""
        import numpy as np

        return cls(float(np.mean(tokens)), float(np.median(tokens)), int(tokens.max()))


@dataclass(frozen=True)
class ScoreReport:
    """Estimates from scored responses.

    `pass_at` has, by k, the probability that at least one of k responses has full marks. `truncated` is the share of
    responses that were cut at the limit on their tokens. `tokens` and `truncated` are None if they are not known.
    """

    prompts: int
    responses: int
    score: Estimate
    pass_at: dict[int, Estimate]
    tokens: ResponseLengths | None
    truncated: float | None


def reported(marks: Marks) -> ScoreReport:
    """Return the estimates from scored responses, with pass@k for each k for which every prompt has k responses.

    Raises LawError without responses.
    """
    import numpy as np

    if not len(marks.prompt):
        raise LawError("nothing can be estimated without scored responses")
    _, index, counts = np.unique(marks.prompt, return_inverse=True, return_counts=True)
    sums = np.bincount(index, marks.score.astype(np.float64))
    full = np.bincount(index, marks.score >= np.float32(FULL_MARKS)).astype(np.int64)
    pairs, ks = list(zip(counts.tolist(), full.tolist(), strict=True)), range(1, int(counts.min()) + 1)
    return ScoreReport(
        prompts=len(counts),
        responses=len(marks.prompt),
        score=estimate(sums / counts),
        pass_at={k: estimate(np.array([chance_at_k(n, c, k) for n, c in pairs])) for k in ks},
        tokens=None if marks.tokens is None else ResponseLengths.of(marks.tokens),
        truncated=None if marks.finished is None else float(np.mean(~marks.finished)),
    )


def estimate(values: Column) -> Estimate:
    """Return the mean of values [P], one for each prompt, and half its 95% interval: 1.96 · deviation / sqrt(P).

    Give one value per prompt, not per response: the responses to one prompt are similar, so they count as one.
    Source: Miller 2024 (Adding Error Bars to Evals), arXiv 2411.00640: standard errors by clusters, here prompts.
    Deviation: with one prompt, or if all prompts have one value, the half width is None rather than 0.

    >>> import numpy as np
    >>> accuracy = estimate(np.array([1.0, 0.0, 0.0, 1.0]))
    >>> accuracy.mean, round(accuracy.half_width, 4)
    (0.5, 0.5658)
    >>> estimate(np.array([1.0, 1.0]))
    Estimate(mean=1.0, half_width=None)
    """
    import numpy as np

    mean = float(np.mean(values))
    if len(values) < 2 or not np.ptp(values):
        return Estimate(mean, None)
    return Estimate(mean, float(_STANDARD_ERRORS * np.std(values, ddof=1) / np.sqrt(len(values))))


def chance_at_k(n: int, c: int, k: int) -> float:
    """Return the unbiased estimate of pass@k from `n` responses, `c` with full marks: 1 - C(n - c, k) / C(n, k).

    Raises LawError if there are fewer than `k` responses.
    Source: Chen et al. 2021 (Codex), arXiv 2107.03374, equation 1.

    >>> chance_at_k(4, 1, 2)
    0.5
    """
    if n < k:
        hint = f"sample at least {k} responses to each prompt"
        raise LawError(f"pass@{k} of a prompt with {n} response{'s' if n > 1 else ''}", hint=hint)
    return 1.0 - comb(n - c, k) / comb(n, k)


def shown_ks(pass_at: Sequence[int]) -> list[int]:
    """Return the k of `pass_at` to show: powers of two, and the largest, in the given order.

    >>> shown_ks(range(1, 7))
    [1, 2, 4, 6]
    """
    return [k for k in pass_at if k & (k - 1) == 0 or k == max(pass_at)]
