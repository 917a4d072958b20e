"""Other ways to the best choice of a problem: every choice one by one, and a set-partition program for HiGHS.

Neither shares code with the searches beyond the problem itself. `random_problem` makes small ones of every kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from placements.solver.problem import AssignmentProblem, Block, Objective, Option

OBJECTIVES: tuple[Objective, ...] = ("step", "step", "devices", "cost")


def table_problem(
    tables: Mapping[Block, Sequence[Option]], capacity: Sequence[int], **settings: Any
) -> AssignmentProblem:
    """Return the problem whose options are listed; a block that is not cannot run."""
    roles = 1 + max(role for block in tables for role in block)
    names = tuple(f"role{role}" for role in range(roles))
    return AssignmentProblem(names, tuple(capacity), lambda block: tables.get(block, ()), **settings)


def blocks_of(roles: int) -> Iterator[Block]:
    """List every block of so many roles."""
    for number in range(1, 1 << roles):
        yield Block(role for role in range(roles) if number >> role & 1)


def random_problem(seed: int, roles_at_most: int = 6) -> AssignmentProblem:
    """Make up to six roles on one or two classes, tables without order or by work, blocks that cannot run, and pins."""
    rng = np.random.default_rng(seed)
    roles, classes, spans = int(rng.integers(1, roles_at_most + 1)), int(rng.integers(1, 3)), int(rng.integers(1, 5))
    capacity, price = rng.integers(2, 17, size=classes), rng.integers(1, 5, size=classes)
    kind, count = int(rng.integers(0, 4)), int(rng.integers(1, 4 if roles > 4 else 6))

    def option(block: Block) -> Option:
        of, size = int(rng.integers(classes)), len(block)
        devices = int(rng.integers(1, capacity[of] + 2))
        drawn: Any = (
            rng.integers(0, 6, size=spans),
            rng.random(spans),
            size * rng.integers(1, 20, size=spans) / devices,
            size * (rng.integers(1, 8, size=spans) / devices + rng.integers(0, 2, size=spans)),
        )
        taken = tuple(devices * (each == of) for each in range(classes))
        return Option(taken, tuple(map(float, drawn[kind])), cost=float(devices * price[of]), key=(block, devices))

    def pins() -> tuple[Block, ...]:
        pairs = [rng.choice(roles, size=2, replace=False) for _ in range(int(rng.integers(0, 2)))] if roles > 2 else []
        return tuple(Block(int(role) for role in pair) for pair in pairs)

    tables = {block: [option(block) for _ in range(count)] for block in blocks_of(roles) if rng.random() < 0.9}
    tables.setdefault(Block(range(roles)), [option(Block(range(roles)))])
    return table_problem(
        tables,
        [int(each) for each in capacity],
        tokens=int(rng.integers(1, 5)),
        objective=OBJECTIVES[int(rng.integers(len(OBJECTIVES)))],
        together=pins(),
        apart=pins(),
    )


def partitions(roles: Sequence[int]) -> Iterator[list[Block]]:
    """List every way to cut roles into blocks."""
    if not roles:
        yield []
        return
    first, rest = Block({roles[0]}), roles[1:]
    for partition in partitions(rest):
        yield [first, *partition]
        for at, block in enumerate(partition):
            yield [*partition[:at], block | first, *partition[at + 1 :]]


@dataclass(frozen=True)
class Kind:
    """A partition, and the class of device of each of its blocks."""

    blocks: frozenset[tuple[Block, int]]


@dataclass(frozen=True)
class Least:
    """What the best choice of one kind is worth: value, seconds of a step, devices."""

    value: float
    step_s: float
    devices: int
    choices: int
    """How many choices of this kind there are, those that do not fit left out."""


def every_choice(problem: AssignmentProblem) -> dict[Kind, Least]:
    """Weigh every choice of a problem, and give the best of each kind; nothing if none fits."""
    found = dict[Kind, Least]()
    for blocks in partitions(range(len(problem.roles))):
        options = [tuple(problem.options(block)) if problem.allows(block) else () for block in blocks]
        if all(options):
            for classes, least in _of_partition(problem, options):
                found[Kind(frozenset(zip(blocks, classes, strict=True)))] = least
    return found


def _of_partition(
    problem: AssignmentProblem, options: Sequence[Sequence[Option]]
) -> Iterator[tuple[tuple[int, ...], Least]]:
    places = np.indices([len(each) for each in options]).reshape(len(options), -1)
    chosen = list(zip(options, places, strict=True))
    devices = np.array([np.array([each.devices for each in some])[at] for some, at in chosen])
    spans_s = np.array([np.array([each.spans_s for each in some])[at] for some, at in chosen])
    cost = np.array([np.array([each.cost for each in some])[at] for some, at in chosen]).sum(0)
    fits = (devices.sum(0) <= np.array(problem.capacity)).all(1)
    step_s = np.maximum(spans_s.max(0).sum(1) / problem.tokens, spans_s.sum(2).max(0))
    count = devices.sum((0, 2))
    value = {"step": step_s, "devices": count.astype(float), "cost": step_s * cost}[problem.objective]
    classes = (devices > 0).argmax(2).T
    for each in sorted({tuple(map(int, row)) for row in classes[fits]}):
        here = np.flatnonzero(fits & (classes == each).all(1))
        best = here[np.lexsort((count[here], step_s[here], value[here]))[0]]
        yield each, Least(float(value[best]), float(step_s[best]), int(count[best]), here.size)


def by_milp(problem: AssignmentProblem) -> float | None:
    """Solve the step as a set-partition program, a binary for each option of each block; None: nothing fits.

    Whatever block a role is in, the slowest block of a span is no faster: that is a row for each role and span.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_matrix

    roles, classes = len(problem.roles), len(problem.capacity)
    rows = [(block, each) for block in blocks_of(roles) if problem.allows(block) for each in problem.options(block)]
    spans = len(rows[0][1].spans_s)
    holds = np.array([[role in block for block, _ in rows] for role in range(roles)], dtype=float)
    devices = np.array([each.devices for _, each in rows], dtype=float).T
    spans_s = np.array([each.spans_s for _, each in rows]).T
    slowest = [
        np.concatenate([holds[role] * spans_s[at], -np.eye(spans + 1)[at]])
        for role in range(roles)
        for at in range(spans)
    ]
    busiest = [np.concatenate([holds[role] * spans_s.sum(0), -np.eye(spans + 1)[-1]]) for role in range(roles)]
    summed = np.concatenate([np.zeros(len(rows)), np.full(spans, 1 / problem.tokens), [-1.0]])
    pad = ((0, 0), (0, spans + 1))
    matrix = np.vstack([np.pad(holds, pad), np.pad(devices, pad), slowest, busiest, summed])
    below = np.concatenate([np.ones(roles), problem.capacity, np.zeros(len(slowest) + roles + 1)])
    above = np.concatenate([np.ones(roles), np.full(classes + len(slowest) + roles + 1, -np.inf)])
    found = milp(
        np.eye(len(rows) + spans + 1)[-1],
        constraints=LinearConstraint(csr_matrix(matrix), above, below),
        integrality=np.concatenate([np.ones(len(rows)), np.zeros(spans + 1)]),
        bounds=Bounds(0, np.concatenate([np.ones(len(rows)), np.full(spans + 1, np.inf)])),
        options={"mip_rel_gap": 1e-9},
    )
    assert found.status in (0, 2), found.message
    return float(found.fun) if found.status == 0 else None


def program_problem(
    seed: int, roles: Sequence[int] = (7, 8), sizes: Sequence[int] = (1, 2, 4, 8, 12, 16, 24)
) -> AssignmentProblem:
    """Make 7 or 8 roles with a share of work and of fixed seconds in each span, on one class of device or on two."""
    rng = np.random.default_rng(seed)
    count, spans = int(rng.choice(roles)), int(rng.integers(2, 5))
    classes = int(rng.integers(1, 3)) if count < 8 else 1
    capacity = rng.choice([16, 24, 32, 64], size=classes)
    work = rng.uniform(1, 50, size=(count, spans)) * (rng.random((count, spans)) < 0.5)
    fixed, least = rng.uniform(0, 0.5, size=(count, spans)) * (work > 0), rng.integers(1, 7, size=count)

    def options(block: Block) -> Iterator[Option]:
        members = sorted(block)
        for of, most in enumerate(capacity):
            for size in sizes:
                if 0.6 * least[members].sum() <= size <= most:
                    seconds = work[members].sum(0) / size * (1 + 0.5 * of) + fixed[members].sum(0)
                    uneven = seconds * rng.uniform(0.8, 1.2, size=spans)
                    taken = tuple(size * (each == of) for each in range(classes))
                    yield Option(taken, tuple(map(float, uneven)), cost=float(size))

    tables = {block: list(options(block)) for block in blocks_of(count)}
    return table_problem(tables, [int(each) for each in capacity], tokens=int(rng.integers(1, 4)))
