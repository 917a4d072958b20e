"""When a run's state is written: every so many steps and at its end. A disk that refuses is tried again, not for ever.

Not here: how it is written so that it is whole or not there (`checkpoint`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowgraph.errors import RunFolderError
from flowgraph.runtime.record.checkpoint import Checkpoints, disk_fault

FAILURES_AT_MOST = 3  # in a row, then a run that cannot save ends: what it does would be lost


@dataclass(eq=False)
class Saver:
    """Writes checkpoints every `every` steps (0: never) and at the end; `saved` steps are in the newest there is.

    `write` fills a folder with what the run carries, `state` says where it stands after so many steps; what `write`
    returns is added to that.
    """

    checkpoints: Checkpoints
    every: int
    write: Callable[[Path], Mapping[str, Any] | None]
    state: Callable[[int], Mapping[str, Any]]
    say: Callable[[str], None]
    saved: int = 0
    failures: int = 0

    def stepped(self, done: int) -> None:
        """Write a checkpoint if one is due after `done` steps; a disk that refuses is told of, the third time raised.

        Raises RunFolderError then, and whatever else goes wrong.
        """
        if not self.every or done % self.every:
            return
        try:
            self._commit(done)
        except Exception as error:
            why = disk_fault(error)
            if not why:
                raise
            self.failures += 1
            if self.failures == FAILURES_AT_MOST:
                raise self._refused(done, why, f"{self.failures} times in a row") from error
            again = f"the run goes on, and tries again after step {done + self.every}"
            self.say(f"no checkpoint after step {done}: {why} ({self.checkpoints.folder}); {again}")

    def ended(self, done: int) -> None:
        """Write the last checkpoint, unless it is there. Raises RunFolderError for a disk that refuses."""
        if not self.every or done == self.saved:
            return
        try:
            self._commit(done)
        except Exception as error:
            why = disk_fault(error)
            if not why:
                raise
            raise self._refused(done, why, "which was the last") from error

    def _commit(self, done: int) -> None:
        self.checkpoints.commit(done, self.state(done), self.write)
        self.saved, self.failures = done, 0

    def _refused(self, done: int, why: str, times: str) -> RunFolderError:
        what = f"the checkpoint after step {done}, {times}, could not be written: {why}"
        hint = "free some room, then resume; --checkpoint-every 0 runs without checkpoints"
        return RunFolderError(what, where=str(self.checkpoints.folder), hint=hint)
