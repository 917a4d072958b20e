"""Start a plan on Ray: admit it, reserve its devices, start an actor on each, let ranks meet, and load the weights."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from flowgraph.errors import ResourceError
from flowgraph.executors.layouts import LAYOUTS
from flowgraph.graph import Graph
from flowgraph.lowering.program import Home, Program
from flowgraph.plan import Pool
from flowgraph.runtime.device import Device, Flows, Seat, warm_up
from flowgraph.runtime.hosting import ModelSetup
from flowgraph.runtime.ray_places import RayPlaces, host_task
from flowgraph.runtime.ray_session import Session, machines
from flowgraph.runtime.watch import Member, Pending, Watch

START_LIMIT_S = 1800.0  # for all processes to start and load: a large model may come from a slow disk
RESERVE_LIMIT_S = 60.0
RANKS_LIMIT_S = 1800.0  # how long one rank waits for the others before it gives up by itself


def start(program: Program, graphs: Sequence[Graph], flows: Flows, models: ModelSetup, session: Session) -> RayPlaces:
    """Give the places of a program's plan, ready to run any of `graphs`, which `flows` has as text in the same order.

    Raises ResourceError for what the machines lack, before anything is started, and what loading raises. Whatever was
    started by then is ended.
    """
    there = machines(program.plan)
    scratch = Path(tempfile.mkdtemp(prefix="flowgraph-"))
    places = RayPlaces(session, flows, graphs, {}, [], scratch)
    try:
        for pool in program.plan.pools:
            places.pools[pool.name] = _members(program, pool, places, there)
        _open(program, places, models)
    except BaseException:
        places.close()
        raise
    return places


def _members(program: Program, pool: Pool, places: RayPlaces, there: Mapping[str, Mapping[str, Any]]) -> list[Member]:
    """Start an actor on each device of a pool, in the plan's order."""
    import ray

    homes = tuple(home for home in program.homes if home.pool == pool.name)
    members = list[Member]()
    actor: Any = cast("Any", ray.remote)(concurrency_groups={"beat": 1})(Device)
    bundles = dict[str, Iterator[Any]]()
    for node in dict.fromkeys(name for name, _ in pool.devices):
        bundles[node] = _reserve(program, pool, node, there[node], places.groups)
    for rank, (node, index) in enumerate(pool.devices):
        device = program.plan.cluster.device(node, index)
        kind = device.kind if device is not None else "cpu"
        seat = Seat(pool.name, rank, len(pool.devices), kind, homes, program.trained)
        chosen = actor.options(num_cpus=1, num_gpus=int(kind == "gpu"), scheduling_strategy=next(bundles[node]))
        members.append(Member(seat, chosen.remote(places.flows_ref(), seat), 0))
    return members


def _reserve(program: Program, pool: Pool, node: str, machine: Mapping[str, Any], groups: list[Any]) -> Iterator[Any]:
    """Reserve a pool's devices on one machine as a placement group; give a scheduling strategy for each in order."""
    import ray
    from ray.exceptions import GetTimeoutError
    from ray.util import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    devices = [program.plan.cluster.device(name, index) for name, index in pool.devices if name == node]
    here = f"node:{machine['NodeManagerAddress']}"
    bundles = [{"CPU": 1.0, here: 0.001, **({"GPU": 1.0} if each and each.kind == "gpu" else {})} for each in devices]
    group = placement_group(bundles, strategy="STRICT_PACK")
    groups.append(group)
    try:
        ray.get(group.ready(), timeout=RESERVE_LIMIT_S)
    except GetTimeoutError:
        wants = f"{len(devices)} free devices for pool `{pool.name}` on {node}"
        there = f"Ray did not give them within {RESERVE_LIMIT_S:.0f} s"
        raise ResourceError.not_here(f"node {node}", wants, there, "does another job hold them?") from None
    for place in range(len(devices)):
        yield PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=place)


def _open(program: Program, places: RayPlaces, models: ModelSetup) -> None:
    """Learn who is where, let the ranks of each pool meet, and load."""
    import ray

    local = cast("Any", ray.util).get_node_ip_address()
    start = time.monotonic()
    watch = Watch(places.members, places.session.started)
    asked = [Pending(member.actor.about.remote(), f"the start of {member.seat}", member) for member in watch.members]
    told: dict[Seat, Mapping[str, Any]] = {}
    for pending, about in zip(asked, watch.in_order(asked, START_LIMIT_S), strict=True):
        assert pending.member is not None
        told[pending.member.seat] = about
    opening = list[Pending]()
    for pool in program.plan.pools:
        members = [
            Member(member.seat, member.actor, told[member.seat]["pid"] if told[member.seat]["ip"] == local else 0)
            for member in places.pools[pool.name]
        ]
        places.pools[pool.name] = members
        meeting = _meeting(program, pool, places.scratch, told[members[0].seat])
        opening += [
            Pending(member.actor.open.remote(models, meeting, RANKS_LIMIT_S), f"loading on {member.seat}", member)
            for member in members
        ]
    watch = Watch(places.members, places.session.started)
    opening.append(Pending(host_task(warm_up).remote(places.flows_ref()), "the start of a host process", None))
    for loaded in watch.results(opening, START_LIMIT_S - (time.monotonic() - start)):
        places.told.update(loaded or {})


def _meeting(program: Program, pool: Pool, scratch: Path, first: Mapping[str, Any]) -> Path | str | None:
    """Say where a pool's ranks meet: nowhere if no engine needs it, in a file on one machine, else at the first."""
    homes: list[Home] = [home for home in program.homes if home.pool == pool.name]
    if not any(LAYOUTS[home.engine].meets for home in homes):
        return None
    if len({node for node, _ in pool.devices}) == 1:
        return scratch / f"{len(list(scratch.iterdir()))}-{pool.name}.meeting"
    return f"tcp://{first['ip']}:{first['port']}"
