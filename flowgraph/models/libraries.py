"""Imports of transformers, tokenizers and the hub client: late, and untyped.

Their own annotations do not pass a strict checker.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, TypeAlias

Model: TypeAlias = Any  # a transformers.PreTrainedModel
Tokenizer: TypeAlias = Any  # a transformers.PreTrainedTokenizerBase


def transformers() -> Any:
    """Import transformers (about a second, with torch)."""
    return import_module("transformers")


def tokenizers() -> Any:
    """Import the tokenizers package."""
    return import_module("tokenizers")


def peft() -> Any:
    """Import peft (seconds, with torch and transformers)."""
    return import_module("peft")


def hub_client() -> Any:
    """Import the client of the Hugging Face hub."""
    return import_module("huggingface_hub")


def transformers_logging() -> Any:
    """Import the switches of transformers' log lines and bars."""
    return import_module("transformers.utils.logging")


def hub_bars() -> Any:
    """Import the switches of the hub client's bars."""
    return import_module("huggingface_hub.utils.tqdm")
