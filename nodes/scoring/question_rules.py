"""Rules for short answers to questions of fact: Search-R1's exact match, and its match inside an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nodes.scoring.answer_text import Unreadable, normal_words, tagged_answer

MAX_TAGS = 10

Truth = str | Sequence[str] | Mapping[str, Any]
"""A true answer, several of them, or verl's `{"target": …}` of either."""


def search_r1(response: str, ground_truth: Truth, *, format_score: float = 0.0) -> float:
    """Score 1 if the last `<answer>…</answer>` is one of the true answers, up to case, articles and punctuation.

    A right answer scores 0.25 if the response has more than 10 opening or more than 10 closing tags. A wrong answer
    scores `format_score`. Without an answer the score is 0 and `Unreadable`.

    Source: verl, `verl/utils/reward_score/search_r1_like_qa_em.py`, `compute_score`; Jin et al. 2025 (Search-R1), arXiv
    2503.09516, section 3.4.

    >>> search_r1("<answer>The Eiffel Tower.</answer>", {"target": ["Eiffel tower", "tour Eiffel"]})
    1.0
    """
    answer = tagged_answer(response)
    if answer is None:
        return Unreadable(0.0)
    if normal_words(answer) not in map(normal_words, true_answers(ground_truth)):
        return format_score
    repeated = max(response.count("<answer>"), response.count("</answer>")) > MAX_TAGS
    return 0.25 if repeated else 1.0


def search_r1_inside(response: str, ground_truth: Truth, *, format_score: float = 0.0) -> float:
    """Score 1 if the last `<answer>…</answer>` contains one of the true answers, up to case, articles and punctuation.

    A wrong answer scores `format_score`. Without an answer the score is 0 and `Unreadable`.

    Source: verl, `verl/utils/reward_score/search_r1_like_qa_em.py`, `compute_score_subem`.

    >>> search_r1_inside("<answer>It is in Paris, France</answer>", "Paris")
    1.0
    """
    answer = tagged_answer(response)
    if answer is None:
        return Unreadable(0.0)
    words = normal_words(answer)
    return 1.0 if any(normal_words(truth) in words for truth in true_answers(ground_truth)) else format_score


def true_answers(truth: Truth) -> list[str]:
    """Return the true answers in a ground truth as a list. Raises KeyError for a mapping without `target`.

    >>> true_answers({"target": "Paris"}), true_answers(["a", "b"])
    (['Paris'], ['a', 'b'])
    """
    target = truth["target"] if isinstance(truth, Mapping) else truth
    return [target] if isinstance(target, str) else [str(answer) for answer in target]
