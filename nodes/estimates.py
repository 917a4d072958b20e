"""What is known of a model from its scored responses: means and pass@k with their standard errors. No torch."""

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
    """Scored responses, a row each: to which prompt, its score, and what else is known of it.

    `prompt` [B] int64, `score` [B] float32, `tokens` [B] int64, `finished` [B] bool, `source` [B] text.
    """

    prompt: Column
    score: Column
    tokens: Column | None = None
    finished: Column | None = None
    source: Column | None = None

    def of(self, rows: Column) -> Marks:
        """Give the rows that are chosen: [B] bool."""
        parts = (self.prompt, self.score, self.tokens, self.finished, self.source)
        prompt, score, *rest = (None if part is None else part[rows] for part in parts)
        assert prompt is not None and score is not None, "every response has a prompt and a score"
        return Marks(prompt, score, *rest)

    def by_source(self) -> dict[str, Marks]:
        """Sort the rows by `source`, in order of name; empty if no source or only one is known."""
        names = [] if self.source is None else sorted(set(self.source.tolist()))
        return {name: self.of(self.source == name) for name in names} if len(names) > 1 else {}


@dataclass(frozen=True)
class Estimate:
    """A mean over prompts, and half the width of its 95% interval: None where the prompts do not differ."""

    mean: float
    half_width: float | None


@dataclass(frozen=True)
class ResponseLengths:
    """How many tokens responses have."""

    mean: float
    median: float
    most: int


@dataclass(frozen=True)
class ScoreReport:
    """What scored responses tell: `pass_at` k → chance of full marks in k responses; `truncated` is a share of 1."""

    prompts: int
    responses: int
    score: Estimate
    pass_at: dict[int, Estimate]
    tokens: ResponseLengths | None
    truncated: float | None


def reported(marks: Marks) -> ScoreReport:
    """Sum scored responses up; k goes to the fewest responses that any prompt has. LawError if there are none."""
    import numpy as np

    if not len(marks.prompt):
        raise LawError("no response is scored, so nothing can be estimated")
    _, index, counts = np.unique(marks.prompt, return_inverse=True, return_counts=True)
    sums = np.bincount(index, marks.score.astype(np.float64))
    full = np.bincount(index, marks.score >= np.float32(FULL_MARKS)).astype(np.int64)
    return ScoreReport(
        prompts=len(counts),
        responses=len(marks.prompt),
        score=estimate(sums / counts),
        pass_at={k: _pass_at(counts, full, k) for k in range(1, int(counts.min()) + 1)},
        tokens=None if marks.tokens is None else _lengths(marks.tokens),
        truncated=None if marks.finished is None else float(np.mean(~marks.finished)),
    )


def estimate(values: Column) -> Estimate:
    """Give the mean of one value a prompt [P], and 1.96 standard errors of it: s / sqrt(P), s over P - 1.

    Prompts are drawn, not responses: those of one prompt are alike, so they count as one.
    Source: Miller 2024 (Adding Error Bars to Evals), arXiv 2411.00640: standard errors by clusters, here prompts.
    Deviation: where all prompts have one value there is no interval, not one without width.

    >>> import numpy as np
    >>> found = estimate(np.array([1.0, 0.0, 0.0, 1.0]))
    >>> found.mean, round(found.half_width, 4)
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
    """Give the chance that `k` of `n` responses, of which `c` have full marks, hold one: 1 - C(n - c, k) / C(n, k).

    Without bias for pass@k. With fewer than `k` responses there is no such estimate: LawError.
    Source: Chen et al. 2021 (Codex), arXiv 2107.03374, equation 1.

    >>> chance_at_k(4, 1, 2)
    0.5
    """
    if n < k:
        hint = f"draw at least {k} responses to each prompt"
        raise LawError(f"pass@{k} of a prompt with {n} response{'s' if n > 1 else ''}", hint=hint)
    return 1.0 - comb(n - c, k) / comb(n, k)


def shown_ks(pass_at: Sequence[int]) -> list[int]:
    """Choose which k to show: powers of two, and the largest.

    >>> shown_ks(range(1, 7))
    [1, 2, 4, 6]
    """
    return [k for k in pass_at if k & (k - 1) == 0 or k == max(pass_at)]


def _pass_at(counts: Column, full: Column, k: int) -> Estimate:
    import numpy as np

    pairs = zip(counts.tolist(), full.tolist(), strict=True)
    return estimate(np.array([chance_at_k(n, c, k) for n, c in pairs]))


def _lengths(tokens: Column) -> ResponseLengths:
    import numpy as np

    return ResponseLengths(float(np.mean(tokens)), float(np.median(tokens)), int(tokens.max()))
