"""Where nothing fits: which role is short of memory and by how much, and the smallest changes that would help."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from flowgraph.cluster import Cluster, show_bytes
from flowgraph.errors import ResourceError
from flowgraph.plan import Plan
from flowgraph.roles import Role
from placements.choices import Choice, Seat, choices, footprint
from placements.footprint import FITS_SHARE
from placements.lengths import Lengths
from placements.setting import Setting
from placements.text import pool_sizes, show_parts
from placements.topology import DeviceClass, sizes

LARGER = (2, 4, 8, 16, 32)  # times the machines that a cluster has
SHORTER = (2, 4, 8)  # parts of the longest response


@dataclass(frozen=True)
class Least:
    """The way to run a role alone that holds the least on each device, and where."""

    role: Role
    seat: Seat
    choice: Choice

    @property
    def room_bytes(self) -> int:
        """Give what a role may fill of a device."""
        return int(FITS_SHARE * self.seat.of.memory_bytes)

    @property
    def over_bytes(self) -> int:
        """Give what is missing on each device; below 0 if nothing is."""
        return self.choice.peak_bytes - self.room_bytes


def nothing_fits(setting: Setting, larger: Iterator[str]) -> ResourceError:
    """Say which role needs how much and what there is; `larger` are changes after which a plan fits."""
    hint = " · ".join(larger)
    hint = (
        f"smallest changes that fit: {hint}"
        if hint
        else "no larger cluster of these machines and no shorter responses fit"
    )
    worst = max((least(setting, role) for role in setting.roles), key=_over, default=None)
    if worst is None or isinstance(worst, Role):
        name = worst.name if worst is not None else "nothing"
        return ResourceError.no_placement(
            setting.graph.name, _shown(setting), f"no engine runs {name} on any number of its devices", (), hint
        )
    held = footprint(setting, worst.role, worst.seat, worst.choice.layout, worst.choice.running)
    parts = {str(part): count for part, count in held.at_work.items() if count}
    if worst.over_bytes <= 0:
        what = "each role fits alone, but there are too few devices for all of them"
        notes = [f"{worst.role.name} alone takes {show_bytes(worst.choice.peak_bytes)} of each of {worst.seat.devices}"]
        return ResourceError.no_placement(setting.graph.name, _shown(setting), what, notes, hint)
    what = (
        f"{worst.role.name} needs {show_bytes(worst.choice.peak_bytes)} on each of {worst.seat.devices} devices, "
        f"{show_bytes(worst.over_bytes)} more than the {show_bytes(worst.room_bytes)} that a plan fills"
    )
    how = f"{worst.choice.layout} {worst.choice.running}"
    return ResourceError.no_placement(setting.graph.name, _shown(setting), what, [how, show_parts(parts)], hint)


def _shown(setting: Setting) -> str:
    return ", ".join(f"{of.count} {of.model or of.kind}" for of in setting.classes)


def _over(found: Least | Role) -> float:
    return float("inf") if isinstance(found, Role) else found.over_bytes


def least(setting: Setting, role: Role) -> Least | Role:
    """Give the way to run a role alone that comes nearest to fitting; the role itself if nothing runs it."""
    found = [
        Least(role, seat, choice)
        for of in setting.classes
        for seat in _seats(of)
        for choice in choices(setting, role, seat)
    ]
    return min(found, key=lambda each: (each.over_bytes, each.seat.devices), default=role)


def _seats(of: DeviceClass) -> Iterator[Seat]:
    for devices in sizes(of):
        links = of.links(devices)
        if links is not None:
            yield Seat(of, devices, links)


def overflows(plan: Plan, on: str) -> Iterator[ResourceError]:
    """Find the pools of a forecast plan in which a phase needs more of a device than a plan may fill."""
    for told in plan.forecast:
        room = int(FITS_SHARE * min(pool_sizes(plan, next(each for each in plan.pools if each.name == told.pool))))
        peak = told.worst
        if peak is not None and peak.memory_bytes > room:
            what = (
                f"{peak.role} needs {show_bytes(peak.memory_bytes)} in {peak.phase}, "
                f"{show_bytes(peak.memory_bytes - room)} more than the {show_bytes(room)} that a plan fills "
                f"of each device in pool `{told.pool}`"
            )
            held = next(each.memory for each in plan.placed if each.role == peak.role)
            yield ResourceError.no_placement(plan.flow, on, what, [show_parts(held)], "plan it anew for this cluster")


def larger_settings(setting: Setting) -> Iterator[tuple[str, Iterator[tuple[str, Setting]]]]:
    """Give kinds of change, each as ever larger changes: more machines, shorter responses, narrower weights."""
    yield (
        "devices",
        ((_more(setting, times), replace(setting, cluster=multiplied(setting.cluster, times))) for times in LARGER),
    )
    yield "responses", _shortened(setting)


def _more(setting: Setting, times: int) -> str:
    return " and ".join(f"{of.count * times} {of.model or of.kind}" for of in setting.classes)


def _shortened(setting: Setting) -> Iterator[tuple[str, Setting]]:
    most = max((load.response.most for load in setting.loads), default=0.0)
    for part in SHORTER:
        cut = int(most // part)
        if cut >= 1:
            given = setting.response or Lengths.fixed(most)
            points = tuple(min(point, float(cut)) for point in given.points)
            yield f"responses of at most {cut:,} tokens", replace(setting, response=Lengths(points))


def multiplied(cluster: Cluster, times: int) -> Cluster:
    """Give a cluster of so many times its machines.

    >>> from flowgraph.cluster import Device, Node
    >>> one = Node(name="a", devices=(Device(kind="gpu", memory_bytes=1),), host_memory_bytes=1, cores=1)
    >>> [node.name for node in multiplied(Cluster(nodes=(one,)), 2).nodes]
    ['a', 'a.2']
    """
    copies = (
        node.model_copy(update={"name": node.name if copy == 1 else f"{node.name}.{copy}"})
        for copy in range(1, times + 1)
        for node in cluster.nodes
    )
    return Cluster(nodes=tuple(copies))
