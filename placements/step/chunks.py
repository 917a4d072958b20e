"""How many chunks the groups of a step are handed out in, and when each of them has finished.

A run does so if a role of its plan has `chunks`: `flowgraph.lowering.stream_groups`. Not here: the tasks of such steps
(`tasks`) and their seconds (`step_forecast`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flowgraph.checks.streaming import check_chunks_are_complete, check_chunks_share_a_step
from flowgraph.engines.table import ENGINES
from flowgraph.lowering.program import Run
from placements.step.role_placements import RolePlacement
from placements.step.step_forecast import outline_of, period_of
from placements.workload.planning_problem import PlanningProblem

CANDIDATES = (2, 4, 8, 16, 32)
WORTH = 0.005
"""The share of a step by which more chunks must make it shorter: each is one more task of every reader."""


def with_chunks(problem: PlanningProblem, homes: Sequence[RolePlacement]) -> list[RolePlacement]:
    """Return placements with the number of chunks in which samplers pass on finished groups while they sample others.

    1, 2, 4, 8, 16 and 32 chunks are tried in this order, up to the number of prompts; a number is taken only if it
    makes the step more than 0.5 % shorter than the best one before it. The trials end at the first number that cannot
    be run or whose chunks no node could read early. Roles that cannot pass on groups have 1 chunk, and all roles have
    if the problem is not `streamed`, if the responses of a role go on across syncs (`in_flight`), or if the seconds of
    the step are not known. Chunks that are returned can be run, also of steps that overlap.
    """
    best = [replace(home, chunks=1) for home in homes]
    if not problem.streamed or any(home.running.in_flight for home in homes):
        return best
    best_s = period_of(problem, best)
    for chunks in CANDIDATES:
        candidate = [replace(home, chunks=chunks if _hands_out(problem, home) else 1) for home in homes]
        if chunks > problem.prompts or not any(home.chunks > 1 for home in candidate):
            break
        outline = outline_of(problem, candidate)
        if not any(isinstance(task, Run) and task.streamed for task in outline.tasks):
            break
        if any(
            fault for law in (check_chunks_are_complete, check_chunks_share_a_step) for fault in law(outline.program)
        ):
            break
        step_s = period_of(problem, candidate)
        if best_s is not None and step_s is not None and step_s < best_s * (1 - WORTH):
            best, best_s = candidate, step_s
    return best


def _hands_out(problem: PlanningProblem, home: RolePlacement) -> bool:
    nodes = {node.name: node for node in problem.running.nodes}
    return (
        home.role.use == "sample"
        and ENGINES[home.engine].hands_out
        and any(nodes[name].op.hands_out for name in home.role.nodes if name in nodes)
    )
