"""The first rule: all roles on one pool, one after another.

The same rule as DeepSpeed-Chat's placement; here the pool is one device, the most that the local engine runs on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flowgraph.cluster import Cluster, show_bytes
from flowgraph.errors import PlanError, UnknownNameError
from flowgraph.executors.layouts import LAYOUTS
from flowgraph.graph import Graph
from flowgraph.plan import Forecast, Layout, Peak, Placed, Plan, Pool
from flowgraph.roles import roles
from flowgraph.store import structure_hash
from placements.decision import Decision
from placements.memory import PROCESS_BYTES, PhasePeak, by_part, forecast, peaks
from placements.work import Workload

if TYPE_CHECKING:
    from flowgraph.models import ModelShape

POOL = "all"


def colocated(
    graph: Graph, cluster: Cluster, shapes: Mapping[str, ModelShape], workload: Workload, *, engine: str = "local"
) -> Decision:
    """Place every role of a named graph on the roomiest device that the engine runs on.

    `shapes` are the sizes of each model by the flow's parameter. Raises PlanError when sizes are not given or no device
    suits, UnknownNameError for an engine that is not there.
    """
    if engine not in LAYOUTS:
        raise UnknownNameError.of("engine", engine, LAYOUTS)
    found, needs = roles(graph), forecast(graph, shapes, workload)
    node, index, memory_bytes = _roomiest(graph.name, cluster, engine)
    placed = [
        Placed(role=role.name, pool=POOL, engine=engine, memory=by_part([n for n in needs if n.role == role.name]))
        for role in found
    ]
    told = peaks(needs)
    plan = Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=cluster,
        pools=(Pool(name=POOL, devices=((node, index),)),),
        placed=tuple(placed),
        forecast=(Forecast(pool=POOL, process_bytes=PROCESS_BYTES, peaks=tuple(_peak(each) for each in told)),),
    )
    trace = (
        f"roles of {graph.name}: {', '.join(role.name for role in found)}",
        f"pool `{POOL}` for all: {node}/{index}, the roomiest device for `{engine}`, {show_bytes(memory_bytes)}",
        f"layout {Layout()}, on one device",
        *_told(told),
    )
    return Decision(plan, trace)


def _roomiest(flow: str, cluster: Cluster, engine: str) -> tuple[str, int, int]:
    """Give (node, index, memory in bytes) of the device with the most memory, the first of equals."""
    kinds = LAYOUTS[engine].devices
    there = [
        (node.name, index, device.memory_bytes)
        for node in cluster.nodes
        for index, device in enumerate(node.devices)
        if device.kind in kinds
    ]
    if not there:
        raise PlanError.no_device(flow, engine, kinds)
    return max(there, key=lambda device: device[2])


def _peak(peak: PhasePeak) -> Peak:
    return Peak(phase=peak.phase, role=peak.role, memory_bytes=peak.peak_bytes)


def _told(found: Sequence[PhasePeak]) -> tuple[str, ...]:
    return tuple(f"{each.phase} peaks at {show_bytes(each.peak_bytes)}, in {each.role}" for each in found)
