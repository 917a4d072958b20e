"""The memory of the window: rows and weights of several steps, which exist at once if steps overlap.

With a depth of d, rows of d + 1 steps are held: those of the step that is trained on, and of each step ahead of it. A
copy of weights that waits for earlier work of its sampler is in the store, too: one for each sync of the steps ahead.
Not here: the bytes of one step (`memory`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placements.memory.footprint import SHIPPED
from placements.step.role_placements import RolePlacement
from placements.time.training import WEIGHT_BYTES
from placements.workload.planning_problem import PlanningProblem


@dataclass(frozen=True)
class HeldSteps:
    """What steps that overlap hold in host memory: rows of `batches` steps, and `copies` of weights on their way."""

    batches: int
    rows_bytes: int
    copies: int
    weights_bytes: int

    @property
    def total_bytes(self) -> int:
        """Return the bytes of all held rows and weights."""
        return self.rows_bytes + self.weights_bytes


def window_of(problem: PlanningProblem, homes: Sequence[RolePlacement]) -> HeldSteps:
    """Return the rows and weights that placed roles hold at once; if no role works ahead, the rows of one step.

    Rows have the most tokens that a step allows. Weights are counted only for roles that sample ahead of the training
    of their weights: in float32 on CPUs, else in bfloat16.
    """
    tokens = dict[str, int]()
    for sampler, count in (response for load in problem.loads for response in load.responses):
        tokens[sampler] = max(tokens.get(sampler, 0), count)
    batches = 1 + max((home.ahead for home in homes), default=0)
    copies = weights_bytes = 0
    for home in homes:
        if home.role.name in problem.synced and home.ahead:
            waiting = -(-home.ahead // home.every(problem.running))
            copies += waiting
            number_bytes = 4 if problem.kind == "cpu" else WEIGHT_BYTES
            weights_bytes += int(waiting * number_bytes * problem.shape(home.role).trained)
    return HeldSteps(
        batches=batches,
        rows_bytes=int(batches * SHIPPED.rollout_token_bytes * sum(tokens.values())),
        copies=copies,
        weights_bytes=weights_bytes,
    )


def has_room_for_window(problem: PlanningProblem, homes: Sequence[RolePlacement]) -> bool:
    """Return whether the rows and weights of `window_of` fit in the host memory of the pools; True on CPUs.

    On CPUs, the memory forecast of each pool contains them.
    """
    if problem.kind == "cpu":
        return True
    pools = {home.pool: home.group for home in homes}.values()
    host_bytes = sum(group.devices * group.of.host_memory_bytes // group.of.node_devices for group in pools)
    return window_of(problem, homes).total_bytes <= host_bytes
