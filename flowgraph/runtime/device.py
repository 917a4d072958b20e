"""What the actor of one device does: it hosts the copies of weights placed there and runs tasks on its rank's rows.

It knows Arrow tables, not Ray: whoever owns it moves them. Host nodes run here too, without a device.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from flowgraph.errors import FlowError
from flowgraph.executors.base import Alone, Handle, Ranks
from flowgraph.executors.layouts import JOIN
from flowgraph.files import import_file
from flowgraph.graph import Graph
from flowgraph.keys import Key
from flowgraph.lowering.program import Home, Run
from flowgraph.restore import from_json
from flowgraph.runtime.batch import from_table, select, to_table
from flowgraph.runtime.execute import Source
from flowgraph.runtime.hosting import ModelSetup, Told, host, named
from flowgraph.runtime.identity import IDS, PLACE, Held, deal, joined, lengths_for
from flowgraph.runtime.weights import Wire, from_wire, to_wire
from flowgraph.runtime.worker import Worker

if TYPE_CHECKING:
    import pyarrow as pa

Shards = Sequence[tuple[int, bool]]
"""Of each value that a task reads: how many tables follow, and whether their rows are this rank's already."""


@dataclass(frozen=True)
class Flows:
    """The flows of a run as JSON, and the user's own file that defines what they name ("" for a shipped flow)."""

    graphs: tuple[str, ...]
    file: str

    def read(self) -> list[Graph]:
        """Import what the graphs name, the user's file first, and give them."""
        if self.file:
            import_file(Path(self.file))
        return [from_json(text) for text in self.graphs]


@dataclass(frozen=True)
class Seat:
    """One device of a pool: `rank` of `count`, on a machine's `kind` of device, and the homes of the pool."""

    pool: str
    rank: int
    count: int
    kind: str
    homes: tuple[Home, ...]
    trained: tuple[Home, ...]

    @property
    def torch_device(self) -> str:
        """Name the device as torch does."""
        return "cuda" if self.kind == "gpu" else "cpu"

    def __str__(self) -> str:
        return f"rank {self.rank} of pool `{self.pool}`"


@dataclass(eq=False)
class Device:
    """Hosts and runs; `seat` None stands for a host process."""

    flows: Flows
    seat: Seat | None = None
    handles: dict[Home, Handle] = field(default_factory=dict[Home, Handle])
    workers: list[Worker] = field(default_factory=list[Worker])

    def about(self) -> dict[str, Any]:
        """Say which process this is, on which machine, and a port there that is free for the ranks to meet at."""
        import ray

        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        return {"pid": os.getpid(), "ip": cast("Any", ray.util).get_node_ip_address(), "port": port}

    def beat(self) -> bool:
        """Answer, as a process that is stopped does not."""
        return True

    def open(self, models: ModelSetup, meeting: Path | str | None, limit_s: float) -> Told:
        """Meet the pool's other ranks, if there is where to, and load every copy of weights; say what was loaded."""
        seat = self.seat
        assert seat is not None, "a host process hosts no weights"
        self.read()
        ranks = _parts(seat, meeting, limit_s)
        here = [home for home in seat.homes if seat.rank < home.layout.data]
        handles, told = host(here, seat.trained, models, device=seat.torch_device, ranks=ranks)
        self.handles.update(handles)
        return told

    def read(self) -> None:
        """Read the flows, once."""
        if not self.workers:
            self.workers = [Worker(graph, self.handles) for graph in self.flows.read()]

    def run(
        self, graph: int, task: Run, versions: Mapping[str, int], key: Key, shards: Shards, *tables: pa.Table
    ) -> tuple[Any, ...]:
        """Run a task on tables of its inputs; give a table of each result, then those it sends, then what was observed.

        An error of ours says in its notes where it happened, and at which line of the flow.
        """
        self.read()
        worker = self.workers[graph]
        try:
            inputs = dict(self._opened(worker, task, shards, tables))
            done = worker.run(task, inputs, versions, key)
            given = {name: _packed(held, done.inputs[name]) for name, held in done.values.items()}
            sent = [select(given[name], parts) for name, parts in task.sends]
        except FlowError as error:
            error.where = error.where or worker.line_of(task)
            error.notes = (*error.notes, self._where(task, key.step))
            raise
        return *given.values(), *sent, done.observed

    def _where(self, task: Run, step: int) -> str:
        here = f"as {task.role} on {self.seat}" if self.seat is not None else "on the host"
        return f"in {', '.join(task.nodes)} {here}, step {step}"

    def _opened(
        self, worker: Worker, task: Run, shards: Shards, tables: Sequence[pa.Table]
    ) -> Iterator[tuple[str, Held]]:
        """Read each input's rows of this rank."""
        rest = list(tables)
        rank, count = (self.seat.rank, task.home.layout.data) if self.seat is not None and task.home else (0, 1)
        only = dict(task.parts)
        for name, (many, own) in zip(task.reads, shards, strict=True):
            tables, rest = rest[:many], rest[many:]
            parts = only.get(name, ())
            if parts:
                tables = [select(each, parts) for each in tables]
            table = tables[0] if own else deal(joined(tables, name), rank, count, name)
            ids = {column: table.column(column).to_numpy() for column in (*IDS, PLACE) if column in table.column_names}
            yield name, Held(from_table(worker.type_of(name), table, f"transfer of {name}", parts), ids)

    def sync(self, source: Home, target: Home, version: int) -> None:
        """Copy weights between two homes of this process; every rank of the source takes part."""
        weights = self.handles[source].weights()
        if target in self.handles:
            self._take(target, weights, version)

    def give(self, home: Home) -> Wire | None:
        """Give a home's whole weights, as they travel, from the first rank; every rank takes part."""
        weights = self.handles[home].weights()
        return to_wire(weights) if self.seat is not None and self.seat.rank == 0 else None

    def take(self, home: Home, wire: Wire, version: int) -> None:
        """Replace a home's weights by what another process gave."""
        self._take(home, from_wire(wire), version)

    def _take(self, home: Home, weights: Mapping[str, Any], version: int) -> None:
        self.handles[home].load(weights)
        self.handles[home].version = version

    def save(self, home: Home, folder: Path) -> None:
        """Write a home's weights as a folder that transformers loads; every rank takes part."""
        handle: Any = self.handles[home]
        handle.save(folder)


def read_source(source: Source, step: int) -> pa.Table:
    """Read a source's rows of one step as a table."""
    return _packed(Held.of(source.batch(step)), ())


def on_tables(function: Callable[..., None], counts: Sequence[int], rest: Sequence[Any], *tables: pa.Table) -> None:
    """Call a function on a list of whole tables, each here in `counts` parts, without the ids that only travel."""
    whole, left = list[Any](), list(tables)
    for many in counts:
        parts, left = left[:many], left[many:]
        table = joined(parts, "a result")
        whole.append(table.select([name for name in table.column_names if name not in IDS]))
    function(whole, *rest)


@cache
def host_process(flows: Flows) -> Device:
    """Give what runs host nodes in this process; the flows are read once."""
    return Device(flows)


def warm_up(flows: Flows) -> None:
    """Import in a host process what its first node would wait for."""
    importlib.import_module("torch")  # not used here, but by every node's body
    host_process(flows).read()


def run_on_host(flows: Flows, *rest: Any) -> tuple[Any, ...]:
    """Run a task as `Device.run` does, in whatever process this is."""
    return host_process(flows).run(*rest)


def _parts(seat: Seat, meeting: Path | str | None, limit_s: float) -> dict[Home, Ranks]:
    """Give the ranks of each home that this process has a part in; every rank asks for all, in one order."""
    if meeting is None:
        return {home: Alone() for home in seat.homes}
    ranks = named(JOIN)(seat.rank, seat.count, meeting, device=seat.torch_device, limit_s=limit_s)
    parts = {home: ranks.part(home.layout.data) for home in seat.homes}
    return {home: part for home, part in parts.items() if part is not None}


def _packed(held: Held, inputs: Sequence[Held]) -> pa.Table:
    table = to_table(held.value, lengths_for(held.value, inputs))
    for name, column in held.ids.items():
        table = table.append_column(name, [column])
    return table
