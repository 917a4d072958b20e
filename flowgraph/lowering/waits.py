"""Compute which tasks each task of a program waits for, and which runs can run in parallel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from flowgraph.language.values import Model
from flowgraph.lowering.program import (
    HOST,
    Home,
    Program,
    Read,
    Run,
    Sync,
    Task,
    task_reads,
    task_results,
    value_name,
)


def waits_for(program: Program) -> tuple[frozenset[int], ...]:
    """Return, for each task of a program, the indices of the earlier tasks that it must wait for.

    A task waits for the tasks that made or copied what it reads. An update or a sync, which replaces the weights of a
    home, waits for every earlier task that uses the old weights. Runs with side effects at one place keep their order.
    """
    return waits_between(program, [(0, task) for task in program.tasks])


def waits_between(program: Program, tasks: Sequence[tuple[int, Task]]) -> tuple[frozenset[int], ...]:
    """Return, for each (step, task) of `tasks`, the indices of the earlier tasks that it must wait for.

    `tasks` are in the order in which they run, over several steps. Each step has its own values; weights, carried state
    and the order of side effects connect steps. A sync whose target already has the version for its step copies
    nothing, and waits only for the tasks that made its input and for the last write to the target. A sync to a copy in
    flight does not wait for the tasks that read the copy.
    """
    brought, makers = dict[tuple[int, str, str | Home], int](), dict[tuple[int, str], int]()
    users, writers, effects = defaultdict[Home, set[int]](set), dict[Home, int](), dict[str, int]()
    carried, origins, copied = carried_values(program), dict(program.origins), dict[Home, int]()
    waits = list[frozenset[int]]()
    for i, (step, task) in enumerate(tasks):
        sources = (brought.get((step, value, place), makers.get((step, value))) for value, place in task_reads(task))
        needs = {source for source in sources if source is not None}
        if isinstance(task, Read) and task.value in carried:
            before = step - 1, carried[task.value]
            needs |= {brought.get((*before, HOST), makers[before])} if before in makers else set()
        schedule = None
        if program.pipeline is not None and isinstance(task, Sync) and task.value in origins:
            schedule = program.pipeline.schedule(task.target)
        idle = schedule is not None and copied.get(schedule.home, 0) == schedule.version(step)
        if schedule is not None:
            copied[schedule.home] = schedule.version(step)
        used = (schedule.home,) if schedule is not None and idle else homes_of(task)
        needs |= {writers[home] for home in used if home in writers}
        for home in () if idle else homes_replaced(task, program):
            needs |= set() if schedule is not None and home.in_flight else users.pop(home, set())
            writers[home] = i
        if isinstance(task, Run) and not all(program.nodes[name].op.pure for name in task.nodes):
            needs |= {effects[task.place]} if task.place in effects else set()
            effects[task.place] = i
        for home in () if idle else homes_of(task):
            users[home].add(i)
        for value, place in task_results(task, program.nodes):
            brought[step, value, place] = i
            makers.setdefault((step, value), i)
        waits.append(frozenset(needs - {i}))
    return tuple(waits)


def makers_read(program: Program) -> tuple[frozenset[int], ...]:
    """Return, for each task of a program, the indices of the tasks that made or copied the values and weights it reads.

    Weights that exist when the step begins have no such task.
    """
    brought, makers = dict[tuple[str, str | Home], int](), list[frozenset[int]]()
    for i, task in enumerate(program.tasks):
        makers.append(frozenset(brought[read] for read in task_reads(task) if read in brought))
        for result in task_results(task, program.nodes):
            brought[result] = i
    return tuple(makers)


def carried_values(program: Program) -> dict[str, str]:
    """Return the name of the value that each carried parameter has in the next step, by parameter, without models."""
    outputs = program.graph.outputs
    carries = program.graph.carries().items()
    return {name: value_name(outputs[i]) for name, i in carries if not issubclass(outputs[i].type, Model)}


def homes_of(task: Task) -> tuple[Home, ...]:
    """Return the homes, the copies of models' weights, that a task uses.

    These are the source and the target of a sync, and the homes of a run; other tasks use none.
    """
    if isinstance(task, Sync):
        return task.source, task.target
    return tuple(home for _, home in task.homes) if isinstance(task, Run) else ()


def homes_replaced(task: Task, program: Program) -> Iterator[Home]:
    """Yield the home, the copy of a model's weights, that a task replaces, if it replaces one.

    It is the target of a sync, or the home of a run that returns a model, such as an update.
    """
    if isinstance(task, Sync):
        yield task.target
    elif isinstance(task, Run) and task.home is not None:
        kinds = (kind for name in task.nodes for kind in program.nodes[name].returns)
        yield from [task.home] if any(issubclass(kind, Model) for kind in kinds) else ()


def waves(program: Program) -> tuple[tuple[int, ...], ...]:
    """Return waves of runs, in order, as indices into `program.tasks`; the runs of one wave can run in parallel.

    A run is in the first wave after all runs that it waits for and after the previous run at its place, since a pool or
    the host does one run at a time. Tasks of other kinds are in no wave.
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
