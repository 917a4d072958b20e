"""What a search is about and does not change: the flow's loads, the models' sizes, the devices, and the engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from flowgraph.cluster import Cluster
from flowgraph.graph import Graph, carried_from
from flowgraph.plan import Precision
from flowgraph.roles import Role, Use, models_read, roles
from placements.batch_sizes import most_ranks
from placements.constants import constants
from placements.decode import ServingConstants
from placements.lengths import Lengths
from placements.loads import Load, loads, of_role, stage_count
from placements.steps import HOST, HostConstants, host_constants
from placements.topology import DeviceClass, classes
from placements.training_passes import TrainingConstants

if TYPE_CHECKING:
    from flowgraph.models import ModelShape

ENGINES: Mapping[Use, str] = {"train": "fsdp", "sample": "sglang", "infer": "fsdp"}
"""The engine of each use of a model, unless another is named."""


@dataclass(frozen=True)
class Setting:
    """What a search is about: `prompts` a step, of these lengths, and what runs and holds the models.

    `response` None takes the most that samplers say. `sampling` is the precision of weights where responses are drawn.
    `calibrated` are constants by engine, in place of the shipped ones. `staleness` lets what draws lag further than the
    flow does; `ratio` fixes the devices that draw to those that train, where these are apart. Where responses are
    `streamed`, drawing goes on across steps and waits for no longest response. Models of `without` are those of the
    flow that this run does without. A graph that is `watched` runs in place of the flow's: it measures more.
    Of our own executors, `sample_rows` are decoded side by side on a rank, and a pass without gradients reads
    `forward_tokens`.
    """

    graph: Graph
    cluster: Cluster
    shapes: Mapping[str, ModelShape]
    prompts: int
    prompt: Lengths
    response: Lengths | None = None
    engines: Mapping[Use, str] = field(default_factory=lambda: dict(ENGINES))
    sampling: Precision = "bfloat16"
    calibrated: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    staleness: int | None = None
    ratio: tuple[int, int] | None = None
    streamed: bool = False
    without: frozenset[str] = frozenset()
    watched: Graph | None = None
    sample_rows: int = 256
    forward_tokens: int = 4096

    @property
    def running(self) -> Graph:
        """Give the graph that a run has: the flow's, with what is measured beside it."""
        return self.watched or self.graph

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """Give the roles of the flow."""
        return tuple(role for role in roles(self.running) if role.param not in self.without)

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """Give the loads of a step, in the order in which one pool does them: by stage, updates last of each."""
        found = loads(self.running, self.prompts, self.prompt, self.response)
        own = (load for load in found if load.role.param not in self.without)
        return tuple(sorted(own, key=lambda load: (load.stage, load.phase == "update")))

    @cached_property
    def stages(self) -> int:
        """Give the stages of a step in which models work; syncs come after them."""
        return stage_count(self.loads)

    @cached_property
    def classes(self) -> tuple[DeviceClass, ...]:
        """Give the classes of equal devices."""
        return classes(self.cluster)

    @cached_property
    def most_ranks(self) -> int:
        """Give the most data ranks that each have a row at all times."""
        return most_ranks(self.running, self.prompts)

    @cached_property
    def synced(self) -> Mapping[str, str]:
        """Give for each role that reads weights which another role trains the role that trains them."""
        trained = {role.param: role.name for role in self.roles if role.use == "train"}
        return {role.name: trained[role.param] for role in self.roles if role.use == "sample" and role.param in trained}

    @cached_property
    def lag(self) -> int:
        """Give how many updates old the weights that draw responses may be, by the strictest of the flow's reads."""
        if self.staleness is not None:
            return self.staleness
        bounds = [
            edge.at_most
            for node in self.running.all_nodes
            if node.op.kind == "generate"
            for edge in models_read(node)
            if (root := carried_from(edge)) is not None and f"{root.name}.train" in self.synced.values()
        ]
        return min(bounds, default=0)

    @property
    def overlapped(self) -> int:
        """Give how many steps may be under way at once: what draws, what only reads, and what trains."""
        return min(self.lag, 2) + 1

    def loads_of(self, role: Role) -> list[Load]:
        """Give the loads of one role."""
        return list(of_role(self.loads, role.name))

    def shape(self, role: Role) -> ModelShape:
        """Give the sizes of a role's model."""
        return self.shapes[role.param]

    @cached_property
    def host(self) -> HostConstants:
        """Give the constants of what is done beside models."""
        return host_constants(self.calibrated.get(HOST))

    @cached_property
    def training(self) -> TrainingConstants:
        """Give the constants of the engine that trains."""
        return constants(TrainingConstants, self.engines["train"]).moved(self.calibrated.get(self.engines["train"], {}))

    @cached_property
    def inferring(self) -> TrainingConstants:
        """Give the constants of the engine that reads rows without training."""
        return constants(TrainingConstants, self.engines["infer"]).moved(self.calibrated.get(self.engines["infer"], {}))

    @cached_property
    def serving(self) -> ServingConstants:
        """Give the constants of the engine that draws responses."""
        return constants(ServingConstants, self.engines["sample"]).moved(
            self.calibrated.get(self.engines["sample"], {})
        )
