"""The capabilities of one engine, as data without torch: what it supports at run time, and what the planner models.

Each engine has a folder that defines one `ENGINE`; `table` collects them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flowgraph.engines.servers.environments import EngineVersions, Environment

MAX_RANKS = 2**16
"""The largest degree of a parallelism that only the number of devices in the pool limits."""


@dataclass(frozen=True)
class Support:
    """The layouts and settings that one engine supports: kinds of devices, and the largest degree of each parallelism.

    The verbs in `single_device` are available on one device only. `settings` maps the fields of `RoleSettings` that the
    engine supports to the values that it accepts (empty: any value); None means that it supports all fields.
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
    """One engine: its verbs, the layouts that are `supported` at run time (None: none), and those that are `modelled`.

    A plan may use every modelled layout; a run needs a supported one, and supported layouts are a subset of modelled
    ones. `handle` is the class that hosts a model in the process of its device, as `module:name`. `process_group` is
    the function by which ranks form a group before they load, "" for ranks that do not communicate. `server` is the
    class that starts an engine in separate processes: one rank then leads all of them, and a replica's process owns all
    devices of the replica.

    `cache_share` is a share of a device's memory for everything that the engine allocates if `shares_all`, otherwise
    for weights and cache only. With `cpu_optimizer`, an optimizer that is offloaded alone steps on the host; otherwise
    its states are copied to the device for the step. Engines are preferred in ascending `order`. An engine with servers
    has its known `versions`, the `environment` that is installed for it on a CPU, and the `extra` of flowgraph that
    installs it in the current Python.

    An engine that `hands_out` returns each sample when it ends; others return those of a step together.

    Settings of sampling in `not_sampled` are refused, because the engine gives them another meaning than the engine
    `local`, and so are the pairs in `not_together`, which it applies in another order.
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
    hands_out: bool = False
    not_sampled: frozenset[str] = frozenset()
    not_together: tuple[tuple[str, str], ...] = ()

    def other_distribution(self, settings: Mapping[str, float]) -> str:
        """Return, as text, the sampling settings that this engine would apply differently from `local`; "" if none.

        `settings` maps the names of the settings that are not at their defaults to values. The text is the first pair
        in `not_together` that is entirely in `settings`, such as `top_k=5 with top_p=0.9`, or else all settings in
        `not_sampled`, sorted by name and joined by `with`.
        """
        pairs = (pair for pair in self.not_together if settings.keys() >= {*pair})
        names = next(pairs, tuple(sorted(settings.keys() & self.not_sampled)))
        return " with ".join(f"{name}={settings[name]:g}" for name in names)


SHARDINGS = frozenset({"none", "optimizer", "gradients", "full"})
EVERYWHERE, GPUS = frozenset({"cpu", "gpu"}), frozenset({"gpu"})
