"""Suggested settings for the shipped tasks, by data source, which work on two CPU cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class DataSuggestion:
    """The maximum length of a response, in tokens, and the prompts of a step."""

    max_tokens: int | None
    batch: int


UNKNOWN = DataSuggestion(max_tokens=None, batch=16)
SUGGESTIONS: Mapping[str, DataSuggestion] = {
    "digits": DataSuggestion(max_tokens=4, batch=16),  # three digits and the end token
    "addition": DataSuggestion(max_tokens=12, batch=8),
    "openai/gsm8k": DataSuggestion(max_tokens=256, batch=16),
    "reasoning_gym": DataSuggestion(max_tokens=128, batch=16),
}


def suggestion(data_source: str) -> DataSuggestion:
    """Return the suggestion for a data source, or for the family before its slash.

    >>> suggestion("reasoning_gym/leg_counting").max_tokens
    128
    """
    family = data_source.split("/", maxsplit=1)[0]
    return next((SUGGESTIONS[name] for name in (data_source, family) if name in SUGGESTIONS), UNKNOWN)


def suggested(data_source: str) -> dict[str, object]:
    """Return the suggested settings, keyed by "op.setting"; none for a data source that is not shipped.

    >>> suggested("digits")
    {'generate.max_tokens': 4, 'refill.max_tokens': 4}
    """
    max_tokens = suggestion(data_source).max_tokens
    return {} if max_tokens is None else dict.fromkeys(("generate.max_tokens", "refill.max_tokens"), max_tokens)


def batch_for(data_source: str) -> int:
    """Return the suggested number of prompts in a step.

    >>> batch_for("addition"), batch_for("my own")
    (8, 16)
    """
    return suggestion(data_source).batch
