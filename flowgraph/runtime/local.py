"""The reference places: all in this process, yet with a store for each place and a copy of weights for each home.

A transfer writes and reads a value as it would travel; every layout runs as one rank, which sees all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.engines.table import is_server
from flowgraph.language.graph import Graph
from flowgraph.language.keys import Key
from flowgraph.language.region import Observations
from flowgraph.lowering.program import Home, Run, Switch, Sync, Transfer
from flowgraph.runtime.batch import from_table, select, to_table
from flowgraph.runtime.hosting import ModelSetup
from flowgraph.runtime.interpreter import RowSource
from flowgraph.runtime.measure.measured_task import Measures
from flowgraph.runtime.measure.profiling import NO_PROFILES, Profiles
from flowgraph.runtime.row_identity import StoredValue
from flowgraph.runtime.serving import Servers
from flowgraph.runtime.weights import outgoing
from flowgraph.runtime.worker import DeviceWorker

if TYPE_CHECKING:
    from flowgraph.language.handle import Handle
    from flowgraph.language.values import Value


@dataclass(eq=False)
class InProcess:
    """Places in this process; `handles` are the copies of weights by home, each its own."""

    handles: Mapping[Home, Handle]
    servers: Servers = field(default_factory=lambda: Servers(ModelSetup({}, 0, Path()), Path(), 0.0))
    profiles: Profiles = NO_PROFILES
    measures: Measures = field(default_factory=Measures)
    _observed: Observations = field(default_factory=Observations)
    _workers: dict[Graph, DeviceWorker] = field(default_factory=dict[Graph, DeviceWorker])

    def read(self, source: RowSource, step: int) -> StoredValue:
        """Get a source's rows of one step."""
        return StoredValue.of(source.batch(step))

    def run(
        self, graph: Graph, task: Run, items: Mapping[str, StoredValue], versions: Mapping[str, int], key: Key
    ) -> Mapping[str, StoredValue]:
        """Run a task's nodes here."""
        worker = self._workers.setdefault(graph, DeviceWorker(graph, self.handles))
        called = f"{task.place}-0-{'-'.join(task.nodes)}"
        with self.measures.of(task, graph), self.profiles.of(key.step, called):
            done = worker.run(task, items, versions, key)
        self._observed.merge(done.observed)
        for name, seconds in done.observed.seconds.items():
            self._observed.seconds[name] = self._observed.seconds.get(name, 0.0) + seconds
        return done.values

    def transfer(self, task: Transfer, item: StoredValue) -> StoredValue:
        """Write the value as it would travel, and read it: of a record those parts that the task brings."""
        table = select(to_table(item.value), task.parts) if task.parts else to_table(item.value)
        return StoredValue(from_table(type(item.value), table, f"transfer of {task.value}", task.parts), item.ids)

    def sync(self, task: Sync, version: int) -> None:
        """Copy the weights; an engine with processes of its own takes them whole, without adapters."""
        source, target = self.handles[task.source], self.handles[task.target]
        apart = is_server(task.target.engine)
        with self.measures.of(task) as meter:
            weights = dict(outgoing(source)) if apart else source.weights()
            meter.gives(*weights.values())
            target.load(weights)
        target.version = version

    def finish(self) -> Observations:
        """Give what was observed since the last time."""
        observed, self._observed = self._observed, Observations()
        observed.measured += self.measures.drained()
        return observed

    def apply(self, function: Callable[..., Any], items: Sequence[StoredValue], *rest: Any) -> Callable[[], Any]:
        """Call a function on a list of tables of items; return what gives its result."""
        result = function([to_table(item.value) for item in items], *rest)
        return lambda: result

    def switch(self, home: Home, *, awake: bool) -> None:
        """Let what a home holds leave its device, or come back."""
        handle: Any = self.handles[home]
        with self.measures.of(Switch(home, awake)):
            if awake:
                handle.wake()
            else:
                handle.sleep()

    def save(self, home: Home, folder: Path) -> None:
        """Write the weights of one home as a folder that transformers loads."""
        handle: Any = self.handles[home]
        handle.save(folder)

    def save_state(self, home: Home, folder: Path) -> None:
        """Write a home's weights, and its optimizers' state where they are trained."""
        handle: Any = self.handles[home]
        handle.save_state(folder)

    def load_state(self, home: Home, folder: Path, version: int) -> None:
        """Take what `save_state` wrote, on any layout."""
        handle: Any = self.handles[home]
        handle.load_state(folder)
        handle.version = version

    def put(self, value: Value) -> StoredValue:
        """Hold a value."""
        return StoredValue.of(value)

    def close(self) -> None:
        """End the servers of engines that have processes of their own."""
        self.servers.close()
