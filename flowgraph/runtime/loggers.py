"""Send metrics to experiment trackers: metrics only, no settings, command, environment or machine.

A tracker that fails is dropped; it never ends a run.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from flowgraph.errors import UsageError
from flowgraph.errors.base import nearest
from flowgraph.errors.distribution import install_command
from flowgraph.language.graph import Graph
from flowgraph.runtime.driver import HeldOutResult
from flowgraph.runtime.interpreter import StepResult
from flowgraph.runtime.record.run_facts import is_warning
from flowgraph.runtime.record.run_folder import declared_metrics

to_stderr: Callable[[str], None] = partial(print, file=sys.stderr)

PROJECT = "flowgraph"
ID_FILE = "tracked_as.txt"
WANDB_LOGIN_S = 60  # then the run continues without it, instead of waiting for a key all night

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

# By default SwanLab also records the command, host, packages, repository, and how busy the machine is.
SWANLAB_NO_PROBES = dict.fromkeys(("hardware", "runtime", "requirements", "conda", "git", "swanlab", "monitor"), False)


@dataclass(frozen=True)
class TrackedRun:
    """A run as trackers know it: its folder, name and first step, and an `id` that stays the same after a resume."""

    folder: Path
    name: str
    id: str
    first_step: int = 0

    @classmethod
    def of(cls, folder: Path, first_step: int = 0) -> TrackedRun:
        """Return the tracked run of a folder, with the folder's name and the id in its file `tracked_as.txt`.

        The file is created with a random id if it does not exist. `first_step` is that of a resumed run, else 0.
        """
        file = folder / ID_FILE
        if not file.is_file():
            file.write_text(uuid.uuid4().hex[:16], "utf-8")
        return cls(folder, folder.resolve().name, file.read_text("utf-8").strip(), first_step)


class Sink(Protocol):
    """A tracker that is open for one run."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the metrics of step `step`, or of a check that ran before this step; `values` maps names to numbers."""
        ...

    def close(self) -> None:
        """Send everything that was logged, and close the tracker."""
        ...


class TensorBoard:
    """Writes an event file into the folder `tensorboard` of the run, using only TensorBoard's own writer.

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
        """Write the metrics of a step, or of a check before it, to the event file, and flush the file."""
        summary = self._summaries.Summary
        scalars = [summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(step, summary=summary(value=scalars))
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()

    def _add(self, step: int, **content: Any) -> None:
        self._writer.add_event(self._events.Event(wall_time=time.time(), step=step, **content))


@dataclass(frozen=True)
class Online:
    """A run that is open in a tracker's library; `close` waits until everything is sent."""

    run: Any
    close: Callable[[], None]

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the metrics of a step, or of a check before it, by name."""
        self.run.log(dict(values), step=step)


def wandb_run(run: TrackedRun) -> Online:
    """Open a run of Weights & Biases and return it; with WANDB_MODE=offline it is written to the run's folder.

    The project is that of WANDB_PROJECT, or else `flowgraph`. A resumed run continues under the same id. Only metrics
    are sent: no settings, code, output or facts about the machine. A login may take at most 60 s.
    """
    import wandb

    settings = wandb.Settings(login_timeout=WANDB_LOGIN_S, **WANDB_ONLY_METRICS)
    project = None if "WANDB_PROJECT" in os.environ else PROJECT
    opened: Any = wandb.init(
        project=project, name=run.name, id=run.id, resume="allow", dir=str(run.folder), settings=settings
    )
    return Online(opened, opened.finish)


def trackio_run(run: TrackedRun) -> Online:
    """Open a run of trackio and return it.

    Metrics are written to the local database, or to the space or server that trackio's environment variables name. A
    resumed run continues under the same name, which contains its id.
    """
    import trackio

    name = f"{run.name}-{run.id[:6]}"  # trackio knows runs by name only, and many folders have a `grpo-1`
    no_load = {"auto_log_gpu": False, "auto_log_cpu": False}  # by default it also records how busy the machine is
    opened = trackio.init(project=PROJECT, name=name, resume="allow", embed=False, **no_load)
    return Online(opened, trackio.finish)  # not the run's own, which is finished again when the process ends


def swanlab_run(run: TrackedRun) -> Online:
    """Open a run of SwanLab and return it; its files are in the folder `swanlab` of the run.

    A resumed run continues under the same id. Only metrics are sent, and nothing about the machine.
    """
    import swanlab

    kinds: Any = swanlab.Settings
    terminal = kinds.Terminal(proxy_type="none")
    settings = kinds(probe=kinds.Probe(**SWANLAB_NO_PROBES), terminal=terminal, interactive=False)
    log_dir = str(run.folder / "swanlab")
    opened: Any = swanlab.init(
        project=PROJECT, name=run.name, id=run.id, resume="allow", log_dir=log_dir, settings=settings
    )
    return Online(opened, opened.finish)


TRACKERS: Mapping[str, Callable[[TrackedRun], Sink]] = {
    "tensorboard": TensorBoard,
    "wandb": wandb_run,
    "trackio": trackio_run,
    "swanlab": swanlab_run,
}
"""Each tracker by the name of its package, which is imported when it is opened for a run."""


def trackers(text: str) -> tuple[str, ...]:
    """Return the names of trackers in `text`, the comma-separated value of `--log`, without duplicates.

    Raises UsageError for an unknown name, and for a tracker that is not installed.

    >>> trackers("tensorboard, tensorboard")
    ('tensorboard',)
    """
    names = tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))
    for name in names:
        if name not in TRACKERS:
            raise UsageError(f"no tracker `{name}`", where=f"--log {text}", hint=nearest(name, TRACKERS))
        if importlib.util.find_spec(name) is None:
            hint = f"pip install {name}, or all of them: {install_command('log')}"
            raise UsageError(f"`{name}` is not installed", where=f"--log {text}", hint=hint)
    return names


class Logger:
    """A listener that sends metrics of steps and checks to trackers, named `node/metric`; a context manager.

    `opening` has, by tracker, the function that opens it when the block is entered. Of a step, only metrics that
    `graphs` declare and warnings are sent. A tracker that raises is reported once with `say` and then dropped.
    """

    def __init__(
        self,
        opening: Mapping[str, Callable[[TrackedRun], Sink]],
        run: TrackedRun,
        graphs: Sequence[Graph],
        say: Callable[[str], None],
    ) -> None:
        self._opening, self._run, self._say = opening, run, say
        self._declared = frozenset(name for graph in graphs for name in declared_metrics(graph))
        self._sinks = dict[str, Sink]()

    def __enter__(self) -> Logger:
        for name, open_sink in self._opening.items():
            with self._guarded(name):
                self._sinks[name] = open_sink(self._run)
        return self

    def __exit__(self, *error: object) -> None:
        for name, sink in list(self._sinks.items()):
            with self._guarded(name):
                sink.close()
        self._sinks.clear()

    def stepped(self, step: int, ran: StepResult, seconds: float) -> None:
        """Send the finite metrics of a step that are declared, and its warnings; a tracker that raises is dropped."""
        sent = {name: mean for name, mean in ran.observed.means().items() if name in self._declared or is_warning(name)}
        self._send(step, {tracker_metric_name(name): mean for name, mean in sent.items()})

    def checked(self, step: int, result: HeldOutResult, seconds: float) -> None:
        """Send the metrics of a held-out check that are finite to every tracker; a tracker that raises is dropped."""
        self._send(step, result.metrics)

    def _send(self, step: int, metrics: Mapping[str, float]) -> None:
        finite = {name: mean for name, mean in metrics.items() if isfinite(mean)}
        for name, sink in list(self._sinks.items()):
            with self._guarded(name):
                sink.log(step, finite)

    @contextmanager
    def _guarded(self, name: str) -> Generator[None]:
        try:
            with redirect_stdout(sys.stderr):  # some print greetings; a command's stdout is its own
                yield
        except Exception as error:  # noqa: BLE001  whatever a tracker raises is not worth a run
            self._sinks.pop(name, None)
            why = str(error).strip().partition("\n")[0] or type(error).__name__
            self._say(f"{name}: {why}; the run goes on without it, and metrics.jsonl has everything")


def metric_logger(
    names: Iterable[str],
    run: Path,
    graphs: Sequence[Graph],
    first_step: int = 0,
    say: Callable[[str], None] = to_stderr,
) -> Logger:
    """Return a listener of a run that sends its metrics to experiment trackers; use it as a context manager.

    `names` are keys of `TRACKERS`, such as "wandb". Of a step, only metrics that nodes of `graphs` declare are sent; of
    a check of held-out data, all metrics. Numbers that are not finite are left out. Trackers name the run after its
    folder `run`; unless `names` is empty, the run's id is stored there in `tracked_as.txt`. `first_step` is the first
    step of a resumed run, else 0. A tracker that cannot be opened or that raises is reported once with `say`, and not
    used again.
    """
    opening = {name: TRACKERS[name] for name in names}
    tracked = TrackedRun.of(run, first_step) if opening else TrackedRun(run, run.name, "", first_step)
    return Logger(opening, tracked, graphs, say)


def tracker_metric_name(name: str) -> str:
    """Return the name of a metric for trackers: its last dot becomes a slash, by which trackers group metrics.

    A name without a dot is not changed.

    >>> tracker_metric_name("policy.update.loss")
    'policy.update/loss'
    """
    node, _, metric = name.rpartition(".")
    return f"{node}/{metric}" if node else metric


__all__: Sequence[str] = ["TRACKERS", "Logger", "metric_logger", "trackers"]
