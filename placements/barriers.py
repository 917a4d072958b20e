"""Where every pool of a step waits for every other, whatever the placement: what makes a bound on played seconds.

A step begins with syncs of weights, and its loads are in stages, with work of the host between them. Between two of
these there is a barrier if everything after it depends, through the graph, on everything before it. Then no pool starts
on what is after before all pools have ended what is before, so a step takes at least the sum, over the spans between
barriers, of the busiest pool there.
Stages without a barrier between them are one span: a pool may be done with the first long before another is. What lies
between steps takes a share of each, so that a span takes that share longer.

Where steps overlap (staleness), spans are only those of the circle that each new version of the weights goes round:
the sync, what samples, what reads its rows, the update. `tokens` steps share it, and no circle of waits takes longer
than `tokens` steps. Source: the rate of a marked graph, R. Reiter, Scheduling Parallel Computations, JACM 15(4), 1968.

Not here: what one option takes in each span (`blocks`), and the search (`exact`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import fsum

from flowgraph.analysis.roles import roles
from flowgraph.language.graph import Node, reachable
from placements.loads import Load
from placements.setting import Setting

Needs = Mapping[str, AbstractSet[str]]
"""By item, a load's node or a sync's target: all items that it depends on."""


@dataclass(frozen=True)
class Barriers:
    """The spans of a step between its barriers.

    `of_stage` is the span of each stage; those of roles that `beside` lists, by place, may fall into no span. Syncs to
    `syncs` fall into the first span; each step has the share `synced` of theirs. The host works for so many seconds in
    each span. `share` is what a step takes for each second of its tasks.
    """

    host_s: tuple[float, ...]
    of_stage: tuple[int, ...]
    beside: Mapping[int, tuple[int, ...]]
    syncs: tuple[str, ...]
    synced: float
    tokens: int
    share: float

    @property
    def spans(self) -> int:
        """Return the number of spans."""
        return len(self.host_s)

    def spans_s(self, place: int, stages_s: Sequence[float]) -> list[float]:
        """Return the seconds in each span of a role that takes so many in each stage, what falls into none left out."""
        found = [0.0] * self.spans
        for stage, span in enumerate(self.of_stage):
            found[span] += 0.0 if stage in self.beside.get(place, ()) else stages_s[stage]
        return found


def barriers_of(setting: Setting) -> Barriers:
    """Return the barriers of a setting's step, the same for all its placements."""
    needs = _needs(setting)
    if setting.overlapped == 1:
        host_s = _host_seconds(setting)
        loads = [load for load in setting.loads if load.node in needs]
        return _barriers(setting, loads, list(setting.synced), needs, host_s)
    circles = [(_circle(setting, needs, *ends), ends[0]) for ends in setting.synced.items()]
    loads, target = max(circles, key=lambda circle: len(circle[0]), default=(list[Load](), ""))
    return _barriers(setting, loads, [target] if loads else [], needs, {})


def _host_seconds(setting: Setting) -> dict[str, float]:
    """Return by node the seconds of what runs on the host, calls left out."""
    of_roles = {name for role in roles(setting.running) for name in role.nodes}
    nodes = [node.name for node in setting.running.nodes if node.name not in of_roles]
    factor = setting.host_factor
    found = {name: factor * (setting.host_work.node_seconds(name, setting.host).total_s or 0.0) for name in nodes}
    return {name: seconds for name, seconds in found.items() if seconds > 0}


def _needs(setting: Setting) -> dict[str, set[str]]:
    """Return of each load's node the nodes that it depends on; roles that pass no rows have no node."""
    names = {load.node for load in setting.loads}
    return {
        node.name: {each.name for each in reachable(node.edges()) if isinstance(each, Node)}
        for node in setting.running.nodes
        if node.name in names
    }


def _circle(setting: Setting, needs: Needs, target: str, source: str) -> list[Load]:
    """Return the loads from sampling with synced weights to the last update, which makes the next ones."""
    updates = [load.node for load in setting.loads if load.role.name == source and load.phase == "update"]
    sampled = {load.node for load in setting.loads if load.role.name == target}
    inside = {updates[-1], *needs[updates[-1]]} if updates else set[str]()
    return [
        load for load in setting.loads if load.node in inside and (load.node in sampled or needs[load.node] & sampled)
    ]


def _barriers(
    setting: Setting, loads: Collection[Load], targets: Collection[str], needs: Needs, host_s: Mapping[str, float]
) -> Barriers:
    """Return the barriers between these loads, the syncs to these roles, and what runs on the host."""
    syncs = [target for target in targets if _is_first(setting, target, needs)]
    levels = {_sync(target): 0 for target in syncs} | {load.node: 2 * load.stage + 2 for load in loads}
    after = {name: {*own, *_synced_before(setting, syncs, name, own)} for name, own in needs.items()}
    count = 2 * setting.stages + 2
    for node, before in _host_needs(setting, host_s).items():
        # Work of the host that may go on past a barrier is left out.
        level = max((levels[each] for each in before if each in levels), default=0) // 2 * 2 + 1
        more = {**levels, node: level}, {**after, node: {*before, *_synced_before(setting, syncs, node, before)}}
        if len(set(_spans(*more, count))) >= len(set(_spans(levels, after, count))):
            levels, after = more
    spans = _spans(levels, after, count)
    own_s = [
        fsum(host_s.get(name, 0.0) for name, at in levels.items() if spans[at] == span) for span in range(spans[-1] + 1)
    ]
    return Barriers(
        host_s=tuple(own_s),
        of_stage=spans[2::2],
        beside=_beside(setting, {load.node for load in loads}),
        syncs=tuple(syncs),
        synced=1 / max(1, setting.lag if setting.overlapped > 1 else setting.lag + 1),
        tokens=setting.overlapped + _reordered(setting, loads, spans[2::2]),
        share=1.0 if setting.overlapped > 1 else 1 + setting.host.driver_share,
    )


def _host_needs(setting: Setting, host_s: Mapping[str, float]) -> dict[str, set[str]]:
    nodes = [node for node in setting.running.nodes if node.name in host_s]
    return {node.name: {each.name for each in reachable(node.edges()) if isinstance(each, Node)} for node in nodes}


def _sync(target: str) -> str:
    return f"sync {target}"


def _first_sampled(setting: Setting, target: str) -> set[str]:
    """Return the nodes that sample first with a target's weights."""
    own = [load for load in setting.loads if load.role.name == target]
    return {load.node for load in own if load.stage == own[0].stage}


def _is_first(setting: Setting, target: str, needs: Needs) -> bool:
    """Return whether a step begins with a sync to a role: it samples before its weights are trained."""
    updates = {
        load.node for load in setting.loads if load.role.name == setting.synced[target] and load.phase == "update"
    }
    return not any(needs[node] & updates for node in _first_sampled(setting, target) & needs.keys())


def _synced_before(setting: Setting, syncs: Collection[str], node: str, own: AbstractSet[str]) -> set[str]:
    return {_sync(target) for target in syncs if _first_sampled(setting, target) & {node, *own}}


def _spans(levels: Mapping[str, int], needs: Needs, count: int) -> tuple[int, ...]:
    """Return the span of each of so many levels: a barrier is where all items above need all items up to it.

    >>> _spans({"draw": 0, "read": 1, "train": 2}, {"read": {"draw"}, "train": {"read", "draw"}}, 3)
    (0, 1, 2)
    >>> _spans({"draw": 0, "read": 1, "train": 2}, {"read": {"draw"}, "train": {"draw"}}, 3)
    (0, 1, 1)
    """
    found, begin = [0], 0
    for level in range(1, count):
        before = {item for item, own in levels.items() if own < level}
        after = [item for item, own in levels.items() if own >= level]
        here = any(begin <= own < level for own in levels.values())
        is_barrier = here and bool(after) and all(before <= needs[item] for item in after)
        begin = level if is_barrier else begin
        found.append(found[-1] + is_barrier)
    return tuple(found)


def _beside(setting: Setting, inside: AbstractSet[str]) -> dict[int, tuple[int, ...]]:
    """Return by place of a role the stages in which it has a load that is not among these."""
    found = dict[int, tuple[int, ...]]()
    for place, role in enumerate(setting.roles):
        stages = {load.stage for load in setting.loads_of(role) if load.node not in inside}
        if stages:
            found[place] = tuple(sorted(stages))
    return found


def _reordered(setting: Setting, loads: Collection[Load], of_stage: Sequence[int]) -> int:
    """Return by how many steps a circle may have more tokens, because pools take what was sampled longest ago first.

    In a span of several stages a pool may have rows of two steps; beside sampling, of as many as may be under way.
    """
    if setting.overlapped == 1:
        return 0
    more = 0
    for span in set(of_stage):
        own = [load for load in loads if of_stage[load.stage] == span]
        if len({load.role.name in setting.synced for load in own}) > 1:
            more += min(setting.lag, 2)
        elif setting.lag > 1 and len({load.stage for load in own}) > 1:
            more += 1
    return more
