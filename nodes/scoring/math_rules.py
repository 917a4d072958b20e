r"""Rules for answers of mathematics, as verl 0.9.1 grades the data sets that its users train on.

docs/graders.md lists the data sets of each rule; `benchmarks/verl_scorers.py` compares the rules with verl's functions.
"""

from __future__ import annotations

import re
from typing import Any

from nodes.scoring.answer_text import (
    Unreadable,
    braced,
    decimal,
    equal_math,
    last_boxed,
    last_boxed_of_math,
    normal_minerva,
)
from nodes.scoring.expressions import equal_loosely, equal_values

GSM8K_TAIL_CHARACTERS = 300
DAPO_TAIL_CHARACTERS, DAPO_BOX_CHARACTERS = 300, 100
VERIFIED_CHARACTERS = 20_000
NO_ANSWER = "[INVALID]"

_STRICT_NUMBER = re.compile(r"#### (-?[0-9.,]+)")
_FLEXIBLE_NUMBER = re.compile(r"-?[0-9.,]+")
_MARKED_NUMBER = re.compile(r"####[ \t]*(-?\$?-?\.?[0-9][0-9.,]*)")
_DAPO_ANSWER = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)


def gsm8k(response: str, ground_truth: str, *, format_score: float = 0.0) -> float:
    r"""Score the last `#### number` in the final 300 characters: 1 if its text is the truth, else `format_score`.

    Commas are dropped. Without such a number, as in `####18` and `#### $18`, the score is 0 and `Unreadable`.

    Source: verl, `verl/utils/reward_score/gsm8k.py`, the method `strict`, which verl uses.

    >>> gsm8k("So 48 + 24 = 72.\n#### 72", "72"), gsm8k("#### 1,080", "1080"), gsm8k("#### 72.", "72")
    (1.0, 1.0, 0.0)
    >>> gsm8k("#### 71", "72", format_score=0.1)
    0.1
    """
    numbers = _STRICT_NUMBER.findall(response[-GSM8K_TAIL_CHARACTERS:])
    if not numbers:
        return Unreadable(0.0)
    return 1.0 if numbers[-1].replace(",", "") == str(ground_truth) else format_score


def gsm8k_flexible(response: str, ground_truth: str, *, format_score: float = 0.0) -> float:
    r"""Score the last number in the final 300 characters: 1 if its text is the truth, else `format_score`.

    Commas stay, so `1,080` is not `1080`, and `72.` is not `72`. Without a number the score is 0 and `Unreadable`.

    Source: verl, `verl/utils/reward_score/gsm8k.py`, the method `flexible`.

    >>> gsm8k_flexible("It costs $18", "18"), gsm8k_flexible("It costs 18.", "18"), gsm8k_flexible("no idea", "18")
    (1.0, 0.0, 0.0)
    """
    numbers = _FLEXIBLE_NUMBER.findall(response[-GSM8K_TAIL_CHARACTERS:])
    if not numbers:
        return Unreadable(0.0)
    last = next((number for number in reversed(numbers) if number != "."), ".")
    return 1.0 if last == str(ground_truth) else format_score


def gsm8k_value(response: str, ground_truth: str, *, format_score: float = 0.0) -> float:
    """Score the last number after `####` in the final 300 characters by value: 1 if right, else `format_score`.

    `####18`, `#### $18`, `#### 18.` and `#### 18.00` all equal 18. Without such a number the score is 0 and
    `Unreadable`.

    >>> gsm8k_value("#### $1,000.", "1000"), gsm8k_value("####18.00", "18"), gsm8k_value("72", "72")
    (1.0, 1.0, 0.0)
    """
    numbers = _MARKED_NUMBER.findall(response[-GSM8K_TAIL_CHARACTERS:])
    if not numbers:
        return Unreadable(0.0)
    answer = decimal(numbers[-1])
    return 1.0 if answer is not None and answer == decimal(str(ground_truth)) else format_score


def math_reward(response: str, ground_truth: str) -> float:
    r"""Score 1 if the last box has the truth's normal form of MATH, else 0; without a box also `Unreadable`.

    Source: verl, `verl/utils/reward_score/math_reward.py`; Hendrycks et al. 2021 (MATH), arXiv 2103.03874.

    >>> math_reward(r"so $\boxed{\dfrac{1}{2}}$", "0.5"), math_reward("1/2", "1/2")
    (1.0, 0.0)
    """
    answer = last_boxed_of_math(response)
    return Unreadable(0.0) if answer is None else float(equal_math(answer, str(ground_truth)))


def math_dapo(response: str, ground_truth: str) -> dict[str, Any]:
    r"""Return a dict whose `score` is 1 if the response's answer is right, else -1; with `acc` and `pred`.

    The answer is the last `Answer:` line in the final 300 characters, compared in Minerva's normal form. Without such a
    line it is the last box in the final 100 characters, compared as text. `acc` is whether the answer is right, and
    `pred` is the answer as it was compared. Without an answer, `pred` is `[INVALID]` and the score is `Unreadable`.

    Source: verl, `verl/utils/reward_score/math_dapo.py`; Yu et al. 2025 (DAPO), arXiv 2503.14476, equation 7.

    >>> math_dapo(r"Answer: $\frac12$", r"\frac{1}{2}")
    {'score': 1.0, 'acc': True, 'pred': '\\frac{1}{2}'}
    >>> math_dapo(r"I think \boxed{34}", "34")["score"], math_dapo("34", "34")["score"]
    (1.0, -1.0)
    """
    truth, tail = str(ground_truth), response[-DAPO_TAIL_CHARACTERS:]
    if lines := _DAPO_ANSWER.findall(tail):
        answer = normal_minerva(lines[-1])
        right = answer == normal_minerva(truth)
    else:
        boxed = last_boxed(tail[-DAPO_BOX_CHARACTERS:])
        if boxed is None:
            return {"score": Unreadable(-1.0), "acc": False, "pred": NO_ANSWER}
        answer, right = boxed, boxed == truth
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": answer}


def geo3k(response: str, ground_truth: str, *, format_score: float = 0.1) -> float:
    r"""Score 1 - `format_score` for the right answer in the last box, plus `format_score` for the form of the response.

    The form is `<think>…</think>…\boxed{…}…`. Answers are compared by `equal_values`. A response without a box is
    `Unreadable`.

    Source: verl, `verl/utils/reward_score/geo3k.py`, with mathruler 0.1.

    >>> geo3k(r"<think>half</think> \boxed{\frac{1}{2}}", "0.5"), geo3k(r"\boxed{0.5}", "0.5"), geo3k("0.5", "0.5")
    (1.0, 0.9, 0.0)
    """
    answer = last_boxed(response)
    right = equal_values("None" if answer is None else answer.strip(), str(ground_truth), compact=True)
    after_thought = response.removeprefix("<think>").partition("</think>")[2]
    formed = response.startswith("<think>") and "}" in after_thought.partition("\\boxed{")[2]
    score = (1.0 - format_score) * right + format_score * formed
    return Unreadable(score) if answer is None else score


_BEFORE = ("answer:", "answer is", "answers are")
_AFTER = ("is answer", "is the answer", "are answers", "are the answers")
_LAST_WORDS = ("be ", "is ", "are ", "=", ": ", "get ", "be\n", "is\n", "are\n", ":\n", "get\n")


def prime_math(response: str, ground_truth: str) -> float:
    r"""Score 1 if the answer equals the truth as text, as an expression or as a number within 1e-4, else 0.

    To find the answer, the response is cut in this order; a cut whose marker is missing is skipped. It is cut to the
    text after the last "answer is" or the like; to the text before the last "is the answer" or the like; to what the
    first braces after the last `\boxed`, or else `\fbox`, contain; to the text before the last full stop that a space
    follows; and to the text after the last "=", "is" or the like.

    Source: verl, `verl/utils/reward_score/prime_math`; Cui et al. 2025 (PRIME), arXiv 2502.01456.
    Deviation: a response is never evaluated as Python, as verl does with `eval`: see `equal_values`, `equal_loosely`.

    >>> prime_math(r"Hence x = \boxed{2\sqrt{3}}", r"\sqrt{12}"), prime_math("The answer is 50%", "0.5")
    (1.0, 1.0)
    """
    answer, truth = response, str(ground_truth)
    for marker in _BEFORE:
        _, mark, rest = _parted(answer, marker)
        answer = rest.strip() if mark else answer
    for marker in _AFTER:
        before, mark, _ = _parted(answer, marker)
        answer = before.strip() if mark else answer
    start = answer.rfind("\\boxed")
    start = answer.rfind("\\fbox") if start < 0 else start
    brace = answer.find("{", start) if start >= 0 else -1
    if brace >= 0 and "}" not in answer[start:brace]:
        answer = (braced(answer, brace) or "").strip() or answer
    sentences, stop, _ = answer.rpartition(". ")
    answer = sentences.strip() if stop else answer
    for marker in _LAST_WORDS:
        _, mark, rest = _parted(answer, marker)
        answer = rest.strip() if mark else answer
    return float(equal_values(answer, truth) or equal_loosely(answer, truth))


def _parted(text: str, marker: str) -> tuple[str, bool, str]:
    start = text.lower().rfind(marker)
    return text[: max(0, start)], start >= 0, text[start + len(marker) :]


def math_verify(response: str, ground_truth: str) -> float:
    """Score 1 if Math-Verify finds an answer in the response that equals the truth, else 0.

    The truth is read as LaTeX, the response as LaTeX and as plain numbers; of the response, only the last 20,000
    characters are read. The score is 0 and `Unreadable` if nothing is found in the truth or the response, or if the
    library raises on the response.

    Source: Math-Verify 0.9, called as verl's `verl/utils/reward_score/math_verify.py` does.
    """
    from math_verify.grader import verify
    from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig, parse

    truths = parse(f"\\boxed{{{ground_truth}}}", (LatexExtractionConfig(),))
    try:
        answers = parse(response[-VERIFIED_CHARACTERS:], (ExprExtractionConfig(), LatexExtractionConfig()))
        if not (truths and answers):
            return Unreadable(0.0)
        return float(any(verify(truth, answer) for answer in answers for truth in truths))
    except Exception:  # noqa: BLE001 - whatever the library raises on a text that a model wrote
        return Unreadable(0.0)
