"""Where nothing fits: which role is short of memory and by how much, and the smallest changes that would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from flowgraph.cluster import Cluster, show_bytes
from flowgraph.errors import ResourceError
from flowgraph.plan import Layout, Plan, Running
from flowgraph.roles import Role
from placements.choices import Seat, choices, footprint
from placements.footprint import FITS_SHARE, Footprint
from placements.footprint_serving import generation_bytes
from placements.lengths import Lengths
from placements.setting import Setting
from placements.text import pool_sizes, show_parts
from placements.topology import DeviceClass, sizes

LARGER = (2, 4, 8, 16, 32)  # times the machines that a cluster has
SHORTER = (2, 4, 8)  # parts of the longest response
TENSORS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Least:
    """The way to run a role alone that holds the least on each device, what that is, and where."""

    role: Role
    seat: Seat
    layout: Layout
    running: Running
    held: Footprint

    @property
    def room_bytes(self) -> int:
        """Give what a role may fill of a device."""
        return int(FITS_SHARE * self.seat.of.memory_bytes)

    @property
    def over_bytes(self) -> int:
        """Give what is missing on each device; below 0 if nothing is."""
        return self.held.peak_bytes - self.room_bytes

    def __str__(self) -> str:
        where = "its device" if self.seat.devices == 1 else f"each of {self.seat.devices} devices"
        return f"{show_bytes(self.held.peak_bytes)} on {where}"


def nothing_fits(setting: Setting, larger: Iterator[str]) -> ResourceError:
    """Say which role needs how much and what there is; `larger` are changes after which a plan fits."""
    hint = " · ".join(larger)
    hint = (
        f"smallest changes that fit: {hint}"
        if hint
        else "no larger cluster of these machines, no larger batch and no shorter responses fit"
    )
    found = [least(setting, role) for role in setting.roles]
    what, notes = _short_of(max(found, key=_over, default=None), found)
    return ResourceError.no_placement(setting.graph.name, _shown(setting), what, notes, hint)


def _short_of(worst: Least | Role | None, found: Sequence[Least | Role]) -> tuple[str, list[str]]:
    """Say what is short of memory, and in a line or two what it holds."""
    if worst is None or isinstance(worst, Role):
        return f"no engine runs {worst.name if worst is not None else 'it'} on any number of its devices", []
    if worst.over_bytes <= 0:
        alone = [f"{each.role.name} {each}" for each in found if isinstance(each, Least)]
        return "each role fits alone, but not all of them together", [" · ".join(alone)]
    what = f"{worst.role.name} needs {worst}, {show_bytes(worst.over_bytes)} more than the "
    parts = {str(part): count for part, count in worst.held.at_work.items() if count}
    return f"{what}{show_bytes(worst.room_bytes)} that a plan fills", [
        f"{worst.layout} {worst.running}",
        show_parts(parts),
    ]


def _shown(setting: Setting) -> str:
    return ", ".join(f"{of.count} {of.model or of.kind}" for of in setting.classes)


def _over(found: Least | Role) -> float:
    return float("inf") if isinstance(found, Role) else found.over_bytes


def least(setting: Setting, role: Role) -> Least | Role:
    """Give the way to run a role alone that comes nearest to fitting; the role itself if nothing runs it.

    What a host has no room for is no way; a role that draws has one without seconds too, its cache for one row.
    """
    found = [each for of in setting.classes for seat in _seats(of) for each in _ways(setting, role, seat)]
    return min(found, key=lambda each: (each.over_bytes, each.seat.devices), default=role)


def _ways(setting: Setting, role: Role, seat: Seat) -> Iterator[Least]:
    room_bytes = seat.of.host_memory_bytes // seat.of.node_devices
    fitting = [each for each in choices(setting, role, seat) if each.host_bytes <= room_bytes]
    for each in fitting:
        held = footprint(setting, role, seat, each.engine, each.layout, each.running)
        yield Least(role, seat, each.layout, each.running, held)
    if role.use == "sample" and not fitting:
        yield from _with_one_row(setting, role, seat)


def _with_one_row(setting: Setting, role: Role, seat: Seat) -> Iterator[Least]:
    shape, longest = setting.shape(role), max(load.longest_tokens for load in setting.loads_of(role))
    most = min(seat.devices, seat.of.reach)
    for tensor in (each for each in TENSORS if each <= most and seat.devices % each == shape.heads % each == 0):
        layout = Layout(data=seat.devices // tensor, tensor=tensor)
        held = generation_bytes(
            shape,
            layout,
            precision=setting.sampling_precision,
            engine=setting.engines_of("sample")[0],
            device_bytes=seat.of.memory_bytes,
            cache_tokens=longest,
        )
        yield Least(role, seat, layout, Running(precision=setting.sampling_precision), held)


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
    """Give kinds of change, each as ever larger changes: machines, their memory, rows, responses, narrower weights."""
    yield (
        "devices",
        ((_more(setting, times), replace(setting, cluster=multiplied(setting.cluster, times))) for times in LARGER),
    )
    yield "host memory", (_with_host(setting, times) for times in LARGER[:3])
    if setting.most_ranks < sum(of.count for of in setting.classes):
        counts = (setting.prompts * times for times in LARGER)
        yield "batch", ((f"--batch {prompts}", replace(setting, prompts=prompts)) for prompts in counts)
    yield "responses", _shortened(setting)
    if setting.sampling_precision == "bfloat16":
        yield "precision", iter([("--precision fp8", replace(setting, sampling="fp8"))])


def _with_host(setting: Setting, times: int) -> tuple[str, Setting]:
    """Give every machine so many times its host memory."""
    nodes = [
        node.model_copy(update={"host_memory_bytes": times * node.host_memory_bytes}) for node in setting.cluster.nodes
    ]
    held = " and ".join(show_bytes(times * of.host_memory_bytes) for of in setting.classes)
    return f"{held} of host memory", replace(setting, cluster=Cluster(nodes=tuple(nodes)))


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
    nodes, taken = [*cluster.nodes], {node.name for node in cluster.nodes}
    for copy in range(2, times + 1):
        for node in cluster.nodes:
            name = next(each for number in count(copy) if (each := f"{node.name}.{number}") not in taken)
            taken.add(name)
            nodes.append(node.model_copy(update={"name": name}))
    return Cluster(nodes=tuple(nodes))
