"""Time the search for a placement on synthetic tables of seconds, and see how far from the best a greedy walk ends.

python benchmarks/search.py [--rounds 5] [--instances 20] [--quick]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a script's own folder is on the path

from placements.solver.exact import solve_exact
from placements.solver.greedy import solve_greedy
from placements.solver.problem import AssignmentProblem, Block, Option, Solution
from placements.solver.solve import solve
from tests.placement.search_oracles import blocks_of, every_choice

PEAK_FLOPS, MEMORY_BYTES_PER_S, MEMORY_BYTES = 990e12, 3.35e12, 80e9  # of a device; as the data sheet of an H100 SXM
STAGES = ("generation", "preparation", "training", "sync")
TRAINED_BYTES, HELD_BYTES = 18, 2  # of one parameter
VARIANTS = 4  # ways to run a block on so many devices: more room for the cache, or for the training
BUDGET_S = {128: 0.05, 1_024: 0.15, 16_384: 0.6}
SIZES_B = (1.5, 4, 7, 13, 34, 70)


@dataclass(frozen=True)
class Role:
    """What one role asks of devices in a step: floating-point operations and bytes by stage, and what it holds."""

    flops: tuple[float, ...]
    read_bytes: tuple[float, ...]
    least_s: tuple[float, ...]
    held_bytes: float

    def stages_s(self, devices: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the seconds of each stage: the slower of sums and memory, and what devices do not make shorter."""
        attained = 0.45 / (1 + 0.02 * np.log2(devices))
        sums = np.array(self.flops) / (devices * PEAK_FLOPS * attained)
        return np.maximum(sums, np.array(self.read_bytes) / (devices * MEMORY_BYTES_PER_S * 0.7)) + self.least_s


def sizes(devices: int) -> list[int]:
    """List the sizes of pools: powers of two below 8, then multiples of 8 whose quotient has no factor above 5.

    >>> sizes(64)
    [1, 2, 4, 8, 16, 24, 32, 40, 48, 64]
    """

    def smooth(number: int) -> bool:
        for factor in (2, 3, 5):
            while number % factor == 0:
                number //= factor
        return number == 1

    return [each for each in (1, 2, 4) if each <= devices] + [8 * n for n in range(1, devices // 8 + 1) if smooth(n)]


def draw_roles(rng: np.random.Generator, count: int) -> list[Role]:
    """Draw policy training, policy sampling, reference, critic, and judges, of random sizes, batch and lengths."""
    policy, critic = (float(rng.choice(SIZES_B)) * 1e9 for _ in range(2))
    rows, response = int(rng.choice([512, 1024, 4096])), int(rng.choice([1024, 4096, 16384]))
    tokens = rows * (1024 + 0.4 * response)

    def role(size: float, *, prepares: float = 0.0, trains: float = 0.0, held: float = HELD_BYTES) -> Role:
        flops = (0.0, 2 * prepares * size * tokens, 6 * trains * size * tokens, 0.0)
        fixed = (0.0, float(rng.uniform(0.2, 8)) * (prepares > 0), float(rng.uniform(1, 15)) * (trains > 0), 0.0)
        return Role(flops, (0.0, 0.0, 0.0, 0.0), fixed, held * size)

    # Decoding reads weights once a token for every 64 rows, and what is longest decodes alone in the end.
    reads = (HELD_BYTES * policy + 64 * 2e5 * response / 2) * 0.4 * response * rows / 64
    tail_s = 0.4 * response * HELD_BYTES * policy / (8 * MEMORY_BYTES_PER_S)
    sampling = Role((0.0,) * 4, (reads, 0.0, 0.0, 0.0), (tail_s, 0.0, 0.0, 0.0), HELD_BYTES * policy)
    first = [role(policy, trains=1, held=TRAINED_BYTES), sampling, role(policy, prepares=1)]
    judges = [role(float(rng.choice(SIZES_B)) * 1e9, prepares=1) for _ in range(max(0, count - 4))]
    return [*first, role(critic, prepares=1, trains=1, held=TRAINED_BYTES), *judges][:count]


def roofline(devices: int, seed: int, *, roles: int = 5, **settings: Any) -> AssignmentProblem:
    """Make a problem of rooflines: `roles` roles on `devices` devices of one class, the same for the same seed."""
    rng = np.random.default_rng(seed)
    drawn = draw_roles(rng, roles)
    tables = {block: list(_options(drawn, block, devices, rng)) for block in blocks_of(roles)}
    return AssignmentProblem(tuple(f"role{at}" for at in range(roles)), (devices,), tables.__getitem__, **settings)


def _options(drawn: Sequence[Role], block: Block, devices: int, rng: np.random.Generator) -> Iterator[Option]:
    held = sum(drawn[role].held_bytes for role in block)
    for size in sizes(devices):
        if held > 0.8 * MEMORY_BYTES * size:
            continue
        stages_s = np.sum([drawn[role].stages_s(size) for role in sorted(block)], axis=0)
        if len(block & {0, 1}) == 1:  # weights go from one pool to another
            stages_s[3] += drawn[1].held_bytes / 25e9 / 8 if len(drawn) > 1 else 0.0
        for at in range(VARIANTS if (stages_s > 0).sum() > 1 else 1):
            # Sizes do not all divide well: more devices are not always faster, and gains do not always shrink.
            share = np.array([1 + 0.08 * at, 1.0, 1.3 / (1 + 0.1 * at), 1 + 0.05 * at]) * rng.uniform(
                0.92, 1.08, size=4
            )
            yield Option((size,), tuple(map(float, stages_s * share)), cost=2.5 / 3600 * size, key=(size, at))


def timed(problems: Sequence[AssignmentProblem], rounds: int) -> list[list[float]]:
    """Time exact answers, every problem once a round, in seconds of wall time [problem][round]."""
    seconds = [list[float]() for _ in problems]
    for _ in range(rounds):
        for each, problem in zip(seconds, problems, strict=True):
            began = perf_counter()
            solve_exact(problem)
            each.append(perf_counter() - began)
    return seconds


def speed(rounds: int, instances: int) -> None:
    """Print seconds by devices, with what was examined."""
    cases = [(devices, seed) for seed in range(instances) for devices in BUDGET_S]
    problems = [roofline(*case) for case in cases]
    seconds, answers = timed(problems, rounds), [solve_exact(each) for each in problems]
    print(f"exact, 5 roles, {instances} tables each, {rounds} rounds, options given:")
    print("  devices  sizes  options  median s  worst table s  budget s  partitions  boxes")
    for devices, budget_s in BUDGET_S.items():
        here = [at for at, case in enumerate(cases) if case[0] == devices]
        of_tables = [median(seconds[at]) for at in here]
        found = [answer for at in here if (answer := answers[at]) is not None]
        options = max(len(problems[at].options(Block({0, 1, 2}))) for at in here)
        partitions, boxes = (median(each) for each in zip(*((a.partitions, a.examined) for a in found), strict=True))
        print(
            f"  {devices:7,}  {len(sizes(devices)):5}  {options:7}  {median(of_tables):8.3f}  {max(of_tables):13.3f}"
            f"  {budget_s:8}  {partitions:10.0f}  {boxes:5.0f}"
        )


def larger(rounds: int, instances: int) -> None:
    """Print seconds by roles."""
    print(f"auto, {instances} tables each: proven up to 10 roles, then a walk with a bound:")
    print("  roles  devices  median s  worst table s  proven  worst gap stated")
    for roles, devices in ((6, 1_024), (7, 1_024), (8, 1_024), (8, 16_384), (9, 1_024), (10, 256), (11, 128)):
        found = [answer for seed in range(instances) if (answer := solve(roofline(devices, seed, roles=roles)))]
        of_tables = [each.seconds for each in found]
        print(
            f"  {roles:5}  {devices:7,}  {median(of_tables):8.2f}  {max(of_tables):13.2f}"
            f"  {sum(each.exact for each in found):4}/{len(found)}  {max(each.gap or 0.0 for each in found):.2%}"
        )


def gaps(instances: int, devices: Sequence[int]) -> None:
    """Print by how much greedy answers are above the best, and by how much they say that they may be."""
    print(f"greedy against exact, 5 roles, {instances} tables each (share of the greedy value above the best):")
    print(
        "  objective  tokens  devices   best   median     p90   worst   stated p90   stated worst   s greedy  s exact"
    )
    for objective, tokens in (("step", 1), ("step", 2), ("cost", 1), ("devices", 1)):
        for count in devices:
            problems = [roofline(count, seed, objective=objective, tokens=tokens) for seed in range(instances)]
            pairs = [(solve_exact(each), solve_greedy(each)) for each in problems]
            print(_gap_line(objective, tokens, count, [(a, b) for a, b in pairs if a is not None and b is not None]))


def _gap_line(objective: str, tokens: int, devices: int, pairs: Sequence[tuple[Solution, Solution]]) -> str:
    above = [1 - exact.value / greedy.value for exact, greedy in pairs]
    stated = [greedy.gap or 0.0 for _, greedy in pairs]
    times = median(greedy.seconds for _, greedy in pairs), median(exact.seconds for exact, _ in pairs)
    return (
        f"  {objective:9}  {tokens:6}  {devices:7,}  {sum(each < 1e-9 for each in above) / len(above):5.0%}"
        f"  {median(above):7.2%}  {quantiles(above, n=10)[-1]:6.2%}  {max(above):6.2%}"
        f"  {quantiles(stated, n=10)[-1]:11.2%}  {max(stated):13.2%}  {times[0]:9.3f}  {times[1]:7.3f}"
    )


def against_every_choice(instances: int, devices: int) -> None:
    """Print that the exact answer is the best of all choices, and what weighing each of them takes."""
    agree, seconds, choices = 0, list[float](), list[int]()
    for seed in range(instances):
        problem = roofline(devices, seed, roles=4)
        began = perf_counter()
        every = every_choice(problem)
        seconds.append(perf_counter() - began)
        choices.append(sum(least.choices for least in every.values()))
        answer = solve_exact(problem)
        least = min((each.value for each in every.values()), default=None)
        agree += (answer is None) == (least is None) and (answer is None or abs(answer.value - (least or 0)) < 1e-9)
    print(
        f"every choice, 4 roles, {devices} devices: {agree} of {instances} agree;"
        f" {median(choices):,.0f} choices in {median(seconds):.2f} s"
    )


def main() -> None:
    """Read the command line and print every table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--instances", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="one round of few tables: does it work at all")
    asked = parser.parse_args()
    rounds, instances = (1, 3) if asked.quick else (asked.rounds, asked.instances)
    speed(rounds, instances)
    gaps(instances, (128, 1_024, 16_384))
    against_every_choice(min(instances, 10), 32)
    larger(rounds, min(instances, 5))


if __name__ == "__main__":
    main()
