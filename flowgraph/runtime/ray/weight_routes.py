"""Choose the weight transport (memory, process group or disk) from the devices of a home to the servers of another.

`engines.weight_sync` implements the transports, and each engine defines which one it prefers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowgraph.cluster.plan import WeightsBy
from flowgraph.errors import WorkerError
from flowgraph.lowering.program import Home
from flowgraph.runtime.serving import engine_of


@dataclass(frozen=True)
class DeviceLocation:
    """One device of a pool: its machine, whether the driver's folder is visible there, and whether it is a GPU."""

    machine: str
    sees: bool
    gpu: bool = False


Spots = Mapping[str, Sequence[DeviceLocation]]
"""The devices of each pool, in its order."""


def same_devices(source: Home, target: Home) -> bool:
    """Return whether weights from `source` to the servers of `target` stay on the same devices.

    That is so if both homes are in one pool and the servers use no more devices than the source has.

    >>> from flowgraph.cluster.plan import Layout
    >>> train, draw = Home("policy", "all", "fsdp", Layout(data=2)), Home("policy", "all", "sglang", Layout(data=4))
    >>> same_devices(train, train), same_devices(train, draw)
    (True, False)
    """
    return source.pool == target.pool and target.layout.devices <= len(source.members)


def weight_transport(source: Home, target: Home, spots: Spots) -> WeightsBy:
    """Return how weights travel from `source` to the servers of `target`: "memory", "group" or "disk".

    A transport that the plan sets is returned. Otherwise it is the engine's default: usually memory for servers on the
    same devices, and a process group elsewhere. A process group cannot contain a GPU twice, so if the sender's GPU is
    also a server's, weights go through a folder. `spots` are the devices of each pool. Raises WorkerError if the
    machines share no folder for "disk", or if "memory" would lead from a GPU to another machine.
    """
    sender, servers = spots[source.pool][0], spots[target.pool][: target.layout.devices]
    shared = same_devices(source, target)
    gpu_twice = not shared and source.pool == target.pool and sender.gpu
    by = target.running.weights_by or ("disk" if gpu_twice else engine_of(target).weights_by(target, shared=shared))
    if shared or len({device.machine for device in (sender, *servers)}) == 1:
        return by
    what, hint = "", "weights_by: group"
    if by == "disk" and not all(device.sees for device in (sender, *servers)):
        what, hint = "a folder that all their machines see", "" if gpu_twice else hint
    elif by == "memory" and sender.gpu:
        what = "memory, which is that of one machine"
    if what:
        route = f"weights of `{target.param}` cannot go from {source} to {target} through {what}"
        raise WorkerError(route, hint=hint)
    return by


def refuse_split_servers(home: Home, spots: Spots) -> None:
    """Raise WorkerError if the devices of one server of `home` are on several machines, according to `spots`."""
    size = home.layout.devices // home.layout.data
    for first in range(0, home.layout.devices, size):
        if len({device.machine for device in spots[home.pool][first : first + size]}) > 1:
            why = f"server {first // size} would be on devices of several machines"
            raise WorkerError.not_started(f"{home.param} on {home}", why, "a server's devices are on one machine")
