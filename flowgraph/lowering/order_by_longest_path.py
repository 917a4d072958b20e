"""Order by the longest path: of the tasks that can begin, the task with the longest chain of later work goes first.

Before: `run score`, then `run ref.logprobs`, in the order of the flow.
After: `run ref.logprobs`, then `run score`, if more work waits for it. Ties keep their order.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flowgraph.language.graph import NodeKind
from flowgraph.lowering.program import Program, Run, Sync, Task
from flowgraph.lowering.waits import waits_for

Work = Callable[[Program, Task], float]
"""How long a task takes, in any unit; never negative."""

# In forward passes over the step's rows. Sampling reads all weights for each new token; an update does a forward pass
# and a backward pass of twice the work. Only the order of magnitude matters: it decides which task goes first.
PASSES: Mapping[NodeKind, float] = {
    "generate": 20.0,
    "update": 3.0,
    "logprob": 1.0,
    "score": 1.0,
    "advantage": 0.1,
    "host": 0.1,
}
SYNC, MOVE = 0.5, 0.05


def static_work(program: Program, task: Task) -> float:
    """Return a rough estimate of a task's work, from the kinds of its nodes alone.

    The unit is a forward pass over the step's rows. A node counts 20 if it samples, 3 if it updates weights, 1 if it
    computes log-probs or scores, else 0.1. A run is the sum of its nodes, but at least 1 if it reads a model; one of
    several chunks is its share of that. A sync is 0.5, any other task 0.05.
    """
    if not isinstance(task, Run):
        return SYNC if isinstance(task, Sync) else MOVE
    work = max(1.0 if task.homes else 0.0, sum(PASSES[program.nodes[name].op.kind] for name in task.nodes))
    return work / task.chunk.of if task.chunk is not None else work


def order_by_longest_path(program: Program, work: Work = static_work) -> Program:
    """Return the program with its tasks in the order in which they would begin if each began as soon as possible.

    Each place does one run or sync at a time. Among waiting tasks, the task with the longest chain of work to the end
    of the step goes first; among equals, the earlier one. `work` returns how long a task takes, in any unit.
    """
    waits, duration = waits_for(program), [work(program, task) for task in program.tasks]
    readers: list[list[int]] = [[] for _ in waits]
    for i, needs in enumerate(waits):
        for need in needs:
            readers[need].append(i)
    chains = list(duration)  # the longest chain of work that begins with each task, which waits for earlier ones only
    for i in reversed(range(len(chains))):
        chains[i] += max((chains[reader] for reader in readers[i]), default=0.0)
    places = [_place(task) for task in program.tasks]
    order = _order_of_starts(places, [len(needs) for needs in waits], readers, duration, chains)
    return replace(program, tasks=tuple(program.tasks[i] for i in order))


@dataclass
class _Queue:
    free: float = 0.0
    now: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    later: list[tuple[float, float, int]] = field(default_factory=list[tuple[float, float, int]])

    def next(self) -> tuple[float, float, int] | None:
        """Return the task that begins next at this place, as (start, negative chain, task); None if no task waits."""
        while self.later and self.later[0][0] <= self.free:
            _, chain, task = heapq.heappop(self.later)
            heapq.heappush(self.now, (chain, task))
        if self.now:
            return self.free, *self.now[0]
        return self.later[0] if self.later else None

    def drop(self) -> None:
        """Remove the task that `next` returned."""
        if self.now:
            heapq.heappop(self.now)
        else:
            heapq.heappop(self.later)


def _order_of_starts(
    places: Sequence[str],
    needs: list[int],
    readers: Sequence[Sequence[int]],
    duration: Sequence[float],
    chains: Sequence[float],
) -> Iterator[int]:
    """Yield tasks in the order in which they begin; `needs` counts the tasks for which each still waits."""
    queues, ready = defaultdict[str, _Queue](_Queue), [0.0] * len(places)

    def add(i: int) -> None:
        heapq.heappush(queues[places[i]].later, (ready[i], -chains[i], i))

    for i in range(len(places)):
        if not needs[i]:
            add(i)
    for _ in places:
        heads = ((head, place) for place, queue in queues.items() if (head := queue.next()) is not None)
        (begin, _, task), place = min(heads)
        end = begin + duration[task]
        queues[place].drop()
        yield task
        queues[place].free = max(queues[place].free, end if place else 0.0)
        for reader in readers[task]:
            ready[reader] = max(ready[reader], end)
            needs[reader] -= 1
            if not needs[reader]:
                add(reader)


def _place(task: Task) -> str:
    return task.place if isinstance(task, Run) else task.target.pool if isinstance(task, Sync) else ""
