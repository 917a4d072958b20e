"""What each task of a program waits for, and so which tasks run side by side. Not here: in which order they are put."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from flowgraph.language.values import Model
from flowgraph.lowering.program import Home, Program, Run, Sync, Task, what_is_given, what_is_read


def waits_for(program: Program) -> tuple[frozenset[int], ...]:
    """Give for each task the places in `tasks` of those before it that it has to wait for.

    It waits for what brings what it reads; whoever moves the weights of a home on, by an update or a sync, waits for
    all who use them there as they are; of nodes with effects at one place each waits for the one before.
    """
    given, made = dict[tuple[str, str | Home], int](), dict[str, int]()
    users, effects = defaultdict[Home, set[int]](set), dict[str, int]()
    found = list[frozenset[int]]()
    for i, task in enumerate(program.tasks):
        givers = (given.get(each, made.get(each[0])) for each in what_is_read(task))
        needs = {giver for giver in givers if giver is not None}
        for home in moved_on(task, program):
            needs |= users.pop(home, set())
        if isinstance(task, Run) and not all(program.nodes[name].op.pure for name in task.nodes):
            needs |= {effects[task.place]} if task.place in effects else set()
            effects[task.place] = i
        for home in homes_of(task):
            users[home].add(i)
        for value, place in what_is_given(task, program.nodes):
            given[value, place] = i
            made.setdefault(value, i)
        found.append(frozenset(needs))
    return tuple(found)


def homes_of(task: Task) -> tuple[Home, ...]:
    """Give the homes whose weights a task reads or writes."""
    if isinstance(task, Sync):
        return task.source, task.target
    return tuple(home for _, home in task.homes) if isinstance(task, Run) else ()


def moved_on(task: Task, program: Program) -> Iterator[Home]:
    """Give the homes where a task puts another version of the weights in place of the one that is there."""
    if isinstance(task, Sync):
        yield task.target
    elif isinstance(task, Run) and task.home is not None and _makes_weights(task, program):
        yield task.home


def _makes_weights(task: Run, program: Program) -> bool:
    return any(issubclass(kind, Model) for name in task.nodes for kind in program.nodes[name].returns)


def waves(program: Program) -> tuple[tuple[int, ...], ...]:
    """Give the runs that are at work side by side, as their places in `tasks`, wave after wave.

    A run is of the first wave after all that it waits for, and after the run before it at its own place: one pool
    does one run at a time, whichever of its devices that takes, and so does the host, whose nodes are short. What
    brings values or weights is no work of a place and stands in no wave.
    """
    waits, level, last = waits_for(program), list[int](), dict[str, int]()
    found = list[list[int]]()
    for i, task in enumerate(program.tasks):
        after = max((level[each] for each in waits[i]), default=-1)
        if isinstance(task, Run):
            after = max(after, last.get(task.place, -1)) + 1
            last[task.place] = after
            found += [[]] if after == len(found) else []
            found[after].append(i)
        level.append(after)
    return tuple(tuple(each) for each in found)
