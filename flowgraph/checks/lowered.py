"""The laws of the lowered stage; the table says after which pass each of them holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from flowgraph.errors import FlowError, LawError
from flowgraph.language.values import Model
from flowgraph.lowering.insert_switches import switches_before
from flowgraph.lowering.insert_syncs import sync_bounds
from flowgraph.lowering.parts import parts_needed
from flowgraph.lowering.program import (
    HOST,
    IDS_ONLY,
    Home,
    Parts,
    Program,
    Run,
    Switch,
    Sync,
    Task,
    Transfer,
    results_of,
    task_reads,
    task_results,
    value_name,
    values_read,
)
from flowgraph.lowering.project_columns import parts_read_by_place, value_types
from flowgraph.lowering.waits import homes_replaced


def check_nodes_run_once(program: Program) -> Iterator[FlowError]:
    """Yield an error for each node of the graph that the program does not run, or runs more than once."""
    undivided = (
        task for task in program.tasks if isinstance(task, Run) and (task.chunk is None or not task.chunk.index)
    )
    runs = Counter(name for task in undivided for name in task.nodes)
    for node in program.graph.nodes:
        if runs[node.name] != 1:
            yield LawError(f"the program runs {node.name} {runs[node.name]} times, not once", where=str(node.at))


def check_values_are_made_before_reads(program: Program) -> Iterator[FlowError]:
    """Yield an error for each read of a value or a version of weights that does not exist at any place at that point.

    It must be there when the step starts, or be the result of an earlier task. Also an error: a run whose `reads` lack
    a value that one of its nodes reads from outside the run.
    """
    values = {name for name, _ in program.origins} | {home.param for home in program.homes}
    for task in program.tasks:
        for name, place in task_reads(task):
            if name not in values:
                yield LawError.not_there(str(task), name, str(place))
        if isinstance(task, Run):
            inside = set(task.reads)
            for node in (program.nodes[name] for name in task.nodes):
                for name in values_read(node):
                    if name not in inside:
                        what = f"`{_text(task)}` does not read `{name}`, which {node.name} does"
                        yield LawError(what, where=str(node.at))
                inside |= {*results_of(node)}
        values |= {name for name, _ in task_results(task, program.nodes)}


def check_update_order(program: Program) -> Iterator[FlowError]:
    """Yield an error for each task that reads a version of weights where an earlier task has already replaced it.

    Versions are compared at each home: one copy of a model's weights, in a pool under one engine and layout.
    """
    age = dict[str, int]()  # the updates of this step that each version has seen
    for node in program.graph.nodes:
        carried = node.carried()
        if carried is not None and issubclass(carried.type, Model):
            age[results_of(node)[0]] = age.get(value_name(carried), 0) + 1
    replaced = dict[Home, tuple[int, Task]]()
    for task in program.tasks:
        for name, home in task_reads(task):
            if isinstance(home, Home) and home in replaced and age.get(name, 0) < replaced[home][0]:
                writer = _text(replaced[home][1])
                what = f"`{_text(task)}` reads `{name}` on {home}, where `{writer}` replaced it before"
                yield LawError(what, hint="readers of a version run before the update that consumes it")
        versions = {place: name for name, place in task_results(task, program.nodes)}
        for home in homes_replaced(task, program):
            replaced[home] = age.get(versions.get(home, ""), 0), task


def check_home_versions(program: Program) -> Iterator[FlowError]:
    """Yield an error for each task that reads a version of weights which is not yet available at its home.

    A home is one copy of a model's weights, in a pool under one engine and layout. A version is available there if it
    is there when the step starts, or if an earlier task produced or copied it there.
    """
    yield from _missing(program, lambda place: isinstance(place, Home))


def check_reads_are_available(program: Program) -> Iterator[FlowError]:
    """Yield an error for each task that reads a value or weights not yet available where the task runs.

    Each is available if it is there when the step starts, or if an earlier task produced or copied it there.
    """
    yield from _missing(program, lambda place: True)


def _missing(program: Program, judged: Callable[[str | Home], bool]) -> Iterator[FlowError]:
    present: set[tuple[str, str | Home]] = {*program.origins}
    present |= {(home.param, home) for home in program.homes if home.param in program.frozen}
    for task in program.tasks:
        for name, place in task_reads(task):
            if judged(place) and (name, place) not in present:
                yield LawError.not_there(str(task), name, str(place))
        present |= set(task_results(task, program.nodes))


def check_results_reach_host(program: Program) -> Iterator[FlowError]:
    """Yield an error for each result of the flow, models excluded, that is not on the host at the end of the step."""
    present = {value for task in program.tasks for value in task_results(task, program.nodes)}
    for edge in program.graph.outputs:
        if not issubclass(edge.type, Model) and (value_name(edge), HOST) not in present:
            yield LawError.not_there("the end of the step", value_name(edge), HOST)


def check_parts_suffice(program: Program) -> Iterator[FlowError]:
    """Yield an error for each run or transfer whose `parts` of a record lack some that are read.

    A run must include the parts that its nodes read; a transfer must include those that are read at its target.
    """
    types = value_types(program.graph)
    for task in program.tasks:
        if isinstance(task, Run):
            needed = parts_needed([program.nodes[name] for name in task.nodes], types)
            for name, parts in task.parts:
                yield from _lacking(task, name, parts, needed.get(name, ()))
    read = parts_read_by_place(program, program.tasks, types)
    in_batch = parts_read_by_place(program, list(map(_without_chunks, program.tasks)), types)
    for task in program.tasks:
        if isinstance(task, Transfer):
            reads = read if task.chunk is not None else in_batch
            if task.parts != IDS_ONLY or (task.value, task.target) in reads:
                yield from _lacking(task, task.value, task.parts, reads.get((task.value, task.target), ()))


def _without_chunks(task: Task) -> Task:
    """Return a run without the values that it reads in chunks; any other task is returned itself."""
    if not isinstance(task, Run) or not task.streamed:
        return task
    return replace(task, reads=tuple(name for name in task.reads if name not in task.streamed))


def _lacking(task: Task, value: str, parts: Parts, needed: Parts) -> Iterator[FlowError]:
    missing = [part for part in needed if part not in parts] if needed else ["the rest of it"]
    if parts and missing:
        yield LawError(f"`{_text(task)}` leaves out parts of `{value}` that are read: {', '.join(missing)}")


def check_syncs_respect_lag_bounds(program: Program) -> Iterator[FlowError]:
    """Yield an error for each sync (copy of weights) that permits more lag than its readers or the plan allow."""
    bounds = sync_bounds(program)
    for task in (task for task in program.tasks if isinstance(task, Sync)):
        at_most, lag = bounds.get((task.value, task.target), (0, 0))
        if task.at_most > at_most or task.lag > min(lag, at_most):
            what = f"`{_text(task)}` lets the copy be {task.lag} updates old, of at most {task.at_most}"
            yield LawError(what, notes=[f"its readers allow {at_most}, the plan sets {lag}"])


def check_sleeping_homes(program: Program) -> Iterator[FlowError]:
    """Yield an error for each task that uses a sleeping copy of weights, or other copies of a pool while one is awake.

    A copy is a home: a model's weights in a pool, under one engine and layout. Only homes whose settings make them
    sleep are checked: they must be awake for their own tasks, and asleep for those of other homes on their pool. A
    switch must come before the first task that needs a state.
    """
    sleepers, awake = [home for home in program.homes if home.running.sleeps], dict[Home, bool]()
    for task in program.tasks:
        if isinstance(task, Switch):
            awake[task.home] = task.awake
        for home, needed in switches_before(task, sleepers):
            if awake.get(home) is not needed:
                what = f"`{_text(task)}` runs while {home.param} on {home} {'sleeps' if needed else 'is awake'}"
                yield LawError(what, hint="a home that sleeps is awake for its own tasks only")


def _text(task: Task) -> str:
    return " ".join(str(task).split())
