"""A program as text: its homes, the tasks of a step in order, and which runs go side by side."""

from __future__ import annotations

from collections.abc import Sequence

from flowgraph.lowering.program import Program, Run
from flowgraph.lowering.waits import waves
from flowgraph.serialize.columns import columns


def program_text(program: Program) -> str:
    """Print a program: where each copy of weights lives, the tasks of a step in order, and which runs go side by side.

    A transfer and a run name the parts of a record that they bring or read, if those are not all.
    """
    lines = [f"program {program.graph.name}, structure {program.plan.structure_hash[:12]}"]
    pools = [[pool.name, ", ".join(f"{node}/{index}" for node, index in pool.devices)] for pool in program.plan.pools]
    lines += [f"  pool  {line}" for line in columns(pools)]
    newest = {home for _, home in program.origins}
    homes = [
        [home.param, str(home), str(home.layout), "" if home in newest else "a copy, by sync"] for home in program.homes
    ]
    lines += [f"  home  {line}" for line in columns(homes)]
    tasks = [[str(i), *task.cells, task.more] for i, task in enumerate(program.tasks, 1)]
    beside = [[str(i), _side_by_side(program, each)] for i, each in enumerate(waves(program), 1)]
    lines += ["step", *(f"  {line}" for line in columns(tasks, right=(0,)))]
    return "\n".join([*lines, "side by side", *(f"  {line}" for line in columns(beside, right=(0,)))])


def _side_by_side(program: Program, generation: Sequence[int]) -> str:
    runs = (program.tasks[i] for i in generation)
    return " | ".join(", ".join(task.nodes) for task in runs if isinstance(task, Run))
