"""Clusters as text: the short form, the TOML file, the line that is printed, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flowgraph.cluster import Cluster, Device, Node
from flowgraph.cluster_text import cluster_text, read_cluster
from flowgraph.errors import ClusterError

Golden = Callable[[str, str], None]
ROOT = Path(__file__).parents[3]
GIB = 2**30


def here(devices: int) -> Cluster:
    """Stand for this machine: 1 GiB for each device, three cores."""
    device = Device(kind="cpu", memory_bytes=GIB)
    return Cluster(nodes=(Node(name="laptop", devices=(device,) * devices, host_memory_bytes=devices * GIB, cores=3),))


def read(text: str) -> Cluster:
    return read_cluster(text, here)


def refusal(text: str) -> str:
    with pytest.raises(ClusterError) as caught:
        read(text)
    return str(caught.value)


def outcome_of(text: str) -> Cluster | str:
    try:
        return read(text)
    except ClusterError as error:
        return str(error)


def described(name: str, kind: Any, devices: int, memory_gib: int, cores: int) -> Node:
    device = Device(kind=kind, memory_bytes=memory_gib * GIB)
    return Node(name=name, devices=(device,) * devices, host_memory_bytes=devices * memory_gib * GIB, cores=cores)


@pytest.mark.parametrize(
    ("text", "devices"), [("laptop", 2), ("2xcpu", 2), ("1xcpu", 1), ("1x3xcpu", 3), (" 2xCPU ", 2)]
)
def test_cpu_devices_without_a_memory_are_those_of_this_machine(text: str, devices: int) -> None:
    assert read(text) == here(devices)


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("2xcpu-4GiB", [described("node-1", "cpu", 2, 4, 2)]),
        ("8xgpu-80GiB", [described("node-1", "gpu", 8, 80, 128)]),
        ("2x8xgpu-80GiB", [described(f"node-{i}", "gpu", 8, 80, 128) for i in (1, 2)]),
        (
            "2X8XGPU-80gib, 1x4xgpu-40 GiB",
            [*(described(f"node-{i}", "gpu", 8, 80, 128) for i in (1, 2)), described("node-3", "gpu", 4, 40, 64)],
        ),
    ],
)
def test_a_described_machine_has_the_memory_of_its_devices_and_cores_by_their_kind(
    text: str, nodes: list[Node]
) -> None:
    assert read(text) == Cluster(nodes=tuple(nodes))


FORM = (
    "should be `laptop` or [NODESx]DEVICESxKIND[-MEMORY], such as 2xcpu or 2x8xgpu-80GiB, or a file that ends in .toml"
)
ONLY_HERE = "only this machine's memory is known; others' is given"
UNITS = "B, KiB, MiB, GiB, TiB, kB, MB, GB, TB"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", FORM),
        ("labtop", f"labtop: {FORM}\n  hint: did you mean `laptop`?"),
        ("cpux2", f"cpux2: {FORM}"),
        ("2xcpu,", f"2xcpu,: 2xcpu: {ONLY_HERE}\n  hint: as in 2xcpu-4GiB"),
        ("1xcpu-1GiB,", f"1xcpu-1GiB,: '': {FORM}"),
        ("2x2xcpu", f"2x2xcpu: {ONLY_HERE}\n  hint: as in 2x2xcpu-4GiB"),
        ("8xgpu", "8xgpu: a gpu needs its memory\n  hint: as in 8xgpu-80GiB"),
        ("8xgpus-80GiB", "8xgpus-80GiB: no kind of device `gpus`\n  hint: did you mean `gpu`?"),
        ("8xtrn-80GiB", "8xtrn-80GiB: no kind of device `trn`\n  hint: known: cpu, gpu"),
        ("0xgpu-80GiB", "0xgpu-80GiB: should have at least one node and one device"),
        ("0x8xgpu-80GiB", "0x8xgpu-80GiB: should have at least one node and one device"),
        ("8xgpu-80G", f"8xgpu-80G: memory '80G' has no unit `G`; known: {UNITS}"),
        ("1xgpu-1GiB,8xgpu-", "1xgpu-1GiB,8xgpu-: 8xgpu-: memory '' should be a number and a unit, as in 2GiB"),
        ("999999999x8xgpu-80GiB", "999999999x8xgpu-80GiB: a cluster has at most 65,536 devices"),
        ("65537xcpu", "65537xcpu: a cluster has at most 65,536 devices"),
        (
            "65536xgpu-1GiB,1xgpu-1GiB",
            "65536xgpu-1GiB,1xgpu-1GiB: a cluster has at most 65,536 devices",
        ),
        ("9" * 5000 + "xcpu", f"{'9' * 60}…: {FORM}"),
    ],
)
def test_a_short_form_that_is_none_is_refused(text: str, said: str) -> None:
    assert refusal(text) == said


TWO = ROOT / "examples" / "clusters" / "two_nodes.toml"


def test_the_shipped_file_reads_as_its_comments_say() -> None:
    train = Node(
        name="train-1",
        devices=(Device(kind="gpu", memory_bytes=80 * GIB),) * 8,
        host_memory_bytes=512 * GIB,
        cores=128,
    )
    judge = Node(
        name="judge", devices=(Device(kind="gpu", memory_bytes=40 * GIB),) * 4, host_memory_bytes=128 * GIB, cores=32
    )
    assert read(str(TWO)) == Cluster(nodes=(train, train.model_copy(update={"name": "train-2"}), judge))


DEVICE = '[[node.device]]\nkind = "cpu"\nmemory = "4GiB"\n'
NODE = '[[node]]\nname = "a"\nhost_memory = "64GiB"\ncores = 16\n'
WHOLE = NODE + DEVICE

FAULTS = {
    "empty": "",
    "unknown_table": WHOLE.replace("[node]", "[nodes]").replace("[node.", "[nodes."),
    "unknown_key_of_a_node": WHOLE.replace("cores", "cpu_cores"),
    "unknown_key_of_a_device": NODE + DEVICE + DEVICE.replace("memory", "memory_bytes"),
    "no_device": NODE,
    "an_empty_list_of_devices": NODE + "device = []\n",
    "one_bracket": WHOLE.replace("[[node]]", "[node]"),
    "one_bracket_inside": WHOLE.replace("[[node.device]]", "[node.device]"),
    "a_node_that_is_no_table": "node = [3]\n",
    "memory_without_a_unit": NODE + DEVICE + DEVICE.replace("4GiB", "80"),
    "memory_that_is_a_number": WHOLE.replace('"64GiB"', "64"),
    "memory_that_is_words": WHOLE.replace("64GiB", "a lot " * 30),
    "another_kind": WHOLE.replace('"cpu"', '"gpuu"'),
    "no_cores": WHOLE.replace("cores = 16\n", ""),
    "cores_below_one": WHOLE.replace("16", "-16"),
    "cores_that_are_true": WHOLE.replace("16", "true"),
    "a_count_of_too_many_digits": WHOLE.replace("16", "9" * 5000),
    "a_huge_count_in_hexadecimal": WHOLE.replace("16", "0x" + "f" * 9000),
    "too_many_devices": f"{WHOLE}count = 60000\n".replace("cores", "count = 2\ncores"),
    "a_name_with_a_space": WHOLE.replace('"a"', '"a b"'),
    "one_name_twice": WHOLE.replace("cores", "count = 2\ncores") + WHOLE.replace('"a"', '"a-2"'),
    "more_than_the_host_has": WHOLE + "count = 17\n",
    "broken_toml": WHOLE.replace("cores =", "cores"),
    "toml_that_ends_too_soon": WHOLE + "count",
    "a_key_twice": WHOLE + 'kind = "gpu"\n',
    "a_kind_that_is_nested": WHOLE.replace('"cpu"', "{" + "a." * 3000 + "a = 1}"),
    "nested_too_deep": "node = " + "[" * 100_000,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_file_that_is_no_cluster_is_refused_with_its_place(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("two.toml").write_text(FAULTS[name], encoding="utf-8")
    golden(refusal("two.toml"), f"errors/clusters/{name}.txt")


def test_a_count_of_nodes_and_of_devices_is_one_where_left_out(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text("\ufeff" + WHOLE.replace("\n", "\r\n"), encoding="utf-8")
    device = Device(kind="cpu", memory_bytes=4 * GIB)
    node = Node(name="a", devices=(device,), host_memory_bytes=64 * GIB, cores=16)
    assert read(str(tmp_path / "one.toml")) == Cluster(nodes=(node,))


def test_a_file_that_cannot_be_read_is_said_to_be_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder.toml").mkdir()
    Path("bytes.toml").write_bytes(b"\xff\xfe")
    Path("long.toml").write_text("# " + "x" * 2**20)
    assert refusal("foldr.toml") == "foldr.toml: no such file\n  hint: did you mean `folder.toml`?"
    assert refusal("no/such.toml") == "no/such.toml: no such file"
    assert refusal("folder.toml") == "folder.toml: cannot be read: Is a directory"
    assert refusal("bytes.toml") == "bytes.toml: is no TOML: it is not UTF-8"
    assert refusal("long.toml") == "long.toml: is longer than 1.0 MiB"
    assert refusal("a\0b.toml") == "'a\\x00b.toml': is no path of a file"
    assert refusal(f"{'x' * 300}.toml") == f"{'x' * 60}…: cannot be read: File name too long"


PIECES = st.sampled_from(["laptop", "cpu", "gpu", "x", "-", ",", "80GiB", "2", "0", "65536", "GB", " ", "\n", "é"])
NEARLY = st.from_regex(r"(([0-9]{1,6}x)?[0-9]{1,6}x[cg]pu(-[0-9]{1,3}Gi?B?)?(,|$)){1,3}", fullmatch=True)


@given(st.one_of(st.text(max_size=40), st.lists(PIECES, max_size=9).map("".join), NEARLY))
@example("٣xcpu")
@example("2xcpu-4GiB\n")
def test_any_text_is_a_cluster_or_an_error_of_ours(text: str) -> None:
    outcome = outcome_of(text)
    assert isinstance(outcome, str) or sum(len(node.devices) for node in outcome.nodes) <= 65536


PLAIN = st.one_of(
    st.integers(-1, 9), st.integers(), st.booleans(), st.sampled_from(["a", "gpu", "8GB", "", "a b"]), st.just([])
)
DEVICE_KEYS = st.sampled_from(["kind", "memory", "count", "extra"])
DEVICES = st.lists(
    st.dictionaries(DEVICE_KEYS, PLAIN, max_size=1).map(lambda keys: {"kind": "cpu", "memory": "1GiB"} | keys),
    max_size=3,
)
NODE_KEYS = st.sampled_from(["name", "count", "host_memory", "cores", "extra"])
NODES = st.lists(
    st.builds(
        lambda keys, name, device: {"name": name, "host_memory": "64GiB", "cores": 4, "device": device} | keys,
        st.dictionaries(NODE_KEYS, PLAIN, max_size=1),
        st.sampled_from("abcdef"),
        st.one_of(DEVICES, DEVICES, PLAIN),
    ),
    max_size=3,
)


def toml(value: Any) -> str:
    """Write a value as TOML on one line; JSON's texts and numbers are TOML's."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(each)}" for key, each in value.items()) + "}"
    return f"[{', '.join(map(toml, value))}]" if isinstance(value, list) else json.dumps(value)


@given(st.one_of(NODES.map(lambda nodes: f"node = {toml(nodes)}"), st.text(max_size=60)))
def test_any_file_is_a_cluster_or_an_error_of_ours(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_text(text, encoding="utf-8")
    outcome = outcome_of(str(file))
    assert outcome.startswith(str(file)) if isinstance(outcome, str) else cluster_text(outcome)


@given(st.integers(1, 40), st.integers(1, 9), st.sampled_from(["cpu", "gpu"]), st.integers(1, 999))
def test_a_short_form_says_all_that_its_line_does(nodes: int, devices: int, kind: Any, memory_gib: int) -> None:
    cores = devices * (16 if kind == "gpu" else 1)
    wanted = tuple(described(f"node-{i}", kind, devices, memory_gib, cores) for i in range(1, nodes + 1))
    assert read(f"{nodes}x{devices}x{kind}-{memory_gib}GiB") == Cluster(nodes=wanted)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("laptop", "1 node: laptop, 2 cpu of 1.0 GiB, 3 cores"),
        ("1xcpu-1GiB", "1 node: node-1, 1 cpu of 1.0 GiB, 1 core"),
        ("2x8xgpu-80GiB", "2 nodes: node-1, node-2, each 8 gpu of 80.0 GiB, 128 cores"),
        (
            "3x8xgpu-80GiB,4xgpu-40GiB",
            "4 nodes: node-1 to node-3, each 8 gpu of 80.0 GiB, 128 cores; node-4, 4 gpu of 40.0 GiB, 64 cores",
        ),
        (
            str(TWO),
            (
                "3 nodes: train-1, train-2, each 8 gpu of 80.0 GiB, host 512.0 GiB, 128 cores; "
                "judge, 4 gpu of 40.0 GiB, host 128.0 GiB, 32 cores"
            ),
        ),
    ],
)
def test_a_cluster_is_one_line(text: str, line: str) -> None:
    assert cluster_text(read(text)) == line


def test_a_line_names_each_node_that_no_range_would() -> None:
    device = Device(kind="gpu", memory_bytes=GIB)
    parts = (device, device, Device(kind="cpu", memory_bytes=GIB))
    one = Node(name="b", devices=parts, host_memory_bytes=3 * GIB, cores=1)
    nodes = [one.model_copy(update={"name": name}) for name in ("b", "a-1", "a-3")]
    bare = Node(name="bare", devices=(), host_memory_bytes=GIB, cores=1)
    assert cluster_text(Cluster(nodes=(*nodes, bare))) == (
        "4 nodes: b, a-1, a-3, each 2 gpu of 1.0 GiB, 1 cpu of 1.0 GiB, 1 core; bare, no device, host 1.0 GiB, 1 core"
    )
