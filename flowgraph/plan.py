"""A plan as data: which pool each role lives on, in which layout and on which engine, and what memory that takes.

A plan written by hand is as good as a found one. Not here: whether it fits a graph (`check_plan`), and the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Field, NonNegativeInt, ValidationError

from flowgraph.cluster import Cluster, Data, Device, Positive, dotted
from flowgraph.errors import PlanError


class Layout(Data):
    """How a model is cut over the devices of its pool: the degree of each way to split it.

    Ranks of `data` each work on rows of their own; `sharding` "full" cuts weights, gradients and optimizer over them
    too, so that each holds 1/data (ZeRO stage 3).
    """

    data: Positive = 1
    tensor: Positive = 1
    pipeline: Positive = 1
    sharding: Literal["none", "full"] = "none"

    @property
    def devices(self) -> int:
        """Give the number of devices it takes."""
        return self.data * self.tensor * self.pipeline

    def __str__(self) -> str:
        sharded = "" if self.sharding == "none" else f" sharding={self.sharding}"
        return f"data={self.data} tensor={self.tensor} pipeline={self.pipeline}{sharded}"


class Pool(Data):
    """Devices that roles share, each as (node name, place among the node's devices)."""

    name: str
    devices: Annotated[tuple[tuple[str, NonNegativeInt], ...], Field(min_length=1)]


class Placed(Data):
    """One role on one pool. `memory` is forecast bytes by part, on each of its devices, the most it holds at once.

    `lag` is of a role that samples: how many updates old its copy of the weights may be before it is synced.
    """

    role: str
    pool: str
    engine: str
    layout: Layout = Layout()
    lag: NonNegativeInt = 0
    memory: dict[str, NonNegativeInt] = Field(default_factory=dict[str, int])

    @property
    def late(self) -> str:
        """Say how old its weights may be, where they may: `lag=2`."""
        return f"lag={self.lag}" if self.lag else ""


class Peak(Data):
    """The most memory in use on each device of a pool in one phase of the step, and the role that works then."""

    phase: str
    role: str
    memory_bytes: NonNegativeInt


class Forecast(Data):
    """What a pool's devices hold: `process_bytes` for the program itself, and the peak of each phase, that included."""

    pool: str
    process_bytes: NonNegativeInt
    peaks: tuple[Peak, ...]

    @property
    def worst(self) -> Peak | None:
        """Give the largest peak, the first of equals; None if nothing works there."""
        return max(self.peaks, key=lambda peak: peak.memory_bytes, default=None)


class Plan(Data):
    """Where every role of a flow lives, for the graph of one structure hash."""

    model_config = ConfigDict(serialize_by_alias=True)

    schema_version: Literal[1] = Field(default=1, validation_alias="schema", serialization_alias="schema")
    flow: str
    structure_hash: str
    cluster: Cluster
    pools: tuple[Pool, ...]
    placed: tuple[Placed, ...]
    forecast: tuple[Forecast, ...] = ()

    def to_json(self) -> str:
        """Write it as JSON; `from_json` reads it back the same."""
        return self.model_dump_json(indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str = "plan") -> Plan:
        """Read a plan; `where` is the file's name.

        Raises PlanError for text that is no plan: what stands where, and for an unknown key the nearest that is known.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            faults = error.errors(include_url=False)
            unknown = [fault for fault in faults if fault["type"] == "extra_forbidden"]
            place, why = (unknown or faults)[0]["loc"], (unknown or faults)[0]["msg"]
            if unknown:
                raise PlanError.unknown_key(where, dotted(place), str(place[-1]), _keys_at(place)) from None
            raise PlanError.unreadable(where, dotted(place), why) from None

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        from flowgraph.diagrams.notebook import mimebundle

        return mimebundle(self)

    def used(self) -> list[Device]:
        """Give the devices of all pools that are there, pool by pool."""
        found = (self.cluster.device(*place) for pool in self.pools for place in pool.devices)
        return [device for device in found if device is not None]

    def pool(self, name: str) -> Pool | None:
        """Give the pool of this name, if there is one."""
        return next((pool for pool in self.pools if pool.name == name), None)


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
