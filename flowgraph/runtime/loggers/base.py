"""The listener that sends metrics to trackers, and what it needs of a tracker. A tracker that fails is left out."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Protocol

from flowgraph.language.graph import Graph
from flowgraph.language.region import Observations
from flowgraph.runtime.interpreter import StepResult
from flowgraph.runtime.record.run_folder import declared_metrics

PROJECT = "flowgraph"
ID_FILE = "tracked_as.txt"


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker learns about a run besides its metrics.

    That is its folder, its name, an id that stays when it is resumed, and the first step: no settings, no command, no
    environment.
    """

    folder: Path
    name: str
    id: str
    first_step: int = 0

    @classmethod
    def of(cls, folder: Path, first_step: int = 0) -> TrackedRun:
        """Name a run after its folder, in which its id is kept."""
        file = folder / ID_FILE
        if not file.is_file():
            file.write_text(uuid.uuid4().hex[:16], "utf-8")
        return cls(folder, folder.resolve().name, file.read_text("utf-8").strip(), first_step)


class Sink(Protocol):
    """A tracker that is open for one run."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the metrics of one step, or of a check before it."""
        ...

    def close(self) -> None:
        """Deliver everything that was logged."""
        ...


class Logger:
    """Sends declared metrics to trackers, named `node/metric`, by step; a context manager.

    A tracker that raises is reported once and left out from then on: it never ends a run.
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
        """Send a step's metrics."""
        self._send(step, {shown(name): mean for name, mean in self._means(ran.observed)})

    def checked(self, step: int, observed: Observations, seconds: float) -> None:
        """Send a check's metrics, each named `eval/` and its own name."""
        self._send(step, {f"eval/{name.rpartition('.')[2]}": mean for name, mean in self._means(observed)})

    def _means(self, observed: Observations) -> list[tuple[str, float]]:
        return [(name, mean) for name, mean in observed.means().items() if name in self._declared and isfinite(mean)]

    def _send(self, step: int, values: Mapping[str, float]) -> None:
        for name, sink in list(self._sinks.items()):
            with self._guarded(name):
                sink.log(step, values)

    @contextmanager
    def _guarded(self, name: str) -> Generator[None]:
        try:
            with redirect_stdout(sys.stderr):  # some print greetings; a command's stdout is its own
                yield
        except Exception as error:  # noqa: BLE001  whatever a tracker raises is not worth a run
            self._sinks.pop(name, None)
            why = str(error).strip().partition("\n")[0] or type(error).__name__
            self._say(f"{name}: {why}; the run goes on without it, and metrics.jsonl has everything")


def shown(name: str) -> str:
    """Return a metric's name in the form by which trackers group metrics: by node.

    >>> shown("policy.update.loss")
    'policy.update/loss'
    """
    node, _, metric = name.rpartition(".")
    return f"{node}/{metric}"
