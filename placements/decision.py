"""What every search gives back, and what every search is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from flowgraph.cluster import Cluster
from flowgraph.graph import Graph
from flowgraph.plan import Plan
from placements.work import Workload

if TYPE_CHECKING:
    from flowgraph.models import ModelShape


@dataclass(frozen=True)
class Decision:
    """A plan, and the decisions that led to it, one a line."""

    plan: Plan
    trace: tuple[str, ...]


class Strategy(Protocol):
    """A pure function from a named graph, a cluster, model sizes and a workload to a decision."""

    def __call__(
        self,
        graph: Graph,
        cluster: Cluster,
        shapes: Mapping[str, ModelShape],
        workload: Workload,
        *,
        engine: str | None = ...,
    ) -> Decision:
        """Decide where each role runs, `engine` running all if named. Whether that fits is for `check_fits` to say."""
        ...
