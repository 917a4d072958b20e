"""Clusters as text: the short form that a person types, the TOML file that says all of it, and a line to read.

Not here: the cluster itself (`cluster`), and what this machine has, which the caller knows (`machine`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from flowgraph.cluster import MOST_DEVICES, Cluster, Data, Device, DeviceKind, Node, amount_bytes, dotted, show_bytes
from flowgraph.errors import ClusterError, nearest

GPU_CORES = 16  # of the host for each GPU, where nobody says; an AWS p4d.24xlarge has 12 for each, a p5.48xlarge 24
FILE_BYTES_AT_MOST = 2**20

_SHORT = "[NODESx]DEVICESxKIND[-MEMORY]"
_EXAMPLES = "such as 2xcpu or 2x8xgpu-80GiB, or a file that ends in .toml"
_PART = re.compile(r"(?:([0-9]{1,15})x)?([0-9]{1,15})x([a-z]+)(?:-(.*))?", re.IGNORECASE | re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHOWN_CHARACTERS = 60


def read_cluster(text: str, here: Callable[[int], Cluster]) -> Cluster:
    """Read a cluster from its short form, or from the TOML file that the text names; `here(devices)` is this machine.

    The short form is `[NODESx]DEVICESxKIND[-MEMORY]`, several joined by commas: `2xcpu`, `8xgpu-80GiB`,
    `2x8xgpu-80GiB,1x4xgpu-40GiB`; its nodes are node-1, node-2, … CPU devices without a memory are this machine's, and
    `laptop` is `2xcpu`. Of another machine the short form does not say all: its host memory is taken to be the sum of
    its devices' memory, its cores one for each CPU device and 16 for each GPU. A file says these exactly.

    Raises ClusterError, which names the file and the place in it, or the part of the short form.
    """
    text = text.strip()
    if text.endswith(".toml"):
        return _from_toml(text)
    parts = [part.strip() for part in ("2xcpu" if text == "laptop" else text).split(",")]
    described = [_Part.read(part, text, alone=len(parts) == 1) for part in parts]
    if described[0].memory_bytes is None:
        return here(described[0].devices)
    _refuse_too_many(_shortened(text), "", [(each.nodes, each.devices) for each in described])
    nodes = [node for each in described for node in [each.node()] * each.nodes]
    return Cluster(nodes=tuple(node.model_copy(update={"name": f"node-{i}"}) for i, node in enumerate(nodes, 1)))


class _Part(Data):
    """One part of the short form: equal nodes of equal devices; no memory means this machine."""

    nodes: int
    devices: int
    kind: DeviceKind
    memory_bytes: int | None

    @classmethod
    def read(cls, part: str, whole: str, alone: bool) -> _Part:
        """Read one part of `whole`; `alone` says that there is no other."""
        where, place = _shortened(whole), "" if alone else _shortened(part) or "''"

        def refused(why: str, hint: str = "") -> ClusterError:
            return ClusterError.unreadable(where, place, why, hint)

        found = _PART.fullmatch(part)
        if found is None:
            hint = nearest(part, ["laptop"])
            raise refused(f"should be `laptop` or {_SHORT}, {_EXAMPLES}", hint if hint.startswith("did") else "")
        nodes, devices, kind = int(found[1] or 1), int(found[2]), found[3].lower()
        if kind not in get_args(DeviceKind):
            raise refused(f"no kind of device `{_shortened(kind)}`", nearest(kind, get_args(DeviceKind)))
        if not nodes or not devices:
            raise refused("should have at least one node and one device")
        _refuse_too_many(where, place, [(nodes, devices)])
        if found[4] is None and kind == "gpu":
            raise refused("a gpu needs its memory", f"as in {part}-80GiB")
        if found[4] is None and (nodes > 1 or not alone):
            raise refused("only this machine's memory is known; others' is given", f"as in {part}-4GiB")
        try:
            memory = None if found[4] is None else amount_bytes(found[4])
        except ValueError as error:
            raise refused(f"memory {_shortened(repr(found[4]))} {error}") from None
        return cls(nodes=nodes, devices=devices, kind="gpu" if kind == "gpu" else "cpu", memory_bytes=memory)

    def node(self) -> Node:
        """Give one of its nodes, not named yet."""
        assert self.memory_bytes is not None, "this machine is not described here"
        device = Device(kind=self.kind, memory_bytes=self.memory_bytes)
        cores = self.devices * (GPU_CORES if self.kind == "gpu" else 1)
        memory_bytes = self.devices * self.memory_bytes
        return Node(name="", devices=(device,) * self.devices, host_memory_bytes=memory_bytes, cores=cores)


def _refuse_too_many(where: str, place: str, counts: Sequence[tuple[int, int]]) -> None:
    if sum(nodes * max(devices, 1) for nodes, devices in counts) > MOST_DEVICES:
        raise ClusterError.unreadable(where, place, f"a cluster has at most {MOST_DEVICES:,} devices")


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _amount(value: object) -> int:
    if not isinstance(value, str):
        raise ValueError('should be a text with its unit, as in "80GiB"')
    return amount_bytes(value)


def _node_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("should be letters, digits, dot, dash and underscore, 64 at most")
    return name


Amount = Annotated[int, BeforeValidator(_amount)]
Count = Annotated[int, Field(gt=0, le=MOST_DEVICES)]


class _DeviceTable(Data):
    """A `[[node.device]]` of a file: equal devices."""

    kind: DeviceKind
    memory: Amount
    count: Count = 1


class _NodeTable(Data):
    """A `[[node]]` of a file: equal nodes."""

    name: Annotated[str, AfterValidator(_node_name)]
    count: Count = 1
    host_memory: Amount
    cores: Count
    device: Annotated[list[_DeviceTable], Field(min_length=1)]

    def nodes(self) -> list[Node]:
        """Give its nodes, numbered from 1 where there are several."""
        devices = tuple(
            device
            for table in self.device
            for device in (Device(kind=table.kind, memory_bytes=table.memory),) * table.count
        )
        one = Node(name=self.name, devices=devices, host_memory_bytes=self.host_memory, cores=self.cores)
        names = [f"{self.name}-{i}" for i in range(1, self.count + 1)] if self.count > 1 else [self.name]
        return [one.model_copy(update={"name": name}) for name in names]


class _File(Data):
    """A whole file."""

    node: Annotated[list[_NodeTable], Field(min_length=1)]


_TABLES: tuple[type[Data], ...] = (_File, _NodeTable, _DeviceTable)  # by how deep they lie
_WORDS = {"missing": "is missing", "too_short": "is empty", "model_type": "should be a table"}


def _from_toml(path: str) -> Cluster:
    try:
        tables = _File.model_validate(_parsed(path)).node
    except ValidationError as error:
        raise _fault(path, error) from None
    _refuse_too_many(path, "", [(table.count, sum(each.count for each in table.device)) for table in tables])
    _refuse_more_than_the_host_has(path, tables)
    nodes = [(i, node) for i, table in enumerate(tables) for node in table.nodes()]
    seen = set[str]()
    for i, node in nodes:
        if node.name in seen:
            raise ClusterError.unreadable(path, f"node[{i}].name", f"two nodes are named `{node.name}`")
        seen.add(node.name)
    return Cluster(nodes=tuple(node for _, node in nodes))


def _refuse_more_than_the_host_has(path: str, tables: Sequence[_NodeTable]) -> None:
    for i, table in enumerate(tables):
        held = sum(each.memory * each.count for each in table.device if each.kind == "cpu")
        if held > table.host_memory:
            why = f"its cpu devices hold {show_bytes(held)}, but host_memory is {show_bytes(table.host_memory)}"
            raise ClusterError.unreadable(path, f"node[{i}].device", why)


def _parsed(path: str) -> dict[str, Any]:
    text = _text_of(path)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ClusterError.unreadable(path, "", "is nested too deep") from None
    except ValueError as error:
        why = str(error)
        found = re.search(r" \(at (?:line ([0-9]+), column [0-9]+|end of document)\)$", why)
        if found is None:  # a number of more digits than Python reads
            raise ClusterError.unreadable(path, "", f"is no TOML: {why.partition(';')[0]}") from None
        line = found[1] or len(text.splitlines()) or 1
        raise ClusterError.unreadable(f"{path}:{line}", "", f"is no TOML: {why[: found.start()]}") from None


def _text_of(path: str) -> str:
    data = _bytes_of(path)
    if len(data) > FILE_BYTES_AT_MOST:
        raise ClusterError.unreadable(path, "", f"is longer than {show_bytes(FILE_BYTES_AT_MOST)}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ClusterError.unreadable(path, "", "is no TOML: it is not UTF-8") from None


def _bytes_of(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(FILE_BYTES_AT_MOST + 1)
    except FileNotFoundError:
        raise ClusterError.unreadable(path, "", "no such file", _near(Path(path))) from None
    except OSError as error:
        raise ClusterError.unreadable(_shortened(path), "", f"cannot be read: {error.strerror or error}") from None
    except ValueError:  # a path that no system has, as one with a NUL
        raise ClusterError.unreadable(_shortened(repr(path)), "", "is no path of a file") from None


def _near(path: Path) -> str:
    try:
        return nearest(path.name, [each.name for each in path.parent.glob("*.toml")])
    except OSError:
        return ""


def _fault(path: str, error: ValidationError) -> ClusterError:
    """Say one fault of a file: an unknown key first, since it explains what is missing."""
    faults = error.errors(include_url=False)
    fault = next((each for each in faults if each["type"] == "extra_forbidden"), faults[0])
    place = fault["loc"]
    names = [step for step in place if isinstance(step, str)]
    if fault["type"] == "extra_forbidden":
        known = _TABLES[len(names) - 1].model_fields
        return ClusterError.unknown_key(path, _shortened(dotted(place)), _shortened(names[-1]), known)
    given = fault["input"]
    hint = nearest(given, get_args(DeviceKind)) if fault["type"] == "literal_error" and isinstance(given, str) else ""
    if fault["type"] == "list_type":
        why = f"should be one or more tables, each under [[{'.'.join(names)}]]"
    elif fault["type"] == "value_error":
        why = str(fault.get("ctx", {})["error"])
    else:
        why = _WORDS.get(fault["type"], fault["msg"].removeprefix("Input "))
    return ClusterError.unreadable(path, dotted(place), why + _instead(why, given), hint)


def _instead(why: str, value: object) -> str:
    """Say what is there in place of what should be, where that is short."""
    plain = isinstance(value, str | float | bool) or (isinstance(value, int) and abs(value) < 10**15)
    return f", not {_shortened(repr(value))}" if plain and why.startswith("should") else ""


def cluster_text(cluster: Cluster) -> str:
    """Write a cluster as one line: equal nodes that follow each other together; host memory where devices differ.

    >>> device = Device(kind="cpu", memory_bytes=2**30)
    >>> cluster_text(Cluster(nodes=(Node(name="laptop", devices=(device,) * 2, host_memory_bytes=2**31, cores=2),)))
    '1 node: laptop, 2 cpu of 1.0 GiB, 2 cores'
    """
    runs = [list(run) for _, run in groupby(cluster.nodes, key=lambda node: node.model_copy(update={"name": ""}))]
    parts = [f"{_names(run)}, {'each ' if len(run) > 1 else ''}{_node_text(run[0])}" for run in runs]
    return f"{_counted(len(cluster.nodes), 'node')}: {'; '.join(parts)}"


def _names(run: Sequence[Node]) -> str:
    names = [node.name for node in run]
    found = re.fullmatch(r"(.*?)([0-9]{1,9})", names[0], re.DOTALL)
    if found and len(names) > 2 and names == [f"{found[1]}{int(found[2]) + i}" for i in range(len(names))]:
        return f"{names[0]} to {names[-1]}"
    return ", ".join(names)


def _node_text(node: Node) -> str:
    runs = [(device, len(list(run))) for device, run in groupby(node.devices)]
    devices = [f"{count} {device.kind} of {show_bytes(device.memory_bytes)}" for device, count in runs]
    held = show_bytes(sum(device.memory_bytes for device in node.devices))
    host = "" if held == show_bytes(node.host_memory_bytes) else f", host {show_bytes(node.host_memory_bytes)}"
    return f"{', '.join(devices) or 'no device'}{host}, {_counted(node.cores, 'core')}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
