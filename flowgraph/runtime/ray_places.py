"""Places on Ray: an actor for each device of each pool, host nodes as tasks. Only references pass through here."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from flowgraph.evaluate import Observed
from flowgraph.graph import Graph
from flowgraph.keys import Key
from flowgraph.lowering.program import Home, Parts, Run, Sync, Transfer, results_given
from flowgraph.runtime.device import Flows, on_tables, read_source, run_on_host
from flowgraph.runtime.execute import Source
from flowgraph.runtime.hosting import Told
from flowgraph.runtime.ray_session import Session
from flowgraph.runtime.watch import Member, Pending, Watch
from flowgraph.values import Model


@dataclass(frozen=True)
class Rows:
    """References to the tables of a value: of all rows, or of each rank's; and to those of some parts of it."""

    refs: tuple[Any, ...]
    sent: Mapping[Parts, Rows] = field(default_factory=dict["Parts", "Rows"])
    dealt: bool = True  # each rank's tables hold the rows that it would be dealt of the whole


@dataclass(eq=False)
class RayPlaces:
    """Runs tasks on actors and host processes, submits without waiting, and watches over them in `finish`."""

    session: Session
    flows: Flows
    graphs: Sequence[Graph]
    pools: dict[str, list[Member]]
    groups: list[Any]
    scratch: Path
    told: Told = field(default_factory=Told)
    _pending: list[Pending] = field(default_factory=list[Pending])
    _sources: dict[int, tuple[Source, Any]] = field(default_factory=dict[int, tuple[Source, Any]])
    _flows_ref: Any = None

    @property
    def members(self) -> list[Member]:
        """Give the actors of all pools."""
        return [member for pool in self.pools.values() for member in pool]

    def read(self, source: Source, step: int) -> Rows:
        """Get a source's rows of one step, in a host process; the source itself travels once."""
        import ray

        if id(source) not in self._sources:
            self._sources[id(source)] = source, ray.put(source)
        _, ref = self._sources[id(source)]
        return Rows((host_task(read_source).remote(ref, step),))

    def run(
        self, graph: Graph, task: Run, items: Mapping[str, Rows], versions: Mapping[str, int], key: Key
    ) -> Mapping[str, Rows]:
        """Submit a task to every rank of its home, or to a host process; each rank gets its own rows."""
        names, sends = list(_results(graph, task)), task.sends
        said = f"{', '.join(task.nodes)} ({task.role or 'host'}), step {key.step}, {_site(graph, task)}"
        home, which, returns = task.home, self.graphs.index(graph), len(names) + len(sends) + 1
        if home is None:
            shards, refs = _shards(task, items, 0, 1)
            call = host_task(run_on_host).options(num_returns=returns)
            made = [call.remote(self.flows_ref(), which, task, {}, key, shards, *refs)]
            members: Sequence[Member | None] = [None]
        else:
            members, made = self.pools[task.place][: home.layout.data], list[Any]()
            for member in self.pools[task.place][: home.layout.data]:
                shards, refs = _shards(task, items, member.seat.rank, home.layout.data)
                call = member.actor.run.options(num_returns=returns)
                made.append(call.remote(which, task, dict(versions), key, shards, *refs))
        lists = [refs if isinstance(refs, list) else [refs] for refs in made]
        self._pending += [Pending(refs[-1], said, member) for refs, member in zip(lists, members, strict=True)]
        dealt = not any(node.op.regroups for node in graph.nodes if node.name in task.nodes)
        rows = [Rows(tuple(refs[i] for refs in lists), dealt=dealt) for i in range(returns - 1)]
        sent = defaultdict[str, dict[Parts, Rows]](dict)
        for (name, parts), each in zip(sends, rows[len(names) :], strict=True):
            sent[name][parts] = each
        return {name: replace(each, sent=sent[name]) for name, each in zip(names, rows, strict=False)}

    def transfer(self, task: Transfer, item: Rows) -> Rows:
        """Hand on the references: who reads the rows fetches them, or the parts it needs, from where they were made."""
        return item.sent.get(task.parts, item)

    def sync(self, task: Sync, version: int) -> None:
        """Submit a copy of weights: within each process where both homes are, else through the object store."""
        source, target, said = task.source, task.target, f"{task.value}, sync to {task.target}"
        giving, taking = (self.pools[home.pool][: home.layout.data] for home in (source, target))
        if source.pool == target.pool and len(taking) <= len(giving):
            for member in giving:
                self._wait_for(member.actor.sync.remote(source, target, version), said, member)
            return
        given = [member.actor.give.remote(source) for member in giving]
        for ref, member in zip(given[1:], giving[1:], strict=True):
            self._wait_for(ref, said, member)
        for member in taking:
            self._wait_for(member.actor.take.remote(target, given[0], version), said, member)

    def _wait_for(self, ref: Any, said: str, member: Member | None) -> None:
        self._pending.append(Pending(ref, said, member))

    def finish(self) -> Observed:
        """Wait for all that was submitted, and give what was observed; raises what went wrong first."""
        pending, self._pending = self._pending, []
        observed = Observed()
        for result in Watch(self.members, self.session.started).results(pending):
            report = result[-1] if isinstance(result, tuple) else result  # a task without values gives only this
            if isinstance(report, Observed):
                observed.merge(report)
                for name, seconds in report.seconds.items():
                    observed.seconds[name] = max(observed.seconds.get(name, 0.0), seconds)
        return observed

    def apply(self, function: Callable[..., None], items: Sequence[Rows], *rest: Any) -> None:
        """Call a function on a list of tables of items, in a host process; errors show in the next `finish`."""
        counts = [len(item.refs) for item in items]
        refs = [ref for item in items for ref in item.refs]
        self._wait_for(host_task(on_tables).remote(function, counts, rest, *refs), "what is recorded", None)

    def save(self, home: Home, folder: Path) -> None:
        """Write the weights of one home as a folder that transformers loads; every rank of it takes part."""
        for member in self.pools[home.pool][: home.layout.data]:
            self._wait_for(member.actor.save.remote(home, folder.absolute()), f"saving {home.param}", member)
        self.finish()

    def close(self) -> None:
        """End every process that was started, whether it answers or not."""
        import ray
        from ray.util import remove_placement_group

        for member in self.members:
            ray.kill(member.actor)
        # Groups of a Ray that was started here end with it; if it has ended already, they would be waited for.
        for group in self.groups if not self.session.started else ():
            remove_placement_group(group)
        self.session.close()
        for member in self.members:
            member.end()
        shutil.rmtree(self.scratch, ignore_errors=True)

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


def _shards(task: Run, items: Mapping[str, Rows], rank: int, count: int) -> tuple[list[tuple[int, bool]], list[Any]]:
    """Give what one of `count` ranks is sent of a task's inputs: its own rows where they are dealt so, else all."""
    shards, refs = list[tuple[int, bool]](), list[Any]()
    for item in (items[name] for name in task.reads):
        own = count > 1 and len(item.refs) == count and item.dealt
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
