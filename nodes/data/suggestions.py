"""Suggested settings for the shipped tasks, by data source, which work on two CPU cores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class DataSuggestion(NamedTuple):
    """The maximum length of a response in tokens (None if unknown), and the number of prompts in a step."""

    max_tokens: int | None
    batch: int


SUGGESTIONS: Mapping[str, DataSuggestion] = {
    "digits": DataSuggestion(max_tokens=4, batch=16),  # three digits and the end token
    "addition": DataSuggestion(max_tokens=12, batch=8),
    "openai/gsm8k": DataSuggestion(max_tokens=256, batch=16),
    "reasoning_gym": DataSuggestion(max_tokens=128, batch=16),
}
UNKNOWN = DataSuggestion(max_tokens=None, batch=16)


def _suggestion(data_source: str) -> DataSuggestion:
    return SUGGESTIONS.get(data_source) or SUGGESTIONS.get(data_source.partition("/")[0]) or UNKNOWN


def suggested(*data_sources: str) -> dict[str, object]:
    """Return the suggested `max_tokens` for data sources, keyed by "op.setting"; {} if one is unknown.

    Of several suggestions the largest counts. A source is found by its name, or by the part before its slash. Without
    sources the result is {}.

    >>> suggested("digits"), suggested("digits", "my own")
    ({'generate.max_tokens': 4, 'refill.max_tokens': 4}, {})
    """
    lengths = [_suggestion(source).max_tokens for source in data_sources]
    longest = max((length or 0 for length in lengths), default=0)
    if not lengths or None in lengths:
        return {}
    return dict.fromkeys(("generate.max_tokens", "refill.max_tokens"), longest)


def batch_for(*data_sources: str) -> int:
    """Return the suggested number of prompts in a step, the largest of the sources' numbers; 16 without sources.

    An unknown source has the number 16.

    >>> batch_for("addition"), batch_for("my own")
    (8, 16)
    """
    return max((_suggestion(source).batch for source in data_sources), default=UNKNOWN.batch)
