"""What can be made smaller so that less memory is held, and the smallest changes after which something fits.

A change is found by trying it: a number is halved until `fits` says yes. Not here: what fits, and the error (`short`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from flowgraph.cluster.cluster import Cluster
from flowgraph.language.graph import Graph, Node, rewrite
from placements.lengths import Lengths

if TYPE_CHECKING:
    from placements.setting import Setting

# What may be made smaller, and the least that still trains: first what changes nothing but memory and time, then what
# changes the results. Each as (free, settings of nodes, fields of the setting).
HALVED: tuple[tuple[bool, Mapping[str, int], Mapping[str, int]], ...] = (
    (True, {"micro_batch_tokens": 1}, {"sample_rows": 1, "forward_tokens": 1}),
    (False, {"n": 2, "max_tokens": 16}, {"prompts": 1}),
)
MOST_TIMES = 32  # as many machines as there are


@dataclass(frozen=True)
class Changed:
    """A setting, the tokens that each role of a plan lets through at once, and the changes that led there."""

    setting: Setting
    micro_batches: Mapping[str, int] = field(default_factory=dict[str, int])
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Knob:
    """One number that can be halved, down to `least`; `free` if results stay the same."""

    name: str
    value: int
    least: int
    free: bool
    turned: Callable[[Changed, int], Changed]


Fits = Callable[[Changed], bool]


def smallest_changes(start: Changed, fits: Fits) -> tuple[str, ...]:
    """Return the single changes after which all fits; else one joint change, if any does.

    A joint change is of those that leave results as they are, or of the batch too.
    """
    knobs = [*_knobs(start)]
    found = [_halved(start, [knob], fits) for knob in knobs]
    if not any(found):
        free = [knob for knob in knobs if knob.free]
        batch = [knob for knob in knobs if knob.name == "batch"]
        found = [_halved(start, free, fits) or _halved(start, [*free, *batch], fits)]
    return tuple(" and ".join(each.changes) for each in found if each is not None)


def _halved(start: Changed, knobs: Sequence[Knob], fits: Fits) -> Changed | None:
    """Halve these numbers together until all fits, then put each back as far as it goes; None if nothing fits."""
    values = {knob: knob.value for knob in knobs}
    least = {knob: _least(knob) for knob in knobs}
    if not knobs or not fits(_turned(start, least)):
        return None
    while not fits(_turned(start, values)):
        values = {knob: max(value // 2, least[knob]) for knob, value in values.items()}
    for knob in knobs:
        while values[knob] < knob.value and fits(_turned(start, values | {knob: _back(knob, values[knob])})):
            values[knob] = _back(knob, values[knob])
    return _turned(start, values)


def _least(knob: Knob) -> int:
    """Return the last value that halving comes to."""
    value = knob.value
    while value // 2 >= knob.least:
        value //= 2
    return value


def _turned(start: Changed, values: Mapping[Knob, int]) -> Changed:
    for knob, value in values.items():
        start = knob.turned(start, value) if value != knob.value else start
    return start


def _back(knob: Knob, value: int) -> int:
    """Return the value before it was last halved."""
    before = knob.value
    while before // 2 > value:
        before //= 2
    return before


def _knobs(start: Changed) -> Iterator[Knob]:
    setting = start.setting
    for role, tokens in start.micro_batches.items():
        yield Knob(f"{role} micro_batch_tokens", tokens, 1, True, _turning_plan(role))
    for free, settings, fields in HALVED:
        for node in setting.running.nodes:
            for name, least in settings.items():
                value = getattr(node.settings, name, None)
                if isinstance(value, int) and value > least:
                    yield Knob(f"{node.name}.{name}", value, least, free, _turning_node(node.name, name))
        for name, least in fields.items():
            yield Knob(_shown(name), getattr(setting, name), least, free, _turning_field(name))


def _shown(name: str) -> str:
    return "batch" if name == "prompts" else name


def _turning_plan(role: str) -> Callable[[Changed, int], Changed]:
    def turned(start: Changed, value: int) -> Changed:
        changes = (*start.changes, f"micro_batch_tokens={value} of {role} in the plan")
        return Changed(start.setting, {**start.micro_batches, role: value}, changes)

    return turned


def _turning_field(name: str) -> Callable[[Changed, int], Changed]:
    def turned(start: Changed, value: int) -> Changed:
        changed: dict[str, Any] = {name: value}
        setting = replace(start.setting, **changed)
        return Changed(setting, start.micro_batches, (*start.changes, f"{_shown(name)}={value}"))

    return turned


def _turning_node(name: str, setting_name: str) -> Callable[[Changed, int], Changed]:
    def change(node: Node, value: int) -> Node:
        if node.name != name:
            return node
        return replace(node, settings=node.settings.model_copy(update={setting_name: value}))

    def turned(start: Changed, value: int) -> Changed:
        def rewritten(graph: Graph) -> Graph:
            return rewrite(graph, lambda node: change(node, value))

        was = start.setting
        watched = None if was.watched is None else rewritten(was.watched)
        setting = replace(was, graph=rewritten(was.graph), watched=watched)
        return Changed(setting, start.micro_batches, (*start.changes, f"{name}.{setting_name}={value}"))

    return turned


def fewest(fits: Callable[[int], bool], least: int, most: int) -> int | None:
    """Return the smallest number from `least` to `most` that fits, None if none does: galloping, then bisecting.

    That is exact where what fits one number fits all larger ones.

    >>> fewest(lambda machines: machines >= 3, 2, 32), fewest(lambda machines: False, 2, 32)
    (3, None)
    """
    below, step = least - 1, 1
    above = least
    while not fits(above):
        if above >= most:
            return None
        below, step = above, 2 * step
        above = min(above + step, most)
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (below, middle) if fits(middle) else (middle, above)
    return above


def with_machines(cluster: Cluster, machines: int) -> Cluster:
    """Return a cluster of so many machines: its own, and copies of them in their order.

    >>> from flowgraph.cluster.cluster import Device, Machine as Node
    >>> one = Node(name="a", devices=(Device(kind="gpu", memory_bytes=1),), host_memory_bytes=1, cores=1)
    >>> [node.name for node in with_machines(Cluster(nodes=(one,)), 3).nodes]
    ['a', 'a.2', 'a.3']
    """
    nodes, taken = [*cluster.nodes], {node.name for node in cluster.nodes}
    for place in range(len(nodes), machines):
        node = cluster.nodes[place % len(cluster.nodes)]
        copy = place // len(cluster.nodes) + 1
        name = next(each for number in count(copy) if (each := f"{node.name}.{number}") not in taken)
        taken.add(name)
        nodes.append(node.model_copy(update={"name": name}))
    return Cluster(nodes=tuple(nodes[:machines]))


def shortened(setting: Setting, tokens: int) -> Setting:
    """Return a setting whose responses have at most so many tokens."""
    most = max((load.response.most for load in setting.loads), default=0.0)
    given = setting.response or Lengths.fixed(most)
    return replace(setting, response=Lengths(tuple(min(point, float(tokens)) for point in given.points)))
