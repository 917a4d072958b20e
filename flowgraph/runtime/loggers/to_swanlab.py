"""Metrics to SwanLab, or with SWANLAB_MODE=offline into the run's folder; nothing else of a run is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowgraph.runtime.loggers.base import PROJECT, TrackedRun

# By default it takes down the command, the host, the packages, the repository, and how busy the machine is.
NO_PROBES = dict.fromkeys(("hardware", "runtime", "requirements", "conda", "git", "swanlab", "monitor"), False)


class SwanLab:
    """Sends metrics by step; online, a resumed run goes on under its id."""

    def __init__(self, run: TrackedRun) -> None:
        import swanlab

        kinds: Any = swanlab.Settings
        settings = kinds(probe=kinds.Probe(**NO_PROBES), terminal=kinds.Terminal(proxy_type="none"), interactive=False)
        self._run: Any = swanlab.init(
            project=PROJECT,
            name=run.name,
            id=run.id,
            resume="allow",
            log_dir=str(run.folder / "swanlab"),
            settings=settings,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the metrics of a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Wait until all is sent."""
        self._run.finish()


def open_sink(run: TrackedRun) -> SwanLab:
    """Open the run there, or go on with it."""
    return SwanLab(run)
