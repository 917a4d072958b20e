"""Where roles run: strategies from a graph and a cluster to a plan, and what a plan needs in memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from flowgraph.cluster import Cluster
from flowgraph.errors import UnknownNameError
from flowgraph.graph import Graph
from placements.apart import apart
from placements.colocated import colocated
from placements.decision import Decision, Strategy
from placements.fits import check_fits, overflow
from placements.memory import Need, PhasePeak, forecast, peaks
from placements.named import NAMES, VARIANTS
from placements.pools import forecast_plan
from placements.text import plan_text
from placements.work import Workload

if TYPE_CHECKING:
    from flowgraph.models import ModelShape

__all__ = [
    "STRATEGIES",
    "Decision",
    "Need",
    "PhasePeak",
    "Strategy",
    "Workload",
    "apart",
    "check_fits",
    "colocated",
    "forecast",
    "forecast_plan",
    "overflow",
    "peaks",
    "plan_text",
    "search",
]

STRATEGIES: Mapping[str, Strategy] = {
    **{name: partial(apart, placement=name) for name in (*NAMES, *(each.name for each in VARIANTS))},
    "colocated": colocated,
}


def search(
    name: str,
    graph: Graph,
    cluster: Cluster,
    shapes: Mapping[str, ModelShape],
    workload: Workload,
    *,
    engine: str | None = None,
) -> Decision:
    """Decide by the strategy of this name; raises UnknownNameError if there is none, and what the strategy raises."""
    if name not in STRATEGIES:
        raise UnknownNameError.of("strategy", name, STRATEGIES)
    return STRATEGIES[name](graph, cluster, shapes, workload, engine=engine)
