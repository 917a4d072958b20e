"""Insert transfers: copy each value once to each place that reads it and did not produce it.

Before: `run policy.generate on all/local`, `run score on host`.
After: the same with `transfer policy.generate all -> host` between them; at the end, the flow's results are
transferred to the host.
"""

from __future__ import annotations

from dataclasses import replace

from flowgraph.language.values import Model
from flowgraph.lowering.program import HOST, Home, Program, Read, Run, Task, Transfer, task_results, value_name


def insert_transfers(program: Program) -> Program:
    """Return the program with a `Transfer` before the first run at a place that reads a value made at another place.

    Transfers of the flow's results to the host follow at the end. Models are not transferred; see `insert_syncs`.
    """
    tasks, sources, present = list[Task](), dict[str, str](), set[tuple[str, str | Home]]()

    def bring(value: str, target: str) -> None:
        if (value, target) not in present:
            present.add((value, target))
            tasks.append(Transfer(value, sources[value], target))

    for task in program.tasks:
        if isinstance(task, Run):
            for value in task.reads:
                bring(value, task.place)
        tasks.append(task)
        for value, place in task_results(task, program.nodes) if isinstance(task, Run | Read) else ():
            present.add((value, place))
            if isinstance(place, str):
                sources[value] = place
    for edge in program.graph.outputs:
        if not issubclass(edge.type, Model):
            bring(value_name(edge), HOST)
    return replace(program, tasks=tuple(tasks))
