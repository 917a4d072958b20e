"""What kernels and collectives attain on a device: by its architecture, and as measured where it was.

A device's `shares` of the same names replace those of its architecture, so that one that nobody measured still has
them. Where a line says "measured", numbers are fitted to the tables of aiconfigurator-core 0.12.0 (Apache-2.0), and
rounded. Not here: what a data sheet says (`device_profiles`), nor what these make of a product or a message
(`time.kernels`, `time.collectives`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placements.hardware.device_profiles import DeviceProfile


@dataclass(frozen=True)
class AttainedShares:
    """Shares of what a data sheet says, from 0 to 1 if no unit is named, and what a launch takes at least."""

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
    peers: float = 0.0  # of a device's links each goes to one peer, of so many; 0: a switch gives any peer all of them
    crowding: float = 1.0  # how the host's path gets slower with n devices: (n / 2) to this power


# Measured on 810 products, 1,344 attentions and 252 collectives of an A100 SXM. Its attention is split badly by what
# SGLang 0.5.10 ran there, which is why it is slow. Prefill: Dao 2023, arXiv 2307.08691, up to 0.73 of the peak; 0.8 of
# that, since sequences are not all long.
AMPERE = AttainedShares(
    processors=108,
    cache_bytes=40e6,
    matmul=0.79,
    memory=0.73,
    attention=0.51,
    prefill=0.58,
    cached=1.1,
    matmul_launch_s=4.5e-6,
    attention_launch_s=14e-6,
    block_s=4e-6,
    merge_s=10e-6,
    collective=0.86,
    all_reduce=0.92,
    all_to_all=0.85,
    collective_launch_s=9e-6,
    step_s=0.75e-6,
    chunk_s=8e-6,
)

# Measured on 1,566 products, 2,928 attentions and 504 collectives of H100 SXM and H200 SXM. Prefill: Shah et al. 2024,
# arXiv 2407.08608, up to 0.75 of the peak; 0.8 of that.
HOPPER = replace(
    AMPERE,
    processors=132,
    cache_bytes=50e6,
    matmul=0.785,
    memory=0.88,
    attention=0.91,
    prefill=0.6,
    cached=2.0,
    attention_launch_s=9.6e-6,
    block_s=2.9e-6,
    merge_s=2.4e-6,
    all_reduce=0.98,
    collective_launch_s=5e-6,
    chunk_s=2.6e-6,
)

# Measured on 810 products, 2,092 attentions and 252 collectives of a B200 SXM. Prefill as on Hopper: not measured.
BLACKWELL = replace(
    HOPPER,
    processors=148,
    cache_bytes=126e6,
    matmul=0.7,
    memory=0.83,
    attention=0.95,
    attention_launch_s=8.9e-6,
    block_s=1.6e-6,
    merge_s=3e-6,
    all_reduce=0.93,
    all_to_all=0.74,
    collective_launch_s=8.2e-6,
    step_s=1.1e-6,
    chunk_s=3.8e-6,
)

# Measured on 810 products, 1,443 attentions and 252 collectives of an L40S. Its power limit holds large products down.
# Prefill: the share of products, since the same limit holds; not measured.
ADA = replace(
    AMPERE,
    processors=142,
    cache_bytes=96e6,
    matmul=0.56,
    memory=0.78,
    attention=0.84,
    prefill=0.5,
    cached=5.0,
    attention_launch_s=5.9e-6,
    block_s=1.2e-6,
    merge_s=3.4e-6,
    collective_launch_s=6e-6,
    step_s=0.8e-6,
    chunk_s=0.6e-6,
    crowding=2.0,  # 8 devices have an 18th of what 2 have: transfers from peer to peer are off
)

# Nothing of it was measured in these tables: products as stas00/ml-engineering's best on an MI325X and an MI355X, 0.60
# and 0.63 of the peak, times 0.93, what a median has of the best on A100, H100 and B200; rings as its all-reduce of
# 4 GB on 8 MI300X; prefill in the proportion of products, a little less; the rest as on Hopper.
CDNA = replace(
    HOPPER, processors=304, cache_bytes=256e6, matmul=0.57, prefill=0.4, collective=0.76, all_reduce=0.76, peers=7
)

# Any other: of each number the median of the four that were measured.
OTHER = replace(
    HOPPER,
    matmul=0.74,
    memory=0.805,
    attention=0.875,
    prefill=0.59,
    attention_launch_s=9.25e-6,
    block_s=2.25e-6,
    merge_s=3.2e-6,
    all_reduce=0.925,
    collective_launch_s=7.1e-6,
    step_s=0.78e-6,
    chunk_s=3.2e-6,
)

# A core, nominally: products go through it one after another, and starting one costs nothing that is counted.
CORE = replace(
    OTHER,
    attention_launch_s=1e-7,
    block_s=1e-7,
    merge_s=1e-7,
    matmul_launch_s=1e-7,
    collective_launch_s=1e-7,
    step_s=1e-7,
    chunk_s=1e-7,
)

# Architecture, processors and bytes of the last cache, by how a profile's name begins. Source: data sheets and
# architecture white papers of NVIDIA and AMD; counts of processors as drivers report them.
DEVICES: Mapping[str, tuple[AttainedShares, int, float]] = {
    "cpu": (CORE, 1, 2e6),
    "a100": (AMPERE, 108, 40e6),
    "a800": (AMPERE, 108, 40e6),
    "a30": (AMPERE, 56, 24e6),
    "a40": (AMPERE, 84, 6e6),
    "a10": (AMPERE, 72, 6e6),
    "a6000": (AMPERE, 84, 6e6),
    "rtx3090": (AMPERE, 82, 6e6),
    "h100": (HOPPER, 132, 50e6),
    "h100-pcie": (HOPPER, 114, 50e6),
    "h800": (HOPPER, 132, 50e6),
    "h20": (HOPPER, 78, 60e6),
    "h200": (HOPPER, 132, 50e6),
    "gh200": (HOPPER, 132, 50e6),
    "b200": (BLACKWELL, 148, 126e6),
    "b300": (BLACKWELL, 148, 126e6),
    "gb200": (BLACKWELL, 152, 126e6),
    "gb300": (BLACKWELL, 152, 126e6),
    "l4": (ADA, 58, 48e6),
    "l40s": (ADA, 142, 96e6),
    "rtx4090": (ADA, 128, 72e6),
    # Blackwell by name, but processors and memory of Ada's kind; peers may talk.
    "rtx-pro-6000": (replace(ADA, crowding=1.0), 188, 128e6),
    "mi300x": (CDNA, 304, 256e6),
    "mi325x": (CDNA, 304, 256e6),
    "mi355x": (CDNA, 256, 256e6),
}

NAMES = frozenset(field.name for field in fields(AttainedShares))


def attained(device: DeviceProfile) -> AttainedShares:
    """Return what kernels and collectives attain on a device; its own shares first, then those of its architecture."""
    return _attained(device.name, tuple(device.shares.items()))


@lru_cache(maxsize=256)
def _attained(name: str, shares: tuple[tuple[str, float], ...]) -> AttainedShares:
    known = max((each for each in DEVICES if f"{name}-".startswith(f"{each}-")), key=len, default=None)
    base = OTHER
    if known is not None:
        architecture, processors, cache_bytes = DEVICES[known]
        base = replace(architecture, processors=processors, cache_bytes=cache_bytes)
    return replace(base, **{each: value for each, value in shares if each in NAMES})
