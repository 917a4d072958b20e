"""What a kind of device can do, from its data sheet and as measured (`devices/NAME.toml`), and what a pool talks over.

Not here: constants of an engine (`constants`), and how long anything takes.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from pydantic import Field, ValidationError

from flowgraph.cluster.cluster import Data, Device, DeviceKind, Machine
from flowgraph.cluster.plan import Precision as Precision
from flowgraph.errors import UnknownNameError

FOLDER = Path(__file__).with_name("devices")
NOMINAL = FOLDER / "nominal"
"""Profiles by kind of device, for devices of no known model: seconds by them only tell one plan from another."""
Place = tuple[str, int]  # a device: the name of its node, and its place among the node's devices


@dataclass(frozen=True)
class Profile:
    """One kind of device. Rates are of one direction; what nobody knows is None, or no key of a mapping."""

    name: str
    memory_bytes: int  # as the driver reports it, which is not the label
    peak_flops: Mapping[Precision, float] = field(hash=False)  # dense, per second
    memory_bytes_per_s: float
    link_bytes_per_s: float  # to peers of its domain, of one device; where a domain is 1, to peers of its machine
    domain: int  # devices that NVLink or XGMI joins; 1: none
    host_bytes_per_s: float
    network_bytes_per_s: float | None  # the share of one device, as machines with it usually have
    shares: Mapping[str, float] = field(hash=False)  # measured: what is attained of the data sheet, by what is done
    joins_machines: bool = False  # whether a domain may be larger than a machine, as a rack is
    kind: DeviceKind = "gpu"

    @property
    def nominal(self) -> bool:
        """Return whether it stands for any device of its kind, so that its rates are nobody's in particular."""
        return self.name in ("cpu", "gpu")

    @property
    def device(self) -> Device:
        """Return a device of this kind."""
        return Device(kind=self.kind, memory_bytes=self.memory_bytes, model=self.name)


@dataclass(frozen=True)
class Links:
    """What the devices of one pool talk over: inside a domain at the device's `link_bytes_per_s`, else by network.

    `device` has the memory that the pool's devices have, which may be less than its kind has. `domain` is the size of
    a domain where the pool lies in one, else how many of the pool's devices each has, and the least where that is
    uneven; 1 where there are none.
    """

    device: Profile
    domain: int
    node_devices: int  # of the pool, on each machine; the least where that is uneven
    network_bytes_per_s: float  # per device, between machines


def profile(name: str) -> Profile:
    """Return the profile of this name or alias, in capitals or not; raises UnknownNameError if there is none."""
    names = _names()
    if name.lower() not in names:
        raise UnknownNameError.of("device", name, names)
    return names[name.lower()]


@cache
def profiles() -> Mapping[str, Profile]:
    """Return every profile that is shipped, by its name."""
    return MappingProxyType({name: found for name, (found, _) in _shipped().items()})  # cached, so not to be changed


@cache
def _nominal() -> Mapping[str, Profile]:
    return {path.stem: read_profile(path)[0] for path in sorted(NOMINAL.glob("*.toml"))}


def profile_of(device: Device) -> Profile:
    """Return the profile of a device's model, or where that is not known the nominal one of its kind."""
    return profiles().get(device.model) or _nominal()[device.kind]


def known_devices() -> Mapping[str, Device]:
    """Return a device of each kind by its name and aliases, as `cluster.short_form.read_cluster` asks for it."""
    return {name: found.device for name, found in _names().items()}


def domain_of(node: Machine, device: Device, same: int) -> int:
    """Say how many devices NVLink joins into one domain there; `same` is how many of this device the node has.

    A node may tell it, else the profile does; of a device without a profile, the machine is taken to be a domain.
    """
    known = profile_of(device)
    if node.domain is not None or known.nominal:
        return node.domain or same
    return known.domain if known.joins_machines else min(known.domain, same)


def domains(nodes: Sequence[Machine]) -> Mapping[Place, int]:
    """Return the number of the domain that each device of these nodes is in.

    A domain holds devices that follow each other on a machine; one that joins machines holds those that follow each
    other on one leaf, as a rack does.
    """
    numbers, machines = dict[object, int](), Counter[object]()
    found = dict[Place, int]()
    for node in nodes:
        counts, seen = Counter(node.devices), Counter[Device]()
        sizes = {device: domain_of(node, device, same) for device, same in counts.items()}
        for index, device in enumerate(node.devices):
            size, same = sizes[device], counts[device]
            if node.domain is not None:
                key: object = (node.name, index // size)
            elif size > same:
                key = (node.leaf, device, same, machines[node.leaf, device, same] // (size // same))
            else:
                key = (node.name, device, seen[device] // size)
            seen[device] += 1
            found[node.name, index] = numbers.setdefault(key, len(numbers))
        machines.update((node.leaf, device, same) for device, same in counts.items())
    return found


def network_share(node: Machine, kind: Profile) -> float | None:
    """Return what one device of this kind gets of the node's network, in bytes per second; None where nobody knows."""
    told = node.network_bytes_per_s
    return kind.network_bytes_per_s if told is None else told / len(node.devices)


class _Number(Data):
    """A number of a file, and where it is from."""

    value: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    source: Annotated[str, Field(min_length=1)]


class _Whole(Data):
    """A whole number of a file, and where it is from."""

    value: Annotated[int, Field(gt=0)]
    source: Annotated[str, Field(min_length=1)]


class _File(Data):
    """A file of one kind of device."""

    aliases: list[str]
    memory_bytes: _Whole
    memory_bytes_per_s: _Number
    link_bytes_per_s: _Number
    domain: _Whole
    joins_machines: bool = False
    kind: DeviceKind = "gpu"
    host_bytes_per_s: _Number
    network_bytes_per_s: _Number | None = None
    peak_flops: dict[Precision, _Number]
    shares: dict[str, _Number] = Field(default_factory=dict[str, _Number])

    def profile(self, name: str) -> Profile:
        """Return it without its sources."""
        network = self.network_bytes_per_s
        return Profile(
            name=name,
            memory_bytes=self.memory_bytes.value,
            peak_flops={precision: each.value for precision, each in self.peak_flops.items()},
            memory_bytes_per_s=self.memory_bytes_per_s.value,
            link_bytes_per_s=self.link_bytes_per_s.value,
            domain=self.domain.value,
            host_bytes_per_s=self.host_bytes_per_s.value,
            network_bytes_per_s=None if network is None else network.value,
            shares={what: each.value for what, each in self.shares.items()},
            kind=self.kind,
            joins_machines=self.joins_machines,
        )


def read_profile(path: Path) -> tuple[Profile, tuple[str, ...]]:
    """Read the file of one kind of device, and give its aliases too.

    Raises ValueError, which names the file, for a number that is missing, is none or has no source.
    """
    try:
        file = _File.model_validate(tomllib.loads(path.read_text("utf-8")))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{path.name}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    return file.profile(path.stem), tuple(file.aliases)


@cache
def _shipped() -> Mapping[str, tuple[Profile, tuple[str, ...]]]:
    return {path.stem: read_profile(path) for path in sorted(FOLDER.glob("*.toml"))}


@cache
def _names() -> Mapping[str, Profile]:
    return {name: found for own, (found, aliases) in _shipped().items() for name in (own, *aliases)}
