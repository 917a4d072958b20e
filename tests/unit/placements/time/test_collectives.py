"""A collective's forecast is near what was measured on five systems, and tiers, bytes and devices count as they should.

The rows are 20 of the NCCL tables of aiconfigurator-core 0.12.0 (Apache-2.0), drawn by chance, four of each system.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import mean
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placements.hardware.architectures import attained
from placements.hardware.device_profiles import PoolLinks, profile, profiles
from placements.time.collectives import (
    NETWORK_SHARE,
    Collective,
    collective_seconds,
    link_bytes_per_s,
    machine_devices,
    network_bytes_per_s,
)

MIB = 2**20
# device, collective, devices, MiB, microseconds.
ROWS: list[tuple[str, Collective, int, int, float]] = [
    ("a100-sxm", "all_reduce", 4, 16, 183.5),
    ("a100-sxm", "all_reduce", 4, 8, 111.0),
    ("a100-sxm", "all_gather", 8, 2, 33.45),
    ("a100-sxm", "reduce_scatter", 2, 16, 82.27),
    ("h100-sxm", "all_gather", 4, 128, 350.3),
    ("h100-sxm", "all_to_all", 2, 4, 21.16),
    ("h100-sxm", "all_reduce", 4, 1, 18.12),
    ("h100-sxm", "all_to_all", 8, 2, 18.58),
    ("h200-sxm", "all_gather", 2, 256, 544.8),
    ("h200-sxm", "all_reduce", 4, 4, 39.79),
    ("h200-sxm", "all_gather", 2, 128, 288.5),
    ("h200-sxm", "all_reduce", 4, 512, 2311.0),
    ("b200-sxm", "reduce_scatter", 2, 64, 99.02),
    ("b200-sxm", "reduce_scatter", 4, 8, 48.05),
    ("b200-sxm", "all_gather", 8, 128, 206.8),
    ("b200-sxm", "reduce_scatter", 4, 256, 380.5),
    ("l40s", "all_to_all", 4, 16, 2691.0),
    ("l40s", "all_to_all", 8, 512, 238100.0),
    ("l40s", "all_gather", 4, 1, 154.6),
    ("l40s", "all_to_all", 4, 512, 88650.0),
]
# device, then milliseconds of an all-gather, a reduce-scatter and an all-reduce of 512 MiB on 8 devices.
LONGEST = [
    ("a100-sxm", 2.29, 2.21, 4.23),
    ("h100-sxm", 1.40, 1.40, 2.11),
    ("h200-sxm", 1.40, 1.39, 2.04),
    ("b200-sxm", 0.76, 0.77, 1.34),
]

DEVICES = st.sampled_from(sorted(profiles()))
OPS = st.sampled_from(get_args(Collective))
BYTES = st.floats(1, 1e12)


def pool(name: str, node_devices: int = 8) -> PoolLinks:
    device = profile(name)
    return PoolLinks(device, min(device.domain, node_devices), node_devices, device.network_bytes_per_s or 12.5e9)


def test_collectives_are_within_15_percent_of_what_was_measured() -> None:
    errors = [
        abs(1e6 * collective_seconds(op, mib * MIB, devices, pool(name)) / took_us - 1)
        for name, op, devices, mib, took_us in ROWS
    ]
    assert mean(errors) < 0.15


@pytest.mark.parametrize(("name", "gather_ms", "scatter_ms", "reduce_ms"), LONGEST)
def test_the_longest_messages_are_within_20_percent(
    name: str, gather_ms: float, scatter_ms: float, reduce_ms: float
) -> None:
    ops: tuple[Collective, ...] = ("all_gather", "reduce_scatter", "all_reduce")
    took_ms = [1e3 * collective_seconds(op, 512 * MIB, 8, pool(name)) for op in ops]
    assert took_ms == pytest.approx([gather_ms, scatter_ms, reduce_ms], rel=0.2)


def test_without_transfers_from_peer_to_peer_eight_devices_have_a_gigabyte_per_second() -> None:
    took_s = collective_seconds("all_gather", 512 * MIB, 8, pool("l40s"))
    assert 7 / 8 * 512 * MIB / took_s == pytest.approx(1.2e9, rel=0.15)  # 0.400 s as measured


@given(DEVICES, OPS, BYTES, st.integers(2, 256), st.sampled_from([1, 2, 4, 8]))
def test_more_bytes_take_longer(name: str, op: Collective, size: float, devices: int, node_devices: int) -> None:
    links = pool(name, node_devices)
    assert collective_seconds(op, 2 * size, devices, links) > collective_seconds(op, size, devices, links)


@given(DEVICES, OPS, BYTES, st.integers(2, 256))
def test_a_faster_link_or_network_never_takes_longer(name: str, op: Collective, size: float, devices: int) -> None:
    links = pool(name)
    faster = replace(links, device=replace(links.device, link_bytes_per_s=2 * links.device.link_bytes_per_s))
    wider = replace(links, network_bytes_per_s=2 * links.network_bytes_per_s)
    took_s = collective_seconds(op, size, devices, links)
    assert collective_seconds(op, size, devices, faster) <= took_s
    assert collective_seconds(op, size, devices, wider) <= took_s


@given(DEVICES, OPS, BYTES, st.sampled_from([16, 64, 256]))
def test_a_pool_on_more_machines_never_gathers_faster(name: str, op: Collective, size: float, devices: int) -> None:
    near, far = pool(name, 8), replace(pool(name, 8), node_devices=8, network_bytes_per_s=1e9)
    assert collective_seconds(op, size, devices, far) >= collective_seconds(op, size, min(8, devices), near)


@given(BYTES, st.integers(2, 64))
def test_an_all_reduce_is_at_most_a_reduce_scatter_and_an_all_gather(size: float, machines: int) -> None:
    links = pool("h100", 1)
    parts_s = 2 * collective_seconds("all_gather", size, machines, links)
    assert collective_seconds("all_reduce", size, machines, links) <= parts_s
    if size > 1e10:  # short ones take trees between machines
        assert collective_seconds("all_reduce", size, machines, links) > 0.9 * parts_s


def test_nothing_is_sent_by_one_device_or_of_no_bytes() -> None:
    assert collective_seconds("all_reduce", 1e9, 1, pool("h100")) == 0.0
    assert collective_seconds("all_reduce", 0, 8, pool("h100")) == 0.0


def test_between_machines_the_adapters_of_all_their_devices_carry_a_ring() -> None:
    links = replace(pool("h100"), network_bytes_per_s=25e9)
    took_s = collective_seconds("all_gather", 1e12, 64, links)
    assert took_s == pytest.approx(1e12 * (1 - 8 / 64) / 8 / (25e9 * NETWORK_SHARE), rel=0.01)
    # An all-to-all has no such help: of what a device sends, all but its machine's part crosses its own adapter.
    took_s = collective_seconds("all_to_all", 1e12, 64, links)
    assert took_s == pytest.approx(1e12 * (1 - 8 / 64) / (25e9 * NETWORK_SHARE), rel=0.01)


def test_a_rack_is_one_domain_over_its_machines() -> None:
    rack, board = PoolLinks(profile("gb200"), 72, 4, 100e9), PoolLinks(profile("h100"), 4, 4, 50e9)
    assert machine_devices(64, rack) == 64
    assert machine_devices(64, board) == 4
    assert collective_seconds("all_gather", 1e9, 64, rack) < collective_seconds("all_gather", 1e9, 64, board) / 3


def test_a_domain_of_bridged_pairs_talks_through_the_host_to_the_others() -> None:
    pairs = replace(pool("h100-pcie"), domain=2)
    near, far = (collective_seconds("all_to_all", 1e9, devices, pairs) for devices in (2, 4))
    assert far > 2 * near


def test_devices_that_are_linked_each_with_each_have_one_link_to_each_peer() -> None:
    pair, board = (link_bytes_per_s(pool("mi300x"), devices) for devices in (2, 8))
    assert pair < 64e9 < 200e9 < board < 448e9  # seven links of 64 GB/s: stas00/ml-engineering, network
    took_s = collective_seconds("all_reduce", 4e9, 8, pool("mi300x"))
    assert 2 * 7 / 8 * 4e9 / took_s == pytest.approx(312.9e9, rel=0.05)


def test_long_messages_have_the_rates_that_links_are_told_by() -> None:
    links = pool("h100")
    assert link_bytes_per_s(links, 8) == pytest.approx(450e9 * attained(links.device).collective * (1 - 0.5 / 8))
    assert network_bytes_per_s(links) == pytest.approx(50e9 * 0.85)
    assert link_bytes_per_s(pool("h100", 1), 8) == network_bytes_per_s(links)
