"""The sizes that can be reduced to save memory, and the smallest reductions after which something fits.

Reductions are found by trial: a number is halved until `fits` is true. Not here: what fits, and the error
(`infeasibility`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from flowgraph.cluster.cluster import Cluster
from flowgraph.language.graph import Node, rewrite
from placements.workload.lengths import LengthDistribution

if TYPE_CHECKING:
    from placements.workload.planning_problem import PlanningProblem

# What may be made smaller, and the minimum that still trains: first what changes nothing but memory and time, then what
# changes the results. Each as (free, settings of nodes, fields of the problem).
HALVED: tuple[tuple[bool, Mapping[str, int], Mapping[str, int]], ...] = (
    (True, {"micro_batch_tokens": 1}, {"sample_rows": 1, "forward_tokens": 1}),
    (False, {"n": 2, "max_tokens": 16}, {"prompts": 1}),
)


@dataclass(frozen=True)
class MemoryKnob:
    """A number that can be halved: `values` are the current value and its successive halves.

    `free` is True if results stay the same. `name` is a setting of the `role` in the plan or of the `node`; if both are
    "", it is a field of the problem.
    """

    name: str
    values: tuple[int, ...]
    free: bool = True
    role: str = ""
    node: str = ""


@dataclass(frozen=True)
class ReducedProblem:
    """A problem, the micro-batch in tokens of each role of a plan, and the changes that were made, as texts."""

    problem: PlanningProblem
    micro_batches: Mapping[str, int] = field(default_factory=dict[str, int])
    changes: tuple[str, ...] = ()

    def changed(self, knob: MemoryKnob, value: int) -> ReducedProblem:
        """Return a copy with `value` in place of the number that `knob` describes; `changes` has a text for it."""
        update: dict[str, Any] = {knob.name: value}
        if knob.role:
            changes = (*self.changes, f"{knob.name}={value} of {knob.role} in the plan")
            return ReducedProblem(self.problem, {**self.micro_batches, knob.role: value}, changes)
        if not knob.node:
            changes = (*self.changes, f"{'batch' if knob.name == 'prompts' else knob.name}={value}")
            return ReducedProblem(replace(self.problem, **update), self.micro_batches, changes)

        def with_value(node: Node) -> Node:
            return replace(node, settings=node.settings.model_copy(update=update)) if node.name == knob.node else node

        graph, watched = self.problem.graph, self.problem.watched
        watched = None if watched is None else rewrite(watched, with_value)
        problem = replace(self.problem, graph=rewrite(graph, with_value), watched=watched)
        return ReducedProblem(problem, self.micro_batches, (*self.changes, f"{knob.node}.{knob.name}={value}"))


Fits = Callable[[ReducedProblem], bool]
"""A function that tells whether a reduced problem fits."""


def smallest_changes(start: ReducedProblem, fits: Fits) -> tuple[str, ...]:
    """Return changes that each make `fits` true on their own, as texts such as `batch=64`; () if none does.

    `fits` must be False for `start`. Every number that can be halved is tried alone, and halved as few times as
    possible. If no number alone helps, the result has at most one text, of a joint change: of numbers that leave
    results unchanged and, if these are not enough, of the batch too.
    """
    knobs = [MemoryKnob("micro_batch_tokens", _halvings(n, 1), role=role) for role, n in start.micro_batches.items()]
    for free, settings, fields in HALVED:
        for node in start.problem.running.nodes:
            for name, minimum in settings.items():
                value = getattr(node.settings, name, None)
                if isinstance(value, int) and value > minimum:
                    knobs.append(MemoryKnob(name, _halvings(value, minimum), free, node=node.name))
        for name, minimum in fields.items():
            knobs.append(MemoryKnob(name, _halvings(getattr(start.problem, name), minimum), free))
    reduced = [_halved(start, [knob], fits) for knob in knobs]
    if not any(reduced):
        unchanging = [knob for knob in knobs if knob.free]
        batch = [knob for knob in knobs if knob.name == "prompts"]
        reduced = [_halved(start, unchanging, fits) or _halved(start, [*unchanging, *batch], fits)]
    return tuple(" and ".join(one.changes) for one in reduced if one is not None)


def _halved(start: ReducedProblem, knobs: Sequence[MemoryKnob], fits: Fits) -> ReducedProblem | None:
    def changed(halvings: Sequence[int]) -> ReducedProblem:
        reduced = start
        for knob, times in zip(knobs, halvings, strict=True):
            reduced = reduced.changed(knob, knob.values[times]) if times else reduced
        return reduced

    maximum = [len(knob.values) - 1 for knob in knobs]
    if not knobs or not fits(changed(maximum)):
        return None
    halvings = [0] * len(knobs)
    while not fits(changed(halvings)):
        halvings = [min(times + 1, limit) for times, limit in zip(halvings, maximum, strict=True)]
    for index in range(len(knobs)):
        while halvings[index]:
            fewer = [*halvings[:index], halvings[index] - 1, *halvings[index + 1 :]]
            if not fits(changed(fewer)):
                break
            halvings = fewer
    return changed(halvings)


def _halvings(value: int, minimum: int) -> tuple[int, ...]:
    values = [value]
    while values[-1] // 2 >= minimum:
        values.append(values[-1] // 2)
    return tuple(values)


def fewest(fits: Callable[[int], bool], minimum: int, maximum: int) -> int | None:
    """Return the smallest number from `minimum` to `maximum` for which `fits` is true; None if there is none.

    Only some numbers are tried: `fits` must stay true for all larger numbers.

    >>> fewest(lambda machines: machines >= 3, 2, 32), fewest(lambda machines: False, 2, 32)
    (3, None)
    """
    below, step = minimum - 1, 1
    above = minimum
    while not fits(above):
        if above >= maximum:
            return None
        below, step = above, 2 * step
        above = min(above + step, maximum)
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (below, middle) if fits(middle) else (middle, above)
    return above


def with_machines(cluster: Cluster, machines: int) -> Cluster:
    """Return a cluster of `machines` machines: the first ones of `cluster`, then renamed copies if it has too few.

    >>> from flowgraph.cluster.cluster import Device, Machine as Node
    >>> one = Node(name="a", devices=(Device(kind="gpu", memory_bytes=1),), host_memory_bytes=1, cores=1)
    >>> [node.name for node in with_machines(Cluster(nodes=(one,)), 3).nodes]
    ['a', 'a.2', 'a.3']
    """
    nodes, names = [*cluster.nodes], {node.name for node in cluster.nodes}
    for place in range(len(nodes), machines):
        node = cluster.nodes[place % len(cluster.nodes)]
        copy = place // len(cluster.nodes) + 1
        name = next(name for number in count(copy) if (name := f"{node.name}.{number}") not in names)
        names.add(name)
        nodes.append(node.model_copy(update={"name": name}))
    return Cluster(nodes=tuple(nodes[:machines]))


def shortened(problem: PlanningProblem, tokens: int) -> PlanningProblem:
    """Return a copy of the problem whose responses have at most `tokens` tokens; longer responses are cut to `tokens`.

    If the problem has no distribution of response lengths, all responses are taken to be as long as the longest.
    """
    longest = max((load.response.most for load in problem.loads), default=0.0)
    response = problem.response or LengthDistribution.fixed(longest)
    return replace(problem, response=LengthDistribution(tuple(min(point, float(tokens)) for point in response.points)))
