"""Where each role lives: from blocks of roles that share a pool, or from a plan that was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flowgraph.analysis.roles import Role
from flowgraph.cluster.cluster import Device
from flowgraph.cluster.plan import Layout, Plan, Pool, RoleSettings
from flowgraph.errors import ResourceError
from placements.blocks import Offered, Sitting
from placements.problem import Option
from placements.role_costs import Seat
from placements.setting import Setting
from placements.topology import DeviceClass

Block = tuple[frozenset[int], Option]
ALL = "all"  # the name of the one pool that all roles share


@dataclass(frozen=True)
class Home:
    """Where a role lives: its pool, so many devices of a class, how it runs there, how old its weights may be."""

    role: Role
    pool: str
    seat: Seat
    engine: str
    layout: Layout
    running: RoleSettings
    shared: bool
    lag: int = 0


def homes_of(setting: Setting, blocks: Sequence[Block], pins: Mapping[str, str] | None = None) -> list[Home]:
    """Return where each role lives, by the first role of each pool.

    A pool has the name that a role of it is pinned to; the others are `pool0`, `pool1` and so on, taken names left out,
    and `all` is the one that all roles share.
    """
    ordered = sorted(blocks, key=lambda block: min(block[0]))
    names = _names(setting, [block for block, _ in ordered], pins or {})
    found = [home for name, block in zip(names, ordered, strict=True) for home in _homes(setting, name, block)]
    return [replace(home, lag=0) if home.lag and _in_place(home, found) else home for home in found]


def _in_place(home: Home, homes: Sequence[Home]) -> bool:
    """Return whether a role reads the very weights that another trains, so that there is no copy that could lag."""
    key = home.role.param, home.pool, home.engine, home.layout
    trained = (each for each in homes if each.role.use == "train")
    return any((each.role.param, each.pool, each.engine, each.layout) == key for each in trained)


def _names(setting: Setting, blocks: Sequence[frozenset[int]], pins: Mapping[str, str]) -> Iterator[str]:
    numbered = (f"pool{number}" for number in range(len(blocks) + len(pins)))
    free = (name for name in ([ALL] if len(blocks) == 1 else numbered) if name not in pins.values())
    for block in blocks:
        own = [pins[name] for place in sorted(block) if (name := setting.roles[place].name) in pins]
        yield own[0] if own else next(free)


def _homes(setting: Setting, pool: str, block: Block) -> Iterator[Home]:
    places, (seat, sitting) = sorted(block[0]), _key(block[1])
    shared = any(setting.roles[place].use == "sample" for place in places)
    for place, choice in zip(places, sitting.chosen, strict=True):
        running = choice.running if len(places) > 1 else choice.running.model_copy(update={"sleeps": False})
        role = setting.roles[place]
        yield Home(role, pool, seat, choice.engine, choice.layout, running, shared, setting.lag_of(role))


def homes_by(setting: Setting, plan: Plan) -> list[Home]:
    """Return where each role lives by a plan for this graph, on a cluster that may be another than the plan's.

    A pool whose devices are not there is taken to be of the first class of devices that has as many. Raises
    ResourceError if none has, or if it is not known how fast they are.
    """
    roles = {role.name: role for role in setting.roles}
    seats = {pool.name: _seat_of(setting, pool) for pool in plan.pools}
    draws = {each.pool for each in plan.placed if roles[each.role].use == "sample"}
    return [
        Home(
            roles[each.role],
            each.pool,
            seats[each.pool],
            each.engine,
            each.layout,
            each.running,
            each.pool in draws,
            each.lag,
        )
        for each in plan.placed
    ]


def _seat_of(setting: Setting, pool: Pool) -> Seat:
    """Return the seat of a pool by the very devices that it has, or by their number where they are not of one class."""
    found = {_class_of(setting, *place) for place in pool.devices}
    of = found.pop() if len(found) == 1 else None
    links = of.links(len(pool.devices)) if of is not None else None
    if of is None or links is None:
        return seat_for(setting, pool.name, len(pool.devices))
    return Seat(of, len(pool.devices), links)


def _class_of(setting: Setting, node: str, index: int) -> DeviceClass | None:
    device = setting.cluster.device(node, index)
    return next((of for of in setting.classes if device is not None and node in of.nodes and _is_of(device, of)), None)


def _is_of(device: Device, of: DeviceClass) -> bool:
    return (device.kind, device.model, device.memory_bytes) == (of.kind, of.model, of.memory_bytes)


def seat_for(setting: Setting, pool: str, devices: int) -> Seat:
    """Return a seat of so many devices; raises ResourceError where no class has as many of a known kind."""
    for of in setting.classes:
        links = of.links(devices) if of.count >= devices else None
        if links is not None:
            return Seat(of, devices, links)
    there = ", ".join(f"{of.count} {of.model or of.kind}" for of in setting.classes)
    raise ResourceError.not_here(f"pool `{pool}`", f"{devices} devices of one known kind", f"the cluster has {there}")


def _key(option: Option) -> tuple[Seat, Sitting]:
    key = option.key
    assert isinstance(key, Offered), "options are those that blocks offer"
    return key.seat, key.sitting


def in_order(setting: Setting, homes: Sequence[Home]) -> list[Home]:
    """Return where roles live, in the order of the flow's roles."""
    order = {role.name: place for place, role in enumerate(setting.roles)}
    return sorted(homes, key=lambda home: order[home.role.name])
