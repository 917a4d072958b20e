"""The idle share of each pool in a step, and the seconds in which it waits for weights, if steps overlap."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from flowgraph.lowering.program import HOST, Program, Sync
from flowgraph.lowering.task_names import task_name
from flowgraph.runtime.measure.measured_task import MeasuredTask


@dataclass(eq=False)
class PoolTimes:
    """The times of pools in a run, in seconds since the epoch: when the last task of each pool ended, and pauses.

    A pause is the beginning and the end of time that is left out of steps.
    """

    ended_s: dict[str, float] = field(default_factory=dict[str, float])
    pauses: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    @contextmanager
    def left_out(self) -> Generator[None]:
        """Leave the time that this block takes, for example to check held-out data, out of the pools' steps."""
        began_s = time.time()
        try:
            yield
        finally:
            self.pauses.append((began_s, time.time()))

    def _passed_s(self, begin_s: float, end_s: float) -> float:
        """Return the seconds between two times, without pauses."""
        left_out_s = (max(0.0, min(end_s, end) - max(begin_s, begin)) for begin, end in self.pauses)
        return max(0.0, end_s - begin_s - sum(left_out_s))

    def of_step(self, program: Program, measured: Sequence[MeasuredTask]) -> Mapping[str, Mapping[str, float]]:
        """Return the idle share (0 to 1) of each pool in a step as `idle`, and its seconds of waiting as `waited_s`.

        `measured` are the tasks of the step on all ranks; make a call for each step in order. A pool's step lasts from
        the end of its last task of the step before to the end of its own. A pool is left out in its first step, and if
        its tasks ended no later than before; the host is always left out. The idle share is that of the busiest rank. A
        pool with a copy of trained weights waits from the end of its last task of the step before to the first sync of
        such a copy; other pools have no `waited_s`.
        """
        by_pool = defaultdict[str, list[MeasuredTask]](list)
        for task in measured:
            if task.pool != HOST:
                by_pool[task.pool].append(task)
        origins = dict(program.origins)
        syncs = {
            (task_name(task), task.target.pool)
            for task in program.tasks
            if isinstance(task, Sync) and task.value in origins
        }
        idle, waited_s = dict[str, float](), dict[str, float]()
        for pool, tasks in sorted(by_pool.items()):
            end_s, before_s = max(task.end_s for task in tasks), self.ended_s.get(pool)
            if before_s is not None and (step_s := self._passed_s(before_s, end_s)):
                seconds, covered_s = defaultdict[int, float](float), defaultdict[int, float](float)
                for task in sorted(tasks, key=lambda task: task.begin_s):  # in flight, some are beside others
                    twice_s = max(0.0, covered_s[task.rank] - task.begin_s)
                    seconds[task.rank] += max(0.0, task.seconds - twice_s)
                    covered_s[task.rank] = max(covered_s[task.rank], task.end_s)
                idle[pool] = max(0.0, 1 - max(seconds.values()) / step_s)
                begins_s = [task.begin_s for task in tasks if (task.task, pool) in syncs]
                if begins_s:
                    waited_s[pool] = self._passed_s(before_s, min(begins_s))
            self.ended_s[pool] = max(end_s, before_s or 0.0)
        self.pauses = [pause for pause in self.pauses if pause[1] > min(self.ended_s.values(), default=0.0)]
        return {"idle": idle, "waited_s": waited_s}
