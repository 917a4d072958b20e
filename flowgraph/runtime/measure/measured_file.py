"""`measured.jsonl` of a run's folder: one line a step, written as the run goes, and read back."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

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
MOST_MEASURED_BYTES = 2**28


class MeasuredRecorder:
    """Write what was measured of each step into a run's folder; a context manager, told of steps by the driver."""

    def __init__(self, folder: RunFolder, program: Program) -> None:
        self._program = program
        self._file = Journal(folder.path / NAME)

    def stepped(self, step: int, ran: StepResult, seconds: float) -> None:
        """Append a step, if anything of it was measured."""
        if ran.observed.measured:
            told = measured_step(step, ran.observed.measured, self._program, seconds)
            self._file.add(told.model_dump_json() + "\n")
            self._write()

    def checked(self, step: int, observed: Observations, seconds: float) -> None:
        """Leave checks out: no plan forecasts them."""

    def _write(self) -> None:
        try:
            self._file.write()
        except OSError as error:
            if not disk_fault(error):  # a disk that refuses: the recorder of the run says so
                raise

    def __enter__(self) -> MeasuredRecorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def read_measured(run: Path) -> list[MeasuredStep]:
    """Read the steps in order; of one that was run again after a resume, the last; a torn last line is dropped.

    Raises RunFolderError for a file that holds anything else.
    """
    path = run / NAME
    try:
        lines = read_bytes(path, MOST_MEASURED_BYTES).split(b"\n")[:-1] if path.is_file() else []
        steps = [json_as(MeasuredStep, line) for line in lines]
    except (OSError, ValueError) as error:
        raise RunFolderError.cannot(str(path), error) from error
    return [step for _, step in sorted({each.step: each for each in steps}.items())]
