"""The placement problem in numbers: blocks of roles, the options of each block, and the value of a choice.

The value is the seconds of one step: the sum over spans of the slowest block of that span, which is the cost of
HybridFlow's mapping search (Sheng and others, 2024, arXiv 2409.19256, algorithm 1: `d_cost`).
If spans lie between barriers at which all blocks wait for each other (`step.barriers`), this is a lower bound of the
simulated step.
If sampling may lag, `tokens` steps overlap, and the value is the larger of that sum divided by `tokens` and the busy
seconds of the busiest block: the simplest cycles of a marked graph (Commoner and others, 1971, J. Comput. Syst. Sci.
5:511-523). Not here: options, searches, and the simulated step of a choice (`search.search`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import fsum, inf
from typing import Literal

Objective = Literal["step", "devices", "cost"]
Block = frozenset[int]


@dataclass(frozen=True)
class Option:
    """One way to run one block of roles on one pool."""

    devices: tuple[int, ...]
    """The number of devices of each class; exactly one entry is not zero."""
    spans_s: tuple[float, ...]
    """Seconds that the pool is busy in each span of a step."""
    cost: float = 0.0
    """Money per second of its devices; within a class, more devices never cost less."""
    key: Hashable = None
    """Any object by which the caller recognises the option; the solver does not use it."""
    pool_s: float | None = None
    """Seconds that its pool is busy in one step; None means the sum of `spans_s`. Used only where steps overlap."""

    @property
    def device_class(self) -> int:
        """Return the index of the device class that the option runs on."""
        return next(index for index, count in enumerate(self.devices) if count)

    @property
    def busy_s(self) -> float:
        """Return the seconds that the pool is busy in one step: `pool_s`, or the sum of `spans_s` if it is None."""
        return fsum(self.spans_s) if self.pool_s is None else self.pool_s


BlockOption = tuple[Block, Option]
"""The places of the roles that share a pool, and the option that they run as."""


@dataclass(frozen=True)
class AssignmentProblem:
    """Roles to divide into blocks, with one option to choose for each block, and the number of devices of each class.

    Roles are numbered from 0; a block is a set of these numbers. `options` must be a pure function; it returns no
    options for a block that cannot run. The roles of a set in `together` must share a block; no two roles of a set in
    `apart` may.

    Raises ValueError for no roles or a duplicate name, no class or a class without devices, `tokens` below 1, and a pin
    on an unknown role.
    """

    roles: tuple[str, ...]
    capacity: tuple[int, ...]
    options: Callable[[Block], Sequence[Option]]
    tokens: int = 1
    """The number of steps that may be in progress at once: 1 on policy, k + 1 if sampling may lag by k updates."""
    objective: Objective = "step"
    together: tuple[Block, ...] = ()
    apart: tuple[Block, ...] = ()
    left_out: float = inf
    """A lower bound of the value of every choice with an option that `options` leaves out."""

    def __post_init__(self) -> None:
        if not self.roles or len(set(self.roles)) < len(self.roles):
            raise ValueError(f"roles must be named, each once, but got {self.roles}")
        if not self.capacity or min(self.capacity) < 1:
            raise ValueError(f"every class of device needs at least one device, but got {self.capacity}")
        if self.tokens < 1:
            raise ValueError(f"tokens must be at least 1, but got {self.tokens}")
        if pinned := {role for pin in (*self.together, *self.apart) for role in pin} - set(range(len(self.roles))):
            raise ValueError(f"pins name roles {sorted(pinned)}, but there are {len(self.roles)}, from 0")

    def remembering(self) -> AssignmentProblem:
        """Return the same problem with cached options, so that the options of each block are computed once."""
        return self if hasattr(self.options, "cache_info") else replace(self, options=cache(self.options))

    def allows(self, block: Block) -> bool:
        """Return whether the pins allow these roles to be one block.

        It must have all roles or none of each set in `together`, and at most one role of each set in `apart`.
        """
        joined = all(pin <= block or not pin & block for pin in self.together)
        return joined and all(len(pin & block) <= 1 for pin in self.apart)


@dataclass(frozen=True)
class Assignment:
    """A choice: blocks that contain every role once, in order of their first role, with an option for each."""

    blocks: tuple[BlockOption, ...]
    value: float
    """The value of the objective: seconds of a step, number of devices, or money for a step."""
    step_s: float
    devices: int
    cost: float
    """Money per second of all its devices."""

    @property
    def shape(self) -> tuple[tuple[tuple[int, ...], tuple[float, ...], int], ...]:
        """Return a key that stays the same when roles are renamed: devices, seconds and size of each block, sorted."""
        return tuple(sorted((option.devices, option.spans_s, len(block)) for block, option in self.blocks))


@dataclass(frozen=True)
class Solution:
    """The best choice found, a lower bound of the value of every choice, and statistics of the search.

    If `exact`, the best choice is proven and `bound` is its value. `bound` is None if no bound is known.
    """

    best: Assignment
    bound: float | None
    exact: bool
    partitions: int
    """The number of partitions examined, counted with the class of device of each block."""
    examined: int
    """The number of plans evaluated: one for each box of span seconds, or for each allocation tried."""
    runners_up: tuple[Assignment, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def value(self) -> float:
        """Return the value of the objective for the best choice."""
        return self.best.value

    @property
    def blocks(self) -> tuple[BlockOption, ...]:
        """Return the blocks of the best choice, each with its option."""
        return self.best.blocks

    @property
    def gap(self) -> float | None:
        """Return how far above the optimum the best choice may be, as a share of its value; None if no bound is known.

        The gap is 0 if the best choice is proven or its value is 0.
        """
        if self.bound is None:
            return None
        return 0.0 if self.exact or not self.value else max(0.0, 1.0 - self.bound / self.value)


def step_seconds(options: Iterable[Option], tokens: int = 1) -> float:
    """Return the seconds of one step, given the option of each block; each block has a pool of its own.

    If `tokens` steps overlap, these are the seconds from one step to the next. Raises ValueError if options differ in
    their number of spans.

    >>> generation, training = Option((2,), (3.0, 0.0)), Option((2,), (0.0, 5.0))
    >>> step_seconds([generation, training]), step_seconds([generation, training], tokens=2)
    (8.0, 5.0)
    """
    pools = list(options)
    spans = fsum(max(span) for span in zip(*(pool.spans_s for pool in pools), strict=True))
    return max(spans / tokens, max((pool.busy_s for pool in pools), default=0.0)) if tokens > 1 else spans


def assignment_of(problem: AssignmentProblem, blocks: Iterable[BlockOption]) -> Assignment:
    """Return the choice of these options for these blocks, with its value, seconds, devices and cost.

    Sums are exact (`fsum`), so the order of blocks and the names of roles do not change the result. Raises ValueError
    if options differ in their number of spans.
    """
    ordered = tuple(sorted(blocks, key=lambda placed: sorted(placed[0])))
    step_s = step_seconds((option for _, option in ordered), problem.tokens)
    devices = sum(sum(option.devices) for _, option in ordered)
    cost = fsum(option.cost for _, option in ordered)
    value = {"step": step_s, "devices": float(devices), "cost": step_s * cost}[problem.objective]
    return Assignment(ordered, value, step_s, devices, cost)


def rank(problem: AssignmentProblem, choice: Assignment) -> tuple[object, ...]:
    """Return the sort key of a choice; the best choice has the smallest.

    The key has the value, the number of pools, devices, seconds, cost, and properties of the blocks. If the objective
    is devices, seconds come directly after the value. Values count as equal if their first twelve digits agree, since
    the rest is rounding error. Remaining ties are broken by the numbers of the roles.
    """
    numbers = tuple(tuple(sorted(block)) for block, _ in choice.blocks)
    seconds_first = choice.step_s if problem.objective == "devices" else 0.0
    values = (float(f"{choice.value:.12g}"), float(f"{seconds_first:.12g}"))
    return (*values, len(choice.blocks), choice.devices, choice.step_s, choice.cost, choice.shape, numbers)


def fused(groups: Iterable[Block], roles: int) -> tuple[Block, ...]:
    """Return the smallest blocks in which the roles of each group are together; other roles have blocks of their own.

    Groups that share a role are joined. `roles` is the number of roles. Blocks are in the order of their first roles.

    >>> [sorted(each) for each in fused([frozenset({0, 2}), frozenset({2, 3})], 5)]
    [[0, 2, 3], [1], [4]]
    """
    from networkx import Graph, connected_components

    joined = Graph()
    joined.add_nodes_from(range(roles))
    joined.add_edges_from((min(group), role) for group in groups if group for role in group)
    return tuple(sorted(map(Block, connected_components(joined)), key=min))
