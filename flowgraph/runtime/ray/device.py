"""The actor of one device: it hosts the copies of weights that are placed there and runs tasks on its rank's rows.

It takes and returns Arrow tables; `places` moves them. Host nodes run in this actor, too, without a device.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, cast

from flowgraph.cluster.plan import WeightsBy
from flowgraph.engines import fsdp
from flowgraph.engines.table import is_server
from flowgraph.errors import FlowError
from flowgraph.flows.flow_files import import_file
from flowgraph.language.graph import Graph
from flowgraph.language.handle import Ranks, SingleRank
from flowgraph.language.keys import Key
from flowgraph.language.region import Observations
from flowgraph.lowering.program import Home, Run, Switch, Sync
from flowgraph.runtime import scratch as scratches
from flowgraph.runtime.batch import from_table, select
from flowgraph.runtime.hosting import LoadedModels, ModelSetup, Wire, from_wire, host, stream_full_weights, to_wire
from flowgraph.runtime.measure.measured_task import Measures, note_process
from flowgraph.runtime.measure.profiling import NO_PROFILES, Profiles
from flowgraph.runtime.places import DiskVerb, ReadVersions
from flowgraph.runtime.ray.mailbox import Mailbox
from flowgraph.runtime.ray.stack_dump import thread_stacks, write_on_signal
from flowgraph.runtime.ray.task_tables import Shards, chunk_tables, empty_tables, result_tables
from flowgraph.runtime.row_identity import (
    StoredValue,
    balanced_shares,
    ids_in,
    join_shards,
    rows_of_rank,
    split_guide,
)
from flowgraph.runtime.serving import ServerPlace, Servers, engine_of
from flowgraph.runtime.worker import DeviceWorker, NodeResults
from flowgraph.serialize.graph import from_json

if TYPE_CHECKING:
    import pyarrow as pa

GroupReport = tuple[int, int, Observations]
"""A group that has finished: the step of its prompt, the id of the prompt, and what was observed of the group."""


@dataclass(frozen=True)
class Flows:
    """The flows of a run as JSON, and the path of the user's file that defines their names ("" for a shipped flow)."""

    graphs: tuple[str, ...]
    file: str

    def read(self) -> list[Graph]:
        """Import the user's file, if any, and return the graphs, with the ops and types of that file.

        Raises UserCodeError if the file cannot be imported, and FlowError as `from_json` if a graph is invalid.
        """
        if self.file:
            import_file(Path(self.file))
        return [from_json(text) for text in self.graphs]


@dataclass(frozen=True)
class PoolRank:
    """One device of a pool: rank `rank` of `count`, its kind ("gpu" or "cpu"), and the homes of the pool.

    `trained` are the homes, in any pool, whose weights the run updates.
    """

    pool: str
    rank: int
    count: int
    kind: str
    homes: tuple[Home, ...]
    trained: tuple[Home, ...]

    @property
    def torch_device(self) -> str:
        """Return the torch device type: "cuda" or "cpu"."""
        return "cuda" if self.kind == "gpu" else "cpu"

    def __str__(self) -> str:
        return f"rank {self.rank} of pool `{self.pool}`"


@dataclass(eq=False, repr=False)
class RankActor:
    """Hosts weights and runs nodes; a host process has no device, so its `seat` is None."""

    flows: Flows
    seat: PoolRank | None = None
    handles: dict[Home, Any] = field(default_factory=dict[Home, Any])
    workers: list[DeviceWorker] = field(default_factory=list[DeviceWorker])
    servers: Servers | None = None
    updates: dict[Home, Any] = field(default_factory=dict[Home, Any])
    profiles: Profiles = NO_PROFILES
    measures: Measures = field(default_factory=Measures)
    reserved: socket.socket | None = None
    mailbox: Mailbox = field(default_factory=Mailbox)

    def __repr__(self) -> str:
        """Return a short name of the device; Ray prints it before each line of output of the process."""
        return f"Device({self.seat or 'host'})"

    def about(self, scratch: Path | None = None) -> dict[str, Any]:
        """Return facts about this process by name, with a free port where other ranks can connect.

        They are `pid`, `port`, `ip`, `machine` (Ray's node id), `gpus` (ids, from CUDA_VISIBLE_DEVICES), and `sees`:
        whether this process sees `scratch`, a folder of the driver.
        """
        import ray

        return {
            "pid": os.getpid(),
            "port": self.port(),
            "sees": scratch is not None and scratch.is_dir(),
            "ip": cast("Any", ray.util).get_node_ip_address(),
            "machine": ray.get_runtime_context().get_node_id(),
            "gpus": tuple(gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu),
        }

    def port(self) -> int:
        """Return a free TCP port; it stays reserved until `open`, so that no other process gets it."""
        if self.reserved is None:
            self.reserved = socket.socket()
            self.reserved.bind(("", 0))
        return int(self.reserved.getsockname()[1])

    def beat(self) -> bool:
        """Return True, to show that the process responds. Raises WorkerError if one of its servers has failed."""
        if self.servers is not None:
            self.servers.check()
        return True

    def stacks(self) -> list[str]:
        """Return the stacks of all threads of this process but the one that answers, as lines of text."""
        return thread_stacks()

    def open(
        self, models: ModelSetup, meeting: Path | str | None, limit_s: float, profiles: Profiles = NO_PROFILES
    ) -> LoadedModels:
        """Connect to the pool's other ranks, load the weights of this device's homes, and return facts by parameter.

        A home is one copy of a model's weights. All ranks of the pool must call it if `meeting`, a file or TCP address
        where ranks connect, is not None; a rank waits at most `limit_s` seconds for the others. Homes on inference
        servers are not loaded here. Raises FlowError as `Flows.read` does, and ModelError if a model cannot be loaded.
        """
        seat = self.seat
        assert seat is not None, "a host process hosts no weights"
        self.read()
        device: Any = seat.torch_device
        self.measures, self.profiles = Measures(seat.rank, device), profiles
        note_process(device)
        if self.reserved is not None:
            self.reserved.close()
            self.reserved = None
        hosted = [home for home in seat.homes if not is_server(home.engine)]
        ranks: dict[Home, Ranks] = {home: SingleRank() for home in hosted}
        if meeting is not None:
            join = resolve_name(fsdp.ENGINE.process_group)
            group = join(seat.rank, seat.count, meeting, device=device, limit_s=limit_s)
            # Every rank asks for all parts, in one order; it has none in the homes of fewer devices.
            parts = {home: group.part(home.layout.devices) for home in hosted}
            ranks = {home: part for home, part in parts.items() if part is not None}
        mine = [home for home in hosted if seat.rank in home.members]
        handles, loaded = host(mine, seat.trained, models, device=device, ranks=ranks)
        self.handles.update(handles)
        return loaded

    def serve(self, models: ModelSetup, place: ServerPlace, scratch: Path, limit_s: float) -> Any:
        """Start the server of the replica `place` as a child of this process, and return its address and keys.

        The server's files are in a folder in `scratch`, or in a new scratch folder if `scratch` is on another machine.
        The server may take `limit_s` seconds to start; the first call sets this for all. Raises LawError, ModelError
        and WorkerError as `Servers.start` does.
        """
        if self.servers is None:
            assert self.seat is not None, "a host process serves nothing"
            if scratch.is_dir():
                folder = Path(tempfile.mkdtemp(prefix=f"{self.seat.pool}-{self.seat.rank}-", dir=scratch))
            else:  # it is the driver's, which is on another machine
                scratches.sweep()
                folder = scratches.make()
            self.servers = Servers(models, folder, limit_s)
        return self.servers.start(place)

    def attach(self, home: Home, doors: Sequence[Any]) -> LoadedModels:
        """Create the handle that sends requests to all servers of a home, and return facts about the loaded model.

        Call it on the actor that started the home's first server. The facts are those of `Servers.facts`, by parameter.
        Raises ModelError if the model cannot be loaded.
        """
        assert self.servers is not None, "the first server of a home is a child of its first device"
        self.handles[home] = self.servers.handle(home, doors)
        return {home.param: self.servers.facts(home)}

    def shut(self) -> None:
        """End this process's servers, remove their folder, and close the connections that send weights to servers."""
        for update in self.updates.values():
            update.close()
        if self.servers is not None:
            self.servers.close()
            scratches.remove(self.servers.scratch)

    def read(self) -> None:
        """Load the flows of the run in this process; later calls do nothing.

        The process then also writes its stacks when it receives SIGUSR2. Raises FlowError as `Flows.read` does.
        """
        if not self.workers:
            write_on_signal()
            self.workers = [DeviceWorker(graph, self.handles) for graph in self.flows.read()]

    def run(
        self, graph: int, task: Run, versions: ReadVersions, key: Key, shards: Shards, *tables: pa.Table
    ) -> tuple[Any, ...]:
        """Run a task and return a table for each result, then the tables that the task sends, then the observations.

        `graph` is the index of the graph in the run; `versions` are the versions of the models that the task reads;
        `key` contains the seed and the step. `tables` are the tables of all inputs in order; for each input, `shards`
        has their number, and whether their rows are this rank's already. What follows the tables is ignored: Ray has
        waited for it. Of ranks that share their rows, only the first returns metrics. A FlowError gets a note with the
        nodes, device and step, and, if it has no place, the line of the flow.

        A task that hands out chunks samples all of them; `handed` returns one as soon as it has finished. A task on a
        chunk without groups returns tables without columns. Of a task by group, `finished` returns the groups, and this
        only the observations.
        """
        self.read()
        worker, seat = self.workers[graph], self.seat
        process = f"{seat.pool}-{seat.rank}" if seat is not None else f"host-{os.getpid()}"
        flies = task.home is not None and task.home.in_flight  # beside another: only one can be profiled
        profile = (NO_PROFILES if flies else self.profiles).of(key.step, f"{process}-{'-'.join(task.nodes)}")
        if task.streamed and not any(table.num_columns for table in chunk_tables(task, shards, tables)):
            return *empty_tables(worker, task), Observations()
        gives = task.hands_out or task.by_group
        posts = gives and (seat is None or task.home is None or leads_row_group(task.home, seat.rank))
        batch, ends_s = (graph, task.nodes, key.step), dict[int, float]()

        def give(index: int, rows: NodeResults) -> None:
            ends_s[index] = time.time()
            if posts and task.by_group:
                ((stored,), (table,)) = rows.values.values(), result_tables(task, rows)
                self.mailbox.post((table, (key.step, int(stored.ids["#group"][0]), rows.observed)))
            elif posts:
                self.mailbox.give(batch, index, result_tables(task, rows))

        try:
            with self.measures.of(task, worker.graph) as meter, profile:
                meter.reads(*tables)
                inputs = self._inputs(worker, task, shards, tables)
                ran = worker.run(task, inputs, versions, key, give if gives else None)
                results = [] if task.by_group else result_tables(task, ran)
                meter.gives(*results[: len(ran.values)])
            self.measures.split(task, ends_s)
        except BaseException as error:
            if isinstance(error, FlowError):
                error.where = error.where or worker.line_of(task)
                where = f"as {task.role} on {seat}" if seat is not None else "on the host"
                error.notes = (*error.notes, f"in {', '.join(task.nodes)} {where}, step {key.step}")
            if posts and task.by_group:
                self.mailbox.post(error)
            elif posts:
                self.mailbox.end(batch, error)
            raise
        if seat is not None and task.home is not None and not leads_row_group(task.home, seat.rank):
            ran.observed.sums.clear()
        ran.observed.measured += self.measures.drained()
        if posts and not task.by_group:
            self.mailbox.end(batch)
        return *results, ran.observed

    def handed(self, graph: int, task: Run, key: Key) -> tuple[Any, ...]:
        """Wait for a chunk of a task that `run` is sampling, and return its tables in the order of `run`.

        Empty observations follow the tables. The last chunk is returned when the task has ended. The tables have no
        columns if the task has ended without this chunk. Raises the error of `run`, unless the chunk had finished
        before.
        """
        self.read()
        assert task.chunk is not None, "a chunk is handed out"
        tables = self.mailbox.take((graph, task.nodes, key.step), task.chunk.index, last=task.chunk.is_last)
        return *(tables or empty_tables(self.workers[graph], task)), Observations()

    def finished(self, *, wait: bool = True) -> tuple[pa.Table | None, GroupReport | None]:
        """Wait for the next group that a task by group samples, and return its table, and which group it is.

        If `wait` is False, returns at once, and both are None if no group has finished. Raises the error of such a
        task.
        """
        group: tuple[pa.Table, GroupReport] | None = self.mailbox.next_group(wait=wait)
        return group or (None, None)

    def _inputs(
        self, worker: DeviceWorker, task: Run, shards: Shards, tables: Sequence[pa.Table]
    ) -> dict[str, StoredValue]:
        rank, count = 0, 1
        if self.seat is not None and task.home is not None:
            rank, count = task.home.rank_of(self.seat.rank), task.home.ranks
        parts, waiting = dict(task.parts), iter(tables)
        dealt = {name for name, (_, is_dealt) in zip(task.reads, shards, strict=True) if is_dealt}
        read, inputs = dict[str, Any](), dict[str, StoredValue]()
        for name, (number, is_dealt) in zip(task.reads, shards, strict=True):
            pieces = list(islice(waiting, number))
            if name in task.streamed:  # a rank may have had fewer groups than chunks
                pieces = [piece for piece in pieces if piece.num_columns] or pieces[:1]
            if parts.get(name):
                pieces = [select(piece, parts[name]) for piece in pieces]
            # A table that was already split for this rank keeps its rows' positions in the batch.
            read[name] = pieces[0] if is_dealt else join_shards(pieces, name)
        guide, shares = split_guide(task, worker.types), None
        if guide is not None and count > 1 and guide.value not in dealt:
            shares = balanced_shares(read[guide.value], guide, count)
        for name, rows in read.items():
            table = rows if name in dealt else rows_of_rank(rows, rank, count, name, shares)
            value = from_table(worker.types[name], table, f"transfer of {name}", parts.get(name, ()))
            inputs[name] = StoredValue(value, ids_in(table))
        return inputs

    def sync(self, task: Sync, version: int) -> None:
        """Copy weights of version `version` from the source home of `task` to its target, in this process.

        Call it on every rank of the source, since gathering the weights needs all of them; a process without the target
        only takes part in that.
        """
        with self.measures.of(task) as meter:
            weights = self.handles[task.source].weights()
            meter.gives(*weights.values())
            if task.target in self.handles:
                self._load(task.target, weights, version)

    def send(self, task: Sync, doors: Sequence[Any], version: int, scratch: Path, by: WeightsBy, *after: Any) -> None:
        """Send weights of version `version` to the inference servers `doors`; call it on every rank of the source.

        The results in `after` make the call wait until the servers have answered the requests of earlier tasks.
        A rank with no `doors` only takes part in gathering the weights. `by` is the weight transport; `scratch` is a
        folder for weights that go through the disk.
        """
        source, target = task.source, task.target
        with self.measures.of(task, pool=source.pool):
            weights = stream_full_weights(self.handles[source])
            if doors:
                if target not in self.updates:
                    routed = replace(target, running=target.running.model_copy(update={"weights_by": by}))
                    self.updates[target] = engine_of(target).updates(routed, doors, scratch, shared=by == "memory")
                self.updates[target].send(weights, version)
            for _ in weights:  # what the others gather needs this rank's part
                pass

    def took(self, home: Home, version: int, *after: Any) -> None:
        """Record, in this process only, the version of the weights that a home's inference servers have received.

        Nothing is sent to the servers: `send` has set their version. Ray waits for the results in `after` before it
        makes this call.
        """
        self.handles[home].version = version

    def give(self, task: Sync) -> Wire | None:
        """Return the full weights of a task's source home in wire format on the first rank, and None on the others.

        Call it on every rank, since gathering the weights needs all of them.
        """
        with self.measures.of(task, pool=task.source.pool) as meter:
            weights = self.handles[task.source].weights()
            if self.seat is None or self.seat.rank:
                return None
            meter.gives(*weights.values())
            return to_wire(weights)

    def take(self, home: Home, wire: Wire, version: int, task: Sync | None = None) -> None:
        """Replace a home's weights by `wire`, which `give` returned in another process, and set their version.

        If `task` is given, the duration is measured as that task's.
        """
        with self.measures.of(task) if task is not None else contextlib.nullcontext():
            self._load(home, from_wire(wire), version)

    def _load(self, home: Home, weights: Mapping[str, Any], version: int) -> None:
        if home.in_flight:
            self.handles[home].take(weights, version)
            return
        self.handles[home].load(weights)
        self.handles[home].version = version

    def switch(self, home: Home, awake: bool, *after: Any) -> None:
        """Free this device's memory of a home's weights, or load them again (`awake`).

        Ray waits for the results in `after` before it makes this call.
        """
        with self.measures.of(Switch(home, awake)):
            handle = self.handles[home]
            (handle.wake if awake else handle.sleep)()

    def on_disk(self, home: Home, verb: DiskVerb, folder: Path, version: int | None) -> None:
        """Save or load this rank's share of a home with the method `verb` of its handle; call it on every rank.

        `version` is the version of loaded weights; None when saving.
        """
        getattr(self.handles[home], verb)(folder)
        if version is not None:
            self.handles[home].version = version


def leads_row_group(home: Home, member: int) -> bool:
    """Return whether device `member` of a home is the first of the devices that compute the same rows.

    `member` is the device's index among the members of the home, from 0.
    """
    return member % (len(home.members) // home.ranks) == 0
