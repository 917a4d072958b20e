"""Write the results of each step into a run's folder. Nothing is lost if the disk refuses writes for a while.

`run_folder` writes the other files of the folder and reads all of them; `checkpoint` writes checkpoints.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flowgraph.errors import RunFolderError
from flowgraph.files.hashes import SUMS, hash_line
from flowgraph.language.graph import Graph, Node
from flowgraph.runtime.driver import HeldOutResult
from flowgraph.runtime.interpreter import StepResult
from flowgraph.runtime.record.checkpoint import MAX_FAILURES, disk_fault, sync
from flowgraph.runtime.record.group_journal import GROUPS, groups_line
from flowgraph.runtime.record.recorded_values import TOKEN_ROWS, rollout_nodes, row_values, token_values
from flowgraph.runtime.record.run_folder import (
    METRICS,
    ROLLOUTS,
    RolloutWrite,
    RunFolder,
    rollout_file,
    token_sum,
    validation_file,
    write_rollout,
)


class Journal:
    """A file to which lines are appended; lines that the disk refuses are kept, and written with the next lines.

    Raises OSError for a path that is not a plain file: opening a pipe without a reader would never return.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(errno.EINVAL, "it is not a plain file", str(path))
        self._file = os.fdopen(handle, "ab", buffering=0)
        self._unwritten = b""

    def add(self, line: str) -> None:
        """Add a text to the buffer; `write` writes it to the file."""
        self._unwritten += line.encode()

    def write(self) -> None:
        """Write the buffered lines. Raises OSError if the disk refuses any line; what is not written stays buffered."""
        while self._unwritten:
            self._unwritten = self._unwritten[self._file.write(self._unwritten) :]

    def settle(self) -> None:
        """Write the buffered lines, and flush the file to the disk. Raises OSError if the disk refuses either."""
        self.write()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; buffered lines are discarded."""
        self._file.close()


@dataclass(eq=False)
class _PendingRollout:
    """A rollout that is being written; `listed` means that its hash is written to `rollouts/SHA256SUMS`."""

    path: Path
    submit: Callable[[], Callable[[], RolloutWrite]]
    result: Callable[[], RolloutWrite]
    listed: bool


def _values(graph: Graph, node: Node, token_rows: int) -> dict[str, str]:
    return row_values(graph, node) | (token_values(graph, node) if token_rows else {})


class Recorder:
    """Writes each step of a run into its folder; a listener and a context manager.

    Data that the disk refuses (it is full, over its quota, failing) is kept, reported with `say`, and written again
    after the next step; the third such step in a row ends the run. `token_rows` is the number of responses of each step
    whose values of tokens are recorded.
    """

    def __init__(
        self, folder: RunFolder, graph: Graph, say: Callable[[str], None], token_rows: int = TOKEN_ROWS
    ) -> None:
        self.folder, self.graph, self.say, self.token_rows = folder, graph, say, token_rows
        self._values = {node.name: _values(graph, node, token_rows) for node in rollout_nodes(graph)}
        self._metrics, self._sums = Journal(folder.path / METRICS), Journal(folder.path / ROLLOUTS / SUMS)
        self._groups: Journal | None = None  # of a run whose steps take finished groups
        self._pending, self._unsettled = list[_PendingRollout](), list[Path]()
        self._failures = [0, 0]  # in a row, of rollouts and of lines: the result of a rollout is known a step later

    def stepped(self, step: int, ran: StepResult, seconds: float) -> None:
        """Append the metrics of step `step` (from 0), which took `seconds`, and start to write its rollouts.

        Also writes the number of completed steps to `run.json`. What the disk refuses is reported with `say` and
        written again after the next step. Raises RunFolderError if the disk refused rollouts in three steps in a row,
        or lines in three.
        """
        tokens = token_sum(self.graph, ran.observed)
        times = {"step_s": seconds, "tokens_per_s": tokens / seconds, "nodes_s": ran.observed.seconds, **ran.pools}
        self._metrics.add(json.dumps({"step": step, **ran.observed.means(), "time": times}) + "\n")
        if ran.groups:
            self._groups = self._groups or Journal(self.folder.path / GROUPS)
            self._groups.add(groups_line(step, ran.groups))
        refused = self._rollouts_refused(), self._lines_refused(step + 1)
        for name, types in self._values.items():
            self._write(rollout_file(self.folder.path.absolute(), name, step), ran, name, types, listed=True)
        self._failures = [count + 1 if why else 0 for count, why in zip(self._failures, refused, strict=True)]
        why, count = next(filter(None, refused), ""), max(self._failures)
        if count == MAX_FAILURES:
            what = f"what the steps before {step + 1} recorded, {count} times in a row, could not be written"
            hint = "free disk space, then resume"
            raise RunFolderError(f"{what}: {why}", where=str(self.folder.path), hint=hint)
        if why:
            self.say(f"the records of step {step + 1} are not written: {why} ({self.folder.path}); retrying")

    def checked(self, step: int, result: HeldOutResult, seconds: float) -> None:
        """Append the metrics of a held-out check, and start to write its responses; the next step reports faults."""
        self._metrics.add(json.dumps({"step": step, **result.metrics, "time": {"check_s": seconds}}) + "\n")
        self._lines_refused()  # if they are, the next step reports it
        for node in rollout_nodes(result.graph):
            types = _values(result.graph, node, self.token_rows)
            self._write(validation_file(self.folder.path.absolute(), step), result.ran, node.name, types, listed=False)

    def _write(self, path: Path, ran: StepResult, node: str, types: Mapping[str, str], *, listed: bool) -> None:
        values = [name for name in types if name in ran.items]  # others stayed inside their task
        submit = partial(ran.apply, write_rollout, [node, *values], values, path, types, self.token_rows)
        self._pending.append(_PendingRollout(path, submit, submit(), listed))

    def settle(self) -> Mapping[str, Mapping[str, Any]]:
        """Flush everything that was recorded to the disk, before a checkpoint, and return `RunFolder.records()`.

        These are the size and hash of each file to which lines are appended. Call it when the places have finished.
        Raises OSError if the disk refuses anything.
        """
        if why := self._rollouts_refused():
            raise OSError(f"{why}: {self._pending[0].path}")
        self._metrics.settle()
        for path in dict.fromkeys((self.folder.path / "run.json", *self._unsettled)):
            sync(path)
        self._unsettled.clear()
        self._sums.settle()
        if self._groups is not None:
            self._groups.settle()
        return self.folder.records()

    def _rollouts_refused(self) -> str:
        pending, self._pending, why = self._pending, [], ""
        for rollout in pending:
            written = rollout.result()
            if written.refused:
                why, rollout.result = written.refused, rollout.submit()
                self._pending.append(rollout)
                continue
            self._unsettled += [rollout.path, rollout.path.parent]
            if rollout.listed:
                self._sums.add(hash_line(rollout.path.relative_to(rollout.path.parents[1]).as_posix(), written.sha256))
        return why

    def _lines_refused(self, steps: int | None = None) -> str:
        try:
            self._metrics.write()
            self._sums.write()
            if self._groups is not None:
                self._groups.write()
            if steps is not None:
                self.folder.note(steps_done=steps)
        except OSError as error:
            if why := disk_fault(error):
                return why
            raise
        return ""

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *error: object) -> None:
        self._metrics.close()
        self._sums.close()
        if self._groups is not None:
            self._groups.close()
