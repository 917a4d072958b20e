"""The laws of steps that overlap: what is read exists, and weights are those of the schedule, no older than allowed.

They hold for what a run does, whatever takes how long: `check_schedule` executes iterations with versions instead of
weights, in the order in which each place runs them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from flowgraph.engines.table import is_server
from flowgraph.errors import FlowError, LawError
from flowgraph.language.graph import carried_from
from flowgraph.language.values import Model
from flowgraph.lowering.pipeline_steps import iteration, updates_in_step
from flowgraph.lowering.program import (
    HOST,
    Home,
    Program,
    Read,
    Run,
    Sync,
    Task,
    edges_read,
    results_given,
    task_reads,
    task_results,
    value_name,
)
from flowgraph.lowering.waits import carried_values

MAX_STEPS = 64
"""The steps that are executed at most: the schedule of longer sync periods repeats the same iterations."""


def check_plan_is_followed(program: Program) -> Iterator[FlowError]:
    """Yield an error for each run of a role that does not work as many steps ahead as the plan sets for that role."""
    ahead = program.pipeline.ahead if program.pipeline is not None else (0,) * len(program.tasks)
    for placed in program.plan.placed:
        for task, steps in zip(program.tasks, ahead, strict=True):
            if isinstance(task, Run) and task.role == placed.role and steps != placed.ahead:
                what = f"the plan lets {placed.role} work {placed.ahead} steps ahead, the program {steps}"
                yield LawError(what, hint="the pass pipeline_steps makes steps overlap")


def check_staleness_bound(program: Program) -> Iterator[FlowError]:
    """Yield an error for each node that could read weights older than its edge allows; none if steps do not overlap."""
    pipeline = program.pipeline
    if pipeline is None:
        return
    for task in program.tasks:
        homes = dict(task.homes) if isinstance(task, Run) else {}
        nodes = [program.nodes[name] for name in task.nodes] if isinstance(task, Run) else []
        for edge, reader in (read for node in nodes for read in edges_read(node)):
            root = carried_from(edge) if issubclass(edge.type, Model) else None
            if root is None or value_name(edge) != root.name:
                continue
            copy = pipeline.schedule(homes[root.name])
            if copy is not None and copy.bound > edge.at_most:
                yield LawError.too_stale(reader, copy.bound, edge.at_most, copy.ahead, copy.sync_every, copy.updates)


def check_ahead_reads(program: Program) -> Iterator[FlowError]:
    """Yield an error for each read of carried state by a task that works ahead of the update that makes this state.

    Copies of weights that may lag are not reported. None if steps do not overlap.
    """
    if program.pipeline is None:
        return
    carried = carried_values(program)
    for task, ahead in zip(program.tasks, program.pipeline.ahead, strict=True):
        if not ahead or not isinstance(task, Read | Run):
            continue
        values = {task.value} if isinstance(task, Read) else {*task.reads}
        state = [name for name in carried if name in values]
        state += [name for name, home in (task.homes if isinstance(task, Run) else ()) if home in program.trained]
        for name in state:
            yield LawError.reads_ahead(str(task), ahead, name)


def check_sleeping_copies(program: Program) -> Iterator[FlowError]:
    """Yield an error for each copy on a server that loses its weights when it sleeps and is not filled in each step."""
    for copy in program.pipeline.copies if program.pipeline is not None else ():
        if copy.home.running.sleeps and is_server(copy.home.engine) and copy.sync_every > 1:
            what = f"{copy.home.param} on {copy.home} sleeps, which loses its weights, but gets new ones only every "
            what += f"{copy.sync_every} steps"
            yield LawError(what, hint="let it get weights in every step, or place it in a pool of its own")


def check_schedule(program: Program) -> Iterator[FlowError]:
    """Yield an error for each read of a value that does not exist yet, or of weights of an unscheduled version.

    Also an error: a node that does not run once in a step, and a result that does not reach the host. At most 64 steps
    are executed, with version numbers instead of weights. None if steps do not overlap.
    """
    pipeline = program.pipeline
    if pipeline is None:
        return
    period = max((copy.sync_every for copy in pipeline.copies), default=1)
    steps = min(MAX_STEPS, pipeline.depth + 2 * period + 2)
    state = _Versions(program)
    for step in range(-pipeline.depth, steps):
        for turn in iteration(program, step, steps):
            yield from state.execute(turn.task, step + turn.ahead)
        if step >= 0:
            yield from state.ended(step)


@dataclass
class _Versions:
    """The version of each home, and what exists of each step; both by the order of execution alone."""

    program: Program
    at_home: dict[Home, int] = field(default_factory=dict[Home, int])
    values: dict[int, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))
    updated: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    ran: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))

    def execute(self, task: Task, step: int) -> Iterator[FlowError]:
        """Execute one task of step `step`; yield an error for each missing value or wrong version that it reads."""
        for name, place in task_reads(task):
            if isinstance(place, str) and (name, place) not in self.values[step]:
                yield LawError.not_there(f"{task}, step {step}", name, place)
        yield from self.check_weights(task, step)
        if isinstance(task, Run):
            first = task.chunk is None or not task.chunk.index  # that the other chunks follow is a law of chunks
            self.ran[step] += task.nodes if first else ()
            for name, kind in results_given(task, self.program.nodes):
                if issubclass(kind, Model) and task.home is not None:
                    self.at_home[task.home] = self.updated[step, name] = self.at_home.get(task.home, 0) + 1
        elif isinstance(task, Read):
            new = carried_values(self.program).get(task.value)
            if new is not None and step and (new, HOST) not in self.values[step - 1]:
                yield LawError.reads_ahead(str(task), 1, task.value)
        self.values[step] |= {(n, at) for n, at in task_results(task, self.program.nodes) if isinstance(at, str)}

    def check_weights(self, task: Task, step: int) -> Iterator[FlowError]:
        """Yield an error for each home with another version than a task must read there; a sync copies its version."""
        if isinstance(task, Sync) and self.at_home.get(task.target, 0) == self._scheduled(
            step, task.value, task.target
        ):
            return
        homes = [(task.value, task.target, task.source)] if isinstance(task, Sync) else []
        homes += [(name, home, home) for name, home in task.homes] if isinstance(task, Run) else []
        for name, home, source in homes:
            scheduled, version = self._scheduled(step, name, home), self.at_home.get(source, 0)
            if version != scheduled:
                yield LawError.other_version(str(task), step, name, str(source), version, scheduled)
            self.at_home[home] = version

    def _scheduled(self, step: int, name: str, home: Home) -> int:
        assert self.program.pipeline is not None, "it is asked of steps that overlap"
        copy = self.program.pipeline.schedule(home)
        if name not in dict(self.program.origins):
            return self.updated.get((step, name), -1)
        if name in self.program.frozen:
            return 0
        return copy.version(step) if copy is not None else step * updates_in_step(self.program, name)

    def ended(self, step: int) -> Iterator[FlowError]:
        """Yield an error for each node that did not run once in a step, and for each result that is not on the host."""
        runs = self.ran.pop(step, [])
        for node in self.program.graph.nodes:
            if runs.count(node.name) != 1:
                times = f"{runs.count(node.name)} times, not once"
                yield LawError(f"step {step} runs {node.name} {times}", where=str(node.at))
        for edge in self.program.graph.outputs:
            if not issubclass(edge.type, Model) and (value_name(edge), HOST) not in self.values[step]:
                yield LawError.not_there(f"the end of step {step}", value_name(edge), HOST)
        self.values.pop(step - 1, None)
