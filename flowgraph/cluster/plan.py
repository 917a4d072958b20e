"""A plan as data: the pool, layout and engine of each role, and the forecast of memory and time.

A plan can be written by hand. Not here: the check against a graph (`check_plan`), and the search.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    ValidationError,
)

from flowgraph.cluster.calibration import Calibration
from flowgraph.cluster.cluster import Cluster, CompactData, Data, Device, Positive, dotted, key_names
from flowgraph.errors import PlanError
from flowgraph.files.untrusted import parse_json
from flowgraph.language.notebook import mimebundle

Precision = Literal["float32", "bfloat16", "fp8", "fp4"]
Sharding = Literal["none", "optimizer", "gradients", "full"]
Checkpointing = Literal["none", "selective", "full"]
Logits = Literal["whole", "chunked"]
Offloaded = Literal["parameters", "gradients", "optimizer"]
WeightsBy = Literal["disk", "group", "memory"]
Contract = Literal["scheduled", "in_flight", "ready"]
Hold = Literal["retract", "in_place"]
TaskKind = Literal["generate", "logprob", "update", "score", "host", "sync", "offload", "transfer"]

MOST_SECONDS = 1e30  # of a part of a task: sums over a step stay finite
MOST_CHUNKS = 256  # of the groups of a step: each is a task of every node that reads it
MOST_PROMPTS = 10**9  # of a step: more than anyone samples, and few enough that a typing error is refused
MOST_THREADS = 65_536  # of one process: the most that libraries accept
Seconds = Annotated[float, Field(ge=0, le=MOST_SECONDS, allow_inf_nan=False)]


def _not_host(name: str) -> str:
    if name == "host":
        raise ValueError("`host` is the place of nodes without a model; give the pool another name")
    return name


def _several(value: Any) -> Any:
    one = (value,) if value else ()  # older plans name one set as a text
    return one if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


class Layout(Data):
    """How a model is split over the devices of its pool: the degree of each kind of parallelism.

    Each of the `data` ranks works on different rows. `sharding` also splits the model over these ranks: "optimizer"
    splits the optimizer states, "gradients" the gradients too, "full" the weights too (ZeRO stages 1, 2, 3). The tokens
    of a row are split over `sequence` devices. Groups of `expert` data and sequence ranks divide the experts, so they
    need no further devices. With full sharding, the model may have `replicas` complete copies, such as one on each
    node: each rank then holds a share of one copy.
    """

    data: Positive = 1
    tensor: Positive = 1
    pipeline: Positive = 1
    expert: Positive = 1
    sequence: Positive = 1
    sharding: Sharding = "none"
    replicas: Positive = 1

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__.values()))

    @property
    def shards(self) -> int:
        """Return the number of data and sequence ranks that share a copy of the weights; 1 unless sharding is full."""
        return max(1, self.data * self.sequence // self.replicas) if self.sharding == "full" else 1

    @property
    def devices(self) -> int:
        """Return the number of devices that the layout needs: data · tensor · pipeline · sequence."""
        return self.data * self.tensor * self.pipeline * self.sequence

    def __str__(self) -> str:
        optional = ((name, getattr(self, name)) for name in ("pipeline", "expert", "sequence", "replicas"))
        degrees = "".join(f" {name}={degree}" for name, degree in optional if degree > 1)
        sharding = "" if self.sharding == "none" else f" sharding={self.sharding}"
        return f"data={self.data} tensor={self.tensor}{degrees}{sharding}"


class RoleSettings(Data):
    """How a role computes and saves memory.

    `checkpointing` selects the activations that are recomputed, and `offload` the parts that stay in host memory until
    they are used. `micro_batch_tokens` is the largest number of tokens in a pass with gradients; None means the flow's
    number. `logits` of a pass are in memory together ("whole"), or in chunks of tokens that the backward pass
    recomputes (a fused loss). For a role that samples, `cache_share` is the fraction of a device's memory for weights
    and KV cache, and `weights_by` the transport of new weights; None leaves the choice to the engine. A role that
    `sleeps` frees the device while other roles work on it.

    For a role that samples ahead, `contract` says what a sync does to responses under way: "scheduled" waits for them;
    with "in_flight" they go on with the new weights; with "ready" they do, too, and a step trains on the groups that
    have finished, the oldest first, instead of waiting for its own. `hold` says what becomes of their KV caches then:
    "retract" computes them again, "in_place" keeps those of the old weights. The JSON omits these two at their
    defaults.
    """

    precision: Precision = "float32"
    checkpointing: Checkpointing = "none"
    offload: tuple[Offloaded, ...] = ()
    micro_batch_tokens: Positive | None = None
    logits: Logits = "chunked"
    cache_share: Annotated[float, Field(gt=0, le=1)] | None = None
    sleeps: bool = False
    weights_by: WeightsBy | None = None
    contract: Contract = Field(default="scheduled", exclude_if=lambda contract: contract == "scheduled")
    hold: Hold = Field(default="retract", exclude_if=lambda hold: hold == "retract")

    @property
    def in_flight(self) -> bool:
        """Return whether responses that are under way at a sync go on with the new weights."""
        return self.contract != "scheduled"

    def __str__(self) -> str:
        everything = len(self.offload) == len(get_args(Offloaded))
        fields = type(self).model_fields
        texts = {name: f"{name}={getattr(self, name)}" for name in fields}
        texts |= {
            "precision": self.precision,
            "sleeps": "sleeps",
            "cache_share": f"cache_share={self.cache_share or 0:g}",
        }
        texts["offload"] = f"offload={'all' if everything else '+'.join(self.offload)}"
        return " ".join(texts[name] for name, field in fields.items() if getattr(self, name) != field.default)


class Pool(Data):
    """Devices that roles share, each as (node name, index in the node).

    The name is used in file names, and cannot be `host`, the place of nodes that read no model.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"), AfterValidator(_not_host)]
    devices: Annotated[tuple[tuple[str, NonNegativeInt], ...], Field(min_length=1)]


class PlacedRole(Data):
    """One role on one pool. `memory` is the forecast peak on each of its devices, in bytes by part.

    For a role that samples, `lag` is the largest number of updates by which its weights may be older than the weights
    that train on its rows. `ahead` is the number of steps by which the role works ahead of its step's update; the rest
    of `lag` makes syncs rarer. Under the contract `ready`, a group may be trained on `behind` steps after its own,
    which are part of `lag`, too. A role that samples hands out the groups of a step in `chunks`, each as soon as its
    responses are finished, to nodes on other devices. The JSON omits `ahead` and `behind` if they are 0, and `chunks`
    if it is 1.
    """

    role: str
    pool: str
    engine: str
    layout: Layout = Layout()
    lag: NonNegativeInt = 0
    ahead: NonNegativeInt = Field(default=0, exclude_if=lambda steps: steps == 0)
    behind: NonNegativeInt = Field(default=0, exclude_if=lambda steps: steps == 0)
    chunks: Annotated[int, Field(gt=0, le=MOST_CHUNKS, exclude_if=lambda chunks: chunks == 1)] = 1
    running: RoleSettings = RoleSettings()
    memory: dict[str, NonNegativeInt] = Field(default_factory=dict[str, int])

    @property
    def home(self) -> tuple[str, str, Layout]:
        """Return (pool, engine, layout), which roles of one model have in common if they share its weights."""
        return self.pool, self.engine, self.layout

    @property
    def late(self) -> str:
        """Return `lag`, `ahead`, `behind` and `chunks` as text, such as `lag=2 ahead=1`; defaults are left out."""
        chunks = self.chunks if self.chunks > 1 else 0
        values = (("lag", self.lag), ("ahead", self.ahead), ("behind", self.behind), ("chunks", chunks))
        return " ".join(f"{name}={value}" for name, value in values if value)


class PhasePeak(CompactData):
    """The peak memory in bytes on each device of a pool in one phase of the step, and the role that works in the phase.

    `held` divides this memory by role, with the process itself as `process`; empty if unknown.
    """

    phase: str
    role: str
    memory_bytes: NonNegativeInt
    held: dict[str, NonNegativeInt] = Field(default={})

    def __hash__(self) -> int:
        return hash((self.phase, self.role, self.memory_bytes))


class PoolForecast(Data):
    """The forecast memory of each device of a pool: the bytes of the process itself, and the peak of each phase.

    The peaks include `process_bytes`.
    """

    pool: str
    process_bytes: NonNegativeInt
    peaks: tuple[PhasePeak, ...]

    @property
    def worst(self) -> PhasePeak | None:
        """Return the phase with the largest peak memory, the first of several with equal peaks; None without phases."""
        return max(self.peaks, key=lambda peak: peak.memory_bytes, default=None)


class TimedTask(Data):
    """One task of a step by its name in the program: its role, the pools that it occupies, and its seconds by part.

    An unknown part is None. If steps overlap, a task works on rows sampled `shift` steps earlier, so it does not run in
    the first `shift` steps. A sync of weights runs in one of `every` steps; the JSON omits `every` if it is 1.
    """

    name: str
    kind: TaskKind
    role: str = ""
    pools: tuple[str, ...] = ()
    parts: dict[str, Seconds | None] = Field(default_factory=dict[str, "float | None"])
    shift: NonNegativeInt = 0
    every: Positive = Field(default=1, exclude_if=lambda steps: steps == 1)

    @property
    def seconds(self) -> float | None:
        """Return the sum of the parts in seconds; None if one of them is unknown, 0 without parts."""
        seconds = [part for part in self.parts.values() if part is not None]
        return sum(seconds) if len(seconds) == len(self.parts) else None


class TaskOrder(Data):
    """In each step, task `after` waits for the end of `before`, `delay` steps earlier, and then for `pause_s` seconds.

    In a pause between steps, the driver logs, checks and writes files.
    """

    before: str
    after: str
    delay: NonNegativeInt = 0
    pause_s: Seconds = 0.0


class StepForecast(Data):
    """The forecast of a step: its tasks in the order in which pools run them, their waits, and the time of a step.

    `period_s` is the seconds from one step to the next, which the critical `cycle` of tasks determines; None if the
    seconds of a task are unknown.
    """

    tasks: tuple[TimedTask, ...]
    waits: tuple[TaskOrder, ...]
    period_s: Seconds | None
    cycle: tuple[str, ...] = ()


class PlanAssumptions(Data):
    """The request that a plan answers; with it and the cluster, the same plan and forecast can be made again.

    Flow, models, data and passes are named as in the request. `batch` is the prompts of a step; rows and lengths come
    from the `data` sets if there are any, with `columns` read by other names. `engines` are the requested ones by use,
    and `precision` is that of the weights that generate responses; their defaults come from the devices. `constants`
    are the constants of engines that differ from the shipped ones, and `calibration` scales the forecast seconds.
    `staleness` allows rollouts a larger lag than the flow does, `ratio` fixes rollout devices to training devices,
    `streamed` lets groups be read while others are sampled, and `without` lists models of the flow that the run does
    not load. `sample_rows` and `forward_tokens` are for engines that run in the process of a device.
    """

    flow: str
    models: dict[str, str]
    data: Annotated[tuple[str, ...], BeforeValidator(_several)] = ()
    columns: tuple[str, ...] = ()
    batch: Annotated[int, Field(gt=0, le=MOST_PROMPTS)]
    prompt_tokens: str
    response_tokens: str = ""
    settings: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    engines: dict[str, str] = Field(default_factory=dict[str, str])
    precision: Precision | None = None
    constants: dict[str, dict[str, float]] = Field(default_factory=dict[str, dict[str, float]])
    calibration: Calibration | None = None
    staleness: NonNegativeInt | None = None
    ratio: tuple[Positive, Positive] | None = None
    streamed: bool = False
    without: tuple[str, ...] = ()
    sample_rows: Positive = 256
    forward_tokens: Positive = 4096


class Plan(Data):
    """The pool, layout and engine of every role of a flow, for the graph with this structure hash.

    A plan may name engines, layouts and settings that can only be forecast: `checks.placed.unsupported_parts` returns
    those that cannot run here.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    schema_version: Literal[1] = Field(default=1, validation_alias="schema", serialization_alias="schema")
    flow: str
    structure_hash: str
    cluster: Cluster
    pools: tuple[Pool, ...]
    placed: tuple[PlacedRole, ...]
    forecast: tuple[PoolForecast, ...] = ()
    step: StepForecast | None = None
    assumed: PlanAssumptions | None = None

    def to_json(self) -> str:
        """Return the plan as JSON text, in the form that `from_json` reads."""
        return self.model_dump_json(indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str = "plan") -> Plan:
        """Return the plan that a JSON text describes; `where` is the file's name in errors.

        Raises PlanError, with the place of the fault, if the text is not JSON or not a plan; for an unknown key, the
        error names the nearest known key. The key `costed` of older plans is ignored.
        """
        try:
            data = parse_json(text)
            if isinstance(data, dict) and "costed" in data:  # a key of older plans; the table of engines answers it now
                text = json.dumps({key: value for key, value in data.items() if key != "costed"})
            return cls.model_validate_json(text)
        except ValidationError as error:
            faults = error.errors(include_url=False)
            fault = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
            place = fault["loc"]
            if fault["type"] == "extra_forbidden":
                raise PlanError.unknown_key(where, dotted(place), str(place[-1]), _keys_at(place)) from None
            raise PlanError.unreadable(where, dotted(place), fault["msg"]) from None
        except ValueError as error:
            raise PlanError.unreadable(where, "", f"is not JSON: {error}") from None

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return mimebundle(self)

    def used(self) -> list[Device]:
        """Return the devices of each pool in turn; those of several pools are repeated.

        Devices that the cluster does not have are left out.
        """
        devices = (self.cluster.device(*place) for pool in self.pools for place in pool.devices)
        return [device for device in devices if device is not None]

    def pool(self, name: str) -> Pool | None:
        """Return the pool named `name`; None if there is none."""
        return next((pool for pool in self.pools if pool.name == name), None)


def _keys_at(place: Sequence[int | str]) -> list[str]:
    def data_in(annotation: Any) -> type[Data] | None:
        if isinstance(annotation, type) and issubclass(annotation, Data):
            return annotation
        return next(filter(None, map(data_in, get_args(annotation))), None)

    kind: type[Data] = Plan
    for step in place[:-1]:
        if isinstance(step, str):
            kind = data_in(kind.model_fields[step].annotation) or kind
    return key_names(kind)
