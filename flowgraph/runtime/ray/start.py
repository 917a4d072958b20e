"""Start a plan on Ray: match machines, reserve devices, start an actor on each, connect ranks, and load the weights."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

from flowgraph.cluster.plan import Pool
from flowgraph.engines.table import ENGINES, is_server
from flowgraph.errors import ResourceError
from flowgraph.language.graph import Graph
from flowgraph.lowering.program import Home, Program, Run, Sync
from flowgraph.runtime.hosting import ModelSetup
from flowgraph.runtime.measure.profiling import NO_PROFILES, Profiles
from flowgraph.runtime.ray.deadlines import Deadlines
from flowgraph.runtime.ray.device import Flows, PoolRank, RankActor
from flowgraph.runtime.ray.host_tasks import warm_up
from flowgraph.runtime.ray.places import HAND, IN_FLIGHT, WEIGHTS, RayPlaces, host_task
from flowgraph.runtime.ray.session import LOOPBACK, Session, match_cluster
from flowgraph.runtime.ray.supervision import Member, PendingCall, Supervisor
from flowgraph.runtime.ray.weight_routes import refuse_split_servers
from flowgraph.runtime.scratch import make, note_ray
from flowgraph.runtime.serving import server_places

START_LIMIT_S = 1800.0  # for all processes to start and load: a large model may be on a slow disk
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
    """Start all processes of a program's plan on Ray, load the models, and return places that can run any of `graphs`.

    `flows` contains the same graphs as JSON in the same order. `models` describes the models to load; `profiles`, the
    steps to profile. Raises ResourceError, before anything is started, if the machines lack resources. If starting or
    loading fails, ends everything that was started and raises the error, for example WorkerError or ModelError.
    """
    import ray

    nodes = match_cluster(program.plan, ray.nodes())  # type: ignore[no-untyped-call]
    scratch = make()
    if session.name:  # a later start ends this Ray if this process is killed
        note_ray(scratch, session.name)
    places = RayPlaces(session, flows, graphs, {}, [], scratch, deadlines=Deadlines.of(program.plan))
    places.attached = frozenset(models.attached)
    try:
        for pool in program.plan.pools:
            places.pools[pool.name] = _start_actors(program, pool, places, nodes)
        _open(program, places, models, profiles)
    except BaseException:
        places.close()
        raise
    return places


def _start_actors(
    program: Program, pool: Pool, places: RayPlaces, nodes: Mapping[str, Mapping[str, Any]]
) -> list[Member]:
    import ray

    homes = tuple(home for home in program.homes if home.pool == pool.name)
    groups = {"beat": 1}
    runs = [task for task in program.tasks if isinstance(task, Run) and task.place == pool.name]
    if any(task.hands_out or task.by_group for task in runs):
        groups |= {HAND: 1}
    if any(home.in_flight for home in homes) and program.pipeline is not None:
        steps_late = max(copy.behind for copy in program.pipeline.copies)
        groups |= {WEIGHTS: 1, IN_FLIGHT: program.pipeline.depth + 1 + steps_late}
    actor: Any = cast("Any", ray.remote)(concurrency_groups=groups)(RankActor)
    names = dict.fromkeys(name for name, _ in pool.devices)
    strategies = {name: _reserve(program, pool, name, nodes[name], places.groups) for name in names}
    members = list[Member]()
    for rank, (name, index) in enumerate(pool.devices):
        device = program.plan.cluster.device(name, index)
        kind = device.kind if device is not None else "cpu"
        seat = PoolRank(pool.name, rank, len(pool.devices), kind, homes, program.trained)
        options = {"num_cpus": 1, "num_gpus": int(kind == "gpu"), "scheduling_strategy": next(strategies[name])}
        members.append(Member(seat, actor.options(**options).remote(places.flows_ref(), seat)))
    return members


def _reserve(program: Program, pool: Pool, name: str, machine: Mapping[str, Any], groups: list[Any]) -> Iterator[Any]:
    import ray
    from ray.exceptions import GetTimeoutError
    from ray.util import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    devices = [program.plan.cluster.device(node, index) for node, index in pool.devices if node == name]
    bundles = [{"CPU": 1.0, **({"GPU": 1.0} if device and device.kind == "gpu" else {})} for device in devices]
    labels = [{"ray.io/node-id": str(machine["NodeID"])}] * len(bundles)  # an address may be that of several
    group = placement_group(bundles, strategy="STRICT_PACK", bundle_label_selector=labels)
    groups.append(group)
    try:
        ray.get(group.ready(), timeout=RESERVE_LIMIT_S)
    except GetTimeoutError:
        wants = f"{len(devices)} free devices for pool `{pool.name}` on {name}"
        gives = f"Ray did not provide them within {RESERVE_LIMIT_S:.0f} s"
        raise ResourceError.not_here(f"node {name}", wants, gives, "check whether another job uses them") from None
    for index in range(len(devices)):
        yield PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)


def _open(program: Program, places: RayPlaces, models: ModelSetup, profiles: Profiles) -> None:
    import ray

    address = cast("Any", ray.util).get_node_ip_address()
    end_s = time.monotonic() + START_LIMIT_S
    supervisor = Supervisor(places.members, places.session.started, starting=True)
    calls = [
        PendingCall(member.actor.about.remote(places.scratch), f"the start of {member.seat}", member)
        for member in supervisor.members
    ]
    answers = iter(supervisor.in_order(calls, START_LIMIT_S))
    for name, members in places.pools.items():
        abouts = list(islice(answers, len(members)))
        pids = [about["pid"] if about["ip"] == address else 0 for about in abouts]
        located = zip(members, pids, abouts, strict=True)
        places.pools[name] = [replace(member, pid=pid, about=about) for member, pid, about in located]
    several_machines = _refuse_unreachable(program, places)
    supervisor = Supervisor(places.members, places.session.started, starting=True)
    loading = list[PendingCall]()
    for pool in program.plan.pools:
        members = places.pools[pool.name]
        engines = {home.engine for home in program.homes if home.pool == pool.name}
        meeting = rendezvous_of(pool, engines, places.scratch, members[0].about, several_machines=several_machines)
        for member in members:
            ref = member.actor.open.remote(models, meeting, RANKS_LIMIT_S, profiles)
            loading.append(PendingCall(ref, f"loading on {member.seat}", member))
    loading.append(PendingCall(host_task(warm_up).remote(places.flows_ref()), "the start of a host process", None))
    served = [home for home in program.homes if is_server(home.engine)]
    serving = {home: _start_servers(home, places, models, several_machines=several_machines) for home in served}
    for loaded in supervisor.results(loading, end_s - time.monotonic()):
        places.loaded.update(loaded or {})
    limit_s = end_s - time.monotonic()
    doors = iter(supervisor.in_order([call for calls in serving.values() for call in calls], limit_s))
    attaching = list[PendingCall]()
    for home, calls in serving.items():
        places.doors[home] = tuple(islice(doors, len(calls)))
        first = places.pools[home.pool][0]  # it speaks for all servers of the home
        ref = first.actor.attach.remote(home, places.doors[home])
        attaching.append(PendingCall(ref, f"the use of {home.engine} on {first.seat}", first))
    for loaded in supervisor.results(attaching, limit_s):
        places.loaded.update(loaded)


def _refuse_unreachable(program: Program, places: RayPlaces) -> bool:
    """Raise WorkerError if weights or servers cannot span machines; return whether servers are reached from several."""
    served = [home for home in program.homes if is_server(home.engine)]
    for home in served:
        if home.param not in places.attached:
            refuse_split_servers(home, places.spots)
    for task in program.tasks:
        if isinstance(task, Sync) and task.target in served:
            places.way(task.source, task.target)
    return bool(served) and len({member.about["machine"] for member in places.members}) > 1


def _start_servers(home: Home, places: RayPlaces, models: ModelSetup, *, several_machines: bool) -> list[PendingCall]:
    pool, calls = places.pools[home.pool], list[PendingCall]()
    places.doors[home] = ()  # so that `close` ends the servers, even if not all start
    gpus = [member.about["gpus"] for member in pool]
    for index, place in server_places(home, pool[0].seat.torch_device, gpus).items():
        member = pool[index]
        bound = replace(place, host=member.about["ip"] if several_machines else LOOPBACK)
        ref = member.actor.serve.remote(models, bound, places.scratch, START_LIMIT_S)
        calls.append(PendingCall(ref, f"the start of {home.engine} on {member.seat}", member))
    return calls


def rendezvous_of(
    pool: Pool,
    engines: Collection[str],
    scratch: Path,
    first_rank: Mapping[str, Any],
    *,
    several_machines: bool = False,
) -> Path | str | None:
    """Return where the ranks of a pool rendezvous: a file, or a URL `tcp://HOST:PORT`; None if no engine needs it.

    `first_rank` is what `RankActor.about` returns for rank 0. Ranks on one machine use a file in `scratch`, or a
    loopback port if the machine does not see that folder. Ranks on several machines use a port of the first rank. So do
    all ranks if `several_machines` is True, since ranks that connect on loopback cannot reach servers elsewhere.
    """
    if not any(ENGINES[engine].process_group for engine in engines):
        return None
    if several_machines or len({node for node, _ in pool.devices}) > 1:
        return f"tcp://{first_rank['ip']}:{first_rank['port']}"
    if not first_rank["sees"]:
        return f"tcp://{LOOPBACK}:{first_rank['port']}"
    return scratch / f"{len(list(scratch.iterdir()))}-{pool.name}.meeting"
