"""The settings of nodes that score by the server of a model, with their checks: a fault is found before a run."""

from __future__ import annotations

import math
import re
from itertools import repeat
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from nodes.scoring.grader_messages import LARGEST_SCORE
from nodes.scoring.http_post import key_in_query, split_url
from nodes.scoring.text_templates import compiled

TEMPLATE = (
    "Grade the answer to a question from 0 (wrong) to 10 (right and clear).\n\n"
    "Question:\n{{ prompt }}\n\nAnswer:\n{{ response }}\n\n"
    "Explain the grade in a few sentences, and end with the grade alone in double brackets, as in [[7]]."
)
PATTERN = r"(?:\[\[|[Ss]core[\s*_]*:)[\s*_]*(-?\d+(?:\.\d+)?)"
"""A number after `[[` or `Score:`, also with Markdown's stars between."""

LONGEST_PATTERN, MOST_REPEATS, PATTERN_LIMIT_S = 1_000, 10_000, 5.0
LONGEST_S = 1e6  # what a socket takes as its limit ends far above


def server_url(url: str) -> str:
    """Return `url` unchanged. Raises ValueError if it is not a server's URL, or contains a user name, password or key.

    A key in the query is allowed as the name of an environment variable in braces.
    """
    try:
        name = key_in_query(split_url(url))
    except ValueError as error:
        raise ValueError(f"is not the URL of a server: {error}, e.g. http://localhost:8000") from None
    if name:
        what = f"has a key in its query ({name}), which would be recorded with the run"
        raise ValueError(f"{what}: write an environment variable in braces, e.g. ?key={{JUDGE_API_KEY}}")
    return url


def sandbox_url(url: str) -> str:
    """Return `url` unchanged. Raises ValueError if it contains a user name, a password or a key."""
    parts = urlsplit(url)
    if parts.username or parts.password or key_in_query(parts):
        raise ValueError("has a name, a password or a key, which would be recorded with the run")
    return url


def variable_name(name: str) -> str:
    """Return `name` unchanged. Raises ValueError unless it is "" or can name an environment variable."""
    if name and not re.fullmatch(r"[A-Za-z_]\w{0,99}", name, re.ASCII):
        raise ValueError("should be the name of an environment variable, never a key")
    return name


def pattern_of_one_group(pattern: str) -> str:
    """Return `pattern` unchanged. Raises ValueError if it is not a regular expression with exactly one group.

    Also raises ValueError for over 1,000 characters, or counts, such as 3 in `a{3}`, that multiply to over 10,000.
    """
    if pattern == PATTERN:  # else regex would be imported with this module
        return pattern
    import regex

    counts = [int(count) for count in re.findall(r"\{(?:[0-9]*,)?([0-9]{1,9})", pattern)]
    if len(pattern) > LONGEST_PATTERN or math.prod(map(max, counts, repeat(1))) > MOST_REPEATS:
        what = f"{LONGEST_PATTERN:,} characters, and counts that multiply to {MOST_REPEATS:,}"
        raise ValueError(f"should have at most {what}")
    try:
        groups: int = regex.compile(pattern).groups
    except regex.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    if groups != 1:
        raise ValueError(f"should have one group, that of the score, but has {groups}")
    return pattern


def groups_of_matches(pattern: str, text: str) -> list[str]:
    """Return the text of a pattern's only group in each match in `text`, in order. Raises TimeoutError after 5 seconds.

    Other threads run meanwhile, so a pattern whose time grows exponentially delays only its own verdict.
    """
    import regex

    groups: list[str] = regex.compile(pattern).findall(text, concurrent=True, timeout=PATTERN_LIMIT_S)
    return groups


def rising(scale: tuple[float, float]) -> tuple[float, float]:
    """Return `scale` unchanged. Raises ValueError if its first score is not below its second."""
    if not scale[0] < scale[1]:
        raise ValueError("should be the lowest and the highest score, in this order")
    return scale


def jinja_text(text: str) -> str:
    """Return `text` unchanged. Raises ValueError if it is not a Jinja2 template; "" is allowed."""
    if text not in ("", TEMPLATE):  # else jinja2 would be imported with this module
        compiled(text)
    return text


Sandbox = Annotated[str, AfterValidator(sandbox_url)]
Url = Annotated[str, AfterValidator(server_url)]
Variable = Annotated[str, AfterValidator(variable_name)]
Pattern = Annotated[str, AfterValidator(pattern_of_one_group)]
JinjaText = Annotated[str, AfterValidator(jinja_text)]
Workers = Annotated[int, Field(ge=1, le=256)]
Seconds = Annotated[float, Field(gt=0, le=LONGEST_S, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Scale = Annotated[tuple[Finite, Finite], AfterValidator(rising)]
OnError = Annotated[float, Field(ge=-LARGEST_SCORE, le=LARGEST_SCORE, allow_inf_nan=False)] | Literal["fail"]
