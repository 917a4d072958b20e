"""Device profiles: every shipped file is whole and says where each number is from; what a pool talks over."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.short_form import read_cluster
from flowgraph.cluster.this_machine import laptop
from flowgraph.errors import UnknownNameError
from placements.profiles import FOLDER, Place, known_devices, profile, profiles, read_profile
from tests.unit.placements.links import links_of

GIB = 2**30
FILES = sorted(FOLDER.glob("*.toml"))

# Short names that people use for a device, and the profile that each must find.
USED = {
    "a100": "a100-sxm-80g",
    "a100-40g": "a100-sxm-40g",
    "a100-80g": "a100-sxm-80g",
    "a100-pcie": "a100-pcie-80g",
    "a6000": "a6000-48g",
    "a800": "a800-sxm-80g",
    "b200": "b200-sxm-180g",
    "b300": "b300-sxm-288g",
    "gb200": "gb200-186g",
    "gb300": "gb300-288g",
    "gh200": "gh200-141g",
    "H100": "h100-sxm-80g",
    "h100-80g": "h100-sxm-80g",
    "h100-96g": "h100-sxm-96g",
    "h100-pcie": "h100-pcie-80g",
    "h100-sxm": "h100-sxm-80g",
    "H100-SXM-80G": "h100-sxm-80g",
    "h20": "h20-sxm-96g",
    "h200": "h200-sxm-141g",
    "h800": "h800-sxm-80g",
    "l4": "l4-24g",
    "l40s": "l40s-48g",
    "mi300x": "mi300x-192g",
    "mi325x": "mi325x-256g",
    "mi355x": "mi355x-288g",
    "rtx-pro-6000": "rtx-pro-6000-96g",
    "rtx3090": "rtx3090-24g",
    "rtx4090": "rtx4090-24g",
}


def tables(value: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Give the tables that hold no other table, each with its place."""
    if isinstance(value, dict):
        if not any(isinstance(each, dict) for each in value.values()):
            yield place, value
        for key, each in value.items():
            yield from tables(each, f"{place}.{key}")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_number_of_a_shipped_file_says_where_it_is_from(path: Path) -> None:
    data = tomllib.loads(path.read_text("utf-8"))
    numbers = dict(tables(data))
    assert len(numbers) >= 7
    assert [place for place, number in numbers.items() if set(number) != {"value", "source"}] == []
    assert [place for place, number in numbers.items() if len(number["source"]) < 4] == []
    assert set(data) - {"aliases", "joins_machines"} == {place.split(".")[1] for place in numbers}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_numbers_of_a_shipped_file_are_of_this_world(path: Path) -> None:
    found, _ = read_profile(path)
    label = int(found.name.rpartition("-")[2].removesuffix("g"))
    assert 0.9 * label * 10**9 < found.memory_bytes <= label * GIB
    assert 0.25e12 < found.memory_bytes_per_s < 10e12
    assert found.domain in (1, 8, 72)
    assert (found.domain > 8) == found.joins_machines
    assert 30e9 < found.host_bytes_per_s <= 450e9
    assert found.host_bytes_per_s <= found.link_bytes_per_s <= 900e9
    assert found.network_bytes_per_s is None or 20e9 < found.network_bytes_per_s <= 100e9
    flops = [found.peak_flops[each] for each in ("float32", "bfloat16", "fp8", "fp4") if each in found.peak_flops]
    assert "bfloat16" in found.peak_flops
    assert flops == sorted(flops)
    assert 70e12 <= found.peak_flops["bfloat16"] <= 2500e12


def test_no_two_devices_have_one_name() -> None:
    names = [(name, path) for path in FILES for name in (path.stem, *read_profile(path)[1])]
    assert len({name for name, _ in names}) == len(names)
    assert [name for name, _ in names if name != name.lower() or "x8x" in name] == []


def test_names_that_people_use_find_their_device() -> None:
    assert {name: profile(name).name for name in USED} == USED
    assert set(profiles()) >= set(USED.values())


def test_an_unknown_device_is_told_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        profile("h10")
    assert str(caught.value) == "no device `h10`\n  hint: did you mean `h100`?"


def test_what_the_data_sheets_say() -> None:
    h100, a100, h20 = profile("h100"), profile("a100"), profile("h20")
    assert h100.peak_flops == {"float32": 67e12, "bfloat16": 989e12, "fp8": 1979e12}
    assert (h100.memory_bytes_per_s, h100.link_bytes_per_s, h100.domain) == (3.35e12, 450e9, 8)
    assert (a100.memory_bytes_per_s, a100.link_bytes_per_s) == (2.039e12, 300e9)
    assert "fp8" not in a100.peak_flops
    assert profile("a800").link_bytes_per_s == 200e9
    # An H20 has a sixth of an H100's arithmetic, and more of its memory's speed.
    assert h20.peak_flops["bfloat16"] == 148e12
    assert h20.memory_bytes_per_s > h100.memory_bytes_per_s
    assert profile("gb200").domain == 72
    assert profile("rtx4090").network_bytes_per_s is None


def test_memory_is_what_the_driver_reports_not_the_label() -> None:
    gib = {name: profile(name).memory_bytes / GIB for name in ("h100", "h200", "b300", "gb300", "mi300x", "l40s")}
    wanted = {"h100": 79.6, "h200": 139.8, "b300": 268.6, "gb300": 277.5, "mi300x": 192.0, "l40s": 45.0}
    assert gib == pytest.approx(wanted, abs=0.06)


def test_measured_shares_are_of_the_data_sheet() -> None:
    # Median GEMM and decode attention of aiconfigurator-core 0.12.0: 742 of 989 TFLOP/s and 3,027 of 3,350 GB/s; an
    # A100 reads its cache at little more than half of what its memory gives.
    assert 742 / 989 <= profile("h100").shares["matmul"] < 0.95
    assert profile("h100").shares["attention"] == pytest.approx(3027 / 3350, abs=0.03)
    assert profile("a100").shares["attention"] == pytest.approx(1141 / 2039, abs=0.05)


def test_a_profile_can_be_a_key_and_the_shipped_ones_cannot_be_changed() -> None:
    assert len({profile("h100"), profile("h100-sxm"), profile("h200")}) == 2
    with pytest.raises(TypeError):
        profiles()["mine"] = profile("h100")  # type: ignore[index]


WHOLE = """
aliases = ["mine"]
memory_bytes = { value = 9, source = "me" }
memory_bytes_per_s = { value = 9, source = "me" }
link_bytes_per_s = { value = 9.5, source = "me" }
domain = { value = 1, source = "me" }
host_bytes_per_s = { value = 9, source = "me" }

[peak_flops]
bfloat16 = { value = 9, source = "me" }

[shares]
matmul = { value = 0.5, source = "me" }
"""


def test_a_file_may_leave_out_what_nobody_knows(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(WHOLE, "utf-8")
    found, aliases = read_profile(tmp_path / "mine.toml")
    assert (found.name, aliases, found.network_bytes_per_s) == ("mine", ("mine",), None)
    assert (found.peak_flops, found.shares, found.link_bytes_per_s) == ({"bfloat16": 9}, {"matmul": 0.5}, 9.5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "mine.toml: aliases: Field required"),
        (WHOLE.replace("domain =", "domains ="), "mine.toml: domain: Field required"),
        (
            f"{WHOLE}attention = {{ value = 0.5 }}\n",
            "mine.toml: shares.attention.source: Field required",
        ),
        (
            f'{WHOLE}attention = {{ value = 0, source = "me" }}\n',
            "mine.toml: shares.attention.value: Input should be greater than 0",
        ),
        (
            f'{WHOLE}attention = {{ value = nan, source = "me" }}\n',
            "mine.toml: shares.attention.value: Input should be a finite number",
        ),
        (
            WHOLE.replace("bfloat16", "bfloat15"),
            "mine.toml: peak_flops.bfloat15.[key]: Input should be 'float32', 'bfloat16', 'fp8' or 'fp4'",
        ),
    ],
)
def test_a_file_that_is_not_whole_is_refused_with_its_place(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text, "utf-8")
    with pytest.raises(ValueError) as caught:
        read_profile(tmp_path / "mine.toml")
    assert str(caught.value) == said


def cluster(text: str) -> Cluster:
    return read_cluster(text, laptop, known_devices())


def of_node(number: int, devices: int) -> list[Place]:
    return [(f"node-{number}", i) for i in range(devices)]


def test_the_short_form_knows_every_shipped_device() -> None:
    for name, found in profiles().items():
        (node,) = cluster(f"2x{name}").nodes
        assert node.devices == (Device(kind="gpu", memory_bytes=found.memory_bytes, model=name),) * 2


def test_a_pool_talks_within_domains_and_over_a_share_of_the_network() -> None:
    two = cluster("2x8xh100")
    links = links_of(two, [*of_node(1, 8), *of_node(2, 8)])
    assert links is not None
    assert links.device == profile("h100")
    assert (links.domain, links.node_devices, links.network_bytes_per_s) == (8, 8, 50e9)
    part = links_of(two, of_node(1, 4))
    assert part is not None
    assert (part.domain, part.node_devices) == (8, 4)


def test_the_network_of_a_machine_is_shared_by_its_devices() -> None:
    (one, two) = cluster("2x8xa100").nodes
    slow = Cluster(nodes=(one.model_copy(update={"network_bytes_per_s": 25e9}), two))
    links = links_of(slow, [*of_node(1, 8), *of_node(2, 8)])
    assert links is not None
    assert links.network_bytes_per_s == 25e9 / 8


def test_memory_and_domain_that_a_cluster_tells_count() -> None:
    (node,) = cluster("8xh100-64GiB").nodes
    links = links_of(Cluster(nodes=(node.model_copy(update={"domain": 2}),)), of_node(1, 8))
    assert links is not None
    assert (links.domain, links.device.memory_bytes) == (2, 64 * GIB)


def test_a_machine_with_fewer_devices_than_a_domain_is_a_domain_of_its_own() -> None:
    links = links_of(cluster("2x4xh100"), [*of_node(1, 4), *of_node(2, 4)])
    assert links is not None
    assert (links.domain, links.node_devices) == (4, 4)


def test_a_rack_joins_machines_until_it_is_full() -> None:
    racks = cluster("20x4xgb200")  # the first 18 machines are a rack, two stand in the next
    one = links_of(racks, [place for number in range(1, 19) for place in of_node(number, 4)])
    both = links_of(racks, [place for number in range(17, 21) for place in of_node(number, 4)])
    assert one is not None
    assert both is not None
    assert (one.domain, one.node_devices) == (72, 4)
    assert (both.domain, both.node_devices) == (8, 4)


def test_devices_without_nvlink_are_no_domain() -> None:
    links = links_of(cluster("2x8xl40s"), [*of_node(1, 8), *of_node(2, 8)])
    assert links is not None
    assert (links.domain, links.node_devices, links.device.link_bytes_per_s) == (1, 8, 32e9)


def test_of_several_kinds_the_slowest_counts() -> None:
    mixed = cluster("8xh100,8xa100-40g")
    links = links_of(mixed, [*of_node(1, 8), *of_node(2, 8)])
    assert links is not None
    assert (links.device.name, links.network_bytes_per_s) == ("a100-sxm-40g", 25e9)


def test_a_device_of_no_known_model_has_the_nominal_rates_of_its_kind() -> None:
    for text, kind in (("8xgpu-80GiB", "gpu"), ("8xcpu-2GiB", "cpu")):
        links = links_of(cluster(text), of_node(1, 8))
        assert links is not None and links.device.nominal
        assert (links.device.name, links.device.kind) == (kind, kind)
        assert kind not in known_devices() and kind not in profiles()
    assert links_of(laptop(2, 10), [("laptop", 0)]) is not None


def test_a_network_that_nobody_knows_stays_unknown() -> None:
    # Nobody says what connects machines of such cards: alone such a machine needs no network.
    assert links_of(cluster("2x2xrtx4090"), [*of_node(1, 2), *of_node(2, 2)]) is None
    assert links_of(cluster("2xrtx4090"), of_node(1, 2)) is not None


def test_a_device_of_a_model_without_a_profile_is_nominal() -> None:
    device = Device(kind="gpu", memory_bytes=GIB, model="h1000")
    odd = Cluster(nodes=(Machine(name="a", devices=(device,), host_memory_bytes=GIB, cores=1),))
    links = links_of(odd, [("a", 0)])
    assert links is not None and links.device.nominal and links.device.memory_bytes == GIB


def test_more_of_a_cluster_is_never_closer_together() -> None:
    four = cluster("4x8xh100")
    for few, many in combinations(range(1, 5), 2):
        near = links_of(four, [place for number in range(1, few + 1) for place in of_node(number, 8)])
        far = links_of(four, [place for number in range(1, many + 1) for place in of_node(number, 8)])
        assert near is not None
        assert far is not None
        assert (near.domain, near.network_bytes_per_s) >= (far.domain, far.network_bytes_per_s)
