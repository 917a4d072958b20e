"""A placed step as the tasks of its lowered program, and what they wait for: within a step, and across steps.

Not here: how long each takes (`placing`), and how the tasks play out (`timeline`, `cycles`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Final

from flowgraph.analysis.roles import roles
from flowgraph.cluster.plan import PlacedRole, Plan, RoleSettings, TaskKind, TaskOrder
from flowgraph.language.graph import Graph
from flowgraph.lowering import LOWERING, Pass
from flowgraph.lowering.insert_switches import insert_switches
from flowgraph.lowering.lower import lower_unchecked
from flowgraph.lowering.program import Home, Program, Run, Switch, Sync, Task, Transfer
from flowgraph.lowering.task_names import kind_of, pool_of, task_names
from flowgraph.lowering.waits import homes_of, moved_on, waits_for
from placements.constants import Constants, constants

HOST: Final = "host"
NOWHERE = ""
"""The pool of roles that a run does without: what would run there is no task of its step."""


@dataclass(frozen=True)
class HostConstants(Constants):
    """What the host takes: `call_s` for each task, `score_row_s` to score a row by a rule, and what else it works on.

    A host node takes `row_s` for each row and `token_s` for each token that it reads or makes. Values travel at
    `arrow_bytes_per_s` into and out of Arrow tables. `driver_share` of a step's seconds pass between it and the next.
    `slowed_share` is how much sharing a pool slows training. Of the rates that an engine attains in pre-training, its
    log-prob passes have `forward_share` in a step of RL, and its updates `update_share`: rows are of all lengths, and
    what is read out goes through the host.
    """

    driver_share: float
    call_s: float
    score_row_s: float
    row_s: float
    token_s: float
    arrow_bytes_per_s: float
    slowed_share: float
    forward_share: float
    update_share: float


def host_constants(moved: Mapping[str, float] | None = None) -> HostConstants:
    """Return the constants of host work, those of `moved` in place of the shipped ones."""
    return constants(HostConstants, HOST).moved(moved or {})


# ---------------------------------------------------------------------------------------- the program


@dataclass(frozen=True)
class Spot:
    """Where a role lives, as far as its program depends on it: roles of one model share weights of the same `copy`."""

    role: str
    pool: str
    engine: str
    copy: int = 0
    sleeps: bool = False
    lag: int = 0

    @property
    def placed(self) -> PlacedRole:
        """Return the spot as a plan has it; of layout and settings a program depends on nothing but their equality."""
        running = RoleSettings(micro_batch_tokens=self.copy + 1, sleeps=self.sleeps)
        return PlacedRole(role=self.role, pool=self.pool, engine=self.engine, lag=self.lag, running=running)


@dataclass(frozen=True, eq=False)
class Outline:
    """The tasks of one step, those of `program`, without their seconds; `needs` are places of those each waits for.

    Where steps overlap, `shifts` says of each task how many steps ago the rows that it works on were drawn, and
    `carried` pairs what moves weights on with who uses them in the next step; else a step begins once the one before
    has ended, and both are empty.
    """

    program: Program
    needs: tuple[frozenset[int], ...]
    shifts: tuple[int, ...] = ()
    carried: tuple[tuple[int, int], ...] = ()

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Return the tasks, in the order in which pools take them."""
        return self.program.tasks

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of the tasks, each different."""
        return task_names(self.tasks)

    @cached_property
    def kinds(self) -> tuple[TaskKind, ...]:
        """Return the kinds of the tasks."""
        return tuple(kind_of(task, self.program.graph) for task in self.tasks)

    @cached_property
    def pools(self) -> tuple[tuple[str, ...], ...]:
        """Return the pools that each task occupies: both of a sync, none of a transfer."""
        return tuple(map(_occupied, self.tasks))

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """Return the role of each task; of a sync that which samples with its weights, else the first."""
        return tuple(map(self._role, self.tasks))

    @cached_property
    def moving(self) -> tuple[bool, ...]:
        """Return of each switch whether it moves anything: what the step before left so costs nothing."""
        last = {task.home: task.awake for task in self.tasks if isinstance(task, Switch)}
        found = list[bool]()
        for task in self.tasks:
            found.append(isinstance(task, Switch) and last[task.home] is not task.awake)
            if isinstance(task, Switch):
                last[task.home] = task.awake
        return tuple(found)

    @cached_property
    def before(self) -> tuple[frozenset[int], ...]:
        """Return for each task those that end before it begins in the same step, its turn on its pools included.

        Where steps do not overlap, all are earlier in `tasks`.
        """
        found, last = list[frozenset[int]](), dict[str, int]()
        for place, needs in enumerate(self.needs):
            found.append(needs | {last[pool] for pool in self.pools[place] if pool in last})
            last |= dict.fromkeys(self.pools[place], place)
        return tuple(found)

    @cached_property
    def waits(self) -> tuple[TaskOrder, ...]:
        """Return what waits for what: in its own step, on rows of an earlier one, and last for the step before."""
        names, late = self.names, self.shifts or (0,) * len(self.tasks)
        rows = (
            TaskOrder(
                before=names[need], after=names[place], delay=0 if self._is_first(need) else late[place] - late[need]
            )
            for place, needs in enumerate(self.needs)
            for need in sorted(needs)
        )
        return (*rows, *(TaskOrder(before=names[one], after=names[after], delay=1) for one, after in self._next))

    @cached_property
    def _next(self) -> tuple[tuple[int, int], ...]:
        """Pair tasks with those of the next step that wait for them: all that it begins with, unless steps overlap."""
        if self.shifts:
            return self.carried
        ends = set(range(len(self.tasks))).difference(*self.before)
        begins = [place for place, before in enumerate(self.before) if not before]
        return tuple((end, begin) for end in sorted(ends) for begin in begins)

    def waits_with(self, driver_s: float) -> tuple[TaskOrder, ...]:
        """Return the same, where so many seconds pass between the end of a step and the begin of the next.

        Where steps overlap, they pass between an update and the runs that read its weights in the next step; syncs and
        what samples go on meanwhile.
        """
        count = len(self.waits) - len(self._next)
        waiting = (not self.shifts or isinstance(self.tasks[after], Run) for _, after in self._next)
        across = (
            each.model_copy(update={"pause_s": driver_s}) if waits else each
            for each, waits in zip(self.waits[count:], waiting, strict=True)
        )
        return (*self.waits[:count], *across) if driver_s else self.waits

    def _is_first(self, place: int) -> bool:
        """Return whether a task syncs what the step before trained: who reads that does so in the step of the sync."""
        return isinstance(self.tasks[place], Sync) and not self.needs[place]

    def _role(self, task: Task) -> str:
        if isinstance(task, Run):
            return task.role
        if not isinstance(task, Sync):
            return ""
        own = [each.name for each in roles(self.program.graph) if self.homes.get(each.name) == task.target]
        return next((name for name in own if name.endswith(".sample")), own[0] if own else "")

    @cached_property
    def homes(self) -> Mapping[str, Home]:
        """Return the home of each role by its name."""
        placed = self.program.plan.placed
        return {
            each.role: Home(each.role.rpartition(".")[0], each.pool, each.engine, each.layout, each.running)
            for each in placed
        }


def _occupied(task: Task) -> tuple[str, ...]:
    if isinstance(task, Sync):
        return tuple(dict.fromkeys((task.source.pool, task.target.pool)))
    return () if isinstance(task, Transfer) else (pool_of(task),)


@lru_cache(maxsize=256)
def outline(graph: Graph, spots: tuple[Spot, ...]) -> Outline:
    """Return the step of a graph whose roles live at these spots: the tasks of its program, in their order.

    A role without a spot is one that the run does without.
    """
    return Outline(*_lowered(graph, spots, LOWERING))


def _lowered(graph: Graph, spots: Sequence[Spot], passes: Sequence[Pass]) -> tuple[Program, tuple[frozenset[int], ...]]:
    """Return a program without what would run nowhere, and what its tasks wait for: through what is left out, too."""
    there = {each.role: each.placed for each in spots}
    nowhere = (Spot(role.name, NOWHERE, "").placed for role in roles(graph) if role.name not in there)
    # As much of a plan as a program depends on.
    skeleton = Plan.model_construct(structure_hash="", pools=(), placed=(*there.values(), *nowhere))
    program = lower_unchecked(graph, skeleton, passes)
    needs, kept = waits_for(program), [_is_somewhere(task) for task in program.tasks]
    if all(kept):
        return program, needs
    behind = list[frozenset[int]]()
    for own in needs:
        behind.append(frozenset[int]().union(*({each} if kept[each] else behind[each] for each in own)))
    left = [place for place, there in enumerate(kept) if there]
    new = {place: number for number, place in enumerate(left)}
    tasks = tuple(program.tasks[place] for place in left)
    return replace(program, tasks=tasks), tuple(frozenset(new[each] for each in behind[place]) for place in left)


def _is_somewhere(task: Task) -> bool:
    match task:
        case Transfer(_, source, target):
            return NOWHERE not in (source, target)
        case Sync(_, source, target):
            return NOWHERE not in (source.pool, target.pool)
        case _:
            return pool_of(task) != NOWHERE


# ---------------------------------------------------------------------------------------- steps that overlap


@dataclass(frozen=True)
class Staged:
    """One node that runs a model: its role, its stage in the step, and whether it updates weights."""

    node: str
    role: str
    stage: int
    updates: bool


@lru_cache(maxsize=256)
def overlapped(graph: Graph, spots: tuple[Spot, ...], staged: tuple[Staged, ...], lag: int) -> Outline:
    """Return the step of a graph in which steps overlap, as far as weights may be `lag` updates old where they sample.

    On each pool tasks on rows drawn longest ago come first, since updates wait for them; syncs of what the step before
    trained are first of all. Only a forecast knows such steps: a run begins a step once the one before has ended.
    """
    base, needs = _lowered(graph, spots, [each for each in LOWERING if each is not insert_switches])
    late = _as_late_as_read(base, needs, _shifts(base, needs, shifts(spots, staged, lag)))
    first = _first(base, needs, late)
    order = sorted(range(len(base.tasks)), key=lambda i: (i not in first, -late[i], i))
    program = insert_switches(replace(base, tasks=tuple(base.tasks[i] for i in order)))
    old = iter(order)
    numbers = [-1 if isinstance(task, Switch) else next(old) for task in program.tasks]
    new = {number: place for place, number in enumerate(numbers) if number >= 0}
    lates, latest = list[int](), 0
    for number in reversed(numbers):  # a switch is of the step of the task that it is made for
        latest = late[number] if number >= 0 else latest
        lates.append(latest)
    return Outline(
        program,
        tuple(
            frozenset(new[each] for each in needs[number]) if number >= 0 else frozenset[int]() for number in numbers
        ),
        tuple(reversed(lates)),
        tuple((new[one], new[user]) for one, user in _carried(base)),
    )


def _carried(program: Program) -> Iterator[tuple[int, int]]:
    """Pair what moves the weights of a home on with who used them before it: in the next step those are there."""
    for place, task in enumerate(program.tasks):
        moved = set(moved_on(task, program))
        yield from ((place, earlier) for earlier in range(place) if moved & set(homes_of(program.tasks[earlier])))


def shifts(spots: Sequence[Spot], staged: Sequence[Staged], lag: int) -> dict[str, int]:
    """Return by node how many steps ago the rows that it works on were drawn, within what the weights may lag.

    Without a lag all work on the rows of their own step, one after another. With one, what draws is a step ahead of the
    rest, and so is what comes before it; with more, pools that only read rows have a step of their own between drawing
    and updates.
    """
    pools = {each.role: each.pool for each in spots}
    drawing = [each for each in staged if each.role.endswith(".sample") and _trained(each.role) in pools]
    last = max((each.stage for each in drawing), default=0)
    ahead = {each.node for each in staged if each in drawing or (not each.updates and each.stage < last)}
    after = [each for each in staged if each.node not in ahead]
    trained = {pools[each.role] for each in staged if each.updates}
    # What reads rows by what a trained model has read of them goes with it.
    first = min((o.stage for o in after if pools[o.role] in trained and not o.updates), default=len(staged))
    reading = {each.node for each in after if pools[each.role] not in trained and each.stage <= first}
    late = min(lag, 2 if reading else 1)
    found = {each.node: 0 if each.node in ahead else late for each in staged}
    return found | dict.fromkeys(reading, min(lag, 1))


def _trained(role: str) -> str:
    return f"{role.rpartition('.')[0]}.train"


def _shifts(program: Program, needs: Sequence[frozenset[int]], of_nodes: Mapping[str, int]) -> list[int]:
    """Return the shift of each task: that of its nodes, or of the latest that it waits for."""
    found = list[int]()
    for task, before in zip(program.tasks, needs, strict=True):
        own = (of_nodes.get(name, 0) for name in task.nodes) if isinstance(task, Run) else ()
        found.append(max((*own, *(found[each] for each in before)), default=0))
    return found


def _as_late_as_read(program: Program, needs: Sequence[frozenset[int]], late: Sequence[int]) -> list[int]:
    """Let the host work on rows in the step that reads its results, so that nothing that is drawn next waits for it."""
    found, readers = list(late), [list[int]() for _ in late]
    for reader, before in enumerate(needs):
        for each in before:
            readers[each].append(reader)
    for place in reversed(range(len(found))):
        task = program.tasks[place]
        waits = isinstance(task, Transfer) or (isinstance(task, Run) and not task.role)
        if waits and readers[place]:
            found[place] = min(found[each] for each in readers[place])
    return found


def _first(program: Program, needs: Sequence[frozenset[int]], late: Sequence[int]) -> set[int]:
    """Return what a step begins with: syncs of what the step before trained, and host work that sampling waits for.

    Host work on rows of this very step is not, since those are sampled first.
    """
    found = {i for i, task in enumerate(program.tasks) if isinstance(task, Sync) and not needs[i]}
    drawing = {i for i, task in enumerate(program.tasks) if isinstance(task, Run) and task.role and not late[i]}
    drawn = set(drawing)
    for place, before in enumerate(needs):
        drawn |= {place} if before & drawn else set()
    for place in reversed(range(len(needs))):
        if place in drawing or (place in found and not isinstance(program.tasks[place], Sync)):
            found |= {each for each in needs[place] - drawn if not _runs_model(program.tasks[each])}
    return found


def _runs_model(task: Task) -> bool:
    return isinstance(task, Run) and bool(task.role)
