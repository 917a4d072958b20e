"""Pipeline steps: between two updates, run tasks of several steps, so that sampling works ahead of training.

Before, the tasks of one step:
    sync policy, run policy.generate, run score, run policy.update
After, with `policy.sample` one step ahead of its update:
    prologue  sync policy 0, run policy.generate 0, run score 0
    kernel    sync policy k+1, run policy.update k, run policy.generate k+1, run score k+1
    epilogue  run policy.update k
The kernel has each task once, of different steps, as in modulo scheduling. Its order is that of each place: first the
syncs of the weights that the last update made, then the tasks of the oldest step; with a take, which waits for groups
of later steps, these steps come first. Source: M. Lam, Software Pipelining,
PLDI 1988. Deviation: shifts are given, not searched for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from flowgraph.lowering.insert_switches import switches_before
from flowgraph.lowering.program import (
    HOST,
    CopySchedule,
    Iteration,
    Join,
    Pipeline,
    Program,
    Read,
    Run,
    StepTask,
    Switch,
    Sync,
    Take,
    Task,
    Transfer,
)
from flowgraph.lowering.waits import carried_values, makers_read


def pipeline_steps(program: Program, shifts: Mapping[str, int] | None = None) -> Program:
    """Return the program with a `Pipeline` of overlapping steps, or without one if no role works ahead.

    `shifts` maps roles to the number of steps by which their tasks run before the update of their own step, 0 for other
    roles; None takes the plan's `ahead`. Shifts are not checked here: `check_program` refuses those that would read
    values that do not exist yet, or weights that are older than a node allows.
    """
    if shifts is None:
        shifts = {placed.role: placed.ahead for placed in program.plan.placed}
    if not any(shifts.values()):
        return replace(program, pipeline=None) if program.pipeline is not None else program
    ahead = task_shifts(program, shifts)
    depth = max(ahead)
    pipeline = Pipeline(
        ahead=ahead,
        copies=tuple(copy_schedules(program, ahead)),
        prologue=tuple(_iteration(program, ahead, range(first, depth + 1)) for first in range(depth, 0, -1)),
        kernel=_iteration(program, ahead, range(depth + 1)),
        epilogue=tuple(_iteration(program, ahead, range(last)) for last in range(depth, 0, -1)),
    )
    return replace(program, pipeline=pipeline)


def iteration(program: Program, step: int, steps: int) -> Iteration:
    """Return the tasks of the iteration that ends with the update of step `step`, in a run of `steps` steps.

    Steps count from 0. Iterations before the first update have negative numbers, from minus the pipeline's depth on. If
    steps do not overlap, the result has all tasks of the program.
    """
    pipeline = program.pipeline
    if pipeline is None:
        return tuple(StepTask(task) for task in program.tasks)
    first, last = max(0, -step), min(pipeline.depth, steps - 1 - step)
    if first and last < pipeline.depth:  # a run of fewer steps than the depth
        return _iteration(program, pipeline.ahead, range(first, last + 1))
    if first:
        return pipeline.prologue[pipeline.depth - first]
    return pipeline.kernel if last == pipeline.depth else pipeline.epilogue[pipeline.depth - 1 - last]


def unrolled(program: Program, steps: int) -> Iterator[tuple[int, Task]]:
    """Yield (step, task) for each task of a run of `steps` steps, from step 0, in the order in which tasks run."""
    depth = program.pipeline.depth if program.pipeline is not None else 0
    for step in range(-depth, steps):
        for turn in iteration(program, step, steps):
            yield step + turn.ahead, turn.task


def _iteration(program: Program, ahead: Sequence[int], steps: range) -> Iteration:
    origins = {name for name, _ in program.origins}
    places = [place for place, task in enumerate(program.tasks) if not isinstance(task, Switch)]
    takes = any(isinstance(task, Take) for task in program.tasks)

    def turn(place: int) -> tuple[bool, int]:
        task = program.tasks[place]
        shift = -ahead[place] if takes else ahead[place]  # a take waits for groups that later steps have begun
        return not (isinstance(task, Sync) and task.value in origins), shift

    sleepers, awake = [home for home in program.homes if home.running.sleeps], dict[object, bool]()
    tasks = list[StepTask]()
    for place in sorted((place for place in places if ahead[place] in steps), key=turn):
        for home, needed in switches_before(program.tasks[place], sleepers):
            if awake.get(home) is not needed:
                tasks.append(StepTask(Switch(home, needed), ahead[place]))
                awake[home] = needed
        tasks.append(StepTask(program.tasks[place], ahead[place]))
    return tuple(tasks)


def task_shifts(program: Program, shifts: Mapping[str, int]) -> tuple[int, ...]:
    """Return how many steps ahead of its own step's update each task runs, in the order of `program.tasks`.

    `shifts` maps roles to the steps by which their runs are ahead; 0 for other roles. A host run or a transfer is as
    far ahead as the least advanced of the tasks that made its inputs; a host run of data rows only, and a read, as far
    as the most advanced of their readers. Reads and host runs of carried state are not ahead. Host runs with side
    effects all have the shift of the least advanced of them. A take is not ahead. A sync has the shift of its least
    advanced reader, and a switch that of the next task.
    """
    tasks, makers = program.tasks, makers_read(program)
    readers = defaultdict[int, list[int]](list)
    for place, sources in enumerate(makers):
        for source in sources:
            readers[source].append(place)
    carried, ahead, together = {*carried_values(program)}, dict[int, int](), dict[int, int]()
    effects = [
        place
        for place, task in enumerate(tasks)
        if isinstance(task, Run) and task.place == HOST and not all(program.nodes[name].op.pure for name in task.nodes)
    ]
    while not ahead or len({ahead.get(place) for place in effects}) > 1:
        earliest = min((ahead[place] for place in effects if place in ahead), default=0)
        together, ahead = dict.fromkeys(effects, earliest) if ahead else {}, {}
        for place, task in enumerate(tasks):
            read = [ahead[source] for source in makers[place] if source in ahead]
            if place in together:
                ahead[place] = together[place]
            elif isinstance(task, Run) and task.role:
                ahead[place] = shifts.get(task.role, 0)
            elif (
                isinstance(task, Take)
                or (isinstance(task, Read) and task.value in carried)
                or (isinstance(task, Run) and carried & {*task.reads})
            ):
                ahead[place] = 0
            elif isinstance(task, Run | Transfer | Join) and read:
                ahead[place] = min(read)
    following = 0  # a switch has the shift of the task that it prepares
    for place in reversed(range(len(tasks))):
        if place not in ahead:
            later = [ahead[reader] for reader in readers[place]]
            syncs = isinstance(tasks[place], Sync)
            ahead[place] = following if isinstance(tasks[place], Switch) else (min if syncs else max)(later, default=0)
        following = ahead[place]
    return tuple(ahead[place] for place in range(len(tasks)))


def copy_schedules(program: Program, ahead: Sequence[int]) -> Iterator[CopySchedule]:
    """Yield the schedule of each sync that copies weights which exist when a step begins, in the order of the tasks.

    `ahead` is the result of `task_shifts`. The part of the plan's lag that the shift, and groups that are trained on
    later than in their own step, do not use makes syncs rarer.
    """
    early = [placed for placed in program.plan.placed if placed.ahead]
    steps_late = {(placed.role.rpartition(".")[0], placed.pool): placed.behind for placed in early}
    origins = {name for name, _ in program.origins}
    for place, task in enumerate(program.tasks):
        if isinstance(task, Sync) and task.value in origins:
            updates = updates_in_step(program, task.value)
            behind = steps_late.get((task.target.param, task.target.pool), 0)
            every = max(1, task.lag // updates - ahead[place] - behind + 1)
            yield CopySchedule(home=task.target, ahead=ahead[place], sync_every=every, updates=updates, behind=behind)


def updates_in_step(program: Program, param: str) -> int:
    """Return how many updates of a model parameter one step makes; 1 if none."""
    return max(1, program.graph.updates(param))
