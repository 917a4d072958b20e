"""A kernel's forecast is near what was measured on five devices, and behaves as more work, or a faster device, should.

The rows are 20 of each table of aiconfigurator-core 0.12.0 (Apache-2.0), drawn by chance, four of each system.
"""

from __future__ import annotations

from dataclasses import fields, replace
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.forecast.kernels import decode_attention_seconds
from placements.hardware.architectures import NAMES, AttainedShares, architecture, attained
from placements.hardware.device_profiles import DeviceProfile, profile, profiles
from placements.time.kernels import WIDTH_BYTES, matmul_seconds, peak_flops

# device, m, n, k, microseconds: bf16 products of 256 tokens and more.
PRODUCTS = [
    ("a100-sxm", 1024, 65536, 4096, 2177.0),
    ("a100-sxm", 2048, 12288, 8192, 1749.0),
    ("a100-sxm", 256, 5120, 4096, 56.01),
    ("a100-sxm", 8192, 1024, 2048, 165.9),
    ("h100-sxm", 8192, 6144, 12288, 1605.0),
    ("h100-sxm", 8192, 4096, 8192, 724.8),
    ("h100-sxm", 256, 65536, 3584, 196.8),
    ("h100-sxm", 8192, 1024, 12288, 267.0),
    ("h200-sxm", 16384, 5120, 8192, 2351.0),
    ("h200-sxm", 8192, 10240, 12288, 3056.0),
    ("h200-sxm", 1024, 12288, 4096, 151.7),
    ("h200-sxm", 4096, 65536, 2048, 1656.0),
    ("b200-sxm", 8192, 12288, 2048, 257.2),
    ("b200-sxm", 2048, 65536, 2048, 349.1),
    ("b200-sxm", 256, 5120, 8192, 27.04),
    ("b200-sxm", 8192, 65536, 3584, 2549.0),
    ("l40s", 8192, 8192, 4096, 2968.0),
    ("l40s", 8192, 65536, 2048, 11230.0),
    ("l40s", 4096, 2048, 4096, 284.7),
    ("l40s", 2048, 10240, 3584, 694.1),
]
# device, rows, context, heads, heads of keys, microseconds: heads of 128, caches of 1 MB and more.
ATTENTIONS = [
    ("a100-sxm", 32, 8192, 32, 2, 356.8),
    ("a100-sxm", 8, 1024, 64, 2, 28.54),
    ("a100-sxm", 512, 128, 64, 64, 1868.0),
    ("a100-sxm", 32, 16384, 8, 4, 1322.0),
    ("h100-sxm", 8, 2048, 8, 4, 14.94),
    ("h100-sxm", 64, 512, 8, 1, 13.96),
    ("h100-sxm", 128, 512, 8, 2, 35.75),
    ("h100-sxm", 1, 256, 64, 64, 13.16),
    ("h200-sxm", 1, 2048, 8, 2, 11.47),
    ("h200-sxm", 32, 65536, 8, 1, 253.2),
    ("h200-sxm", 32, 8192, 8, 2, 72.3),
    ("h200-sxm", 16, 131072, 8, 4, 975.0),
    ("b200-sxm", 32, 256, 32, 2, 10.4),
    ("b200-sxm", 128, 128, 64, 2, 12.45),
    ("b200-sxm", 64, 32, 64, 8, 12.53),
    ("b200-sxm", 16, 64, 32, 4, 8.485),
    ("l40s", 256, 4096, 8, 4, 2953.0),
    ("l40s", 128, 16, 32, 2, 8.038),
    ("l40s", 1, 65536, 32, 4, 194.0),
    ("l40s", 64, 32768, 8, 4, 5898.0),
]

DEVICES = st.sampled_from(sorted(profiles()))
SIZES = st.integers(1, 1 << 17)
ROWS = st.integers(1, 1024)


def test_products_are_within_15_percent_of_what_was_measured() -> None:
    errors = [abs(1e6 * matmul_seconds(m, n, k, profile(name)) / took_us - 1) for name, m, n, k, took_us in PRODUCTS]
    assert mean(errors) < 0.15


def test_attention_that_decodes_is_within_15_percent_of_what_was_measured() -> None:
    errors = [
        abs(1e6 * decode_attention_seconds(rows, context, heads, kv, 128, profile(name), warm=True) / took_us - 1)
        for name, rows, context, heads, kv, took_us in ATTENTIONS
    ]
    assert mean(errors) < 0.15


@given(DEVICES, SIZES, SIZES, SIZES)
def test_a_larger_product_never_takes_less(name: str, m: int, n: int, k: int) -> None:
    device = profile(name)
    took_s = matmul_seconds(m, n, k, device)
    for larger in ((2 * m, n, k), (m, n + 1, k), (m, n, 2 * k)):
        assert matmul_seconds(*larger, device) >= took_s


@given(DEVICES, SIZES, SIZES, SIZES)
def test_no_product_beats_the_data_sheet(name: str, m: int, n: int, k: int) -> None:
    device = profile(name)
    bytes_s = 2 * (m * k + n * k + m * n) / device.memory_bytes_per_s
    least_s = max(2 * m * n * k / device.peak_flops["bfloat16"], bytes_s)
    assert matmul_seconds(m, n, k, device) > least_s


@given(DEVICES, SIZES, SIZES, SIZES)
def test_a_narrower_type_never_takes_longer(name: str, m: int, n: int, k: int) -> None:
    device = profile(name)
    took_s = [matmul_seconds(m, n, k, device, precision) for precision in WIDTH_BYTES if precision != "float32"]
    assert took_s == sorted(took_s)


@given(DEVICES, ROWS, SIZES, st.sampled_from([(8, 1), (32, 8), (64, 64)]), st.booleans())
def test_more_rows_or_a_longer_context_never_take_less_attention(
    name: str, rows: int, context: int, heads: tuple[int, int], warm: bool
) -> None:
    device = profile(name)
    took_s = decode_attention_seconds(rows, context, *heads, 128, device, warm=warm)
    assert decode_attention_seconds(rows + 1, context, *heads, 128, device, warm=warm) >= took_s
    assert decode_attention_seconds(rows, context + 1, *heads, 128, device, warm=warm) >= took_s


def test_a_cache_of_one_byte_a_number_takes_half_as_long_to_read() -> None:
    device = profile("h100")
    launch_s = attained(device).attention_launch_s + attained(device).merge_s
    two, one = (decode_attention_seconds(1, 2**24, 8, 8, 128, device, each) - launch_s for each in (2, 1))
    assert two / one == pytest.approx(2)


def test_what_was_just_read_is_read_faster_until_it_is_larger_than_the_cache() -> None:
    device = profile("l40s")
    for context, faster in ((16_384, True), (65_536, False)):  # 67 and 268 MB, a cache of 96 MB
        warm, cold = (decode_attention_seconds(1, context, 8, 8, 128, device, warm=each) for each in (True, False))
        assert (warm < cold / 3) is faster
        assert warm <= cold


def test_nothing_to_do_takes_no_time() -> None:
    device = profile("h100")
    assert matmul_seconds(0, 4096, 4096, device) == 0.0
    assert decode_attention_seconds(0, 4096, 8, 8, 128, device) == 0.0


def test_a_type_that_a_device_does_not_multiply_is_widened() -> None:
    assert peak_flops(profile("a100"), "fp8") == peak_flops(profile("a100"), "bfloat16")
    assert peak_flops(profile("h100"), "fp4") == peak_flops(profile("h100"), "fp8")
    narrow = replace(profile("h100"), peak_flops={"fp8": 1.0})
    with pytest.raises(ValueError, match=r"has no peak for bfloat16 or float32$"):
        peak_flops(narrow, "bfloat16")
    with pytest.raises(ValueError, match=r"has no peak for float32 or bfloat16$"):
        peak_flops(narrow, "float32")


def unmeasured(name: str) -> DeviceProfile:
    return replace(profile("h100"), name=name, shares={})


def test_a_device_that_was_not_measured_has_what_its_architecture_attains() -> None:
    assert attained(unmeasured("h800-sxm-80g")) == architecture("hopper")
    assert attained(unmeasured("a100-sxm-40g")) == architecture("ampere")
    assert attained(unmeasured("l4-24g")).processors == 58  # and not as an L40S
    assert attained(unmeasured("l40s-48g")).processors == 142
    assert attained(unmeasured("h100-pcie-80g")).processors == 114
    assert attained(unmeasured("tpu")) == architecture("other")


def test_shares_that_were_measured_come_before_those_of_the_architecture() -> None:
    device = replace(unmeasured("h800"), shares={"matmul": 0.6, "of somebody else": 2.0})
    assert attained(device) == replace(architecture("hopper"), matmul=0.6)


@given(DEVICES)
def test_every_device_shipped_has_shares_within_their_bounds(name: str) -> None:
    has, shares = attained(profile(name)), profile(name).shares
    assert set(shares) <= NAMES
    for each in ("matmul", "memory", "attention", "prefill", "collective", "all_to_all", "host"):
        assert 0.3 < getattr(has, each) <= 1
    assert 0.5 < has.all_reduce <= 1.1
    assert all(0 <= getattr(has, field.name) < 2e-5 for field in fields(AttainedShares) if field.name.endswith("_s"))
