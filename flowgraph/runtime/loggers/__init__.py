"""Where else metrics go than to the run's folder: trackers by name, each imported when it is asked for."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from flowgraph.errors import UsageError
from flowgraph.errors.base import nearest
from flowgraph.language.graph import Graph
from flowgraph.runtime.loggers.base import Logger, Sink, TrackedRun

TRACKERS = {
    "tensorboard": "flowgraph.runtime.loggers.to_tensorboard",
    "wandb": "flowgraph.runtime.loggers.to_wandb",
    "trackio": "flowgraph.runtime.loggers.to_trackio",
    "swanlab": "flowgraph.runtime.loggers.to_swanlab",
}
"""The module of each tracker; its `open_sink` opens it for a run."""

to_stderr: Callable[[str], None] = partial(print, file=sys.stderr)


def trackers(text: str) -> tuple[str, ...]:
    """Read what `--log` was given: names of trackers with commas between, each once.

    Raises UsageError for a name that is none, and for a tracker that is not installed.

    >>> trackers("tensorboard, tensorboard")
    ('tensorboard',)
    """
    names = tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))
    for name in names:
        if name not in TRACKERS:
            raise UsageError(f"no tracker `{name}`", where=f"--log {text}", hint=nearest(name, TRACKERS))
        if importlib.util.find_spec(name) is None:
            hint = f"pip install {name}, or all of them: pip install 'flowgraph[log]'"
            raise UsageError(f"`{name}` is not installed", where=f"--log {text}", hint=hint)
    return names


def logger(
    names: Iterable[str],
    run: Path,
    graphs: Sequence[Graph],
    first_step: int = 0,
    say: Callable[[str], None] = to_stderr,
) -> Logger:
    """Give what sends the metrics that nodes of these graphs declare to trackers; a context manager and a listener.

    `run` is the run's folder, by whose name it goes there; `first_step` is not 0 where a run is resumed. A tracker that
    cannot be opened is said so, and left out.
    """
    opening = {name: partial(_open, name) for name in names}
    named = TrackedRun.of(run, first_step) if opening else TrackedRun(run, run.name, "", first_step)
    return Logger(opening, named, graphs, say)


def _open(name: str, run: TrackedRun) -> Sink:
    sink: Sink = importlib.import_module(TRACKERS[name]).open_sink(run)
    return sink


__all__: Sequence[str] = ["TRACKERS", "Logger", "logger", "trackers"]
