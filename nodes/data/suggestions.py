"""Settings that are known to work on two CPU cores for the shipped tasks, by data source. A run may set others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class DataSuggestion:
    """Say how long a response may be, and how many prompts a step reads."""

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
    """Look up a data source, or the family before its slash.

    >>> suggestion("reasoning_gym/leg_counting").max_tokens
    128
    """
    family = data_source.split("/", maxsplit=1)[0]
    return next((SUGGESTIONS[name] for name in (data_source, family) if name in SUGGESTIONS), UNKNOWN)


def suggested(data_source: str) -> dict[str, object]:
    """Give the settings to start from, keyed by "op.setting"; none for a source that we do not ship.

    >>> suggested("digits")
    {'generate.max_tokens': 4, 'refill.max_tokens': 4}
    """
    max_tokens = suggestion(data_source).max_tokens
    return {} if max_tokens is None else dict.fromkeys(("generate.max_tokens", "refill.max_tokens"), max_tokens)


def batch_for(data_source: str) -> int:
    """Give the number of prompts to read in a step.

    >>> batch_for("addition"), batch_for("my own")
    (8, 16)
    """
    return suggestion(data_source).batch
