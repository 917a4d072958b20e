"""Where each role lives by blocks of roles that share a pool, as a search finds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from placements.search.pool_options import pool_option_of
from placements.solver.problem import Option
from placements.step.role_placements import RolePlacement
from placements.workload.planning_problem import PlanningProblem

Block = tuple[frozenset[int], Option]

ALL = "all"  # the name of the one pool that all roles share


def homes_of(
    setting: PlanningProblem, blocks: Sequence[Block], pins: Mapping[str, str] | None = None
) -> list[RolePlacement]:
    """Return where each role lives, by the first role of each pool.

    A pool has the name that a role of it is pinned to; the others are `pool0`, `pool1` and so on, pinned names left
    out, and `all` is the one that all roles share.
    """
    pins = pins or {}
    numbered = (f"pool{number}" for number in range(len(blocks) + len(pins)))
    free = (name for name in ([ALL] if len(blocks) == 1 else numbered) if name not in pins.values())
    homes = list[RolePlacement]()
    for block, option in sorted(blocks, key=lambda block: min(block[0])):
        roles, pooled = [setting.roles[place] for place in sorted(block)], pool_option_of(option)
        pinned = [pins[role.name] for role in roles if role.name in pins]
        pool, shared = pinned[0] if pinned else next(free), any(role.use == "sample" for role in roles)
        for role, own in zip(roles, pooled.roles, strict=True):
            running = own.running if len(roles) > 1 else own.running.model_copy(update={"sleeps": False})
            place = role, pool, pooled.group, own.engine, own.layout
            homes.append(RolePlacement(*place, running, shared, setting.lag_of(role)))
    # Weights that a role reads in the very copy that another trains cannot lag.
    trained = {(home.role.param, home.pool, home.engine, home.layout) for home in homes if home.role.use == "train"}
    return [
        replace(home, lag=0) if (home.role.param, home.pool, home.engine, home.layout) in trained else home
        for home in homes
    ]
