"""The settings of nodes that score by the server of a model, with their checks: a fault is found before a run."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from nodes.scoring.grader_messages import LARGEST_SCORE
from nodes.scoring.http_post import split_url
from nodes.scoring.text_templates import compiled

TEMPLATE = (
    "Grade the answer to a question from 0 (wrong) to 10 (right and clear).\n\n"
    "Question:\n{{ prompt }}\n\nAnswer:\n{{ response }}\n\n"
    "Explain the grade in a few sentences, and end with the grade alone in double brackets, as in [[7]]."
)
PATTERN = r"(?:\[\[|[Ss]core[\s*_]*:)[\s*_]*(-?\d+(?:\.\d+)?)"
"""A number after `[[` or `Score:`, also with Markdown's stars between."""

LONGEST_S = 1e6  # what a socket takes as its limit ends far above


def server_url(url: str) -> str:
    """Return `url` unchanged. Raises ValueError if it is not a server's URL, or contains a user name or password."""
    try:
        split_url(url)
    except ValueError as error:
        raise ValueError(f"is not the URL of a server: {error}, e.g. http://localhost:8000") from None
    return url


def variable_name(name: str) -> str:
    """Return `name` unchanged. Raises ValueError unless it is "" or can name an environment variable."""
    if name and not re.fullmatch(r"[A-Za-z_]\w{0,99}", name, re.ASCII):
        raise ValueError("should be the name of an environment variable, never a key")
    return name


def pattern_of_one_group(pattern: str) -> str:
    """Return `pattern` unchanged. Raises ValueError if it is not a regular expression with exactly one group."""
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    if groups != 1:
        raise ValueError(f"should have one group, that of the score, but has {groups}")
    return pattern


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


Url = Annotated[str, AfterValidator(server_url)]
Variable = Annotated[str, AfterValidator(variable_name)]
Pattern = Annotated[str, AfterValidator(pattern_of_one_group)]
JinjaText = Annotated[str, AfterValidator(jinja_text)]
Workers = Annotated[int, Field(ge=1, le=256)]
Seconds = Annotated[float, Field(gt=0, le=LONGEST_S, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Scale = Annotated[tuple[Finite, Finite], AfterValidator(rising)]
OnError = Annotated[float, Field(ge=-LARGEST_SCORE, le=LARGEST_SCORE, allow_inf_nan=False)] | Literal["fail"]
