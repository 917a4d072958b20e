"""Metrics as TensorBoard reads them: event files in the run's folder `tensorboard`."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from typing import Any

from flowgraph.runtime.loggers.base import TrackedRun


class TensorBoard:
    """Writes an event file with TensorBoard's own writer, which needs no other framework."""

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
        told = [summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(step, summary=summary(value=told))
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

    def _add(self, step: int, **what: Any) -> None:
        self._writer.add_event(self._events.Event(wall_time=time.time(), step=step, **what))


def open_sink(run: TrackedRun) -> TensorBoard:
    """Open a new event file for a run; TensorBoard reads all that are there as one."""
    return TensorBoard(run)
