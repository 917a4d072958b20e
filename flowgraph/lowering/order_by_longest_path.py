"""Order by the longest path: of the work that can begin, what has the longest chain behind it begins first.

Before: `run score`, then `run ref.logprobs`, as the flow wrote them.
After: `run ref.logprobs`, then `run score`, if more work waits for it. What is equal stays as it was.
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

# In forward passes over the step's rows. Sampling reads all weights for each token that it draws; an update does a
# forward pass and a backward pass, of twice the work. Only the order of size matters: it decides who goes first.
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
    """Guess a task's work from the kinds of its nodes; a node that reads a model does at least one forward pass."""
    if not isinstance(task, Run):
        return SYNC if isinstance(task, Sync) else MOVE
    least = 1.0 if task.homes else 0.0
    return max(least, sum(PASSES[program.nodes[name].op.kind] for name in task.nodes))


def order_by_longest_path(program: Program, work: Work = static_work) -> Program:
    """Give the program with its tasks in the order in which they would begin, each as soon as it can.

    One place does one run at a time; if several wait for it, that with the longest chain of work from its begin to the
    end of the step goes first, and of equals the one that came first.
    """
    waits, takes = waits_for(program), [work(program, task) for task in program.tasks]
    order = _begins(program, waits, takes, _chains(waits, takes))
    return replace(program, tasks=tuple(program.tasks[i] for i in order))


def _readers(waits: Sequence[frozenset[int]]) -> list[list[int]]:
    """Give for each task those that wait for it."""
    found: list[list[int]] = [[] for _ in waits]
    for i, needs in enumerate(waits):
        for need in needs:
            found[need].append(i)
    return found


def _chains(waits: Sequence[frozenset[int]], takes: Sequence[float]) -> list[float]:
    """Give the work of the longest chain that begins with each task; a task waits for earlier ones only."""
    chains, readers = list(takes), _readers(waits)
    for i in reversed(range(len(takes))):
        chains[i] += max((chains[each] for each in readers[i]), default=0.0)
    return chains


@dataclass
class _Queue:
    """Tasks that wait for one place: those that can begin by `free`, longest chain first, and those that can later."""

    free: float = 0.0
    now: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    later: list[tuple[float, float, int]] = field(default_factory=list[tuple[float, float, int]])

    def next(self) -> tuple[float, float, int] | None:
        """Give the task that begins next here, as (when, chain, task), chains as negative numbers."""
        while self.later and self.later[0][0] <= self.free:
            _, chain, task = heapq.heappop(self.later)
            heapq.heappush(self.now, (chain, task))
        if self.now:
            return self.free, *self.now[0]
        return self.later[0] if self.later else None

    def drop(self) -> None:
        """Take out what `next` gave."""
        if self.now:
            heapq.heappop(self.now)
        else:
            heapq.heappop(self.later)


def _begins(
    program: Program, waits: Sequence[frozenset[int]], takes: Sequence[float], chains: Sequence[float]
) -> Iterator[int]:
    """Give the tasks in the order in which they begin, ties by their chains."""
    queues, left, ready = defaultdict[str, _Queue](_Queue), [len(each) for each in waits], [0.0] * len(waits)
    readers = _readers(waits)

    def add(i: int) -> None:
        heapq.heappush(queues[_place(program.tasks[i])].later, (ready[i], -chains[i], i))

    for i, count in enumerate(left):
        if not count:
            add(i)
    for _ in waits:
        found = ((first, name) for name, queue in queues.items() if (first := queue.next()) is not None)
        (begin, _, task), place = min(found)
        queues[place].drop()
        yield task
        queues[place].free = max(queues[place].free, begin + takes[task] if place else 0.0)
        for each in readers[task]:
            ready[each] = max(ready[each], begin + takes[task])
            left[each] -= 1
            if not left[each]:
                add(each)


def _place(task: Task) -> str:
    """Give the place that a task keeps busy; "" for what is brought, of which any number goes at once."""
    return task.place if isinstance(task, Run) else task.target.pool if isinstance(task, Sync) else ""
