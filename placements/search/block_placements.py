"""Where each role lives by blocks of roles that share a pool, as a search finds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from placements.search.pool_options import OptionSource, PoolOption
from placements.solver.problem import Option
from placements.step.role_costs import DeviceGroup
from placements.step.role_placements import RolePlacement
from placements.workload.planning_problem import PlanningProblem

Block = tuple[frozenset[int], Option]

ALL = "all"  # the name of the one pool that all roles share


def homes_of(
    setting: PlanningProblem, blocks: Sequence[Block], pins: Mapping[str, str] | None = None
) -> list[RolePlacement]:
    """Return where each role lives, by the first role of each pool.

    A pool has the name that a role of it is pinned to; the others are `pool0`, `pool1` and so on, taken names left out,
    and `all` is the one that all roles share.
    """
    ordered = sorted(blocks, key=lambda block: min(block[0]))
    names = _names(setting, [block for block, _ in ordered], pins or {})
    found = [home for name, block in zip(names, ordered, strict=True) for home in _homes(setting, name, block)]
    return [replace(home, lag=0) if home.lag and _in_place(home, found) else home for home in found]


def _in_place(home: RolePlacement, homes: Sequence[RolePlacement]) -> bool:
    """Return whether a role reads the very weights that another trains, so that there is no copy that could lag."""
    key = home.role.param, home.pool, home.engine, home.layout
    trained = (each for each in homes if each.role.use == "train")
    return any((each.role.param, each.pool, each.engine, each.layout) == key for each in trained)


def _names(setting: PlanningProblem, blocks: Sequence[frozenset[int]], pins: Mapping[str, str]) -> Iterator[str]:
    numbered = (f"pool{number}" for number in range(len(blocks) + len(pins)))
    free = (name for name in ([ALL] if len(blocks) == 1 else numbered) if name not in pins.values())
    for block in blocks:
        own = [pins[name] for place in sorted(block) if (name := setting.roles[place].name) in pins]
        yield own[0] if own else next(free)


def _homes(setting: PlanningProblem, pool: str, block: Block) -> Iterator[RolePlacement]:
    places, (seat, sitting) = sorted(block[0]), _key(block[1])
    shared = any(setting.roles[place].use == "sample" for place in places)
    for place, choice in zip(places, sitting.chosen, strict=True):
        running = choice.running if len(places) > 1 else choice.running.model_copy(update={"sleeps": False})
        role = setting.roles[place]
        yield RolePlacement(role, pool, seat, choice.engine, choice.layout, running, shared, setting.lag_of(role))


def _key(option: Option) -> tuple[DeviceGroup, PoolOption]:
    key = option.key
    assert isinstance(key, OptionSource), "options are those that blocks offer"
    return key.seat, key.sitting
