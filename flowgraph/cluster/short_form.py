"""Clusters as text: the short form of a command line, the TOML file with all details, and a one-line summary.

Not here: the cluster itself (`cluster`). The caller provides this machine and the known device models.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator, Field, ValidationError

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

GPU_CORES = 16  # of the host for each GPU by default; an AWS p4d.24xlarge has 12 for each GPU, a p5.48xlarge 24
FILE_BYTES_AT_MOST = 2**20

_SHORT = "[NODESx]DEVICESxKIND[-MEMORY]"
_EXAMPLES = "such as 2xcpu, 2x8xgpu-80GiB or 2x8xh100, or a file that ends in .toml"
_KINDS: tuple[DeviceKind, ...] = get_args(DeviceKind)
_PART = re.compile(r"(?:([0-9]{1,15})x)?([0-9]{1,15})x([a-z].*)", re.IGNORECASE | re.DOTALL)
_WHAT = re.compile(r"([a-z][a-z0-9._-]*?)(?:-([0-9].*)?)?", re.IGNORECASE | re.DOTALL)
_NAME_CHARACTERS = 64  # at most, of a node and of a kind of device
_SHOWN_CHARACTERS = 60


def read_cluster(text: str, here: Callable[[int], Cluster], models: Mapping[str, Device] | None = None) -> Cluster:
    """Return the cluster that a short form describes, or the TOML file whose path `text` is.

    The short form is `[NODESx]DEVICESxKIND[-MEMORY]`, several joined by commas: `2xcpu`, `8xgpu-80GiB`,
    `2x8xgpu-80GiB,1x4xgpu-40GiB`; the nodes are named node-1, node-2, …. A kind is `cpu`, `gpu`, or one of `models` in
    lower case, as in `2x8xh100`; in `8xh100-64GiB`, the memory replaces that of the model. CPU devices without a memory
    are those of this machine, which `here(devices)` returns, and `laptop` means `2xcpu`. The short form assumes that
    another machine has as much host memory as its devices together, with one core per CPU device and 16 per GPU. A
    file, which must end in `.toml`, defines these exactly, and also the connections and the price of a machine.

    Raises ClusterError for any other text, for more than 65,536 devices, and for a file that is missing or invalid; the
    error names the faulty part.
    """
    text, models = text.strip(), models or {}
    if text.endswith(".toml"):
        return _from_toml(text, models)
    parts = [part.strip() for part in ("2xcpu" if text == "laptop" else text).split(",")]
    counts = [_read_part(part, text, models, single=len(parts) == 1) for part in parts]
    _refuse_too_many(_shortened(text), "", [(nodes, devices) for nodes, devices, _ in counts])
    machines = list[Machine]()
    for nodes, devices, device in counts:
        if device is None:
            return here(devices)
        machine = Machine(
            name="",
            devices=(device,) * devices,
            host_memory_bytes=devices * device.memory_bytes,
            cores=devices * (GPU_CORES if device.kind == "gpu" else 1),
        )
        machines += [machine] * nodes
    return Cluster(nodes=tuple(node.model_copy(update={"name": f"node-{i}"}) for i, node in enumerate(machines, 1)))


def _read_part(part: str, text: str, models: Mapping[str, Device], *, single: bool) -> tuple[int, int, Device | None]:
    """Return the nodes, the devices of each, and the device of one part of `text`; None for this machine's device."""
    where, place = _shortened(text), "" if single else _shortened(part) or "''"
    match = _PART.fullmatch(part)
    kind_and_memory = match and _split(match[3], models)
    if match is None or kind_and_memory is None:
        hint = nearest(part, ["laptop"])
        why = f"should be `laptop` or {_SHORT}, {_EXAMPLES}"
        raise ClusterError.unreadable(where, place, why, hint if hint.startswith("did") else "")
    kind, memory = kind_and_memory
    if kind not in _KINDS and kind not in models:
        hint = nearest(kind, [*_KINDS, *models])
        raise ClusterError.unreadable(where, place, f"unknown device `{_shortened(kind)}`", hint)
    nodes, devices = int(match[1] or 1), int(match[2])
    if not nodes or not devices:
        raise ClusterError.unreadable(where, place, "should have at least one node and one device")
    _refuse_too_many(where, place, [(nodes, devices)])
    if memory is None and kind == "gpu":
        raise ClusterError.unreadable(where, place, "a gpu needs its memory", f"as in {part}-80GiB")
    if memory is None and kind == "cpu":
        if nodes > 1 or not single:
            why = "only this machine's memory is known; give the memory of the other machines"
            raise ClusterError.unreadable(where, place, why, f"as in {part}-4GiB")
        return nodes, devices, None
    try:
        return nodes, devices, _device(kind, None if memory is None else amount_bytes(memory), models)
    except ValueError as error:
        raise ClusterError.unreadable(where, place, f"memory {_shortened(repr(memory))} {error}") from None


def _split(text: str, models: Mapping[str, Device]) -> tuple[str, str | None] | None:
    """Split a kind of device from its memory; the longest name of a model is the kind. None for any other text.

    >>> _split("gpu-80GiB", {}), _split("H100", {}), _split("h 100", {})
    (('gpu', '80GiB'), ('h100', None), None)
    """
    lowered = text.lower()
    ends = [len(text), *(i for i in range(min(len(text) - 1, _NAME_CHARACTERS), 0, -1) if text[i] == "-")]
    for end in ends:
        if lowered[:end] in models or lowered[:end] in _KINDS:
            return lowered[:end], None if end == len(text) else text[end + 1 :]
    match = _WHAT.fullmatch(text)
    return None if match is None else (match[1].lower(), match[2])


def _device(kind: str, memory_bytes: int | None, models: Mapping[str, Device]) -> Device:
    if kind in models:
        return models[kind] if memory_bytes is None else models[kind].model_copy(update={"memory_bytes": memory_bytes})
    assert memory_bytes is not None, "a device without a model has its memory in the text"
    return Device(kind="gpu" if kind == "gpu" else "cpu", memory_bytes=memory_bytes)


def _refuse_too_many(where: str, place: str, counts: Sequence[tuple[int, int]]) -> None:
    if sum(nodes * max(devices, 1) for nodes, devices in counts) > MOST_DEVICES:
        raise ClusterError.unreadable(where, place, f"a cluster has at most {MOST_DEVICES:,} devices")


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _from_text(read: Callable[[str], Any], example: str) -> BeforeValidator:
    def validate(value: object) -> Any:
        if not isinstance(value, str):
            raise ValueError(f'should be a text with its unit, as in "{example}"')
        return read(value)

    return BeforeValidator(validate)


Amount = Annotated[int, _from_text(amount_bytes, "80GiB")]
Network = Annotated[float, _from_text(amount_bytes_per_s, "200 Gbps")]
Count = Annotated[int, Field(gt=0, le=MOST_DEVICES)]
Name = Annotated[str, Field(pattern=rf"^[A-Za-z0-9][A-Za-z0-9._-]{{0,{_NAME_CHARACTERS - 1}}}$")]


class _DeviceTable(Data):
    """A `[[node.device]]` of a file: equal devices, by kind and memory or by model."""

    kind: DeviceKind | None = None
    memory: Amount | None = None
    model: str | None = None
    count: Count = 1

    def device(self, path: str, place: str, models: Mapping[str, Device]) -> Device:
        """Return one of these equal devices; `place` is the path of this table in the file, for errors.

        Raises ClusterError if the model is unknown or of another kind, or if kind or memory is missing without a model.
        """
        if self.model is None:
            for key, value in (("kind", self.kind), ("memory", self.memory)):
                if value is None:
                    raise ClusterError.unreadable(path, f"{place}.{key}", "is missing", "kind and memory, or a model")
            return _device(str(self.kind), self.memory, models)
        model = self.model.lower()
        if model not in models:
            what = f"no model of device `{_shortened(self.model)}`"
            raise ClusterError.unreadable(path, f"{place}.model", what, nearest(model, models))
        if self.kind not in (None, models[model].kind):
            why = f"is `{self.kind}`, but the model `{self.model}` is a {models[model].kind}"
            raise ClusterError.unreadable(path, f"{place}.kind", why, "leave out kind where a model is given")
        return _device(model, self.memory, models)


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

    def nodes(self, path: str, place: str, models: Mapping[str, Device]) -> list[Machine]:
        """Return the nodes, numbered from 1 if there are several; `place` is the path of this table in the file.

        Raises ClusterError if a device is invalid, or if the domain or the host memory does not fit the devices.
        """
        devices = list[Device]()
        for i, table in enumerate(self.device):
            devices += [table.device(path, f"{place}.device[{i}]", models)] * table.count
        if self.domain is not None and len(devices) % self.domain:
            raise ClusterError.unreadable(path, f"{place}.domain", domain_fault(self.domain, len(devices)))
        cpu_bytes = sum(device.memory_bytes for device in devices if device.kind == "cpu")
        if cpu_bytes > self.host_memory:
            why = f"its cpu devices hold {show_bytes(cpu_bytes)}, but host_memory is {show_bytes(self.host_memory)}"
            raise ClusterError.unreadable(path, f"{place}.device", why)
        same = {name: getattr(self, name) for name in ("name", "cores", "domain", "leaf", "price_per_hour")}
        same |= {"host_memory_bytes": self.host_memory, "network_bytes_per_s": self.network}
        machine = Machine(devices=tuple(devices), **same)
        names = [self.name] if self.count == 1 else [f"{self.name}-{i}" for i in range(1, self.count + 1)]
        return [machine.model_copy(update={"name": name}) for name in names]


class _ClusterFile(Data):
    node: Annotated[list[_NodeTable], Field(min_length=1)]


_TABLES: tuple[type[Data], ...] = (_ClusterFile, _NodeTable, _DeviceTable)  # by depth
_WORDS = {
    "missing": "is missing",
    "too_short": "is empty",
    "model_type": "should be a table",
    "string_pattern_mismatch": "should be letters, digits, dot, dash and underscore, 64 at most",
}


def _from_toml(path: str, models: Mapping[str, Device]) -> Cluster:
    text = _text_of(path)
    try:
        tables = _ClusterFile.model_validate(parse_toml(text)).node
    except ValidationError as error:
        raise _fault(path, error) from None
    except ValueError as error:
        why = str(error)
        match = re.search(r" \(at (?:line ([0-9]+), column [0-9]+|end of document)\)$", why)
        if match is None:  # a number of more digits than Python reads
            raise ClusterError.unreadable(path, "", f"is not TOML: {why.partition(';')[0]}") from None
        line = match[1] or len(text.splitlines()) or 1
        raise ClusterError.unreadable(f"{path}:{line}", "", f"is not TOML: {why[: match.start()]}") from None
    _refuse_too_many(path, "", [(table.count, sum(row.count for row in table.device)) for table in tables])
    nodes: dict[str, Machine] = {}
    for i, table in enumerate(tables):
        for node in table.nodes(path, f"node[{i}]", models):
            if node.name in nodes:
                raise ClusterError.unreadable(path, f"node[{i}].name", f"two nodes are named `{node.name}`")
            nodes[node.name] = node
    return Cluster(nodes=tuple(nodes.values()))


def _text_of(path: str) -> str:
    try:
        return read_bytes(Path(path), FILE_BYTES_AT_MOST).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ClusterError.unreadable(path, "", "is not TOML: it is not UTF-8") from None
    except FileNotFoundError:
        files = list[str]()
        with contextlib.suppress(OSError):
            files += [file.name for file in Path(path).parent.glob("*.toml")]
        raise ClusterError.unreadable(path, "", "no such file", nearest(Path(path).name, files)) from None
    except OSError as error:
        raise ClusterError.unreadable(_shortened(path), "", f"cannot be read: {error.strerror or error}") from None


def _fault(path: str, error: ValidationError) -> ClusterError:
    """Return one fault of a file: an unknown key first, since it explains what is missing."""
    faults = error.errors(include_url=False)
    fault = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    place, value = fault["loc"], fault["input"]
    names = [step for step in place if isinstance(step, str)]
    if fault["type"] == "extra_forbidden":
        keys = _TABLES[len(names) - 1].model_fields
        return ClusterError.unknown_key(path, _shortened(dotted(place)), _shortened(names[-1]), keys)
    hint = nearest(value, _KINDS) if fault["type"] == "literal_error" and isinstance(value, str) else ""
    if fault["type"] == "list_type":
        why = f"should be one or more tables, each under [[{'.'.join(names)}]]"
    elif fault["type"] == "value_error":
        why = str(fault.get("ctx", {})["error"])
    else:
        why = _WORDS.get(fault["type"], fault["msg"].removeprefix("Input "))
    short = isinstance(value, str | float | bool) or (isinstance(value, int) and abs(value) < 10**15)
    why += f", not {_shortened(repr(value))}" if short and why.startswith("should") else ""
    return ClusterError.unreadable(path, dotted(place), why, hint)


def cluster_text(cluster: Cluster) -> str:
    """Return a summary of a cluster in one line: each machine's devices and memory, cores, connections and price.

    Successive machines that differ only in their names are joined. Host memory is shown only if it differs from the sum
    of the devices' memory.

    >>> device = Device(kind="cpu", memory_bytes=2**30)
    >>> cluster_text(Cluster(nodes=(Machine(name="laptop", devices=(device,) * 2, host_memory_bytes=2**31, cores=2),)))
    '1 node: laptop, 2 cpu of 1.0 GiB, 2 cores'
    """
    runs = [list(run) for _, run in groupby(cluster.nodes, key=lambda node: node.model_copy(update={"name": ""}))]
    parts = list[str]()
    for run in runs:
        names = [node.name for node in run]
        match = re.fullmatch(r"(.*?)([0-9]{1,9})", names[0], re.DOTALL) if len(names) > 2 else None
        row = match and names == [f"{match[1]}{int(match[2]) + i}" for i in range(len(names))]
        shown = f"{names[0]} to {names[-1]}" if row else ", ".join(names)
        parts.append(f"{shown}, {'each ' if len(run) > 1 else ''}{_node_text(run[0])}")
    return f"{_counted(len(cluster.nodes), 'node')}: {'; '.join(parts)}"


def _node_text(node: Machine) -> str:
    runs = [(device, len(list(run))) for device, run in groupby(node.devices)]
    devices = [f"{count} {device.model or device.kind} of {show_bytes(device.memory_bytes)}" for device, count in runs]
    host, ours = show_bytes(node.host_memory_bytes), show_bytes(sum(device.memory_bytes for device in node.devices))
    texts = (
        ", ".join(devices) or "no device",
        host != ours and f"host {host}",
        _counted(node.cores, "core"),
        node.domain and f"domains of {node.domain}",
        node.network_bytes_per_s and f"network {show_rate(node.network_bytes_per_s)}",
        node.leaf and f"leaf {node.leaf}",
        node.price_per_hour is not None and f"{node.price_per_hour:g} an hour",
    )
    return ", ".join(str(text) for text in texts if text)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
