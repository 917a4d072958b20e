"""A named placement on devices of any kind: each part of the roles on a pool of its own, with a share of the devices.

For devices whose speed is not known, so nothing is searched: devices are shared out by the work of each part. What is
searched, where speeds are known, is in `finding`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowgraph.cluster import Cluster, DeviceKind, show_bytes
from flowgraph.errors import PlanError, UnknownNameError
from flowgraph.executors.layouts import LAYOUTS
from flowgraph.graph import Graph, Node, carried_from
from flowgraph.lowering.program import read_by
from flowgraph.plan import Plan, Pool
from flowgraph.roles import roles
from flowgraph.store import structure_hash
from flowgraph.values import Model
from placements.batch_sizes import sizes_of
from placements.colocated import (
    Found,
    colocated,
    devices_of,
    kind_of,
    placed_on,
    reading_all_rows,
    told_kind,
    told_layouts,
)
from placements.decision import Decision
from placements.named import Parts, Variant, variant
from placements.pools import forecast_plan
from placements.problem import fused
from placements.step_facts import step_facts
from placements.text import show_devices, show_range
from placements.work import Workload

if TYPE_CHECKING:
    from flowgraph.models import ModelShape


@dataclass(frozen=True)
class Part:
    """Roles that share a pool: their FLOPs in a step, and the most devices that give none of them an idle rank."""

    name: str
    roles: tuple[str, ...]
    flops: int
    most: int


def apart(
    graph: Graph,
    cluster: Cluster,
    shapes: Mapping[str, ModelShape],
    workload: Workload,
    *,
    placement: str,
    engine: str | None = None,
) -> Decision:
    """Place the roles of a named graph as a named placement parts them: `split`, or one variant, `split:nemo-aligner`.

    Each pool has one device at least; each further device goes to the pool with the most FLOPs on each of its own.
    Layouts are those of `colocated`, and so are plans in which all roles share one pool. Roles whose models one node
    reads share a pool, whatever the placement says. `shapes` are the sizes of each model by the flow's parameter;
    `engine` runs every role, instead of what the rule chooses.

    Raises UnknownNameError for a placement or an engine that is not there; PlanError for fewer devices than pools, and
    what `colocated` raises it for.
    """
    chosen = variant(placement)
    if engine is not None and engine not in LAYOUTS:
        raise UnknownNameError.of("engine", engine, LAYOUTS)
    shared, moved = kept_together(graph, chosen.parts_of(graph))
    told = [f"placement {chosen.name}: {chosen.about}", *moved]
    if len(shared) == 1:
        alone = colocated(graph, cluster, shapes, workload, engine=engine)
        return Decision(alone.plan, (*told, *alone.trace))
    kind = kind_of(graph.name, cluster, engine)
    devices, parts = devices_of(cluster, kind), parts_of(graph, shapes, workload, shared)
    if len(devices) < len(parts):
        raise _too_few(graph.name, chosen, parts, len(devices), kind)
    shares = shared_out(devices, parts)
    plan = forecast_plan(_plan(graph, cluster, parts, shares, engine), graph, shapes, workload)
    told += [*told_kind(cluster, kind), *_told_shares(parts, shares, len(devices)), *told_layouts(plan, engine)]
    return Decision(plan, tuple(told))


def _too_few(flow: str, chosen: Variant, parts: Sequence[Part], there: int, kind: DeviceKind) -> PlanError:
    counted = f"{there} {kind} device{'' if there == 1 else 's'}"
    what = f"{chosen.name} puts {flow} on {len(parts)} pools, which take a device each; the cluster has {counted}"
    notes = [f"{part.name}: {', '.join(part.roles)}" for part in parts]
    hint = f"--cluster {len(parts)}x{kind}" if kind == "cpu" else f"{len(parts)} {kind} devices at least"
    return PlanError(what, where=f"plan of {flow}", notes=notes, hint=hint)


def _plan(
    graph: Graph, cluster: Cluster, parts: Sequence[Part], shares: Sequence[Sequence[Found]], engine: str | None
) -> Plan:
    at = {name: (part.name, len(share)) for part, share in zip(parts, shares, strict=True) for name in part.roles}
    pools = (
        Pool(name=part.name, devices=tuple((node, index) for node, index, _ in share))
        for part, share in zip(parts, shares, strict=True)
    )
    return Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=cluster,
        pools=tuple(pools),
        placed=tuple(placed_on(at[role.name][0], role, at[role.name][1], engine) for role in roles(graph)),
    )


# ------------------------------------------------------------------------------------------- what shares a pool


def kept_together(graph: Graph, parts: Parts) -> tuple[Parts, tuple[str, ...]]:
    """Let roles share a pool whose models one node reads; give the parts, and say which roles had been apart.

    They share that of the first of them, in the order of the flow's parameters.
    """
    names, told = [role.name for role in roles(graph)], list[str]()
    at = {name: place for place, part in enumerate(parts) for name in part}
    read = {node: frozenset(map(names.index, together)) for node, together in _read_together(graph)}
    for block in fused(read.values(), len(names)):
        first, *others = sorted(block)
        for role in [role for role in others if at[names[role]] != at[names[first]]]:
            at[names[role]] = at[names[first]]
            node = next(node for node, block in read.items() if role in block)
            told.append(f"{names[role]} shares the pool of {names[first]}: {node} reads its model beside another")
    shared = ([name for name in names if at[name] == place] for place in range(len(parts)))
    return tuple(tuple(part) for part in shared if part), tuple(told)


def _read_together(graph: Graph) -> Iterator[tuple[str, set[str]]]:
    """Give each node that reads models in several roles, with these."""
    role_of = {(role.param, name): role.name for role in roles(graph) for name in role.nodes}
    for node in graph.nodes:
        read = set(_roles_read(node, role_of))
        if len(read) > 1:
            yield node.name, read


def _roles_read(node: Node, role_of: Mapping[tuple[str, str], str]) -> Iterator[str]:
    for edge, reader in read_by(node):
        param = carried_from(edge) if issubclass(edge.type, Model) else None
        if param is not None:
            yield role_of[param.name, reader]


# ------------------------------------------------------------------------------------------- who gets which devices


def parts_of(graph: Graph, shapes: Mapping[str, ModelShape], workload: Workload, shared: Parts) -> list[Part]:
    """Say of roles that share a pool how much they do, and over how many ranks their rows can be split."""
    facts, sizes = step_facts(graph, shapes, workload).nodes, sizes_of(graph, workload.prompts)
    whole = set(reading_all_rows(graph))
    kept = [drawn.kept.value for drawn in sizes.drawn if drawn.kept is not None]
    nodes = {role.name: role.nodes for role in roles(graph)}
    found = list[Part]()
    for place, names in enumerate(shared):
        flops = sum(each.flops or 0 for each in facts if each.role in names)
        cuts = [cut.least for cut in sizes.cuts if cut.role in names]
        most = max(1, min([workload.prompts, *kept, *cuts]))
        alone = any(name in whole for role in names for name in nodes[role])
        found.append(Part(f"pool{place}", names, flops, 1 if alone else most))
    return found


def shared_out(devices: Sequence[Found], parts: Sequence[Part]) -> list[Sequence[Found]]:
    """Give each part its devices, side by side in the cluster's order; some are left where more would be idle.

    The next device goes where there is most work on each that is there already, so that the busiest has the least
    that it can have.
    """
    counts = [1] * len(parts)
    for _ in range(len(devices) - len(parts)):
        open_to = [place for place, part in enumerate(parts) if counts[place] < part.most]
        if open_to:
            counts[max(open_to, key=lambda place: parts[place].flops / counts[place])] += 1
    ends = [sum(counts[: place + 1]) for place in range(len(counts))]
    return [devices[end - count : end] for count, end in zip(counts, ends, strict=True)]


def _told_shares(parts: Sequence[Part], shares: Sequence[Sequence[Found]], there: int) -> Iterator[str]:
    """Say which devices went to which part and why, and which to none."""
    total = sum(part.flops for part in parts)
    for part, share in zip(parts, shares, strict=True):
        sizes = [size for _, _, size in share]
        places = show_devices([(node, index) for node, index, _ in share])
        work = f"{part.flops / total:.0%} of the FLOPs of a step" if total else "work that is not known"
        yield f"{part.name} for {', '.join(part.roles)}: {places}, {show_range(sizes)} each; {work}"
        if len(set(sizes)) > 1:
            yield f"devices of {part.name} differ in memory: {show_bytes(min(sizes))}, the smallest, decides what fits"
    used = sum(map(len, shares))
    if used < there:
        yield f"{used} of {there} devices: more ranks of any pool would be without a row at times"
