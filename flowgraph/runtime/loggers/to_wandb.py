"""Metrics to Weights & Biases, or with WANDB_MODE=offline into the run's folder; nothing else of a run is told."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from flowgraph.runtime.loggers.base import PROJECT, TrackedRun

# By default it takes down the command, the host, the packages, the code, what is printed, and how busy the machine is.
ONLY_METRICS = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "host": "",
    "save_code": False,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}
LOGIN_WITHIN_S = 60  # then a run goes on without it, rather than wait for a key all night


class Wandb:
    """Sends metrics by step; a resumed run goes on under its id. Steps that were sent before are not sent again."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        settings = wandb.Settings(login_timeout=LOGIN_WITHIN_S, **ONLY_METRICS)
        project = None if "WANDB_PROJECT" in os.environ else PROJECT
        self._run: Any = wandb.init(
            project=project, name=run.name, id=run.id, resume="allow", dir=str(run.folder), settings=settings
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the metrics of a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Wait until all is sent."""
        self._run.finish()


def open_sink(run: TrackedRun) -> Wandb:
    """Open the run there, or go on with it."""
    return Wandb(run)
