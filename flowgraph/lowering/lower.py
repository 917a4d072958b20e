"""Lower a graph under a plan: each change of place becomes a transfer, each change of a model's home a sync.

Before: `policy.sample` runs `policy.generate` on one engine, `policy.train` updates on another, `score` has no role.
After: `sync policy`, `run policy.generate`, `transfer policy.generate -> host`, `run score`, …
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
"""Adds measurements to a graph: of the models, by parameter, that one engine samples and another trains."""


def lower(
    graph: Graph,
    plan: Plan,
    origins: Mapping[str, Home] | None = None,
    *,
    where: str = "plan",
    passes: Sequence[Pass] = LOWERING,
    watch: Watch | None = None,
) -> Program:
    """Return the program of one step of a named graph under a plan.

    `origins` maps model parameters that another program trains to the homes (pool, engine and layout) of their weights.
    `where` is the plan's file, for errors. `passes` run in order after nodes are placed. If one engine samples a model
    and another trains it, `watch` adds measurements to the graph after the plan is checked.

    Raises PlanError if the plan breaks a law of placed graphs (for example, it is for another graph), separates models
    that one node reads, or splits the rows of a node that needs all of them; LawError if the program breaks a law,
    which is an error of a pass.
    """
    check_plan(plan, graph, where)
    mixed = models_on_two_engines(plan)
    if watch is not None and mixed:
        graph = watch(graph, mixed)
        for checked in laws.STAGES[:2] if verifying() else ():
            laws.check(checked, graph, after="watch")
    program, stage = place_nodes(graph, plan, origins or {}, where), STAGES[0]
    if verifying():
        check_after(stage, program)
    for change in passes:
        program, name = change(program), getattr(change, "__name__", "")
        stage = name if name in STAGES else stage  # a user's pass must keep the laws that hold before it
        if verifying():
            check_after(stage, program)
    check_program(program)
    return program


def lower_unchecked(graph: Graph, plan: Plan, passes: Sequence[Pass] = LOWERING) -> Program:
    """Return the same program as `lower`, but check neither the plan nor the program; a search lowers many plans.

    `graph` must already contain any nodes that measure the mismatch of two engines, and train all of its own models.
    """
    return reduce(lambda program, change: change(program), passes, place_nodes(graph, plan, {}, checked=False))


def models_on_two_engines(plan: Plan) -> list[str]:
    """Return the names of the model parameters that one engine trains and another samples, in the order of the plan."""
    engines = {placed.role: placed.engine for placed in plan.placed}
    trained = {role.removesuffix(".train"): engine for role, engine in engines.items() if role.endswith(".train")}
    return [param for param, engine in trained.items() if engines.get(f"{param}.sample", engine) != engine]
