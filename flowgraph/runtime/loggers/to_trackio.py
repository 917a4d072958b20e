"""Metrics to trackio: its local database, or the space or server that its own variables name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowgraph.runtime.loggers.base import PROJECT, TrackedRun


class Trackio:
    """Sends metrics by step; a resumed run goes on under its name, which has its id in it."""

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        self._library: Any = trackio
        name = f"{run.name}-{run.id[:6]}"  # it knows runs by name only, and `grpo-1` is there once for each folder
        # It would take down how busy the machine is otherwise.
        self._run: Any = trackio.init(
            project=PROJECT, name=name, resume="allow", embed=False, auto_log_gpu=False, auto_log_cpu=False
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the metrics of a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Wait until all is sent."""
        self._library.finish()  # not the run's own, which is finished again when the process ends


def open_sink(run: TrackedRun) -> Trackio:
    """Open the run there, or go on with it."""
    return Trackio(run)
