"""A graph with its plan, as the laws of the placed stage see it, and the check of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from flowgraph.analysis.roles import Role, roles
from flowgraph.cluster.plan import Plan
from flowgraph.language import laws
from flowgraph.language.graph import Graph


@dataclass(frozen=True)
class PlacedGraph:
    """What stands at the placed stage: a named graph and its plan; `where` is the plan's file.

    `experts` says how many a layer of each model has, where that is known: 0 for a model without.
    """

    graph: Graph
    plan: Plan
    where: str = "plan"
    experts: Mapping[str, int] = field(default_factory=dict[str, int])

    @cached_property
    def known(self) -> dict[str, Role]:
        """Give the roles of the graph by name."""
        return {role.name: role for role in roles(self.graph)}


def check_plan(plan: Plan, graph: Graph, where: str = "plan", *, experts: Mapping[str, int] | None = None) -> None:
    """Check a plan against a named graph; `where` is the plan's file, `experts` those of a layer of each model.

    Raises PlanError: the plan is of another structure; a role is missing, unknown or placed twice; a pool is unknown,
    is named twice, holds a device that is not there or that another pool holds; an engine is unknown or does not run
    the role, the layout or the devices; experts are spread over ranks or in parts that there are not; a role lags that
    may not, or that reads what is trained in place.
    """
    laws.check("placed", PlacedGraph(graph, plan, where, experts or {}))
