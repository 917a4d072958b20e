"""Seconds of products of matrices on one device.

Each takes a launch, then the slower of arithmetic and memory, with a smooth transition between the two. Not here: the
kernels of a layer (`training`, `generation`), and the rates that they attain (`hardware.architectures`).
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING

from placements.hardware.architectures import attained

if TYPE_CHECKING:
    from placements.hardware.device_profiles import DeviceProfile, Precision

# The part of a product that a processor computes at a time. Source: NVIDIA, Matrix Multiplication Background User's
# Guide, section 3, on tiles and waves; the sizes are CUTLASS's. Small products take small tiles, or split the sum.
TILES = ((128, 256), (128, 128), (64, 128), (64, 64))
SPLITS = (1, 2, 4, 8)
# How much arithmetic and memory overlap: the sum of their seconds at 1, the larger at infinity. Errors of products on
# the measured devices change by less than 0.01 between 3 and 4.
PRODUCT_OVERLAP = 4.0
# The precisions whose peak counts for a precision: the first one that the device has.
COMPUTED_IN: dict[Precision, tuple[Precision, ...]] = {
    "fp4": ("fp4", "fp8", "bfloat16", "float32"),
    "fp8": ("fp8", "bfloat16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "float32": ("float32", "bfloat16"),
}
WIDTH_BYTES: dict[Precision, float] = {"fp4": 0.5, "fp8": 1.0, "bfloat16": 2.0, "float32": 4.0}
SUM_BYTES = 4.0  # of a number of a split sum, which is written and read once more


def peak_flops(device: DeviceProfile, precision: Precision) -> float:
    """Return the dense FLOPs per second of a device in a precision, or in the next wider precision that it supports.

    Weights narrower than a device's arithmetic (fp8 on an A100) are converted for each product. A device without a peak
    for float32 has that of bfloat16. Raises ValueError if none of these peaks is known.
    """
    for computed in COMPUTED_IN[precision]:
        if computed in device.peak_flops:
            return device.peak_flops[computed]
    raise ValueError(f"{device.name} has no peak for {' or '.join(COMPUTED_IN[precision])}")


def matmul_seconds(m: float, n: float, k: float, device: DeviceProfile, precision: Precision = "bfloat16") -> float:
    """Return the seconds of multiplying an [m, k] by a [k, n] matrix on one device; 0 if a dimension is not positive.

    The result is a kernel launch plus the best time over a few tile sizes. For each tile size, arithmetic (whole waves
    of tiles over the processors) and memory traffic (both factors and the result) overlap almost completely.
    `precision` is that of the factors; the result has at least 2 bytes per number. Raises ValueError if `peak_flops`
    knows no peak of the device for this precision. Source: Williams et al. 2009, Roofline; tiles and waves as at
    `TILES`. Caches are assumed cold, and fp8 is assumed to reach the same share of its peak as bfloat16 did.
    """
    if min(m, n, k) <= 0:
        return 0.0
    attains = attained(device)
    width = WIDTH_BYTES[precision]
    bytes_per_s = device.memory_bytes_per_s * attains.memory
    memory_s = (width * (m * k + n * k) + max(width, 2.0) * m * n) / bytes_per_s
    flops_per_s = peak_flops(device, precision) * attains.matmul / attains.processors
    return attains.matmul_launch_s + _tiled(m, n, k, attains.processors, flops_per_s, memory_s, bytes_per_s)


@lru_cache(maxsize=65_536)
def _tiled(
    m: float, n: float, k: float, processors: int, flops_per_s: float, memory_s: float, bytes_per_s: float
) -> float:
    best_s = float("inf")
    for height, width in TILES:
        tiles = ceil(m / height) * ceil(n / width)
        for split in SPLITS:
            work_s = ceil(tiles * split / processors) * 2 * height * width * (k / split) / flops_per_s
            moved_s = memory_s + (2 * SUM_BYTES * split * m * n / bytes_per_s if split > 1 else 0.0)
            if max(work_s, moved_s) < best_s:
                best_s = min(best_s, overlapped(work_s, moved_s, PRODUCT_OVERLAP))
    return best_s


def overlapped(first_s: float, second_s: float, sharpness: float) -> float:
    """Return the seconds of two overlapping activities: at least those of the longer one, at most the sum.

    With `sharpness` 1 the result is the sum; the larger `sharpness` is, the nearer is the result to the longer one.

    >>> overlapped(3.0, 4.0, 2.0), overlapped(3.0, 0.0, 4.0)
    (5.0, 3.0)
    """
    longer, shorter = max(first_s, second_s), min(first_s, second_s)
    return float(longer * (1 + (shorter / longer) ** sharpness) ** (1 / sharpness)) if longer else 0.0
