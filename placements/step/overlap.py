"""How far each role of a placement works ahead of training, within the staleness that a problem allows.

A run overlaps steps if a role of its plan works `ahead`: `flowgraph.lowering.pipeline_steps`. Sampling is one step
ahead of training, or more if rows take long from one to the other. It needs devices that do not train. The rest of
the staleness makes syncs of weights rarer. With a depth of d, the rows of d + 1 steps share the way from a sync to the
update: a depth that makes a step no shorter means that the busiest pool works all the time, and so no deeper one can.
Of n places in turn (pools, and the host) this is a depth of n - 1 at most. Rows in flight gain by each
depth, until the trainer is always busy. Not here: the tasks of such steps (`tasks`), their seconds (`step_forecast`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from flowgraph.checks.overlap import check_ahead_reads, check_schedule, check_sleeping_copies
from flowgraph.cluster.plan import RoleSettings
from flowgraph.lowering.program import Program
from placements.memory.footprint import room_bytes
from placements.step.memory_forecast import forecasts_of
from placements.step.role_placements import RolePlacement
from placements.step.step_forecast import outline_of, period_of
from placements.step.window import has_room_for_window
from placements.workload.planning_problem import PlanningProblem

ALWAYS_TRIED = 2
"""The depths that are tried in any case; a deeper one only if the depth before it made the step shorter."""
SHORTER = 1e-6  # share of a step by which it is shorter, and not equal but for rounding


@dataclass(frozen=True)
class StagedNode:
    """A node that runs a model, with its role, its stage in the step, and whether it updates weights."""

    node: str
    role: str
    stage: int
    updates: bool


def with_overlap(problem: PlanningProblem, homes: Sequence[RolePlacement]) -> list[RolePlacement]:
    """Return placements with the `lag` and `ahead` of the shortest step found within a problem's staleness.

    Sampling is tried one and two steps ahead of training, and further for as long as each depth makes the step shorter.
    Of equally long steps, those with the least staleness are taken; if no overlap makes a step shorter, nothing lags.
    If seconds are not known, the first of `overlaps_of` is taken. On CPUs, overlaps that need too much memory are
    skipped, unless the best placements so far need too much, too. Every overlap that is returned can be run, unless the
    flow allows less staleness than the problem. If the problem allows no overlap, placements are returned as they are.
    """
    if not problem.overlaps:
        return list(homes)
    best = [replace(home, lag=0, ahead=0) for home in homes]
    best_s, least = period_of(problem, best), 0
    depth = 0
    while True:
        depth += 1
        deepest = max(home.ahead for home in best)
        for candidate in overlaps_of(problem, homes, [depth]):
            if problem.kind == "cpu" and overflowing(problem, candidate) and not overflowing(problem, best):
                continue
            step_s, staleness = period_of(problem, candidate), max(home.lag for home in candidate)
            if step_s is None or best_s is None:
                return candidate  # seconds are not known, and two pools at once are taken to be faster than one
            as_short = step_s <= best_s * (1 + SHORTER) and staleness < least
            if as_short or step_s < best_s * (1 - SHORTER):
                best, best_s, least = candidate, step_s, staleness
        if depth >= ALWAYS_TRIED and max(home.ahead for home in best) == deepest:
            return best


def overflowing(problem: PlanningProblem, homes: Sequence[RolePlacement]) -> bool:
    """Return whether the devices of some pool need more bytes than a plan may fill."""
    rooms = {home.pool: room_bytes(home.group.of.memory_bytes, home.group.of.kind) for home in homes}
    forecasts = forecasts_of(problem, homes)
    return any(pool.worst is not None and pool.worst.memory_bytes > rooms[pool.pool] for pool in forecasts)


def overlaps_of(
    problem: PlanningProblem, homes: Sequence[RolePlacement], depths: Iterable[int]
) -> Iterator[list[RolePlacement]]:
    """Yield placements with each overlap of steps that can be run and fits in host memory, in the order of `depths`.

    A depth is the number of steps that sampling works ahead of training; a depth below 1, or beyond what the problem's
    staleness allows, yields nothing. For each depth, weights are synced in every step (unless the problem's contract is
    `ready`), or as rarely as the staleness allows. A sampling role on a pool that also trains works ahead only under
    `ready`. Under `in_flight`, each sampling role that works ahead gets that contract, and nothing is yielded if one of
    them sleeps. On CPUs, host memory is not checked.
    """
    staged = [
        StagedNode(node=load.node, role=load.role.name, stage=load.stage, updates=load.phase == "update")
        for load in problem.loads
    ]
    trained = {copy_of(home): home.role.name for home in homes if home.role.use == "train"}
    training = {home.pool for home in homes if home.role.use == "train"}
    copies = [home for home in homes if home.role.name in problem.synced and copy_of(home) not in trained]
    copies = [home for home in copies if home.pool not in training or problem.contract == "ready"]
    updates = {home.role.param: problem.running.updates(home.role.param) for home in copies}
    steps = min((problem.lag // count for count in updates.values()), default=0)
    if problem.contract == "in_flight" and any(home.running.sleeps for home in copies):
        return
    overlaps = list[tuple[int, int]]()
    for depth in depths if steps else ():
        if 1 <= depth <= steps:
            # What rows of other systems do not use of the staleness makes their syncs rarer.
            overlaps += [(depth, 1)] * (depth < steps and problem.contract != "ready") + [(depth, steps - depth + 1)]
    tried = list[tuple[Mapping[str, int], int]]()
    for depth, every in overlaps:
        ahead = roles_ahead({home.role.name: home.pool for home in homes}, staged, depth)
        ahead |= {home.role.name: 0 for home in homes if home.role.name in problem.synced and home not in copies}
        if (ahead, every) in tried or any(ahead[name] for name in trained.values()):
            continue
        tried.append((ahead, every))
        candidate = [
            replace(
                home,
                ahead=ahead[home.role.name],
                lag=updates[home.role.param] * (ahead[home.role.name] + every - 1) if home in copies else 0,
                running=with_contract(home, problem) if home in copies else home.running,
            )
            for home in homes
        ]
        if has_room_for_window(problem, candidate) and is_lawful(outline_of(problem, candidate).program):
            yield candidate


def with_contract(home: RolePlacement, problem: PlanningProblem) -> RoleSettings:
    """Return the settings of a role with the problem's contract; under `ready`, they are returned as they are."""
    return (
        home.running if problem.contract == "ready" else home.running.model_copy(update={"contract": problem.contract})
    )


def copy_of(home: RolePlacement) -> tuple[object, ...]:
    """Return a key that is equal for roles that read the same copy of weights: parameter, pool, engine and layout."""
    return home.role.param, home.pool, home.engine, home.layout


@lru_cache(maxsize=256)
def is_lawful(program: Program) -> bool:
    """Return whether a program overlaps its steps and passes the checks of such programs.

    They are `check_ahead_reads`, `check_sleeping_copies` and `check_schedule`: each task reads values and weights of
    the right version, and a server that loses its weights when it sleeps gets them again in every step.
    """
    laws = (check_ahead_reads, check_sleeping_copies, check_schedule)
    return program.pipeline is not None and not any(fault for law in laws for fault in law(program))


def roles_ahead(pools: Mapping[str, str], staged: Sequence[StagedNode], depth: int) -> dict[str, int]:
    """Return, by role, how many steps it works ahead of the update of its step: `depth`, as sampling does, or 0.

    `pools` has the pool of each role; only these roles are in the result. A role is ahead if it works before or in
    sampling. So is a later role on a pool that does not train, unless it works after a forward pass on a pool that
    trains.
    """
    placed = [node for node in staged if node.role in pools]
    sampling = [
        node for node in placed if node.role.endswith(".sample") and node.role.replace(".sample", ".train") in pools
    ]
    last = max((node.stage for node in sampling), default=0)
    before = {node.role for node in placed if node in sampling or (not node.updates and node.stage < last)}
    trained = {pools[node.role] for node in placed if node.updates}
    after = [node for node in placed if node not in sampling and (node.updates or node.stage >= last)]
    # A node that reads the results of a trained model's forward pass stays in the step of that model.
    first = min((node.stage for node in after if pools[node.role] in trained and not node.updates), default=len(staged))
    own_step = {node.role for node in after if pools[node.role] in trained or node.stage > first}
    return {role: depth if role in before or role not in own_step else 0 for role in pools}
