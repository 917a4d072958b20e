"""The laws of groups that are handed out as they finish: who can hand them out, who reads them, and what joins them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from flowgraph.analysis.placed_graph import PlacedGraph
from flowgraph.engines.table import ENGINES
from flowgraph.errors import FlowError, LawError, PlanError
from flowgraph.lowering.program import Join, Program, Run, StepTask, Transfer, results_given
from flowgraph.lowering.stream_groups import chunk_source, hands_out_groups, waits_for_batch


def check_chunks_can_be_handed_out(placed: PlacedGraph) -> Iterator[FlowError]:
    """Yield an error for each role with several `chunks` that cannot pass groups on while others are still sampled.

    It does not sample, or its engine, or each of its nodes, returns all responses of a step at once.
    """
    for row in placed.plan.placed:
        role, engine = placed.roles.get(row.role), ENGINES.get(row.engine)
        if row.chunks == 1 or role is None or engine is None:
            continue
        nodes = [node for node in placed.graph.all_nodes if node.name in role.nodes]
        if role.use != "sample":
            yield PlanError.no_chunks(placed.where, row.role, row.chunks, "it samples nothing")
        elif not engine.hands_out:
            why = f"the engine `{row.engine}` returns all responses of a step at once"
            engines = ", ".join(name for name, capable in ENGINES.items() if capable.hands_out)
            yield PlanError.no_chunks(placed.where, row.role, row.chunks, why, f"these hand them out: {engines}")
        elif not any(node.op.hands_out for node in nodes):
            why = f"{nodes[0].name} returns all its rows at once"
            hint = "a node of your own can hand out groups with @node(hands_out=True): docs/own.md"
            yield PlanError.no_chunks(placed.where, row.role, row.chunks, why, hint)


def check_chunks_are_read(program: Program) -> Iterator[FlowError]:
    """Yield an error for each sampling role with several `chunks` in the plan, but none in the program.

    The error says why nothing can read its groups before all have finished, or that a pass has not made the chunks.
    """
    for placed in program.plan.placed:
        sources = [run for run in _runs(program) if run.role == placed.role and hands_out_groups(program, run)]
        if placed.chunks == 1 or not sources or any(run.chunk is not None for run in sources):
            continue
        readers = [run for run in _runs(program) if {*run.reads} & {*sources[0].nodes}]
        waiting = {", ".join(run.nodes): waits_for_batch(program, run, sources[0], sources[0].nodes) for run in readers}
        reasons = [f"{names} {why}" for names, why in waiting.items() if why]
        if len(reasons) < len(waiting):
            what = f"the plan lets {placed.role} hand out {placed.chunks} chunks, the program none"
            yield LawError(what, hint="the pass stream_groups makes a task of each chunk")
            continue
        yield PlanError.no_chunks("plan", placed.role, placed.chunks, "nothing can read them", "; ".join(reasons))


def check_chunks_are_complete(program: Program) -> Iterator[FlowError]:
    """Yield an error for each group of nodes that does not run on each chunk once and in order.

    Also an error: nodes that run on chunks although they need the whole batch, and results of theirs whose chunks are
    not joined once, in the order of the rows that were sampled.
    """
    chunks = {placed.role: placed.chunks for placed in program.plan.placed}
    seen = defaultdict[tuple[str, ...], list[Run]](list)
    for run in _runs(program):
        if run.chunk is not None:
            seen[run.nodes].append(run)
    joins = [task for task in program.tasks if isinstance(task, Join)]
    for nodes, runs in seen.items():
        of, text = runs[0].chunk.of if runs[0].chunk is not None else 1, ", ".join(nodes)
        indices = [run.chunk.index for run in runs if run.chunk is not None]
        if indices != list(range(of)) or (runs[0].hands_out and of != chunks[runs[0].role]):
            yield LawError(f"the program runs {text} on the chunks {indices}, not on each of {of} once, in order")
        if runs[0].hands_out:
            continue
        source = chunk_source(program, runs[0])
        why = "has no source" if source is None else waits_for_batch(program, runs[0], source, runs[0].streamed)
        if source is None or why:
            yield LawError(f"the program runs {text} on chunks, but it {why}")
            continue
        for name, _ in results_given(runs[0], program.nodes):
            fits = [join for join in joins if (join.value, join.place, join.chunks) == (name, runs[0].place, of)]
            if len(fits) != 1 or fits[0].like != source.nodes[0]:
                what = f"the {of} chunks of `{name}` are joined {len(fits)} times on {runs[0].place}"
                yield LawError(what, hint=f"join them once, in the order of {source.nodes[0]}")


def check_chunks_share_a_step(program: Program) -> Iterator[FlowError]:
    """Yield an error for each task of a chunk, and each join, whose step differs from that of the sampling run.

    None if steps do not overlap, or if the runs that sample in chunks are not all the same number of steps ahead.
    """
    kernel = program.pipeline.kernel if program.pipeline is not None else ()
    shifts = {turn.ahead for turn in kernel if isinstance(turn.task, Run) and turn.task.hands_out}
    for turn in kernel if len(shifts) == 1 else ():
        if _of_chunk(turn) and turn.ahead not in shifts:
            yield LawError(f"`{' '.join(str(turn.task).split())}` is of step {turn.step}, its chunks of another")


def _of_chunk(turn: StepTask) -> bool:
    return isinstance(turn.task, Join) or (isinstance(turn.task, Run | Transfer) and turn.task.chunk is not None)


def _runs(program: Program) -> Iterator[Run]:
    return (task for task in program.tasks if isinstance(task, Run))
