"""Names, kinds and pools of the tasks of a program; the same in a forecast and in a measurement."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from flowgraph.cluster.plan import TaskKind
from flowgraph.language.graph import Graph
from flowgraph.lowering.program import HOST, Join, Read, Run, Switch, Sync, Take, Task, Transfer

HEAVIEST: tuple[TaskKind, ...] = ("update", "generate", "logprob", "score")
"""A task of several nodes has the first of these kinds that one of its nodes has."""


def task_name(task: Task) -> str:
    """Return the name of a task: the nodes of a run, else verb, subject and target, as in `sync policy to all/sglang`.

    Tasks that repeat within a step, such as switches, have the same name; `task_names` distinguishes them.
    """
    match task:
        case Run(nodes):
            return ", ".join(nodes) if task.chunk is None else task.chunk.named(", ".join(nodes))
        case Switch(home, awake):
            return f"{'wake' if awake else 'sleep'} {home.param} on {home}"
        case Sync(_, _, target):
            return f"sync {target.param} to {target}"
        case Transfer(value, _, target):
            return f"transfer {value if task.chunk is None else task.chunk.named(value)} to {target}"
        case Join(value, place):
            return f"join {value} on {place}"
        case Take(value, place):
            return f"take {value} on {place}"
        case Read(value):
            return f"read {value}"


def without_chunk(name: str) -> str:
    """Return the name of a task without its chunk.

    >>> without_chunk("score 2/4"), without_chunk("score")
    ('score', 'score')
    """
    return re.sub(r" \d+/\d+$", "", name)


def task_names(tasks: Sequence[Task]) -> tuple[str, ...]:
    """Return distinct names for the tasks of one step, in order; repetitions of a name are numbered from 2.

    >>> task_names([Read("prompts"), Read("prompts")])
    ('read prompts', 'read prompts (2)')
    """
    return tuple(numbered(map(task_name, tasks)))


def numbered(names: Iterable[str]) -> Iterator[str]:
    """Yield the names in order; the second occurrence of a name becomes `NAME (2)`, the third `NAME (3)`, and so on."""
    count = Counter[str]()
    for name in names:
        count[name] += 1
        yield name if count[name] == 1 else f"{name} ({count[name]})"


def task_kind(task: Task, graph: Graph | None = None) -> TaskKind:
    """Return the kind of work of a task, for forecasts and measurements: such as "update", "sync" or "host".

    A run that reads models has the first of the kinds "update", "generate", "logprob" and "score" that one of its nodes
    in `graph` has. Other runs, all runs if `graph` is None, and reads are "host". A switch is "offload"; a transfer, a
    join and a take are "transfer".
    """
    match task:
        case Run() if task.home is not None and graph is not None:
            kinds = {str(node.op.kind) for node in graph.nodes if node.name in task.nodes}
            for kind in HEAVIEST:
                if kind in kinds:
                    return kind
            return "host"
        case Switch():
            return "offload"
        case Sync():
            return "sync"
        case Transfer() | Join() | Take():
            return "transfer"
        case _:
            return "host"


def task_pool(task: Task) -> str:
    """Return the name of the pool where a task runs, or "host"; for a sync or a transfer, the pool of its target."""
    match task:
        case Run():
            return task.place
        case Switch(home) | Sync(_, _, home):
            return home.pool
        case Transfer(_, _, target) | Join(_, target) | Take(_, target):
            return target
        case Read():
            return HOST
