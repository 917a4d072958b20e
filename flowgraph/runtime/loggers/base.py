"""What a tracker is to a run, and the listener that tells trackers of metrics; a tracker that fails is told no more."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
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
    """What a tracker is told of a run: its folder, its name, an id that stays when it is resumed, and the first step.

    Nothing else of a run goes to a tracker but metrics: no settings, no command, no environment.
    """

    folder: Path
    name: str
    id: str
    first_step: int = 0

    @classmethod
    def of(cls, folder: Path, first_step: int = 0) -> TrackedRun:
        """Name a run by its folder, which keeps its id."""
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
        """Bring what was taken to where it goes."""
        ...


class Logger:
    """Send declared metrics to trackers, named `node/metric`, by step; a context manager.

    A tracker that raises is said so once and left out from then on: it never ends a run.
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
        for name in self._opening:
            self._guarded(name, partial(self._open, name))
        return self

    def __exit__(self, *error: object) -> None:
        for name, sink in list(self._sinks.items()):
            self._guarded(name, sink.close)
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
            self._guarded(name, partial(sink.log, step, values))

    def _open(self, name: str) -> None:
        self._sinks[name] = self._opening[name](self._run)

    def _guarded(self, name: str, act: Callable[[], object]) -> None:
        try:
            with redirect_stdout(sys.stderr):  # some greet; what a command prints is its own
                act()
        except Exception as error:  # noqa: BLE001  whatever a tracker raises is not worth a run
            self._sinks.pop(name, None)
            why = str(error).strip().partition("\n")[0] or type(error).__name__
            self._say(f"{name}: {why}; the run goes on without it, and metrics.jsonl has everything")


def shown(name: str) -> str:
    """Name a metric as trackers group them: by node.

    >>> shown("policy.update.loss")
    'policy.update/loss'
    """
    node, _, metric = name.rpartition(".")
    return f"{node}/{metric}"
