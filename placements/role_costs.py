"""What a role takes and holds where it runs: the seconds of its loads, and its bytes on each device.

Not here: which ways there are to run it (`choices`), and roles that share a pool (`blocks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf

from flowgraph.analysis.roles import Role
from flowgraph.cluster.plan import Checkpointing, Layout, Logits, Precision, RoleSettings
from flowgraph.engines.table import ENGINES, shares_process
from placements.cache_room import cache_tokens
from placements.decode import replica_of
from placements.footprint import Footprint, MemoryConstants, total_bytes
from placements.footprint_process import process_footprint
from placements.footprint_serving import awake_bytes, generation_bytes, inference_bytes, server_bytes
from placements.footprint_training import Training, training_bytes
from placements.generation import generate_seconds
from placements.in_flight import InFlight, resumed_seconds, ways_in_flight
from placements.largest_pass import sampled_pass
from placements.loads import Load
from placements.profiles import Links
from placements.seconds import Seconds, added
from placements.setting import Setting
from placements.topology import DeviceClass
from placements.training import forward_seconds, micro_batches, update_seconds
from placements.transitions import offload_seconds

REMEMBERED = 4096  # seconds of loads: plans of one search have few different ones


@dataclass(frozen=True, eq=False)
class Seat:
    """Where a role may run: so many devices of a class, and what they talk over."""

    of: DeviceClass
    devices: int
    links: Links


def passing_seconds(
    setting: Setting, seat: Seat, engine: str, layout: Layout, running: RoleSettings, load: Load
) -> Seconds:
    """Return the seconds of one load of a role that trains or reads rows, what it offloads left out."""
    micro = running.micro_batch_tokens or load.longest_tokens
    return _passing(setting, seat, engine, layout, micro, running.checkpointing, running.logits, load)


@lru_cache(maxsize=REMEMBERED)
def _passing(
    setting: Setting,
    seat: Seat,
    engine: str,
    layout: Layout,
    micro: int,
    checkpointing: Checkpointing,
    logits: Logits,
    load: Load,
) -> Seconds:
    shape, constants = setting.shape(load.role), setting.training_of(engine)
    if load.phase != "update":
        forward = forward_seconds(shape, load.tokens_in(micro), layout, seat.links, constants, micro_batch_tokens=micro)
        factor = setting.factor_of("forward", load.role.name, seat.of.model)
        return _at_share(forward, setting.host.forward_share).times(factor)
    once = update_seconds(
        shape,
        load.tokens_in(micro),
        layout,
        seat.links,
        constants,
        micro_batch_tokens=micro,
        checkpointing=checkpointing,
        logits=logits,
        steps=max(1, load.steps // load.epochs),
    )
    factor = setting.factor_of("update", load.role.name, seat.of.model)
    return _at_share(once, setting.host.update_share).times(load.epochs * factor)


def _at_share(passing: Seconds, share: float) -> Seconds:
    """Return a pass whose device attains a share of its rates; what it waits for the host to launch stays."""
    waited_s = passing.parts.get("launch") or 0.0
    return added([passing.times(1 / share), Seconds({"launch": (1 - 1 / share) * waited_s})])


def sampling_seconds(
    setting: Setting,
    seat: Seat,
    engine: str,
    layout: Layout,
    running: RoleSettings,
    load: Load,
    in_flight: InFlight | None = None,
) -> Seconds | None:
    """Return the seconds of generating a step's responses; None if a replica's cache does not hold one row.

    What runs in the process of its device has no share of it for a cache, and grows its cache as rows need it. Where
    rollouts continue across steps, it is the best of all ways to have batches `in_flight`, unless one is given.
    """
    way = in_flight or best_in_flight(setting, seat, engine, layout, running, load)
    share, precision = running.cache_share or 1.0, running.precision
    return _sampling(setting, seat, engine, layout, share, precision, running.sleeps, load, way)


def best_in_flight(
    setting: Setting,
    seat: Seat,
    engine: str,
    layout: Layout,
    running: RoleSettings,
    load: Load,
    *,
    ahead: int = 1,
    sync_s: float = 0.0,
    training_s: float = 0.0,
) -> InFlight:
    """Return the way to have batches in flight with which a step takes least, of equals the fewest batches.

    Generation is `ahead` steps of updates, a weight sync itself takes `sync_s` seconds, and other pools work for
    `training_s` on the rows of a step before its update is done.
    """
    ways = ways_in_flight(setting.lag, streamed=streams(setting, load.role), ahead=ahead)
    if len(ways) == 1:
        return ways[0]
    share, precision = running.cache_share or 1.0, running.precision

    def busy_s(way: InFlight) -> float:
        found = _sampling(setting, seat, engine, layout, share, precision, running.sleeps, load, way)
        own_s = inf if found is None or found.total_s is None else found.total_s + sync_s / way.sync_every
        return max(own_s, way.period_s(training_s))

    return min(ways, key=busy_s)


def streams(setting: Setting, role: Role) -> bool:
    """Return whether a role's rollouts continue across steps: only where it is trained, and its weights may lag."""
    return setting.streamed and setting.lag > 0 and role.name in setting.synced


@lru_cache(maxsize=REMEMBERED)
def _sampling(
    setting: Setting,
    seat: Seat,
    engine: str,
    layout: Layout,
    share: float,
    precision: Precision,
    sleeps: bool,
    load: Load,
    way: InFlight,
) -> Seconds | None:
    shape, device, serving = setting.shape(load.role), seat.links.device, setting.serving_of(engine)
    room: float = inf
    if seat.of.kind == "gpu" and not shares_process(engine):
        room = cache_tokens(shape, device, layout.tensor, share, serving, precision)
    if room < load.longest_tokens:
        return None
    rows = max(1, round(load.round_rows * way.batches))
    streamed = streams(setting, load.role)
    once = generate_seconds(
        shape,
        rows,
        load.prompt,
        load.response,
        layout,
        seat.links,
        serving,
        cache_tokens=room,
        precision=precision,
        shared_prompts=load.samples,
        streamed=streamed,
    ).times(load.rounds * load.round_rows / rows)
    if streamed and (sleeps or not setting.keeps_caches) and once.total_s is not None:
        replica = replica_of(shape, layout, seat.links, serving, precision, rollout=True)
        lengths = load.prompt, load.response
        resumed_s = resumed_seconds(
            replica, rows / layout.data, *lengths, cache_tokens=room, shared_prompts=load.samples
        )
        once += Seconds({"resume": resumed_s / (1 if sleeps else way.sync_every)})
    return once.times(setting.factor_of("generate", load.role.name, seat.of.model))


def woken_seconds(found: Footprint, seat: Seat, running: RoleSettings) -> Seconds:
    """Return the seconds of a step in which what sleeps comes to its devices and goes back, once each."""
    if not running.sleeps:
        return Seconds()
    return Seconds({"wake": 2 * offload_seconds(total_bytes(found.asleep_host), seat.links.device)})


def offloaded_seconds(
    found: Footprint, seat: Seat, layout: Layout, running: RoleSettings, own: Sequence[Load]
) -> Seconds:
    """Return the seconds of a step in which offloaded weights, gradients and optimizer states come and go.

    Weights come in each pass of each micro-batch, and gradients go with each backward pass; the optimizer steps on the
    host, as fast as the link brings what it reads. Nothing is taken to overlap, so this is an upper bound. Source: Ren
    et al. 2021 (ZeRO-Offload), arXiv 2101.06840, section 4.
    """
    if not running.offload:
        return Seconds()
    passes, steps = 0.0, 0
    for load in own:
        micro = running.micro_batch_tokens or load.longest_tokens
        counted = micro_batches(load.tokens_in(micro), layout.data, micro)
        passes += load.epochs * counted * (3 if load.phase == "update" else 1)
        steps += load.steps
    weights, states = found.host.get("weights", 0), found.host.get("optimizer", 0)
    return Seconds({"offload": offload_seconds(passes * weights + 2 * steps * states, seat.links.device)})


def footprint(
    setting: Setting, role: Role, seat: Seat, engine: str, layout: Layout, running: RoleSettings
) -> Footprint:
    """Return what a role holds on each device, on one engine, in one layout and one way to run."""
    shape, own = setting.shape(role), setting.loads_of(role)
    if seat.of.kind == "cpu":
        return _on_cpu(setting, role, seat, engine, layout, running)
    if role.use == "sample":
        return generation_bytes(
            shape,
            layout,
            precision=running.precision,
            engine=engine,
            device_bytes=seat.of.memory_bytes,
            cache_share=running.cache_share,
            cache_tokens=None if running.cache_share is not None else _rows_tokens(setting, engine, layout, own),
        )
    longest = max(load.longest_tokens for load in own)
    micro = running.micro_batch_tokens or longest
    stats = frozenset(stat for load in own for stat in load.stats)
    if role.use == "infer":
        return inference_bytes(shape, layout, micro, offload=running.offload, logits=running.logits, stats=stats)
    training = Training(
        layout=layout,
        checkpointing=running.checkpointing,
        offload=frozenset(running.offload),
        micro_batch_tokens=micro,
        logits=running.logits,
        stats=stats,
        steps_on_host={*running.offload} != {"optimizer"} or ENGINES[engine].cpu_optimizer,
    )
    return training_bytes(shape, training, sequence_tokens=longest)


def _rows_tokens(setting: Setting, engine: str, layout: Layout, own: Sequence[Load]) -> int:
    """Return the tokens of the cache of an engine without a share of its device: one row, or all decoded at once."""
    if not shares_process(engine):
        return max(load.longest_tokens for load in own)
    passes = (sampled_pass(load, layout.data, setting.sample_rows) for load in own)
    return max(each.rows * each.width for each in passes)


def process_of(engine: str) -> str:
    """Return the name of the process that an engine's models live in: that of the device, or the engine's own.

    >>> process_of("local") == process_of("fsdp"), process_of("sglang")
    (True, 'sglang')
    """
    return "device" if shares_process(engine) else engine


def _on_cpu(setting: Setting, role: Role, seat: Seat, engine: str, layout: Layout, running: RoleSettings) -> Footprint:
    """Return what a role holds on each CPU device: in the process of the device, or in a server beside it."""
    shape, constants = setting.shape(role), MemoryConstants()
    if not shares_process(engine):
        return server_bytes(shape, layout, running, process_bytes_of(setting, seat, constants), constants)
    return process_footprint(
        shape,
        setting.loads_of(role),
        layout,
        running,
        sample_rows=setting.sample_rows,
        forward_tokens=setting.forward_tokens,
        trains=role.use == "train",
        context_bytes=process_bytes_of(setting, seat, constants),
        constants=constants,
    )


def process_bytes_of(setting: Setting, seat: Seat, constants: MemoryConstants) -> float:
    """Return what a process of ours has on a CPU device without any model, its share of Ray included.

    A cluster of one device needs no Ray; else the CPU devices of a machine share it.
    """
    if sum(of.count for of in setting.classes) == 1:
        return constants.process_bytes
    return constants.process_bytes + constants.worker_bytes + constants.ray_bytes / seat.of.node_devices


def waking_bytes(found: Footprint) -> int:
    """Return what a role that sleeps brings to a device before it works: all but its cache, which comes last."""
    cache = found.resident.get("kv_cache", 0) - found.asleep.get("kv_cache", 0)
    return max(0, awake_bytes(found) - cache)
