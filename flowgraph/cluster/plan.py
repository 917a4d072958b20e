"""A plan as data: which pool each role lives on, in which layout and on which engine, and what memory that takes.

A plan written by hand is as good as a found one. Not here: whether it fits a graph (`check_plan`), and the search.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, ConfigDict, Field, NonNegativeInt, ValidationError

from flowgraph.cluster.calibration import Calibration
from flowgraph.cluster.cluster import Cluster, CompactData, Data, Device, Positive, dotted
from flowgraph.errors import PlanError
from flowgraph.files.untrusted import parse_json
from flowgraph.language.notebook import mimebundle

Precision = Literal["float32", "bfloat16", "fp8", "fp4"]
Sharding = Literal["none", "optimizer", "gradients", "full"]
Checkpointing = Literal["none", "selective", "full"]
Logits = Literal["whole", "chunked"]
Offloaded = Literal["parameters", "gradients", "optimizer"]
WeightsBy = Literal["disk", "group", "memory"]
TaskKind = Literal["generate", "logprob", "update", "score", "host", "sync", "offload", "transfer"]

MOST_SECONDS = 1e30  # of a part of a task: so that sums over a step stay finite
MOST_PROMPTS = 10**9  # of a step: more than anyone draws, and few enough that a slip of the pen is refused
MOST_THREADS = 65_536  # of one process: what a library takes without an error
Seconds = Annotated[float, Field(ge=0, le=MOST_SECONDS, allow_inf_nan=False)]


def _not_host(name: str) -> str:
    if name == "host":
        raise ValueError("`host` names what runs on no pool; give the pool another name")
    return name


class Layout(Data):
    """How a model is cut over the devices of its pool: the degree of each way to split it.

    Ranks of `data` each work on rows of their own. `sharding` cuts what a model holds over them too: "optimizer" its
    states, "gradients" these as well, "full" the weights as well, so that each holds 1/data (ZeRO stages 1, 2, 3).
    The tokens of a row are spread over `sequence` devices. Experts are spread over `expert` of the data and sequence
    ranks, which divides them, so that takes no devices of its own. Full sharding may keep `replicas` whole copies, one
    for each node say: then each rank holds a share of one copy.
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
        """Give over how many devices the weights are cut by full sharding; 1 without."""
        return max(1, self.data * self.sequence // self.replicas) if self.sharding == "full" else 1

    @property
    def devices(self) -> int:
        """Give the number of devices it takes."""
        return self.data * self.tensor * self.pipeline * self.sequence

    def __str__(self) -> str:
        rare = ((name, getattr(self, name)) for name in ("pipeline", "expert", "sequence", "replicas"))
        told = "".join(f" {name}={degree}" for name, degree in rare if degree > 1)
        sharded = "" if self.sharding == "none" else f" sharding={self.sharding}"
        return f"data={self.data} tensor={self.tensor}{told}{sharded}"


class RoleSettings(Data):
    """How a role computes, and what it does to hold less; the default is what an executor does unasked.

    `checkpointing` says which activations are computed again; `offload` what lies in host memory and comes to the
    device as it is used; `micro_batch_tokens` go through at once. The `logits` of these are there all at once
    ("whole"), or a chunk of tokens at a time, made again for the backward pass: what others call a fused loss. Of what
    samples, `cache_share` is the part of a device's memory that its weights and cache may take. What `sleeps` leaves
    the device while other roles work there.
    """

    precision: Precision = "float32"
    checkpointing: Checkpointing = "none"
    offload: tuple[Offloaded, ...] = ()
    micro_batch_tokens: Positive | None = None
    logits: Logits = "chunked"
    cache_share: Annotated[float, Field(gt=0, le=1)] | None = None
    sleeps: bool = False
    weights_by: WeightsBy | None = None

    def __str__(self) -> str:
        parts: list[str] = [self.precision] if self.precision != "float32" else []
        parts += [f"checkpointing={self.checkpointing}"] if self.checkpointing != "none" else []
        everything = len(self.offload) == len(get_args(Offloaded))
        parts += [f"offload={'all' if everything else '+'.join(self.offload)}"] if self.offload else []
        parts += [f"micro_batch_tokens={self.micro_batch_tokens}"] if self.micro_batch_tokens is not None else []
        parts += [f"logits={self.logits}"] if self.logits != "chunked" else []
        parts += [f"cache_share={self.cache_share:g}"] if self.cache_share is not None else []
        parts += ["sleeps"] if self.sleeps else []
        return " ".join([*parts, f"weights_by={self.weights_by}"] if self.weights_by is not None else parts)


class Pool(Data):
    """Devices that roles share, each as (node name, place among the node's devices).

    Its name is part of file names, and `host` is what runs on no pool.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"), AfterValidator(_not_host)]
    devices: Annotated[tuple[tuple[str, NonNegativeInt], ...], Field(min_length=1)]


class PlacedRole(Data):
    """One role on one pool. `memory` is forecast bytes by part, on each of its devices, the most it holds at once.

    `lag` is of a role that samples: how many updates old its copy of the weights may be before it is synced.
    """

    role: str
    pool: str
    engine: str
    layout: Layout = Layout()
    lag: NonNegativeInt = 0
    running: RoleSettings = RoleSettings()
    memory: dict[str, NonNegativeInt] = Field(default_factory=dict[str, int])

    @property
    def late(self) -> str:
        """Say how old its weights may be, where they may: `lag=2`."""
        return f"lag={self.lag}" if self.lag else ""


class PhasePeak(CompactData):
    """The most memory in use on each device of a pool in one phase of the step, and the role that works then.

    `held` are its bytes by role, of the program itself as `process`; nothing where that is not known.
    """

    phase: str
    role: str
    memory_bytes: NonNegativeInt
    held: dict[str, NonNegativeInt] = Field(default={})

    def __hash__(self) -> int:
        return hash((self.phase, self.role, self.memory_bytes))


class PoolForecast(Data):
    """What a pool's devices hold: `process_bytes` for the program itself, and the peak of each phase, that included."""

    pool: str
    process_bytes: NonNegativeInt
    peaks: tuple[PhasePeak, ...]

    @property
    def worst(self) -> PhasePeak | None:
        """Give the largest peak, the first of equals; None if nothing works there."""
        return max(self.peaks, key=lambda peak: peak.memory_bytes, default=None)


class TimedTask(Data):
    """One task of a step, as its program names it: its role, the pools that it occupies, and its seconds by part.

    A part that is not known is None. Where steps overlap, it works on rows drawn `shift` steps earlier, so that it does
    not run in the first of them.
    """

    name: str
    kind: TaskKind
    role: str = ""
    pools: tuple[str, ...] = ()
    parts: dict[str, Seconds | None] = Field(default_factory=dict[str, "float | None"])
    shift: NonNegativeInt = 0

    @property
    def seconds(self) -> float | None:
        """Give the sum of its parts, None if one of them is not known."""
        known = [each for each in self.parts.values() if each is not None]
        return sum(known) if len(known) == len(self.parts) else None


class TaskOrder(Data):
    """Of each step, `after` begins when `before` of `delay` steps earlier has ended, and `pause_s` have passed.

    What passes between steps is the driver's own: what it logs, checks and writes down.
    """

    before: str
    after: str
    delay: NonNegativeInt = 0
    pause_s: Seconds = 0.0


class StepForecast(Data):
    """The forecast of a step: its tasks in the order of each pool, what waits for what, and how long a step takes.

    `period_s` is how far apart steps are once they run one after another, which `cycle`, the tasks that come round
    slowest, decides; None where a task is not known.
    """

    tasks: tuple[TimedTask, ...]
    waits: tuple[TaskOrder, ...]
    period_s: Seconds | None
    cycle: tuple[str, ...] = ()


class PlanAssumptions(Data):
    """All that a plan was made for: from it and from the cluster the same plan and forecast are made again.

    Flow, models, data and passes are as they were named; rows and lengths are of a step, those of the `data` set if one
    is named. `engines` are those that were asked for by use, and `precision` that of the weights that generate
    responses; None and what is not there are as the devices have them. `constants` are those of engines that were not
    the shipped ones, and a `calibration` scales the seconds that these forecast. A `staleness` lets rollouts lag
    further than the flow does, `ratio` fixes the rollout devices to the training devices, `streamed` lets generation go
    on across steps, and models of `without` are those of the flow that the run does without. `sample_rows` and
    `forward_tokens` are of engines that run in the process of a device.
    """

    flow: str
    models: dict[str, str]
    data: str = ""
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
    """Where every role of a flow lives, for the graph of one structure hash.

    It may name engines, layouts and settings that are only modelled: `check_plan.unsupported` returns what of a plan
    cannot be run here.
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
        """Write it as JSON; `from_json` reads it back the same."""
        return self.model_dump_json(indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str = "plan") -> Plan:
        """Read a plan; `where` is the file's name.

        Raises PlanError for text that is no plan: what stands where, and for an unknown key the nearest that is known.
        """
        try:
            return cls.model_validate_json(_without_costed(text))
        except ValidationError as error:
            faults = error.errors(include_url=False)
            unknown = [fault for fault in faults if fault["type"] == "extra_forbidden"]
            place, why = (unknown or faults)[0]["loc"], (unknown or faults)[0]["msg"]
            if unknown:
                raise PlanError.unknown_key(where, dotted(place), str(place[-1]), _keys_at(place)) from None
            raise PlanError.unreadable(where, dotted(place), why) from None
        except ValueError as error:
            raise PlanError.unreadable(where, "", f"is no JSON: {error}") from None

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return mimebundle(self)

    def used(self) -> list[Device]:
        """Give the devices of all pools that are there, pool by pool."""
        found = (self.cluster.device(*place) for pool in self.pools for place in pool.devices)
        return [device for device in found if device is not None]

    def pool(self, name: str) -> Pool | None:
        """Give the pool of this name, if there is one."""
        return next((pool for pool in self.pools if pool.name == name), None)


def _without_costed(text: str) -> str:
    """Leave out what plans once said of themselves, and what follows from the table of engines now."""
    data = parse_json(text)
    if not isinstance(data, dict) or "costed" not in data:
        return text
    return json.dumps({key: each for key, each in data.items() if key != "costed"})


def _keys_at(place: Sequence[int | str]) -> list[str]:
    """Give the keys that are known beside the last step of `place`."""
    kind: type[Data] = Plan
    for step in place[:-1]:
        if isinstance(step, str):
            kind = _data_in(kind.model_fields[step].annotation) or kind
    return [str(field.validation_alias or name) for name, field in kind.model_fields.items()]


def _data_in(annotation: Any) -> type[Data] | None:
    if isinstance(annotation, type) and issubclass(annotation, Data):
        return annotation
    return next((found for each in get_args(annotation) if (found := _data_in(each)) is not None), None)
