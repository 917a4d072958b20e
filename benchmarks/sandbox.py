"""Grade programs in the sandbox, and with plain `subprocess.run`, which confines nothing: programs per second.

python benchmarks/sandbox.py [--rounds 5] [--rows 24] [--workers 2] [--json FILE]

The rows are as in APPS: programs that read standard input and print, four tests each; one program in six fails a test.
`prime_code` grades them in the sandbox, in graders that are warm. Beside it, as many threads call `subprocess.run` for
each test, with `python -c`, and with `python -I -S -c`, and compare what is printed by the same function. All ways take
turns, each second round backwards, must give the same scores, and have one thread in every process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # a script's own folder is on the path, the checkout is not

from benchmarks.cost import used_s  # noqa: E402
from benchmarks.figures import Spread, ratios, table  # noqa: E402
from benchmarks.machine import ONE_THREAD, machine  # noqa: E402
from nodes.scoring.graders import Graders  # noqa: E402
from nodes.scoring.program_tests import same_print, tests_of  # noqa: E402
from nodes.scoring.rules import resolve  # noqa: E402

SANDBOX, PLAIN, BARE = "prime_code, in the sandbox", "subprocess.run, python -c", "subprocess.run, python -I -S -c"
TESTS, LIMIT_S = 4, 10.0

SUM = "n = int(input())\nvalues = list(map(int, input().split()))\nprint(sum(values), max(values))"
PRIMES = """\
n = int(input().split()[0])
prime = [True] * (n + 1)
for k in range(2, int(n ** 0.5) + 1):
    if prime[k]:
        prime[k * k :: k] = [False] * len(prime[k * k :: k])
print(sum(prime[2:]))"""
COUNTS = """\
from collections import Counter
input()
for value, count in sorted(Counter(input().split()).items()):
    print(value, count)"""
STEPS = """\
import sys
from collections import deque
n, *values = map(int, sys.stdin.read().split())
far, queue = {0: 0}, deque([0])
while queue:
    at = queue.popleft()
    for next in (at + 1, at + values[at] % 9):
        if next < n and next not in far:
            far[next] = far[at] + 1
            queue.append(next)
print(far[n - 1])"""
CHANGE = """\
def main():
    n = int(input())
    coins = sorted(set(map(int, input().split())))[:8]
    ways = [1] + [0] * n
    for coin in coins:
        for amount in range(coin, n + 1):
            ways[amount] = (ways[amount] + ways[amount - coin]) % 1000007
    print(ways[n])

if __name__ == "__main__":
    main()"""
PROGRAMS = (SUM, PRIMES, COUNTS, STEPS, CHANGE)
FAULTY = SUM.replace("print(", "print(0 if values[0] % 2 else ")  # prints other values where the first is odd

Row = Mapping[str, str]
Ways = Mapping[str, Callable[[Sequence[Row]], list[float]]]


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """Wall seconds and CPU seconds of all rows by way and round, and the number of programs that are run in each."""

    wall_s: Mapping[str, list[float]]
    cpu_s: Mapping[str, list[float]]
    programs: int


def main() -> int:
    """Measure, print a table, and write the figures if `--json` names a file."""
    parser = argparse.ArgumentParser(description="Time programs in the sandbox against plain subprocesses.")
    for name, default in (("rounds", 5), ("rows", 24), ("workers", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path, help="write all figures here")
    options = parser.parse_args()
    os.environ.update(ONE_THREAD)
    about = machine(("flowgraph", "sandlock"))
    with Graders(options.workers, LIMIT_S) as graders:
        speeds = measured(ways(graders, options.workers), rows(options.rows), options.rounds)
    print(report(speeds))
    print(f"{about['cpu']}, {options.workers} workers, load {about['load']:.1f} before")
    if options.json:
        options.json.write_text(json.dumps({"machine": about, "speeds": asdict(speeds)}, indent=1), "utf-8")
    return 0


def rows(count: int) -> list[Row]:
    """Return responses with their tests, the same on every run; what is expected is what the right program prints."""
    generator = random.Random(22)
    made = list[Row]()
    for at in range(count):
        code = (*PROGRAMS, SUM)[at % (len(PROGRAMS) + 1)]
        inputs = list[str]()
        for test in range(TESTS):
            n = generator.randrange(200, 1_000)
            first = [2 * n + (test == 0)]  # odd in the first test only
            values = [*first, *(generator.randrange(1, n) for _ in range(n - 1))]
            inputs.append(f"{n}\n{' '.join(map(str, values))}\n")
        outputs = [_printed(code, stdin) for stdin in inputs]
        response = FAULTY if at % (len(PROGRAMS) + 1) == len(PROGRAMS) else code
        truth = json.dumps({"inputs": inputs, "outputs": outputs})
        made.append({"response": f"```python\n{response}\n```", "ground_truth": truth})
    return made


def _printed(code: str, stdin: str, *options: str) -> str:
    command = [sys.executable, *options, "-c", code]
    ended = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return ended.stdout


def ways(graders: Graders, workers: int) -> Ways:
    """Return the ways to grade rows, by name."""
    return {
        PLAIN: partial(plain_scores, workers=workers),
        BARE: partial(plain_scores, workers=workers, options=("-I", "-S")),
        SANDBOX: lambda graded: list(graders.grade(resolve("prime_code"), graded).scores),
    }


def plain_scores(graded: Sequence[Row], *, workers: int, options: Sequence[str] = ()) -> list[float]:
    """Return the share of tests that each row's program passes, run without any confinement."""

    def share(row: Row) -> float:
        code = row["response"].removeprefix("```python\n").removesuffix("\n```")
        tests = list(tests_of(row["ground_truth"]))
        return sum(same_print(_printed(code, test.stdin, *options), test.expected) for test in tests) / len(tests)

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(share, graded))


def measured(graders: Ways, graded: Sequence[Row], rounds: int) -> Speeds:
    """Grade the rows in each way once a round; the first round is not counted. Exits if ways give other scores."""
    wall_s: dict[str, list[float]] = {name: [] for name in graders}
    cpu_s: dict[str, list[float]] = {name: [] for name in graders}
    for number in range(rounds + 1):
        scores = dict[str, list[float]]()
        for name in list(graders)[:: -1 if number % 2 else 1]:
            used, began = used_s(), time.perf_counter()
            scores[name] = graders[name](graded)
            wall_s[name].append(time.perf_counter() - began)
            cpu_s[name].append(used_s() - used)
        if any(each != scores[PLAIN] for each in scores.values()):
            sys.exit(f"the ways give other scores: {scores}")
    counted = ({name: each[1:] for name, each in seconds.items()} for seconds in (wall_s, cpu_s))
    return Speeds(wall_s=next(counted), cpu_s=next(counted), programs=len(graded) * TESTS)


def report(speeds: Speeds) -> str:
    """Return programs per second, CPU milliseconds per program, and their ratio to plain subprocesses, as a table."""
    lines = list[list[str]]()
    for name, wall_s in speeds.wall_s.items():
        per_s = Spread.of([speeds.programs / each for each in wall_s])
        cpu_s = speeds.cpu_s[name]
        cells = [per_s.text(0), Spread.of(ratios(speeds.wall_s[PLAIN], wall_s)).text(2)]
        cells += [f"{median(cpu_s) / speeds.programs * 1e3:.1f}", Spread.of(ratios(cpu_s, speeds.cpu_s[PLAIN])).text(2)]
        lines.append([name, *cells])
    head = ["", "programs per s", "times plain's", "CPU ms per program", "CPU relative to plain"]
    return table(head, lines)


if __name__ == "__main__":
    sys.exit(main())
