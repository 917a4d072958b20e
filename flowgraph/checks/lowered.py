"""The laws of the lowered stage, as small functions; from which pass on each holds is in the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from flowgraph.errors import FlowError, LawError
from flowgraph.language.values import Model
from flowgraph.lowering.insert_switches import wanted_by
from flowgraph.lowering.insert_syncs import sync_bounds
from flowgraph.lowering.parts import parts_needed
from flowgraph.lowering.program import (
    HOST,
    Home,
    Program,
    Run,
    Switch,
    Sync,
    Task,
    Transfer,
    value_name,
    values_read,
    what_is_given,
    what_is_read,
)
from flowgraph.lowering.project_columns import parts_at, value_types
from flowgraph.lowering.waits import moved_on


def every_node_runs_once(program: Program) -> Iterator[FlowError]:
    """Find a node that is not run, or run more than once."""
    runs = Counter(each for task in program.tasks if isinstance(task, Run) for each in task.nodes)
    for node in program.graph.nodes:
        if runs[node.name] != 1:
            yield LawError(f"the program runs {node.name} {runs[node.name]} times, not once", where=str(node.at))


def what_is_read_is_made(program: Program) -> Iterator[FlowError]:
    """Find a run that reads what nothing before it makes, wherever that is, or that leaves out what its nodes read."""
    made = {name for name, _ in program.origins} | {home.param for home in program.homes}
    for task in program.tasks:
        for name, place in what_is_read(task):
            if name not in made:
                yield LawError.not_there(str(task), name, str(place))
        if isinstance(task, Run):
            yield from _left_out(program, task)
        made |= {name for name, _ in what_is_given(task, program.nodes)}


def _left_out(program: Program, task: Run) -> Iterator[FlowError]:
    there = set(task.reads)
    for node in (program.nodes[name] for name in task.nodes):
        for name in values_read(node):
            if name not in there:
                yield LawError(f"`{_said(task)}` does not read `{name}`, which {node.name} does", where=str(node.at))
        there |= {name for name, _ in what_is_given(Run((node.name,), task.place, ()), program.nodes)}


def readers_run_first(program: Program) -> Iterator[FlowError]:
    """Find what reads a version of weights in a home where a newer one has taken its place (law 1)."""
    age, replaced = _ages(program), dict[Home, tuple[int, Task]]()
    for task in program.tasks:
        for name, home in what_is_read(task):
            if isinstance(home, Home) and home in replaced and age.get(name, 0) < replaced[home][0]:
                what = (
                    f"`{_said(task)}` reads `{name}` on {home}, where `{_said(replaced[home][1])}` replaced it before"
                )
                yield LawError(what, hint="readers of a version run before what consumes it")
        given = {place: name for name, place in what_is_given(task, program.nodes)}
        for home in moved_on(task, program):
            replaced[home] = age.get(given.get(home, ""), 0), task


def _ages(program: Program) -> dict[str, int]:
    """Count the updates of this step that each version of weights has seen."""
    found = dict[str, int]()
    for node in program.graph.nodes:
        carried = node.carried()
        if carried is not None and issubclass(carried.type, Model):
            made = f"{node.name}.0" if len(node.returns) > 1 else node.name
            found[made] = found.get(value_name(carried), 0) + 1
    return found


def weights_are_there(program: Program) -> Iterator[FlowError]:
    """Find a task that reads a version of weights in a home which neither made it nor got it."""
    yield from _not_there(program, Home)


def reads_are_there(program: Program) -> Iterator[FlowError]:
    """Find a task that reads what no task has brought to its place: of a home or of a store, the first."""
    yield from _not_there(program, Home | str)


def _not_there(program: Program, kind: object) -> Iterator[FlowError]:
    there: set[tuple[str, str | Home]] = {*program.origins}
    there |= {(home.param, home) for home in program.homes if home.param in program.frozen}
    for task in program.tasks:
        for name, place in what_is_read(task):
            if isinstance(place, kind) and (name, place) not in there:  # type: ignore[arg-type]
                yield LawError.not_there(str(task), name, str(place))
        there |= set(what_is_given(task, program.nodes))


def results_reach_the_host(program: Program) -> Iterator[FlowError]:
    """Find a result of the flow that is not on the host at the end of the step."""
    there = {each for task in program.tasks for each in what_is_given(task, program.nodes)}
    for edge in program.graph.outputs:
        if not issubclass(edge.type, Model) and (value_name(edge), HOST) not in there:
            yield LawError.not_there("the end of the step", value_name(edge), HOST)


def parts_cover_reads(program: Program) -> Iterator[FlowError]:
    """Find a run that reads less of a record than its nodes do, and a transfer that brings less than is read there."""
    types = value_types(program.graph)
    for task in program.tasks:
        if isinstance(task, Run):
            needed = parts_needed([program.nodes[name] for name in task.nodes], types)
            for name, parts in task.parts:
                if lacking := _lacking(parts, needed.get(name, ())):
                    yield _lacks(task, name, lacking)
    there = parts_at(program, program.tasks, types)
    for task in program.tasks:
        if isinstance(task, Transfer) and (lacking := _lacking(task.parts, there.get((task.value, task.target), ()))):
            yield _lacks(task, task.value, lacking)


def _lacking(brought: tuple[str, ...], needed: tuple[str, ...]) -> list[str]:
    """Name the needed parts that are not brought; either is none for the whole."""
    if not brought:
        return []
    return [part for part in needed if part not in brought] if needed else ["the rest of it"]


def _lacks(task: Task, value: str, parts: list[str]) -> LawError:
    return LawError(f"`{_said(task)}` leaves out of `{value}` what is read: {', '.join(parts)}")


def syncs_keep_the_bound(program: Program) -> Iterator[FlowError]:
    """Find a sync that lets a copy lag further than a reader of it allows, or than the plan says."""
    bounds = sync_bounds(program)
    for task in program.tasks:
        at_most, lag = bounds.get((task.value, task.target), (0, 0)) if isinstance(task, Sync) else (0, 0)
        if isinstance(task, Sync) and (task.at_most > at_most or task.lag > min(lag, at_most)):
            what = f"`{_said(task)}` lets the copy be {task.lag} updates old, of at most {task.at_most}"
            yield LawError(what, notes=[f"its readers allow {at_most}, the plan says {lag}"])


def sleepers_step_aside(program: Program) -> Iterator[FlowError]:
    """Find a task whose home is asleep, and one that works while a home of its pool that should sleep is awake."""
    sleepers, awake = [home for home in program.homes if home.running.sleeps], dict[Home, bool]()
    for task in program.tasks:
        if isinstance(task, Switch):
            awake[task.home] = task.awake
        for home, wanted in wanted_by(task, sleepers):
            if awake.get(home) is not wanted:
                what = f"`{_said(task)}` comes where {home.param} on {home} {'sleeps' if wanted else 'is awake'}"
                yield LawError(what, hint="a home that sleeps is awake for its own tasks only")


def _said(task: Task) -> str:
    return " ".join(str(task).split())
