r"""Answers in the text of a response: where they stand (`####`, `\boxed{}`, `<answer>`), and their normal forms.

The normal forms are those of published benchmarks, to the letter: which texts count as equal decides what a score
means. Every function takes time linear in the length of the text. `nodes.scoring.expressions` compares values.
"""

from __future__ import annotations

import re
import string
from decimal import Decimal, InvalidOperation


class Unreadable(float):
    """The score of a response in which a rule found no answer: it counts as wrong, and in the metric `unreadable`.

    A rule of your own may return it too.
    """

    unreadable = True


_BRACES = re.compile(r"[{}]")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def tagged_answer(response: str) -> str | None:
    """Return the contents of the last complete `<answer>…</answer>`, without surrounding spaces; None if there is none.

    >>> tagged_answer("so <answer> 4 </answer>, no: <answer>5</answer>"), tagged_answer("<answer>4")
    ('5', None)
    """
    position, answer = 0, None
    while (start := response.find("<answer>", position)) >= 0:
        end = response.find("</answer>", start)
        if end < 0:
            break
        answer, position = response[start + len("<answer>") : end], end + len("</answer>")
    return None if answer is None else answer.strip()


def braced(text: str, start: int) -> str | None:
    r"""Return the text between the opening brace at `start` and its closing brace; None if it is never closed.

    >>> braced(r"\boxed{\frac{1}{2}} or so", 6), braced("{1", 0)
    ('\\frac{1}{2}', None)
    """
    depth = 0
    for brace in _BRACES.finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[start + 1 : brace.start()]
    return None


def last_boxed(text: str) -> str | None:
    r"""Return the contents of the last `\boxed{…}`; None if there is none, or if its brace is never closed.

    >>> last_boxed(r"\boxed{1}, no: $\boxed{\frac{1}{2}}$"), last_boxed(r"\boxed{1} \boxed{2")
    ('\\frac{1}{2}', None)
    """
    start = text.rfind("\\boxed{")
    return braced(text, start + len("\\boxed")) if start >= 0 else None


def last_boxed_of_math(text: str) -> str | None:
    r"""Return the contents of the last box, as the scorer of MATH finds it; None without a complete box.

    If the text contains `\boxed ` with a space, the contents are the text after the last of these, up to a `$` or the
    end. Otherwise they are the text in the braces directly after the last `\boxed`.

    Source: Hendrycks et al. 2021 (MATH), arXiv 2103.03874, `last_boxed_only_string` of its repository.

    >>> last_boxed_of_math(r"$\boxed 5$"), last_boxed_of_math(r"\boxed{5}"), last_boxed_of_math(r"\fbox{5}")
    ('5', '5', None)
    """
    _, spaced, rest = text.rpartition("\\boxed ")
    if spaced:
        return rest.partition("$")[0]
    start = text.rfind("\\boxed")
    brace = start + len("\\boxed")
    return braced(text, brace) if start >= 0 and text.startswith("{", brace) else None


def decimal(text: str) -> Decimal | None:
    """Return the value of a number that may have commas, a `$` and a final full stop; None for other text.

    "Infinity" and "NaN" are other text.

    >>> decimal("$1,000.50."), decimal("1.2.3"), decimal("NaN")
    (Decimal('1000.50'), None, None)
    """
    try:
        number = Decimal(text.replace(",", "").replace("$", "").strip().rstrip("."))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


_OF_MATH = (
    *(("\n", ""), ("\\!", ""), ("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"), ("\\left", ""), ("\\right", "")),
    *(("^{\\circ}", ""), ("^\\circ", ""), ("\\$", "")),
)
_AFTER_UNITS = (("\\\\%", ""), ("\\%", ""), (" .", " 0."), ("{.", "{0."))


def normal_math(text: str) -> str:
    r"""Return an answer in the normal form in which the scorer of MATH compares answers.

    Spaces, `\left`, `\right`, `\$`, `\%` and degrees are dropped, and everything from `\text{ ` on, which is usually a
    unit. A left-hand side of at most two characters, such as `x =`, is dropped too. `\tfrac` and `\dfrac` become
    `\frac`; `\frac12` and `\sqrt3` get braces; a fraction of integers such as `1/2`, and `0.5`, become `\frac{1}{2}`;
    other decimals stay. Raises ValueError, as that scorer does, for a second `\text{ ` and for `\sqrt` or `\frac` at
    the end or directly repeated.

    Source: Hendrycks et al. 2021 (MATH), arXiv 2103.03874, `_strip_string` of its repository.
    """
    for before, after in _OF_MATH:
        text = text.replace(before, after)
    text, unit, rest = text.partition("\\text{ ")
    if unit and unit in rest:
        raise ValueError("it has two units")
    for before, after in _AFTER_UNITS:
        text = text.replace(before, after)
    if text.startswith("."):
        text = f"0{text}"
    left, equals, right = text.partition("=")
    if equals and len(left) <= 2 and "=" not in right:
        text = right
    text = _with_braces(_with_braces(text, "\\sqrt", 1).replace(" ", ""), "\\frac", 2)
    if text == "0.5":
        return "\\frac{1}{2}"
    above, _, below = text.partition("/")
    try:
        fraction = int(above), int(below)
    except ValueError:
        return text
    return f"\\frac{{{fraction[0]}}}{{{fraction[1]}}}" if text == f"{fraction[0]}/{fraction[1]}" else text


def _with_braces(text: str, command: str, arguments: int) -> str:
    r"""Put braces around one-character arguments of a command: `\frac12` is `\frac{1}{2}`; a final `\frac1` stays."""
    first, *rest = text.split(command)
    pieces = [first]
    for piece in rest:
        if not piece:
            raise ValueError(f"{command} has no argument")
        if piece[0] == "{":
            pieces.append(piece)
            continue
        if len(piece) < arguments:
            return text
        braces = "".join(letter if letter == "{" else f"{{{letter}}}" for letter in piece[:arguments])
        pieces.append(braces + piece[arguments:])
    return command.join(pieces)


def equal_math(answer: str, truth: str) -> bool:
    r"""Return whether two answers have the same normal form of MATH; if either has none, whether the texts are equal.

    >>> equal_math(r"\dfrac{1}{2}", "0.5"), equal_math(r"5\sqrt", r"5\sqrt"), equal_math("0.50", "0.5")
    (True, True, False)
    """
    try:
        return normal_math(answer) == normal_math(truth)
    except ValueError:
        return answer == truth


_OF_MINERVA = (
    *(("an ", ""), ("a ", ""), (".$", "$"), ("\\$", ""), ("\\ ", ""), (" ", ""), ("mbox", "text")),
    *((",\\text{and}", ","), ("\\text{and}", ","), ("\\text{m}", "\\text{}")),
)
_UNITS_OF_MINERVA = (
    *("square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", "\\ldots", "sue", "points"),
    *("feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students"),
    *("childrentickets", "multiples", "\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3"),
    *("\\text{\n}", "\\text{}", "\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots"),
)
_UNWRAPPED = tuple(re.compile(rf"\\{command}\{{(.*?)\}}") for command in ("text", "textbf", "overline"))
_FORMULA_OF_LINE = re.compile(r"^[^$\n]*(\$[^$\n]*\$).*$", re.MULTILINE)
_BOX_TO_THE_END = re.compile(r"\\boxed\{(.*)\}")
_BARE_FRACTION, _BARE_ROOT = re.compile(r"frac([^{])(.)"), re.compile(r"sqrt([^{])")


def normal_minerva(text: str) -> str:
    r"""Return the normal form in which the evaluations of Minerva and DAPO compare answers.

    Only the text after the last `=` counts. Spaces and units that occur in MATH are dropped, a line with `$…$` is
    reduced to that formula, `\text{…}` and the like are unwrapped, and `\frac12`, `\sqrt3` get their braces. The time
    is quadratic in the length of the text, so the caller must limit that length.

    Source: Lewkowycz et al. 2022 (Minerva), arXiv 2206.14858, appendix D.1.

    >>> normal_minerva(r"x = $\frac12$ meters"), normal_minerva("1,000"), normal_minerva(r"\text{(A)}")
    ('\\frac{1}{2}', '1000', '(A)')
    """
    text = text.rpartition("=")[2]
    for before, after in (*_OF_MINERVA, *((unit, "") for unit in _UNITS_OF_MINERVA)):
        text = text.replace(before, after)
    text = _FORMULA_OF_LINE.sub(r"\1", text)
    for wrapped in (*_UNWRAPPED, _BOX_TO_THE_END):
        text = wrapped.sub(r"\1", text)
    text = _BARE_ROOT.sub(r"sqrt{\1}", _BARE_FRACTION.sub(r"frac{\1}{\2}", text)).replace("$", "")
    without_commas = text.replace(",", "")
    return (without_commas if without_commas.isdigit() else text).strip()


def normal_words(text: str) -> str:
    """Return a text in lower case, without punctuation and articles, with single spaces.

    Source: Rajpurkar et al. 2016 (SQuAD), arXiv 1606.05250, section 6; as in Search-R1, arXiv 2503.09516.

    >>> normal_words("The  Eiffel-Tower, a landmark")
    'eiffeltower landmark'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())
