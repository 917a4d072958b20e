"""What one engine can do, as data without torch: what it supports at run time, and what the planner models.

Each engine has a folder with one `ENGINE`; `table` collects them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flowgraph.engines.servers.environments import EngineVersions, Environment

MAX_RANKS = 2**16
"""A degree of parallelism that only the size of the pool bounds."""


@dataclass(frozen=True)
class Support:
    """Layouts and settings of one engine: its kinds of devices, and the largest degree of each kind of parallelism.

    Verbs of `single_device` are offered on one device only. `settings` are the fields of `RoleSettings` that the engine
    supports, with the values that it takes (empty: any); None means all fields.
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
    """One engine: its verbs, what is `supported` at run time (None: nothing), and what is `modelled`.

    A plan may use all that is modelled; a run needs what is supported, which is part of it. `handle` is the class that
    hosts a model in the process of its device, as `module:name`. `process_group` is the function by which its ranks
    meet before they load, "" for ranks that do not communicate. `server` is the class that starts an engine with
    processes of its own: then one rank leads all, and a replica's process owns all of its devices.

    A `cache_share` of a device bounds all of the engine's memory there if it `shares_all`, else weights and cache. An
    optimizer that is offloaded alone steps on the host with a `cpu_optimizer`; otherwise its states come to the device
    for the step. Engines are preferred in ascending `order`. An engine with servers has its known `versions`, the
    `environment` that is installed for it on a CPU, and the `extra` of flowgraph that installs it for this Python.
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
