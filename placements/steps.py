"""A placed step as tasks and what they wait for: models at work, host work between them, syncs of weights.

Not here: how long each takes (`costs`), and how the tasks play out (`timeline`, `cycles`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flowgraph.graph import Graph, Node, reachable
from flowgraph.plan import Timed, Waits
from placements.constants import Constants, constants
from placements.loads import Load
from placements.seconds import Seconds, added

HOST: Final = "host"


@dataclass(frozen=True)
class HostConstants(Constants):
    """What is done beside models: `other_share` of the models' seconds, and how much sharing a pool slows training."""

    other_share: float
    slowed_share: float


def host_constants(moved: Mapping[str, float] | None = None) -> HostConstants:
    """Give the constants of host work, those of `moved` in place of the shipped ones."""
    return constants(HostConstants, HOST).moved(moved or {})


@dataclass(frozen=True)
class Work:
    """A load with the pool that does it and how long that takes."""

    load: Load
    pool: str
    seconds: Seconds


@dataclass(frozen=True)
class Refresh:
    """Trained weights on their way to the role that draws with them: `pools` are both, or the one that both share."""

    source: str
    target: str
    pools: tuple[str, ...]
    seconds: Seconds
    lag: int = 0


def tasks_of(works: Sequence[Work], refreshes: Sequence[Refresh], host: HostConstants) -> tuple[Timed, ...]:
    """Give the tasks of a step in the order of each pool: models by stage, host work before the updates, syncs last.

    Where rows are drawn ahead, those drawn longest ago come first, since updates wait for them. A sync that is not made
    in every step counts with its part of one.
    """
    late = shifts(works, refreshes)
    ordered = sorted(works, key=lambda each: (-late[each.load.node], each.load.stage, each.load.phase == "update"))
    before = [_task(each) for each in ordered if each.load.phase != "update"]
    updates = [_task(each) for each in ordered if each.load.phase == "update"]
    other = added(each.seconds for each in works).total_s
    waiting = Timed(
        name=HOST, kind=HOST, pools=(HOST,), parts={HOST: None if other is None else other * host.other_share}
    )
    share = 1 / synced_every(works, refreshes)
    syncs = [
        Timed(
            name=sync_name(each),
            kind="sync",
            role=each.target,
            pools=each.pools,
            parts=dict(each.seconds.times(share).parts),
        )
        for each in refreshes
    ]
    return (*before, waiting, *updates, *syncs)


def sync_name(refresh: Refresh) -> str:
    """Name a sync by the roles on both sides."""
    return f"{refresh.source} to {refresh.target}"


def _task(work: Work) -> Timed:
    load = work.load
    return Timed(
        name=load.node, kind=load.phase, role=load.role.name, pools=(work.pool,), parts=dict(work.seconds.parts)
    )


def shifts(works: Sequence[Work], refreshes: Sequence[Refresh]) -> dict[str, int]:
    """Give by task how many steps ago the rows that it works on were drawn, within what the weights may lag.

    Without a lag all work on the rows of their own step, one after another. With one, what draws is a step ahead of the
    rest, and so is what comes before it; with more, pools that only read rows have a step of their own between drawing
    and updates.
    """
    lag, drawn = min((each.lag for each in refreshes), default=0), {each.target for each in refreshes}
    last = max((each.load.stage for each in works if each.load.role.name in drawn), default=0)
    ahead = {each.load.node for each in works if each.load.role.name in drawn or _precedes(each.load, last)}
    after = [each for each in works if each.load.node not in ahead]
    trained = {each.pool for each in works if each.load.phase == "update"}
    # What reads rows by what a trained model has read of them goes with it.
    first = min((o.load.stage for o in after if o.pool in trained and o.load.phase != "update"), default=len(works))
    reading = {each.load.node for each in after if each.pool not in trained and each.load.stage <= first}
    late = min(lag, 2 if reading else 1)
    found = {each.load.node: 0 if each.load.node in ahead else late for each in works}
    return found | dict.fromkeys(reading, min(lag, 1)) | {HOST: late}


def _precedes(load: Load, stage: int) -> bool:
    return load.phase != "update" and load.stage < stage


def synced_every(works: Sequence[Work], refreshes: Sequence[Refresh]) -> int:
    """Give after how many updates weights are synced: as seldom as their lag lets them, rows drawn ahead counted."""
    lag = min((each.lag for each in refreshes), default=0)
    return lag - max(shifts(works, refreshes).values()) + 1


def waits_of(graph: Graph, works: Sequence[Work], refreshes: Sequence[Refresh]) -> tuple[Waits, ...]:
    """Give what waits for what: rows within a step or from one drawn before, weights from one step to the next.

    A role that trains is read in its own pool after its update; what draws waits for the sync after the last one.
    """
    return (*_rows(graph, works, shifts(works, refreshes)), *_weights(works, refreshes))


def _rows(graph: Graph, works: Sequence[Work], late: Mapping[str, int]) -> Iterator[Waits]:
    names = {each.load.node: each.load for each in works}
    for node in graph.nodes:
        if node.name in names:
            for source in reachable(node.edges()):
                if isinstance(source, Node) and source.name in names:
                    yield Waits(before=source.name, after=node.name, delay=late[node.name] - late[source.name])
    for load in names.values():
        before, after = (HOST, load.node) if load.phase == "update" else (load.node, HOST)
        yield Waits(before=before, after=after, delay=late[after] - late[before])
    if all(load.phase == "update" for load in names.values()):  # the next step's rows are read once this one's are used
        yield from (Waits(before=load.node, after=HOST, delay=1) for load in names.values())


def _weights(works: Sequence[Work], refreshes: Sequence[Refresh]) -> Iterator[Waits]:
    last = {each.load.role.name: each.load.node for each in works if each.load.phase == "update"}
    for each in works:
        update = last.get(each.load.role.name)
        if update is not None and update != each.load.node:
            yield Waits(before=update, after=each.load.node, delay=1)
    for refresh in refreshes:
        name = sync_name(refresh)
        yield Waits(before=last[refresh.source], after=name)
        readers = (each.load.node for each in works if each.load.role.name == refresh.target)
        yield from (Waits(before=name, after=reader, delay=1) for reader in readers)
