"""A placed step as the tasks of its lowered program, and their waits: within a step, and across steps.

Not here: the seconds of each task (`step_forecast`), and when tasks run (`timeline`, `period`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import lcm

from flowgraph.analysis.roles import roles
from flowgraph.cluster.plan import Contract, PlacedRole, Plan, RoleSettings, TaskKind, TaskOrder
from flowgraph.engines.table import is_server
from flowgraph.language.graph import Graph
from flowgraph.lowering.lower import lower_unchecked
from flowgraph.lowering.pipeline_steps import updates_in_step
from flowgraph.lowering.program import (
    HOST,
    CopySchedule,
    Home,
    Join,
    Pipeline,
    Program,
    Run,
    Switch,
    Sync,
    Take,
    Task,
    Transfer,
)
from flowgraph.lowering.task_names import task_kind, task_names, task_pool
from flowgraph.lowering.waits import waits_between, waits_for

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
    ahead: int = 0
    chunks: int = 1
    contract: Contract = "scheduled"
    behind: int = 0

    @property
    def placed(self) -> PlacedRole:
        """Return the placement as a PlacedRole with stand-in settings; a program only tests settings for equality."""
        running = RoleSettings(micro_batch_tokens=self.copy + 1, sleeps=self.sleeps, contract=self.contract)
        return PlacedRole(
            role=self.role,
            pool=self.pool,
            engine=self.engine,
            running=running,
            lag=self.lag,
            ahead=self.ahead,
            chunks=self.chunks,
            behind=self.behind,
        )


@dataclass(frozen=True, eq=False)
class StepOutline:
    """The tasks of one step in the order in which pools run them, without seconds, and their `program`.

    `needs` has the indices that each task waits for. If steps overlap, the tasks are those of an iteration, between two
    updates. Then `ahead` has for each task how many steps it is ahead of the update, and `earlier` has triples of a
    task, one that waits for it, and how many iterations lie between them. Otherwise a step begins when the previous one
    has ended, and both are empty.
    """

    program: Program
    tasks: tuple[Task, ...]
    needs: tuple[frozenset[int], ...]
    ahead: tuple[int, ...] = ()
    earlier: tuple[tuple[int, int, int], ...] = ()

    @property
    def depth(self) -> int:
        """Return how many steps sampling works ahead of training; 0 if steps do not overlap."""
        return self.program.pipeline.depth if self.program.pipeline is not None else 0

    @cached_property
    def copies(self) -> tuple[CopySchedule | None, ...]:
        """Return for each task the schedule of the copy that it syncs; None unless the task syncs trained weights."""
        return tuple(copy_schedule(self.program, task) for task in self.tasks)

    @cached_property
    def shifts(self) -> tuple[int, ...]:
        """Return for each task the first iteration (from 0) in which it runs; () if steps do not overlap.

        This is how many steps earlier the rows were sampled that the task works on. A sync first runs when there are
        new weights to copy.
        """
        shifts = (
            self.depth + copy.sync_every if copy is not None else self.depth - ahead
            for ahead, copy in zip(self.ahead, self.copies, strict=False)
        )
        return tuple(shifts)

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
        """Return the pools that each task occupies: source and target for a sync, none for a transfer, else one."""
        return tuple(() if isinstance(task, Transfer | Join | Take) else _pools_of(task) for task in self.tasks)

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
        """Return for each task whether it is a switch that moves a model's state: that puts it to sleep, or wakes it.

        A switch to the state that the model is already in moves nothing. Before the first switch of a step, a model is
        in the state in which the last one leaves it.
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
        """Return for each task the indices of tasks that must end before it in the same step, or the same iteration.

        They include the previous task on each of its pools; the host is excepted if steps overlap, since it then runs
        several tasks at once. All of them are earlier in `tasks`.
        """
        before, last = list[frozenset[int]](), dict[str, int]()
        for place, needs in enumerate(self.needs):
            turns = [pool for pool in self.pools[place] if pool != HOST or not self.ahead]
            before.append(needs | {last[pool] for pool in turns if pool in last})
            last |= dict.fromkeys(turns, place)
        return tuple(before)

    @cached_property
    def waits(self) -> tuple[TaskOrder, ...]:
        """Return which tasks wait for which: within a step, for rows of an earlier step, and for the previous step.

        No wait has a pause; `waits_with` adds one between steps.
        """
        return self.waits_with(0.0)

    def waits_with(self, driver_s: float) -> tuple[TaskOrder, ...]:
        """Return the waits, with a pause of `driver_s` seconds between the end of a step and the tasks after it.

        The driver starts a step when all tasks of the previous one have ended. If steps overlap, it starts the tasks of
        an iteration when all tasks of the step that the previous one updated have ended; others continue meanwhile.
        """
        names, overlaps = self.names, bool(self.ahead)
        waits = [TaskOrder(before=names[i], after=names[j], delay=delay) for i, j, delay in self._waits]
        # What begins an iteration, also one in which no weights are copied, and what nothing of its step comes after.
        rare = {place for place, copy in enumerate(self.copies) if copy is not None and copy.sync_every > 1}
        begins = [place for place, before in enumerate(self.before) if before <= rare]
        followed = set[int]().union(*(() if overlaps else self.before))
        for i, j, delay in self._waits if overlaps else ():
            followed |= {i} if delay == self.ahead[i] - self.ahead[j] else set()
        for end, begin in product(sorted(set(range(len(self.tasks))) - followed), begins):
            wait = TaskOrder(before=names[end], after=names[begin], delay=1 + (self.ahead[end] if overlaps else 0))
            waits.append(wait.model_copy(update={"pause_s": driver_s}) if driver_s else wait)
        return tuple(waits)

    @cached_property
    def _waits(self) -> tuple[tuple[int, int, int], ...]:
        within = ((need, place, 0) for place, needs in enumerate(self.needs) for need in sorted(needs))
        return (*within, *self.earlier)

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
        case Join(_, place) | Take(_, place):
            return (place,)
        case Sync(_, source, target):
            return tuple(dict.fromkeys((source.pool, target.pool)))
        case _:
            return (task_pool(task),)


@lru_cache(maxsize=256)
def outline(graph: Graph, placements: tuple[ProgramPlacement, ...]) -> StepOutline:
    """Return the tasks of one step of a graph with these placements, in order, without seconds.

    If a role works ahead, they are the tasks of an iteration of steps that overlap. Tasks of roles without a placement
    are left out.
    """
    placed = {placement.role: placement.placed for placement in placements}
    missing = [role.name for role in roles(graph) if role.name not in placed]
    nowhere = (ProgramPlacement(role=name, pool=NOWHERE, engine="").placed for name in missing)
    # As much of a plan as a program depends on.
    skeleton = Plan.model_construct(structure_hash="", pools=(), placed=(*placed.values(), *nowhere))
    program = lower_unchecked(graph, skeleton)
    if program.pipeline is not None:
        return _iteration(program, program.pipeline)
    placed_here, waits = [NOWHERE not in _pools_of(task) for task in program.tasks], waits_for(program)
    places = [place for place, keeps in enumerate(placed_here) if keeps]
    numbers = {place: number for number, place in enumerate(places)}
    through = _waits_through(waits, placed_here)
    needs = tuple(frozenset(numbers[need] for need in through[place]) for place in places)
    return StepOutline(program, tuple(program.tasks[place] for place in places), needs)


def _waits_through(waits: Sequence[frozenset[int]], placed_here: Sequence[bool]) -> list[frozenset[int]]:
    through = list[frozenset[int]]()
    for needs in waits:
        through.append(frozenset[int]().union(*({need} if placed_here[need] else through[need] for need in needs)))
    return through


def copy_schedule(program: Program, task: Task) -> CopySchedule | None:
    """Return the schedule of the copy of weights that a task syncs; None if the task is not a sync of trained weights.

    A server that sleeps loses its weights, so without overlap it gets new ones in every step.
    """
    if not isinstance(task, Sync) or task.value not in dict(program.origins):
        return None
    if program.pipeline is not None:
        return program.pipeline.schedule(task.target)
    emptied, updates = (
        task.target.running.sleeps and is_server(task.target.engine),
        updates_in_step(program, task.value),
    )
    return CopySchedule(home=task.target, sync_every=1 if emptied else task.lag // updates + 1, updates=updates)


def _iteration(program: Program, pipeline: Pipeline) -> StepOutline:
    """Return the tasks of one iteration of steps that overlap, with the waits that repeat in a long run."""
    kernel, every = pipeline.kernel, lcm(*(copy.sync_every for copy in pipeline.copies))
    copies = [copy_schedule(program, turn.task) for turn in kernel]
    turns, first = len(kernel), every * (2 + -(-pipeline.depth // every))
    run, placed_here = list[tuple[int, Task]](), list[bool]()
    for number in range(first + every):
        for turn, copy in zip(kernel, copies, strict=True):
            run.append((number + turn.ahead, turn.task))
            idle = copy is not None and number % copy.sync_every > 0
            placed_here.append(not idle and NOWHERE not in _pools_of(turn.task))
    through, delays = _waits_through(waits_between(program, run), placed_here), dict[tuple[int, int], int]()
    for place in range(first * turns, len(run)):
        for need in through[place] if placed_here[place] else ():
            pair, delay = (need % turns, place % turns), place // turns - need // turns
            delays[pair] = min(delay, delays.get(pair, delay))
    order = [place for place in range(turns) if placed_here[first * turns + place]]
    numbers = {place: number for number, place in enumerate(order)}
    waits = [(numbers[i], numbers[j], delay) for (i, j), delay in delays.items()]
    return StepOutline(
        program,
        tuple(kernel[place].task for place in order),
        tuple(frozenset(i for i, j, delay in waits if j == number and not delay) for number in range(len(order))),
        tuple(kernel[place].ahead for place in order),
        tuple(sorted(wait for wait in waits if wait[2])),
    )
