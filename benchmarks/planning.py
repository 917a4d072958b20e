"""How long a placement search takes: PPO on 128 to 16,384 devices, ten roles, three kinds of device.

`python benchmarks/planning.py` prints medians of interleaved rounds, each from nothing worked out before. HybridFlow's
own search takes up to 1,400 s at 128 devices (Sheng et al. 2024, arXiv 2409.19256, figure 16, read by eye), and ReaL
gives its search 120 s. `search.py` times the search alone, on made-up tables.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(Path(__file__).parents[1])]

from flowgraph.app import make_request  # noqa: E402 - after the path above
from flowgraph.app.planning.problem import prepare  # noqa: E402
from placements.search.plan_request import PlanRequest  # noqa: E402
from placements.search.pool_options import PoolOptions  # noqa: E402
from placements.search.search import assignment_problem, find  # noqa: E402
from placements.solver.solve import solve  # noqa: E402
from placements.workload.planning_problem import PlanningProblem  # noqa: E402

FLOWS = Path(__file__).parent / "flows"
MODEL = "Qwen/Qwen3-8B"


@dataclass(frozen=True)
class Case:
    """One search: its flow, its cluster, its prompts, and the CPU seconds that it is to stay within."""

    name: str
    flow: str
    cluster: str
    batch: int
    within_s: float


CASES = (
    *(
        Case(f"5 roles on {devices:,} H100", "ppo_reward_model", f"{devices // 8}x8xh100", max(1024, devices), within_s)
        for devices, within_s in ((128, 0.2), (1024, 0.5), (16384, 1.0))
    ),
    Case("10 roles on 128 H100", "seven_rewards", "16x8xh100", 1024, 3.0),
    Case("5 roles on 3 kinds", "ppo_reward_model", "8x8xh100,8x8xa100,8x8xl40s", 1024, 3.0),
)


def problem(case: Case) -> PlanningProblem:
    """Return the planning problem of a case: every model of 8B, prompts of 512 tokens, responses of 1k on average."""
    request = make_request(
        flow=str(FLOWS / f"{case.flow}.py"),
        model=f"policy={MODEL}",
        batch=case.batch,
        cluster=case.cluster,
        prompt_tokens=512,
        response_tokens="mean=1k,max=4k",
    )
    return prepare(request).problem


def forget() -> None:
    """Empty every cache of the planner, so that the next search starts as a new process does."""
    read = (
        "placements.hardware.device_profiles",
        "placements.hardware.engine_constants",
    )  # files, which a new process reads before it searches
    for name, module in list(sys.modules.items()):
        for each in vars(module).values() if name.startswith("placements.") and name not in read else ():
            if callable(getattr(each, "cache_clear", None)):
                each.cache_clear()


def searched(fresh: PlanningProblem) -> tuple[float, float]:
    """Return the CPU seconds of a search, and of one whose plans are simulated and set beside the named placements."""
    forget()
    began = time.process_time()
    answer = solve(assignment_problem(fresh, PoolOptions(fresh), PlanRequest()))
    search_s = time.process_time() - began
    assert answer is not None, "an 8B model fits on 128 devices"
    forget()
    began = time.process_time()
    find(replace(fresh))
    return search_s, time.process_time() - began


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    taken: dict[str, list[tuple[float, float]]] = {case.name: [] for case in CASES}
    for _ in range(rounds):
        for case in CASES:
            taken[case.name].append(searched(problem(case)))
    print("CPU seconds             search   with plans simulated and named placements   search to stay within")
    for case in CASES:
        search, whole = (median(each[part] for each in taken[case.name]) for part in (0, 1))
        print(f"{case.name:22}  {search:6.2f}   {whole:38.2f}   {case.within_s:21.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
