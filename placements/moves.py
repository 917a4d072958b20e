"""Why a role is where it is: what a step would take with the role on another pool, alone, or in another layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flowgraph.plan import Plan, Step
from flowgraph.roles import Role
from placements.blocks import Blocks
from placements.choices import Choice, Seat, choices
from placements.finding import solved
from placements.named import Parts
from placements.ranked import Ranked
from placements.setting import Setting
from placements.topology import DeviceClass


@dataclass(frozen=True)
class Move:
    """One role elsewhere: with whom it would share a pool, and the best plan then; None if none fits."""

    role: str
    beside: tuple[str, ...]
    ranked: Ranked | None


@dataclass(frozen=True)
class Other:
    """A role in another layout on the pool that it has: the fastest way there, and whether it fits alone."""

    role: str
    choice: Choice


@dataclass(frozen=True)
class Here:
    """A plan as it stands: its step, the seconds of it, and its devices."""

    step: Step
    step_s: float
    devices: int


def parts_of(plan: Plan) -> Parts:
    """Give the roles of a plan by the pool that they share; a pool without one is left out."""
    found = (tuple(each.role for each in plan.placed if each.pool == pool.name) for pool in plan.pools)
    return tuple(part for part in found if part)


def moves(setting: Setting, parts: Parts, role: str) -> Iterator[Move]:
    """Give what comes of putting one role on each other pool, or on one of its own; all else may change its devices."""
    blocks = Blocks(setting)
    rest = [tuple(name for name in part if name != role) for part in parts]
    home = next(part for part in parts if role in part)
    for beside in [*(part for part in rest if part and part != _without(home, role)), ()]:
        if beside == () and home == (role,):
            continue
        others = [part for part in rest if part and part != beside]
        yield Move(role, beside, solved(setting, blocks, (*others, (*beside, role))))


def _without(part: Sequence[str], role: str) -> tuple[str, ...]:
    return tuple(name for name in part if name != role)


def layouts(setting: Setting, role: Role, of: DeviceClass, devices: int) -> Iterator[Other]:
    """Give the fastest way to run a role in each layout that its devices allow."""
    links = of.links(devices)
    if links is None:
        return
    seen = set[int]()
    for choice in choices(setting, role, Seat(of, devices, links)):
        if choice.layout.tensor not in seen:
            seen.add(choice.layout.tensor)
            yield Other(role.name, choice)
