r"""The answers on which our graders are compared with verl's: right, wrong, malformed, long and hostile ones.

The same answers are made on every run. Every grader of mathematics gets the same ones.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.verl_scorers_programs import PROBLEMS, program_responses

LONG = 1_000_000


@dataclass(frozen=True)
class ScoredText:
    """A response and the truth that it is compared with; `shape` names what is special about it."""

    shape: str
    response: str
    truth: Any


@dataclass(frozen=True)
class Grader:
    """A rule of ours, and verl's function for it: a data source, or `module:name` with settings.

    Only every n-th answer of the family is scored, where verl is slow.
    """

    rule: str
    theirs: str
    family: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ours: Mapping[str, Any] = field(default_factory=dict[str, Any])
    every: int = 1

    @property
    def answers(self) -> list[ScoredText]:
        """Return the answers that are scored."""
        families = {"numbers": numbers, "formulas": formulas, "questions": questions, "programs": programs}
        return list(families[self.family]())[:: self.every]


GRADERS: Sequence[Grader] = (
    Grader("gsm8k", "openai/gsm8k", "numbers"),
    Grader("gsm8k", "gsm8k:compute_score", "numbers", {"format_score": 0.1}, {"format_score": 0.1}),
    Grader("gsm8k_flexible", "gsm8k:compute_score", "numbers", {"method": "flexible"}),
    Grader("gsm8k_value", "gsm8k:compute_score", "numbers"),
    Grader("math_reward", "HuggingFaceH4/MATH-500", "formulas"),
    Grader("math_dapo", "aime_2025", "formulas"),
    Grader("math_verify", "math_verify:compute_score", "formulas"),
    Grader("geo3k", "hiyouga/geometry3k", "formulas"),
    Grader("prime_math", "numina_olympiads", "formulas", every=3),
    Grader("search_r1", "searchR1_nq", "questions"),
    Grader("search_r1_inside", "search_r1_like_qa_em:compute_score_subem", "questions"),
    Grader("prime_code", "apps", "programs", ours={"limit_s": 10.0}),
    Grader("prime_code_all", "prime_code:compute_score", "programs", {"continuous": False}, {"limit_s": 10.0}),
)


NUMBERS = ("18", "1080", "-3", "0.5", "7", "1000000", "12.75", "0", "72")
_NUMBER_SHAPES: Mapping[str, str] = {
    "marked": "6 * 3 = {t}\n#### {t}",
    "marked, then text": "#### {t} dollars in all",
    "marked twice": "#### 99\nNo, wait.\n#### {t}",
    "marked twice, last wrong": "#### {t}\nNo, wait.\n#### 99",
    "no space": "####{t}",
    "two spaces": "####  {t}",
    "tab": "####\t{t}",
    "dollar": "#### ${t}",
    "euro": "#### {t} €",
    "full stop": "#### {t}.",
    "comma after": "#### {t},",
    "two decimals": "#### {t}.00",
    "percent": "#### {t}%",
    "bold": "#### **{t}**",
    "boxed": "#### \\boxed{{{t}}}",
    "equation": "#### x = {t}",
    "wrong": "#### 99",
    "close": "#### {t}1",
    "not marked": "The answer is {t}",
    "not marked, full stop": "The answer is {t}.",
    "last number other": "The answer is {t}, and it took 3 steps",
    "three marks": "### {t}",
    "words": "#### eighteen",
    "only a dot": "#### .",
    "only a comma": "#### ,",
    "nothing after": "####",
    "nothing after, space": "#### ",
    "far from the end": "#### {t}" + "x" * 300,
    "just inside": "#### {t}" + "x" * 280,
    "long before": "1 2 3 " * 20_000 + "#### {t}",
    "scientific": "#### {t}e0",
    "underscore": "#### 1_0{t}",
    "plus": "#### +{t}",
    "spaces around": "  \n#### {t}  \n ",
    "line break": "####\n{t}",
    "unicode minus": "#### −{t}",
    "null character": "####\0 {t}",
    "many digits": "#### " + "9" * 299,
    "many marks": "#### " * 50_000 + "{t}",
    "empty": "",
}


def numbers() -> Iterator[ScoredText]:
    """Yield answers with numbers, as to GSM8K."""
    for truth in NUMBERS:
        for shape, text in _NUMBER_SHAPES.items():
            yield ScoredText(shape, text.format(t=truth), truth)
        if truth.isdigit():
            yield ScoredText("thousands", f"#### {int(truth):,}", truth)
            wide = "".join(chr(ord("０") + int(digit)) for digit in truth)
            yield ScoredText("full-width digits", f"#### {wide}", truth)


_FORMS: Mapping[str, Sequence[str]] = {
    # truth: other ways to write it, and what is wrong; graders differ in which of them they take
    "42": ("42", "42.0", "42.", "+42", "042", "42\\%", "42^\\circ", "42\\text{ cm}", "\\text{42}", "43", "4 2", "$42$"),
    "\\frac{1}{2}": (
        "\\frac12",
        "\\dfrac{1}{2}",
        "\\tfrac{1}{2}",
        "1/2",
        "0.5",
        ".5",
        "2/4",
        "\\frac{2}{4}",
        "50\\%",
        "1/3",
    ),
    "-\\frac{3}{4}": ("-3/4", "\\frac{-3}{4}", "-0.75", "-\\dfrac34", "\\frac{3}{-4}", "3/4", "- \\frac{3}{4}"),
    "2\\sqrt{3}": (
        "2\\sqrt3",
        "\\sqrt{12}",
        "2 \\sqrt{3}",
        "3.4641016",
        "2\\cdot\\sqrt{3}",
        "\\sqrt{3}\\cdot 2",
        "2\\sqrt{2}",
    ),
    "\\frac{\\sqrt{2}}{2}": ("\\frac{1}{\\sqrt{2}}", "\\sqrt{2}/2", "\\frac{\\sqrt2}2", "0.70710678", "\\sqrt{0.5}"),
    "1,000": ("1000", "1,000", "1{,}000", "1\\,000", "1,000.0", "10^3", "1000 \\text{ units}", "100"),
    "(1,2)": ("(1, 2)", "\\left(1,2\\right)", "(2,1)", "[1,2]", "(1,2,3)", "1,2", "(1.0,2.0)", "( 1 , 2 )"),
    "[0,\\infty)": ("\\left[0,\\infty\\right)", "[0,\\infty]", "(0,\\infty)", "x \\ge 0", "[0, \\infty)"),
    "x^2+2x+1": ("(x+1)^2", "x^2 + 2x + 1", "1+2x+x^2", "x(x+2)+1", "x^2+2x", "x^{2}+2x+1", "y^2+2y+1"),
    "\\pi": ("3.14159", "3.14", "\\pi ", "pi", "\\frac{2\\pi}{2}", "π", "3"),
    "4\\pi": ("12.566", "4 \\pi", "\\pi\\cdot4", "12.56", "4\\pi \\text{ cm}^2", "2\\pi"),
    "\\text{even}": ("even", "\\text{Even}", "\\mathrm{even}", "odd", "\\text{ even}", "neve"),
    "(A)": ("A", "\\text{A}", "\\text{(A)}", "\\textbf{(A)}", "(B)", "(a)"),
    "5": ("x=5", "x = 5", "5 \\text{ units}", "5\\text{ m}", "5 cm", "5 meters", "\\$5", "5.0", "five", "5!", "10/2"),
    "7\\frac{3}{4}": ("7 3/4", "7.75", "\\frac{31}{4}", "31/4", "7\\tfrac{3}{4}", "7+3/4"),
    "3^{10}": ("59049", "3^10", "3^{10}", "9^5", "59,049"),
    "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}": (
        "\\begin{pmatrix}1\\\\2\\end{pmatrix}",
        "\\begin{pmatrix} 1 \\\\ 3 \\end{pmatrix}",
        "\\begin{bmatrix}1\\\\2\\end{bmatrix}",
    ),
    "1,2,3": ("1, 2, 3", "3,2,1", "1,2", "\\{1,2,3\\}", "1 and 2 and 3", "1,2\\text{ and }3"),
    "0": ("0", "-0", "0.0", "zero", "1-1", "\\emptyset", "00"),
    "90^\\circ": ("90", "90^{\\circ}", "90 degrees", "90°", "\\frac{\\pi}{2}", "90\\text{ degrees}"),
    "10\\%": ("10", "0.1", "10%", "10 \\%", "\\frac{1}{10}", "10 percent"),
    "i": ("i", "\\sqrt{-1}", "j", "-i", "1i"),
    "\\log 2": ("\\log(2)", "\\log{2}", "\\ln 2", "0.301", "log 2"),
    "204": ("204", "204.0", "\\text{204}", "0204", "240", "２０４"),
    "113_8": ("113_8", "113_{8}", "75", "113"),
}
_AROUND: Mapping[str, str] = {
    "boxed": "We find $\\boxed{{{a}}}$.",
    "boxed alone": "\\boxed{{{a}}}",
    "boxed with a space": "so \\boxed {a}$ is it",
    "boxed without braces": "so \\boxed{a}",
    "framed": "so \\fbox{{{a}}}",
    "boxed twice": "first \\boxed{{1234}}, then \\boxed{{{a}}}",
    "boxed twice, last wrong": "first \\boxed{{{a}}}, then \\boxed{{1234}}",
    "box within a box": "\\boxed{{\\boxed{{{a}}}}}",
    "box not closed": "\\boxed{{{a}",
    "box closed too soon": "\\boxed}}{{{a}}}",
    "boxed equation": "\\boxed{{x = {a}}}",
    "boxed text": "\\boxed{{\\text{{{a}}}}}",
    "Answer:": "Some steps.\n\nAnswer: {a}",
    "Answer: in dollars": "Answer: ${a}$",
    "Answer: boxed": "Answer: $\\boxed{{{a}}}$",
    "answer lower case": "answer : {a}\n",
    "Answer: on the next line": "Answer:\n{a}",
    "Answer: twice": "Answer: 1234\nAnswer: {a}",
    "Answer: equation": "Answer: $x = {a}$.",
    "the answer is": "Therefore the answer is {a}.",
    "is the answer": "{a} is the answer",
    "equals": "hence y = {a}",
    "bare": "{a}",
    "thinking": "<think>1 + 1</think> so \\boxed{{{a}}}",
    "thinking, box within": "<think>\\boxed{{{a}}}</think> done",
    "thinking not closed": "<think>1 + 1 so \\boxed{{{a}}}",
    "far from the end": "\\boxed{{{a}}}" + " and so on" * 40,
    "long before": "So we go on. " * 2_000 + "Answer: {a}\n\\boxed{{{a}}}",
    "unicode before": "ﷺİſ𝔸 – \\boxed{{{a}}}",
    "full stop inside": "It is 3. Then \\boxed{{{a}}}",
    "trailing lines": "\\boxed{{{a}}}\n\n\n",
}
_HOSTILE: Mapping[str, str] = {
    "hostile: deep braces": "\\boxed{" * 5_000 + "}" * 5_000,
    "hostile: open boxes": "\\boxed{" * 100_000,
    "hostile: open texts": "Answer: " + "\\text{" * 40,
    "hostile: a long number": "\\boxed{" + "9" * LONG + "}",
    "hostile: a million spaces": "\\boxed{" + " " * LONG + "}",
    "hostile: a tower of powers": "\\boxed{9**9**9**9}",
    "hostile: a tower with carets": "\\boxed{9^9^9^9}",
    "hostile: code": "\\boxed{__import__('os').getpid()}",
    "hostile: code in pi": "\\boxed{__import__('os').getpid()\\pi}",
    "hostile: code after a base": "\\boxed{5_(1)}",
    "hostile: a list that evaluates": "\\boxed{[1,2][0]}",
    "hostile: parentheses that close": "\\boxed{0)*(0}",
    "hostile: a comparison": "\\boxed{0)==(1}",
    "hostile: think tags": "<think>" + "</think>" * 60 + "\\boxed{" * 20,
    "hostile: commas": "\\boxed{" + "1,000" * 150 + "}",
    "hostile: nothing": "\\boxed{}",
    "hostile: only a command": "\\boxed{\\frac}",
    "hostile: an unfinished fraction": "\\boxed{\\frac1}",
    "hostile: an empty root": "\\boxed{\\sqrt}",
    "hostile: two units": "\\boxed{5\\text{ a}\\text{ b}}",
    "hostile: nan": "\\boxed{nan}",
    "hostile: infinity": "\\boxed{inf}",
    "hostile: a huge float": "\\boxed{1e400}",
    "hostile: null characters": "\\boxed{\0\0}",
    "hostile: lone surrogate free text": "\\boxed{\ufffd}",
    "hostile: the word None": "\\boxed{None}",
    "hostile: the word for no answer": "Answer: [INVALID]",
    "hostile: empty": "",
    "hostile: a slash": "\\boxed{/}",
    "hostile: a division by zero": "\\boxed{1/0}",
    "hostile: a factorial": "\\boxed{9!!!!}",
    "hostile: no box": "x" * LONG,
}
HOSTILE_TRUTHS = ("42", "\\frac{1}{2}", "\\pi", "(1,2)")


def formulas() -> Iterator[ScoredText]:
    """Yield answers with formulas, as to MATH: every form of every truth in some of the texts around it."""
    generator = random.Random(22)
    around = list(_AROUND.items())
    for truth, forms in _FORMS.items():
        for form in (truth, *forms):
            for shape, text in [around[0], *generator.sample(around[1:], 3)]:
                yield ScoredText(shape, text.format(a=form), truth)
    for shape, text in _HOSTILE.items():
        for truth in HOSTILE_TRUTHS:
            yield ScoredText(shape, text, truth)


_TRUE_ANSWERS: Sequence[Any] = (
    "Paris",
    ["Eiffel Tower", "tour Eiffel"],
    ["1,000", "one thousand"],
    ["São Paulo"],
    ["A"],
)
_PHRASES = ("{t}", "The {t}", "a {t}.", "{t}!", "{t} of it", "ONE {t}", "{t}\n", "  {t}  ", "“{t}”", "nothing", "")
_TAGGED: Mapping[str, str] = {
    "tagged": "<think>so</think><answer>{a}</answer>",
    "tagged twice": "<answer>wrong</answer> <answer>{a}</answer>",
    "tagged twice, last wrong": "<answer>{a}</answer> <answer>wrong</answer>",
    "not tagged": "{a}",
    "not closed": "<answer>{a}",
    "closed twice": "<answer>{a}</answer></answer>",
    "nested": "<answer><answer>{a}</answer></answer>",
    "eleven tags": "<answer>x</answer>" * 10 + "<answer>{a}</answer>",
    "ten tags": "<answer>x</answer>" * 9 + "<answer>{a}</answer>",
    "upper case": "<ANSWER>{a}</ANSWER>",
    "many open tags": "<answer>" * 200 + "{a}",
}


def questions() -> Iterator[ScoredText]:
    """Yield short answers to questions, as to Search-R1's."""
    for target in _TRUE_ANSWERS:
        first = target if isinstance(target, str) else target[-1]
        for shape, text in _TAGGED.items():
            for phrase in _PHRASES:
                for form in dict.fromkeys((phrase.format(t=first), phrase.format(t=first).upper())):
                    yield ScoredText(shape, text.format(a=form), {"target": target})


def programs() -> Iterator[ScoredText]:
    """Yield responses with programs, as to APPS; the truth is JSON."""
    for shape, response, problem in program_responses():
        yield ScoredText(shape=shape, response=response, truth=json.dumps(PROBLEMS[problem]))
