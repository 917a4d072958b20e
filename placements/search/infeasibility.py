"""Whether a plan fits its devices; if not, or if no plan does, what is missing and which changes would help."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from flowgraph.analysis.roles import Role
from flowgraph.cluster.cluster import Cluster, show_bytes
from flowgraph.cluster.plan import Layout, Plan, RoleSettings
from flowgraph.errors import ResourceError
from placements.format import show_parts
from placements.hardware.topology import sizes
from placements.memory.footprint import Bytes, Footprint, room_bytes
from placements.memory.pool_peaks import PoolPeak, worst
from placements.memory.serving import generation_bytes
from placements.search.memory_reductions import ReducedProblem, fewest, shortened, smallest_changes, with_machines
from placements.search.role_options import RoleOptions
from placements.step.memory_forecast import residents
from placements.step.role_costs import DeviceGroup, footprint
from placements.workload.planning_problem import PlanningProblem

STATES = frozenset({"weights", "adapters", "gradients", "optimizer", "gathered"})  # no batch makes them smaller
MAX_MACHINES = 32  # times those of the cluster
LARGER_HOSTS = (2, 4, 8)  # times the host memory
LARGER_BATCHES = (2, 4, 8, 16, 32)  # times the prompts
SHORTER = (2, 4, 8)  # parts of the longest response
TENSORS = (1, 2, 4, 8)

Fits = Callable[[PlanningProblem], bool]
"""A function that tells whether a search finds a plan for a changed problem."""


@dataclass(frozen=True)
class SmallestOption:
    """The way to run a role alone that comes nearest to fitting, with its devices and its bytes."""

    role: Role
    group: DeviceGroup
    layout: Layout
    running: RoleSettings
    footprint: Footprint

    @property
    def room_bytes(self) -> int:
        """Return how many bytes of each device a plan may fill: nine tenths of a GPU, or all of a CPU device."""
        return room_bytes(self.group.of.memory_bytes, self.group.of.kind)

    @property
    def over_bytes(self) -> int:
        """Return how many bytes are missing on each device; 0 or negative if the role fits."""
        return self.footprint.peak_bytes - self.room_bytes

    def __str__(self) -> str:
        where = "its device" if self.group.devices == 1 else f"each of {self.group.devices} devices"
        return f"{show_bytes(self.footprint.peak_bytes)} on {where}"


def nothing_fits(problem: PlanningProblem, fits: Fits) -> ResourceError:
    """Return the error for a problem without a plan: the missing memory, and the smallest changes that would help.

    `fits` tells whether a search finds a plan for a changed problem; it is called for many changes.
    """
    options = [smallest_option(problem, role) for role in problem.roles]
    what, notes = _missing(options)
    without_engine = [option for option in options if isinstance(option, Role)]
    engines = [(role.use, engine) for role in without_engine for engine in problem.engines_of(role.use)]
    misplaced = next((pair for pair in engines if problem.kind not in problem.support_of(pair[1]).devices), None)
    if changes := " · ".join(_changes_that_fit(problem, fits)):
        hint = f"smallest changes that fit: {changes}"
    elif misplaced is not None:
        use, engine = misplaced
        kinds = " and ".join(sorted(problem.support_of(engine).devices))
        hint = f"`{engine}` runs on {kinds}: leave out --engine {use}={engine}"
    elif any(of.kind != "cpu" for of in problem.classes):
        hint = "no larger cluster of these machines, no larger batch and no shorter responses fit"
    else:
        at_work = [option.footprint.at_work for option in options if isinstance(option, SmallestOption)]
        fixed = sum(map(_states_bytes, at_work)) + max((parts.get("context", 0) for parts in at_work), default=0)
        hint = f"no smaller batch fits: the process, models, gradients and optimizer alone take {show_bytes(fixed)}"
    return ResourceError.no_placement(problem.graph.name, class_counts(problem), what, notes, hint)


def _missing(options: Sequence[SmallestOption | Role]) -> tuple[str, list[str]]:
    without_engine = next((option for option in options if isinstance(option, Role)), None)
    fitting = [option for option in options if isinstance(option, SmallestOption)]
    if without_engine is not None or not fitting:
        name = without_engine.name if without_engine is not None else "it"
        return f"no engine runs {name} on any number of its devices", []
    largest = max(fitting, key=lambda option: option.over_bytes)
    if largest.over_bytes <= 0:
        sizes_alone = " · ".join(f"{option.role.name} {option}" for option in fitting)
        return "each role fits alone, but not all of them together", [sizes_alone]
    fills = "that it has" if largest.room_bytes == largest.group.of.memory_bytes else "that a plan may use"
    room = f"{show_bytes(largest.over_bytes)} more than the {show_bytes(largest.room_bytes)} {fills}"
    parts = {str(part): size for part, size in largest.footprint.at_work.items() if size}
    notes = [f"{largest.layout} {largest.running}", show_parts(parts)]
    return f"{largest.role.name} needs {largest}, {room}", notes


def _states_bytes(parts: Bytes) -> int:
    return sum(size for part, size in parts.items() if part in STATES)


def class_counts(problem: PlanningProblem, between: str = ", ") -> str:
    """Return the number of devices of each class as text, joined by `between`, such as `16 h100-sxm-80g`."""
    return between.join(f"{of.count} {of.model or of.kind}" for of in problem.classes)


def smallest_option(problem: PlanningProblem, role: Role) -> SmallestOption | Role:
    """Return the way to run a role alone that comes nearest to fitting in memory; the role itself if none is possible.

    The nearest way exceeds a device's memory by the fewest bytes or, if equal, takes the fewest devices. Ways that need
    more host memory than a device's share are ignored. If a role that samples has no other way on a number of GPUs,
    ways with a cache for a single row are considered there too, even if their seconds are unknown.
    """
    options = [
        option
        for of in problem.classes
        for devices in sizes(of)
        if (links := of.links(devices)) is not None
        for option in _smallest_options(problem, role, DeviceGroup(of, devices, links))
    ]
    return min(options, key=lambda option: (option.over_bytes, option.group.devices), default=role)


def _smallest_options(problem: PlanningProblem, role: Role, group: DeviceGroup) -> Iterator[SmallestOption]:
    host_bytes = group.of.host_memory_bytes // group.of.node_devices
    fitting = [option for option in RoleOptions(problem, role, group).undominated if option.host_bytes <= host_bytes]
    for option in fitting:
        smallest = footprint(problem, role, group, option.engine, option.layout, option.running)
        yield SmallestOption(role, group, option.layout, option.running, smallest)
    if role.use != "sample" or fitting or group.of.kind == "cpu":
        return
    shape, longest = problem.shape(role), max(load.longest_tokens for load in problem.loads_of(role))
    for tensor in TENSORS:
        if tensor > min(group.devices, group.of.reach) or group.devices % tensor or shape.heads % tensor:
            continue
        layout = Layout(data=group.devices // tensor, tensor=tensor)
        smallest = generation_bytes(
            shape,
            layout,
            precision=problem.sampling_precision,
            engine=problem.engines_of("sample")[0],
            device_bytes=group.of.memory_bytes,
            cache_tokens=longest,
        )
        yield SmallestOption(role, group, layout, RoleSettings(precision=problem.sampling_precision), smallest)


# ---------------------------------------------------------------------------------------- a plan that does not fit


def overflows(plan: Plan, problem: PlanningProblem, on: str) -> Iterator[ResourceError]:
    """Yield an error for each pool of a plan in which a phase needs more bytes of a device than a plan may fill.

    The memory is computed again, whatever forecast the plan contains. Each error names the role, the phase, the parts
    of the memory, the other roles' bytes and, if there are any, the smallest changes after which the whole plan fits.
    `on` names the cluster in errors. Raises ResourceError if the problem's cluster has no devices for a pool.
    """
    for pool in residents(problem, plan):
        peak = worst(pool.peaks)
        if peak is None or peak.peak_bytes <= pool.room_bytes:
            continue
        phase = f"{'on the way to' if peak.entering else 'in'} {peak.phase}"
        room = f"{show_bytes(peak.peak_bytes - pool.room_bytes)} more than the {show_bytes(pool.room_bytes)} that"
        of_pool = "" if len(plan.pools) == 1 else f" in pool `{pool.pool}`"
        devices = "its device" if pool.devices == 1 else f"{'each' if pool.even else 'the smallest'} of its devices"
        fills = pool.room_bytes != pool.memory_bytes
        whose = f"a plan may use of {devices}{of_pool}" if fills else f"{devices}{of_pool} has"
        what = f"{peak.role} needs {show_bytes(peak.peak_bytes)} {phase}, {room} {whose}"
        micro = {placed.role: placed.running.micro_batch_tokens or 0 for placed in plan.placed}
        start = ReducedProblem(problem, {role: tokens for role, tokens in micro.items() if tokens})
        changes = smallest_changes(start, lambda changed: _fits(plan, changed))
        if changes:
            hint = f"smallest changes that fit: {' · '.join(changes)}"
        elif problem.kind == "gpu":
            hint = "plan it again for this cluster"
        else:
            states = sum(map(_states_bytes, peak.roles.values()))
            hint = f"no smaller batch fits: models, gradients and optimizer alone take {show_bytes(states)}"
        yield ResourceError.no_placement(plan.flow, on, what, _notes(peak), hint)


def _fits(plan: Plan, changed: ReducedProblem) -> bool:
    placed = list(plan.placed)
    for index, role in enumerate(placed):
        if role.role in changed.micro_batches:
            running = role.running.model_copy(update={"micro_batch_tokens": changed.micro_batches[role.role]})
            placed[index] = role.model_copy(update={"running": running})
    pools = residents(changed.problem, plan.model_copy(update={"placed": tuple(placed)}))
    return all(peak.peak_bytes <= pool.room_bytes for pool in pools for peak in pool.peaks)


def _notes(peak: PoolPeak) -> list[str]:
    parts = {str(part): size for part, size in peak.roles[peak.role].items() if part != "context" and size}
    resting = [
        (size, f"{role} {part}")
        for role, parts in peak.roles.items()
        if role != peak.role
        for part, size in parts.items()
        if part != "context" and size
    ]
    resting.append((sum(parts.get("context", 0) for parts in peak.roles.values()), "the process"))
    neighbours = " · ".join(f"{name} {show_bytes(size)}" for size, name in sorted(resting, reverse=True))
    return [show_parts(parts), f"also on the device: {neighbours}"]


# ---------------------------------------------------------------------------------------- changes after which a search


def _changes_that_fit(problem: PlanningProblem, fits: Fits) -> Iterator[str]:
    if all(of.kind == "cpu" for of in problem.classes):
        yield from smallest_changes(ReducedProblem(problem), lambda changed: fits(changed.problem))
        return

    def with_count(machines: int) -> PlanningProblem:
        return replace(problem, cluster=with_machines(problem.cluster, machines))

    count = len(problem.cluster.nodes)
    machines = fewest(lambda machines: fits(with_count(machines)), count + 1, MAX_MACHINES * count)
    if machines is not None:
        yield class_counts(with_count(machines), " and ")
    for changes in larger_problems(problem):
        yield from [name for name, changed in changes if fits(changed)][:1]


def larger_problems(problem: PlanningProblem) -> Iterator[Iterator[tuple[str, PlanningProblem]]]:
    """Yield for each kind of change that may help an iterator over (text, changed problem), the smallest change first.

    The kinds are more host memory, more prompts per step, shorter responses, and narrower weights of rollouts. More
    prompts are left out if the present ones can already be divided among all devices, and narrower weights unless
    rollouts use bfloat16.
    """

    def with_host_memory(times: int) -> tuple[str, PlanningProblem]:
        nodes = [
            node.model_copy(update={"host_memory_bytes": times * node.host_memory_bytes})
            for node in problem.cluster.nodes
        ]
        sizes_text = " and ".join(show_bytes(times * of.host_memory_bytes) for of in problem.classes)
        return f"{sizes_text} of host memory", replace(problem, cluster=Cluster(nodes=tuple(nodes)))

    yield map(with_host_memory, LARGER_HOSTS)
    if problem.most_ranks < sum(of.count for of in problem.classes):
        counts = (problem.prompts * times for times in LARGER_BATCHES)
        yield ((f"--batch {prompts}", replace(problem, prompts=prompts)) for prompts in counts)
    longest = max((load.response.most for load in problem.loads), default=0.0)
    limits = (int(longest // part) for part in SHORTER)
    yield ((f"responses of at most {limit:,} tokens", shortened(problem, limit)) for limit in limits if limit >= 1)
    if problem.sampling_precision == "bfloat16":
        yield iter([("--precision fp8", replace(problem, sampling="fp8"))])
