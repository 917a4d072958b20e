"""A cluster as data: its machines, their devices, and the memory of each device in bytes.

Not here: the short form and the file of a cluster (`short_form`), this machine as a cluster (`this_machine`), and
plans.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from flowgraph.errors import SettingError

Positive = Annotated[int, Field(gt=0)]
DeviceKind = Literal["cpu", "gpu"]

MOST_DEVICES = 65_536  # of one cluster: more than any has, and few enough that a typing error is refused, not built
MOST_BYTES_PER_S = 1e15  # of one machine's network; this and the next keep sums over a cluster finite
MOST_PRICE = 1e9  # of one machine for an hour

_BINARY = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_DECIMAL = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS = {unit.lower(): factor for unit, factor in (_BINARY | _DECIMAL).items()}
# Rates of a network. Case matters, since it tells bits from bytes: Gbps is an eighth of GB/s.
_BITS = {"Mbps": 1e6 / 8, "Gbps": 1e9 / 8, "Tbps": 1e12 / 8}
_RATES = _BITS | {f"{unit}/s": float(_UNITS[unit.lower()]) for unit in ("MB", "GB", "TB", "MiB", "GiB", "TiB")}

Rate = Annotated[float, Field(gt=0, le=MOST_BYTES_PER_S, allow_inf_nan=False)]
Price = Annotated[float, Field(ge=0, le=MOST_PRICE, allow_inf_nan=False)]


class Data(BaseModel):
    """Immutable data that refuses unknown keys and does not convert types."""

    # built when first used: `--help` uses none
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class CompactData(Data):
    """Data whose JSON omits fields that are equal to their defaults."""

    @model_serializer(mode="wrap")
    def _without_defaults(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        return {
            name: value
            for name, value in written(self).items()
            if fields[name].is_required() or getattr(self, name) != fields[name].default
        }


class Device(CompactData):
    """One device with its memory in bytes. CPU devices divide the memory of their node.

    `model` names the profile in `placements` that has the device's speed; "" if there is none.
    """

    kind: DeviceKind
    memory_bytes: Positive
    model: str = ""


class Machine(CompactData):
    """One machine: its devices in order, host memory in bytes, the cores that we may use, and its connections.

    NVLink joins each `domain` successive devices. `network_bytes_per_s` is the rate at which the whole machine sends,
    `leaf` names its network switch, and `price_per_hour` is in any currency. If `domain` or `network_bytes_per_s` is
    None, the value in the devices' profile applies, if there is one.
    """

    name: str
    devices: tuple[Device, ...]
    host_memory_bytes: Positive
    cores: Positive
    domain: Positive | None = None
    network_bytes_per_s: Rate | None = None
    leaf: str = ""
    price_per_hour: Price | None = None

    @model_validator(mode="after")
    def _domain_divides(self) -> Machine:
        if self.domain is not None and len(self.devices) % self.domain:
            raise ValueError(domain_fault(self.domain, len(self.devices)))
        return self


class Cluster(Data):
    """The machines that a flow may run on, with unique names."""

    nodes: Annotated[tuple[Machine, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_differ(self) -> Cluster:
        if len({node.name for node in self.nodes}) < len(self.nodes):
            raise ValueError("two nodes have one name")
        return self

    def device(self, node: str, index: int) -> Device | None:
        """Return the device at `index`, from 0, of the node named `node`; None if the cluster has no such device."""
        devices = self._devices.get(node, ())
        return devices[index] if 0 <= index < len(devices) else None

    @cached_property
    def _devices(self) -> Mapping[str, tuple[Device, ...]]:
        return {node.name: node.devices for node in self.nodes}

    def __copy__(self) -> Self:
        """Return a copy without the cached devices, since `model_copy` may change the nodes."""
        copied = super().__copy__()
        vars(copied).pop("_devices", None)
        return copied


def device_of_unknown_speed(cluster: Cluster) -> str:
    """Return a phrase for the first device without a model, such as `node-1/0, a cpu`; "" if all devices have one.

    The phrase for a GPU also has its memory.
    """
    for node in cluster.nodes:
        for place, device in enumerate(node.devices):
            if not device.model:
                memory = f" of {show_bytes(device.memory_bytes)}" if device.kind == "gpu" else ""
                return f"{node.name}/{place}, a {device.kind}{memory}"
    return ""


def domain_fault(domain: int, devices: int) -> str:
    """Return why a machine with `devices` devices cannot have NVLink domains of `domain` devices.

    `domain` must be a number that does not divide `devices`.

    >>> domain_fault(3, 8)
    'domains of 3 do not divide the 8 devices of the machine'
    """
    machine = f"the {devices} device{'' if devices == 1 else 's'} of the machine"
    fault = f"a domain of {domain} is larger than" if domain > devices else f"domains of {domain} do not divide"
    return f"{fault} {machine}"


def key_names(kind: type[BaseModel]) -> list[str]:
    """Return the names that the fields of a pydantic model have in JSON, in the order of the fields."""
    return [str(field.validation_alias or name) for name, field in kind.model_fields.items()]


def dotted(place: Sequence[int | str]) -> str:
    """Return a path of keys and indices in nested data as text, such as `a.b[0]`.

    >>> dotted(("pools", 0, "name"))
    'pools[0].name'
    """
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).removeprefix(".")


def parse_bytes(text: str, setting: str = "memory") -> int:
    """Return an amount of memory in bytes, rounded down, from text such as `2GiB` or `1.5 GB`; case is ignored.

    Raises SettingError, which names `setting`, for any other text and for less than 1 byte.

    >>> parse_bytes("2GiB"), parse_bytes("1.5 kB")
    (2147483648, 1500)
    """
    try:
        return amount_bytes(text)
    except ValueError as error:
        raise SettingError.refused("", setting, text, str(error)) from None


def amount_bytes(text: str) -> int:
    """Return an amount of memory in bytes, rounded down, from text such as `2GiB` or `1.5 GB`; case is ignored.

    Raises ValueError, whose message is only the reason, for any other text and for less than 1 byte.
    """
    number, unit = _number_and_unit(text, "2GiB", _BINARY | _DECIMAL)
    amount = int(number * _UNITS[unit.lower()])
    if amount < 1:
        raise ValueError("should be more than nothing")
    return amount


def amount_bytes_per_s(text: str) -> float:
    """Return a network rate in bytes per second, from text with a case-sensitive unit such as Gbps or GB/s.

    Raises ValueError with the reason for any other text, and for 0 or more than 10¹⁵ bytes per second.

    >>> amount_bytes_per_s("200 Gbps"), amount_bytes_per_s("25 GB/s")
    (25000000000.0, 25000000000.0)
    """
    number, unit = _number_and_unit(text, "200 Gbps or 25 GB/s", _RATES)
    amount = number * _RATES[unit]
    if not 0 < amount <= MOST_BYTES_PER_S:
        raise ValueError(f"should be more than nothing and at most {show_rate(MOST_BYTES_PER_S)}")
    return amount


def _number_and_unit(text: str, example: str, units: Mapping[str, float]) -> tuple[float, str]:
    letters = "[A-Za-z/]" if units is _RATES else "[A-Za-z]"
    match = re.fullmatch(rf"\s*([0-9]{{1,15}}(?:\.[0-9]{{1,15}})?)\s*({letters}*)\s*", text)
    if match is None:
        raise ValueError(f"should be a number and a unit, as in {example}")
    if match[2] not in units and (units is _RATES or match[2].lower() not in _UNITS):
        raise ValueError(f"has no unit{match[2] and f' `{match[2]}`'}; known: {', '.join(units)}")
    return float(match[1]), match[2]


def show_rate(bytes_per_s: float) -> str:
    """Return a network rate as text with four significant digits, in the largest decimal unit that fits, or in B/s.

    >>> show_rate(25e9), show_rate(1.25e6), show_rate(12.5)
    ('25 GB/s', '1.25 MB/s', '12.5 B/s')
    """
    units = [(unit, factor) for unit, factor in ({"B": 1} | _DECIMAL).items() if bytes_per_s >= factor]
    unit, factor = units[-1] if units else ("B", 1)
    return f"{bytes_per_s / factor:.4g} {unit}/s"


def show_bytes(amount: int) -> str:
    """Return bytes as text: exactly below 1,024, else with one decimal in the largest binary unit that gives >= 1.0.

    >>> show_bytes(1610612736), show_bytes(640), show_bytes(2**20 - 1)
    ('1.5 GiB', '640 B', '1.0 MiB')
    """
    if abs(amount) < 1024:
        return f"{amount} B"
    units = [unit for unit, factor in _BINARY.items() if unit != "B" and round(abs(amount) / factor, 1) >= 1.0]
    return f"{amount / _BINARY[units[-1]]:.1f} {units[-1]}"
