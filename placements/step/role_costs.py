"""The costs of a role on a group of devices: the seconds of its work, and its bytes on each device.

Not here: its layouts and settings (`search.role_options`), and roles that share a pool (`search.pool_options`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf

from flowgraph.analysis.roles import Role
from flowgraph.cluster.plan import Checkpointing, Layout, Logits, Precision, RoleSettings
from flowgraph.engines.table import ENGINES, shares_process
from placements.hardware.device_profiles import PoolLinks
from placements.hardware.topology import DeviceClass
from placements.memory.footprint import SHIPPED, Footprint, total_bytes
from placements.memory.process import process_footprint, sampled_pass
from placements.memory.serving import awake_bytes, generation_bytes, inference_bytes, server_bytes
from placements.memory.training import TrainingSettings, training_bytes
from placements.time.decode import cache_tokens, replica_of
from placements.time.generation import generate_seconds
from placements.time.in_flight import InFlight, resumed_seconds, ways_across_syncs, ways_in_flight
from placements.time.seconds import Seconds, added
from placements.time.training import forward_seconds, micro_batches, update_seconds
from placements.time.transitions import offload_seconds
from placements.workload.node_workload import NodeWorkload
from placements.workload.planning_problem import PlanningProblem

REMEMBERED = 4096  # seconds of loads; the plans of one search have fewer different ones


@dataclass(frozen=True, eq=False)
class DeviceGroup:
    """Devices of one class, and the links between them."""

    of: DeviceClass
    devices: int
    links: PoolLinks


def passing_seconds(
    problem: PlanningProblem, group: DeviceGroup, engine: str, layout: Layout, running: RoleSettings, load: NodeWorkload
) -> Seconds:
    """Return the seconds of one node that trains or reads rows in one step, by kind of work, without offloading.

    The kinds are those of `update_seconds`, or of `forward_seconds` for a node without an update, and always `launch`.
    Without `micro_batch_tokens`, a micro-batch has the tokens of the longest row. Calibration factors are included, and
    the shares of its rates that a device reaches in an RL step (`HostConstants`). Raises UnknownNameError if the engine
    lacks constants for training, and ValueError if the device's peak is unknown.
    """
    micro = running.micro_batch_tokens or load.longest_tokens
    return _passing(problem, group, engine, layout, micro, running.checkpointing, running.logits, load)


@lru_cache(maxsize=REMEMBERED)
def _passing(
    problem: PlanningProblem,
    group: DeviceGroup,
    engine: str,
    layout: Layout,
    micro: int,
    checkpointing: Checkpointing,
    logits: Logits,
    load: NodeWorkload,
) -> Seconds:
    shape, constants, tokens = problem.shape(load.role), problem.training_of(engine), load.tokens_in(micro)
    if load.phase != "update":
        passing = forward_seconds(shape, tokens, layout, group.links, constants, micro_batch_tokens=micro)
        times, share = 1.0, problem.host.forward_share
        factor = problem.factor_of("forward", load.role.name, group.of.model)
    else:
        passing = update_seconds(
            shape,
            tokens,
            layout,
            group.links,
            constants,
            micro_batch_tokens=micro,
            checkpointing=checkpointing,
            logits=logits,
            steps=max(1, load.steps // load.epochs),
        )
        times, share = load.epochs, problem.host.update_share
        factor = problem.factor_of("update", load.role.name, group.of.model)
    # The device attains a share of its rates; its waits for the host to launch kernels stay the same.
    waited_s = passing.parts.get("launch") or 0.0
    attained = added([passing.times(1 / share), Seconds({"launch": (1 - 1 / share) * waited_s})])
    return attained.times(times * factor)


def sampling_seconds(
    problem: PlanningProblem,
    group: DeviceGroup,
    engine: str,
    layout: Layout,
    running: RoleSettings,
    load: NodeWorkload,
    in_flight: InFlight | None = None,
) -> Seconds | None:
    """Return the seconds to generate a step's responses, by kind of work; None if a cache cannot hold the longest row.

    The kinds are those of `generate_seconds`, and `resume` if caches are computed again after syncs. On CPUs, and for
    an engine in the process of its device, the cache has no limit: it grows with the rows. If responses go on across
    syncs, by the contract of `running` or because of `streams`, `in_flight` says how many batches are generated at a
    time; None takes `best_in_flight`. Calibration factors are included. Raises UnknownNameError if the engine lacks
    constants for generation.
    """
    way = in_flight or best_in_flight(problem, group, engine, layout, running, load)
    share, precision = running.cache_share or 1.0, running.precision
    goes_on = running.in_flight or streams(problem, load.role)
    keeps = running.hold == "in_place" if running.in_flight else problem.keeps_caches
    again = goes_on and (running.sleeps or not keeps)
    settled = replace(way, sync_every=1) if running.sleeps else way
    return _sampling(problem, group, engine, layout, share, precision, load, settled, goes_on, again)


def best_in_flight(
    problem: PlanningProblem,
    group: DeviceGroup,
    engine: str,
    layout: Layout,
    running: RoleSettings,
    load: NodeWorkload,
    *,
    ahead: int = 1,
    every: int = 1,
    sync_s: float = 0.0,
    training_s: float = 0.0,
) -> InFlight:
    """Return how rollouts use staleness for the shortest step: the batches in flight, and the updates for each sync.

    Of equally short steps, the one with the fewest batches in flight is chosen. Generation is `ahead` steps ahead of
    the update, a weight sync takes `sync_s` seconds, and other pools work for `training_s` seconds on the rows of a
    step before its update ends. If responses go on across syncs by the contract of `running`, weights are synced in one
    of `every` steps; otherwise `every` is not used, and `ways_in_flight` has the choices that the problem's lag leaves.
    """
    if running.in_flight:
        ways = ways_across_syncs(ahead, every, stretch_of(load))
    else:
        ways = ways_in_flight(problem.lag, streamed=streams(problem, load.role), ahead=ahead)
    if len(ways) == 1:
        return ways[0]

    def busy_s(way: InFlight) -> float:
        sampling = sampling_seconds(problem, group, engine, layout, running, load, way)
        total_s = sampling.total_s if sampling is not None else None
        sampling_s = inf if total_s is None else total_s + sync_s / way.sync_every
        return max(sampling_s, way.period_s(training_s))

    return min(ways, key=busy_s)


def stretch_of(load: NodeWorkload) -> float:
    """Return the expected tokens of the longest response of a round, divided by those of a mean one; at least 1."""
    return max(1.0, load.response.longest_of(max(1, round(load.round_rows))) / load.response.mean)


def least_sampling_seconds(
    problem: PlanningProblem, group: DeviceGroup, engine: str, layout: Layout, running: RoleSettings, load: NodeWorkload
) -> Seconds | None:
    """Return the fewest seconds to generate a step's responses, whichever overlap and contract a plan ends up with.

    The kinds of work are those of `sampling_seconds`, which also says when the result is None. Rows in flight count as
    if the whole staleness were used for depth, and again for rarer syncs.
    """
    waiting = sampling_seconds(problem, group, engine, layout, running, load)
    if problem.contract != "in_flight" or not problem.lag_of(load.role) or waiting is None:
        return waiting
    crossing = running.model_copy(update={"contract": "in_flight"})
    way = ways_across_syncs(problem.lag, problem.lag, stretch_of(load))[-1]
    going_on = sampling_seconds(problem, group, engine, layout, crossing, load, way)
    known = [seconds for seconds in (waiting, going_on) if seconds is not None and seconds.total_s is not None]
    return min(known, key=lambda seconds: seconds.total_s or 0.0, default=waiting)


def streams(problem: PlanningProblem, role: Role) -> bool:
    """Return whether a role's rollouts continue across steps because the problem's contract is `ready`.

    Then a step takes whichever rows have finished. The problem must let weights lag, and another role must train the
    weights of this one; otherwise the result is False.
    """
    return problem.contract == "ready" and problem.lag > 0 and role.name in problem.synced


@lru_cache(maxsize=REMEMBERED)
def _sampling(
    problem: PlanningProblem,
    group: DeviceGroup,
    engine: str,
    layout: Layout,
    share: float,
    precision: Precision,
    load: NodeWorkload,
    way: InFlight,
    goes_on: bool,
    again: bool,
) -> Seconds | None:
    shape, device, serving = problem.shape(load.role), group.links.device, problem.serving_of(engine)
    room: float = inf
    if group.of.kind == "gpu" and not shares_process(engine):
        room = cache_tokens(shape, device, layout.tensor, share, serving, precision)
    if room < load.longest_tokens:
        return None
    rows = max(1, round(load.round_rows * way.batches))
    seconds = generate_seconds(
        shape,
        rows,
        load.prompt,
        load.response,
        layout,
        group.links,
        serving,
        cache_tokens=room,
        precision=precision,
        shared_prompts=load.samples,
        streamed=goes_on,
    ).times(load.rounds * load.round_rows / rows)
    if again and seconds.total_s is not None:
        replica = replica_of(shape, layout, group.links, serving, precision, rollout=True)
        replica_rows, shared = rows / layout.data, load.samples
        resumed_s = resumed_seconds(
            replica, replica_rows, load.prompt, load.response, cache_tokens=room, shared_prompts=shared
        )
        seconds += Seconds({"resume": resumed_s / way.sync_every})
    return seconds.times(problem.factor_of("generate", load.role.name, group.of.model))


def woken_seconds(footprint: Footprint, group: DeviceGroup, running: RoleSettings) -> Seconds:
    """Return the seconds per step in which a sleeping role is copied to its devices and back, with the only key `wake`.

    If the role never sleeps, the result has no keys.
    """
    if not running.sleeps:
        return Seconds()
    return Seconds({"wake": 2 * offload_seconds(total_bytes(footprint.asleep_host), group.links.device)})


def offloaded_seconds(
    footprint: Footprint, group: DeviceGroup, layout: Layout, running: RoleSettings, loads: Sequence[NodeWorkload]
) -> Seconds:
    """Return the seconds per step in which offloaded weights, gradients and optimizer states are copied.

    The only key is `offload`; there is none if nothing is offloaded. Weights are copied for each pass of each
    micro-batch, and gradients after each backward pass; the optimizer steps on the host, as fast as the link delivers
    its input. This is an upper bound, as if no copy overlapped with other work. Source: Ren et al. 2021 (ZeRO-Offload),
    arXiv 2101.06840, section 4.
    """
    if not running.offload:
        return Seconds()
    passes, steps = 0.0, 0
    for load in loads:
        micro = running.micro_batch_tokens or load.longest_tokens
        batches = micro_batches(load.tokens_in(micro), layout.data, micro)
        passes += load.epochs * batches * (3 if load.phase == "update" else 1)
        steps += load.steps
    weights, states = footprint.host.get("weights", 0), footprint.host.get("optimizer", 0)
    return Seconds({"offload": offload_seconds(passes * weights + 2 * steps * states, group.links.device)})


def footprint(
    problem: PlanningProblem, role: Role, group: DeviceGroup, engine: str, layout: Layout, running: RoleSettings
) -> Footprint:
    """Return the bytes of a role on each device and on the host, by part, for an engine, a layout and settings."""
    shape, loads = problem.shape(role), problem.loads_of(role)
    if group.of.kind == "cpu":
        process_bytes = SHIPPED.process_bytes  # our process without a model; devices of a machine share Ray, if any
        if sum(devices.count for devices in problem.classes) > 1:
            process_bytes = process_bytes + SHIPPED.worker_bytes + SHIPPED.ray_bytes / group.of.node_devices
        if not shares_process(engine):
            return server_bytes(shape, layout, running, process_bytes, SHIPPED)
        return process_footprint(
            shape,
            loads,
            layout,
            running,
            sample_rows=problem.sample_rows,
            forward_tokens=problem.forward_tokens,
            trains=role.use == "train",
            context_bytes=process_bytes,
        )
    longest = max(load.longest_tokens for load in loads)
    if role.use == "sample":
        row_tokens = longest  # of the cache of an engine without a share of its device: one row, or a whole batch
        if shares_process(engine):
            passes = (sampled_pass(load, layout.data, problem.sample_rows) for load in loads)
            row_tokens = max(batch.rows * batch.width for batch in passes)
        return generation_bytes(
            shape,
            layout,
            precision=running.precision,
            engine=engine,
            device_bytes=group.of.memory_bytes,
            cache_share=running.cache_share,
            cache_tokens=None if running.cache_share is not None else row_tokens,
        )
    micro = running.micro_batch_tokens or longest
    stats = frozenset(stat for load in loads for stat in load.stats)
    if role.use == "infer":
        return inference_bytes(shape, layout, micro, offload=running.offload, logits=running.logits, stats=stats)
    training = TrainingSettings(
        layout=layout,
        checkpointing=running.checkpointing,
        offload=frozenset(running.offload),
        micro_batch_tokens=micro,
        logits=running.logits,
        stats=stats,
        steps_on_host={*running.offload} != {"optimizer"} or ENGINES[engine].cpu_optimizer,
    )
    return training_bytes(shape, training, sequence_tokens=longest)


def process_of(engine: str) -> str:
    """Return the name of the process that runs an engine's models: `device`, or the engine's own name for a server.

    >>> process_of("local") == process_of("fsdp"), process_of("sglang")
    (True, 'sglang')
    """
    return "device" if shares_process(engine) else engine


def waking_bytes(footprint: Footprint) -> int:
    """Return the bytes that a waking role copies to a device before its work: all except its cache, and at least 0."""
    cache = footprint.resident.get("kv_cache", 0) - footprint.asleep.get("kv_cache", 0)
    return max(0, awake_bytes(footprint) - cache)
