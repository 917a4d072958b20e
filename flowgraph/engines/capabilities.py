"""What one engine can do, as data without torch: what it supports at run time, and what the planner models of it.

Each engine has a folder of its own with one `ENGINE`; `table` gathers them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flowgraph.engines.servers.environments import Environment
from flowgraph.engines.servers.versions import EngineVersions

MAX_RANKS = 2**16
"""The degree of a way to split a model that only the pool bounds."""


@dataclass(frozen=True)
class Support:
    """Layouts and settings of one engine: its device kinds, and the largest degree of each way to split a model.

    Verbs of `single_device` are offered on one device only. `settings` names the fields of `Running` that the engine
    follows, with the values that it takes (none: any); None means all of them.
    """

    devices: frozenset[str]
    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    sequence: int = 1
    replicas: int = 1
    sharding: frozenset[str] = frozenset({"none"})
    single_device: frozenset[str] = frozenset()
    settings: Mapping[str, tuple[object, ...]] | None = field(default_factory=dict[str, tuple[object, ...]])


@dataclass(frozen=True)
class EngineCapabilities:
    """One engine: its verbs, what it `supported` at run time (None: nothing, no executor), and what is `modelled`.

    A plan may name all that is modelled; a run needs what is supported, which is part of it. `handle` is the class that
    hosts a model in the process of its device, as `module:name`. `process_group` is the function with which its ranks
    meet before they load, "" for ranks that do not talk to each other. `server` is the class that starts an engine with
    processes of its own: then one rank speaks for all, and a replica's process owns all of its devices. A `cache_share`
    of a device is for all that it holds there if it `shares_all`, else for weights and cache only. An optimizer that is
    offloaded alone steps on the host with a `cpu_optimizer`; without, its states come to the device for the step.
    Of engines that can do the same, the one of the least `order` comes first. One with servers says which `versions`
    of it are known, the `environment` that is made for it on a CPU, and the `extra` of ours that installs it beside us.
    """

    name: str
    verbs: frozenset[str]
    modelled: Support
    supported: Support | None = None
    handle: str = ""
    process_group: str = ""
    server: str = ""
    shares_all: bool = False
    cpu_optimizer: bool = False
    order: int = 100
    versions: EngineVersions | None = None
    environment: Environment | None = None
    extra: str = ""


SHARDINGS = frozenset({"none", "optimizer", "gradients", "full"})
EVERYWHERE, GPUS = frozenset({"cpu", "gpu"}), frozenset({"gpu"})
