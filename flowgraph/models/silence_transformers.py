"""Silence around the calls of transformers: its progress bars, log lines and warnings are not ours to print."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator

from flowgraph.models.libraries import hub_bars, transformers_logging


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Hold transformers and its bars silent inside; put its settings back after."""
    logging, hub = transformers_logging(), hub_bars()
    level, bars, no_hub_bars = (
        logging.get_verbosity(),
        logging.is_progress_bar_enabled(),
        hub.are_progress_bars_disabled(),
    )
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
        if not no_hub_bars:
            hub.enable_progress_bars()
