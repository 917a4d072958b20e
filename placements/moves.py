"""Why a role is where it is: what a step would take with the role on another pool, alone, or in another layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import fsum

from flowgraph.cluster.plan import Layout, Plan, RoleSettings, StepForecast
from placements.blocks import Blocks
from placements.choices import all_choices
from placements.finding import solved
from placements.footprint import room_bytes
from placements.homes import Home, homes_by
from placements.named import Parts
from placements.placing import forecast_again
from placements.ranked import Ranked
from placements.role_costs import footprint
from placements.setting import Setting
from placements.short import overflows
from placements.step_forecast import switching_of, work_of


@dataclass(frozen=True)
class Move:
    """One role elsewhere: with whom it would share a pool, and the best plan then; None if none fits."""

    role: str
    beside: tuple[str, ...]
    ranked: Ranked | None


@dataclass(frozen=True)
class Other:
    """One way to run a role on the pool that it has: seconds of its work in a step, and the most it holds on a device.

    `fits` says whether the plan does with the role so, `own` whether it is the way of the plan.
    """

    layout: Layout
    running: RoleSettings
    seconds: float
    peak_bytes: int
    fits: bool
    own: bool


@dataclass(frozen=True)
class Here:
    """A plan as it stands: its step, the seconds of it, and its devices."""

    step: StepForecast
    step_s: float
    devices: int


def parts_of(plan: Plan) -> Parts:
    """Return the roles of a plan by the pool that they share; a pool without one is left out."""
    found = (tuple(each.role for each in plan.placed if each.pool == pool.name) for pool in plan.pools)
    return tuple(part for part in found if part)


def moves(setting: Setting, parts: Parts, role: str) -> Iterator[Move]:
    """Return what comes of putting one role on each other pool, or on one of its own; the rest may change devices."""
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


def layouts(setting: Setting, plan: Plan, role: str) -> tuple[Other, ...]:
    """Return the ways to run a role on its pool, fastest first: the plan's own, and the best of each layout.

    The best is the fastest that fits, or where none does the fastest. No layout of which seconds are known is left out.
    """
    home = next(each for each in homes_by(setting, plan) if each.role.name == role)
    own = home.layout, home.running
    ways_of = dict[Layout, list[tuple[Layout, RoleSettings]]]()
    for each in all_choices(setting, home.role, home.seat):
        ways_of.setdefault(each.layout, []).append((each.layout, each.running))
    kept = {own: _other(setting, plan, home, *own, own=True)}
    for ways in ways_of.values():
        found = (kept.get(way) or _other(setting, plan, home, *way) for way in ways)
        first = next(found)
        best = first if first.fits else next((each for each in found if each.fits), first)
        kept[best.layout, best.running] = best
    return tuple(sorted(kept.values(), key=lambda each: (each.seconds, each.layout.tensor)))


def _other(
    setting: Setting, plan: Plan, home: Home, layout: Layout, running: RoleSettings, *, own: bool = False
) -> Other:
    there = replace(home, layout=layout, running=running)
    works = [work_of(setting, there, load).total_s for load in setting.loads_of(home.role)]
    works.append(switching_of(setting, there).total_s)
    held = footprint(setting, home.role, home.seat, home.engine, layout, running).peak_bytes
    placed = (
        each.model_copy(update={"layout": layout, "running": running}) if each.role == home.role.name else each
        for each in plan.placed
    )
    fits = held <= room_bytes(home.seat.of.memory_bytes, home.seat.of.kind)
    if fits:  # by itself; what lies beside it counts too
        again = forecast_again(setting, plan.model_copy(update={"placed": tuple(placed)}))
        fits = not any(True for _ in overflows(again, setting, ""))
    return Other(layout, running, fsum(each or 0.0 for each in works), held, fits, own)
