"""The fixed data of a search: the flow's workload, the models' sizes, the devices, and the engines."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

from flowgraph.analysis.roles import Role, Use, models_read, roles
from flowgraph.checks.placed import misread_settings
from flowgraph.cluster.calibration import Calibration, Phase
from flowgraph.cluster.cluster import Cluster, DeviceKind
from flowgraph.cluster.plan import Contract, Plan, Precision
from flowgraph.engines.capabilities import Support
from flowgraph.engines.table import ENGINES, engines_for, is_server
from flowgraph.errors import UnknownNameError
from flowgraph.language.graph import Graph, carried_from
from placements.hardware.engine_constants import (
    HOST,
    HostConstants,
    ServingConstants,
    TrainingConstants,
    constant_names,
    constants,
    host_constants,
)
from placements.hardware.topology import DeviceClass, classes
from placements.workload.batch_partition import BatchSizes
from placements.workload.batch_sizes import most_ranks, solve_batch
from placements.workload.graph_workload import StepWorkload, read_together
from placements.workload.lengths import LengthDistribution
from placements.workload.node_workload import NodeWorkload, node_workloads, stage_count

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
class PlanningProblem:
    """The fixed data of a search: a flow, `prompts` prompts a step, lengths in tokens, engines and devices.

    `response` None means the maximum that samplers allow. `engines` are the requested engines by use; other uses have
    `DEFAULT_ENGINES`. `sampling` is the precision of the weights that generate responses; None: `SAMPLING_PRECISION`.
    `calibrated` has constants by engine that replace the shipped ones; a `calibration` scales the seconds that are
    forecast with them.

    `staleness` lets steps overlap, so that rollouts lag by this number of updates; `sync_lag` only makes syncs rarer.
    `ratio` fixes the ratio of rollout to training devices, if they are separate. If responses are `streamed`, groups
    may be read in chunks while others are generated. `contract` says what a sync does to responses under way: with
    `in_flight` they go on, so that a sync does not wait for the longest; `ready` is the way of other systems, which
    also limit how many rows are admitted. (A plan of the contract `ready` is forecast as `in_flight`.) Under `ready`,
    caches are recomputed after a sync unless the engine `keeps_caches`. `without` names models of the flow that this
    run does not need. A `watched` graph has additional measurements; it runs in place of the flow's graph if one engine
    trains a model and another generates with it. If `modelled`, the plan may have layouts that cannot run here.
    `sample_rows` and `forward_tokens` are for engines that run in the process of their device.
    """

    graph: Graph
    cluster: Cluster
    shapes: Mapping[str, ModelShape]
    prompts: int
    prompt: LengthDistribution
    response: LengthDistribution | None = None
    engines: Mapping[Use, str] = field(default_factory=dict[Use, str])
    sampling: Precision | None = None
    calibrated: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    calibration: Calibration | None = None
    staleness: int | None = None
    sync_lag: int = 0
    ratio: tuple[int, int] | None = None
    streamed: bool = False
    contract: Contract | Literal["ready"] = "scheduled"
    keeps_caches: bool = False
    without: Collection[str] = ()
    watched: Graph | None = None
    modelled: bool = False
    sample_rows: int = SAMPLE_ROWS
    forward_tokens: int = FORWARD_TOKENS

    @property
    def workload(self) -> StepWorkload:
        """Return the size of a step's input; all prompts are assumed to have the maximum length, rounded down."""
        return StepWorkload(
            prompts=self.prompts,
            prompt_tokens=int(self.prompt.most),
            sample_rows=self.sample_rows,
            forward_tokens=self.forward_tokens,
        )

    def batch_sizes(self, plan: Plan | None = None, **rows: Any) -> BatchSizes:
        """Return how a step is divided into samples, minibatches and micro-batches.

        With a `plan`, its data ranks and the problem's lengths are used, else only the flow's settings. `rows` are the
        `data_rows` and `origins` of `solve_batch`, if known. Raises BatchError for sizes that contradict each other.
        """
        if plan is not None:
            rows["prompt_tokens"] = int(self.prompt.most)
            rows["response_tokens"] = None if self.response is None else int(self.response.most)
        return solve_batch(self.graph, self.prompts, plan=plan, **rows)

    @property
    def running(self) -> Graph:
        """Return the graph that runs: the watched graph if there is one, else the flow's."""
        return self.watched or self.graph

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """Return the roles of the flow, except those of models in `without`."""
        return tuple(role for role in roles(self.running) if role.param not in self.without)

    @cached_property
    def loads(self) -> tuple[NodeWorkload, ...]:
        """Return the work of each node of a step in the order of one pool: by stage, and updates last within a stage.

        Nodes of models in `without` are left out. Raises FlowTypeError for a sampler that does not declare how many
        responses it generates to a prompt.
        """
        loads = node_workloads(self.running, self.prompts, self.prompt, self.response)
        needed = (load for load in loads if load.role.param not in self.without)
        return tuple(sorted(needed, key=lambda load: (load.stage, load.phase == "update")))

    @cached_property
    def stages(self) -> int:
        """Return the number of stages of a step in which models work (see `NodeWorkload`), without weight syncs."""
        return stage_count(self.loads)

    @cached_property
    def classes(self) -> tuple[DeviceClass, ...]:
        """Return the classes of equal devices; only those of GPUs if the cluster has any."""
        device_classes = classes(self.cluster)
        return tuple(group for group in device_classes if group.kind == "gpu") or device_classes

    @property
    def kind(self) -> DeviceKind:
        """Return the kind of device that the problem plans for: `gpu` or `cpu`."""
        return self.classes[0].kind

    @property
    def sampling_precision(self) -> Precision:
        """Return the precision of the weights that generate responses: `sampling`, or if None the default of `kind`."""
        return self.sampling or SAMPLING_PRECISION[self.kind]

    def engines_of(self, use: Use) -> tuple[str, ...]:
        """Return the engines that a search considers for a use of a model: the requested engine, else the defaults.

        If all default engines for sampling are in `misread_settings`, the first engine with servers that runs here and
        is not in `misread_settings` is returned alone; the defaults if there is none.
        """
        if use in self.engines:
            return (self.engines[use],)
        defaults = DEFAULT_ENGINES[self.kind][use]
        if use != "sample" or not self.misread_settings.keys() >= {*defaults}:
            return defaults
        others = (name for name in engines_for(use, supported=True) if is_server(name))
        return next(((name,) for name in others if name not in self.misread_settings), defaults)

    @cached_property
    def misread_settings(self) -> Mapping[str, str]:
        """Return, for each engine that would not sample as the flow asks, the settings that it misreads, as text."""
        return misread_settings(self.running)

    def support_of(self, engine: str) -> Support:
        """Return the devices, layouts and settings that a search may choose for an engine.

        These are those that run here; for engines that cannot run here, or if `modelled`, those that can be forecast.
        Raises KeyError for an unknown engine.
        """
        capabilities = ENGINES[engine]
        if self.modelled or capabilities.supported is None:
            return capabilities.modelled
        return capabilities.supported

    @cached_property
    def most_ranks(self) -> int:
        """Return the maximum number of data ranks, at least 1, with which all have rows in each role and minibatch."""
        return most_ranks(self.running, self.prompts)

    @cached_property
    def synced(self) -> Mapping[str, str]:
        """Return, by name of each sampling role, the name of the role that trains its weights.

        Sampling roles with frozen weights are left out.
        """
        trained = {role.param: role.name for role in self.roles if role.use == "train"}
        return {role.name: trained[role.param] for role in self.roles if role.use == "sample" and role.param in trained}

    @cached_property
    def staleness_bound(self) -> int:
        """Return the smallest staleness bound, in updates, that the flow declares for a trained model; 0 if none."""
        bounds = [
            edge.at_most
            for node in self.running.all_nodes
            if node.op.kind == "generate"
            for edge in models_read(node)
            if (root := carried_from(edge)) is not None and f"{root.name}.train" in self.synced.values()
        ]
        return min(bounds, default=0)

    def lag_of(self, role: Role) -> int:
        """Return how many updates old the weights of a role may be; 0 unless another role trains them."""
        return self.lag if role.name in self.synced else 0

    @property
    def overlaps(self) -> bool:
        """Return whether steps may overlap: whether `staleness` is at least 1."""
        return bool(self.staleness)

    @property
    def lag(self) -> int:
        """Return how many updates old the sampling weights may be: `staleness` unless it is None, else `sync_lag`."""
        return self.staleness if self.staleness is not None else self.sync_lag

    @property
    def overlapped(self) -> int:
        """Return the maximum number of steps in progress at once: `staleness` plus 1; 1 without staleness."""
        return (self.staleness or 0) + 1

    @cached_property
    def together(self) -> tuple[frozenset[int], ...]:
        """Return the sets of roles that must share a pool, since one node reads their models; indices into `roles`."""
        place = {role.name: number for number, role in enumerate(self.roles)}
        return tuple(frozenset(place[name] for name in read if name in place) for read in read_together(self.running))

    @cached_property
    def whole_rows(self) -> frozenset[str]:
        """Return the names of nodes that run a model on all rows together, so that data ranks cannot share them."""
        nodes = self.running.nodes
        return frozenset(node.name for node in nodes if node.model() is not None and not node.op.separable)

    def loads_of(self, role: Role, engine: str = "") -> list[NodeWorkload]:
        """Return the work of the nodes of one role.

        On CPUs, if `engine` also generates, nodes that only the watched graph has are left out.
        """
        loads = [load for load in self.loads if load.role.name == role.name]
        if self.watched is None or not engine or self.kind == "gpu" or engine not in self.engines_of("sample"):
            return loads
        nodes = {node.name for node in self.graph.all_nodes}
        return [load for load in loads if load.node in nodes]

    def role(self, name: str) -> Role:
        """Return the role with this name. Raises UnknownNameError if it is not one of `roles`."""
        for role in self.roles:
            if role.name == name:
                return role
        raise UnknownNameError.of(f"role of {self.graph.name}", name, [role.name for role in self.roles])

    def shape(self, role: Role) -> ModelShape:
        """Return the shape (layer counts and widths) of a role's model. Raises KeyError for a model without a shape."""
        return self.shapes[role.param]

    def factor_of(self, phase: Phase, role: str, device: str) -> float:
        """Return the ratio of measured to forecast seconds of a role's phase on a device model; 1 if it is unknown."""
        return 1.0 if self.calibration is None else self.calibration.factor_of(phase, role, device)

    @cached_property
    def sync_factor(self) -> float:
        """Return the ratio of measured to forecast seconds of weight syncs on the first device class; 1 if unknown."""
        return self.factor_of("sync", "", self.classes[0].model)  # of no single pool: the first class of devices

    @cached_property
    def host_factor(self) -> float:
        """Return the ratio of measured to forecast seconds of host nodes on the first device class; 1 if unknown."""
        return self.factor_of("host", "", self.classes[0].model)

    @cached_property
    def host(self) -> HostConstants:
        """Return the constants of host work, with calibrated values. Raises UnknownNameError if a name is unknown.

        On CPUs the factors by which an RL step slows models are 1, since rates that were measured on CPUs include them.
        """
        host = host_constants(self.calibrated.get(HOST))
        return host if self.kind == "gpu" else replace(host, slowed_share=1.0, forward_share=1.0, update_share=1.0)

    def training_of(self, engine: str) -> TrainingConstants:
        """Return an engine's calibrated constants for training and passes without gradients; on CPUs, those of `local`.

        Raises UnknownNameError if the engine has no constants, or lacks one for training.
        """
        training: TrainingConstants = self._constants(TrainingConstants, engine)
        return training

    def serving_of(self, engine: str) -> ServingConstants:
        """Return the calibrated constants of an engine for generating responses; on CPUs, those of `local`.

        Raises UnknownNameError if the engine has no constants, or lacks one for generation.
        """
        serving: ServingConstants = self._constants(ServingConstants, engine)
        return serving

    def _constants(self, kind: Any, engine: str) -> Any:
        name = engine if self.kind == "gpu" else "local"
        return _moved(kind, name, tuple(self.calibrated.get(name, {}).items()))


@lru_cache(maxsize=128)
def _moved(kind: type[Any], engine: str, moved: tuple[tuple[str, float], ...]) -> Any:
    """Return constants with those values that are of this kind: an engine may have both kinds in one table."""
    return constants(kind, engine).moved({name: value for name, value in moved if name in constant_names(kind)})
