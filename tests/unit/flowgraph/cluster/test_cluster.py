"""Clusters, amounts of memory, and what this machine leaves us."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from flowgraph.cluster.cluster import Cluster, Device, Machine, amount_bytes_per_s, parse_bytes, show_bytes, show_rate
from flowgraph.cluster.this_machine import cgroup_free_bytes, core_warnings, free_bytes, laptop, plannable_bytes
from flowgraph.errors import SettingError
from tests.looped import looped

UNITS = "B, KiB, MiB, GiB, TiB, kB, MB, GB, TB"


@looped(
    "text, amount",
    [("2GiB", 2**31), ("2 gib", 2**31), ("1.5MiB", 3 * 2**19), ("2GB", 2 * 10**9), ("7B", 7), (" 3 kB ", 3000)],
)
def test_an_amount_is_a_number_and_a_binary_or_decimal_unit(text: str, amount: int) -> None:
    assert parse_bytes(text) == amount


@looped(
    "text, why",
    [
        ("16", f"has no unit; known: {UNITS}"),
        ("2G", f"has no unit `G`; known: {UNITS}"),
        ("2XiB", f"has no unit `XiB`; known: {UNITS}"),
        ("", "should be a number and a unit, as in 2GiB"),
        ("-1GiB", "should be a number and a unit, as in 2GiB"),
        ("1e3GiB", "should be a number and a unit, as in 2GiB"),
        ("9" * 400 + "GiB", "should be a number and a unit, as in 2GiB"),
        ("0GiB", "should be more than nothing"),
        ("0.4B", "should be more than nothing"),
    ],
)
def test_what_is_no_amount_is_refused(text: str, why: str) -> None:
    with pytest.raises(SettingError) as caught:
        parse_bytes(text)
    shown = repr(text) if len(text) < 100 else f"{text!r}"[:120] + "…"
    assert str(caught.value) == f"memory={shown}: {why}"


@given(st.integers(1, 2**50))
def test_what_is_shown_reads_back_within_its_rounding(amount: int) -> None:
    back = parse_bytes(show_bytes(amount))
    # A unit is used from 0.95 of it on, and the last digit is rounded to 0.05 of it.
    assert abs(back - amount) <= 0.05 / 0.95 * amount + 1


def test_each_amount_is_shown_in_the_largest_unit_that_it_fills() -> None:
    shown = [show_bytes(amount) for amount in (0, 1023, 1024, 2**20 - 1, 2**30, 3 * 2**39)]
    assert shown == ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.0 GiB", "1.5 TiB"]


@looped(
    "text, bytes_per_s",
    [("200 Gbps", 25e9), ("25GB/s", 25e9), (" 1.5 Tbps ", 187.5e9), ("2 GiB/s", 2.0**31), ("8 Mbps", 1e6)],
)
def test_a_network_carries_bits_or_bytes_in_a_second(text: str, bytes_per_s: float) -> None:
    assert amount_bytes_per_s(text) == bytes_per_s


RATES = "Mbps, Gbps, Tbps, MB/s, GB/s, TB/s, MiB/s, GiB/s, TiB/s"


@looped(
    "text, why",
    [
        ("200", f"has no unit; known: {RATES}"),
        ("200 gbps", f"has no unit `gbps`; known: {RATES}"),
        ("25 GBps", f"has no unit `GBps`; known: {RATES}"),
        ("25 GB", f"has no unit `GB`; known: {RATES}"),
        ("-1 Gbps", "should be a number and a unit, as in 200 Gbps or 25 GB/s"),
        ("nan Gbps", "should be a number and a unit, as in 200 Gbps or 25 GB/s"),
        ("0 Gbps", "should be more than nothing and at most 1000 TB/s"),
        ("999999999999999 TB/s", "should be more than nothing and at most 1000 TB/s"),
    ],
)
def test_what_no_network_carries_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError) as caught:
        amount_bytes_per_s(text)
    assert str(caught.value) == why


@given(st.floats(1e6, 1e15))
def test_a_rate_that_is_shown_reads_back_within_its_rounding(bytes_per_s: float) -> None:
    assert amount_bytes_per_s(show_rate(bytes_per_s)) == pytest.approx(bytes_per_s, rel=1e-3)


def machine(**told: Any) -> Machine:
    """Return a machine of eight GPUs."""
    gpus = (Device(kind="gpu", memory_bytes=1),) * 8
    return Machine(name="a", devices=gpus, host_memory_bytes=1, cores=1, **told)


@looped(
    "told, why",
    [
        ({"domain": 3}, "domains of 3 do not divide the 8 devices of the machine"),
        ({"domain": 16}, "a domain of 16 is larger than the 8 devices of the machine"),
        ({"domain": 0}, "greater than 0"),
        ({"network_bytes_per_s": 0.0}, "greater than 0"),
        ({"network_bytes_per_s": float("inf")}, "finite number|less than or equal"),
        ({"price_per_hour": -1.0}, "greater than or equal to 0"),
        ({"price_per_hour": float("nan")}, "finite number"),
    ],
)
def test_a_connection_that_cannot_be_is_refused(told: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        machine(**told)


@pytest.mark.parametrize("told", [{}, {"domain": 4, "leaf": "a"}, {"network_bytes_per_s": 25e9, "price_per_hour": 0.0}])
def test_what_nobody_told_is_not_written_and_reads_back_the_same(told: dict[str, Any]) -> None:
    cluster = Cluster(nodes=(machine(**told),))
    written = json.loads(cluster.model_dump_json())
    assert set(written["nodes"][0]) == {"name", "devices", "host_memory_bytes", "cores", *told}
    assert set(written["nodes"][0]["devices"][0]) == {"kind", "memory_bytes"}
    assert Cluster.model_validate_json(cluster.model_dump_json()) == cluster


def test_a_cluster_of_before_there_were_models_still_reads() -> None:
    device = '{"kind": "gpu", "memory_bytes": 5}'
    text = f'{{"name": "a", "devices": [{device}], "host_memory_bytes": 9, "cores": 2}}'
    (node,) = Cluster.model_validate_json(f'{{"nodes": [{text}]}}').nodes
    assert (node.devices[0].model, node.domain, node.network_bytes_per_s, node.price_per_hour) == ("", None, None, None)


def test_two_nodes_of_one_name_are_refused() -> None:
    node = Machine(name="a", devices=(Device(kind="cpu", memory_bytes=1),), host_memory_bytes=1, cores=1)
    with pytest.raises(ValidationError, match="two nodes have one name"):
        Cluster(nodes=(node, node))


def test_a_device_that_is_not_there_is_none() -> None:
    here = laptop(1, 5)
    assert here.device("laptop", 0) == Device(kind="cpu", memory_bytes=5)
    assert (here.device("laptop", 1), here.device("laptop", -1), here.device("other", 0)) == (None, None, None)


def test_this_machine_is_one_node_whose_two_cpu_devices_share_its_memory() -> None:
    (node,) = laptop().nodes
    share = Device(kind="cpu", memory_bytes=node.host_memory_bytes // 2)
    assert (node.name, node.devices) == ("laptop", (share, share))
    assert node.cores >= 1


def test_a_plan_for_this_machine_counts_on_the_same_memory_whatever_is_free_at_the_moment() -> None:
    before, free_before = laptop(), free_bytes()
    held = bytearray(b"x" * 2**27)  # used, not only reserved
    after, free_after = laptop(), free_bytes()
    assert len(held) == 2**27 and free_before != free_after
    assert after == before
    assert plannable_bytes() == before.nodes[0].host_memory_bytes


@pytest.mark.parametrize(
    ("limits", "left"),
    [(("16 GiB", "max"), 14 * 2**30), (("17 GiB", "max"), 14 * 2**30), (("17 GiB", "9 GiB"), 7 * 2**30)],
    ids=str,
)
def test_a_plan_counts_on_whole_gibibytes_of_what_control_groups_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: tuple[str, str], left: int
) -> None:
    for folder, limit in zip((tmp_path / "a", tmp_path), limits, strict=True):
        write(folder, {"memory.max": limit if limit == "max" else str(int(limit.split()[0]) * 2**30)})
    write(tmp_path, {"mine": "0::/a\n"})
    monkeypatch.setattr("flowgraph.cluster.this_machine.CGROUPS", tmp_path)
    monkeypatch.setattr("flowgraph.cluster.this_machine.MEMBERSHIP", tmp_path / "mine")
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=2**40))
    assert plannable_bytes() == left


def test_memory_that_is_given_is_shared_evenly_in_place_of_that_of_the_machine() -> None:
    (node,) = laptop(3, 11).nodes
    assert [device.memory_bytes for device in node.devices] == [3, 3, 3]
    assert node.host_memory_bytes == 11


@pytest.mark.parametrize(
    ("devices", "memory_bytes", "said"),
    [
        (2, 0, "memory=0: should be at least a byte for each device"),
        (2, 1, "memory=1: should be at least a byte for each device"),
        (0, None, "devices=0: should be 1 to 65,536"),
        (2**31, None, "devices=2147483648: should be 1 to 65,536"),
    ],
)
def test_no_device_or_no_memory_for_one_is_refused(devices: int, memory_bytes: int | None, said: str) -> None:
    with pytest.raises(SettingError) as caught:
        laptop(devices, memory_bytes)
    assert str(caught.value) == said


def test_cpu_devices_that_are_more_than_the_cores_of_their_node_are_warned_of() -> None:
    cpu, gpu = Device(kind="cpu", memory_bytes=1), Device(kind="gpu", memory_bytes=1)

    def node(name: str, devices: tuple[Device, ...], cores: int) -> Machine:
        return Machine(name=name, devices=devices, host_memory_bytes=9, cores=cores)

    nodes = (
        node("laptop", (cpu, cpu), 1),
        node("fits", (cpu, cpu), 2),
        node("gpus", (gpu, gpu, cpu), 1),
        node("big", (cpu,) * 9, 8),
    )
    assert core_warnings(Cluster(nodes=nodes)) == (
        "node laptop has 1 core for 2 devices: they will take turns",
        "node big has 8 cores for 9 devices: they will take turns",
    )


def write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def test_a_group_of_version_two_and_its_parents_bound_the_memory(tmp_path: Path) -> None:
    write(
        tmp_path / "a/b",
        {"memory.max": "1000\n", "memory.current": "700\n", "memory.stat": "anon 1\ninactive_file 50\n"},
    )
    write(tmp_path / "a", {"memory.max": "900\n", "memory.current": "800\n"})
    write(tmp_path, {"memory.max": "max\n", "memory.current": "5\n"})
    write(tmp_path, {"mine": "0::/a/b\n"})
    assert list(cgroup_free_bytes(tmp_path, tmp_path / "mine")) == [350, 100]


def test_a_group_of_version_one_bounds_the_memory_and_other_controllers_do_not(tmp_path: Path) -> None:
    stat = "total_inactive_file 20\ninactive_file 3\n"
    write(
        tmp_path / "memory/a",
        {"memory.limit_in_bytes": "100", "memory.usage_in_bytes": "60", "memory.stat": stat},
    )
    write(tmp_path, {"mine": "4:memory:/a\n3:cpuset:/x:y\n1:name=systemd:/\n"})
    assert list(cgroup_free_bytes(tmp_path, tmp_path / "mine")) == [60]


def test_missing_files_bound_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"mine": "0::/gone\n"})
    assert list(cgroup_free_bytes(tmp_path, tmp_path / "mine")) == []
    assert list(cgroup_free_bytes(tmp_path, tmp_path / "no such file")) == []
