"""Rules of mathematics and of questions against cases worked by hand; benchmarks/verl_scorers.py has verl's answers."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nodes.scoring.answer_text import braced, last_boxed, normal_math, normal_minerva, normal_words, tagged_answer
from nodes.scoring.expressions import equal_expressions, equal_loosely, equal_values
from nodes.scoring.math_rules import (
    geo3k,
    gsm8k,
    gsm8k_flexible,
    math_dapo,
    math_reward,
    math_verify,
    prime_math,
)
from nodes.scoring.question_rules import search_r1, search_r1_inside
from tests.looped import looped


@looped(
    "response, strict, flexible",
    [
        ("#### 18", 1.0, 1.0),
        ("#### $18", 0.0, 1.0),
        ("####18", 0.0, 1.0),
        ("#### 18.", 0.1, 0.1),
        ("#### 18.00", 0.1, 0.1),
        ("#### 18, in 3 steps", 1.0, 0.1),
        ("It is 18", 0.0, 1.0),
        ("It is 18 .", 0.0, 1.0),
        ("#### -18", 0.1, 0.1),
        ("#### １８", 0.0, 0.0),
        ("#### 18" + "x" * 294, 0.0, 1.0),
        ("...", 0.0, 0.1),
        ("", 0.0, 0.0),
    ],
)
def test_gsm8k_reads_what_verl_reads_strictly_or_flexibly(response: str, strict: float, flexible: float) -> None:
    assert gsm8k(response, "18", format_score=0.1) == strict
    assert gsm8k_flexible(response, "18", format_score=0.1) == flexible


@looped(
    "response, truth, score",
    [
        (r"$\boxed{\frac12}$", r"\frac{1}{2}", 1.0),
        (r"\boxed{x = 0.5}", r"\frac{1}{2}", 1.0),
        (r"\boxed{\boxed{5}}", "5", 1.0),
        (r"\boxed 5$ or so", "5", 1.0),
        (r"\boxed{5} \boxed{6}", "5", 0.0),
        (r"\fbox{5}", "5", 0.0),
        (r"\boxed{5", "5", 0.0),
        (r"\boxed{5\text{ cm}}", "5", 1.0),
        (r"\boxed{\sqrt}", r"\sqrt", 1.0),
        (r"\boxed{\frac1}", r"\frac{1}{}", 0.0),
        (r"\boxed{50\%}", "50", 1.0),
        ("5", "5", 0.0),
    ],
)
def test_math_reward_compares_normal_forms_in_the_last_box(response: str, truth: str, score: float) -> None:
    assert math_reward(response, truth) == score


@looped(
    "response, truth, acc, pred",
    [
        ("Answer: 34", "34", True, "34"),
        ("answer :\n$34$.", "34", True, "34"),
        ("Answer: 33\nAnswer: x = 34", "34", True, "34"),
        ("Answer: 1,034 dollars", "1034", True, "1034"),
        (r"Answer: \boxed{34}", "34", True, "34"),
        (r"so \boxed{34}", "34", True, "34"),
        (r"so \boxed{34.0}", "34", False, "34.0"),
        (r"\boxed{34}" + "x" * 100, "34", False, "[INVALID]"),
        ("Answer: 34" + "x" * 300, "34", False, "[INVALID]"),
        ("34", "34", False, "[INVALID]"),
    ],
)
def test_math_dapo_reads_the_answer_line_and_else_the_box(response: str, truth: str, acc: bool, pred: str) -> None:
    found = math_dapo(response, truth)
    assert found == {"score": 1.0 if acc else -1.0, "acc": acc, "pred": pred}
    assert getattr(found["score"], "unreadable", False) == (pred == "[INVALID]")


@looped(
    "answer, truth, equal",
    [
        ("2x + 2", "2(x+1)", True),
        ("(1, 2)", "(1,2)", True),
        ("[1, 2]", "(1,2)", False),
        ("3/6", "1/2", False),
        ("7 3/4", "31/4", True),
        ("1,000", "1000.0", True),
        ("5 meters", "5", True),
        ("0)*(0", "5", False),
        ("9**9**9**9", "5", False),
        ("__import__('os')", "5", False),
        ("even", "neve", False),
        ("1/0", "5", False),
        ("1 if 1 else 5", "5", False),
        ("x.y", "5", False),
        ("'5'", "5", False),
        ("\\input{/etc/passwd}", "5", False),
        ("0**-1", "5", False),
        ("(" * 400 + ")" * 400, "5", False),
        ("1" * 5_000, "1", False),
    ],
)
def test_values_are_equal_as_expressions_and_never_run(answer: str, truth: str, equal: bool) -> None:
    pytest.importorskip("sympy")
    assert equal_values(answer, truth) is equal
    assert equal_values(answer, truth, compact=True) is equal


@looped(
    "answer, truth, equal",
    [
        ("50%", "0.5", True),
        ("50", "0.5", True),
        ("$18", "18", True),
        ("3.1416", "\\pi", True),
        ("2*3.14", "\\pi*2", True),
        ("1, 2.00001", "1,2", True),
        ("1,2,3", "1,2", False),
        ("x_1", "y_1", False),
        ("113_8", "113_8", True),
        ("", "5", False),
        ("nan", "5", False),
        ("__import__('os').getpid()\\pi", "3", False),
        ("word", "drow", False),
    ],
)
def test_loose_equality_is_of_numbers_and_lists(answer: str, truth: str, equal: bool) -> None:
    pytest.importorskip("sympy")
    assert equal_loosely(answer, truth) is equal


def test_words_are_no_products_and_a_large_power_is_no_number() -> None:
    pytest.importorskip("sympy")
    assert equal_expressions("ab", "ba", letters_are_products=True) and not equal_expressions("ab", "ba")
    assert equal_expressions("2^10", "1024") and not equal_expressions("9^9^9^9", "9^9^9^9 + 1")


def test_geo3k_adds_a_tenth_for_the_form() -> None:
    pytest.importorskip("pylatexenc")
    form = r"<think>{}</think> so \boxed{{{}}}"
    assert geo3k(form.format("a", r"2\sqrt{3}"), r"2\sqrt{3}") == pytest.approx(1.0)
    assert geo3k(form.format("a", r"\sqrt{12}"), r"2\sqrt{3}") == pytest.approx(1.0)
    assert geo3k(form.format("a", "5"), "6") == pytest.approx(0.1)
    assert geo3k(r"\boxed{5}", "5") == pytest.approx(0.9)
    assert geo3k(r"<think>\boxed{5}</think>", "5") == pytest.approx(0.9)
    assert geo3k("</think>" * 3, "5") == 0.0


def test_geo3k_drops_percent_signs_without_a_backslash_too() -> None:
    assert geo3k(r"\boxed{x = 10%}", r"10\%") == pytest.approx(0.9)
    assert geo3k(r"\boxed{1/2%}", r"\frac{1}{2}") == pytest.approx(0.9)
    assert prime_math("x = 11%", r"10\%") == 0.0


def test_prime_math_takes_what_stands_last() -> None:
    pytest.importorskip("pylatexenc")
    assert prime_math(r"Step 2: so y = \boxed{\frac{\sqrt{2}}{2}}", r"\frac{1}{\sqrt{2}}") == 1.0
    assert prime_math("The answer is 1,000.0. Done", "1000") == 1.0
    assert prime_math("Hence x = 12.566", r"4\pi") == 1.0
    assert prime_math(r"\boxed{13}", "12") == 0.0


def test_math_verify_asks_the_library() -> None:
    pytest.importorskip("math_verify")
    assert math_verify(r"so $\boxed{\frac{2}{4}}$", r"\frac{1}{2}") == 1.0
    assert math_verify("it is 0.5", r"\frac{1}{2}") == 1.0 and math_verify("it is 0.6", "0.5") == 0.0
    assert getattr(math_verify("no idea", "0.5"), "unreadable", False)


@looped(
    "response, score, inside",
    [
        ("<answer>The Eiffel tower!</answer>", 1.0, 1.0),
        ("<answer>tour  eiffel</answer>", 1.0, 1.0),
        ("<answer>the Eiffel Tower in Paris</answer>", 0.0, 1.0),
        ("<answer>no</answer><answer>Eiffel Tower</answer>", 1.0, 1.0),
        ("<answer>no</answer>" * 10 + "<answer>Eiffel Tower</answer>", 0.25, 1.0),
        ("<answer>Eiffel Tower", 0.0, 0.0),
        ("Eiffel Tower", 0.0, 0.0),
    ],
)
def test_search_r1_matches_a_tagged_answer(response: str, score: float, inside: float) -> None:
    truth = {"target": ["Eiffel Tower", "tour Eiffel"]}
    assert search_r1(response, truth) == score and search_r1(response, truth["target"]) == score
    assert search_r1_inside(response, truth) == inside


def test_texts_without_an_answer_have_none() -> None:
    assert tagged_answer("</answer><answer>") is None and last_boxed("\\boxed{") is None and braced("{", 0) is None
    assert normal_words("The a an.") == "" and normal_minerva("") == "" and normal_math("") == ""


HOSTILE = r"""
from nodes.scoring import math_rules, question_rules
from nodes.scoring.answer_text import normal_math, normal_words
from nodes.scoring.gym import extract_answer
size = 1_000_000
parts = [
    "<answer>", "</answer>", "\\boxed{", "\\boxed ", "{", "}", "#### ", "1,", " ", "=", "answer is ", "\\text{",
    "\\frac", "$", ". ", "</think>", "a ", "\0",
]
forms = ("{}", "<think>{}", "\\boxed{{{}}}", "<answer>{}</answer>", "{}#### 9")
for number, part in enumerate(parts):
    text = part * (size // len(part))
    response = forms[number % len(forms)].format(text)
    for name in ("gsm8k", "gsm8k_flexible", "gsm8k_value", "math_reward", "math_dapo"):
        getattr(math_rules, name)(response, "9")
    question_rules.search_r1(response, "9"), question_rules.search_r1_inside(response, "9")
    math_rules.geo3k(response, "9"), math_rules.prime_math(response, "9")
    extract_answer(response)
    try:
        normal_math(text)
    except ValueError:
        pass
    normal_words(text)
print("done")
"""


@pytest.mark.processes
def test_a_million_characters_take_time_that_grows_with_their_number_alone() -> None:
    # What is quadratic would take hours; this takes seconds.
    done = subprocess.run([sys.executable, "-c", HOSTILE], capture_output=True, text=True, timeout=900, check=False)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr
