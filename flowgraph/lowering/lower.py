"""Lower a graph under a plan: each change of place becomes a transfer, each change of a model's home a sync.

Before: `policy.generate` in `policy.sample` on one engine, `policy.update` in `policy.train` on another, `score` in no
role. After: `sync policy`, `run policy.generate`, `transfer policy.generate -> host`, `run score`, …
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

from flowgraph.analysis.placed_graph import check_plan
from flowgraph.cluster.plan import Plan
from flowgraph.language import laws
from flowgraph.language.graph import Graph
from flowgraph.lowering import LOWERING, Pass
from flowgraph.lowering.check_program import STAGES, check_after, check_program
from flowgraph.lowering.place_nodes import place_nodes
from flowgraph.lowering.program import Home, Program
from flowgraph.passes.verify import verifying

Watch = Callable[[Graph, Sequence[str]], Graph]
"""What adds to a graph measurements of the models, named by their parameters, that two engines sample and train."""


def lower(
    graph: Graph,
    plan: Plan,
    origins: Mapping[str, Home] | None = None,
    *,
    where: str = "plan",
    passes: Sequence[Pass] = LOWERING,
    watch: Watch | None = None,
) -> Program:
    """Give the program of one step of a named graph under a plan; `where` is the plan's file.

    `origins` says where weights live that another program trains. With `watch` the program is of the graph that this
    gives for the models which one engine samples and another trains; the plan is for the graph without.
    Raises PlanError for a plan that is not for this graph, that parts models which one node reads, or that splits the
    rows of a node that needs them all; and LawError for a program that breaks a law, which would be a fault of a pass.
    """
    check_plan(plan, graph, where)
    apart = engines_apart(plan)
    if watch is not None and apart:
        graph = _lawful(watch(graph, apart))
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


def lower_unchecked(graph: Graph, plan: Plan, passes: Sequence[Pass] = LOWERING) -> Program:
    """Return what `lower` returns, without any check of the plan or the program: for the many plans of a search.

    The graph is the one that runs, what is measured of engines included.
    """
    return reduce(lambda program, each: each(program), passes, place_nodes(graph, plan, {}, checked=False))


def engines_apart(plan: Plan) -> list[str]:
    """Name the model parameters that one engine samples and another trains, in the order of the plan."""
    engines = {placed.role: placed.engine for placed in plan.placed}
    trained = {role.removesuffix(".train"): engine for role, engine in engines.items() if role.endswith(".train")}
    return [param for param, engine in trained.items() if engines.get(f"{param}.sample", engine) != engine]


def _lawful(graph: Graph) -> Graph:
    """Give a graph that keeps the laws of both its stages, where they are checked between passes."""
    for stage in laws.STAGES[:2] if verifying() else ():
        laws.check(stage, graph, after="watch")
    return graph
