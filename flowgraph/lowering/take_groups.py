"""Take groups: a step trains on the groups that have finished, the oldest first, instead of waiting for its own.

Before: run policy.generate on apart, transfer policy.generate apart -> host, run score on host
After, under the contract `ready`:
    run policy.generate on apart, take policy.generate on apart
    transfer policy.generate apart -> host, run score on host
The take replaces the rows of the step, and their prompts on the host, so everything behind it reads what was taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from flowgraph.lowering.pipeline_steps import pipeline_steps
from flowgraph.lowering.program import Program, Run, Take, Task, Transfer, task_reads
from flowgraph.lowering.waits import makers_read


def take_groups(program: Program) -> Program:
    """Return the program in which the role with the contract `ready` samples by group, with a `Take` after its run.

    The take replaces the rows of the step by those of equally many groups that have finished. If the plan has no such
    role that works ahead, the program itself is returned; of several, only the first is changed. Nothing is checked
    here: `checks.in_flight` refuses plans whose groups cannot be taken like this.
    """
    behind = {placed.role: placed.behind for placed in program.plan.placed if placed.ahead and placed.behind}
    source = next((run for run in program.tasks if isinstance(run, Run) and run.role in behind), None)
    return program if source is None else replace(program, tasks=tuple(_taking(program, source, behind[source.role])))


def _taking(program: Program, source: Run, behind: int) -> Iterator[Task]:
    """Yield what `source` waits for, `source`, the take of its rows, and then all other tasks."""
    makers, first, (value,) = makers_read(program), program.tasks.index(source), source.nodes
    before, waiting = {first}, [first]
    while waiting:
        new = makers[waiting.pop()] - before
        before |= new
        waiting += new
    rest = [task for place, task in enumerate(program.tasks) if place not in before]
    yield from (program.tasks[place] for place in sorted(before - {first}))
    yield replace(source, by_group=True, sends=())
    yield Take(value=value, place=source.place, prompts=source.reads[0], behind=behind)
    read = {read for task in rest for read in task_reads(task)}
    moves = (task for place in sorted(before) if isinstance(task := program.tasks[place], Transfer))
    yield from (task for task in moves if (task.value, task.target) in read)
    yield from rest


@lru_cache(maxsize=16)
def without_takes(program: Program) -> Program:
    """Return the program without takes, in which each step reads the rows sampled for it, as when a run is replayed.

    Its pipeline is computed again from the plan. A program without takes is returned itself.
    """
    tasks = [task for task in program.tasks if not isinstance(task, Take)]
    if len(tasks) == len(program.tasks):
        return program
    in_order = [replace(task, by_group=False) if isinstance(task, Run) else task for task in tasks]
    return pipeline_steps(replace(program, tasks=tuple(in_order)))
