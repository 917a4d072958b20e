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
    """Return whether `solve` with this method examines all partitions of a problem.

    With `auto` it does for at most 10 roles and 120,000 partitions, counted with the class of device of each block.
    """
    few = len(problem.roles) <= EXACT_ROLES and count_covers(problem) <= COVERS_AT_MOST
    return method == "exact" or (method == "auto" and few)


def solve(problem: AssignmentProblem, method: Method = "auto") -> Solution | None:
    """Search for the best choice of a problem, and return the best that was found; None if none was found.

    `exact` examines all partitions, and `greedy` runs a narrow local search. `auto` is `exact` if `is_exact` allows it,
    as for 10 roles on one class of device or 8 on two. Else a wider local search runs, and its best partitions are
    searched again by branch and bound; the bound of the solution (None for more than 12 roles) limits its error. After
    a local search, None does not prove that nothing fits. The problem's `options` is called at most once for each
    block. Raises ValueError for options that `tables_of_block` refuses.
    """
    problem = problem.remembering()
    if method == "greedy":
        return solve_greedy(problem)
    if is_exact(problem, method):
        return solve_exact(problem)
    return solve_greedy(problem, width=WIDTH, settled=SETTLED)
