"""`measured.jsonl` of a run's folder: one line for each step, written as the run goes, and read back."""

from __future__ import annotations

from pathlib import Path

from flowgraph.errors import RunFolderError
from flowgraph.files.untrusted import json_as, read_bytes
from flowgraph.language.region import Observations
from flowgraph.lowering.program import Program
from flowgraph.runtime.interpreter import StepResult
from flowgraph.runtime.measure.measured_step import MeasuredStep, measured_step
from flowgraph.runtime.record.checkpoint import disk_fault
from flowgraph.runtime.record.recorder import Journal
from flowgraph.runtime.record.run_folder import RunFolder

NAME = "measured.jsonl"
MAX_MEASURED_BYTES = 2**28


class MeasuredRecorder:
    """Writes the measurements of each step into a run's folder; a listener of the driver and a context manager."""

    def __init__(self, folder: RunFolder, program: Program) -> None:
        self._program = program
        self._file = Journal(folder.path / NAME)

    def stepped(self, step: int, ran: StepResult, seconds: float) -> None:
        """Append a step, if any of its tasks was measured."""
        if not ran.observed.measured:
            return
        self._file.add(measured_step(step, ran.observed.measured, self._program, seconds).model_dump_json() + "\n")
        try:
            self._file.write()
        except OSError as error:
            if not disk_fault(error):  # the recorder of the run reports a disk that refuses
                raise

    def checked(self, step: int, observed: Observations, seconds: float) -> None:
        """Ignore a check: plans do not forecast them."""

    def __enter__(self) -> MeasuredRecorder:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def read_measured(run: Path) -> list[MeasuredStep]:
    """Read the steps in order, without a torn last line; a step that was repeated after a resume counts once.

    Raises RunFolderError for a file with anything else.
    """
    path = run / NAME
    try:
        lines = read_bytes(path, MAX_MEASURED_BYTES).split(b"\n")[:-1] if path.is_file() else []
        steps = [json_as(MeasuredStep, line) for line in lines]
    except (OSError, ValueError) as error:
        raise RunFolderError.cannot(str(path), error) from error
    return [step for _, step in sorted({step.step: step for step in steps}.items())]
