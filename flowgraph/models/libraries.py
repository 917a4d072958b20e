"""Late, untyped imports of transformers, tokenizers and the hub client, whose annotations a strict checker refuses.

Around their calls: silence, and random numbers from a seed.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator
from importlib import import_module
from typing import Any, TypeAlias

Model: TypeAlias = Any  # a transformers.PreTrainedModel
Tokenizer: TypeAlias = Any  # a transformers.PreTrainedTokenizerBase


def transformers() -> Any:
    """Import transformers (seconds, with torch)."""
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


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Silence the warnings, log lines and progress bars of transformers and the hub client inside."""
    logging: Any = import_module("transformers.utils.logging")
    hub: Any = import_module("huggingface_hub.utils.tqdm")
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub_bars = not hub.are_progress_bars_disabled()
    logging.set_verbosity(logging.FATAL)
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
        if hub_bars:
            hub.enable_progress_bars()


@contextlib.contextmanager
def seeded(seed: int) -> Generator[None]:
    """Seed torch's random numbers on the CPU inside, and restore their state after."""
    import torch

    before = torch.get_rng_state()
    try:
        torch.default_generator.manual_seed(seed)
        yield
    finally:
        torch.set_rng_state(before)
