"""What a run writes into its folder step by step. A disk that refuses for a while loses nothing and ends nothing.

Not here: what else the folder holds, and how it is read back (`record`); checkpoints (`saver`).
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from flowgraph.errors import RunFolderError
from flowgraph.files.hashes import SUMS, line_of
from flowgraph.language.graph import Graph
from flowgraph.language.region import Observations
from flowgraph.language.values import Record
from flowgraph.runtime.interpreter import StepResult
from flowgraph.runtime.record.checkpoint import disk_fault, sync
from flowgraph.runtime.record.run_folder import (
    METRICS,
    ROLLOUTS,
    RolloutWrite,
    RunFolder,
    rollout_file,
    row_values,
    token_sum,
    write_rollout,
)
from flowgraph.runtime.record.saver import FAILURES_AT_MOST


def _plain(path: Path) -> int:
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "it is not a plain file", str(path))


class Journal:
    """A file of lines that only grows; what the disk refuses is kept, and written with what follows.

    Raises OSError for what is no plain file: a pipe that nobody reads would never be open.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.fdopen(_plain(path), "ab", buffering=0)
        self._owed = b""

    def add(self, line: str) -> None:
        """Add a line, which `write` writes."""
        self._owed += line.encode()

    def write(self) -> None:
        """Write what is owed. Raises OSError where the disk takes only a part of it, or nothing."""
        while self._owed:
            self._owed = self._owed[self._file.write(self._owed) :]

    def settle(self) -> None:
        """Write what is owed, and have the file on the disk itself. Raises OSError."""
        self.write()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass(eq=False)
class _PendingRollout:
    """A rollout that is being written: `submit` begins that, and `written` says what came of it."""

    path: Path
    submit: Callable[[], Callable[[], RolloutWrite]]
    written: Callable[[], RolloutWrite] = field(init=False)

    def __post_init__(self) -> None:
        self.written = self.submit()


class Recorder:
    """Write each step of a run into its folder; a context manager.

    What a disk refuses (it is full, over its quota, failing) is kept, and written again after the next step; `say` is
    told, and after `FAILURES_AT_MOST` steps in a row of which something was refused the run ends.
    """

    def __init__(self, folder: RunFolder, graph: Graph, say: Callable[[str], None]) -> None:
        self.folder, self.graph, self.say = folder, graph, say
        self._metrics, self._sums = Journal(folder.path / METRICS), Journal(folder.path / ROLLOUTS / SUMS)
        self._owed, self._unsettled = list[_PendingRollout](), list[Path]()
        self._failures = [0, 0]  # in a row, of rollouts and of lines: how the first went is known a step later
        self._drawn = [n for n in graph.nodes if n.op.kind == "generate" and issubclass(n.returns[0], Record)]

    def stepped(self, step: int, ran: StepResult, seconds: float) -> None:
        """Append the step's metrics and write its rollouts. Raises RunFolderError for a disk that keeps refusing."""
        tokens = token_sum(self.graph, ran.observed)
        times = {"step_s": seconds, "tokens_per_s": tokens / seconds, "nodes_s": ran.observed.seconds}
        self._metrics.add(json.dumps({"step": step, **ran.observed.means(), "time": times}) + "\n")
        refused = self._rollouts_refused(), self._lines_refused(step + 1)
        why = next(filter(None, refused), "")
        for node in self._drawn:
            names = [node.name, *row_values(self.graph, node)]
            path = rollout_file(self.folder.path.absolute(), node.name, step)
            self._owed.append(_PendingRollout(path, partial(ran.apply, write_rollout, names, names[1:], path)))
        self._failures = [count + 1 if each else 0 for count, each in zip(self._failures, refused, strict=True)]
        if (count := max(self._failures)) == FAILURES_AT_MOST:
            what = f"what the steps before {step + 1} recorded, {count} times in a row, could not be written"
            hint = "free some room, then resume"
            raise RunFolderError(f"{what}: {why}", where=str(self.folder.path), hint=hint)
        if why:
            self.say(f"not all is recorded after step {step + 1}: {why} ({self.folder.path}); it is tried again")

    def checked(self, step: int, observed: Observations, seconds: float) -> None:
        """Append a check's metrics, each named `eval/` and its own name."""
        means = {f"eval/{name.rpartition('.')[2]}": mean for name, mean in observed.means().items()}
        self._metrics.add(json.dumps({"step": step, **means, "time": {"check_s": seconds}}) + "\n")
        self._lines_refused()  # if they are, the next step says so

    def settle(self) -> Mapping[str, Mapping[str, Any]]:
        """Have what was recorded on the disk itself, as a checkpoint that counts on it is; return `RunFolder.records`.

        All rollouts of before are written, or were refused: the places have finished. Raises OSError if the disk
        refuses anything.
        """
        why = self._rollouts_refused()
        if why:
            raise OSError(f"{why}: {self._owed[0].path}")
        self._metrics.settle()
        for path in dict.fromkeys((self.folder.path / "run.json", *self._unsettled)):
            sync(path)
        self._unsettled.clear()
        self._sums.settle()
        return self.folder.records()

    def _rollouts_refused(self) -> str:
        """Return why the disk refused rollouts, which are then written again; note those that it took."""
        owed, self._owed, why = self._owed, [], ""
        for each in owed:
            written = each.written()
            if written.refused:
                why, each.written = written.refused, each.submit()
                self._owed.append(each)
                continue
            self._unsettled += [each.path, each.path.parent]
            self._sums.add(line_of(each.path.relative_to(each.path.parents[1]).as_posix(), written.sha256))
        return why

    def _lines_refused(self, steps: int | None = None) -> str:
        """Write the lines that are owed, and the number of steps done; return why the disk refused them."""
        try:
            self._metrics.write()
            self._sums.write()
            if steps is not None:
                self.folder.note(steps_done=steps)
        except OSError as error:
            why = disk_fault(error)
            if not why:
                raise
            return why
        return ""

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *error: object) -> None:
        self._metrics.close()
        self._sums.close()
