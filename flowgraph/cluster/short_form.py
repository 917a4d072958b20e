"""Clusters as text: the short form that a person types, the TOML file that says all of it, and a line to read.

Not here: the cluster itself (`cluster`), and what the caller knows: what this machine has (`machine`), and the kinds of
device by their names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from flowgraph.cluster.cluster import (
    MOST_DEVICES,
    Cluster,
    Data,
    Device,
    DeviceKind,
    Machine,
    Price,
    amount_bytes,
    amount_bytes_per_s,
    domain_fault,
    dotted,
    show_bytes,
    show_rate,
)
from flowgraph.errors import ClusterError, nearest
from flowgraph.files.untrusted import parse_toml, read_bytes

GPU_CORES = 16  # of the host for each GPU, where nobody says; an AWS p4d.24xlarge has 12 for each, a p5.48xlarge 24
FILE_BYTES_AT_MOST = 2**20

_SHORT = "[NODESx]DEVICESxKIND[-MEMORY]"
_EXAMPLES = "such as 2xcpu, 2x8xgpu-80GiB or 2x8xh100, or a file that ends in .toml"
_KINDS: tuple[DeviceKind, ...] = get_args(DeviceKind)
_PART = re.compile(r"(?:([0-9]{1,15})x)?([0-9]{1,15})x([a-z].*)", re.IGNORECASE | re.DOTALL)
_WHAT = re.compile(r"([a-z][a-z0-9._-]*?)(?:-([0-9].*)?)?", re.IGNORECASE | re.DOTALL)
_NAME_CHARACTERS = 64  # at most, of a node and of a kind of device
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{_NAME_CHARACTERS - 1}}}")
_SHOWN_CHARACTERS = 60


def read_cluster(text: str, here: Callable[[int], Cluster], known: Mapping[str, Device] | None = None) -> Cluster:
    """Read a cluster from its short form, or from the TOML file that the text names; `here(devices)` is this machine.

    The short form is `[NODESx]DEVICESxKIND[-MEMORY]`, several joined by commas: `2xcpu`, `8xgpu-80GiB`,
    `2x8xgpu-80GiB,1x4xgpu-40GiB`; its nodes are node-1, node-2, … CPU devices without a memory are this machine's, and
    `laptop` is `2xcpu`. A kind is `cpu`, `gpu`, or a name in lower case that is `known`: `2x8xh100`, and with another
    memory than that kind has `8xh100-64GiB`. Of another machine the short form does not say all: its host memory is
    taken to be the sum of its devices' memory, its cores one for each CPU device and 16 for each GPU. A file says these
    exactly, and how a machine is connected and what it costs.

    Raises ClusterError, which names the file and the place in it, or the part of the short form.
    """
    text, known = text.strip(), {} if known is None else known
    if text.endswith(".toml"):
        return _from_toml(text, known)
    parts = [part.strip() for part in ("2xcpu" if text == "laptop" else text).split(",")]
    described = [_ShortPart.read(part, text, known, alone=len(parts) == 1) for part in parts]
    if described[0].device is None:
        return here(described[0].devices)
    _refuse_too_many(_shortened(text), "", [(each.nodes, each.devices) for each in described])
    nodes = [node for each in described for node in [each.node()] * each.nodes]
    return Cluster(nodes=tuple(node.model_copy(update={"name": f"node-{i}"}) for i, node in enumerate(nodes, 1)))


class _ShortPart(Data):
    """One part of the short form: equal nodes of equal devices; no device means those of this machine."""

    nodes: int
    devices: int
    device: Device | None

    @classmethod
    def read(cls, part: str, whole: str, known: Mapping[str, Device], alone: bool) -> _ShortPart:
        """Read one part of `whole`; `alone` says that there is no other."""
        where, place = _shortened(whole), "" if alone else _shortened(part) or "''"
        found = _PART.fullmatch(part)
        what = found and _split(found[3], known)
        if found is None or what is None:
            hint = nearest(part, ["laptop"])
            why = f"should be `laptop` or {_SHORT}, {_EXAMPLES}"
            raise ClusterError.unreadable(where, place, why, hint if hint.startswith("did") else "")
        kind, memory = what
        _refuse_unknown(where, place, kind, known)
        nodes, devices = int(found[1] or 1), int(found[2])
        if not nodes or not devices:
            raise ClusterError.unreadable(where, place, "should have at least one node and one device")
        _refuse_too_many(where, place, [(nodes, devices)])
        if memory is None and kind == "gpu":
            raise ClusterError.unreadable(where, place, "a gpu needs its memory", f"as in {part}-80GiB")
        if memory is None and kind == "cpu":
            if nodes > 1 or not alone:
                why = "only this machine's memory is known; others' is given"
                raise ClusterError.unreadable(where, place, why, f"as in {part}-4GiB")
            return cls(nodes=nodes, devices=devices, device=None)
        try:
            held = None if memory is None else amount_bytes(memory)
        except ValueError as error:
            raise ClusterError.unreadable(where, place, f"memory {_shortened(repr(memory))} {error}") from None
        return cls(nodes=nodes, devices=devices, device=_device(kind, held, known))

    def node(self) -> Machine:
        """Give one of its nodes, not named yet."""
        assert self.device is not None, "this machine is not described here"
        cores = self.devices * (GPU_CORES if self.device.kind == "gpu" else 1)
        held = self.devices * self.device.memory_bytes
        return Machine(name="", devices=(self.device,) * self.devices, host_memory_bytes=held, cores=cores)


def _split(text: str, known: Mapping[str, Device]) -> tuple[str, str | None] | None:
    """Split a kind of device from its memory; the longest name that is known is the kind. None for what is neither.

    >>> _split("gpu-80GiB", {}), _split("H100", {}), _split("h 100", {})
    (('gpu', '80GiB'), ('h100', None), None)
    """
    lowered = text.lower()
    ends = [len(text), *(i for i in range(min(len(text) - 1, _NAME_CHARACTERS), 0, -1) if text[i] == "-")]
    for end in ends:
        if lowered[:end] in known or lowered[:end] in _KINDS:
            return lowered[:end], None if end == len(text) else text[end + 1 :]
    found = _WHAT.fullmatch(text)
    return None if found is None else (found[1].lower(), found[2])


def _device(kind: str, memory_bytes: int | None, known: Mapping[str, Device]) -> Device:
    """Give the device of this kind, with its own memory unless another is given."""
    if kind in known:
        return known[kind] if memory_bytes is None else known[kind].model_copy(update={"memory_bytes": memory_bytes})
    assert memory_bytes is not None, "a device of no known model has the memory that is given"
    return Device(kind="gpu" if kind == "gpu" else "cpu", memory_bytes=memory_bytes)


def _refuse_unknown(where: str, place: str, kind: str, known: Mapping[str, Device]) -> None:
    if kind not in _KINDS and kind not in known:
        hint = nearest(kind, [*_KINDS, *known])
        raise ClusterError.unreadable(where, place, f"no kind of device `{_shortened(kind)}`", hint)


def _refuse_too_many(where: str, place: str, counts: Sequence[tuple[int, int]]) -> None:
    if sum(nodes * max(devices, 1) for nodes, devices in counts) > MOST_DEVICES:
        raise ClusterError.unreadable(where, place, f"a cluster has at most {MOST_DEVICES:,} devices")


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _amount(value: object) -> int:
    if not isinstance(value, str):
        raise ValueError('should be a text with its unit, as in "80GiB"')
    return amount_bytes(value)


def _rate(value: object) -> float:
    if not isinstance(value, str):
        raise ValueError('should be a text with its unit, as in "200 Gbps"')
    return amount_bytes_per_s(value)


def _node_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("should be letters, digits, dot, dash and underscore, 64 at most")
    return name


Amount = Annotated[int, BeforeValidator(_amount)]
Network = Annotated[float, BeforeValidator(_rate)]
Count = Annotated[int, Field(gt=0, le=MOST_DEVICES)]
Name = Annotated[str, AfterValidator(_node_name)]


class _DeviceTable(Data):
    """A `[[node.device]]` of a file: equal devices, by kind and memory or by model."""

    kind: DeviceKind | None = None
    memory: Amount | None = None
    model: str | None = None
    count: Count = 1

    def device(self, path: str, place: str, known: Mapping[str, Device]) -> Device:
        """Give one of them; `place` is the table's. Raises ClusterError for what is not known, or half of it."""
        if self.model is None:
            for key, value in (("kind", self.kind), ("memory", self.memory)):
                if value is None:
                    raise ClusterError.unreadable(path, f"{place}.{key}", "is missing", "kind and memory, or a model")
            return _device(str(self.kind), self.memory, known)
        model = self.model.lower()
        if model not in known:
            what = f"no model of device `{_shortened(self.model)}`"
            raise ClusterError.unreadable(path, f"{place}.model", what, nearest(model, known))
        if self.kind not in (None, known[model].kind):
            why = f"is `{self.kind}`, but the model `{self.model}` is a {known[model].kind}"
            raise ClusterError.unreadable(path, f"{place}.kind", why, "leave out kind where a model is given")
        return _device(model, self.memory, known)


class _NodeTable(Data):
    """A `[[node]]` of a file: equal nodes."""

    name: Name
    count: Count = 1
    host_memory: Amount
    cores: Count
    domain: Count | None = None
    network: Network | None = None
    leaf: Name = ""
    price_per_hour: Price | None = None
    device: Annotated[list[_DeviceTable], Field(min_length=1)]

    def one(self, path: str, place: str, known: Mapping[str, Device]) -> Machine:
        """Give the first of its nodes; `place` is the table's. Raises ClusterError for what does not go together."""
        found = [(each.device(path, f"{place}.device[{i}]", known), each.count) for i, each in enumerate(self.device)]
        devices = tuple(device for device, count in found for device in (device,) * count)
        if self.domain is not None and len(devices) % self.domain:
            raise ClusterError.unreadable(path, f"{place}.domain", domain_fault(self.domain, len(devices)))
        held = sum(device.memory_bytes for device in devices if device.kind == "cpu")
        if held > self.host_memory:
            why = f"its cpu devices hold {show_bytes(held)}, but host_memory is {show_bytes(self.host_memory)}"
            raise ClusterError.unreadable(path, f"{place}.device", why)
        return Machine(
            name=self.name if self.count == 1 else f"{self.name}-1",
            devices=devices,
            host_memory_bytes=self.host_memory,
            cores=self.cores,
            domain=self.domain,
            network_bytes_per_s=self.network,
            leaf=self.leaf,
            price_per_hour=self.price_per_hour,
        )

    def nodes(self, first: Machine) -> list[Machine]:
        """Give its nodes, numbered from 1 where there are several."""
        return [first, *(first.model_copy(update={"name": f"{self.name}-{i}"}) for i in range(2, self.count + 1))]


class _ClusterFile(Data):
    """A whole file."""

    node: Annotated[list[_NodeTable], Field(min_length=1)]


_TABLES: tuple[type[Data], ...] = (_ClusterFile, _NodeTable, _DeviceTable)  # by how deep they lie
_WORDS = {"missing": "is missing", "too_short": "is empty", "model_type": "should be a table"}


def _from_toml(path: str, known: Mapping[str, Device]) -> Cluster:
    try:
        tables = _ClusterFile.model_validate(_parsed(path)).node
    except ValidationError as error:
        raise _fault(path, error) from None
    _refuse_too_many(path, "", [(table.count, sum(each.count for each in table.device)) for table in tables])
    firsts = [table.one(path, f"node[{i}]", known) for i, table in enumerate(tables)]
    nodes = [(i, node) for i, table in enumerate(tables) for node in table.nodes(firsts[i])]
    seen = set[str]()
    for i, node in nodes:
        if node.name in seen:
            raise ClusterError.unreadable(path, f"node[{i}].name", f"two nodes are named `{node.name}`")
        seen.add(node.name)
    return Cluster(nodes=tuple(node for _, node in nodes))


def _parsed(path: str) -> dict[str, Any]:
    text = _text_of(path)
    try:
        return parse_toml(text)
    except ValueError as error:
        why = str(error)
        found = re.search(r" \(at (?:line ([0-9]+), column [0-9]+|end of document)\)$", why)
        if found is None:  # a number of more digits than Python reads
            raise ClusterError.unreadable(path, "", f"is no TOML: {why.partition(';')[0]}") from None
        line = found[1] or len(text.splitlines()) or 1
        raise ClusterError.unreadable(f"{path}:{line}", "", f"is no TOML: {why[: found.start()]}") from None


def _text_of(path: str) -> str:
    try:
        return _bytes_of(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ClusterError.unreadable(path, "", "is no TOML: it is not UTF-8") from None


def _bytes_of(path: str) -> bytes:
    try:
        return read_bytes(Path(path), FILE_BYTES_AT_MOST)
    except FileNotFoundError:
        raise ClusterError.unreadable(path, "", "no such file", _near(Path(path))) from None
    except OSError as error:
        raise ClusterError.unreadable(_shortened(path), "", f"cannot be read: {error.strerror or error}") from None


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
    hint = nearest(given, _KINDS) if fault["type"] == "literal_error" and isinstance(given, str) else ""
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
    >>> cluster_text(Cluster(nodes=(Machine(name="laptop", devices=(device,) * 2, host_memory_bytes=2**31, cores=2),)))
    '1 node: laptop, 2 cpu of 1.0 GiB, 2 cores'
    """
    runs = [list(run) for _, run in groupby(cluster.nodes, key=lambda node: node.model_copy(update={"name": ""}))]
    parts = [f"{_names(run)}, {'each ' if len(run) > 1 else ''}{_node_text(run[0])}" for run in runs]
    return f"{_counted(len(cluster.nodes), 'node')}: {'; '.join(parts)}"


def _names(run: Sequence[Machine]) -> str:
    names = [node.name for node in run]
    found = re.fullmatch(r"(.*?)([0-9]{1,9})", names[0], re.DOTALL)
    if found and len(names) > 2 and names == [f"{found[1]}{int(found[2]) + i}" for i in range(len(names))]:
        return f"{names[0]} to {names[-1]}"
    return ", ".join(names)


def _node_text(node: Machine) -> str:
    runs = [(device, len(list(run))) for device, run in groupby(node.devices)]
    devices = [f"{count} {device.model or device.kind} of {show_bytes(device.memory_bytes)}" for device, count in runs]
    held = show_bytes(sum(device.memory_bytes for device in node.devices))
    host = "" if held == show_bytes(node.host_memory_bytes) else f", host {show_bytes(node.host_memory_bytes)}"
    return f"{', '.join(devices) or 'no device'}{host}, {_counted(node.cores, 'core')}{''.join(_told(node))}"


def _told(node: Machine) -> Iterator[str]:
    if node.domain is not None:
        yield f", domains of {node.domain}"
    if node.network_bytes_per_s is not None:
        yield f", network {show_rate(node.network_bytes_per_s)}"
    if node.leaf:
        yield f", leaf {node.leaf}"
    if node.price_per_hour is not None:
        yield f", {node.price_per_hour:g} an hour"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
