"""What a search is about and does not change: the flow's loads, the models' sizes, the devices, and the engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from flowgraph.analysis.roles import Role, Use, models_read, roles
from flowgraph.cluster.calibration import Calibration, Phase
from flowgraph.cluster.cluster import Cluster, DeviceKind
from flowgraph.cluster.plan import Precision
from flowgraph.engines.capabilities import Support
from flowgraph.engines.table import ENGINES
from flowgraph.language.graph import Graph, carried_from
from placements.batch_sizes import most_ranks
from placements.constants import Constants, constants, known
from placements.decode import ServingConstants
from placements.host_work import HostWork, host_work
from placements.lengths import Lengths
from placements.loads import Load, loads, of_role, stage_count
from placements.named import read_together
from placements.steps import HOST, HostConstants, host_constants
from placements.topology import DeviceClass, classes
from placements.training_passes import TrainingConstants

if TYPE_CHECKING:
    from flowgraph.models import ModelShape

DEFAULT_ENGINES: Mapping[DeviceKind, Mapping[Use, tuple[str, ...]]] = {
    "gpu": {"train": ("fsdp",), "sample": ("sglang",), "infer": ("fsdp",)},
    "cpu": {"train": ("local", "fsdp"), "sample": ("local",), "infer": ("local",)},
}
"""The engines that a search considers for each use of a model on each kind of device, unless one is named."""

SAMPLING_PRECISION: Mapping[DeviceKind, Precision] = {"gpu": "bfloat16", "cpu": "float32"}
"""The precision of weights that generate responses, unless one is named."""

SAMPLE_ROWS, FORWARD_TOKENS = 256, 4096
"""Rows that an engine in the process of its device decodes side by side, and padded tokens of a pass without
gradients, unless a run says otherwise."""


@dataclass(frozen=True, eq=False)
class Setting:
    """What a search is about: `prompts` a step, of these lengths, and what runs and holds the models.

    `response` None takes the longest that samplers allow. `engines` are those that were asked for by name; other uses
    have `DEFAULT_ENGINES`. `sampling` is the precision of weights that generate responses, None that of the devices.
    `calibrated` are constants by engine, in place of the shipped ones; a `calibration` scales the seconds that they
    forecast.

    `staleness` lets steps overlap, as many as make rollouts lag so many updates; `sync_lag` only makes syncs rarer.
    `ratio` fixes the rollout devices to the training devices, where these are apart. Where responses are `streamed`,
    generation goes on across steps and waits for no longest response. After a weight sync the caches of responses in
    flight are computed again, unless the engine `keeps_caches` of older weights. Models of `without` are those of the
    flow that this run does without. A graph that is `watched` measures more, and runs in place of the flow's where one
    engine trains a model and another generates with it. Where layouts that are only `modelled` count too, the plan may
    be one that cannot be run here. `sample_rows` and `forward_tokens` are of engines that run in the process of their
    device.
    """

    graph: Graph
    cluster: Cluster
    shapes: Mapping[str, ModelShape]
    prompts: int
    prompt: Lengths
    response: Lengths | None = None
    engines: Mapping[Use, str] = field(default_factory=dict[Use, str])
    sampling: Precision | None = None
    calibrated: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    calibration: Calibration | None = None
    staleness: int | None = None
    sync_lag: int = 0
    ratio: tuple[int, int] | None = None
    streamed: bool = False
    keeps_caches: bool = False
    without: frozenset[str] = frozenset()
    watched: Graph | None = None
    modelled: bool = False
    sample_rows: int = SAMPLE_ROWS
    forward_tokens: int = FORWARD_TOKENS

    @property
    def running(self) -> Graph:
        """Return the graph that a run has: the flow's, with what is measured beside it."""
        return self.watched or self.graph

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """Return the roles of the flow."""
        return tuple(role for role in roles(self.running) if role.param not in self.without)

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """Return the loads of a step, in the order in which one pool does them: by stage, updates last of each."""
        found = loads(self.running, self.prompts, self.prompt, self.response)
        own = (load for load in found if load.role.param not in self.without)
        return tuple(sorted(own, key=lambda load: (load.stage, load.phase == "update")))

    @cached_property
    def stages(self) -> int:
        """Return the stages of a step in which models work; syncs come after them."""
        return stage_count(self.loads)

    @cached_property
    def classes(self) -> tuple[DeviceClass, ...]:
        """Return the classes of equal devices: of GPUs, if the cluster has any, since a pool is of one kind."""
        found = classes(self.cluster)
        return tuple(of for of in found if of.kind == "gpu") or found

    @property
    def kind(self) -> DeviceKind:
        """Return the kind of the devices that are planned for."""
        return self.classes[0].kind

    @property
    def sampling_precision(self) -> Precision:
        """Return the precision of weights that generate responses."""
        return self.sampling or SAMPLING_PRECISION[self.kind]

    def engines_of(self, use: Use) -> tuple[str, ...]:
        """Return the engines that a search considers for a use of a model: the one that was named, or the default."""
        return (self.engines[use],) if use in self.engines else DEFAULT_ENGINES[self.kind][use]

    def support_of(self, engine: str) -> Support:
        """Return the layouts that a search may choose: what runs here, or of other engines what is modelled."""
        known = ENGINES[engine]
        return known.modelled if self.modelled or known.supported is None else known.supported

    @cached_property
    def most_ranks(self) -> int:
        """Return the most data ranks that each have a row at all times."""
        return most_ranks(self.running, self.prompts)

    @cached_property
    def synced(self) -> Mapping[str, str]:
        """Return for each role that reads weights which another role trains the role that trains them."""
        trained = {role.param: role.name for role in self.roles if role.use == "train"}
        return {role.name: trained[role.param] for role in self.roles if role.use == "sample" and role.param in trained}

    @cached_property
    def staleness_bound(self) -> int:
        """Return by how many updates the flow lets weights lag that generate responses, at its strictest read."""
        bounds = [
            edge.at_most
            for node in self.running.all_nodes
            if node.op.kind == "generate"
            for edge in models_read(node)
            if (root := carried_from(edge)) is not None and f"{root.name}.train" in self.synced.values()
        ]
        return min(bounds, default=0)

    def lag_of(self, role: Role) -> int:
        """Return how many updates old the weights of a role may be: none unless another role trains them."""
        return self.lag if role.name in self.synced else 0

    @property
    def overlaps(self) -> bool:
        """Return whether steps overlap. That is forecast where it was asked for: a run takes step after step."""
        return bool(self.staleness)

    @property
    def lag(self) -> int:
        """Return how many updates old the weights that generate responses may be: what was asked for, else 0."""
        return self.staleness if self.staleness is not None else self.sync_lag

    @property
    def overlapped(self) -> int:
        """Return how many steps may be under way at once: what generates, what only reads, and what trains.

        One, unless a staleness was asked for: a run starts a step when the one before has ended.
        """
        return min(self.staleness or 0, 2) + 1

    @cached_property
    def together(self) -> tuple[frozenset[int], ...]:
        """Return the roles that must share a pool because one node reads their models, as places among the roles."""
        place = {role.name: number for number, role in enumerate(self.roles)}
        return tuple(frozenset(place[name] for name in read if name in place) for read in read_together(self.running))

    @cached_property
    def whole_rows(self) -> frozenset[str]:
        """Return the nodes that run a model and read all rows together, so that ranks cannot share them."""
        nodes = self.running.nodes
        return frozenset(node.name for node in nodes if node.model() is not None and not node.op.separable)

    def loads_of(self, role: Role, engine: str = "") -> list[Load]:
        """Return the loads of one role; on the `engine` that also generates, without what is watched."""
        own = list(of_role(self.loads, role.name))
        if self.watched is None or not engine or self.kind == "gpu" or engine not in self.engines_of("sample"):
            return own
        known = {node.name for node in self.graph.all_nodes}
        return [load for load in own if load.node in known]

    def shape(self, role: Role) -> ModelShape:
        """Return the sizes of a role's model."""
        return self.shapes[role.param]

    def factor_of(self, phase: Phase, role: str, device: str) -> float:
        """Return what the calibration multiplies the seconds of a role's phase on a device model by; 1 without one."""
        return 1.0 if self.calibration is None else self.calibration.factor_of(phase, role, device)

    @cached_property
    def sync_factor(self) -> float:
        """Return what the calibration multiplies the seconds of weight syncs by."""
        return self._shared_factor("sync")

    @cached_property
    def host_factor(self) -> float:
        """Return what the calibration multiplies the seconds of nodes that run no model by."""
        return self._shared_factor("host")

    def _shared_factor(self, phase: Phase) -> float:
        """Return the factor of a phase that belongs to no single pool: that of the first class of devices."""
        return self.factor_of(phase, "", self.classes[0].model)

    @cached_property
    def host(self) -> HostConstants:
        """Return the constants of what is done beside models; rates of CPU devices are those of steps of RL already."""
        found = host_constants(self.calibrated.get(HOST))
        return found if self.kind == "gpu" else replace(found, slowed_share=1.0, forward_share=1.0, update_share=1.0)

    @cached_property
    def host_work(self) -> HostWork:
        """Return what is done beside models in a step."""
        rows = max((load.rows for load in self.loads), default=self.prompts)
        response = self.response or max((load.response for load in self.loads), key=lambda each: each.mean)
        return host_work(self.running, self.prompts, self.prompt, response, rows)

    def training_of(self, engine: str) -> TrainingConstants:
        """Return the constants of an engine that trains, or that reads rows without training."""
        name = self._constants_name(engine)
        return _training_constants(name, tuple(self.calibrated.get(name, {}).items()))

    def serving_of(self, engine: str) -> ServingConstants:
        """Return the constants of an engine that generates responses."""
        name = self._constants_name(engine)
        return _serving_constants(name, tuple(self.calibrated.get(name, {}).items()))

    def _constants_name(self, engine: str) -> str:
        """Return the engine whose constants count: on a CPU `local`, since the others' are measured on GPUs."""
        return engine if self.kind == "gpu" else "local"


@lru_cache(maxsize=64)
def _training_constants(engine: str, moved: tuple[tuple[str, float], ...]) -> TrainingConstants:
    return constants(TrainingConstants, engine).moved(_named(TrainingConstants, moved))


@lru_cache(maxsize=64)
def _serving_constants(engine: str, moved: tuple[tuple[str, float], ...]) -> ServingConstants:
    return constants(ServingConstants, engine).moved(_named(ServingConstants, moved))


def _named(kind: type[Constants], moved: tuple[tuple[str, float], ...]) -> dict[str, float]:
    """Return the values that are of this kind of constants: an engine that trains and samples has both in one table."""
    return {name: value for name, value in moved if name in known(kind)}
