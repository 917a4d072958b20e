"""The fractions of peak performance that kernels and collectives reach, by device architecture and as measured.

A device's `shares` replace those of its architecture (`architectures.toml`, with sources). Not here: data sheets
(`device_profiles`), and the seconds of a product or a message (`time.kernels`, `time.collectives`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placements.hardware.device_profiles import DeviceProfile


@dataclass(frozen=True)
class AttainedShares:
    """Fractions of data-sheet values, from 0 to 1 if no unit is named, and the minimum seconds of launches."""

    processors: float  # streaming multiprocessors or compute units, which tiles are dealt out to
    cache_bytes: float  # of the last cache before the memory
    matmul: float  # of the peak, by a processor that works on a whole tile
    memory: float  # of the memory's bandwidth, by products
    attention: float  # of the memory's bandwidth, by attention that decodes
    prefill: float  # of the peak, by attention over whole sequences, of pairs that the mask keeps
    cached: float  # how many times faster what lies in the cache is read, as attention was measured
    matmul_launch_s: float
    attention_launch_s: float
    block_s: float  # of one row and one head of keys on one processor, however short
    merge_s: float  # of putting together the parts of a row that several processors attend to
    collective: float  # of a link, by rings of many devices and long messages
    all_reduce: float  # of a link, by all-reduces inside one domain, where a switch may add up
    all_to_all: float
    collective_launch_s: float
    step_s: float  # of a message's way from one device to the next in its domain
    chunk_s: float  # of one chunk of a message on its way, before the next can follow it
    host: float = 0.63  # of the host's link, by two devices that talk through the host
    peers: float = 0.0  # a device's links go to this number of peers, one to each; 0: a switch gives any peer all
    crowding: float = 1.0  # how the host's path gets slower with n devices: (n / 2) to this power


NAMES = frozenset(field.name for field in fields(AttainedShares))


def architecture(name: str) -> AttainedShares:
    """Return the fractions of peak performance, and launch seconds, of a device architecture such as `hopper`.

    Kernels and collectives reach these fractions. Raises KeyError for an unknown name.
    """
    return _resolved(_tables()["architectures"][name])


def attained(device: DeviceProfile) -> AttainedShares:
    """Return the fractions of peak performance, and launch seconds, that kernels and collectives reach on a device.

    Values measured for this device override those of its architecture; an unknown model has the architecture `other`.
    """
    return _attained(device.name, tuple(device.shares.items()))


@lru_cache(maxsize=256)
def _attained(name: str, shares: tuple[tuple[str, float], ...]) -> AttainedShares:
    devices = _tables()["devices"]
    longest = max((prefix for prefix in devices if f"{name}-".startswith(f"{prefix}-")), key=len, default="")
    base = _resolved(devices[longest]) if longest else architecture("other")
    return replace(base, **{share: value for share, value in shares if share in NAMES})


def _resolved(numbers: Mapping[str, Any]) -> AttainedShares:
    inherited = architecture(numbers["like"]).__dict__ if "like" in numbers else {}
    return AttainedShares(**inherited | {name: number for name, number in numbers.items() if name != "like"})


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
