"""Clusters, amounts of memory, and what this machine leaves us."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from flowgraph.cluster import Cluster, Device, Node, parse_bytes, show_bytes
from flowgraph.errors import SettingError
from flowgraph.machine import cgroup_free_bytes, laptop

UNITS = "B, KiB, MiB, GiB, TiB, kB, MB, GB, TB"


@pytest.mark.parametrize(
    ("text", "amount"),
    [("2GiB", 2**31), ("2 gib", 2**31), ("1.5MiB", 3 * 2**19), ("2GB", 2 * 10**9), ("7B", 7), (" 3 kB ", 3000)],
)
def test_an_amount_is_a_number_and_a_binary_or_decimal_unit(text: str, amount: int) -> None:
    assert parse_bytes(text) == amount


@pytest.mark.parametrize(
    ("text", "why"),
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
    assert str(caught.value) == f"memory={text!r}: {why}"


@given(st.integers(1, 2**50))
def test_what_is_shown_reads_back_within_its_rounding(amount: int) -> None:
    back = parse_bytes(show_bytes(amount))
    assert abs(back - amount) <= 0.051 * amount


def test_each_amount_is_shown_in_the_largest_unit_that_it_fills() -> None:
    shown = [show_bytes(amount) for amount in (0, 1023, 1024, 2**20 - 1, 2**30, 3 * 2**39)]
    assert shown == ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.0 GiB", "1.5 TiB"]


def test_two_nodes_of_one_name_are_refused() -> None:
    node = Node(name="a", devices=(Device(kind="cpu", memory_bytes=1),), host_memory_bytes=1, cores=1)
    with pytest.raises(ValidationError, match="two nodes have one name"):
        Cluster(nodes=(node, node))


def test_a_device_that_is_not_there_is_none() -> None:
    here = laptop(5)
    assert here.device("laptop", 0) == Device(kind="cpu", memory_bytes=5)
    assert (here.device("laptop", 1), here.device("laptop", -1), here.device("other", 0)) == (None, None, None)


def test_this_machine_is_one_node_with_one_cpu_device_and_its_free_memory() -> None:
    here = laptop()
    assert [device.kind for device in here.nodes[0].devices] == ["cpu"]
    assert here.nodes[0].devices[0].memory_bytes == here.nodes[0].host_memory_bytes > 0
    assert here.nodes[0].cores >= 1


def test_no_memory_is_refused() -> None:
    with pytest.raises(SettingError) as caught:
        laptop(0)
    assert str(caught.value) == "memory=0: should be more than nothing"


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
