"""Trackers that metrics go to besides the run's folder, by name."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from flowgraph.errors import UsageError
from flowgraph.errors.base import nearest
from flowgraph.language.graph import Graph
from flowgraph.runtime.loggers.base import Logger, TrackedRun
from flowgraph.runtime.loggers.trackers import TRACKERS

to_stderr: Callable[[str], None] = partial(print, file=sys.stderr)


def trackers(text: str) -> tuple[str, ...]:
    """Read the value of `--log`: names of trackers with commas between, without repetitions.

    Raises UsageError for an unknown name, and for a tracker that is not installed.

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
    """Return a listener that sends the declared metrics of these graphs to trackers; a context manager.

    The trackers name the run after its folder `run`; `first_step` is not 0 in a resumed run. A tracker that cannot be
    opened is reported, and left out.
    """
    opening = {name: TRACKERS[name] for name in names}
    tracked = TrackedRun.of(run, first_step) if opening else TrackedRun(run, run.name, "", first_step)
    return Logger(opening, tracked, graphs, say)


__all__: Sequence[str] = ["TRACKERS", "Logger", "logger", "trackers"]
