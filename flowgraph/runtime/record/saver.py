"""When a run's state is saved: at intervals and at its end. A disk that refuses is tried again a few times.

Not here: how a checkpoint is written so that it exists whole or not at all (`checkpoint`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowgraph.errors import RunFolderError
from flowgraph.runtime.record.checkpoint import Checkpoints, disk_fault

MAX_FAILURES = 3  # in a row; then the run ends, because what it does would be lost


@dataclass(eq=False)
class Saver:
    """Writes checkpoints every `every` steps (0: never) and at the end; the newest one has `saved` steps.

    `write` fills a folder with what the run carries, and `state` describes where the run stands after some steps; what
    `write` returns is added to that.
    """

    checkpoints: Checkpoints
    every: int
    write: Callable[[Path], Mapping[str, Any] | None]
    state: Callable[[int], Mapping[str, Any]]
    say: Callable[[str], None]
    saved: int = 0
    failures: int = 0

    def stepped(self, steps: int) -> None:
        """Write a checkpoint if one is due after this number of steps.

        A disk that refuses is reported. Raises RunFolderError when it refuses the third time in a row, and whatever
        else goes wrong.
        """
        if self.every and steps % self.every == 0 and (why := self._refused(steps)):
            self.failures += 1
            if self.failures == MAX_FAILURES:
                raise self._error(steps, f"{self.failures} times in a row", why)
            again = f"the run goes on, and tries again after step {steps + self.every}"
            self.say(f"no checkpoint after step {steps}: {why} ({self.checkpoints.folder}); {again}")

    def ended(self, steps: int) -> None:
        """Write the last checkpoint, unless it exists. Raises RunFolderError for a disk that refuses."""
        if self.every and steps != self.saved and (why := self._refused(steps)):
            raise self._error(steps, "which was the last", why)

    def _refused(self, steps: int) -> str:
        """Write a checkpoint; return the disk's reason if it refuses."""
        try:
            self.checkpoints.commit(steps, self.state(steps), self.write)
        except Exception as error:
            if why := disk_fault(error):
                return why
            raise
        self.saved, self.failures = steps, 0
        return ""

    def _error(self, steps: int, times: str, why: str) -> RunFolderError:
        what = f"the checkpoint after step {steps}, {times}, could not be written: {why}"
        hint = "free some room, then resume; --checkpoint-every 0 runs without checkpoints"
        return RunFolderError(what, where=str(self.checkpoints.folder), hint=hint)
