"""What the actor of one device does: it hosts the copies of weights placed there and runs tasks on its rank's rows.

It knows Arrow tables, not Ray: whoever owns it moves them. Host nodes run here too, without a device.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from flowgraph.cluster.plan import WeightsBy
from flowgraph.engines import fsdp
from flowgraph.engines.table import is_server
from flowgraph.errors import FlowError
from flowgraph.flows.flow_files import import_file
from flowgraph.language.graph import Graph
from flowgraph.language.handle import Handle, Ranks, SingleRank
from flowgraph.language.keys import Key
from flowgraph.language.values import Value
from flowgraph.lowering.program import Home, Run, Switch, Sync
from flowgraph.runtime import scratch as scratches
from flowgraph.runtime.batch import from_table, select, to_table
from flowgraph.runtime.hosting import ModelSetup, Told, host, named
from flowgraph.runtime.interpreter import RowSource
from flowgraph.runtime.measure.measured_task import Measures, note_process
from flowgraph.runtime.measure.profiling import NO_PROFILES, Profiles
from flowgraph.runtime.ray.stack_dump import stacks_here, write_on_signal
from flowgraph.runtime.row_identity import IDS, PLACE, StoredValue, deal, joined, lengths_for
from flowgraph.runtime.row_sharding import by_work, guide_of
from flowgraph.runtime.serving import ServerPlace, Servers, engine_of
from flowgraph.runtime.weights import Wire, from_wire, outgoing, to_wire
from flowgraph.runtime.worker import DeviceWorker
from flowgraph.serialize.graph import from_json

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
class PoolRank:
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


@dataclass(eq=False, repr=False)
class RankActor:
    """Hosts and runs; `seat` None stands for a host process."""

    flows: Flows
    seat: PoolRank | None = None
    handles: dict[Home, Handle] = field(default_factory=dict[Home, Handle])
    workers: list[DeviceWorker] = field(default_factory=list[DeviceWorker])
    servers: Servers | None = None
    updates: dict[Home, Any] = field(default_factory=dict[Home, Any])
    profiles: Profiles = NO_PROFILES
    measures: Measures = field(default_factory=Measures)
    held: socket.socket | None = None

    def __repr__(self) -> str:
        """Return which device this is, in few words: Ray puts it before each line that the process prints."""
        return f"Device({self.seat or 'host'})"

    def about(self, scratch: Path | None = None) -> dict[str, Any]:
        """Say which process this is, on which machine and GPUs, and a port there that is free for ranks to meet at.

        `sees` says that the driver's folder `scratch` is a folder here too.
        """
        import ray

        gpus = tuple(each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each)
        machine = ray.get_runtime_context().get_node_id()
        where = {"ip": cast("Any", ray.util).get_node_ip_address(), "machine": machine, "gpus": gpus}
        sees = scratch is not None and scratch.is_dir()
        return {"pid": os.getpid(), "port": self.port(), "sees": sees, **where}

    def port(self) -> int:
        """Return a port that is free, and hold it until `open`, so that nobody else is given it meanwhile."""
        if self.held is None:
            self.held = socket.socket()
            self.held.bind(("", 0))
        return int(self.held.getsockname()[1])

    def beat(self) -> bool:
        """Answer, as a process that is stopped does not. Raises WorkerError if a server of this one is not well."""
        if self.servers is not None:
            self.servers.check()
        return True

    def stacks(self) -> list[str]:
        """Say what this process is at."""
        return stacks_here()

    def open(
        self, models: ModelSetup, meeting: Path | str | None, limit_s: float, profiles: Profiles = NO_PROFILES
    ) -> Told:
        """Meet the pool's other ranks, if there is where to, and load every copy of weights; say what was loaded."""
        seat = self.seat
        assert seat is not None, "a host process hosts no weights"
        self.read()
        kind: Any = seat.torch_device
        self.measures, self.profiles = Measures(seat.rank, kind), profiles
        note_process(kind)
        if self.held is not None:
            self.held.close()
            self.held = None
        ranks = _parts(seat, meeting, limit_s)
        here = [home for home in seat.homes if seat.rank in home.members and not is_server(home.engine)]
        handles, told = host(here, seat.trained, models, device=seat.torch_device, ranks=ranks)
        self.handles.update(handles)
        return told

    def serve(self, models: ModelSetup, post: ServerPlace, scratch: Path, limit_s: float) -> Any:
        """Start a server of a home as a child of this process, and give its door."""
        return self._servers(models, scratch, limit_s).start(post)

    def attach(self, models: ModelSetup, home: Home, doors: Sequence[Any], scratch: Path, limit_s: float) -> Told:
        """Speak for all servers of a home from here; say what they loaded."""
        servers = self._servers(models, scratch, limit_s)
        self.handles[home] = servers.handle(home, doors)
        return {home.param: servers.told(home)}

    def _servers(self, models: ModelSetup, scratch: Path, limit_s: float) -> Servers:
        if self.servers is None:
            assert self.seat is not None, "a host process serves nothing"
            if scratch.is_dir():
                own = Path(tempfile.mkdtemp(prefix=f"{self.seat.pool}-{self.seat.rank}-", dir=scratch))
            else:  # it is the driver's, which is on another machine
                scratches.sweep()
                own = scratches.make()
            self.servers = Servers(models, own, limit_s)
        return self.servers

    def shut(self) -> None:
        """End the servers of this process, with their folder, and what brings weights to others."""
        for each in self.updates.values():
            each.close()
        if self.servers is not None:
            self.servers.close()
            scratches.remove(self.servers.scratch)

    def read(self) -> None:
        """Read the flows, once."""
        if not self.workers:
            write_on_signal()
            self.workers = [DeviceWorker(graph, self.handles) for graph in self.flows.read()]

    def run(
        self, graph: int, task: Run, versions: Mapping[str, int], key: Key, shards: Shards, *tables: pa.Table
    ) -> tuple[Any, ...]:
        """Run a task on tables of its inputs; give a table of each result, then those it sends, then what was observed.

        Of ranks that share their rows the first tells the metrics.

        An error of ours says in its notes where it happened, and at which line of the flow.
        """
        self.read()
        worker = self.workers[graph]
        try:
            with self.measures.of(task, worker.graph) as meter, self.profiles.of(key.step, self._called(task)):
                meter.reads(*tables)
                inputs = dict(self._opened(worker, task, shards, tables))
                done = worker.run(task, inputs, versions, key)
                given = {name: _packed(held, done.inputs[name]) for name, held in done.values.items()}
                sent = [select(given[name], parts) for name, parts in task.sends]
                meter.gives(*given.values())
        except FlowError as error:
            error.where = error.where or worker.line_of(task)
            error.notes = (*error.notes, self._where(task, key.step))
            raise
        if self.seat is not None and task.home is not None and not leads(task.home, self.seat.rank):
            done.observed.sums.clear()
        done.observed.measured += self.measures.drained()
        return *given.values(), *sent, done.observed

    def _called(self, task: Run) -> str:
        where = f"{self.seat.pool}-{self.seat.rank}" if self.seat is not None else f"host-{os.getpid()}"
        return f"{where}-{'-'.join(task.nodes)}"

    def _where(self, task: Run, step: int) -> str:
        here = f"as {task.role} on {self.seat}" if self.seat is not None else "on the host"
        return f"in {', '.join(task.nodes)} {here}, step {step}"

    def _opened(
        self, worker: DeviceWorker, task: Run, shards: Shards, tables: Sequence[pa.Table]
    ) -> Iterator[tuple[str, StoredValue]]:
        """Read each input's rows of this rank."""
        rank, count = 0, 1
        if self.seat is not None and task.home is not None:
            rank, count = task.home.rank_of(self.seat.rank), task.home.ranks
        only, whole, guide = dict(task.parts), dict(_whole(task, shards, tables)), guide_of(task, worker.types)
        by_guide = guide is not None and count > 1 and not dict(zip(task.reads, shards, strict=True))[guide.value][1]
        shares = by_work(whole[guide.value], guide, count) if guide is not None and by_guide else None
        for name, (_, own) in zip(task.reads, shards, strict=True):
            table = whole[name] if own else deal(whole[name], rank, count, name, shares)
            ids = {column: table.column(column).to_numpy() for column in (*IDS, PLACE) if column in table.column_names}
            yield (
                name,
                StoredValue(from_table(worker.type_of(name), table, f"transfer of {name}", only.get(name, ())), ids),
            )

    def sync(self, task: Sync, version: int) -> None:
        """Copy weights between two homes of this process; every rank of the source takes part."""
        with self.measures.of(task) as meter:
            weights = self.handles[task.source].weights()
            meter.gives(*weights.values())
            if task.target in self.handles:
                self._take(task.target, weights, version)

    def send(self, task: Sync, doors: Sequence[Any], version: int, scratch: Path, by: WeightsBy) -> None:
        """Give weights to servers of an engine, to none of them if there are no `doors`; every rank takes part."""
        source, target = task.source, task.target
        with self.measures.of(task, pool=source.pool):
            weights = outgoing(self.handles[source])
            if doors:
                if target not in self.updates:
                    told = replace(target, running=target.running.model_copy(update={"weights_by": by}))
                    self.updates[target] = engine_of(target).updates(told, doors, scratch, shared=by == "memory")
                self.updates[target].send(weights, version)
            for _ in weights:  # what the others gather needs this rank's part
                pass

    def took(self, home: Home, version: int, *after: Any) -> None:
        """Know that an engine's servers have a version, once it was sent."""
        self.handles[home].version = version

    def give(self, task: Sync) -> Wire | None:
        """Give a home's whole weights, as they travel, from the first rank; every rank takes part."""
        with self.measures.of(task, pool=task.source.pool) as meter:
            weights = self.handles[task.source].weights()
            if self.seat is None or self.seat.rank:
                return None
            meter.gives(*weights.values())
            return to_wire(weights)

    def take(self, home: Home, wire: Wire, version: int, task: Sync | None = None) -> None:
        """Replace a home's weights by what another process gave."""
        with self.measures.of(task) if task is not None else contextlib.nullcontext():
            self._take(home, from_wire(wire), version)

    def _take(self, home: Home, weights: Mapping[str, Any], version: int) -> None:
        self.handles[home].load(weights)
        self.handles[home].version = version

    def switch(self, home: Home, awake: bool, *after: Any) -> None:
        """Let what a home holds leave this device, or come back; `after` are what had to be done before."""
        handle: Any = self.handles[home]
        with self.measures.of(Switch(home, awake)):
            if awake:
                handle.wake()
            else:
                handle.sleep()

    def save_state(self, home: Home, folder: Path) -> None:
        """Write this rank's share of a home's weights and optimizers; every rank takes part."""
        handle: Any = self.handles[home]
        handle.save_state(folder)

    def load_state(self, home: Home, folder: Path, version: int) -> None:
        """Take this rank's share of what was written, on any layout."""
        handle: Any = self.handles[home]
        handle.load_state(folder)
        handle.version = version

    def save(self, home: Home, folder: Path) -> None:
        """Write a home's weights as a folder that transformers loads; every rank takes part."""
        handle: Any = self.handles[home]
        handle.save(folder)


def packed(value: Value) -> pa.Table:
    """Give a value as it travels."""
    return _packed(StoredValue.of(value), ())


def read_source(source: RowSource, step: int) -> pa.Table:
    """Read a source's rows of one step as a table."""
    return packed(source.batch(step))


def on_tables(function: Callable[..., Any], counts: Sequence[int], rest: Sequence[Any], *tables: pa.Table) -> Any:
    """Call a function on a list of whole tables, each here in `counts` parts, without the ids that only travel.

    Returns what the function does.
    """
    whole, left = list[Any](), list(tables)
    for many in counts:
        parts, left = left[:many], left[many:]
        table = joined(parts, "a result")
        whole.append(table.select([name for name in table.column_names if name not in IDS]))
    return function(whole, *rest)


def _whole(task: Run, shards: Shards, tables: Sequence[pa.Table]) -> Iterator[tuple[str, pa.Table]]:
    """Give each input in one table, of a record the parts that are read; what is this rank's own keeps its places."""
    rest, only = list(tables), dict(task.parts)
    for name, (many, own) in zip(task.reads, shards, strict=True):
        parts, rest = rest[:many], rest[many:]
        if only.get(name, ()):
            parts = [select(each, only[name]) for each in parts]
        yield name, parts[0] if own else joined(parts, name)


def leads(home: Home, place: int) -> bool:
    """Say whether a member of a home is the first of those that share their rows."""
    return place % (len(home.members) // home.ranks) == 0


@cache
def host_process(flows: Flows) -> RankActor:
    """Give what runs host nodes in this process; the flows are read once."""
    return RankActor(flows)


def warm_up(flows: Flows) -> None:
    """Import in a host process what its first node would wait for."""
    importlib.import_module("torch")  # not used here, but by every node's body
    host_process(flows).read()


def run_on_host(flows: Flows, scratch: Path, *rest: Any) -> tuple[Any, ...]:
    """Run a task as `RankActor.run` does, in whatever process this is; its files go with the run's `scratch`.

    Ray kills this process and its children at the end, so none of them can be relied on to remove anything.
    """
    if scratch.is_dir():  # not on another machine
        tempfile.tempdir = str(scratch)
    return host_process(flows).run(*rest)


def _parts(seat: PoolRank, meeting: Path | str | None, limit_s: float) -> dict[Home, Ranks]:
    """Give the ranks of each home that this process has a part in; every rank asks for all, in one order."""
    if meeting is None:
        return {home: SingleRank() for home in seat.homes}
    ranks = named(fsdp.ENGINE.process_group)(seat.rank, seat.count, meeting, device=seat.torch_device, limit_s=limit_s)
    parts = {home: ranks.part(home.layout.devices) for home in seat.homes if not is_server(home.engine)}
    return {home: part for home, part in parts.items() if part is not None}


def _packed(held: StoredValue, inputs: Sequence[StoredValue]) -> pa.Table:
    table = to_table(held.value, lengths_for(held.value, inputs))
    for name, column in held.ids.items():
        table = table.append_column(name, [column])
    return table
