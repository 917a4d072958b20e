"""A placed step as the tasks of its lowered program, and their waits: within a step, and across steps.

Not here: the seconds of each task (`step_forecast`), and when tasks run (`timeline`, `period`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product

from flowgraph.analysis.roles import roles
from flowgraph.cluster.plan import PlacedRole, Plan, RoleSettings, TaskKind, TaskOrder
from flowgraph.language.graph import Graph
from flowgraph.lowering import LOWERING, Pass
from flowgraph.lowering.insert_switches import insert_switches
from flowgraph.lowering.lower import lower_unchecked
from flowgraph.lowering.program import Home, Program, Run, Switch, Sync, Task, Transfer
from flowgraph.lowering.task_names import task_kind, task_names, task_pool
from flowgraph.lowering.waits import homes_of, homes_replaced, waits_for

NOWHERE = ""
"""The pool of roles that a run does without: its step has no tasks there."""


# ---------------------------------------------------------------------------------------- the program


@dataclass(frozen=True)
class ProgramPlacement:
    """The placement of a role as far as its program depends on it; roles of a model with equal `copy` share weights."""

    role: str
    pool: str
    engine: str
    copy: int = 0
    sleeps: bool = False
    lag: int = 0

    @property
    def placed(self) -> PlacedRole:
        """Return the placement as a PlacedRole with stand-in settings; a program only tests settings for equality."""
        running = RoleSettings(micro_batch_tokens=self.copy + 1, sleeps=self.sleeps)
        return PlacedRole(role=self.role, pool=self.pool, engine=self.engine, lag=self.lag, running=running)


@dataclass(frozen=True, eq=False)
class StepOutline:
    """The tasks of one step in `program`, without seconds; `needs` has the indices that each task waits for.

    If steps overlap, `shifts` has for each task how many steps ago its rows were sampled, and `carried` has pairs of
    tasks that update or send weights and tasks that use them in the next step. Otherwise a step begins when the
    previous one has ended, and both are empty.
    """

    program: Program
    needs: tuple[frozenset[int], ...]
    shifts: tuple[int, ...] = ()
    carried: tuple[tuple[int, int], ...] = ()

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Return the tasks in the order in which pools run them."""
        return self.program.tasks

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the name of each task; names are unique."""
        return task_names(self.tasks)

    @cached_property
    def kinds(self) -> tuple[TaskKind, ...]:
        """Return the kind of each task, such as `sync` or `transfer`."""
        return tuple(task_kind(task, self.program.graph) for task in self.tasks)

    @cached_property
    def pools(self) -> tuple[tuple[str, ...], ...]:
        """Return the pools that each task occupies: both pools for a sync, none for a transfer, one for others."""
        return tuple(() if isinstance(task, Transfer) else _pools_of(task) for task in self.tasks)

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """Return the name of the role of each task; "" for a task without a role.

        A sync has the name of a sampling role that gets its weights or, if there is none, of the first role that does.
        """
        names = list[str]()
        for task in self.tasks:
            name = task.role if isinstance(task, Run) else ""
            if isinstance(task, Sync):
                targets = [role.name for role in roles(self.program.graph) if self.homes.get(role.name) == task.target]
                sampling = [target for target in targets if target.endswith(".sample")]
                name = next(iter((*sampling, *targets)), "")
            names.append(name)
        return tuple(names)

    @cached_property
    def moving(self) -> tuple[bool, ...]:
        """Return for each task whether it moves a model's state: whether it is a switch to sleep or to wake.

        A switch to the state that the model is already in moves nothing.
        """
        awake = {task.home: task.awake for task in self.tasks if isinstance(task, Switch)}
        moving = list[bool]()
        for task in self.tasks:
            moving.append(isinstance(task, Switch) and awake[task.home] is not task.awake)
            if isinstance(task, Switch):
                awake[task.home] = task.awake
        return tuple(moving)

    @cached_property
    def before(self) -> tuple[frozenset[int], ...]:
        """Return for each task the indices of tasks that must end before it in the same step.

        They include the task before it on each of its pools. If steps do not overlap, all of them are earlier in
        `tasks`.
        """
        before, last = list[frozenset[int]](), dict[str, int]()
        for place, needs in enumerate(self.needs):
            before.append(needs | {last[pool] for pool in self.pools[place] if pool in last})
            last |= dict.fromkeys(self.pools[place], place)
        return tuple(before)

    @cached_property
    def waits(self) -> tuple[TaskOrder, ...]:
        """Return which tasks wait for which: within a step, for rows of an earlier step, and for the previous step."""
        return self.waits_with(0.0)

    def waits_with(self, driver_s: float) -> tuple[TaskOrder, ...]:
        """Return the waits, with a pause of `driver_s` seconds between the end of a step and the start of the next.

        If steps overlap, the pause is between an update and the runs that read its weights in the next step; syncs and
        sampling continue meanwhile. With 0 seconds, no wait has a pause.
        """
        ends = sorted(set(range(len(self.tasks))).difference(*self.before))
        begins = [place for place, before in enumerate(self.before) if not before]
        across = list[TaskOrder]()  # waits for the step before: for all that end it, unless steps overlap
        for end, begin in self.carried if self.shifts else product(ends, begins):
            wait = TaskOrder(before=self.names[end], after=self.names[begin], delay=1)
            paused = driver_s and (not self.shifts or isinstance(self.tasks[begin], Run))
            across.append(wait.model_copy(update={"pause_s": driver_s}) if paused else wait)
        return (*self._waits_in_step, *across)

    @cached_property
    def _waits_in_step(self) -> tuple[TaskOrder, ...]:
        names, shifts = self.names, self.shifts or (0,) * len(self.tasks)
        waits = list[TaskOrder]()
        for place, needs in enumerate(self.needs):
            for need in sorted(needs):
                # A sync of weights that the step before trained is in the step of the tasks that read them.
                is_first = isinstance(self.tasks[need], Sync) and not self.needs[need]
                delay = 0 if is_first else shifts[place] - shifts[need]
                waits.append(TaskOrder(before=names[need], after=names[place], delay=delay))
        return tuple(waits)

    @cached_property
    def homes(self) -> Mapping[str, Home]:
        """Return the home of each role (its model, pool, engine, layout and settings) by the role's name."""
        return {
            role.role: Home(role.role.rpartition(".")[0], role.pool, role.engine, role.layout, role.running)
            for role in self.program.plan.placed
        }


def _pools_of(task: Task) -> tuple[str, ...]:
    match task:
        case Transfer(_, source, target):
            return source, target
        case Sync(_, source, target):
            return tuple(dict.fromkeys((source.pool, target.pool)))
        case _:
            return (task_pool(task),)


@lru_cache(maxsize=256)
def outline(graph: Graph, placements: tuple[ProgramPlacement, ...]) -> StepOutline:
    """Return the tasks of one step of a graph with these placements, in order, without seconds.

    Tasks of roles without a placement are left out.
    """
    return StepOutline(*_lowered(graph, placements, LOWERING))


def _lowered(
    graph: Graph, placements: Sequence[ProgramPlacement], passes: Sequence[Pass]
) -> tuple[Program, tuple[frozenset[int], ...]]:
    """Return a program without tasks of roles that are nowhere, and its tasks' waits, also those through such tasks."""
    placed = {placement.role: placement.placed for placement in placements}
    nowhere = (ProgramPlacement(role.name, NOWHERE, "").placed for role in roles(graph) if role.name not in placed)
    # As much of a plan as a program depends on.
    skeleton = Plan.model_construct(structure_hash="", pools=(), placed=(*placed.values(), *nowhere))
    program = lower_unchecked(graph, skeleton, passes)
    needs = waits_for(program)
    places = [place for place, task in enumerate(program.tasks) if NOWHERE not in _pools_of(task)]
    if len(places) == len(program.tasks):
        return program, needs
    numbers = {place: number for number, place in enumerate(places)}
    remaining = list[frozenset[int]]()  # for each task, the numbers of the remaining tasks that it waits for
    for before in needs:
        waits = ({numbers[need]} if need in numbers else remaining[need] for need in before)
        remaining.append(frozenset[int]().union(*waits))
    tasks = tuple(program.tasks[place] for place in places)
    return replace(program, tasks=tasks), tuple(remaining[place] for place in places)


# ---------------------------------------------------------------------------------------- steps that overlap


@dataclass(frozen=True)
class StagedNode:
    """A node that runs a model, with its role, its stage in the step, and whether it updates weights."""

    node: str
    role: str
    stage: int
    updates: bool


@lru_cache(maxsize=256)
def overlapped(
    graph: Graph, placements: tuple[ProgramPlacement, ...], staged: tuple[StagedNode, ...], lag: int
) -> StepOutline:
    """Return the tasks of one step of a graph whose steps overlap; sampling may use weights that are `lag` updates old.

    `staged` are the nodes that run models. On each pool, tasks on the oldest rows come first, since updates wait for
    them; syncs of weights from the previous step come before all others. A run overlaps steps in the same order, if a
    role of its plan works `ahead`.
    """
    base, needs = _lowered(graph, placements, [rule for rule in LOWERING if rule is not insert_switches])
    task_shifts = _task_shifts(base, needs, shifts(placements, staged, lag))
    first = _first(base, needs, task_shifts)
    order = sorted(range(len(base.tasks)), key=lambda i: (i not in first, -task_shifts[i], i))
    program = insert_switches(replace(base, tasks=tuple(base.tasks[i] for i in order)))
    unswitched = iter(order)
    numbers = [None if isinstance(task, Switch) else next(unswitched) for task in program.tasks]
    places = {number: place for place, number in enumerate(numbers) if number is not None}
    new_needs, new_shifts, shift = list[frozenset[int]](), list[int](), 0
    for number in reversed(numbers):  # a switch has the shift of the task that it prepares
        shift = shift if number is None else task_shifts[number]
        before = () if number is None else needs[number]
        new_shifts.append(shift)
        new_needs.append(frozenset(places[need] for need in before))
    carried = list[tuple[int, int]]()  # tasks that change weights, and earlier ones, which read them a step later
    for number, task in enumerate(base.tasks):
        moved = set(homes_replaced(task, base))
        users = (user for user in range(number) if moved & set(homes_of(base.tasks[user])))
        carried += [(places[number], places[user]) for user in users]
    return StepOutline(program, tuple(new_needs[::-1]), tuple(new_shifts[::-1]), tuple(carried))


def shifts(placements: Sequence[ProgramPlacement], staged: Sequence[StagedNode], lag: int) -> dict[str, int]:
    """Return for each node how many steps ago its rows were sampled, at most 2, within the lag of weights.

    Without a lag, all nodes work on rows of the current step. With a lag of 1, sampling and the nodes before it are one
    step ahead of the rest. With more, pools that only read rows work in a separate step between sampling and updates.
    """
    pools = {placement.role: placement.pool for placement in placements}
    sampling = [
        node for node in staged if node.role.endswith(".sample") and f"{node.role.rpartition('.')[0]}.train" in pools
    ]
    last = max((node.stage for node in sampling), default=0)
    ahead = {node.node for node in staged if node in sampling or (not node.updates and node.stage < last)}
    after = [node for node in staged if node.node not in ahead]
    trained = {pools[node.role] for node in staged if node.updates}
    # A node that reads the results of a trained model's forward pass stays in the step of that model.
    first = min((node.stage for node in after if pools[node.role] in trained and not node.updates), default=len(staged))
    reading = {node.node for node in after if pools[node.role] not in trained and node.stage <= first}
    updating = min(lag, 2 if reading else 1)
    of_nodes = {node.node: 0 if node.node in ahead else updating for node in staged}
    return of_nodes | dict.fromkeys(reading, min(lag, 1))


def _task_shifts(program: Program, needs: Sequence[frozenset[int]], of_nodes: Mapping[str, int]) -> list[int]:
    """Return the shift of each task: that of its nodes, or the largest of the tasks that it waits for.

    Host work is in the step that reads its results, so that the next sampling does not wait for it.
    """
    task_shifts, readers = list[int](), [list[int]() for _ in needs]
    for place, (task, before) in enumerate(zip(program.tasks, needs, strict=True)):
        nodes = (of_nodes.get(name, 0) for name in task.nodes) if isinstance(task, Run) else ()
        task_shifts.append(max((*nodes, *(task_shifts[need] for need in before)), default=0))
        for need in before:
            readers[need].append(place)
    for place, task in reversed(list(enumerate(program.tasks))):
        on_host = isinstance(task, Transfer) or (isinstance(task, Run) and not task.role)
        if on_host and readers[place]:
            task_shifts[place] = min(task_shifts[reader] for reader in readers[place])
    return task_shifts


def _first(program: Program, needs: Sequence[frozenset[int]], task_shifts: Sequence[int]) -> set[int]:
    """Return the tasks with which a step begins: syncs of trained weights, and host work before its sampling."""
    tasks = program.tasks
    models = {i for i, task in enumerate(tasks) if isinstance(task, Run) and task.role}
    first = {i for i, task in enumerate(tasks) if isinstance(task, Sync) and not needs[i]}
    sampling = {i for i in models if not task_shifts[i]}
    sampled = set(sampling)  # and all that depends on it
    for place, before in enumerate(needs):
        sampled |= {place} if before & sampled else set()
    for place in reversed(range(len(needs))):
        if place in sampling or (place in first and not isinstance(tasks[place], Sync)):
            first |= needs[place] - sampled - models
    return first
