"""Whether a plan fits its devices; and where it does not, or nothing does, what is short and the changes that help."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from flowgraph.analysis.roles import Role
from flowgraph.cluster.cluster import Cluster, show_bytes
from flowgraph.cluster.plan import Layout, Plan, RoleSettings
from flowgraph.errors import ResourceError
from placements.choices import choices
from placements.footprint import Bytes, Footprint, room_bytes
from placements.footprint_serving import generation_bytes
from placements.memory_forecast import Resident, residents
from placements.memory_knobs import MOST_TIMES, Changed, fewest, shortened, smallest_changes, with_machines
from placements.pool_peaks import PoolPeak, worst
from placements.role_costs import Seat, footprint
from placements.setting import Setting
from placements.text import show_parts
from placements.topology import DeviceClass, sizes

STATES = frozenset({"weights", "adapters", "gradients", "optimizer", "gathered"})  # no batch makes them smaller
LARGER = (2, 4, 8, 16, 32)  # times the host memory, or the prompts
SHORTER = (2, 4, 8)  # parts of the longest response
TENSORS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Least:
    """The way to run a role alone that holds the least on each device, what that is, and where."""

    role: Role
    seat: Seat
    layout: Layout
    running: RoleSettings
    held: Footprint

    @property
    def room_bytes(self) -> int:
        """Return what a role may fill of a device."""
        return room_bytes(self.seat.of.memory_bytes, self.seat.of.kind)

    @property
    def over_bytes(self) -> int:
        """Return what is missing on each device; below 0 if nothing is."""
        return self.held.peak_bytes - self.room_bytes

    def __str__(self) -> str:
        where = "its device" if self.seat.devices == 1 else f"each of {self.seat.devices} devices"
        return f"{show_bytes(self.held.peak_bytes)} on {where}"


def nothing_fits(setting: Setting, fits: Callable[[Setting], bool]) -> ResourceError:
    """Return the error of a search that found nothing: which role needs how much, what there is, and what would fit.

    `fits` says whether a search would find something for a changed setting.
    """
    found = [least(setting, role) for role in setting.roles]
    what, notes = _short_of(max(found, key=_over, default=None), found)
    changes = " · ".join(changes_that_fit(setting, fits))
    hint = f"smallest changes that fit: {changes}" if changes else _nothing_helps(setting, found)
    return ResourceError.no_placement(setting.graph.name, shown(setting), what, notes, hint)


def _nothing_helps(setting: Setting, found: Sequence[Least | Role]) -> str:
    for role in (each for each in found if isinstance(each, Role)):
        for engine in setting.engines_of(role.use):
            devices = setting.support_of(engine).devices
            if setting.kind not in devices:
                return f"`{engine}` runs on {' and '.join(sorted(devices))}: leave out --engine {role.use}={engine}"
    if any(of.kind != "cpu" for of in setting.classes):
        return "no larger cluster of these machines, no larger batch and no shorter responses fit"
    known = [each.held.at_work for each in found if isinstance(each, Least)]
    kept, process = sum(map(_states_bytes, known)), max((each.get("context", 0) for each in known), default=0)
    alone = f"the process, models, gradients and optimizer alone take {show_bytes(kept + process)}"
    return f"no smaller batch fits: {alone}"


def _states_bytes(parts: Bytes) -> int:
    """Return what no batch makes smaller."""
    return sum(size for part, size in parts.items() if part in STATES)


def _short_of(worst: Least | Role | None, found: Sequence[Least | Role]) -> tuple[str, list[str]]:
    """Say what is short of memory, and in a line or two what it holds."""
    if worst is None or isinstance(worst, Role):
        return f"no engine runs {worst.name if worst is not None else 'it'} on any number of its devices", []
    if worst.over_bytes <= 0:
        alone = [f"{each.role.name} {each}" for each in found if isinstance(each, Least)]
        return "each role fits alone, but not all of them together", [" · ".join(alone)]
    what = f"{worst.role.name} needs {worst}, {show_bytes(worst.over_bytes)} more than the "
    parts = {str(part): count for part, count in worst.held.at_work.items() if count}
    fills = "that it has" if worst.room_bytes == worst.seat.of.memory_bytes else "that a plan fills"
    return f"{what}{show_bytes(worst.room_bytes)} {fills}", [
        f"{worst.layout} {worst.running}",
        show_parts(parts),
    ]


def shown(setting: Setting, between: str = ", ") -> str:
    """Return the devices of a setting by class: `16 h100-sxm-80g`."""
    return between.join(f"{of.count} {of.model or of.kind}" for of in setting.classes)


def _over(found: Least | Role) -> float:
    return float("inf") if isinstance(found, Role) else found.over_bytes


def least(setting: Setting, role: Role) -> Least | Role:
    """Return the way to run a role alone that comes nearest to fitting; the role itself if nothing runs it.

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
    if role.use == "sample" and not fitting and seat.of.kind != "cpu":
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
        yield Least(role, seat, layout, RoleSettings(precision=setting.sampling_precision), held)


def _seats(of: DeviceClass) -> Iterator[Seat]:
    for devices in sizes(of):
        links = of.links(devices)
        if links is not None:
            yield Seat(of, devices, links)


# ---------------------------------------------------------------------------------------- a plan that does not fit


def overflows(plan: Plan, setting: Setting, on: str) -> Iterator[ResourceError]:
    """Yield an error for each pool of a plan in which a phase needs more of a device than a plan may fill.

    It is forecast anew, whatever the plan says of itself: which role needs how much in which phase, its parts and what
    is held beside it, and the smallest changes after which all of the plan fits. `on` names the cluster.
    """
    found = residents(setting, plan)
    for each in found:
        peak = worst(each.peaks)
        if peak is not None and peak.peak_bytes > each.room_bytes:
            yield _overflow(plan, setting, on, each, peak, found)


def _overflow(
    plan: Plan, setting: Setting, on: str, over: Resident, peak: PoolPeak, found: Sequence[Resident]
) -> ResourceError:
    phase = f"{'on the way to' if peak.entering else 'in'} {peak.phase}"
    missing = show_bytes(peak.peak_bytes - over.room_bytes)
    what = (
        f"{peak.role} needs {show_bytes(peak.peak_bytes)} {phase}, {missing} more than the "
        f"{show_bytes(over.room_bytes)} that {_whose(over, only=len(plan.pools) == 1)}"
    )
    micro = {each.role: each.running.micro_batch_tokens or 0 for each in plan.placed}
    start = Changed(setting, {role: tokens for role, tokens in micro.items() if tokens})
    changes = smallest_changes(start, lambda changed: _fits(plan, changed))
    if changes:
        hint = f"smallest changes that fit: {' · '.join(changes)}"
    elif setting.kind == "gpu":
        hint = "plan it anew for this cluster"
    else:
        kept = sum(_states_bytes(parts) for parts in peak.roles.values())
        hint = f"no smaller batch fits: models, gradients and optimizer alone take {show_bytes(kept)}"
    return ResourceError.no_placement(plan.flow, on, what, [*_notes(peak)], hint)


def _fits(plan: Plan, changed: Changed) -> bool:
    """Return whether all of a plan fits in a changed setting."""
    placed = tuple(
        each.model_copy(
            update={"running": each.running.model_copy(update={"micro_batch_tokens": changed.micro_batches[each.role]})}
        )
        if each.role in changed.micro_batches
        else each
        for each in plan.placed
    )
    again = residents(changed.setting, plan.model_copy(update={"placed": placed}))
    return all(peak.peak_bytes <= each.room_bytes for each in again for peak in each.peaks)


def _whose(over: Resident, *, only: bool) -> str:
    """Return whose memory it is, and what a plan does with it."""
    where = "" if only else f" in pool `{over.pool}`"
    if over.devices == 1:
        what = f"its device{where}"
    else:
        what = f"{'each' if over.even else 'the smallest'} of its devices{where}"
    return f"{what} has" if over.room_bytes == over.memory_bytes else f"a plan fills of {what}"


def _notes(peak: PoolPeak) -> Iterator[str]:
    """Yield what the role that works holds, and what is held beside it, largest first."""
    own = {str(part): size for part, size in peak.roles[peak.role].items() if part != "context" and size}
    yield show_parts(own)
    beside = [
        (size, f"{role} {part}")
        for role, parts in peak.roles.items()
        if role != peak.role
        for part, size in parts.items()
        if part != "context" and size
    ]
    beside.append((sum(parts.get("context", 0) for parts in peak.roles.values()), "the process"))
    yield "beside it: " + " · ".join(f"{name} {show_bytes(size)}" for size, name in sorted(beside, reverse=True))


# ---------------------------------------------------------------------------------------- changes after which a search


def changes_that_fit(setting: Setting, fits: Callable[[Setting], bool]) -> Iterator[str]:
    """Yield of each kind of change the smallest after which a search finds something.

    On CPU devices a batch is made smaller. Else there are more machines, each number of them tried that matters; more
    host memory, more rows, shorter responses, and narrower weights.
    """
    if all(of.kind == "cpu" for of in setting.classes):
        yield from smallest_changes(Changed(setting), lambda changed: fits(changed.setting))
        return
    machines = fewest(
        lambda count: fits(_on(setting, count)), len(setting.cluster.nodes) + 1, MOST_TIMES * len(setting.cluster.nodes)
    )
    if machines is not None:
        yield shown(_on(setting, machines), " and ")
    for ever_larger in larger_settings(setting):
        yield from [name for name, changed in ever_larger if fits(changed)][:1]


def _on(setting: Setting, machines: int) -> Setting:
    return replace(setting, cluster=with_machines(setting.cluster, machines))


def larger_settings(setting: Setting) -> Iterator[Iterator[tuple[str, Setting]]]:
    """Yield kinds of change, each as ever larger changes: host memory, rows, responses, narrower weights."""
    yield (_with_host(setting, times) for times in LARGER[:3])
    if setting.most_ranks < sum(of.count for of in setting.classes):
        counts = (setting.prompts * times for times in LARGER)
        yield ((f"--batch {prompts}", replace(setting, prompts=prompts)) for prompts in counts)
    yield _shortened(setting)
    if setting.sampling_precision == "bfloat16":
        yield iter([("--precision fp8", replace(setting, sampling="fp8"))])


def _with_host(setting: Setting, times: int) -> tuple[str, Setting]:
    """Return every machine with so many times its host memory."""
    nodes = [
        node.model_copy(update={"host_memory_bytes": times * node.host_memory_bytes}) for node in setting.cluster.nodes
    ]
    held = " and ".join(show_bytes(times * of.host_memory_bytes) for of in setting.classes)
    return f"{held} of host memory", replace(setting, cluster=Cluster(nodes=tuple(nodes)))


def _shortened(setting: Setting) -> Iterator[tuple[str, Setting]]:
    most = max((load.response.most for load in setting.loads), default=0.0)
    for part in SHORTER:
        cut = int(most // part)
        if cut >= 1:
            yield f"responses of at most {cut:,} tokens", shortened(setting, cut)
