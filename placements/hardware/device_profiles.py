"""Profiles of devices, from data sheets and as measured (`devices/NAME.toml`), and the links of a pool.

Not here: constants of an engine (`engine_constants`), and how long anything takes.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Generic, TypeVar

from pydantic import Field, ValidationError

from flowgraph.cluster.cluster import Data, Device, DeviceKind, Machine
from flowgraph.cluster.plan import Precision as Precision
from flowgraph.errors import UnknownNameError

FOLDER = Path(__file__).with_name("devices")
NOMINAL = FOLDER / "nominal"
"""Profiles by kind of device, for devices of no known model: their seconds serve only to compare plans."""
Place = tuple[str, int]  # a device: the name of its node, and its place among the node's devices


@dataclass(frozen=True)
class DeviceProfile:
    """One kind of device. Rates are per direction; an unknown number is None, or missing from a mapping."""

    name: str
    memory_bytes: int  # as the driver reports it, which is not the label
    peak_flops: Mapping[Precision, float] = field(hash=False)  # dense, per second
    memory_bytes_per_s: float
    link_bytes_per_s: float  # to peers of its domain, of one device; where a domain is 1, to peers of its machine
    domain: int  # devices that NVLink or XGMI joins; 1: none
    host_bytes_per_s: float
    network_bytes_per_s: float | None  # the share of one device, as machines with it usually have
    shares: Mapping[str, float] = field(hash=False)  # measured: the attained share of the data sheet, by operation
    joins_machines: bool = False  # whether a domain may be larger than a machine, as a rack is
    kind: DeviceKind = "gpu"

    @property
    def nominal(self) -> bool:
        """Return whether the profile represents any device of its kind, rather than a known model."""
        return self.name in ("cpu", "gpu")

    @property
    def device(self) -> Device:
        """Return a `Device` with the kind, memory and model name of this profile."""
        return Device(kind=self.kind, memory_bytes=self.memory_bytes, model=self.name)


@dataclass(frozen=True)
class PoolLinks:
    """The links of one pool: inside a domain at the device's `link_bytes_per_s`, else over the network.

    `device` has the memory of the pool's devices, which may be less than the profile's. `domain` is the minimum number
    of the pool's devices in a domain; for a pool inside one domain, it is the size of the domain, or 1 without domains.
    """

    device: DeviceProfile
    domain: int
    node_devices: int  # of the pool, on each machine; the minimum where that is uneven
    network_bytes_per_s: float  # per device, between machines


def profile(name: str) -> DeviceProfile:
    """Return the profile of the device model with this name or alias, ignoring case.

    Raises UnknownNameError for others.
    """
    names = _names()
    if name.lower() not in names:
        raise UnknownNameError.of("device", name, names)
    return names[name.lower()]


@cache
def profiles() -> Mapping[str, DeviceProfile]:
    """Return every shipped profile of a known device model by its name, without aliases; cached and read-only."""
    return MappingProxyType({name: profile for name, (profile, _) in _profiles_in(FOLDER).items()})  # cached: read-only


def profile_of(device: Device) -> DeviceProfile:
    """Return the profile of a device's model; if the model is unknown, the nominal profile of its kind."""
    return profiles().get(device.model) or _profiles_in(NOMINAL)[device.kind][0]


def known_devices() -> Mapping[str, Device]:
    """Return a `Device` for each name and each alias of a known device model, keyed by that name or alias.

    This is the argument `models` of `flowgraph.cluster.short_form.read_cluster`.
    """
    return {name: profile.device for name, profile in _names().items()}


def domain_of(node: Machine, device: Device, count: int) -> int:
    """Return how many devices form one NVLink or XGMI domain on this machine; 1 means that none are joined.

    `count` is how many devices like `device` the machine has. If the cluster sets a domain for the machine, the result
    is that domain. Otherwise it is the domain in the device's profile, at most `count` unless domains may join
    machines, as in a rack. All `count` devices of an unknown model form one domain.
    """
    profile = profile_of(device)
    if node.domain is not None or profile.nominal:
        return node.domain or count
    return profile.domain if profile.joins_machines else min(profile.domain, count)


def domains(nodes: Sequence[Machine]) -> Mapping[Place, int]:
    """Return the NVLink or XGMI domain of each device of these machines, as a number from 0, keyed by (machine, index).

    Domains are numbered in the order of the machines. If the cluster sets the domain of a machine, each domain has
    consecutive devices there; otherwise, it has consecutive ones among the machine's equal devices. A domain that joins
    machines, as in a rack, has consecutive machines with the same leaf switch and as many of these devices.
    """
    numbers, machines = dict[object, int](), Counter[object]()
    domain = dict[Place, int]()
    for node in nodes:
        counts, seen = Counter(node.devices), Counter[Device]()
        sizes = {device: domain_of(node, device, count) for device, count in counts.items()}
        for index, device in enumerate(node.devices):
            size, count = sizes[device], counts[device]
            if node.domain is not None:
                key: object = (node.name, index // size)
            elif size > count:
                key = (node.leaf, device, count, machines[node.leaf, device, count] // (size // count))
            else:
                key = (node.name, device, seen[device] // size)
            seen[device] += 1
            domain[node.name, index] = numbers.setdefault(key, len(numbers))
        machines.update((node.leaf, device, count) for device, count in counts.items())
    return domain


def network_share(node: Machine, kind: DeviceProfile) -> float | None:
    """Return one device's share of its machine's network bandwidth, in bytes per second; None if it is not known.

    Devices have equal shares. If the cluster sets no bandwidth for the machine, the result is the share in `kind`.
    """
    rate = node.network_bytes_per_s
    return kind.network_bytes_per_s if rate is None else rate / len(node.devices)


Number = TypeVar("Number")
_Float = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Integer = Annotated[int, Field(gt=0)]


class _Sourced(Data, Generic[Number]):
    value: Number
    source: Annotated[str, Field(min_length=1)]


class _ProfileFile(Data):
    aliases: list[str]
    memory_bytes: _Sourced[_Integer]
    memory_bytes_per_s: _Sourced[_Float]
    link_bytes_per_s: _Sourced[_Float]
    domain: _Sourced[_Integer]
    joins_machines: bool = False
    kind: DeviceKind = "gpu"
    host_bytes_per_s: _Sourced[_Float]
    network_bytes_per_s: _Sourced[_Float] | None = None
    peak_flops: dict[Precision, _Sourced[_Float]]
    shares: dict[str, _Sourced[_Float]] = Field(default_factory=dict[str, _Sourced[_Float]])


def read_profile(path: Path) -> tuple[DeviceProfile, tuple[str, ...]]:
    """Return the profile of one type of device, and its aliases, from a TOML file; `h100.toml` has the profile `h100`.

    Raises OSError if the file cannot be read, and ValueError if it is not TOML, if a required field is missing, or if a
    field is invalid or a number has no source.
    """
    try:
        file = _ProfileFile.model_validate(tomllib.loads(path.read_text("utf-8")))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{path.name}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    numbers = {name: _without_sources(number) for name, number in file if name != "aliases"}
    return DeviceProfile(name=path.stem, **numbers), tuple(file.aliases)


def _without_sources(number: Any) -> Any:
    if isinstance(number, dict):
        return {name: share.value for name, share in number.items()}
    return number.value if isinstance(number, _Sourced) else number


@cache
def _profiles_in(folder: Path) -> Mapping[str, tuple[DeviceProfile, tuple[str, ...]]]:
    return {path.stem: read_profile(path) for path in sorted(folder.glob("*.toml"))}


@cache
def _names() -> Mapping[str, DeviceProfile]:
    return {name: profile for stem, (profile, aliases) in _profiles_in(FOLDER).items() for name in (stem, *aliases)}
