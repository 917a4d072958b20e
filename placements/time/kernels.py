"""Seconds of single kernels on one device: products of matrices, and attention over a prompt or for the next token.

Each is the slower of arithmetic and memory, what lies between rounded off, and a launch before it. Not here: what a
layer consists of (`training`, `generation`), and what kernels attain on which device (`hardware.architectures`).
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, log2
from typing import TYPE_CHECKING

from placements.hardware.architectures import AttainedShares, attained

if TYPE_CHECKING:
    from placements.hardware.device_profiles import DeviceProfile, Precision

# What a processor works on at a time. Source: NVIDIA, Matrix Multiplication Background User's Guide, section 3, on
# tiles and waves; the sizes are CUTLASS's. Small products take small tiles, or cut the sum (split-k).
TILES = ((128, 256), (128, 128), (64, 128), (64, 64))
SPLITS = (1, 2, 4, 8)
# How sharply the slower of two rules: the sum at 1, the larger at infinity. A product overlaps well, a decoding
# attention less. Errors on the measured devices move by less than 0.01 between 3 and 4, and by 0.02 between 1.25 and 2.
PRODUCT_OVERLAP = 4.0
ATTENTION_OVERLAP = 1.5
WIDER: dict[Precision, tuple[Precision, ...]] = {
    "fp4": ("fp4", "fp8", "bfloat16", "float32"),
    "fp8": ("fp8", "bfloat16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "float32": ("float32", "bfloat16"),
}
WIDTH_BYTES: dict[Precision, float] = {"fp4": 0.5, "fp8": 1.0, "bfloat16": 2.0, "float32": 4.0}
SUM_BYTES = 4.0  # of a number of a sum that is cut, written and read once more
MERGED_TOKENS = (128, 1024)  # of a row: up to here one processor attends to it, and from here on as many as are cut for
# Of the cache: a read up to the first is all found in it, from the second on nothing. Measured: 67 MB are found in 96
# (L40S) and in 126 (B200), 34 in 50 (H100); twice as much is not.
CACHE_KEPT = (0.7, 1.1)


def peak_flops(device: DeviceProfile, precision: Precision) -> float:
    """Return the dense operations per second; of the next wider type where a device has none for this one.

    Weights of a narrower type than a device multiplies are widened on the way (fp8 on an A100), so this is what holds.
    Raises ValueError where none is known.
    """
    for each in WIDER[precision]:
        if each in device.peak_flops:
            return device.peak_flops[each]
    raise ValueError(f"{device.name} has no peak for {precision}, or a wider type")


def matmul_seconds(m: float, n: float, k: float, device: DeviceProfile, precision: Precision = "bfloat16") -> float:
    """Return the seconds of a product of an m × k matrix (of m tokens) and a k × n one, written in two bytes a number.

    The best of a few tiles: whole waves of tiles over the processors, or both factors and the result through memory.
    Source: Williams et al. 2009, Roofline; tiles and waves as at `TILES`. Deviation: cold caches, and factors of fp8
    attain the share that was measured of bfloat16.
    """
    if min(m, n, k) <= 0:
        return 0.0
    has = attained(device)
    width = WIDTH_BYTES[precision]
    bytes_per_s = device.memory_bytes_per_s * has.memory
    memory_s = (width * (m * k + n * k) + max(width, 2.0) * m * n) / bytes_per_s
    flops_per_s = peak_flops(device, precision) * has.matmul / has.processors
    return has.matmul_launch_s + _tiled(m, n, k, has.processors, flops_per_s, memory_s, bytes_per_s)


@lru_cache(maxsize=65_536)
def _tiled(
    m: float, n: float, k: float, processors: int, flops_per_s: float, memory_s: float, bytes_per_s: float
) -> float:
    """Return the seconds with the best tile and cut, of processors that do so many operations each."""
    best_s = float("inf")
    for high, wide in TILES:
        tiles = ceil(m / high) * ceil(n / wide)
        for cut in SPLITS:
            work_s = ceil(tiles * cut / processors) * 2 * high * wide * (k / cut) / flops_per_s
            moved_s = memory_s + (2 * SUM_BYTES * cut * m * n / bytes_per_s if cut > 1 else 0.0)
            if max(work_s, moved_s) < best_s:
                best_s = min(best_s, _overlapped(work_s, moved_s, PRODUCT_OVERLAP))
    return best_s


def decode_attention_seconds(
    rows: float,
    context_tokens: float,
    heads: int,
    kv_heads: int,
    head_dim: int,
    device: DeviceProfile,
    cache_bytes: float = 2,
    *,
    warm: bool = False,
) -> float:
    """Return the seconds in which one layer attends for the next token of each row, `cache_bytes` a cached number.

    Keys and values are read once; a processor takes a while for each row and head of keys, however short. `warm` says
    that the device's cache still holds them, as when one kernel is measured over and over; in a model they never are.
    Source: Dao et al. 2023, Flash-Decoding, for rows cut over processors; Williams et al. 2009, Roofline.
    """
    if min(rows, context_tokens) <= 0:
        return 0.0
    has = attained(device)
    numbers = rows * context_tokens * kv_heads * head_dim
    read_s = 2 * cache_bytes * numbers / (device.memory_bytes_per_s * has.attention)
    if warm:
        read_s *= _missed(2 * cache_bytes * numbers, has)
    work_s = 4 * rows * context_tokens * heads * head_dim / (peak_flops(device, "bfloat16") * has.prefill)
    blocks = rows * kv_heads
    waves_s = (ceil(blocks / has.processors) - 1) * has.block_s
    merge_s = has.merge_s * _between(log2(context_tokens), *map(log2, MERGED_TOKENS))
    return has.attention_launch_s + merge_s + _overlapped(waves_s, max(read_s, work_s), ATTENTION_OVERLAP)


def _overlapped(one_s: float, other_s: float, sharpness: float) -> float:
    """Return the seconds of two that go on side by side: more than the longer, less than both.

    >>> _overlapped(3.0, 4.0, 2.0), _overlapped(3.0, 0.0, 4.0)
    (5.0, 3.0)
    """
    longer, shorter = max(one_s, other_s), min(one_s, other_s)
    return float(longer * (1 + (shorter / longer) ** sharpness) ** (1 / sharpness)) if longer else 0.0


def _missed(read_bytes: float, has: AttainedShares) -> float:
    """Return the time of a read as a share of that from memory, when it was read just before."""
    missed = _between(read_bytes / has.cache_bytes, *CACHE_KEPT)
    return missed + (1 - missed) / has.cached


def _between(value: float, low: float, high: float) -> float:
    """Return how far a value is from one bound to the other, 0 and 1 beyond them.

    >>> _between(1.5, 1.0, 2.0), _between(9.0, 1.0, 2.0)
    (0.5, 1.0)
    """
    return min(1.0, max(0.0, (value - low) / (high - low)))
