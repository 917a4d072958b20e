"""Stream groups: nodes whose rows do not depend on other groups run on finished groups while others are being sampled.

Before: run policy.generate on apart, transfer policy.generate apart -> host, run score on host
After, with `policy.sample` in two chunks:
    run policy.generate 1/2, transfer policy.generate 1/2, run score 1/2
    run policy.generate 2/2, transfer policy.generate 2/2, run score 2/2
    transfer policy.generate (ids of rows), join score
A chunk holds the groups that finished next, as many as any other chunk. Rows are put back by their ids, so the
readers of a joined value get the batch as it would be without chunks. Runs in the pool that samples, and those that
need all rows, wait for the batch.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace
from functools import lru_cache

from flowgraph.language.rows import leaf_paths
from flowgraph.language.values import Kind, Model, Value
from flowgraph.lowering.chunk import Chunk
from flowgraph.lowering.pipeline_steps import pipeline_steps
from flowgraph.lowering.program import (
    EARLY,
    HOST,
    IDS_ONLY,
    Join,
    Program,
    Run,
    Task,
    Transfer,
    results_given,
    value_name,
)
from flowgraph.lowering.project_columns import value_types
from flowgraph.lowering.waits import waits_for


def stream_groups(program: Program) -> Program:
    """Return the program in which other runs read the groups of a role that samples in `chunks`, as they finish.

    For each chunk there is a run that samples it, with the runs that can read it early and their transfers; joins put
    the results together for the other tasks. The program itself is returned if the plan has no role with more than 1
    chunk, or if no run can read its groups early.
    """
    chunks = {placed.role: placed.chunks for placed in program.plan.placed if placed.chunks > 1}
    for source in [task for task in program.tasks if isinstance(task, Run) and task.role in chunks]:
        if hands_out_groups(program, source) and any(
            isinstance(task, Run) for task in chunk_tasks(program, source).values()
        ):
            program = replace(program, tasks=tuple(_in_chunks(program, source, chunks[source.role])))
    return program


def hands_out_groups(program: Program, run: Run) -> bool:
    """Return whether a run is one node that can pass on finished groups while it samples others."""
    return len(run.nodes) == 1 and program.nodes[run.nodes[0]].op.hands_out


def waits_for_batch(program: Program, run: Run, source: Run, streamed: Container[str]) -> str:
    """Return why a run cannot read finished groups of what `source` samples, as text; "" if it can.

    `streamed` are the values that come in chunks.
    """
    types, ahead = value_types(program.graph), {placed.role: placed.ahead for placed in program.plan.placed}
    batch = [name for name in run.reads if has_rows(types[name]) and name not in streamed]
    if batch:
        return f"reads {batch[0]}, which comes for the whole batch"
    if run.place == source.place:
        return f"runs in {run.place}, which samples"
    for node in (program.nodes[name] for name in run.nodes):
        if node.op.kind not in EARLY:
            return f"{node.name} is arithmetic on the batch"
        if not node.op.separable:
            return f"{node.name} needs the rows of all groups"
        if node.op.rows != "kept" or node.op.regroups or node.op.carries or node.regions:
            return f"{node.name} does not make one result for each row"
    if not all(has_rows(kind) and not issubclass(kind, Model) for _, kind in results_given(run, program.nodes)):
        return "makes a result without rows"
    if run.home is not None and run.home.running.sleeps:
        return f"{run.home} sleeps while others use its devices"
    if ahead.get(run.role, ahead[source.role]) != ahead[source.role]:
        return f"{run.role} works in another step than {source.role}"
    return ""


def chunk_source(program: Program, run: Run) -> Run | None:
    """Return the run that samples the groups whose chunk `run` reads, directly or through other runs.

    `run` must have a chunk; if it samples itself, it is returned. None if no run of the program samples these groups.
    """
    makers = {
        name: task
        for task in program.tasks
        if isinstance(task, Run) and task.chunk is not None
        for name, _ in results_given(task, program.nodes)
    }
    for _ in range(len(makers) + 1):
        if run.hands_out or run.streamed[0] not in makers:
            break
        run = makers[run.streamed[0]]
    return run if run.hands_out else None


def has_rows(kind: type[Value]) -> bool:
    """Return whether values of a type have rows, as responses do and scalars do not."""
    return any(part.kind in (Kind.ROW, Kind.TOKEN) for _, part in leaf_paths(kind))


@lru_cache(maxsize=16)
def in_one_batch(program: Program) -> Program:
    """Return the program without chunks: sampling returns all rows at once, as when recorded rows are read.

    Its pipeline, if it has one, is computed again from the plan. A program without joins is returned itself.
    """
    if not any(isinstance(task, Join) for task in program.tasks):
        return program
    tasks = list[Task]()
    for task in program.tasks:
        chunk = task.chunk if isinstance(task, Run | Transfer) else None
        if isinstance(task, Run) and chunk is not None and chunk.is_last:
            tasks.append(replace(task, chunk=None, streamed=()))
        elif isinstance(task, Transfer) and chunk is not None and chunk.is_last:
            tasks.append(replace(task, chunk=None))
        elif chunk is None and not (isinstance(task, Join) or (isinstance(task, Transfer) and task.parts == IDS_ONLY)):
            tasks.append(task)
    batch = replace(program, tasks=tuple(tasks))
    return batch if program.pipeline is None else pipeline_steps(batch)


def chunk_tasks(program: Program, source: Run) -> dict[int, Run | Transfer]:
    """Return the runs that can read finished groups of what `source` samples, and the transfers that bring them.

    They are keyed by their places in the program, in its order, and have no chunk yet.
    """
    waits, first = waits_for(program), program.tasks.index(source)
    after, streamed, readers = {first}, {*source.nodes}, dict[int, Run | Transfer]()
    for place, task in enumerate(program.tasks):
        waited = waits[place] & after
        if not waited:
            continue
        after.add(place)
        if not waited <= {first, *readers}:
            continue
        if isinstance(task, Transfer) and task.value in streamed:
            readers[place] = task
        elif isinstance(task, Run) and not waits_for_batch(program, task, source, streamed):
            readers[place] = replace(task, streamed=tuple(name for name in task.reads if name in streamed))
            streamed |= {name for name, _ in results_given(task, program.nodes)}
    read = {(name, task.place) for task in readers.values() if isinstance(task, Run) for name in task.streamed}
    return {
        place: task for place, task in readers.items() if isinstance(task, Run) or (task.value, task.target) in read
    }


def _in_chunks(program: Program, source: Run, chunks: int) -> Iterator[Task]:
    """Yield the tasks of a program with those of each chunk of `source`, and the joins of what these make."""
    tasks, first, (like,) = program.tasks, program.tasks.index(source), source.nodes
    waits, after, streamed = waits_for(program), {first}, chunk_tasks(program, source)
    for place in range(first + 1, len(tasks)):
        after |= {place} if waits[place] & after else set()
    runs = {place: task for place, task in streamed.items() if isinstance(task, Run)}
    batch = [task for place in after - {first, *runs} if isinstance(task := tasks[place], Run)]
    read = {(name, task.place) for task in batch for name in task.reads}
    read |= {(value_name(edge), HOST) for edge in program.graph.outputs}
    order = [
        Transfer(value=like, source=source.place, target=place, parts=IDS_ONLY)
        for place in sorted({task.place for task in runs.values()})
        if (like, place) not in read
    ]
    source = replace(source, sends=(*source.sends, *(((like, IDS_ONLY),) if order else ())))
    yield from (task for place, task in enumerate(tasks) if place not in after)
    for index in range(chunks):
        yield from (replace(task, chunk=Chunk(index=index, of=chunks)) for task in (source, *streamed.values()))
    rest = [tasks[place] for place in sorted(after - {first})]
    moves = [task for task in rest if isinstance(task, Transfer) and (task.value, task.target) in read]
    yield from (*order, *(task for task in moves if task.value == like))
    for place in sorted(after - {first}):
        if place in runs:
            names = (name for name, _ in results_given(runs[place], program.nodes))
            yield from (Join(value=name, place=runs[place].place, chunks=chunks, like=like) for name in names)
        elif not isinstance(task := tasks[place], Transfer) or (task in moves and task.value != like):
            yield task
