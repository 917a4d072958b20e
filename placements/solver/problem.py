"""The search for a placement as numbers alone: blocks of roles, options that each can run as, what a choice is worth.

A choice is worth the seconds of one step: the sum over stages of the slowest block of that stage, the cost of
HybridFlow's mapping search (Sheng and others, 2024, arXiv 2409.19256, algorithm 1: `d_cost`). Where stages are the
spans between barriers at which all blocks wait for each other (`step.barriers`), no choice is played in less. Where
sampling may lag, `tokens` steps overlap, and what is left is the largest of that sum over `tokens` and of the busiest
block: the plainest cycles of a marked graph (Commoner and others, 1971, J. Comput. Syst. Sci. 5:511-523). Not here:
options, searches, and what a choice takes as it is played (`search.search`).
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
    """How many of each class of device it takes; one entry is not zero."""
    stages_s: tuple[float, ...]
    """Seconds that the pool is busy in each stage of a step."""
    cost: float = 0.0
    """Money per second of its devices; within a class, more devices never cost less."""
    key: Hashable = None
    """What the caller made it from; the search only carries it."""
    pool_s: float | None = None
    """Seconds that its pool is busy in one step, if not the sum of its stages; counts where steps overlap."""

    @property
    def device_class(self) -> int:
        """Return the class of device it runs on."""
        return next(index for index, count in enumerate(self.devices) if count)

    @property
    def busy_s(self) -> float:
        """Return the seconds that its pool is busy in one step."""
        return fsum(self.stages_s) if self.pool_s is None else self.pool_s


@dataclass(frozen=True)
class Problem:
    """Roles to cut into blocks, with one option for each block, within the devices that each class has.

    Roles are numbered from 0; a block is a set of these numbers. `options` is pure and called once for each block; it
    returns no options for a block that cannot run. The roles of a set in `together` share a block; no two of a set in
    `apart` do.
    Raises ValueError for an invalid problem: no roles or a name twice, no devices, no tokens, a pin on an unknown role.
    """

    roles: tuple[str, ...]
    capacity: tuple[int, ...]
    options: Callable[[Block], Sequence[Option]]
    tokens: int = 1
    """How many steps may be under way at once: 1 on policy, k + 1 where sampling may lag k updates."""
    objective: Objective = "step"
    together: tuple[Block, ...] = ()
    apart: tuple[Block, ...] = ()
    left_out: float = inf
    """What a choice is worth at least that holds an option which `options` leaves out."""

    def __post_init__(self) -> None:
        """Raise ValueError for an invalid problem."""
        if not self.roles or len(set(self.roles)) < len(self.roles):
            raise ValueError(f"roles must be named, each once, but got {self.roles}")
        if not self.capacity or min(self.capacity) < 1:
            raise ValueError(f"every class of device needs at least one device, but got {self.capacity}")
        if self.tokens < 1:
            raise ValueError(f"tokens must be at least 1, but got {self.tokens}")
        if pinned := {role for pin in (*self.together, *self.apart) for role in pin} - set(range(len(self.roles))):
            raise ValueError(f"pins name roles {sorted(pinned)}, but there are {len(self.roles)}, from 0")

    def remembering(self) -> Problem:
        """Return the same problem with cached options, computed once for each block."""
        return self if hasattr(self.options, "cache_info") else replace(self, options=cache(self.options))

    def allows(self, block: Block) -> bool:
        """Return whether the pins allow these roles as one block."""
        joined = all(pin <= block or not pin & block for pin in self.together)
        return joined and all(len(pin & block) <= 1 for pin in self.apart)


@dataclass(frozen=True)
class Assignment:
    """A set of blocks that covers every role, with the option of each; blocks in order of their first role."""

    blocks: tuple[tuple[Block, Option], ...]
    value: float
    """What the problem asks to be least: seconds of a step, devices, or money for a step."""
    step_s: float
    devices: int
    cost: float
    """Money per second of all its devices."""

    @property
    def shape(self) -> tuple[tuple[tuple[int, ...], tuple[float, ...], int], ...]:
        """Return what does not change when roles are renamed: devices, seconds and size of each block, sorted."""
        return tuple(sorted((option.devices, option.stages_s, len(block)) for block, option in self.blocks))


@dataclass(frozen=True)
class Solution:
    """The best choice that was found, what no choice can be better than, and the work that it took.

    `exact` says that the best is proven; then `bound` is its value. `bound` is None where none is known.
    """

    best: Assignment
    bound: float | None
    exact: bool
    partitions: int
    """Ways to cut roles into blocks, each on a class of device, that were looked into."""
    examined: int
    """Plans that were weighed: one for each box of stage seconds, or for each allocation tried."""
    runners_up: tuple[Assignment, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def value(self) -> float:
        """Return the value of the best choice."""
        return self.best.value

    @property
    def blocks(self) -> tuple[tuple[Block, Option], ...]:
        """Return the blocks of the best choice."""
        return self.best.blocks

    @property
    def gap(self) -> float | None:
        """Return the share of its value that the best may be above the optimum; 0 only if that is proven."""
        if self.bound is None:
            return None
        return 0.0 if self.exact or not self.value else max(0.0, 1.0 - self.bound / self.value)


def step_seconds(options: Iterable[Option], tokens: int = 1) -> float:
    """Return the seconds of one step of blocks that run as these options, each on a pool of its own.

    >>> generation, training = Option((2,), (3.0, 0.0)), Option((2,), (0.0, 5.0))
    >>> step_seconds([generation, training]), step_seconds([generation, training], tokens=2)
    (8.0, 5.0)
    """
    pools = list(options)
    stages = fsum(max(stage) for stage in zip(*(pool.stages_s for pool in pools), strict=True))
    return max(stages / tokens, max((pool.busy_s for pool in pools), default=0.0)) if tokens > 1 else stages


def assignment_of(problem: Problem, blocks: Iterable[tuple[Block, Option]]) -> Assignment:
    """Measure a choice; sums are exact, so that the order of blocks and the names of roles change no digit."""
    ordered = tuple(sorted(blocks, key=lambda placed: sorted(placed[0])))
    step_s = step_seconds((option for _, option in ordered), problem.tokens)
    devices = sum(sum(option.devices) for _, option in ordered)
    cost = fsum(option.cost for _, option in ordered)
    value = {"step": step_s, "devices": float(devices), "cost": step_s * cost}[problem.objective]
    return Assignment(ordered, value, step_s, devices, cost)


def rank(problem: Problem, choice: Assignment) -> tuple[object, ...]:
    """Return what choices are sorted by: value, then pools, devices and seconds, then what renaming roles keeps.

    Where devices are the value, seconds come next. Values are equal if their first twelve digits are: the others are
    what rounding made of them. What is equal in all of this differs in the numbers of roles only; the lower is first.
    """
    numbers = tuple(tuple(sorted(block)) for block, _ in choice.blocks)
    seconds_first = choice.step_s if problem.objective == "devices" else 0.0
    values = (float(f"{choice.value:.12g}"), float(f"{seconds_first:.12g}"))
    return (*values, len(choice.blocks), choice.devices, choice.step_s, choice.cost, choice.shape, numbers)


def fused(groups: Iterable[Block], roles: int) -> tuple[Block, ...]:
    """Join sets that share a role, and give every role its set: the smallest blocks that pins allow.

    >>> [sorted(each) for each in fused([frozenset({0, 2}), frozenset({2, 3})], 5)]
    [[0, 2, 3], [1], [4]]
    """
    from networkx import Graph, connected_components

    joined = Graph()
    joined.add_nodes_from(range(roles))
    joined.add_edges_from((min(group), role) for group in groups if group for role in group)
    return tuple(sorted(map(Block, connected_components(joined)), key=min))
