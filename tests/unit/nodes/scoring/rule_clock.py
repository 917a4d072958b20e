"""A clock for tests of time limits, which does not depend on how busy the machine is."""

from __future__ import annotations

from nodes.scoring.graders import Clock, Graders


class Ticks(Clock):
    """A clock that advances by `seconds` each time a rule prints `tick`, and never else."""

    def __init__(self, pool: Graders, seconds: float) -> None:
        self.pool, self.seconds, self.seen, self.total_s = pool, seconds, 0, 0.0

    def now_s(self) -> float:
        seen = sum(worker.printed.count(b"tick") for worker in self.pool._workers)
        self.total_s += max(0, seen - self.seen) * self.seconds
        self.seen = seen
        return self.total_s

    def elapsed_s(self) -> float:
        """Return the seconds after all that rules have printed, also what the pool has not read."""
        for worker in self.pool._workers:
            while worker.read_printed():
                pass
        return self.now_s()
