"""A graph with its plan, which the laws of the placed stage check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from flowgraph.analysis.roles import Role
from flowgraph.analysis.roles import roles as roles_of
from flowgraph.cluster.plan import Plan
from flowgraph.language import laws
from flowgraph.language.graph import Graph


@dataclass(frozen=True)
class PlacedGraph:
    """A named graph and its plan; `where` is the plan's file, for errors.

    `experts` maps model parameters to the number of experts in a layer (0: none); unknown numbers are left out.
    """

    graph: Graph
    plan: Plan
    where: str = "plan"
    experts: Mapping[str, int] = field(default_factory=dict[str, int])

    @cached_property
    def roles(self) -> dict[str, Role]:
        """Return the roles of the graph by name."""
        return {role.name: role for role in roles_of(self.graph)}


def check_plan(plan: Plan, graph: Graph, where: str = "plan", *, experts: Mapping[str, int] | None = None) -> None:
    """Raise PlanError for the first fault of a plan for a named graph; `where` is the plan's file.

    `experts` is that of `PlacedGraph`. Faults: the plan is for another structure; a role is missing, unknown or placed
    twice; a pool is unknown, named twice, too small, or holds a device that does not exist or is in another pool; an
    engine is unknown or does not run the role, its settings, its layout or its devices; experts do not divide over the
    ranks; a role lags or works ahead more than allowed.
    """
    laws.check("placed", PlacedGraph(graph, plan, where, experts or {}))
