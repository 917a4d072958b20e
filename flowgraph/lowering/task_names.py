"""What the tasks of a program are called, their kinds and their pools: the same in a forecast as in a measurement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from flowgraph.cluster.plan import TaskKind
from flowgraph.language.graph import Graph
from flowgraph.lowering.program import HOST, Read, Run, Switch, Sync, Task, Transfer

HEAVIEST: tuple[TaskKind, ...] = ("update", "generate", "logprob", "score")
"""Of a task that runs several nodes, the kind of the first of these is the task's."""


def task_name(task: Task) -> str:
    """Name a task: the nodes of a run as programs print them; of all else also where it goes or takes place."""
    match task:
        case Run(nodes):
            return ", ".join(nodes)
        case Switch(home, awake):
            return f"{'wake' if awake else 'sleep'} {home.param} on {home}"
        case Sync(_, _, target):
            return f"sync {target.param} to {target}"
        case Transfer(value, _, target):
            return f"transfer {value} to {target}"
        case Read(value):
            return f"read {value}"


def task_names(tasks: Sequence[Task]) -> tuple[str, ...]:
    """Name the tasks of one step, each differently: what comes again, as a switch may, is numbered from 2 on.

    >>> task_names([Read("prompts"), Read("prompts")])
    ('read prompts', 'read prompts (2)')
    """
    return tuple(numbered(map(task_name, tasks)))


def numbered(names: Iterable[str]) -> Iterator[str]:
    """Return names each differently: what comes again is numbered from 2 on."""
    count = Counter[str]()
    for name in names:
        count[name] += 1
        yield name if count[name] == 1 else f"{name} ({count[name]})"


def kind_of(task: Task, graph: Graph | None = None) -> TaskKind:
    """Return the kind of a task, of a run that of its heaviest node."""
    match task:
        case Run() if task.home is not None and graph is not None:
            kinds = {str(node.op.kind) for node in graph.nodes if node.name in task.nodes}
            found: list[TaskKind] = [kind for kind in HEAVIEST if kind in kinds]
            return found[0] if found else "host"
        case Switch():
            return "offload"
        case Sync():
            return "sync"
        case Transfer():
            return "transfer"
        case _:
            return "host"


def pool_of(task: Task) -> str:
    """Return the pool that a task works on, or the host; of what goes from one to another, where it goes."""
    match task:
        case Run():
            return task.place
        case Switch(home) | Sync(_, _, home):
            return home.pool
        case Transfer(_, _, target):
            return target
        case Read():
            return HOST
