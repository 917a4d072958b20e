"""The trackers, each with its metrics only: no settings, command, environment, packages or machine load are sent."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from flowgraph.runtime.loggers.base import PROJECT, Sink, TrackedRun

# By default wandb also records the command, host, packages, code, what is printed, and how busy the machine is.
WANDB_ONLY_METRICS = {
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
WANDB_LOGIN_S = 60  # then the run goes on without it, rather than wait for a key all night

# By default SwanLab also records the command, host, packages, repository, and how busy the machine is.
SWANLAB_NO_PROBES = dict.fromkeys(("hardware", "runtime", "requirements", "conda", "git", "swanlab", "monitor"), False)


class TensorBoard:
    """Writes an event file into the run's folder `tensorboard` with TensorBoard's own writer, without a framework.

    TensorBoard reads all the event files of a folder as one.
    """

    def __init__(self, run: TrackedRun) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._events: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
        self._summaries: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        self._writer: Any = EventFileWriter(str(run.folder / "tensorboard"))
        if run.first_step:  # readers then drop the steps from here on that were written before
            log = self._events.SessionLog
            self._add(run.first_step, session_log=log(status=log.START))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write the metrics of a step."""
        summary = self._summaries.Summary
        scalars = [summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(step, summary=summary(value=scalars))
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

    def _add(self, step: int, **content: Any) -> None:
        self._writer.add_event(self._events.Event(wall_time=time.time(), step=step, **content))


class Wandb:
    """Sends metrics to Weights & Biases, or with WANDB_MODE=offline into the run's folder.

    A resumed run continues under its id; steps that were sent before are not sent again.
    """

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        settings = wandb.Settings(login_timeout=WANDB_LOGIN_S, **WANDB_ONLY_METRICS)
        project = None if "WANDB_PROJECT" in os.environ else PROJECT
        self._run: Any = wandb.init(
            project=project, name=run.name, id=run.id, resume="allow", dir=str(run.folder), settings=settings
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the metrics of a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Wait until everything is sent."""
        self._run.finish()


class Trackio:
    """Sends metrics to trackio: its local database, or the space or server that its environment variables name.

    A resumed run continues under its name, which contains its id.
    """

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        self._library: Any = trackio
        name = f"{run.name}-{run.id[:6]}"  # trackio knows runs by name only, and many folders have a `grpo-1`
        # By default it also records how busy the machine is.
        self._run: Any = trackio.init(
            project=PROJECT, name=name, resume="allow", embed=False, auto_log_gpu=False, auto_log_cpu=False
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the metrics of a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Wait until everything is sent."""
        self._library.finish()  # not the run's own, which is finished again when the process ends


class SwanLab:
    """Sends metrics to SwanLab, or with SWANLAB_MODE=offline into the run's folder; a resumed run keeps its id."""

    def __init__(self, run: TrackedRun) -> None:
        import swanlab

        kinds: Any = swanlab.Settings
        settings = kinds(
            probe=kinds.Probe(**SWANLAB_NO_PROBES), terminal=kinds.Terminal(proxy_type="none"), interactive=False
        )
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
        """Wait until everything is sent."""
        self._run.finish()


TRACKERS: Mapping[str, Callable[[TrackedRun], Sink]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "trackio": Trackio,
    "swanlab": SwanLab,
}
"""Each tracker by the name of its package, which is imported when it is opened for a run."""
