r"""Equality of mathematical answers by value: as text in normal form, as numbers, or as expressions, with sympy.

Nothing is evaluated as code: an expression is read by `nodes.scoring.gym.read_expression`, which knows numbers,
letters, operators and a few functions, and refuses values that are too large. An answer of more than
`ANSWER_CHARACTERS` equals nothing. `nodes.scoring.answer_text` finds answers in responses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from nodes.scoring.answer_text import normal_math
from nodes.scoring.gym import CONSTANTS, FUNCTIONS, read_expression

ANSWER_CHARACTERS = 1_000
RELATIVE_TOLERANCE = 1e-4
WHOLE_TOLERANCE = 1e-7

_UNITS = (
    *("degree", "cm", "centimeter", "meter", "mile", "second", "minute", "hour", "day", "week", "month", "year"),
    *("foot", "feet", "inch", "yard"),
)
_SYMBOLS = (("√", "sqrt"), ("π", "pi"), ("∞", "inf"), ("∪", "U"), ("·", "*"), ("×", "*"))
_REWRITTEN = (
    *(("\\%", ""), ("\\$", ""), ("$", ""), ("%", ""), (" or ", " , "), (" and ", " , ")),
    *(("million", "*10^6"), ("billion", "*10^9"), ("trillion", "*10^12")),
)
_THOUSANDS = re.compile(r"(\d),(\d\d\d)($|\D)")
_MIXED_NUMBER = re.compile(r"([0-9]) +([0-9])")
_FRACTION = re.compile(r"-?[0-9]+.?/0*[1-9][0-9]*.?")
_LARGE_POWER = re.compile(r"\^[0-9]+\^|\^[0-9][0-9]|\^[{(]")
_TOKEN = re.compile(r"\s*(?P<token>\d+\.?\d*|\.\d+|[^\W\d_]+|\*\*|\S)")
_PERCENT = re.compile(r"\d+(?:\.\d+)?\\?%")
_PERCENT_SIGN = re.compile(r"(?<!\\)%")
_DOLLARS = re.compile(r"\$\d")
_BRACKETS = "()[]"
_WITHOUT_BRACES = str.maketrans("", "", "{}()")


def unwrapped_text(text: str) -> str:
    r"""Return a one-line text that begins with `\text{` and ends with `}` without these, unless nothing would remain.

    Any other text is returned unchanged.

    >>> unwrapped_text(r"\text{(A)}"), unwrapped_text(r"5\text{ cm}")
    ('(A)', '5\\text{ cm}')
    """
    is_text_command = text.startswith("\\text{") and text.endswith("}") and "\n" not in text
    return text[len("\\text{") : -1] or text if is_text_command else text


def normal_answer(text: str, *, compact: bool = False) -> str:
    r"""Return an answer in MATH's normal form, unwrapped from `\text{…}`; only unwrapped if `normal_math` refuses it.

    If `compact`, every `%` is dropped, as mathruler does, otherwise only `\%`.

    >>> normal_answer("x = 10%"), normal_answer("x = 10%", compact=True)
    ('10%', '10')
    """
    text = unwrapped_text(text.strip()).strip()
    text = _PERCENT_SIGN.sub("", text) if compact else text
    try:
        return normal_math(text)
    except ValueError:
        return text


def normal_value(text: str, *, compact: bool = False) -> str:
    """Return the normal form in which the graders of PRM800K and PRIME compare values, in lower case.

    Units, `$` and `%` are dropped; LaTeX is converted to plain text; mixed numbers become sums; a whole number is
    written without commas and decimals. If `compact` (PRM800K), spaces and braces are dropped too, but litres are not.

    Source: Lightman et al. 2023 (PRM800K), arXiv 2305.20050, `_normalize` of its repository.

    >>> normal_value("1,080.0 meters"), normal_value("7 3/4"), normal_value("$5 million")
    ('1080', '7+3/4', '5 *10^6')
    """
    text = unwrapped_text(text)
    for before, after in _REWRITTEN:
        text = text.replace(before, after)
    for unit in _UNITS if compact else (*_UNITS, "liter"):
        text = re.sub(rf"{unit}(?:es)?s? *(?:\^[0-9]+)?", "", text)
    text = re.sub(r"\^ *\\circ", "", text)
    if len(text) > 1 and text[0] == "{" and text[-1] == "}":
        text = text[1:-1]
    text = re.sub(r",\\! *", "", text)
    text = _whole(text) or text
    text = _MIXED_NUMBER.sub(r"\1+\2", re.sub("- *", "-", plain_text(text)))
    if compact:
        text = text.translate(str.maketrans("", "", " {}"))
    text = text.lower()
    return _whole(without_thousands(text)) or text


def plain_text(text: str) -> str:
    r"""Return LaTeX as plain text: `\frac{1}{2}` is `1/2`, `\sqrt{2}` is `sqrt(2)`.

    Text without a backslash is returned unchanged. Text that pylatexenc cannot read stays LaTeX.
    """
    if "\\" not in text:
        return text
    from pylatexenc.latex2text import LatexNodes2Text

    for before, after in (("\\tfrac", "\\frac"), ("\\dfrac", "\\frac"), ("\\frac", " \\frac")):
        text = text.replace(before, after)
    try:
        plain = str(LatexNodes2Text().latex_to_text(text))
    except Exception:  # noqa: BLE001 - whatever its parser raises on a text that is not LaTeX
        return text
    for before, after in _SYMBOLS:
        plain = plain.replace(before, after)
    return plain.strip()


def without_thousands(text: str) -> str:
    """Return a text without the commas between thousands; all other commas stay.

    >>> without_thousands("(1,000,000, 2,5)")
    '(1000000, 2,5)'
    """
    while (shorter := _THOUSANDS.sub(r"\1\2\3", text)) != text:
        text = shorter
    return text


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _whole(text: str) -> str:
    number = _float(text)
    if number is None or not math.isfinite(number) or abs(number - round(number)) > WHOLE_TOLERANCE:
        return ""
    return str(round(number))


def equal_values(answer: str, truth: str, *, compact: bool = False) -> bool:
    r"""Return whether two answers are equal in normal form or, element by element, as expressions.

    Two fractions of whole numbers are equal only if their texts are, and a whole number equals only a whole number. An
    answer of over 1,000 characters equals nothing. Expressions that have together over two different letters, or a
    large power, are equal only in normal form. `compact` is passed to `normal_answer` and `normal_value`.

    Source: Lightman et al. 2023 (PRM800K), arXiv 2305.20050, `grade_answer` of its repository.
    Deviation: an expression is never run; each side must be readable by itself, and `x(x+1)` is a product.

    >>> equal_values(r"\frac{1}{2}", "0.5"), equal_values("3/6", "1/2"), equal_values("(1, 2)", "(1,2)")
    (True, False, True)
    """
    if len(answer) > ANSWER_CHARACTERS:
        return False
    if normal_answer(answer, compact=compact) == normal_answer(truth, compact=compact):
        return True
    answer, truth = normal_value(answer, compact=compact), normal_value(truth, compact=compact)
    if answer == truth or not answer:
        return answer == truth
    answers, truths = _elements(answer), _elements(truth)
    if len(answers) != len(truths) or (len(truths) > 1 and (answer[0], answer[-1]) != (truth[0], truth[-1])):
        return False
    return all(map(_equal_elements, answers, truths))


def _elements(text: str) -> list[str]:
    text = without_thousands(text)
    inner = text[1:-1]
    if not inner or text[0] not in _BRACKETS or text[-1] not in _BRACKETS or any(b in inner for b in _BRACKETS):
        return [text]
    return [element.strip() for element in inner.split(",")]


def _equal_elements(answer: str, truth: str) -> bool:
    if _FRACTION.fullmatch(answer) and _FRACTION.fullmatch(truth):
        return answer == truth
    if bool(_whole(without_thousands(answer))) != bool(_whole(without_thousands(truth))):
        return False
    joint = f"{truth} {answer}"
    letters = {letter for letter in joint.replace("sqrt", "").replace("frac", "") if letter.isalpha()}
    if len(letters) > 2 or _LARGE_POWER.search(joint):
        return False
    return equal_expressions(answer, truth, letters_are_products=True)


def equal_expressions(answer: str, truth: str, *, letters_are_products: bool = False, tolerance: float = 0.0) -> bool:
    """Return whether two expressions are equal: sympy simplifies their difference to 0, or they are numerically close.

    `tolerance` is relative; 0 means that only the simplified difference counts. Text that is not an expression equals
    nothing. A word is not an expression, unless `letters_are_products`: then each letter is a factor.

    >>> equal_expressions("2x + x^2", "x(x+2)"), equal_expressions("3.14159", "pi", tolerance=1e-4)
    (True, True)
    """
    import sympy

    try:
        first, second = (_expression(text, letters_are_products) for text in (answer, truth))
        if sympy.simplify(first - second) == 0:
            return True
        return tolerance > 0 and math.isclose(float(first), float(second), rel_tol=tolerance)
    except Exception:  # noqa: BLE001 - whatever sympy raises on a text that a model wrote, the texts are not equal
        return False


def _expression(text: str, letters_are_products: bool) -> Any:
    if len(text) > ANSWER_CHARACTERS:
        raise ValueError("it is too long")
    tokens = list[str]()
    for match in _TOKEN.finditer(text):
        token = match["token"]
        if not token.isalpha() or len(token) == 1 or token in FUNCTIONS or token in CONSTANTS:
            tokens.append("**" if token == "^" else token)
        elif letters_are_products:
            tokens += token
        else:
            raise ValueError(f"{token} is a word")
    return read_expression(_with_products(tokens))


def _with_products(tokens: Iterable[str]) -> str:
    """Join tokens, with `*` wherever a product is written without one: `2 x (y)` is `2*x*(y)`."""
    joined, before = list[str](), ""
    for token in tokens:
        ends = before == ")" or before[-1:].isalnum() or before[-1:] == "."
        applied = before in FUNCTIONS and token == "("
        if (
            ends
            and not applied
            and (token[0].isalpha() or token == "(" or (before[0].isalpha() and token[0].isdigit()))
        ):
            joined.append("*")
        joined.append(f" {token}")
        before = token
    return "".join(joined).strip()


def equal_loosely(answer: str, truth: str) -> bool:
    r"""Return whether two answers are equal by PRIME's loosest test: as numbers within 1e-4, with or without percent.

    The tolerance of 1e-4 is relative. Lists and intervals are compared element by element, other answers as text or as
    expressions. `\pi` is 3.14159… or 3.14. An answer of over 1,000 characters equals nothing.

    Source: PRIME, arXiv 2502.01456, `math_equal`, after Gou et al. 2024 (ToRA), arXiv 2309.17452.
    Deviation: nothing is evaluated as code, `^` is a power, and forms of sympy's own (`Matrix(…)`) are not read.

    >>> equal_loosely("50%", "0.5"), equal_loosely(r"2\pi", "6.28"), equal_loosely("[1, 2]", "[1.00001, 2]")
    (True, True, True)
    """
    if len(answer) > ANSWER_CHARACTERS:
        return False
    values = (math.pi, 3.14) if "\\pi" in answer + truth else (math.pi,)
    try:
        return any(_close(_plain(answer, pi), _plain(truth, pi)) for pi in values)
    except (OverflowError, ValueError):
        return False


def _plain(text: str, pi: float) -> str:
    r"""Return a text without `$` before a number, percent after one and a base, and with `\pi` as a number."""
    if _DOLLARS.match(text):
        return text[1:]
    if _PERCENT.fullmatch(text):
        return text.rstrip("%").rstrip("\\")
    if "_" in text:
        return str(int(float(text.partition("_")[0])))
    if "\\pi" not in text:
        return text
    first, *rest = text.split("\\pi")
    for piece in rest:
        first += f"{'*' if first[-1:].isdigit() else '1*'}{pi}{piece}"
    try:
        return str(float(_expression(first, letters_are_products=False)))
    except Exception:  # noqa: BLE001 - as in `equal_expressions`
        return first


def _close(answer: str, truth: str) -> bool:
    if answer.strip().lower() == truth.strip().lower() or answer.replace(" ", "") == truth.replace(" ", ""):
        return True
    number, expected = _plain_number(answer), _plain_number(truth)
    if number is not None and expected is not None:
        percentages = (expected / 100, expected, expected * 100)
        return any(math.isclose(value, number, rel_tol=RELATIVE_TOLERANCE) for value in percentages)
    answer, truth = answer.strip(), truth.strip()
    if not answer or not truth:
        return False
    texts = (answer, truth)
    if (answer[0] + answer[-1] == "[]" and truth[0] != "(") or (answer[0] + answer[-1] == "()" and truth[0] != "["):
        texts = (answer.strip(_BRACKETS), truth.strip(_BRACKETS))
    first, second = (text.translate(_WITHOUT_BRACES) for text in texts)
    if first == second:
        return True
    ends = (answer[0], answer[-1]) == (truth[0], truth[-1]) and answer[0] in "([" and answer[-1] in "])"
    if ends and _close_lists(answer[1:-1], truth[1:-1]):
        return True
    if "," in answer and "," in truth and answer.count(",") == truth.count(","):
        return _close_lists(answer, truth)
    return equal_expressions(plain_text(answer), plain_text(truth), tolerance=RELATIVE_TOLERANCE)


def _close_lists(answer: str, truth: str) -> bool:
    answers, truths = answer.split(","), truth.split(",")
    pairs = zip(answers, truths, strict=False)
    return len(answers) == len(truths) and all(
        _close(_plain(first.strip(), math.pi), _plain(second.strip(), math.pi)) for first, second in pairs
    )


def _plain_number(text: str) -> float | None:
    return _float(text.replace("{,}", "") if "{,}" in text else text.replace(",", ""))
