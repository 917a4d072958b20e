"""The reference places: one process, with a store for each place and a copy of weights for each home.

A transfer converts a value to a table and back, as if it travelled; every layout runs as one rank with all rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flowgraph.engines.table import is_server
from flowgraph.errors import LawError
from flowgraph.language.graph import Graph
from flowgraph.language.keys import Key
from flowgraph.language.region import Observations
from flowgraph.language.values import Record, Value
from flowgraph.lowering.program import IDS_ONLY, Home, Join, Parts, Run, Switch, Sync, Transfer, results_given
from flowgraph.runtime.batch import from_table, read_rows, select, to_table, write_rows
from flowgraph.runtime.finished_groups import FinishedGroup, Pick, picked
from flowgraph.runtime.hosting import ModelSetup, stream_full_weights
from flowgraph.runtime.join_chunks import joined_value
from flowgraph.runtime.measure.measured_task import Measures
from flowgraph.runtime.measure.profiling import NO_PROFILES, Profiles
from flowgraph.runtime.places import DiskVerb, ReadVersions, RowSource
from flowgraph.runtime.row_identity import StoredValue, ids_in, with_ids
from flowgraph.runtime.serving import Servers
from flowgraph.runtime.worker import DeviceWorker, NodeResults

NO_ROWS = StoredValue(Value(None), {})
"""A chunk without groups: there are fewer groups than chunks."""


@dataclass(eq=False)
class InProcess:
    """Places in this process, each with its own values; `handles` are the copies of weights by home."""

    handles: Mapping[Home, Any]
    servers: Servers = field(default_factory=lambda: Servers(ModelSetup({}, 0, Path()), Path(), 0.0))
    profiles: Profiles = NO_PROFILES
    measures: Measures = field(default_factory=Measures)
    _observed: dict[object, Observations] = field(default_factory=dict[object, Observations])
    _step: object = None
    _drawn: dict[str, Mapping[str, StoredValue]] = field(default_factory=dict[str, "Mapping[str, StoredValue]"])
    _workers: dict[Graph, DeviceWorker] = field(default_factory=dict[Graph, DeviceWorker])

    def read(self, source: RowSource, step: int) -> StoredValue:
        """Return the rows of one step from a source, with their ids."""
        return StoredValue.of(source.batch(step))

    def run(
        self, graph: Graph, task: Run, items: Mapping[str, StoredValue], versions: ReadVersions, key: Key
    ) -> Mapping[str, StoredValue]:
        """Run the nodes of a task in this process and return their results by name, without models.

        A task on a chunk without groups is not run, and its results have no rows. The arguments are those of
        `Places.run`; the errors, those of `DeviceWorker.run`.
        """
        if any(not len(items[name]) for name in task.streamed):
            nodes = {node.name: node for node in graph.nodes}
            return dict.fromkeys((name for name, _ in results_given(task, nodes)), NO_ROWS)
        return self._ran(graph, task, items, versions, key).values

    def draw(
        self, graph: Graph, task: Run, items: Mapping[str, StoredValue], versions: ReadVersions, key: Key
    ) -> Mapping[str, StoredValue]:
        """Return the next chunk of what a task samples, and with the last chunk all rows, by name.

        The call for the first chunk samples all rows; later calls return the other chunks of these rows. A chunk
        without groups has no rows.
        """
        (node,), chunk = task.nodes, task.chunk
        assert chunk is not None, "a task that draws hands out a chunk"
        if not chunk.index:
            chunks, ends_s = dict[str, StoredValue](), dict[int, float]()

            def give(index: int, rows: NodeResults) -> None:
                ends_s[index] = time.time()
                chunks[replace(chunk, index=index).named(node)] = rows.values[node]

            self._drawn[node] = {**self._ran(graph, task, items, versions, key, give).values, **chunks}
            self.measures.split(task, ends_s)
        batch = self._drawn[node] if not chunk.is_last else self._drawn.pop(node)
        rows = {chunk.named(node): batch.get(chunk.named(node), NO_ROWS)}
        return rows | ({node: batch[node]} if chunk.is_last else {})

    def _ran(
        self,
        graph: Graph,
        task: Run,
        items: Mapping[str, StoredValue],
        versions: ReadVersions,
        key: Key,
        give: Callable[[int, NodeResults], None] | None = None,
    ) -> NodeResults:
        name = f"{task.place}-0-{'-'.join(task.nodes)}"
        with self.measures.of(task, graph), self.profiles.of(key.step, name):
            results = self.worker(graph).run(task, items, versions, key, give)
        self.observe(self._step, results.observed)
        return results

    def sample(
        self, graph: Graph, task: Run, items: Mapping[str, StoredValue], versions: ReadVersions, key: Key
    ) -> None:
        """Raise LawError: nothing finishes while other tasks of this process run."""
        raise LawError("groups are taken as they finish only where places work side by side")

    def finished(self, *, wait: bool = True) -> FinishedGroup | None:
        """Raise LawError, as `sample` does."""
        raise LawError("no group is being sampled")

    def pick(self, items: Sequence[StoredValue], picks: Sequence[Pick], kind: type[Value], name: str) -> StoredValue:
        """Return one value with the picked rows of each item, in order. Raises LawError if their scalars differ."""
        return picked(items, picks, name)

    def join(self, task: Join, chunks: Sequence[StoredValue], like: StoredValue) -> StoredValue:
        """Return a value with the rows of all chunks, in the order in which `like` has these rows.

        Metrics whose terms the chunks have are computed for the whole batch, and added to what `finish` returns for the
        current step. Raises LawError if no chunk has rows, if the chunks and `like` do not have rows with the same ids,
        if two rows have the same ids, or if a scalar differs between chunks.
        """
        with self.measures.of(task):
            joined, observed = joined_value(chunks, like, task.value, task.like)
        self._observed.setdefault(self._step, Observations()).merge(observed)
        return joined

    def worker(self, graph: Graph) -> DeviceWorker:
        """Return the worker that runs the nodes of a graph on the handles of these places."""
        return self._workers.setdefault(graph, DeviceWorker(graph, self.handles))

    def observe(self, step: object, results: Observations) -> None:
        """Add observations of a task to those of its step."""
        observed = self._observed.setdefault(step, Observations())
        observed.merge(results)
        for node, seconds in results.seconds.items():
            observed.seconds[node] = observed.seconds.get(node, 0.0) + seconds

    def transfer(self, task: Transfer, item: StoredValue) -> StoredValue:
        """Return the value, or the parts of it that the task transfers, after a conversion to a table and back.

        A chunk without groups is returned as it is, and so is a value that is not a record if only ids are transferred.
        """
        if item is NO_ROWS or (task.parts == IDS_ONLY and not isinstance(item.value, Record)):
            return item
        table = select(to_table(item.value), task.parts) if task.parts else to_table(item.value)
        return StoredValue(from_table(type(item.value), table, f"transfer of {task.value}", task.parts), item.ids)

    def sync(self, task: Sync, version: int) -> None:
        """Copy weights from the handle of the task's source to that of its target, and set the version of the copy.

        For an inference server, adapters are merged into the base weights.
        """
        source, target = self.handles[task.source], self.handles[task.target]
        with self.measures.of(task) as meter:
            weights = dict(stream_full_weights(source)) if is_server(task.target.engine) else source.weights()
            meter.gives(*weights.values())
            target.load(weights)
        target.version = version

    def work_for(self, step: object) -> None:
        """Attribute the observations of what is done from now on to `step`; None: to no step."""
        if step is not self._step:
            self._observed.setdefault(self._step, Observations()).measured += self.measures.drained()
            self._step = step

    def finish(self, step: object = None) -> Observations:
        """Return the observations of `step` since the last call, or, for None, of work that belongs to no step.

        Nothing has to be waited for: each call of these places has done its work when it returns.
        """
        observed = self._observed.pop(step, Observations())
        if step is self._step:
            observed.measured += self.measures.drained()
        return observed

    def keep(self, item: StoredValue, path: Path) -> None:
        """Write a value, with the ids of its rows, to a file; an existing file is replaced."""
        write_rows(with_ids(to_table(item.value), item.ids), path)

    def kept(self, kind: type[Value], path: Path, parts: Parts) -> StoredValue:
        """Return the value that `keep` wrote, with the ids of its rows.

        Of a record, only `parts` are read, unless they are empty. Raises DataError if the file cannot be read or lacks
        a part of the value.
        """
        table = read_rows(path)
        return StoredValue(from_table(kind, table, str(path), parts), ids_in(table))

    def apply(self, function: Callable[..., Any], items: Sequence[StoredValue], *rest: Any) -> Callable[[], Any]:
        """Call `function(tables, *rest)` on the tables of `items` now; return a function that returns the result."""
        result = function([to_table(item.value) for item in items], *rest)
        return lambda: result

    def switch(self, home: Home, *, awake: bool) -> None:
        """Free the device memory of a home's weights, or load them again (`awake`)."""
        with self.measures.of(Switch(home, awake)):
            handle = self.handles[home]
            (handle.wake if awake else handle.sleep)()

    def on_disk(self, home: Home, verb: DiskVerb, folder: Path, version: int | None = None) -> None:
        """Save the weights or state of a home to `folder`, or load them, with the method `verb` of its handle.

        `version` is the version of the loaded weights, which the handle gets; None when saving.
        """
        getattr(self.handles[home], verb)(folder)
        if version is not None:
            self.handles[home].version = version

    def close(self) -> None:
        """End the inference servers that this process started."""
        self.servers.close()
