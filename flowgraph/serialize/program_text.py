"""Write a program as text: its homes, the tasks of a step in order, and which runs can run in parallel."""

from __future__ import annotations

from flowgraph.lowering.program import Program, Run, task_cells
from flowgraph.lowering.waits import waves
from flowgraph.serialize.columns import columns


def program_text(program: Program) -> str:
    """Return a program as text: its pools, its homes, the tasks of a step in order, and the runs that can be parallel.

    A run or a transfer that does not need a whole record shows the parts that it needs.
    """
    lines = [f"program {program.graph.name}, structure {program.plan.structure_hash[:12]}"]
    pools = [[pool.name, ", ".join(f"{node}/{index}" for node, index in pool.devices)] for pool in program.plan.pools]
    lines += [f"  pool  {line}" for line in columns(pools)]
    newest = {home for _, home in program.origins}
    homes = [
        [home.param, str(home), str(home.layout), "" if home in newest else "a copy, by sync"] for home in program.homes
    ]
    lines += [f"  home  {line}" for line in columns(homes)]
    tasks = [[str(i), *task_cells(task)] for i, task in enumerate(program.tasks, 1)]
    lines += ["step", *(f"  {line}" for line in columns(tasks, right=(0,)))]
    runs = {i: ", ".join(task.nodes) for i, task in enumerate(program.tasks) if isinstance(task, Run)}
    parallel = [[str(i), " | ".join(runs[place] for place in wave)] for i, wave in enumerate(waves(program), 1)]
    return "\n".join([*lines, "side by side", *(f"  {line}" for line in columns(parallel, right=(0,)))])
