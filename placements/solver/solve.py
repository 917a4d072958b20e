"""The choice of a search method: all partitions if there are few enough, else a local search with a bound."""

from __future__ import annotations

from typing import Literal

from placements.solver.exact import solve_exact
from placements.solver.greedy import solve_greedy
from placements.solver.partition_bounds import count_covers
from placements.solver.problem import AssignmentProblem, Solution

Method = Literal["auto", "exact", "greedy"]

EXACT_ROLES = 10  # more have too many blocks for every one to be asked about
COVERS_AT_MOST = 120_000  # 10 roles have 115,975 partitions; 8 roles on two classes of device have 89,918
WIDTH, SETTLED = 4, 10


def is_exact(problem: AssignmentProblem, method: Method = "auto") -> bool:
    """Return whether `solve` examines all partitions of a problem with this method."""
    few = len(problem.roles) <= EXACT_ROLES and count_covers(problem) <= COVERS_AT_MOST
    return method == "exact" or (method == "auto" and few)


def solve(problem: AssignmentProblem, method: Method = "auto") -> Solution | None:
    """Return the best choice of a problem; None if nothing fits, or if `greedy` finds nothing.

    `auto` is `exact` up to COVERS_AT_MOST partitions (counted with the class of device of each block), which covers 10
    roles on one class and 8 roles on two. For larger problems it runs a local search from several partitions at once
    and solves the best of these exactly; the bound of the solution limits the error. `options` is called once for each
    block.
    """
    problem = problem.remembering()
    if method == "greedy":
        return solve_greedy(problem)
    if is_exact(problem, method):
        return solve_exact(problem)
    return solve_greedy(problem, width=WIDTH, settled=SETTLED)
