r"""MATH and AIME: competition problems with a final answer, in `\boxed{}` or after `Answer:`.

Source: Hendrycks et al. 2021 (MATH), arXiv 2103.03874; Yu et al. 2025 (DAPO), arXiv 2503.14476, for AIME's prompt. The
data sources are verl's, which select its graders.
"""

from __future__ import annotations

import re

from flowgraph.errors import DataError
from nodes.data.published.records import SourceRecord
from nodes.data.rows import Row, row

MATH_SOURCE = "DigitalLearningGmbH/MATH-lighteval"
MATH_INSTRUCTION = "Let's think step by step and output the final answer within \\boxed{}."
AIME_PROMPT = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n{problem}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_YEAR = re.compile(r"(?<![0-9])20[0-9]{2}(?![0-9])")
_AIME_ANSWER = re.compile(r"\$?0*([0-9]{1,3})(?:\.0+)?(?:\s*\^?\{?\\circ\}?|°)?\$?")


def math_row(record: SourceRecord) -> Row:
    """Return the training row of a MATH record, with the ground truth `answer`, or else the last box of `solution`.

    Raises DataError if there is neither, or if `problem` or the field that is read is missing or not a text.
    """
    problem = record.text("problem")
    if "answer" in record.values:
        answer: str | None = record.text("answer").strip()
    else:
        answer = last_boxed(record.text("solution"))
    if not answer:
        raise DataError.unusable(record.where, "`solution` has no \\boxed{} answer")
    kind = record.get("type") or record.get("subject") or ""
    extra_info = {"level": str(record.get("level", "")), "type": str(kind), "solution": str(record.get("solution", ""))}
    return row(MATH_SOURCE, f"{problem} {MATH_INSTRUCTION}", answer, ability="math", extra_info=extra_info)


def aime_row(record: SourceRecord) -> Row:
    """Return the training row of an AIME record, whose answer must be an integer from 0 to 999.

    The problem is the field `problem` or `question`, the answer `answer` or `expected_answer`. The data source is
    `aime` and the year, such as `aime2024`, that the record's year, id or URL, or else the file's path, contains;
    without a year it is `aime`. Raises DataError for a missing field and for any other answer.
    """
    problem, (_, answer) = record.text("problem", "question"), record.field("answer", "expected_answer")
    match = _AIME_ANSWER.fullmatch(str(answer).strip())
    if match is None or isinstance(answer, bool):
        raise DataError.unusable(record.where, f"`answer` is {str(answer)[:40]!r}, not an integer from 0 to 999")
    lower = {name.lower(): value for name, value in record.values.items()}
    places = [str(lower.get(name) or "") for name in ("year", "id", "url")] + [str(record.path)]
    year = next((dated[0] for place in places if (dated := _YEAR.search(place))), "")
    prompt = AIME_PROMPT.replace("{problem}", problem)
    extra_info = {"id": str(lower.get("id", lower.get("problem_idx", "")))}
    return row(f"aime{year}", prompt, str(int(match[1])), ability="math", extra_info=extra_info)


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{…}` or `\fbox{…}`; None without one, or if its brace is never closed.

    A box without braces contains the text up to the next space or `$`; the result is None if that text is empty.

    >>> last_boxed(r"So $x = \boxed{\frac{1}{2}}$."), last_boxed(r"It is $\boxed 7$."), last_boxed("7")
    ('\\frac{1}{2}', '7', None)
    """
    starts = [match.end() for match in _BOX.finditer(text)]
    if not starts:
        return None
    rest = text[starts[-1] :]
    if not rest.startswith("{"):
        return re.split(r"[\s$]", rest, maxsplit=1)[0] or None
    depth, place = 0, 0
    while place < len(rest):
        if rest[place] == "\\":
            place += 1  # an escaped brace is text
        elif rest[place] in "{}":
            depth += 1 if rest[place] == "{" else -1
            if not depth:
                return rest[1:place].strip()
        place += 1
    return None
