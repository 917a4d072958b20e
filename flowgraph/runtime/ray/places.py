"""Places on Ray: an actor for each device of each pool, host nodes as tasks. Only references pass through here."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from flowgraph.cluster.plan import WeightsBy
from flowgraph.language.graph import Graph
from flowgraph.language.keys import Key
from flowgraph.language.region import Observations
from flowgraph.language.values import Model, Value
from flowgraph.lowering.program import Home, Parts, Run, Sync, Transfer, results_given
from flowgraph.lowering.project_columns import value_types
from flowgraph.runtime.hosting import Told
from flowgraph.runtime.interpreter import RowSource
from flowgraph.runtime.ray.deadlines import Deadlines
from flowgraph.runtime.ray.device import Flows, leads, on_tables, packed, read_source, run_on_host
from flowgraph.runtime.ray.session import Session
from flowgraph.runtime.ray.supervision import Member, PendingCall, Supervisor
from flowgraph.runtime.ray.weight_routes import DeviceLocation, beside, way_of
from flowgraph.runtime.row_sharding import guide_of
from flowgraph.runtime.scratch import remove
from flowgraph.runtime.serving import engine_of

SHUT_S = 10.0  # how long a process may take to end its servers before it is killed, and they with it
SOURCES_KEPT = 8  # which hold rows in Ray's store


@dataclass(frozen=True)
class TableReferences:
    """References to the tables of a value: of all rows, or of each rank's; and to those of some parts of it."""

    refs: tuple[Any, ...]
    sent: Mapping[Parts, TableReferences] = field(default_factory=dict["Parts", "TableReferences"])
    dealt: str | None = ""  # each rank's tables are what it is dealt by this value ("": by number); None: by nothing


@dataclass(eq=False)
class RayPlaces:
    """Runs tasks on actors and host processes, submits without waiting, and watches over them in `finish`.

    `spots` are the devices of each pool; `attached` are models whose servers somebody else has started.
    """

    session: Session
    flows: Flows
    graphs: Sequence[Graph]
    pools: dict[str, list[Member]]
    groups: list[Any]
    scratch: Path
    told: Told = field(default_factory=Told)
    doors: dict[Home, tuple[Any, ...]] = field(default_factory=dict[Home, tuple[Any, ...]])
    deadlines: Deadlines = field(default_factory=Deadlines)
    spots: dict[str, list[DeviceLocation]] = field(default_factory=dict[str, list[DeviceLocation]])
    attached: frozenset[str] = frozenset()
    _pending: list[PendingCall] = field(default_factory=list[PendingCall])
    _sources: dict[int, tuple[RowSource, Any]] = field(default_factory=dict[int, tuple[RowSource, Any]])
    _left: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    _flows_ref: Any = None

    @property
    def members(self) -> list[Member]:
        """Give the actors of all pools."""
        return [member for pool in self.pools.values() for member in pool]

    def read(self, source: RowSource, step: int) -> TableReferences:
        """Get a source's rows of one step, in a host process; the sources read last travel once."""
        import ray

        if id(source) not in self._sources:
            self._sources[id(source)] = source, ray.put(source)
            for old in [*self._sources][:-SOURCES_KEPT]:  # each held-out batch is a source of its own
                del self._sources[old]
        _, ref = self._sources[id(source)]
        return TableReferences((host_task(read_source).remote(ref, step),))

    def run(
        self, graph: Graph, task: Run, items: Mapping[str, TableReferences], versions: Mapping[str, int], key: Key
    ) -> Mapping[str, TableReferences]:
        """Submit a task to every member of its home, or to a host process; each rank gets its own rows."""
        names, sends = list(_results(graph, task)), task.sends
        said = f"{', '.join(task.nodes)} ({task.role or 'host'}), step {key.step}, {_site(graph, task)}"
        home, which, returns = task.home, self.graphs.index(graph), len(names) + len(sends) + 1
        guide = guide_of(task, value_types(graph))
        by = guide.value if guide is not None else ""
        if home is None:
            shards, refs = _shards(task, items, 0, 1, by)
            call = host_task(run_on_host).options(num_returns=returns)
            made = [call.remote(self.flows_ref(), self.scratch, which, task, {}, key, shards, *refs)]
            members, firsts = list[Member | None]([None]), [True]
        else:
            members, made = list[Member | None](self._members(home)), list[Any]()
            for place, one in enumerate(self._members(home)):
                shards, refs = _shards(task, items, home.rank_of(place), home.ranks, by)
                call = one.actor.run.options(num_returns=returns)
                made.append(call.remote(which, task, dict(versions), key, shards, *refs))
            firsts = [leads(home, place) for place in home.members]
        lists = [refs if isinstance(refs, list) else [refs] for refs in made]
        for refs, member in zip(lists, members, strict=True):
            self._wait_for(refs[-1], said, member, ", ".join(task.nodes))
        dealt = None if any(node.op.regroups for node in graph.nodes if node.name in task.nodes) else by
        told = [refs for refs, first in zip(lists, firsts, strict=True) if first]
        rows = [TableReferences(tuple(refs[i] for refs in told), dealt=dealt) for i in range(returns - 1)]
        sent = defaultdict[str, dict[Parts, TableReferences]](dict)
        for (name, parts), each in zip(sends, rows[len(names) :], strict=True):
            sent[name][parts] = each
        return {name: replace(each, sent=sent[name]) for name, each in zip(names, rows, strict=False)}

    def _members(self, home: Home) -> list[Member]:
        return [self.pools[home.pool][place] for place in home.members]

    def transfer(self, task: Transfer, item: TableReferences) -> TableReferences:
        """Hand on the references: who reads the rows fetches them, or the parts it needs, from where they were made."""
        return item.sent.get(task.parts, item)

    def sync(self, task: Sync, version: int) -> None:
        """Submit a copy of weights: within each process where both homes are, else through the object store.

        To the servers of an engine members of the source send them themselves.
        """
        source, target, said = task.source, task.target, f"{task.value}, sync to {task.target}"
        giving, taking = self._members(source), self._members(target)
        if target in self.doors:
            by = self.way(source, target)
            sent = [
                member.actor.send.remote(task, doors, version, self.scratch, by)
                for member, doors in zip(giving, self._doors_of(source, target), strict=True)
            ]
            for ref, member in zip(sent, giving, strict=True):
                self._wait_for(ref, said, member, said)
            self._wait_for(taking[0].actor.took.remote(target, version, *sent), said, taking[0], said)
            return
        if source.pool == target.pool and len(taking) <= len(giving):
            for member in giving:
                self._wait_for(member.actor.sync.remote(task, version), said, member, said)
            return
        given = [member.actor.give.remote(task) for member in giving]
        for ref, member in zip(given[1:], giving[1:], strict=True):
            self._wait_for(ref, said, member, said)
        for member in taking:
            self._wait_for(member.actor.take.remote(target, given[0], version, task), said, member, said)

    def way(self, source: Home, target: Home) -> WeightsBy:
        """Say how weights come to the servers of a home; raises WorkerError where the plan asks for what cannot be."""
        if target.param in self.attached:
            return engine_of(target).weights_by(target, shared=source.pool == target.pool)
        return way_of(source, target, self.spots)

    def _doors_of(self, source: Home, target: Home) -> Iterator[tuple[Any, ...]]:
        """Say to which servers each member of a source sends: those on its own device, or the first to all."""
        doors, each = self.doors[target], target.layout.devices // target.layout.data
        own = beside(source, target)
        for place in source.members:
            if own:
                lead = place % each == 0 and place < target.layout.devices
                yield (doors[place // each],) if lead else ()
            else:
                yield doors if place == 0 else ()

    def switch(self, home: Home, *, awake: bool) -> None:
        """Submit that a home leaves its devices or comes back, once all that was switched off in the pool has left."""
        said = f"{'wake' if awake else 'sleep'} {home.param} on {home}"
        after = self._left.get(home.pool, []) if awake else []
        refs = [member.actor.switch.remote(home, awake, *after) for member in self._members(home)]
        for ref, member in zip(refs, self._members(home), strict=True):
            self._wait_for(ref, said, member, said)
        self._left.setdefault(home.pool, []).extend([] if awake else refs)

    def _wait_for(self, ref: Any, said: str, member: Member | None, task: str = "") -> None:
        self._pending.append(PendingCall(ref, said, member, task, self.deadlines.limit_s(task)))

    def finish(self) -> Observations:
        """Wait for all that was submitted, and give what was observed; raises what went wrong first."""
        pending, self._pending = self._pending, []
        self._left.clear()
        observed = Observations()
        for result in Supervisor(self.members, self.session.started, self.deadlines).results(pending):
            report = result[-1] if isinstance(result, tuple) else result  # a task without values gives only this
            if isinstance(report, Observations):
                observed.merge(report)
                for name, seconds in report.seconds.items():
                    observed.seconds[name] = max(observed.seconds.get(name, 0.0), seconds)
        return observed

    def apply(self, function: Callable[..., Any], items: Sequence[TableReferences], *rest: Any) -> Callable[[], Any]:
        """Call a function on a list of tables of items, in a host process; errors show in the next `finish`."""
        import ray

        counts = [len(item.refs) for item in items]
        refs = [ref for item in items for ref in item.refs]
        done = host_task(on_tables).remote(function, counts, rest, *refs)
        self._wait_for(done, "what is recorded", None)
        return lambda: ray.get(done)

    def save(self, home: Home, folder: Path) -> None:
        """Write the weights of one home as a folder that transformers loads; every rank of it takes part."""
        self._all(home, f"saving {home.param}", lambda actor: actor.save.remote(home, folder.absolute()))

    def save_state(self, home: Home, folder: Path) -> None:
        """Write a home's weights and optimizers; every rank of it takes part."""
        said = f"saving the state of {home.param}"
        self._all(home, said, lambda actor: actor.save_state.remote(home, folder.absolute()))

    def load_state(self, home: Home, folder: Path, version: int) -> None:
        """Take what `save_state` wrote; every rank of it takes part."""
        said = f"loading the state of {home.param}"
        self._all(home, said, lambda actor: actor.load_state.remote(home, folder.absolute(), version))

    def _all(self, home: Home, said: str, ask: Callable[[Any], Any]) -> None:
        for member in self._members(home):
            self._wait_for(ask(member.actor), said, member, said)
        self.finish()

    def put(self, value: Value) -> TableReferences:
        """Bring a value to the object store."""
        import ray

        return TableReferences((ray.put(packed(value)),))

    def close(self) -> None:
        """End every process that was started, whether it answers or not."""
        import ray
        from ray.exceptions import RayError

        self.session.end_stopped()
        shut = [member.actor.shut.options(concurrency_group="beat").remote() for member in self._leaders()]
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

    def _leaders(self) -> list[Member]:
        """Give the members that may have servers as children."""
        served = {home.pool for home in self.doors}
        return [member for name, pool in self.pools.items() if name in served for member in pool]

    def flows_ref(self) -> Any:
        """Give a reference to the flows, which travel once."""
        import ray

        if self._flows_ref is None:
            self._flows_ref = ray.put(self.flows)
        return self._flows_ref


@cache
def host_task(function: Callable[..., Any]) -> Any:
    """Make a Ray task of a function, once; it is tried once, because a node may have effects."""
    import ray

    return ray.remote(num_cpus=1, max_retries=0)(function)


def _shards(
    task: Run, items: Mapping[str, TableReferences], rank: int, count: int, by: str
) -> tuple[list[tuple[int, bool]], list[Any]]:
    """Give what one of `count` ranks is sent of a task's inputs: its own rows where they are dealt as it needs them.

    `by` names the value that the task is shared out by: it is sent whole unless all inputs lie so already.
    """
    shards, refs = list[tuple[int, bool]](), list[Any]()
    lie = {name: count > 1 and len(items[name].refs) == count and items[name].dealt == by for name in task.reads}
    for name in task.reads:
        item, own = items[name], lie[name] and (name != by or all(lie.values()))
        sent = (item.refs[rank],) if own else item.refs
        shards.append((len(sent), own))
        refs += sent
    return shards, refs


def _results(graph: Graph, task: Run) -> Iterator[str]:
    """Name the results of a task that travel: all that leave it but models."""
    nodes = {node.name: node for node in graph.nodes if node.name in task.nodes}
    return (name for name, kind in results_given(task, nodes) if not issubclass(kind, Model))


def _site(graph: Graph, task: Run) -> str:
    return next(str(node.at) for node in graph.nodes if node.name in task.nodes)
