"""Compute which tasks each task of a program waits for, and which runs can run in parallel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from flowgraph.language.values import Model
from flowgraph.lowering.program import Home, Program, Run, Sync, Task, task_reads, task_results


def waits_for(program: Program) -> tuple[frozenset[int], ...]:
    """Return, for each task of a program, the indices of the earlier tasks that it must wait for.

    A task waits for the tasks that made or copied what it reads. An update or a sync, which replaces the weights of a
    home, waits for every earlier task that uses the old weights. Runs with side effects at one place keep their order.
    """
    brought, makers = dict[tuple[str, str | Home], int](), dict[str, int]()
    users, effects = defaultdict[Home, set[int]](set), dict[str, int]()
    waits = list[frozenset[int]]()
    for i, task in enumerate(program.tasks):
        sources = (brought.get((value, place), makers.get(value)) for value, place in task_reads(task))
        needs = {source for source in sources if source is not None}
        for home in homes_replaced(task, program):
            needs |= users.pop(home, set())
        if isinstance(task, Run) and not all(program.nodes[name].op.pure for name in task.nodes):
            needs |= {effects[task.place]} if task.place in effects else set()
            effects[task.place] = i
        for home in homes_of(task):
            users[home].add(i)
        for value, place in task_results(task, program.nodes):
            brought[value, place] = i
            makers.setdefault(value, i)
        waits.append(frozenset(needs))
    return tuple(waits)


def homes_of(task: Task) -> tuple[Home, ...]:
    """Return the homes whose weights a task reads or writes: both homes of a sync, or those of a run; else none."""
    if isinstance(task, Sync):
        return task.source, task.target
    return tuple(home for _, home in task.homes) if isinstance(task, Run) else ()


def homes_replaced(task: Task, program: Program) -> Iterator[Home]:
    """Yield each home whose weights a task replaces: the target of a sync, or the home of an update."""
    if isinstance(task, Sync):
        yield task.target
    elif isinstance(task, Run) and task.home is not None:
        kinds = (kind for name in task.nodes for kind in program.nodes[name].returns)
        yield from [task.home] if any(issubclass(kind, Model) for kind in kinds) else ()


def waves(program: Program) -> tuple[tuple[int, ...], ...]:
    """Return the runs that can run in parallel, wave after wave, as indices into `program.tasks`.

    A run is in the first wave after everything that it waits for and after the previous run at its place, since a pool
    or the host does one run at a time. Only runs are in waves: other tasks occupy no place.
    """
    waits, level, last = waits_for(program), list[int](), dict[str, int]()
    by_wave = defaultdict[int, list[int]](list)
    for i, task in enumerate(program.tasks):
        wave = max((level[source] for source in waits[i]), default=-1)
        if isinstance(task, Run):
            wave = last[task.place] = max(wave, last.get(task.place, -1)) + 1
            by_wave[wave].append(i)
        level.append(wave)
    return tuple(tuple(by_wave[wave]) for wave in sorted(by_wave))
