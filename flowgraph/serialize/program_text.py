"""Write a program as text: its homes, the tasks of a step in order, the runs that can be parallel, and overlap."""

from __future__ import annotations

from flowgraph.lowering.program import Program, Run, StepTask, task_cells
from flowgraph.lowering.task_names import task_name
from flowgraph.lowering.waits import waves
from flowgraph.serialize.columns import columns


def program_text(program: Program) -> str:
    """Return a program as text: pools, copies of weights, the tasks of a step in order, and runs that can be parallel.

    A run or transfer that needs only parts of a record shows these parts. If steps overlap, the lines of
    `pipeline_lines` follow.
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
    runs = {i: task_name(task) for i, task in enumerate(program.tasks) if isinstance(task, Run)}
    parallel = [[str(i), " | ".join(runs[place] for place in wave)] for i, wave in enumerate(waves(program), 1)]
    lines += ["side by side", *(f"  {line}" for line in columns(parallel, right=(0,)))]
    return "\n".join([*lines, *(pipeline_lines(program) if program.pipeline is not None else ())])


def pipeline_lines(program: Program) -> list[str]:
    """Return lines of text about how the steps of a program overlap; its `pipeline` must not be None.

    They show the depth in steps; the sync period and maximum age in updates of each copy of weights; the runs that
    begin before the first iteration; and the runs and tasks of an iteration, each with its step.
    """
    pipeline = program.pipeline
    assert pipeline is not None, "its steps overlap"
    steps = "step" if pipeline.depth == 1 else "steps"
    rows = "are drawn by one version of the weights"
    if any(copy.behind for copy in pipeline.copies):
        rows = "are of the finished groups that started first"
    elif any(copy.home.in_flight for copy in pipeline.copies):
        rows = "start with one version of the weights, and go on with newer ones, up to k"
    lines = [f"overlap, {pipeline.depth} {steps} deep; rows of step k {rows}"]
    copies = [
        [
            f"copy  {copy.home.param}",
            str(copy.home),
            f"{copy.ahead} ahead",
            "a sync every step" if copy.sync_every == 1 else f"a sync every {copy.sync_every} steps",
            f"at most {copy.bound} update{'' if copy.bound == 1 else 's'} old",
            *([f"{'ready' if copy.behind else 'in flight'}, {copy.home.running.hold}"] if copy.home.in_flight else []),
            *([f"at most {copy.behind} step{'' if copy.behind == 1 else 's'} late"] if copy.behind else []),
        ]
        for copy in pipeline.copies
    ]
    lines += [f"  {line}" for line in columns(copies)]
    for i, filling in enumerate(pipeline.prologue):
        begun = [(_name(turn), i - pipeline.depth + turn.ahead) for turn in filling]
        lines.append(f"  before  {' | '.join(f'{name} {step}' for name, step in begun if name)}")
    runs = [f"{_name(turn)} step {turn.step}" for turn in pipeline.kernel if _name(turn)]
    lines += [f"  each    {' | '.join(runs)}"]
    tasks = [[turn.step, *task_cells(turn.task)] for turn in pipeline.kernel]
    return [*lines, "iteration k", *(f"  {line}" for line in columns(tasks))]


def _name(turn: StepTask) -> str:
    return task_name(turn.task) if isinstance(turn.task, Run) else ""
