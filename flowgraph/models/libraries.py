"""Deferred, untyped imports of transformers, tokenizers, peft and the hub client, which a strict type checker rejects.

Also context managers for calls to them: without output, and with random numbers from a seed.
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
    """Import and return transformers; the first call takes seconds, because it loads torch.

    Raises ImportError if it is not installed.
    """
    return import_module("transformers")


def tokenizers() -> Any:
    """Import and return the package tokenizers. Raises ImportError if it is not installed."""
    return import_module("tokenizers")


def peft() -> Any:
    """Import and return peft; the first call takes seconds, because it loads torch and transformers.

    Raises ImportError if it is not installed.
    """
    return import_module("peft")


def hub_client() -> Any:
    """Import and return huggingface_hub, the client of the Hugging Face hub.

    Raises ImportError if it is not installed.
    """
    return import_module("huggingface_hub")


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Suppress warnings, logs and progress bars of transformers and the hub client, process-wide, in a `with` block."""
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
    """Seed torch's random generator of the CPU with `seed` for the `with` block, and restore its state afterwards."""
    import torch

    before = torch.get_rng_state()
    try:
        torch.default_generator.manual_seed(seed)
        yield
    finally:
        torch.set_rng_state(before)
