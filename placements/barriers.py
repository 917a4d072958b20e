"""Where every pool of a step waits for every other, whatever the placement: what makes a bound on played seconds.

Loads of a step are in stages, syncs of weights come after them. Between two stages there is a barrier if everything
after it depends, through the graph, on everything before it. Then no pool starts on what is after before all pools have
ended what is before, so the step takes at least the sum, over the spans between barriers, of the busiest pool there.
Stages without a barrier between them are one span: a pool may be done with the first long before another is.

Where steps overlap (staleness), spans are only those of the circle that each new version of the weights goes round:
what draws, what reads its rows, the update, the sync. `tokens` steps share it, and no circle of waits takes longer than
`tokens` steps. Source: the rate of a marked graph, R. Reiter, Scheduling Parallel Computations, JACM 15(4), 1968.

Host work lies between what reads rows and the updates and takes a share of all models' seconds, so that spans of models
take that share longer. Not here: what one option takes in each span (`blocks`), and the search (`exact`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from flowgraph.graph import Node, reachable
from placements.loads import Load
from placements.setting import Setting

Needs = Mapping[str, AbstractSet[str]]
"""By item, a load's node or a sync's target: all items that it depends on."""


@dataclass(frozen=True)
class Barriers:
    """The spans of a step between its barriers.

    `spans` is the number of them, `of_stage` the span of each stage. `beside` are stages of a role, by its place, whose
    seconds may fall into no span. Syncs fall into the span `syncs`, and as many as there are bring `synced` of their
    seconds into each step.
    """

    spans: int
    of_stage: tuple[int, ...]
    beside: Mapping[int, tuple[int, ...]]
    syncs: Mapping[str, int]
    synced: float
    tokens: int
    host_share: float

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
        syncs = {target: _needs_of_sync(setting, needs, source) for target, source in setting.synced.items()}
        return _barriers(setting, [load for load in setting.loads if load.node in needs], syncs, needs)
    circles = [_circle(setting, needs, target, source) for target, source in setting.synced.items()]
    loads, syncs = max(circles, key=lambda circle: len(circle[0]), default=(list[Load](), {}))
    return _barriers(setting, loads, syncs, needs)


def _needs(setting: Setting) -> dict[str, set[str]]:
    """Return of each load's node the nodes of loads that it depends on; roles that pass no rows have no node."""
    names = {load.node for load in setting.loads}
    nodes = [node for node in setting.running.nodes if node.name in names]
    return {
        node.name: {each.name for each in reachable(node.edges()) if isinstance(each, Node)} & names for node in nodes
    }


def _needs_of_sync(setting: Setting, needs: Needs, source: str) -> set[str]:
    """Return what a sync depends on: its source's last update, and what that depends on."""
    update = _last_update(setting, source)
    return {update, *needs.get(update, ())} if update else set()


def _last_update(setting: Setting, role: str) -> str:
    updates = [load.node for load in setting.loads if load.role.name == role and load.phase == "update"]
    return updates[-1] if updates else ""


def _circle(setting: Setting, needs: Needs, target: str, source: str) -> tuple[list[Load], dict[str, set[str]]]:
    """Return the loads from drawing with synced weights to the update that makes the next ones, and their sync."""
    before = _needs_of_sync(setting, needs, source)
    drawn = {load.node for load in setting.loads if load.role.name == target}
    found = [
        load for load in setting.loads if load.node in before and (load.node in drawn or needs[load.node] & drawn)
    ]
    return (found, {target: before}) if found else ([], {})


def _barriers(
    setting: Setting, loads: Collection[Load], syncs: Mapping[str, AbstractSet[str]], needs: Needs
) -> Barriers:
    levels = {load.node: load.stage for load in loads} | {f"sync {target}": setting.stages for target in syncs}
    after = {**needs, **{f"sync {target}": before for target, before in syncs.items()}}
    spans = _spans(levels, after, setting.stages + 1)
    inside = {load.node for load in loads}
    return Barriers(
        spans=spans[-1] + 1,
        of_stage=spans[:-1],
        beside=_beside(setting, inside),
        syncs={target: spans[-1] for target in syncs},
        synced=1 / max(1, setting.lag) if setting.overlapped > 1 else 1.0,
        tokens=setting.overlapped + _reordered(setting, loads, lambda load: spans[load.stage]),
        host_share=setting.host.other_share,
    )


def _spans(levels: Mapping[str, int], needs: Needs, count: int) -> tuple[int, ...]:
    """Return the span of each of so many levels: a barrier is where all items above need all items up to it.

    >>> _spans({"draw": 0, "read": 1, "train": 2}, {"read": {"draw"}, "train": {"read", "draw"}}, 3)
    (0, 1, 2)
    >>> _spans({"draw": 0, "read": 1, "train": 2}, {"read": {"draw"}, "train": {"draw"}}, 3)
    (0, 1, 1)
    """
    found = [0]
    for level in range(1, count):
        before = {item for item, own in levels.items() if own < level}
        after = [item for item, own in levels.items() if own >= level]
        found.append(found[-1] + (bool(before) and bool(after) and all(before <= needs[item] for item in after)))
    return tuple(found)


def _beside(setting: Setting, inside: AbstractSet[str]) -> dict[int, tuple[int, ...]]:
    """Return by place of a role the stages in which it has a load that is not among these."""
    found = dict[int, tuple[int, ...]]()
    for place, role in enumerate(setting.roles):
        stages = {load.stage for load in setting.loads_of(role) if load.node not in inside}
        if stages:
            found[place] = tuple(sorted(stages))
    return found


def _reordered(setting: Setting, loads: Collection[Load], span_of: Callable[[Load], int]) -> int:
    """Count the steps by which pools may go round a circle later than its data, for taking older rows first.

    In a span of several stages, or of drawing beside other work, a pool may take a later step's load first.
    """
    if setting.overlapped == 1:
        return 0

    def late(own: list[Load]) -> Iterator[int]:
        drawn = {load.role.name in setting.synced for load in own}
        yield min(setting.lag, 2) if len(drawn) > 1 else int(setting.lag > 1 and len({each.stage for each in own}) > 1)

    spans = {span_of(load) for load in loads}
    return sum(sum(late([load for load in loads if span_of(load) == span])) for span in spans)
