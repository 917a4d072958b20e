"""How long a placement search takes with its cost tables: the five roles of PPO on 128, 1,024 and 16,384 devices.

`python benchmarks/planning.py` prints medians of interleaved rounds, each from nothing worked out before. HybridFlow's
own search takes up to 1,400 s at 128 devices (Sheng et al. 2024, arXiv 2409.19256, figure 16, read by eye), and ReaL
gives its search 120 s. `search.py` times the search alone, on made-up tables.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(Path(__file__).parents[1])]

from flowgraph.cli.inputs import Asked as Named  # noqa: E402 - after the path above
from flowgraph.cli.setting import Question, pose  # noqa: E402
from placements.blocks import Blocks  # noqa: E402
from placements.finding import Asked, find, problem  # noqa: E402
from placements.setting import Setting  # noqa: E402
from placements.solve import solve  # noqa: E402

FLOW = Path(__file__).parent / "flows" / "ppo_reward_model.py"
SIZES = ((128, 0.2), (1024, 0.5), (16384, 2.0))  # devices, and the seconds that the search is to stay within
MODEL = "Qwen/Qwen3-8B"


def setting(devices: int, batch: int) -> Setting:
    """Give PPO with four models of 8B on so many H100, each step a batch of so many prompts."""
    asked = Named(str(FLOW), models=(f"policy={MODEL}",), batch=batch)
    return pose(Question(asked, f"{devices // 8}x8xh100", "512", "mean=1k,max=4k")).setting


def forget() -> None:
    """Empty every cache of the planner, so that the next search starts as a new process does."""
    read = ("placements.profiles", "placements.constants")  # files, which a new process reads before it searches
    for name, module in list(sys.modules.items()):
        for each in vars(module).values() if name.startswith("placements.") and name not in read else ():
            if callable(getattr(each, "cache_clear", None)):
                each.cache_clear()


def searched(fresh: Setting) -> tuple[float, float]:
    """Give the seconds of a search with its cost tables, and of these played and set beside the named placements."""
    forget()
    began = time.perf_counter()
    answer = solve(problem(fresh, Blocks(fresh), Asked()))
    search_s = time.perf_counter() - began
    assert answer is not None, "an 8B model fits on 128 devices"
    forget()
    began = time.perf_counter()
    find(replace(fresh))
    return search_s, time.perf_counter() - began


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    told: dict[int, list[tuple[float, float]]] = {devices: [] for devices, _ in SIZES}
    for _ in range(rounds):
        for devices, _ in SIZES:
            told[devices].append(searched(setting(devices, batch=max(1024, devices))))
    print("devices   search s   with plans played and named placements s   to stay within s")
    for devices, within in SIZES:
        search, whole = (median(each[part] for each in told[devices]) for part in (0, 1))
        print(f"{devices:7,}   {search:8.3f}   {whole:41.3f}   {within:16.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
