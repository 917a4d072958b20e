"""Lower a graph under a plan: each change of place becomes a transfer, each change of a model's home a sync.

Before: `policy.generate` in `policy.sample` on one engine, `policy.update` in `policy.train` on another, `score` in no
role. After: `sync policy`, `run policy.generate`, `transfer policy.generate -> host`, `run score`, …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowgraph.check_plan import check_plan
from flowgraph.graph import Graph
from flowgraph.lowering import LOWERING, Pass
from flowgraph.lowering.check_program import STAGES, check_after, check_program
from flowgraph.lowering.place_nodes import place_nodes
from flowgraph.lowering.program import Home, Program
from flowgraph.passes.verify import verifying
from flowgraph.plan import Plan


def lower(
    graph: Graph,
    plan: Plan,
    origins: Mapping[str, Home] | None = None,
    *,
    where: str = "plan",
    passes: Sequence[Pass] = LOWERING,
) -> Program:
    """Give the program of one step of a named graph under a plan; `where` is the plan's file.

    `origins` says where weights live that another program trains. Raises PlanError for a plan that is not for this
    graph, that parts models which one node reads, or that splits the rows of a node that needs them all; and LawError
    for a program that breaks a law, which would be a fault of a pass.
    """
    check_plan(plan, graph, where)
    program, stage = place_nodes(graph, plan, origins or {}, where), STAGES[0]
    if verifying():
        check_after(stage, program)
    for each in passes:
        program, name = each(program), getattr(each, "__name__", "")
        stage = name if name in STAGES else stage  # after a pass of a user's own the same holds as before it
        if verifying():
            check_after(stage, program)
    check_program(program)
    return program
