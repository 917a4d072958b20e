"""The laws of the lowered stage; the table says after which pass each of them holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from flowgraph.errors import FlowError, LawError
from flowgraph.language.values import Model
from flowgraph.lowering.insert_switches import switches_before
from flowgraph.lowering.insert_syncs import sync_bounds
from flowgraph.lowering.parts import parts_needed
from flowgraph.lowering.program import (
    HOST,
    Home,
    Parts,
    Program,
    Run,
    Switch,
    Sync,
    Task,
    Transfer,
    results_of,
    value_name,
    values_read,
    what_is_given,
    what_is_read,
)
from flowgraph.lowering.project_columns import parts_at, value_types
from flowgraph.lowering.waits import moved_on


def every_node_runs_once(program: Program) -> Iterator[FlowError]:
    """Find a node that is not run, or run more than once."""
    runs = Counter(name for task in program.tasks if isinstance(task, Run) for name in task.nodes)
    for node in program.graph.nodes:
        if runs[node.name] != 1:
            yield LawError(f"the program runs {node.name} {runs[node.name]} times, not once", where=str(node.at))


def what_is_read_is_made(program: Program) -> Iterator[FlowError]:
    """Find a run that reads a value which no earlier task makes at any place, or that lacks a read of its nodes."""
    values = {name for name, _ in program.origins} | {home.param for home in program.homes}
    for task in program.tasks:
        for name, place in what_is_read(task):
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
        values |= {name for name, _ in what_is_given(task, program.nodes)}


def readers_run_first(program: Program) -> Iterator[FlowError]:
    """Find a task that reads a version of weights in a home where a newer version has replaced it (law 1)."""
    age = dict[str, int]()  # the updates of this step that each version has seen
    for node in program.graph.nodes:
        carried = node.carried()
        if carried is not None and issubclass(carried.type, Model):
            age[results_of(node)[0]] = age.get(value_name(carried), 0) + 1
    replaced = dict[Home, tuple[int, Task]]()
    for task in program.tasks:
        for name, home in what_is_read(task):
            if isinstance(home, Home) and home in replaced and age.get(name, 0) < replaced[home][0]:
                writer = _text(replaced[home][1])
                what = f"`{_text(task)}` reads `{name}` on {home}, where `{writer}` replaced it before"
                yield LawError(what, hint="readers of a version run before the update that consumes it")
        versions = {place: name for name, place in what_is_given(task, program.nodes)}
        for home in moved_on(task, program):
            replaced[home] = age.get(versions.get(home, ""), 0), task


def weights_are_there(program: Program) -> Iterator[FlowError]:
    """Find a task that reads a version of weights in a home which neither made nor received it."""
    yield from _missing(program, lambda place: isinstance(place, Home))


def reads_are_there(program: Program) -> Iterator[FlowError]:
    """Find a task that reads a value or a version of weights which no task has brought to its place."""
    yield from _missing(program, lambda place: True)


def _missing(program: Program, judged: Callable[[str | Home], bool]) -> Iterator[FlowError]:
    present: set[tuple[str, str | Home]] = {*program.origins}
    present |= {(home.param, home) for home in program.homes if home.param in program.frozen}
    for task in program.tasks:
        for name, place in what_is_read(task):
            if judged(place) and (name, place) not in present:
                yield LawError.not_there(str(task), name, str(place))
        present |= set(what_is_given(task, program.nodes))


def results_reach_the_host(program: Program) -> Iterator[FlowError]:
    """Find a result of the flow that is not on the host at the end of the step."""
    present = {value for task in program.tasks for value in what_is_given(task, program.nodes)}
    for edge in program.graph.outputs:
        if not issubclass(edge.type, Model) and (value_name(edge), HOST) not in present:
            yield LawError.not_there("the end of the step", value_name(edge), HOST)


def parts_cover_reads(program: Program) -> Iterator[FlowError]:
    """Find a run that reads less of a record than its nodes, and a transfer that brings less than its readers need."""
    types = value_types(program.graph)
    for task in program.tasks:
        if isinstance(task, Run):
            needed = parts_needed([program.nodes[name] for name in task.nodes], types)
            for name, parts in task.parts:
                yield from _lacking(task, name, parts, needed.get(name, ()))
    read = parts_at(program, program.tasks, types)
    for task in program.tasks:
        if isinstance(task, Transfer):
            yield from _lacking(task, task.value, task.parts, read.get((task.value, task.target), ()))


def _lacking(task: Task, value: str, parts: Parts, needed: Parts) -> Iterator[FlowError]:
    """Find needed parts of a value that a task leaves out; no parts stand for the whole value."""
    missing = [part for part in needed if part not in parts] if needed else ["the rest of it"]
    if parts and missing:
        yield LawError(f"`{_text(task)}` leaves out parts of `{value}` that are read: {', '.join(missing)}")


def syncs_keep_the_bound(program: Program) -> Iterator[FlowError]:
    """Find a sync that lets a copy lag further than one of its readers, or the plan, allows."""
    bounds = sync_bounds(program)
    for task in (task for task in program.tasks if isinstance(task, Sync)):
        at_most, lag = bounds.get((task.value, task.target), (0, 0))
        if task.at_most > at_most or task.lag > min(lag, at_most):
            what = f"`{_text(task)}` lets the copy be {task.lag} updates old, of at most {task.at_most}"
            yield LawError(what, notes=[f"its readers allow {at_most}, the plan sets {lag}"])


def sleepers_step_aside(program: Program) -> Iterator[FlowError]:
    """Find a task whose home is asleep, and a task that runs while another home of its pool should sleep."""
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
