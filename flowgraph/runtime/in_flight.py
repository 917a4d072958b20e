"""Places in one process that work side by side, each in a thread, so that weights can come while rows are drawn.

The interpreter gets values that are still to come, as from Ray; it waits for them at the end of a step.
"""

from __future__ import annotations

import contextlib
import queue
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowgraph.engines.table import is_server
from flowgraph.errors import FlowError, UsageError
from flowgraph.language.graph import Graph
from flowgraph.language.keys import Key
from flowgraph.language.region import Observations
from flowgraph.language.values import Model
from flowgraph.lowering.program import HOST, Home, Run, Sync, Transfer, results_given
from flowgraph.runtime.daemon_thread import DaemonThread
from flowgraph.runtime.finished_groups import FinishedGroup
from flowgraph.runtime.group_order import GroupName
from flowgraph.runtime.hosting import stream_full_weights
from flowgraph.runtime.local import InProcess
from flowgraph.runtime.measure.measured_task import Measures
from flowgraph.runtime.measure.profiling import Profiles
from flowgraph.runtime.places import LATER, DiskVerb, ReadVersions
from flowgraph.runtime.row_identity import StoredValue
from flowgraph.runtime.serving import Servers
from flowgraph.runtime.worker import NodeResults

CLOSE_S = 10.0  # for which a run that ends waits for tasks under way, such as the answer of a judge


@dataclass(frozen=True, eq=False)
class Pending:
    """The value called `name` of those that a thread computes."""

    values: Future[Mapping[str, StoredValue]]
    name: str


def resolved(item: StoredValue | Pending) -> StoredValue:
    """Return the value of an item, once it has been computed; raise the error of the task that computes it."""
    return item.values.result()[item.name] if isinstance(item, Pending) else item


def begin(function: Callable[[], Any]) -> Future[Any]:
    """Return the result, still to come, of a function that a thread of its own calls."""
    thread = DaemonThread()
    future = thread.submit(function)
    thread.close()
    return future


def failed(future: Future[Any]) -> bool:
    """Return whether a task has ended with an error."""
    return future.done() and future.exception() is not None


@dataclass(eq=False)
class PlacesInFlight(InProcess):
    """Places in this process: each pool runs its tasks in order in one thread, beside those of the others.

    Tasks on copies in flight, and host nodes without side effects, have threads of their own. Host nodes with side
    effects run in order. Nothing is profiled. The end of a run waits for tasks under way, but not for long.
    """

    _in_order: dict[str, DaemonThread] = field(default_factory=lambda: defaultdict(DaemonThread), init=False)
    _under_way: list[tuple[object, Future[Any], Observations]] = field(
        default_factory=list[tuple[object, "Future[Any]", Observations]]
    )
    _came: dict[Home, Future[Any]] = field(default_factory=dict[Home, "Future[Any]"])
    _groups: queue.SimpleQueue[FinishedGroup | BaseException] = field(
        default_factory=queue.SimpleQueue["FinishedGroup | BaseException"]
    )

    def run(
        self, graph: Graph, task: Run, items: Mapping[str, Any], versions: ReadVersions, key: Key
    ) -> Mapping[str, Any]:
        """Submit the nodes of a task to the thread of its place, and return their results by name, without models.

        The arguments are those of `Places.run`. An error is raised where the results are read, or by `finish`.
        """
        future = self._work(graph, task, items, versions, key, self._step)
        nodes = {node.name: node for node in graph.nodes if node.name in task.nodes}
        names = [name for name, kind in results_given(task, nodes) if not issubclass(kind, Model)]
        return {name: Pending(future, name) for name in names}

    def sample(self, graph: Graph, task: Run, items: Mapping[str, Any], versions: ReadVersions, key: Key) -> None:
        """Begin to sample the groups of a step in a thread; `finished` returns each of them, or the thread's error.

        The arguments are those of `Places.run`.
        """
        (node,) = task.nodes

        def give(_: int, rows: NodeResults) -> None:
            stored = rows.values[node]
            name = GroupName(key.step, int(stored.ids["#group"][0]))
            self._groups.put(FinishedGroup(name, stored, rows.observed))

        def ended(future: Future[Any]) -> None:
            if not future.cancelled() and (error := future.exception()) is not None:
                self._groups.put(error)

        self._work(graph, task, items, versions, key, LATER, give).add_done_callback(ended)

    def finished(self, *, wait: bool = True) -> FinishedGroup | None:
        """Return the next group that finishes, of any step; None, without `wait`, if none has finished by now.

        Raises errors of the sampling.
        """
        group = None if not wait and self._groups.empty() else self._groups.get()
        if isinstance(group, BaseException):
            raise group
        return group

    def _work(
        self,
        graph: Graph,
        task: Run,
        items: Mapping[str, Any],
        versions: ReadVersions,
        key: Key,
        owner: object,
        give: Callable[[int, NodeResults], None] | None = None,
    ) -> Future[Any]:
        nodes = {node.name: node for node in graph.nodes if node.name in task.nodes}
        flies = any(home.in_flight for _, home in task.homes)
        free = flies or (task.place == HOST and all(node.op.pure for node in nodes.values()))
        worker, came = self.worker(graph), [self._came[home] for _, home in task.homes if home in self._came]

        def work(observed: Observations, measures: Measures) -> Mapping[str, StoredValue]:
            for weights in came if flies else ():
                weights.result()
            inputs = {name: resolved(item) for name, item in items.items()}
            try:
                with measures.of(task, graph):
                    results = worker.run(task, inputs, versions, key, give)
            except FlowError as error:
                error.where = error.where or worker.line_of(task)
                error.notes = (*error.notes, f"in {', '.join(task.nodes)}, step {key.step}")
                raise
            observed.merge(results.observed)
            observed.seconds |= results.observed.seconds
            return results.values

        return self._submit(None if free else task.place, work, owner)

    def _submit(self, lane: str | None, work: Callable[[Observations, Measures], Any], owner: object) -> Future[Any]:
        """Submit work to the thread of a lane, or without one to a thread of its own."""
        observed = Observations()

        def measured() -> Any:
            measures = Measures()
            result = work(observed, measures)
            observed.measured += measures.drained()
            return result

        future = begin(measured) if lane is None else self._in_order[lane].submit(measured)
        self._under_way.append((owner, future, observed))
        return future

    def transfer(self, task: Transfer, item: Any) -> Any:
        """Return the value as it arrives at the target of the task, once it has been computed."""
        copy = super().transfer
        return Pending(begin(lambda: {task.value: copy(task, resolved(item))}), task.value)

    def sync(self, task: Sync, version: int) -> None:
        """Submit a copy of weights from the source of the task to its target, after all earlier tasks of the source.

        A copy in flight takes them between two tokens; any other, after all earlier tasks of its pool.
        """
        source, target = self.handles[task.source], self.handles[task.target]

        def give(_: Observations, __: Measures) -> Mapping[str, Any]:
            return dict(stream_full_weights(source)) if is_server(task.target.engine) else source.weights()

        def take(_: Observations, measures: Measures) -> None:
            weights = copied.result()
            with measures.of(task) as meter:
                meter.gives(*weights.values())
                target.take(weights, version)

        copied = self._submit(task.source.pool, give, self._step)
        lane = f"weights of {task.target}" if task.target.in_flight else task.target.pool
        self._came[task.target] = self._submit(lane, take, self._step)

    def finish(self, step: object = None) -> Observations:
        """Wait for the tasks of `step`, or for all without one, and return its observations.

        Raises their errors, and those of tasks of other steps that have failed already. The observations of a task
        that samples groups are those of the step in which it ends.
        """
        ended = [
            (owner, future, observed)
            for owner, future, observed in self._under_way
            if step is None or owner in (step, None) or (owner is LATER and future.done()) or failed(future)
        ]
        self._under_way = [work for work in self._under_way if work not in ended]
        for owner, future, observed in ended:
            future.result()
            self.observe(owner, observed)
        finished = super().finish(step)
        if step is not None and (sampled := self._observed.pop(LATER, None)) is not None:
            finished.merge(sampled)
            finished.seconds |= sampled.seconds
        return finished

    def keep(self, item: Any, path: Path) -> None:
        """Write a value, with the ids of its rows, to a file, once it has been computed."""
        super().keep(resolved(item), path)

    def apply(self, function: Callable[..., Any], items: Sequence[Any], *rest: Any) -> Callable[[], Any]:
        """Call `function(tables, *rest)` on the tables of `items`, once they have been computed; return its result."""
        return super().apply(function, list(map(resolved, items)), *rest)

    def switch(self, home: Home, *, awake: bool) -> None:
        """Free the device memory of a home's weights, or load them again (`awake`), after all tasks."""
        self._wait()
        super().switch(home, awake=awake)

    def on_disk(self, home: Home, verb: DiskVerb, folder: Path, version: int | None = None) -> None:
        """Save a home to `folder`, or load it from there, after all tasks; the arguments are those of `Places`."""
        self._wait()
        super().on_disk(home, verb, folder, version)

    def _wait(self) -> None:
        for _, future, _ in self._under_way:
            future.result()

    def close(self) -> None:
        """Abort the responses under way, wait at most 10 s for other tasks under way, and end the servers."""
        for home, handle in self.handles.items():
            if home.in_flight:
                with contextlib.suppress(FlowError):
                    handle.abort()
        wait([future for _, future, _ in self._under_way if not future.cancel()], CLOSE_S)
        for thread in self._in_order.values():
            thread.close()
        super().close()


def places_in_process(
    homes: Sequence[Home], handles: Mapping[Home, Any], servers: Servers, profiles: Profiles
) -> InProcess:
    """Return the places of a program with these homes: they work side by side, in threads, if any home is in flight.

    Raises UsageError if steps of such a program should be profiled.
    """
    if not any(home.in_flight for home in homes):
        return InProcess(handles, servers, profiles)
    if profiles.steps:
        what = "tasks that run side by side in one process cannot be profiled"
        raise UsageError(what, where="--profile", hint="--runtime ray, or --contract scheduled")
    return PlacesInFlight(handles, servers)
