"""The barriers of a step, at which all pools wait for each other in any placement: a bound of simulated seconds.

A step begins with syncs of weights; its loads are in stages, with host work between them. There is a barrier between
two of these if everything after it depends, through the graph, on everything before it. No pool starts work after a
barrier until all pools have ended the work before it, so a step takes at least the sum, over the spans between
barriers, of the busiest pool's seconds.
Stages without a barrier between them are one span: a pool may end the first long before another does. If groups may be
read while others are sampled (`streamed`), there is none between sampling and the nodes that read it before an update.
The driver's pause between steps is a share of a step, so each span takes that share longer.

If steps overlap (staleness), spans are only those of the cycle of each new version of the weights: the sync, sampling,
the nodes that read its rows, the update. `tokens` steps share it, and no cycle of waits takes longer than `tokens`
steps. Source: the rate of a marked graph, R. Reiter, Scheduling Parallel Computations, JACM 15(4), 1968.

Not here: the seconds of one option in each span (`search.pool_options`), and the search (`solver.exact`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import fsum

from flowgraph.analysis.roles import roles
from flowgraph.language.graph import Node, reachable
from placements.time.host_work import host_work_of
from placements.workload.node_workload import NodeWorkload
from placements.workload.planning_problem import PlanningProblem

Needs = Mapping[str, AbstractSet[str]]
"""By item, a load's node or a sync's target: all items that it depends on."""


@dataclass(frozen=True)
class StepBarriers:
    """The spans of a step between its barriers.

    `host_s` has the host's seconds in each span, and `of_stage` the span of each stage. `outside` has for each role, by
    index, the stages whose loads may fall into no span. `syncs` are the roles that get weights in the first span; each
    step has the share `synced` of these syncs. `tokens` is the number of steps that share the spans. `share` is the
    seconds of a step for each second of its tasks.
    """

    host_s: tuple[float, ...]
    of_stage: tuple[int, ...]
    outside: Mapping[int, tuple[int, ...]]
    syncs: tuple[str, ...]
    synced: float
    tokens: int
    share: float

    @property
    def spans(self) -> int:
        """Return the number of spans."""
        return len(self.host_s)

    def spans_s(self, place: int, stages_s: Sequence[float]) -> list[float]:
        """Return, for each span, the seconds of the role with index `place`, given its seconds in each stage.

        Stages in `outside` of the role are not counted.
        """
        seconds = [0.0] * self.spans
        for stage, span in enumerate(self.of_stage):
            seconds[span] += 0.0 if stage in self.outside.get(place, ()) else stages_s[stage]
        return seconds


def barriers_of(problem: PlanningProblem) -> StepBarriers:
    """Return the spans of a step between its barriers, at which all pools wait for each other in any placement.

    They follow from the flow's graph and the problem's settings; roles need not be placed. Unknown seconds of host work
    count as 0. If steps may overlap (`problem.overlapped` above 1), host work is left out, and the spans are only those
    from sampling with new weights to the update that makes the next ones, for the sampling role with the most nodes on
    this way. Raises FlowTypeError as `problem.loads` does.
    """
    nodes = {load.node for load in problem.loads}
    needs = {node.name: _dependencies(node) for node in problem.running.nodes if node.name in nodes}
    if problem.overlapped > 1:
        circle, ends = list[NodeWorkload](), list[str]()
        for target, source in problem.synced.items():
            # From sampling with synced weights to the last update, which makes the next ones.
            updates = [load.node for load in problem.loads if load.role.name == source and load.phase == "update"]
            sampled = {load.node for load in problem.loads if load.role.name == target}
            before = {updates[-1], *needs[updates[-1]]} if updates else set[str]()
            inside = [load for load in problem.loads if load.node in before]
            loads = [load for load in inside if load.node in sampled or needs[load.node] & sampled]
            if len(loads) > len(circle):
                circle, ends = loads, [target]
        return _barriers(problem, circle, ends, needs, {})
    of_roles = {name for role in roles(problem.running) for name in role.nodes}
    host_s = dict[str, float]()
    for node in problem.running.nodes:
        if node.name not in of_roles:
            seconds = host_work_of(problem).node_seconds(node.name, problem.host).total_s or 0.0
            host_s[node.name] = problem.host_factor * seconds
    timed_s = {name: seconds for name, seconds in host_s.items() if seconds > 0}
    return _barriers(problem, [load for load in problem.loads if load.node in needs], [*problem.synced], needs, timed_s)


def _dependencies(node: Node) -> set[str]:
    return {source.name for source in reachable(node.edges()) if isinstance(source, Node)}


def _barriers(
    problem: PlanningProblem,
    loads: Collection[NodeWorkload],
    targets: Collection[str],
    needs: Needs,
    host_s: Mapping[str, float],
) -> StepBarriers:
    first_sampled = dict[str, set[str]]()  # by role, the nodes that sample first with its weights
    syncs = list[str]()  # those with which a step begins, as the role samples before its weights are trained
    for target in targets:
        sampling = [load for load in problem.loads if load.role.name == target]
        first_sampled[target] = {load.node for load in sampling if load.stage == sampling[0].stage}
        training = (load for load in problem.loads if load.role.name == problem.synced[target])
        updates = {load.node for load in training if load.phase == "update"}
        if not any(needs[node] & updates for node in first_sampled[target] & needs.keys()):
            syncs.append(target)

    def with_syncs(node: str, before: AbstractSet[str]) -> set[str]:
        return {*before, *(_sync(target) for target in syncs if first_sampled[target] & {node, *before})}

    levels = {_sync(target): 0 for target in syncs} | {load.node: 2 * load.stage + 2 for load in loads}
    after = {name: with_syncs(name, before) for name, before in needs.items()}
    count = 2 * problem.stages + 2
    early = _read_early(problem, [levels[load.node] for load in loads if load.phase != "update"])
    for node in problem.running.nodes:
        if node.name in host_s:
            # Host work that may continue past a barrier is left out.
            before = _dependencies(node)
            level = max((levels[name] for name in before if name in levels), default=0) // 2 * 2 + 1
            with_node = {**levels, node.name: level}, {**after, node.name: with_syncs(node.name, before)}
            if len(set(_spans(*with_node, count, early))) >= len(set(_spans(levels, after, count, early))):
                levels, after = with_node
    spans = _spans(levels, after, count, early)
    nodes = {load.node for load in loads}
    loads_of = ((place, problem.loads_of(role)) for place, role in enumerate(problem.roles))
    stages = {place: {load.stage for load in theirs if load.node not in nodes} for place, theirs in loads_of}
    overlaps = problem.overlapped > 1
    return StepBarriers(
        host_s=tuple(
            fsum(host_s.get(name, 0.0) for name, level in levels.items() if spans[level] == span)
            for span in range(spans[-1] + 1)
        ),
        of_stage=spans[2::2],
        outside={place: tuple(sorted(of_role)) for place, of_role in stages.items() if of_role},
        syncs=tuple(syncs),
        synced=1 / max(1, problem.lag if overlaps else problem.lag + 1),
        tokens=problem.overlapped + (_reordered(problem, loads, spans[2::2]) if overlaps else 0),
        share=1.0 if overlaps else 1 + problem.host.driver_share,
    )


def _read_early(problem: PlanningProblem, reading: Sequence[int]) -> range:
    """Return the levels of work on groups that may begin before all are sampled, up to the last pass that reads."""
    return range(min(reading, default=0) + 1, max(reading, default=0) + 1) if problem.streamed else range(0)


def _sync(target: str) -> str:
    return f"sync {target}"


def _spans(levels: Mapping[str, int], needs: Needs, count: int, early: Collection[int] = ()) -> tuple[int, ...]:
    """Return the span of each of `count` levels: at a barrier, all items above need all items up to it.

    No barrier is before a level in `early`, where work begins before all of what it needs has ended.

    >>> _spans({"sample": 0, "read": 1, "train": 2}, {"read": {"sample"}, "train": {"read", "sample"}}, 3)
    (0, 1, 2)
    >>> _spans({"sample": 0, "read": 1, "train": 2}, {"read": {"sample"}, "train": {"sample"}}, 3)
    (0, 1, 1)
    """
    spans, begin = [0], 0
    for level in range(1, count):
        before = {item for item, item_level in levels.items() if item_level < level}
        after = [item for item, item_level in levels.items() if item_level >= level]
        filled = any(begin <= item_level < level for item_level in levels.values())
        is_barrier = filled and level not in early and bool(after) and all(before <= needs[item] for item in after)
        begin = level if is_barrier else begin
        spans.append(spans[-1] + is_barrier)
    return tuple(spans)


def _reordered(problem: PlanningProblem, loads: Collection[NodeWorkload], of_stage: Sequence[int]) -> int:
    """Return how many more steps share the spans because a pool may have rows of several steps in one span."""
    tokens = 0
    for span in set(of_stage):
        inside = [load for load in loads if of_stage[load.stage] == span]
        if len({load.role.name in problem.synced for load in inside}) > 1:
            tokens += problem.lag
        elif problem.lag > 1 and len({load.stage for load in inside}) > 1:
            tokens += 1
    return tokens
