"""Start a plan on Ray: admit it, reserve its devices, start an actor on each, let ranks meet, and load the weights."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from flowgraph.cluster.plan import Pool
from flowgraph.engines.table import ENGINES, is_server
from flowgraph.errors import ResourceError
from flowgraph.language.graph import Graph
from flowgraph.lowering.program import Home, Program, Sync
from flowgraph.runtime.hosting import ModelSetup
from flowgraph.runtime.measure.profiling import NO_PROFILES, Profiles
from flowgraph.runtime.ray.deadlines import Deadlines
from flowgraph.runtime.ray.device import Flows, PoolRank, RankActor, warm_up
from flowgraph.runtime.ray.places import RayPlaces, host_task
from flowgraph.runtime.ray.session import LOOPBACK, Session, machines
from flowgraph.runtime.ray.supervision import Member, PendingCall, Supervisor
from flowgraph.runtime.ray.weight_routes import DeviceLocation, refuse_split_servers
from flowgraph.runtime.scratch import make
from flowgraph.runtime.serving import posts

START_LIMIT_S = 1800.0  # for all processes to start and load: a large model may come from a slow disk
RESERVE_LIMIT_S = 60.0
RANKS_LIMIT_S = 1800.0  # how long one rank waits for the others before it gives up by itself


def start(
    program: Program,
    graphs: Sequence[Graph],
    flows: Flows,
    models: ModelSetup,
    session: Session,
    profiles: Profiles = NO_PROFILES,
) -> RayPlaces:
    """Give the places of a program's plan, ready to run any of `graphs`, which `flows` has as text in the same order.

    Raises ResourceError for what the machines lack, before anything is started, and what loading raises. Whatever was
    started by then is ended.
    """
    there = machines(program.plan)
    scratch = make()
    session.note(scratch)
    places = RayPlaces(session, flows, graphs, {}, [], scratch, deadlines=Deadlines.of(program.plan))
    places.attached = frozenset(models.attached)
    try:
        for pool in program.plan.pools:
            places.pools[pool.name] = _members(program, pool, places, there)
        _open(program, places, models, profiles)
    except BaseException:
        places.close()
        raise
    return places


def _members(program: Program, pool: Pool, places: RayPlaces, there: Mapping[str, Mapping[str, Any]]) -> list[Member]:
    """Start an actor on each device of a pool, in the plan's order."""
    import ray

    homes = tuple(home for home in program.homes if home.pool == pool.name)
    members = list[Member]()
    actor: Any = cast("Any", ray.remote)(concurrency_groups={"beat": 1})(RankActor)
    bundles = dict[str, Iterator[Any]]()
    for node in dict.fromkeys(name for name, _ in pool.devices):
        bundles[node] = _reserve(program, pool, node, there[node], places.groups)
    for rank, (node, index) in enumerate(pool.devices):
        device = program.plan.cluster.device(node, index)
        kind = device.kind if device is not None else "cpu"
        seat = PoolRank(pool.name, rank, len(pool.devices), kind, homes, program.trained)
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
    bundles = [{"CPU": 1.0, **({"GPU": 1.0} if each and each.kind == "gpu" else {})} for each in devices]
    there = [{"ray.io/node-id": str(machine["NodeID"])}] * len(bundles)  # an address may be that of several
    group = placement_group(bundles, strategy="STRICT_PACK", bundle_label_selector=there)
    groups.append(group)
    try:
        ray.get(group.ready(), timeout=RESERVE_LIMIT_S)
    except GetTimeoutError:
        wants = f"{len(devices)} free devices for pool `{pool.name}` on {node}"
        gives = f"Ray did not give them within {RESERVE_LIMIT_S:.0f} s"
        raise ResourceError.not_here(f"node {node}", wants, gives, "does another job hold them?") from None
    for place in range(len(devices)):
        yield PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=place)


def _open(program: Program, places: RayPlaces, models: ModelSetup, profiles: Profiles) -> None:
    """Learn who is where, let the ranks of each pool meet, and load."""
    import ray

    local = cast("Any", ray.util).get_node_ip_address()
    start = time.monotonic()
    watch = Supervisor(places.members, places.session.started, starting=True)
    asked = [
        PendingCall(member.actor.about.remote(places.scratch), f"the start of {member.seat}", member)
        for member in watch.members
    ]
    told: dict[PoolRank, Mapping[str, Any]] = {}
    for pending, about in zip(asked, watch.in_order(asked, START_LIMIT_S), strict=True):
        assert pending.member is not None
        told[pending.member.seat] = about
    apart = _look(program, places, told)
    opening = list[PendingCall]()
    for pool in program.plan.pools:
        members = [
            Member(member.seat, member.actor, told[member.seat]["pid"] if told[member.seat]["ip"] == local else 0)
            for member in places.pools[pool.name]
        ]
        places.pools[pool.name] = members
        engines = {home.engine for home in program.homes if home.pool == pool.name}
        meeting = meeting_of(pool, engines, places.scratch, told[members[0].seat], apart=apart)
        for member in members:
            ref = member.actor.open.remote(models, meeting, RANKS_LIMIT_S, profiles)
            opening.append(PendingCall(ref, f"loading on {member.seat}", member))
    watch = Supervisor(places.members, places.session.started, starting=True)
    opening.append(PendingCall(host_task(warm_up).remote(places.flows_ref()), "the start of a host process", None))
    serving = [each for home in program.homes for each in _serve(home, places, models, told, apart=apart)]
    for loaded in watch.results(opening, START_LIMIT_S - (time.monotonic() - start)):
        places.told.update(loaded or {})
    _attach(serving, watch, places, models, START_LIMIT_S - (time.monotonic() - start))


def _look(program: Program, places: RayPlaces, told: Mapping[PoolRank, Mapping[str, Any]]) -> bool:
    """Note what shares a machine, and say whether servers have to be reached from several.

    Raises WorkerError where weights cannot come to servers the way that the plan says, or a server is on no machine.
    """
    for name, members in places.pools.items():
        abouts = [(told[each.seat], each.seat.kind == "gpu") for each in members]
        places.spots[name] = [DeviceLocation(about["machine"], about["sees"], gpu) for about, gpu in abouts]
    served = [home for home in program.homes if is_server(home.engine)]
    for home in served:
        if home.param not in places.attached:
            refuse_split_servers(home, places.spots)
    for task in program.tasks:
        if isinstance(task, Sync) and task.target in served:
            places.way(task.source, task.target)
    return bool(served) and len({about["machine"] for about in told.values()}) > 1


def _serve(
    home: Home, places: RayPlaces, models: ModelSetup, told: Mapping[PoolRank, Mapping[str, Any]], *, apart: bool
) -> list[tuple[Home, PendingCall]]:
    """Start the servers of a home whose engine has processes of its own, each beside the first of its devices.

    They listen on loopback, or each at the address of its machine if the plan's machines are `apart`.
    """
    if not is_server(home.engine):
        return []
    pool, found = places.pools[home.pool], list[tuple[Home, PendingCall]]()
    places.doors[home] = ()
    for place, post in posts(home, pool[0].seat.torch_device, [told[each.seat]["gpus"] for each in pool]).items():
        at = replace(post, host=told[pool[place].seat]["ip"] if apart else LOOPBACK)
        ref = pool[place].actor.serve.remote(models, at, places.scratch, START_LIMIT_S)
        found.append((home, PendingCall(ref, f"the start of {home.engine} on {pool[place].seat}", pool[place])))
    return found


def _attach(
    serving: Sequence[tuple[Home, PendingCall]],
    watch: Supervisor,
    places: RayPlaces,
    models: ModelSetup,
    limit_s: float,
) -> None:
    """Let the first device of each home speak for its servers, once they are there."""
    doors = watch.in_order([pending for _, pending in serving], limit_s)
    for home in dict.fromkeys(home for home, _ in serving):
        places.doors[home] = tuple(door for (of, _), door in zip(serving, doors, strict=True) if of == home)
    attached = list[PendingCall]()
    for home, own in places.doors.items():
        first = places.pools[home.pool][0]
        ref = first.actor.attach.remote(models, home, own, places.scratch, limit_s)
        attached.append(PendingCall(ref, f"the use of {home.engine} on {first.seat}", first))
    for loaded in watch.results(attached, limit_s):
        places.told.update(loaded)


def meeting_of(
    pool: Pool, engines: Collection[str], scratch: Path, first: Mapping[str, Any], *, apart: bool = False
) -> Path | str | None:
    """Say where a pool's ranks meet: nowhere if no engine needs it, in a file on one machine, else at the first.

    On one machine that does not have the driver's folder they meet at a port of loopback. Ranks that meet on loopback
    talk nowhere else: where servers of other machines are sent weights, the machines being `apart`, none do.
    """
    if not any(ENGINES[engine].process_group for engine in engines):
        return None
    if apart or len({node for node, _ in pool.devices}) > 1:
        return f"tcp://{first['ip']}:{first['port']}"
    if not first["sees"]:
        return f"tcp://{LOOPBACK}:{first['port']}"
    return scratch / f"{len(list(scratch.iterdir()))}-{pool.name}.meeting"
