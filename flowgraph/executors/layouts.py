"""The layouts that each executor can run, as data without torch: what a search may choose from."""

from __future__ import annotations

from dataclasses import dataclass

POOL_WIDE = 2**16  # as many ranks as a pool has devices


@dataclass(frozen=True)
class Offer:
    """What one engine can run: its verbs, device kinds, and the largest degree of each way to split a model.

    Verbs of `alone` are offered on one device only. `handle` is the class that hosts a model, as `module:name`;
    `meets` says that its ranks talk to each other, and so meet before they load.
    """

    handle: str
    verbs: frozenset[str]
    devices: frozenset[str]
    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    sharding: frozenset[str] = frozenset({"none"})
    alone: frozenset[str] = frozenset()
    meets: bool = False


JOIN = "flowgraph.executors.ranks:join"
"""How the ranks of a pool meet, as `module:name`."""

LAYOUTS: dict[str, Offer] = {
    "local": Offer(
        handle="flowgraph.executors.local:LocalModel",
        verbs=frozenset({"token_stats", "sample", "step", "weights"}),
        devices=frozenset({"cpu", "gpu"}),
        data=POOL_WIDE,
        alone=frozenset({"step"}),
    ),
    "fsdp": Offer(
        handle="flowgraph.executors.fsdp:FsdpModel",
        verbs=frozenset({"token_stats", "step", "weights"}),
        devices=frozenset({"cpu", "gpu"}),
        data=POOL_WIDE,
        sharding=frozenset({"full"}),
        meets=True,
    ),
}
