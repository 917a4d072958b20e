"""A cluster as data: nodes, their devices, and how much memory each has, always in bytes.

Not here: a cluster's short form and its file (`cluster_text`), what this machine has (`machine`), and what is placed
where (`plan`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from flowgraph.errors import SettingError

Positive = Annotated[int, Field(gt=0)]
DeviceKind = Literal["cpu", "gpu"]

MOST_DEVICES = 65_536  # of one cluster: more than any has, and few enough that a slip of the pen is refused, not built

_BINARY = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_DECIMAL = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS = {unit.lower(): factor for unit, factor in (_BINARY | _DECIMAL).items()}


class Data(BaseModel):
    """Frozen data that refuses unknown keys and does not convert one type to another."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Device(Data):
    """One thing that computes. A CPU device's memory is what is free of its node's."""

    kind: DeviceKind
    memory_bytes: Positive


class Node(Data):
    """One machine: its devices in order, the memory of the host, and the cores there are for us."""

    name: str
    devices: tuple[Device, ...]
    host_memory_bytes: Positive
    cores: Positive


class Cluster(Data):
    """Machines that a flow may run on, each by its own name."""

    nodes: Annotated[tuple[Node, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_differ(self) -> Cluster:
        if len({node.name for node in self.nodes}) < len(self.nodes):
            raise ValueError("two nodes have one name")
        return self

    def device(self, node: str, index: int) -> Device | None:
        """Give the device at `index` of the node of this name, or None if there is none."""
        devices = next((each.devices for each in self.nodes if each.name == node), ())
        return devices[index] if 0 <= index < len(devices) else None


def dotted(place: Sequence[int | str]) -> str:
    """Write a place in nested data as one text.

    >>> dotted(("pools", 0, "name"))
    'pools[0].name'
    """
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).removeprefix(".")


def parse_bytes(text: str, setting: str = "memory") -> int:
    """Read an amount of memory: a number and its unit, binary (GiB) or decimal (GB).

    >>> parse_bytes("2GiB"), parse_bytes("1.5 kB")
    (2147483648, 1500)

    Raises SettingError, which names `setting`, for text that is no such amount, or none at all.
    """
    try:
        return amount_bytes(text)
    except ValueError as error:
        raise SettingError.refused("", setting, text, str(error)) from None


def amount_bytes(text: str) -> int:
    """Read an amount of memory as `parse_bytes` does; ValueError says only why a text is none."""
    found = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([A-Za-z]*)\s*", text)
    if found is None:
        raise ValueError("should be a number and a unit, as in 2GiB")
    number, unit = found.groups()
    if unit.lower() not in _UNITS:
        why = f"has no unit `{unit}`" if unit else "has no unit"
        raise ValueError(f"{why}; known: {', '.join(_BINARY | _DECIMAL)}")
    amount = int(float(number) * _UNITS[unit.lower()])
    if amount < 1:
        raise ValueError("should be more than nothing")
    return amount


def show_bytes(amount: int) -> str:
    """Write an amount of memory in the largest binary unit that it fills.

    >>> show_bytes(1610612736), show_bytes(640), show_bytes(2**20 - 1)
    ('1.5 GiB', '640 B', '1.0 MiB')
    """
    if abs(amount) < 1024:
        return f"{amount} B"
    units = [unit for unit, factor in _BINARY.items() if unit != "B" and round(abs(amount) / factor, 1) >= 1.0]
    return f"{amount / _BINARY[units[-1]]:.1f} {units[-1]}"
