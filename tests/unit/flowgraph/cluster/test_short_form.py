"""Clusters as text: the short form, the TOML file, the line that is printed, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.short_form import cluster_text, read_cluster
from flowgraph.errors import ClusterError
from tests.looped import looped

Golden = Callable[[str, str], None]
ROOT = Path(__file__).parents[4]
GIB = 2**30


def here(devices: int) -> Cluster:
    """Stand for this machine: 1 GiB for each device, three cores."""
    device = Device(kind="cpu", memory_bytes=GIB)
    return Cluster(
        nodes=(Machine(name="laptop", devices=(device,) * devices, host_memory_bytes=devices * GIB, cores=3),)
    )


H100 = Device(kind="gpu", memory_bytes=80 * GIB, model="h100-sxm-80g")
KNOWN = {
    "h100": H100,
    "h100-sxm-80g": H100,
    "mi300x": Device(kind="gpu", memory_bytes=192 * GIB, model="mi300x-192g"),
    "a40": Device(kind="gpu", memory_bytes=44 * GIB, model="a40-48g"),
}


def read(text: str) -> Cluster:
    return read_cluster(text, here, KNOWN)


def refusal(text: str) -> str:
    with pytest.raises(ClusterError) as caught:
        read(text)
    return str(caught.value)


def outcome_of(text: str) -> Cluster | str:
    try:
        return read(text)
    except ClusterError as error:
        return str(error)


def described(name: str, kind: Any, devices: int, memory_gib: int, cores: int) -> Machine:
    device = Device(kind=kind, memory_bytes=memory_gib * GIB)
    return Machine(name=name, devices=(device,) * devices, host_memory_bytes=devices * memory_gib * GIB, cores=cores)


@looped("text, devices", [("laptop", 2), ("2xcpu", 2), ("1xcpu", 1), ("1x3xcpu", 3), (" 2xCPU ", 2)])
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
    text: str, nodes: list[Machine]
) -> None:
    assert read(text) == Cluster(nodes=tuple(nodes))


def of_model(name: str, device: Device, devices: int) -> Machine:
    held = devices * device.memory_bytes
    return Machine(name=name, devices=(device,) * devices, host_memory_bytes=held, cores=16 * devices)


LESS = H100.model_copy(update={"memory_bytes": 64 * GIB})


@looped(
    "text, nodes",
    [
        ("8xh100", [of_model("node-1", H100, 8)]),
        ("2x8xH100", [of_model(f"node-{i}", H100, 8) for i in (1, 2)]),
        ("1xh100-sxm-80g", [of_model("node-1", H100, 1)]),
        ("8xh100-64GiB", [of_model("node-1", LESS, 8)]),
        ("8xh100-sxm-80g-64 gib", [of_model("node-1", LESS, 8)]),
        (
            "4xmi300x, 2x2xa40",
            [of_model("node-1", KNOWN["mi300x"], 4), *(of_model(f"node-{i}", KNOWN["a40"], 2) for i in (2, 3))],
        ),
        ("8xh100,2xcpu-4GiB", [of_model("node-1", H100, 8), described("node-2", "cpu", 2, 4, 2)]),
    ],
)
def test_a_kind_that_is_known_by_name_has_its_own_memory_unless_another_is_given(
    text: str, nodes: list[Machine]
) -> None:
    assert read(text) == Cluster(nodes=tuple(nodes))


def test_without_known_names_there_are_two_kinds() -> None:
    with pytest.raises(ClusterError) as caught:
        read_cluster("8xh100", here)
    assert str(caught.value) == "8xh100: unknown device `h100`\n  hint: known: cpu, gpu"


FORM = (
    "should be `laptop` or [NODESx]DEVICESxKIND[-MEMORY], such as 2xcpu, 2x8xgpu-80GiB or 2x8xh100, "
    "or a file that ends in .toml"
)
ALL_KINDS = ", ".join(sorted([*KNOWN, "cpu", "gpu"]))
ONLY_HERE = "only this machine's memory is known; give the memory of the other machines"
UNITS = "B, KiB, MiB, GiB, TiB, kB, MB, GB, TB"


@looped(
    "text, said",
    [
        ("", FORM),
        ("labtop", f"labtop: {FORM}\n  hint: did you mean `laptop`?"),
        ("cpux2", f"cpux2: {FORM}"),
        ("2xcpu,", f"2xcpu,: 2xcpu: {ONLY_HERE}\n  hint: as in 2xcpu-4GiB"),
        ("1xcpu-1GiB,", f"1xcpu-1GiB,: '': {FORM}"),
        ("2x2xcpu", f"2x2xcpu: {ONLY_HERE}\n  hint: as in 2x2xcpu-4GiB"),
        ("8xgpu", "8xgpu: a gpu needs its memory\n  hint: as in 8xgpu-80GiB"),
        ("8xgpus-80GiB", "8xgpus-80GiB: unknown device `gpus`\n  hint: did you mean `gpu`?"),
        (
            "8xtrn-80GiB",
            f"8xtrn-80GiB: unknown device `trn`\n  hint: known: {ALL_KINDS}",
        ),
        ("2x8xh10", "2x8xh10: unknown device `h10`\n  hint: did you mean `h100`?"),
        ("8xh200-sxm-80g", "8xh200-sxm-80g: unknown device `h200-sxm`\n  hint: did you mean `h100-sxm-80g`?"),
        ("8xh100-", "8xh100-: memory '' should be a number and a unit, as in 2GiB"),
        ("8xh100-64", f"8xh100-64: memory '64' has no unit; known: {UNITS}"),
        ("8xh100-0GiB", "8xh100-0GiB: memory '0GiB' should be more than nothing"),
        ("0xh100", "0xh100: should have at least one node and one device"),
        ("8xh 100", f"8xh 100: {FORM}"),
        ("8x100", f"8x100: {FORM}"),
        ("9999x9999xh100", "9999x9999xh100: a cluster has at most 65,536 devices"),
        (
            f"8x{'h' * 5000}",
            f"8x{'h' * 58}…: unknown device `{'h' * 60}…`\n  hint: known: {ALL_KINDS}",
        ),
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
    train = Machine(
        name="train-1",
        devices=(Device(kind="gpu", memory_bytes=80 * GIB),) * 8,
        host_memory_bytes=512 * GIB,
        cores=128,
    )
    judge = Machine(
        name="judge", devices=(Device(kind="gpu", memory_bytes=40 * GIB),) * 4, host_memory_bytes=128 * GIB, cores=32
    )
    assert read(str(TWO)) == Cluster(nodes=(train, train.model_copy(update={"name": "train-2"}), judge))


CONNECTED = ROOT / "examples" / "clusters" / "two_leaves.toml"


def test_the_shipped_file_of_connected_machines_reads_as_its_comments_say() -> None:
    nodes = read(str(CONNECTED)).nodes
    assert [node.name for node in nodes] == ["a-1", "a-2", "b-1", "b-2", "judge"]
    assert [node.leaf for node in nodes] == ["rack-a", "rack-a", "rack-b", "rack-b", ""]
    assert {node.devices for node in nodes[:4]} == {(H100,) * 8}
    assert {node.devices for node in nodes[4:]} == {(KNOWN["a40"],) * 4}
    assert [node.network_bytes_per_s for node in nodes] == [400e9] * 4 + [25e9]
    assert [node.price_per_hour for node in nodes] == [31.5] * 4 + [None]
    assert [node.domain for node in nodes] == [None] * 4 + [2]


DEVICE = '[[node.device]]\nkind = "cpu"\nmemory = "4GiB"\n'
NODE = '[[node]]\nname = "a"\nhost_memory = "64GiB"\ncores = 16\n'
WHOLE = NODE + DEVICE
MODEL = '[[node.device]]\nmodel = "h100"\ncount = 8\n'

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
    "a_device_of_no_kind": NODE + DEVICE.replace('kind = "cpu"\n', ""),
    "a_device_without_memory": NODE + DEVICE.replace('memory = "4GiB"\n', ""),
    "an_unknown_model": NODE + MODEL.replace("h100", "h10"),
    "a_model_that_is_a_number": NODE + MODEL.replace('"h100"', "100"),
    "a_model_of_another_kind": NODE + MODEL + 'kind = "cpu"\n',
    "a_domain_that_does_not_divide": f"{NODE}domain = 3\n{MODEL}",
    "a_domain_larger_than_the_machine": f"{NODE}domain = 16\n{MODEL}",
    "a_domain_of_none": f"{NODE}domain = 0\n{MODEL}",
    "a_network_without_a_unit": f'{NODE}network = "200"\n{MODEL}',
    "a_network_of_an_unknown_unit": f'{NODE}network = "200 GBps"\n{MODEL}',
    "a_network_of_words": f'{NODE}network = "fast"\n{MODEL}',
    "a_network_of_nothing": f'{NODE}network = "0 Gbps"\n{MODEL}',
    "a_network_beyond_reason": f'{NODE}network = "9000000 TB/s"\n{MODEL}',
    "a_network_that_is_a_number": f"{NODE}network = 25e9\n{MODEL}",
    "a_leaf_with_a_space": f'{NODE}leaf = "rack a"\n{MODEL}',
    "a_negative_price": f"{NODE}price_per_hour = -3\n{MODEL}",
    "a_price_that_is_no_number": f"{NODE}price_per_hour = nan\n{MODEL}",
    "a_price_without_end": f"{NODE}price_per_hour = inf\n{MODEL}",
    "a_price_in_words": f'{NODE}price_per_hour = "30 USD"\n{MODEL}',
    "broken_toml": WHOLE.replace("cores =", "cores"),
    "toml_that_ends_too_soon": WHOLE + "count",
    "a_key_twice": WHOLE + 'kind = "gpu"\n',
    "a_kind_that_is_nested": WHOLE.replace('"cpu"', "{" + "a." * 3000 + "a = 1}"),
    "nested_too_deep": "node = " + "[" * 100_000,
}


@looped("name", FAULTS)
def test_a_file_that_is_no_cluster_is_refused_with_its_place(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("two.toml").write_text(FAULTS[name], encoding="utf-8")
    golden(refusal("two.toml"), f"errors/clusters/{name}.txt")


def test_a_count_of_nodes_and_of_devices_is_one_where_left_out(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text("\ufeff" + WHOLE.replace("\n", "\r\n"), encoding="utf-8")
    device = Device(kind="cpu", memory_bytes=4 * GIB)
    node = Machine(name="a", devices=(device,), host_memory_bytes=64 * GIB, cores=16)
    assert read(str(tmp_path / "one.toml")) == Cluster(nodes=(node,))


def test_a_file_that_cannot_be_read_is_said_to_be_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder.toml").mkdir()
    Path("bytes.toml").write_bytes(b"\xff\xfe")
    Path("long.toml").write_text("# " + "x" * 2**20)
    assert refusal("foldr.toml") == "foldr.toml: no such file\n  hint: did you mean `folder.toml`?"
    assert refusal("no/such.toml") == "no/such.toml: no such file"
    assert refusal("folder.toml") == "folder.toml: cannot be read: Is a directory"
    assert refusal("bytes.toml") == "bytes.toml: is not TOML: it is not UTF-8"
    assert refusal("long.toml") == "long.toml: cannot be read: it is larger than 1,048,576 bytes"
    assert refusal("a\0b.toml") == "a\0b.toml: cannot be read: it is not the path of a file"
    assert refusal(f"{'x' * 300}.toml") == f"{'x' * 60}…: cannot be read: File name too long"


PIECES = st.sampled_from(
    ["laptop", "cpu", "gpu", "h100", "x", "-", ",", "80GiB", "2", "0", "65536", "GB", " ", "\n", "é"]
)
NEARLY = st.from_regex(r"(([0-9]{1,6}x)?[0-9]{1,6}x[cg]pu(-[0-9]{1,3}Gi?B?)?(,|$)){1,3}", fullmatch=True)


@given(st.one_of(st.text(max_size=40), st.lists(PIECES, max_size=9).map("".join), NEARLY))
@example("٣xcpu")
@example("2xcpu-4GiB\n")
def test_any_text_is_a_cluster_or_an_error_of_ours(text: str) -> None:
    outcome = outcome_of(text)
    assert isinstance(outcome, str) or sum(len(node.devices) for node in outcome.nodes) <= 65536


TEXTS = st.sampled_from(["a", "gpu", "8GB", "", "a b", "h100", "8 Gbps"])
PLAIN = st.one_of(st.integers(-1, 9), st.integers(), st.floats(), st.booleans(), TEXTS, st.just([]))
DEVICE_KEYS = st.sampled_from(["kind", "memory", "count", "model", "extra"])
DEVICES = st.lists(
    st.dictionaries(DEVICE_KEYS, PLAIN, max_size=1).map(lambda keys: {"kind": "cpu", "memory": "1GiB"} | keys),
    max_size=3,
)
CONNECTION_KEYS = ["domain", "network", "leaf", "price_per_hour"]
NODE_KEYS = st.sampled_from(["name", "count", "host_memory", "cores", "extra", *CONNECTION_KEYS])
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
    if isinstance(value, float):
        return repr(value)
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


@looped(
    "text, line",
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


def test_a_line_names_models_and_says_how_machines_are_connected() -> None:
    assert cluster_text(read("2x8xh100")) == "2 nodes: node-1, node-2, each 8 h100-sxm-80g of 80.0 GiB, 128 cores"
    assert cluster_text(read(str(CONNECTED))) == (
        "5 nodes: a-1, a-2, each 8 h100-sxm-80g of 80.0 GiB, host 2.0 TiB, 192 cores, network 400 GB/s, leaf rack-a, "
        "31.5 an hour; b-1, b-2, each 8 h100-sxm-80g of 80.0 GiB, host 2.0 TiB, 192 cores, network 400 GB/s, "
        "leaf rack-b, 31.5 an hour; judge, 4 a40-48g of 44.0 GiB, host 256.0 GiB, 64 cores, domains of 2, "
        "network 25 GB/s"
    )


def test_a_line_names_each_node_that_no_range_would() -> None:
    device = Device(kind="gpu", memory_bytes=GIB)
    parts = (device, device, Device(kind="cpu", memory_bytes=GIB))
    one = Machine(name="b", devices=parts, host_memory_bytes=3 * GIB, cores=1)
    nodes = [one.model_copy(update={"name": name}) for name in ("b", "a-1", "a-3")]
    bare = Machine(name="bare", devices=(), host_memory_bytes=GIB, cores=1)
    assert cluster_text(Cluster(nodes=(*nodes, bare))) == (
        "4 nodes: b, a-1, a-3, each 2 gpu of 1.0 GiB, 1 cpu of 1.0 GiB, 1 core; bare, no device, host 1.0 GiB, 1 core"
    )
