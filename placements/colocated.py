"""The first rule: all roles on one pool, one after another, over all devices of one kind.

The same rule as DeepSpeed-Chat's placement (Yao et al. 2023, arXiv 2308.01320): trained weights sharded, and gathered
whole on each device to sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from flowgraph.cluster import Cluster, DeviceKind, show_bytes
from flowgraph.errors import PlanError, UnknownNameError
from flowgraph.executors.layouts import LAYOUTS
from flowgraph.graph import Graph
from flowgraph.plan import Layout, Placed, Plan, Pool
from flowgraph.roles import Role, roles
from flowgraph.store import structure_hash
from placements.batch_sizes import most_ranks
from placements.decision import Decision
from placements.pools import forecast_plan
from placements.text import show_devices, show_range
from placements.work import Workload

if TYPE_CHECKING:
    from flowgraph.models import ModelShape

POOL = "all"
WHOLE, SHARDED = "local", "fsdp"  # the engines of the rule: whole weights on each device, and weights cut over them
KINDS: tuple[DeviceKind, ...] = ("gpu", "cpu")

Found = tuple[str, int, int]  # a device: its node, its place there, and its memory in bytes


def colocated(
    graph: Graph,
    cluster: Cluster,
    shapes: Mapping[str, ModelShape],
    workload: Workload,
    *,
    engine: str | None = None,
) -> Decision:
    """Place every role of a named graph on all GPUs of a cluster, or on all CPU devices if it has no GPU.

    Trained weights are sharded over the devices, others are whole on each; rows are split over them. On one device all
    roles run in process. A node that reads all rows together leaves only the roomiest device. `shapes` are the sizes of
    each model by the flow's parameter; `engine` runs every role, instead of what the rule chooses.

    Raises PlanError when sizes are not given, no device suits, or `engine` does not run a role there; UnknownNameError
    for an engine that is not there.
    """
    if engine is not None and engine not in LAYOUTS:
        raise UnknownNameError.of("engine", engine, LAYOUTS)
    found, kind = roles(graph), kind_of(graph.name, cluster, engine)
    devices, whole = devices_of(cluster, kind), next(reading_all_rows(graph), None)
    if whole is not None:
        devices = [max(devices, key=lambda device: device[2])]
    told = [*_told_devices(found, graph.name, cluster, kind, devices, whole)]
    most = most_ranks(graph, workload.prompts)
    if len(devices) > most:
        told.append(f"{most} of {len(devices)} devices: more ranks than that would be without a row at times")
    devices = devices[:most]
    plan = Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=cluster,
        pools=(Pool(name=POOL, devices=tuple((node, index) for node, index, _ in devices)),),
        placed=tuple(placed_on(POOL, role, len(devices), engine) for role in found),
    )
    plan = forecast_plan(plan, graph, shapes, workload)
    return Decision(plan, (*told, *told_layouts(plan, engine), *_told_peaks(plan)))


def kind_of(flow: str, cluster: Cluster, engine: str | None) -> DeviceKind:
    """Give the kind of device to use: GPUs if the cluster has any that the engines run on, PlanError if it has none."""
    engines = (WHOLE, SHARDED) if engine is None else (engine,)
    suits = frozenset[str].intersection(*(LAYOUTS[each].devices for each in engines))
    for kind in KINDS:
        if kind in suits and devices_of(cluster, kind):
            return kind
    raise PlanError.no_device(flow, engine or WHOLE, suits)


def devices_of(cluster: Cluster, kind: DeviceKind) -> list[Found]:
    """Give the devices of one kind in the order of the cluster."""
    return [
        (node.name, index, device.memory_bytes)
        for node in cluster.nodes
        for index, device in enumerate(node.devices)
        if device.kind == kind
    ]


def reading_all_rows(graph: Graph) -> Iterator[str]:
    """Name the nodes that run a model and cannot have their rows split."""
    return (node.name for node in graph.nodes if node.model() is not None and not node.op.separable)


def placed_on(pool: str, role: Role, ranks: int, engine: str | None = None) -> Placed:
    """Place a role on all devices of a pool: what is trained on several in shards, all else whole on each.

    `engine` runs it, if one is named.
    """
    chosen = engine or (SHARDED if role.use == "train" and ranks > 1 else WHOLE)
    whole = "none" in LAYOUTS[chosen].sharding
    layout = Layout(data=ranks, sharding="none" if whole else "full")
    return Placed(role=role.name, pool=pool, engine=chosen, layout=layout)


def _told_devices(
    found: Sequence[Role], flow: str, cluster: Cluster, kind: DeviceKind, devices: Sequence[Found], whole: str | None
) -> Iterator[str]:
    """Say which devices were taken and why."""
    places, sizes = [(node, index) for node, index, _ in devices], [size for _, _, size in devices]
    yield f"roles of {flow}: {', '.join(role.name for role in found)}"
    yield from told_kind(cluster, kind)
    if whole is not None and len(devices_of(cluster, kind)) > 1:
        yield f"one device, the roomiest: {whole} reads all rows together, so they cannot be split"
    yield f"pool `{POOL}` for all roles, which take turns: {show_devices(places)}, {show_range(sizes)} each"
    if len(set(sizes)) > 1:
        yield f"devices differ in memory: {show_bytes(min(sizes))}, the smallest, decides what fits"


def told_kind(cluster: Cluster, kind: DeviceKind) -> Iterator[str]:
    """Say which kind of device was taken, where there is another."""
    if len({device.kind for node in cluster.nodes for device in node.devices}) > 1:
        yield f"{kind} devices only: one pool is of one kind, GPUs first"


def told_layouts(plan: Plan, asked: str | None) -> Iterator[str]:
    """Say on which engine and in which layout roles run and why."""
    alike = dict[tuple[str, Layout], list[str]]()
    for placed in plan.placed:
        alike.setdefault((placed.engine, placed.layout), []).append(placed.role)
    for (engine, layout), names in alike.items():
        why = "as asked" if asked is not None else _reason(layout)
        yield f"`{engine}` for {', '.join(names)}: {layout}; {why}"


def _told_peaks(plan: Plan) -> Iterator[str]:
    for peak in (peak for each in plan.forecast for peak in each.peaks):
        yield f"{peak.phase} peaks at {show_bytes(peak.memory_bytes)}, in {peak.role}"


def _reason(layout: Layout) -> str:
    if layout.devices == 1:
        return "one device, nothing to cut"
    if layout.sharding == "full":
        return "weights, gradients, optimizer and rows cut over the devices"
    return "whole weights on each device, rows cut over them"
