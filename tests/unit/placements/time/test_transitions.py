"""Weights on their way: to another pool, to another layout, to the host and back.

Measured times are from verl's docs/advance/fully_async.md and delta_weight_sync.md, and from the README of Moonshot's
checkpoint-engine.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph.cluster.plan import Layout
from placements.hardware.device_profiles import PoolLinks, profile
from placements.time.transitions import (
    METHODS,
    RESHARD_BYTES_PER_S,
    RESHARD_S,
    RESHARD_TENSOR_S,
    WAKE_S,
    Method,
    Resharding,
    gathering,
    offload_seconds,
    reshard_seconds,
    resharding,
    sync_seconds,
    wake_seconds,
)
from tests.looped import looped

GB = 1e9
# method, device, bytes, tensors, source devices, target devices, seconds.
SYNCS: list[tuple[Method, str, float, int, int, int, float]] = [
    ("broadcast", "h20", 470 * GB, 36_945, 64, 64, 58.57),  # Qwen3-235B-A22B
    ("bucketed", "h20", 470 * GB, 36_945, 64, 64, 23.7),
    ("staged", "h100", 65 * GB, 771, 16, 16, 14.2),  # Qwen2.5-32B
    ("staged", "h100", 145 * GB, 963, 32, 32, 28.8),  # Qwen2.5-72B
    ("staged", "h100", 61 * GB, 18_867, 8, 8, 32.2),  # Qwen3-30B-A3B
    ("staged", "a100", 16.4 * GB, 399, 16, 16, 10.24),  # Qwen3-8B
    ("staged", "a100", 61 * GB, 18_867, 16, 16, 43.43),
    ("delta", "h100", 65 * GB, 771, 16, 16, 6.2),
    ("delta", "h100", 145 * GB, 963, 32, 32, 12.5),
    ("delta", "h100", 470 * GB, 36_945, 64, 16, 13.15),
    ("delta", "a100", 16.4 * GB, 399, 16, 16, 2.41),
    ("parallel", "h20", 1030 * GB, 139_832, 16, 16, 14.36),  # Kimi-K2 in fp8, with scales
    ("parallel", "h20", 1030 * GB, 139_832, 256, 256, 16.04),
]


def pool(name: str, node_devices: int = 8) -> PoolLinks:
    device = profile(name)
    return PoolLinks(device, min(device.domain, node_devices), node_devices, device.network_bytes_per_s or 12.5e9)


@looped("method, name, size, tensors, source, target, took_s", SYNCS)
def test_a_sync_is_within_a_factor_of_two_of_what_was_measured(
    method: Method, name: str, size: float, tensors: int, source: int, target: int, took_s: float
) -> None:
    total_s = sync_seconds(size, tensors, pool(name), source, pool(name), target, method=method).total_s
    assert total_s is not None
    assert took_s / 2 <= total_s <= took_s * 2


def sync(method: Method, size: float = 16 * GB, *, together: bool = False, network: float = 50e9) -> dict[str, float]:
    links = replace(pool("h100"), network_bytes_per_s=network)
    found = sync_seconds(size, 400, links, 16, links, 16, 4, method, together=together)
    return {name: each for name, each in found.parts.items() if each is not None}


@looped("method", METHODS)
def test_a_sync_has_its_parts_by_name(method: Method) -> None:
    assert list(sync(method)) == ["gather", "pack", "transfer", "install", "pause"]
    assert sync(method)["pause"] > 0


def test_only_methods_of_one_sender_gather_and_only_slow_software_packs() -> None:
    assert {method for method in METHODS if sync(method)["gather"]} == {"broadcast", "staged", "bucketed"}
    assert {method for method in METHODS if sync(method)["pack"]} == {"staged", "delta"}


def test_buckets_spare_most_of_what_each_tensor_costs() -> None:
    assert sync("bucketed")["install"] < sync("broadcast")["install"] / 5


def test_all_senders_fill_all_adapters_of_a_machine() -> None:
    assert sync("broadcast")["transfer"] == pytest.approx(16 / 50 / 0.85)
    assert sync("parallel")["transfer"] == pytest.approx(16 / 50 / 0.85 / 8)


def test_a_delta_sends_a_tenth() -> None:
    assert sync("delta")["transfer"] == pytest.approx(0.09 * sync("parallel")["transfer"])


def test_pools_of_one_domain_need_no_network() -> None:
    assert sync("broadcast", together=True, network=1.0)["transfer"] < sync("broadcast")["transfer"] / 5


@given(st.floats(1e6, 1e12), st.sampled_from(list(METHODS)))
def test_more_bytes_take_longer_and_a_faster_network_never_does(size: float, method: Method) -> None:
    assert sum(sync(method, 2 * size).values()) > sum(sync(method, size).values())
    assert sum(sync(method, size, network=100e9).values()) <= sum(sync(method, size).values())


def test_resharding_receives_what_the_paper_counts() -> None:
    # Sheng et al. 2024, arXiv 2409.19256, table 2, with t = 8, p = 2, d = 4 and t_g = 2, p_g = 1.
    training, generation = Layout(data=4, tensor=8, pipeline=2), Layout(data=32, tensor=2)
    hows: tuple[Resharding, ...] = ("all", "model", "micro")
    gathers = {how: gathering(64.0, training, generation, how) for how in hows}
    counted = {how: size_bytes * (ranks - 1) / ranks for how, (ranks, size_bytes) in gathers.items()}
    assert counted == {"all": 63.0, "model": 60.0, "micro": (16 - 2) / (2 * 16) * 64}


def test_ranks_are_gathered_no_further_than_the_layouts_need() -> None:
    assert resharding(Layout(data=8, sharding="full"), Layout(data=2, tensor=4)) == "all"
    assert resharding(Layout(data=2, tensor=8), Layout(data=4, tensor=4)) == "micro"
    assert resharding(Layout(data=2, tensor=4), Layout(tensor=8)) == "model"


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_resharding_takes_least_where_it_gathers_least(tensor: int) -> None:
    training, generation = Layout(data=4, tensor=8), Layout(data=32 // tensor, tensor=tensor)
    took_s = [
        reshard_seconds(140 * GB, 723, training, generation, pool("a100"), how).total_s or 0.0
        for how in ("micro", "model", "all")
    ]
    assert took_s == sorted(took_s)
    assert reshard_seconds(140 * GB, 723, training, generation, pool("a100")).total_s == took_s[0]


def test_one_layout_for_both_phases_gathers_nothing() -> None:
    same = Layout(data=2, tensor=4)
    assert reshard_seconds(16 * GB, 400, same, same, pool("h100")).parts["gather"] == 0.0


def test_new_weights_pass_through_software_which_counts_bytes_and_tensors() -> None:
    """Within half and twice of what NeMo-RL and verl publish of 8B and 70B models and of one with experts."""

    def software_s(size: float, tensors: int) -> float:
        same = Layout(data=2, tensor=4)
        return reshard_seconds(size, tensors, same, same, pool("h100")).parts["software"] or 0.0

    assert software_s(2 * 16 * GB, 400) - software_s(16 * GB, 400) == pytest.approx(16 * GB / RESHARD_BYTES_PER_S)
    assert software_s(16 * GB, 800) - software_s(16 * GB, 400) == pytest.approx(400 * RESHARD_TENSOR_S)
    assert software_s(0.0, 1) == pytest.approx(RESHARD_S + RESHARD_TENSOR_S)
    for size, tensors, took_s in ((16 * GB, 291, 5.0), (141 * GB, 723, 14.0), (61 * GB, 18_867, 12.0)):
        assert took_s / 2 <= software_s(size, tensors) <= took_s * 2


def test_in_one_process_on_a_cpu_weights_pass_through_no_software() -> None:
    cores = replace(pool("h100"), device=replace(profile("h100"), kind="cpu"))
    same = Layout(data=2)
    assert reshard_seconds(GB, 400, same, same, cores).parts["software"] == 0.0


def test_waking_up_is_a_copy_and_a_moment() -> None:
    device = profile("a100")
    woken = wake_seconds(24 * GB, device)
    assert woken.parts == {"copy": offload_seconds(24 * GB, device), "wake": WAKE_S}
    assert woken.parts["copy"] == pytest.approx(1.0)  # at 24 GB/s over PCIe 4
