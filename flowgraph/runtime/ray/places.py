"""Places on Ray: an actor for each device of each pool, and tasks for host nodes. Only references pass through here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from flowgraph.cluster.plan import WeightsBy
from flowgraph.language.graph import Graph
from flowgraph.language.keys import Key
from flowgraph.language.region import Observations
from flowgraph.language.rows import leaf_paths
from flowgraph.language.values import Group, Model, Value
from flowgraph.lowering.program import Home, Join, Parts, Run, Sync, Transfer, results_given
from flowgraph.lowering.project_columns import value_types
from flowgraph.lowering.task_names import task_name
from flowgraph.runtime.batch import read_rows
from flowgraph.runtime.finished_groups import FinishedGroup, Pick
from flowgraph.runtime.group_order import GroupName
from flowgraph.runtime.hosting import LoadedModels
from flowgraph.runtime.places import LATER, DiskVerb, ReadVersions, RowSource
from flowgraph.runtime.ray.deadlines import Deadlines
from flowgraph.runtime.ray.device import Flows, leads_row_group
from flowgraph.runtime.ray.host_tasks import (
    apply_to_tables,
    join_chunk_tables,
    keep_tables,
    pick_tables,
    read_source,
    run_on_host,
)
from flowgraph.runtime.ray.session import Session
from flowgraph.runtime.ray.supervision import Member, PendingCall, Supervisor
from flowgraph.runtime.ray.weight_routes import DeviceLocation, Spots, same_devices, weight_transport
from flowgraph.runtime.row_identity import split_guide
from flowgraph.runtime.scratch import remove
from flowgraph.runtime.serving import engine_of

SHUT_S = 10.0  # how long a process may take to end its servers before it is killed together with them
MAX_SOURCES = 8  # whose rows stay in Ray's store
HAND, WEIGHTS, IN_FLIGHT = "hand", "weights", "in_flight"
"""Groups of calls that an actor runs beside others: they wait for a chunk, bring weights in flight, or read those."""
DISK_VERBS: Mapping[DiskVerb, str] = {
    "save": "saving",
    "save_state": "saving the state of",
    "load_state": "loading the state of",
}


@dataclass(frozen=True)
class TableReferences:
    """References to the tables of a value: one for all rows, or one for each rank.

    `sent` contains references to tables with only some parts of the value, by these parts.
    """

    refs: tuple[Any, ...]
    sent: Mapping[Parts, TableReferences] = field(default_factory=dict["Parts", "TableReferences"])
    dealt: str | None = ""  # the value by which rows were dealt to ranks; "": by number; None: they are not in order


@dataclass(eq=False)
class RayPlaces:
    """Runs tasks on actors and host processes: submits them without waiting, and supervises the calls in `finish`.

    `attached` are models whose servers were already running before the run.
    """

    session: Session
    flows: Flows
    graphs: Sequence[Graph]
    pools: dict[str, list[Member]]
    groups: list[Any]
    scratch: Path
    loaded: LoadedModels = field(default_factory=LoadedModels)
    doors: dict[Home, tuple[Any, ...]] = field(default_factory=dict[Home, tuple[Any, ...]])
    deadlines: Deadlines = field(default_factory=Deadlines)
    attached: frozenset[str] = frozenset()
    _pending: list[PendingCall] = field(default_factory=list[PendingCall])
    _sources: dict[int, tuple[RowSource, Any]] = field(default_factory=dict[int, tuple[RowSource, Any]])
    _leaving: dict[str, dict[Home, list[Any]]] = field(default_factory=dict[str, dict[Home, list[Any]]])
    _flows_ref: Any = None
    _step: object = None
    _observed: dict[object, Observations] = field(default_factory=dict[object, Observations])
    _drawn: dict[str, TableReferences] = field(default_factory=dict[str, TableReferences])
    _using: dict[Home, list[Any]] = field(default_factory=dict[Home, list[Any]])
    _came: dict[Home, list[Any]] = field(default_factory=dict[Home, list[Any]])
    _sampling: Member | None = None

    @property
    def members(self) -> list[Member]:
        """Return the actors of all pools, in the order of the pools and their devices."""
        return [member for pool in self.pools.values() for member in pool]

    @property
    def spots(self) -> Spots:
        """Return the location of each device of each pool, by the pool's name."""
        return {
            name: [DeviceLocation(m.about["machine"], m.about["sees"], m.seat.kind == "gpu") for m in members]
            for name, members in self.pools.items()
        }

    def read(self, source: RowSource, step: int) -> TableReferences:
        """Submit the reading of one step's rows in a host process, and return references to them.

        A source is sent to Ray when it is first read; the last 8 that were sent stay there.
        """
        import ray

        if id(source) not in self._sources:
            self._sources[id(source)] = source, ray.put(source)
            for old in [*self._sources][:-MAX_SOURCES]:  # every held-out batch is a source of its own
                del self._sources[old]
        _, ref = self._sources[id(source)]
        return TableReferences((host_task(read_source).remote(ref, step),))

    def run(
        self, graph: Graph, task: Run, items: Mapping[str, TableReferences], versions: ReadVersions, key: Key
    ) -> Mapping[str, TableReferences]:
        """Submit a task to each member of its home, or to a host process; return references to its results by name.

        A home is one copy of a model's weights. Each rank computes only its rows. Of a task by group, nothing is
        returned here: `finished` returns the groups. The arguments are those of `Places.run`. Errors are raised by the
        next `finish`.
        """
        nodes = {node.name: node for node in graph.nodes if node.name in task.nodes}
        names = [name for name, kind in results_given(task, nodes) if not issubclass(kind, Model)]  # models stay
        names = [] if task.by_group else names  # `finished` returns the groups
        line = next(iter(nodes.values())).at
        about = f"{task_name(task)} ({task.role or 'host'}), step {key.step}, {line}"
        home, which, returns = task.home, self.graphs.index(graph), len(names) + len(task.sends) + 1
        guide = split_guide(task, value_types(graph))
        by = guide.value if guide is not None else ""
        calls, leading = list[list[Any]](), list[list[Any]]()
        members: list[Member | None] = [None] if home is None else [*self._members(home)]
        for index, member in enumerate(members):
            rank, count = (home.rank_of(index), home.ranks) if home is not None else (0, 1)
            shards, refs = _shards(task, items, rank, count, by)
            if member is None:
                call = host_task(run_on_host).options(num_returns=returns)
                results = call.remote(self.flows_ref(), self.scratch, which, task, {}, key, shards, *refs)
            else:
                group = {"concurrency_group": IN_FLIGHT} if home is not None and home.in_flight else {}
                call = member.actor.run.options(num_returns=returns, **group)
                came = self._came.get(home, []) if home is not None else []  # Ray waits for them, too
                results = call.remote(which, task, dict(versions), key, shards, *refs, *came)
            calls.append(results if isinstance(results, list) else [results])
            if home is None or leads_row_group(home, index):
                leading.append(calls[-1])
        self._using |= {used: [results[-1] for results in calls] for _, used in task.homes if used in self.doors}
        for results, member in zip(calls, members, strict=True):
            self._wait_for(results[-1], about, member, ", ".join(task.nodes))
        dealt = None if any(node.op.regroups for node in nodes.values()) else by
        return _references(task, names, leading, dealt)

    def draw(
        self, graph: Graph, task: Run, items: Mapping[str, TableReferences], versions: ReadVersions, key: Key
    ) -> Mapping[str, TableReferences]:
        """Return references to the next chunk of what a task samples, and with the last chunk to all rows, by name.

        The task of the first chunk is submitted as a run that samples all rows; a call in another thread of each actor
        waits for a chunk.
        """
        (node,), chunk, home = task.nodes, task.chunk, task.home
        assert chunk is not None and home is not None, "a task that draws hands out a chunk of a model's samples"
        if not chunk.index:
            self._drawn[node] = self.run(graph, task, items, versions, key)[node]
        which, returns, leading = self.graphs.index(graph), len(task.sends) + 2, list[list[Any]]()
        for index, member in enumerate(self._members(home)):
            if leads_row_group(home, index):
                call = member.actor.handed.options(num_returns=returns, concurrency_group=HAND)
                leading.append(call.remote(which, task, key))
                about = f"chunk {chunk} of {node} ({task.role}), step {key.step}"
                self._wait_for(leading[-1][-1], about, member, node)
        chunk_item = _references(task, [node], leading, None)[node]
        return {chunk.named(node): chunk_item} | ({node: self._drawn.pop(node)} if chunk.is_last else {})

    def sample(
        self, graph: Graph, task: Run, items: Mapping[str, TableReferences], versions: ReadVersions, key: Key
    ) -> None:
        """Submit a task that samples the groups of a step, which `finished` returns; the step does not wait for it."""
        assert task.home is not None, "a task that samples reads a model"
        (self._sampling,) = self._members(task.home)
        step, self._step = self._step, LATER
        self.run(graph, task, items, versions, key)
        self._step = step

    def finished(self, *, wait: bool = True) -> FinishedGroup | None:
        """Wait for the next group that finishes, of any step, and return it.

        If `wait` is False, returns None if no group has finished. Raises errors of the sampling, and WorkerError as
        `Supervisor.of_calls` does.
        """
        member = self._sampling
        assert member is not None, "`sample` was called before"
        table, report = member.actor.finished.options(num_returns=2, concurrency_group=HAND).remote(wait=wait)
        call = PendingCall(report, f"the next group of {member.seat}", member)
        (report,) = Supervisor(self.members, self.session.started, self.deadlines).results([call])
        if report is None:
            return None
        step, prompt, observed = report
        return FinishedGroup(GroupName(step, prompt), TableReferences((table,)), observed)

    def pick(
        self, items: Sequence[TableReferences], picks: Sequence[Pick], kind: type[Value], name: str
    ) -> TableReferences:
        """Submit the joining of the picked rows of each item in a host process, and return a reference to them.

        Each item must have all its rows in one table. Errors are raised by the next `finish`.
        """
        groups = [path for path, part in leaf_paths(kind) if issubclass(part, Group)]
        call = host_task(pick_tables).remote(list(picks), groups, name, *(item.refs[0] for item in items))
        self._wait_for(call, f"taking groups of {name}", None)
        return TableReferences((call,))

    def join(self, task: Join, chunks: Sequence[TableReferences], like: TableReferences) -> TableReferences:
        """Submit the joining of the chunks of a value, and return a reference to its rows; a host process does it."""
        counts = [len(item.refs) for item in (*chunks, like)]
        call = host_task(join_chunk_tables).options(num_returns=2)
        table, report = call.remote(task, counts, *(ref for item in (*chunks, like) for ref in item.refs))
        self._wait_for(report, task_name(task), None, task_name(task))
        return TableReferences((table,))

    def _members(self, home: Home) -> list[Member]:
        return [self.pools[home.pool][place] for place in home.members]

    def transfer(self, task: Transfer, item: TableReferences) -> TableReferences:
        """Return references to the parts that a task transfers if these were sent separately, else to the whole item.

        Nothing is copied: the process that reads an item gets its tables from Ray's store.
        """
        return item.sent.get(task.parts, item)

    def sync(self, task: Sync, version: int) -> None:
        """Submit a copy of a model's weights, of version `version`, from the source home of `task` to its target.

        Inference servers get the weights from the members of the source, after they have answered all requests; servers
        in flight get them at once. Other weights are copied within each process that has both homes, or else through
        Ray's object store. Later tasks of a copy in flight wait for its weights.
        """
        source, target, about = task.source, task.target, f"{task.value}, sync to {task.target}"
        senders, receivers = self._members(source), self._members(target)
        group = {"concurrency_group": WEIGHTS} if target.in_flight else {}
        if target in self.doors:
            by, using = self.way(source, target), [] if target.in_flight else self._using.get(target, [])
            sent = [
                member.actor.send.remote(task, doors, version, self.scratch, by, *using)
                for member, doors in zip(senders, self._doors_of(source, target), strict=True)
            ]
            self._wait_for_all(sent, about, senders)
            refs = [receivers[0].actor.took.options(**group).remote(target, version, *sent)]
            self._wait_for_all(refs, about, receivers[:1])
        elif source.pool == target.pool and len(receivers) <= len(senders):
            refs = [member.actor.sync.remote(task, version) for member in senders]
            self._wait_for_all(refs, about, senders)
        else:
            sent = [member.actor.give.remote(task) for member in senders]
            self._wait_for_all(sent[1:], about, senders[1:])
            takes = [member.actor.take.options(**group) for member in receivers]
            refs = [take.remote(target, sent[0], version, task) for take in takes]
            self._wait_for_all(refs, about, receivers)
        if target.in_flight:
            self._came[target] = refs

    def way(self, source: Home, target: Home) -> WeightsBy:
        """Return the weight transport from `source` to the servers of `target`: "memory", "group" or "disk".

        Raises WorkerError as `weight_transport` does, but not for attached servers.
        """
        if target.param in self.attached:
            return engine_of(target).weights_by(target, shared=source.pool == target.pool)
        return weight_transport(source, target, self.spots)

    def _doors_of(self, source: Home, target: Home) -> Iterator[tuple[Any, ...]]:
        doors, size = self.doors[target], target.layout.devices // target.layout.data
        for place in source.members:
            if not same_devices(source, target):
                yield doors if place == 0 else ()
            else:
                yield (doors[place // size],) if place % size == 0 and place < target.layout.devices else ()

    def switch(self, home: Home, *, awake: bool) -> None:
        """Submit to a home's actors that they free its device memory, or restore its weights (`awake`).

        Restoring waits until the pool's other homes, if they are being freed, have left the devices.
        """
        about, members = f"{'wake' if awake else 'sleep'} {home.param} on {home}", self._members(home)
        after = [ref for refs in self._leaving.get(home.pool, {}).values() for ref in refs] if awake else []
        refs = [member.actor.switch.remote(home, awake, *after) for member in members]
        self._wait_for_all(refs, about, members)
        if not awake:
            self._leaving.setdefault(home.pool, {})[home] = refs

    def _wait_for(self, ref: Any, about: str, member: Member | None, task: str = "") -> None:
        self._pending.append(PendingCall(ref, about, member, task, self.deadlines.limit_s(task), self._step))

    def _wait_for_all(self, refs: Sequence[Any], task: str, members: Sequence[Member]) -> None:
        for ref, member in zip(refs, members, strict=True):
            self._wait_for(ref, task, member, task)

    def work_for(self, step: object) -> None:
        """Attribute calls that are submitted from now on, with their observations, to `step`; None: to no step."""
        self._step = step

    def finish(self, step: object = None) -> Observations:
        """Wait for the submitted calls of `step` and return their observations. Raises the first error of these calls.

        Calls that belong to no step are waited for, too. What samples groups is part of the step in which it ends.
        Without a step, all calls are waited for, and the observations of steps are kept for their own `finish`.
        """
        submitted, self._pending = self._pending, []
        ended = self._ended(submitted)
        pending = [call for call in submitted if step is None or call.step in (step, None) or call in ended]
        self._pending = [call for call in submitted if call not in pending]
        if not self._pending:
            self._leaving.clear()
        chunks = dict[tuple[object, str, str], float]()  # the seconds of a node in one call, on its slowest rank
        for call, result in Supervisor(self.members, self.session.started, self.deadlines).of_calls(pending):
            report = result[-1] if isinstance(result, tuple) else result  # a task without values returns only this
            if isinstance(report, Observations):
                observed = self._observed.setdefault(call.step, Observations())
                observed.merge(report)
                for name, seconds in report.seconds.items():
                    before = chunks.get((call.step, call.about, name), 0.0)
                    longest = chunks[call.step, call.about, name] = max(before, seconds)
                    observed.seconds[name] = observed.seconds.get(name, 0.0) + longest - before
        finished = self._observed.pop(step, Observations())
        if step is not None and (sampled := self._observed.pop(LATER, None)) is not None:
            finished.merge(sampled)
            finished.seconds |= sampled.seconds
        return finished

    def _ended(self, calls: Sequence[PendingCall]) -> list[PendingCall]:
        """Return the calls of those that sample groups which have ended."""
        import ray

        later = {call.ref: call for call in calls if call.step is LATER}
        return [later[ref] for ref in ray.wait([*later], num_returns=len(later), timeout=0)[0]] if later else []

    def apply(self, function: Callable[..., Any], items: Sequence[TableReferences], *rest: Any) -> Callable[[], Any]:
        """Submit a call of `function(tables, *rest)` with the tables of `items` in a host process.

        Returns a function that waits for the result and returns it. The next `finish` raises errors of the call.
        """
        import ray

        counts = [len(item.refs) for item in items]
        result = host_task(apply_to_tables).remote(
            function, counts, rest, *(ref for item in items for ref in item.refs)
        )
        self._wait_for(result, "what is recorded", None)
        return lambda: ray.get(result)

    def keep(self, item: TableReferences, path: Path) -> None:
        """Submit the writing of an item, with the ids of its rows, to a file; a host process does it."""
        self._wait_for(host_task(keep_tables).remote(path, *item.refs), f"saving {path.name}", None)

    def kept(self, kind: type[Value], path: Path, parts: Parts) -> TableReferences:
        """Return references to the rows that `keep` wrote, with all parts; a host process reads the file.

        The next `finish` raises the error of a file that cannot be read.
        """
        rows = host_task(read_rows).remote(path)
        self._wait_for(rows, f"reading {path.name}", None)
        return TableReferences((rows,))

    def on_disk(self, home: Home, verb: DiskVerb, folder: Path, version: int | None = None) -> None:
        """Save the weights or state of a home to `folder`, or load them, on all its members; wait for all calls.

        `verb` is the method of the handles. `version` is that of loaded weights, or None. Raises errors as `finish`
        does.
        """
        members = self._members(home)
        if home.in_flight:  # its other calls are in groups of their own, which do not wait for each other
            self.finish()
        refs = [member.actor.on_disk.remote(home, verb, folder.absolute(), version) for member in members]
        self._wait_for_all(refs, f"{DISK_VERBS[verb]} {home.param}", members)
        self.finish()

    def close(self) -> None:
        """End every process that was started, whether it responds or not, and remove the scratch folder."""
        import ray
        from ray.exceptions import RayError

        self.session.end_stopped()
        served = {home.pool for home in self.doors}  # their members may have servers as children
        leaders = [member for name, pool in self.pools.items() if name in served for member in pool]
        shut = [member.actor.shut.options(concurrency_group="beat").remote() for member in leaders]
        if shut:
            with contextlib.suppress(RayError):
                ray.wait(shut, num_returns=len(shut), timeout=SHUT_S)
        for member in self.members:
            ray.kill(member.actor)
        self.session.give_back(self.groups)
        self.session.close()
        for member in self.members:
            member.end()
        remove(self.scratch)

    def flows_ref(self) -> Any:
        """Return a reference to the flows in Ray's object store, where they are put once."""
        import ray

        if self._flows_ref is None:
            self._flows_ref = ray.put(self.flows)
        return self._flows_ref


@cache
def host_task(function: Callable[..., Any]) -> Any:
    """Return `function` as a Ray task with one CPU and no retries, since nodes may have side effects; cached."""
    import ray

    return ray.remote(num_cpus=1, max_retries=0)(function)


def _references(
    task: Run, names: Sequence[str], leading: Sequence[Sequence[Any]], dealt: str | None
) -> dict[str, TableReferences]:
    """Return references to the results of a task, called `names`, and to what it sends, from all `leading` ranks."""
    count = len(names) + len(task.sends)
    tables = [TableReferences(tuple(refs[i] for refs in leading), dealt=dealt) for i in range(count)]
    sent: dict[str, dict[Parts, TableReferences]] = {name: {} for name in names}
    for (name, parts), references in zip(task.sends, tables[len(names) :], strict=True):
        sent[name][parts] = references
    return {name: replace(table, sent=sent[name]) for name, table in zip(names, tables, strict=False)}


def _shards(
    task: Run, items: Mapping[str, TableReferences], rank: int, count: int, by: str
) -> tuple[list[tuple[int, bool]], list[Any]]:
    """Return the inputs of one of `count` ranks: only its rows if they were split by the value `by`, else all rows."""
    shards, refs = list[tuple[int, bool]](), list[Any]()
    dealt = {name: count > 1 and len(items[name].refs) == count and items[name].dealt == by for name in task.reads}
    for name in task.reads:
        is_dealt = dealt[name] and (name != by or all(dealt.values()))
        sent = items[name].refs[rank : rank + 1] if is_dealt else items[name].refs
        shards.append((len(sent), is_dealt))
        refs += sent
    return shards, refs
