"""`--where`: a condition on the columns of recorded responses. It is parsed, never run.

A condition is comparisons joined by `and`. Each has a column, one of `< <= > >= = !=`, and a number, `nan`, `true`,
`false`, or a text in quotes. A column whose name has other characters than letters, digits, `_` and `.` stands in
backquotes.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from flowgraph.errors import UsageError, nearest

Scalar = float | int | bool | str | None
"""What a column has in one row."""

MAX_CHARACTERS = 1000

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"[^"]*"|'[^']*')|(?P<quoted>`[^`]+`)|(?P<operator><=|>=|==|!=|<|>|=)"""
    r"""|(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?(?![\w.]))|(?P<word>[^\W\d][\w.]*))"""
)
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
}
_WORDS: Mapping[str, Scalar] = {"nan": math.nan, "true": True, "false": False}
FORM = """score<0.5 and data_source="math\""""


@dataclass(frozen=True)
class RowComparison:
    """A comparison of a column with a value; `sign` is one of `<`, `<=`, `>`, `>=`, `=`, `==` and `!=`."""

    column: str
    sign: str
    value: Scalar

    def holds(self, row: Mapping[str, Scalar]) -> bool:
        """Return whether a row, given as its values by column, meets the comparison.

        A missing value, and a text and a number that are compared with each other, meet only `!=`. NaN equals NaN, and
        is neither smaller nor larger than any number.
        """
        actual, value = row.get(self.column), self.value
        if isinstance(actual, float) and isinstance(value, float) and math.isnan(actual) and math.isnan(value):
            return self.sign in ("=", "==")
        if isinstance(actual, str) is not isinstance(value, str) or actual is None:
            return self.sign == "!="
        return _OPERATORS[self.sign](actual, value)


def parse_condition(text: str, columns: Collection[str]) -> tuple[RowComparison, ...]:
    """Return the comparisons of a condition, which must all hold; empty for a condition of spaces only.

    Raises UsageError for an unknown column, with the nearest of `columns`; for text that is not a condition; and for
    more than 1,000 characters.

    >>> parse_condition('score<0.5 and data_source="math"', ["score", "data_source"])[1]
    RowComparison(column='data_source', sign='=', value='math')
    """
    where = f"--where {text[:80]}"
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"a condition has at most {MAX_CHARACTERS} characters, not {len(text)}", where="--where")
    tokens, place = list[tuple[str, str, int]](), 0
    while text[place:].strip():
        match = _TOKEN.match(text, place)
        if match is None:
            raise UsageError(f"cannot be read from `{text[place:].strip()[:20]}` on", where=where, hint=f"as in {FORM}")
        kind = str(match.lastgroup)
        tokens.append((kind, match[kind], match.start(kind)))
        place = match.end()
    comparisons = list[RowComparison]()
    for start in range(0, len(tokens), 4):
        comparisons.append(_comparison(tokens[start : start + 4], columns, where, last=start + 4 >= len(tokens)))
    return tuple(comparisons)


def _comparison(
    tokens: list[tuple[str, str, int]], columns: Collection[str], where: str, *, last: bool
) -> RowComparison:
    kinds, texts = [kind for kind, _, _ in tokens], [text for _, text, _ in tokens]
    complete = len(tokens) == 3 if last else texts[3] == "and"
    if not complete or kinds[0] not in ("word", "quoted") or kinds[1] != "operator":
        what = "must be comparisons joined by `and`: a column, one of < <= > >= = !=, and a number or a quoted text"
        raise UsageError(what, where=where, hint=f"as in {FORM}")
    column = texts[0].strip("`")
    if column not in columns:
        raise unknown_column(column, columns, where)
    value: Scalar = texts[2][1:-1]
    if kinds[2] == "number":
        whole = texts[2].lstrip("+-").isdecimal()  # a float would round numbers above 2**53
        value = int(texts[2]) if whole else float(texts[2])
    elif kinds[2] == "word" and texts[2].lower() in _WORDS:
        value = _WORDS[texts[2].lower()]
    elif kinds[2] != "text":
        what, hint = f"`{texts[2]}` is neither a number nor a text", f'a text is quoted: "{texts[2]}"'
        raise UsageError(what, where=where, hint=hint)
    return RowComparison(column=column, sign=texts[1], value=value)


def unknown_column(name: str, columns: Collection[str], where: str) -> UsageError:
    """Return the error for an unknown column; its hint names the closest of `columns`, or up to 12 if none is close.

    `where` is what names the column, such as `--sort score`.
    """
    return UsageError(f"no column `{name}`", where=where, hint=nearest(name, columns))
