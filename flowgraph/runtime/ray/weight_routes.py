"""Which way new weights take from the devices of a home to the servers of another, by what their machines share.

Not here: the ways themselves (`executors.weight_paths`), and which of them an engine prefers.
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
    """One device of a pool, as its process tells: on which machine, whether the driver's folder is seen, which kind."""

    machine: str
    sees: bool
    gpu: bool = False


Spots = Mapping[str, Sequence[DeviceLocation]]
"""The devices of each pool, by place."""


def beside(source: Home, target: Home) -> bool:
    """Say whether each of a home's servers is on the devices of those members of `source` that send to it.

    >>> from flowgraph.cluster.plan import Layout
    >>> train, draw = Home("policy", "all", "fsdp", Layout(data=2)), Home("policy", "all", "sglang", Layout(data=4))
    >>> beside(train, train), beside(train, draw)
    (True, False)
    """
    return source.pool == target.pool and target.layout.devices <= len(source.members)


def way_of(source: Home, target: Home, spots: Spots) -> WeightsBy:
    """Say how weights come to a home's servers, as the plan says or else as fits; refuse a way that cannot be.

    Memory is read where both are on the same devices. Else weights go over a process group, which cannot have one GPU
    twice: where the sender's is a server's too, they go through a folder. Raises WorkerError.
    """
    sender, servers = spots[source.pool][0], spots[target.pool][: target.layout.devices]
    near = beside(source, target)
    twice = not near and source.pool == target.pool and sender.gpu
    by = target.running.weights_by or ("disk" if twice else engine_of(target).weights_by(target, shared=near))
    apart = not near and len({each.machine for each in (sender, *servers)}) > 1
    if apart and by == "disk" and not all(each.sees for each in (sender, *servers)):
        hint = "" if twice else "weights_by: group"
        raise WorkerError(_told(source, target, "a folder that all their machines see"), hint=hint)
    if apart and by == "memory" and sender.gpu:
        raise WorkerError(_told(source, target, "memory, which is that of one machine"), hint="weights_by: group")
    return by


def _told(source: Home, target: Home, what: str) -> str:
    return f"weights of `{target.param}` cannot come from {source} to {target} through {what}"


def refuse_split_servers(home: Home, spots: Spots) -> None:
    """Raise WorkerError where the devices of one server are on several machines."""
    each = home.layout.devices // home.layout.data
    for lead in range(0, home.layout.devices, each):
        if len({spot.machine for spot in spots[home.pool][lead : lead + each]}) > 1:
            why = f"server {lead // each} would be on devices of several machines"
            raise WorkerError.not_started(f"{home.param} on {home}", why, "a server's devices are on one machine")
