"""The metrics of a check of held-out data, over all its responses and for each `data_source`; without torch.

For responses to P prompts, n each: the share with full marks, the mean score, pass@k and maj@k for k = 2, 4, 8, … n.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from flowgraph.diagrams.model.labels import clean
from nodes.evaluation.estimates import chance_at_k, shown_ks
from nodes.scoring import FULL_MARKS

if TYPE_CHECKING:
    import pyarrow as pa

MAX_SOURCES = 64
"""The most sources with metrics of their own; rows of more sources have only the metrics of all."""

SOURCE, ANSWER = "columns.data_source", "pred"  # columns of a rollout, and of its scores where their rule returns it

_MARKS = (
    re.compile(r"\\boxed\{([^{}]{0,300}(?:\{[^{}]{0,300}\}[^{}]{0,300}){0,8})\}"),
    re.compile(r"####[ \t]*([^\n]{1,300})"),
    re.compile(r"<answer>(.{0,1000}?)</answer>", re.DOTALL),
)
_END_CHARACTERS = 4000  # of a response, in which its answer is looked for


def metric_names(sources: Collection[str], n: int) -> list[str]:
    """Return the names of all metrics of a check, in order; a name occurs twice if a source is named like a metric.

    `sources` are the names of data sources, and `n` is the number of responses to each prompt. The k of pass@k and
    maj@k are `n` and the powers of two below it, without 1. If there are more than 64 sources, none has metrics of its
    own.

    >>> metric_names(["math"], 2)
    ['eval/accuracy', 'eval/reward', 'eval/pass@2', 'eval/maj@2', 'eval/math', 'eval/math/reward', 'eval/math/pass@2', \
'eval/math/maj@2']
    """
    ks = [k for k in shown_ks(range(1, n + 1)) if k > 1]
    parts = ["reward", *(f"{name}@{k}" for k in ks for name in ("pass", "maj"))]
    overall = ["eval/accuracy", *(f"eval/{name}" for name in parts)]
    split = [] if len(sources) > MAX_SOURCES else sorted(sources)
    return [*overall, *(name for s in split for name in (f"eval/{s}", *(f"eval/{s}/{part}" for part in parts)))]


def source_names(table: pa.Table, column: str = "data_source") -> list[str | None]:
    """Return the name of each row's source in metrics, one printable line of at most 100 characters; None for null.

    Empty if the table has no column called `column`.
    """
    if column not in table.column_names:
        return []
    texts = table.column(column).to_pylist()
    names = {text: None if text is None else clean(str(text), 100) for text in set(texts)}
    return [names[text] for text in texts]


@dataclass
class _Prompt:
    source: str | None
    answers: list[str]
    scores: list[float]


def held_out_metrics(tables: Sequence[pa.Table]) -> dict[str, float]:
    """Return the metrics of a check by name, from two tables: its rollout, and the scores of the same rows.

    The names are those of `metric_names`. Each prompt counts once in a mean over prompts. pass@k and maj@k are computed
    for k up to the number of responses of the prompt that has the fewest. If there are more than 64 sources, none has
    metrics of its own. A response with a NaN score does not have full marks, and makes the mean score NaN. The answers
    that vote in maj@k are the column `pred` of the scores, or else the `final_answer` of each response. Empty for a
    check without rows.
    """
    rollout, scores = tables
    sources = source_names(rollout, SOURCE) or [None] * rollout.num_rows
    answers = scores if ANSWER in scores.column_names else None
    votes = rollout.column("text").to_pylist() if answers is None else answers.column(ANSWER).to_pylist()
    prompts = dict[int, _Prompt]()
    rows = zip(rollout.column("group").to_pylist(), sources, votes, scores.column("value").to_pylist(), strict=True)
    for group, source, vote, score in rows:
        prompt = prompts.setdefault(group, _Prompt(source, [], []))
        prompt.answers.append(str(vote) if answers is not None else final_answer(vote or ""))
        prompt.scores.append(float(score))
    by_source = defaultdict[str, list[_Prompt]](list)
    for prompt in prompts.values():
        if prompt.source is not None:
            by_source[prompt.source].append(prompt)
    split = sorted(by_source) if len(by_source) <= MAX_SOURCES else []
    metrics = _estimates("eval/accuracy", "eval/", list(prompts.values()))
    for source in split:
        metrics |= _estimates(f"eval/{source}", f"eval/{source}/", by_source[source])
    return metrics


def _estimates(name: str, prefix: str, prompts: Sequence[_Prompt]) -> dict[str, float]:
    if not prompts:
        return {}
    n = min(len(prompt.scores) for prompt in prompts)
    full = [sum(score >= FULL_MARKS for score in prompt.scores) for prompt in prompts]
    counts = [(len(prompt.scores), right) for prompt, right in zip(prompts, full, strict=True)]
    estimates = {name: fmean(right / count for count, right in counts)}
    estimates[f"{prefix}reward"] = fmean(fmean(prompt.scores) for prompt in prompts)
    for k in shown_ks(range(1, n + 1))[1:]:
        estimates[f"{prefix}pass@{k}"] = fmean(chance_at_k(count, right, k) for count, right in counts)
        estimates[f"{prefix}maj@{k}"] = fmean(majority_at_k(prompt.answers, prompt.scores, k) for prompt in prompts)
    return estimates


def majority_at_k(answers: Sequence[str], scores: Sequence[float], k: int) -> float:
    """Return maj@k: the share of votes among `k` answers that are won by an answer with full marks.

    Each group of `k` consecutive answers is one vote, and a shorter rest is left out; no random numbers are drawn. The
    most frequent answer wins, the earliest one in a tie, and counts with its first score. Raises StatisticsError for
    fewer than `k` answers.

    Source: Wang et al. 2022 (Self-Consistency), arXiv 2203.11171, section 2.

    >>> majority_at_k(["1", "2", "2", "3"], [0.0, 1.0, 1.0, 0.0], 4)
    1.0
    """
    right = list[bool]()
    for start in range(0, len(answers) - k + 1, k):
        part = answers[start : start + k]
        chosen = Counter(part).most_common(1)[0][0]
        right.append(scores[start + part.index(chosen)] >= FULL_MARKS)
    return fmean(right)


def final_answer(response: str) -> str:
    r"""Return the answer in a response, in a form to compare: its last marked text, or else the whole response.

    A mark is `\boxed{…}`, else a line of `####`, else `<answer>…</answer>`, in the last 4,000 characters. All white
    space, commas and dollar signs are removed, and full stops at the end.

    >>> final_answer("so it is \\boxed{\\frac{1}{2}}."), final_answer("#### $1,000"), final_answer(" 42 ")
    ('\\frac{1}{2}', '1000', '42')
    """
    end = response[-_END_CHARACTERS:]
    marked = (matches[-1] for pattern in _MARKS if (matches := pattern.findall(end)))
    return re.sub(r"[\s,$]+", "", next(marked, response)).rstrip(".")
