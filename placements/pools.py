"""What the devices of each pool of a plan hold: the process, Ray where a plan needs it, and the peak of each phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flowgraph.check_plan import check_plan
from flowgraph.graph import Graph
from flowgraph.plan import Forecast, Peak, Plan, Pool
from placements.memory import PROCESS_BYTES, Need, by_part, forecast, held_by, peaks
from placements.work import Workload

if TYPE_CHECKING:
    from flowgraph.models import ModelShape

# Ray on one machine, beside the processes that roles run in. Measured with ray 2.60: its servers and agents 490 MiB
# resident, a task of host nodes with torch and graders 450 MiB. Pages that these share count in each, about 250 MiB
# in all; that leaves room for the process that drives the run, 130 MiB.
RAY_BYTES = (490 + 450) * 2**20


def forecast_plan(plan: Plan, graph: Graph, shapes: Mapping[str, ModelShape], workload: Workload) -> Plan:
    """Give a plan of this graph with the memory of each role and the forecast of each pool filled in anew.

    A pool is forecast by its first device, which every role of the pool runs on; none of its devices holds more.
    Raises PlanError when the plan is not for this graph, or a model's sizes are not given.
    """
    check_plan(plan, graph, f"plan of {graph.name}")
    needs = forecast(plan, graph, shapes, workload)
    memory = {each.role: by_part(need for need in needs if need.role == each.role) for each in plan.placed}
    placed = tuple(each.model_copy(update={"memory": memory[each.role]}) for each in plan.placed)
    forecasts = tuple(_forecast(plan, pool, needs_on(plan, pool.name, needs)) for pool in plan.pools)
    return plan.model_copy(update={"placed": placed, "forecast": forecasts})


def needs_on(plan: Plan, pool: str, needs: Sequence[Need]) -> list[Need]:
    """Give the needs of the roles on one pool."""
    there = {each.role for each in plan.placed if each.pool == pool}
    return [need for need in needs if need.role in there]


def process_bytes(plan: Plan, pool: Pool) -> int:
    """Give what the program itself takes on each device of a pool: a process, and a share of Ray if there is a second.

    Ray is shared by the CPU devices of its machine; on a machine of other devices it is in no device's memory.
    """
    if sum(len(each.devices) for each in plan.pools) == 1:
        return PROCESS_BYTES
    cpus = {node.name: sum(device.kind == "cpu" for device in node.devices) for node in plan.cluster.nodes}
    found = [(plan.cluster.device(node, index), cpus[node]) for node, index in pool.devices]
    shares = [-(-RAY_BYTES // sharing) for device, sharing in found if device is not None and device.kind == "cpu"]
    return PROCESS_BYTES + max(shares, default=0)


def _forecast(plan: Plan, pool: Pool, needs: Sequence[Need]) -> Forecast:
    own = process_bytes(plan, pool)
    found = (
        Peak(phase=each.phase, role=each.role, memory_bytes=each.peak_bytes, held=held_by(needs, each, own))
        for each in peaks(needs, own)
    )
    return Forecast(pool=pool.name, process_bytes=own, peaks=tuple(found))
