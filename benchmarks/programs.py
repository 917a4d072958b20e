"""Time programs a second: confined, one process each, beside plain subprocesses and the library's own processes.

python benchmarks/programs.py [--programs 60] [--rounds 5] [--workers 2] [--json FILE]

Every way runs the same small program, which reads a number and prints its double, in `workers` threads. The imports are
those that graders of APPS put before a program (`nodes/scoring/program_child.py`): `plain` is `python -I -c` without
them, `imports` with them, as a grader would start it. Neither is confined. `sandlock` is one process of that library
for each program, with our rules and the imports. `ours` is `run_program`: a fork of a warm, confined host. `graded` is
what a run sees: tests a second of the rule `prime_code`, with as many workers. The ways take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # a script's own folder is on the path, the checkout is not

from benchmarks.figures import Spread, table  # noqa: E402
from benchmarks.machine import machine  # noqa: E402
from nodes.scoring.confinement import lacks, system_paths  # noqa: E402
from nodes.scoring.grader_guard import DENIED, DENIED_X86  # noqa: E402
from nodes.scoring.graders import Graders  # noqa: E402
from nodes.scoring.program_child import PRELUDE  # noqa: E402
from nodes.scoring.programs import ProgramHost  # noqa: E402
from nodes.scoring.rules import resolve  # noqa: E402

CODE, STDIN, PRINTED = "print(int(input()) * 2)", "21\n", "42\n"
TESTS = 10  # of each response that is graded

Run = Callable[[], str]


def main() -> int:
    """Measure, and print a table."""
    options = _options()
    if why := lacks():
        raise SystemExit(f"no program can be confined here: {why}")
    figures = measure(options.programs, options.rounds, options.workers)
    rates = {way: Spread.of(each) for way, each in figures.items()}
    plain = rates["imports"].median
    lines = [[way, each.text(0), f"{each.median / plain:.1f}"] for way, each in rates.items()]
    print(f"programs a second in {options.workers} threads, median of {options.rounds} rounds (least … most)")
    print(table(["", "programs a second", "times `imports`"], lines))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(("flowgraph", "sandlock")), "rates": figures}, indent=1))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time confined programs beside plain subprocesses.")
    for name, default in (("programs", 60), ("rounds", 5), ("workers", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path, help="write all figures here")
    return parser.parse_args()


def measure(programs: int, rounds: int, workers: int) -> dict[str, list[float]]:
    """Return the programs a second of each way, round by round; the first round of each is not counted."""
    hosts = [ProgramHost() for _ in range(workers)]
    pool = Graders(workers)
    with tempfile.TemporaryDirectory() as scratch:
        ways: dict[str, Callable[[int], Run]] = {
            "plain": lambda worker: partial(plain, CODE),
            "imports": lambda worker: partial(plain, PRELUDE + CODE),
            "sandlock": lambda worker: partial(library, PRELUDE + CODE, scratch),
            "ours": lambda worker: lambda: hosts[worker].run(CODE, STDIN).stdout,
        }
        rates: dict[str, list[float]] = {way: [] for way in (*ways, "graded")}
        for _ in range(rounds + 1):
            for way, of_worker in ways.items():
                rates[way].append(programs / in_threads([of_worker(at) for at in range(workers)], programs))
            rates["graded"].append(graded(pool, programs))
    pool.close()
    for host in hosts:
        host.close()
    return {way: each[1:] for way, each in rates.items()}


def in_threads(runs: list[Run], programs: int) -> float:
    """Return the seconds of `programs` runs, dealt out to threads; refuse a wrong result."""

    def several(run: Run) -> None:
        for _ in range(programs // len(runs)):
            if (printed := run()) != PRINTED:
                raise SystemExit(f"a program printed {printed!r}")

    began_s = time.perf_counter()
    with ThreadPoolExecutor(len(runs)) as threads:
        list(threads.map(several, runs))
    return time.perf_counter() - began_s


def plain(code: str) -> str:
    """Run a program in a process of its own, without confinement."""
    command = [sys.executable, "-I", "-c", code]
    return subprocess.run(command, input=STDIN, capture_output=True, text=True, check=True).stdout


def library(code: str, scratch: str) -> str:
    """Run a program in a process of sandlock, with the rules of a host."""
    import sandlock

    denied = [*DENIED, *(DENIED_X86 if os.uname().machine == "x86_64" else ())]
    sandbox = sandlock.Sandbox(
        fs_readable=system_paths(),
        fs_writable=[scratch, "/dev/null"],
        extra_deny_syscalls=denied,
        max_processes=1,
        cwd=scratch,
    )
    piped = sandlock.StdioMode.PIPED
    process: Any = sandbox.popen([sys.executable, "-I", "-c", code], stdin=piped, stdout=piped)
    process.stdin.write(STDIN.encode())
    process.stdin.close()
    printed: bytes = process.stdout.read()
    process.wait()
    return printed.decode()


def graded(pool: Graders, programs: int) -> float:
    """Return the tests a second of `prime_code`, on responses of `TESTS` tests each."""
    truth = json.dumps({"inputs": [STDIN] * TESTS, "outputs": [PRINTED] * TESTS})
    rows = [{"response": f"```python\n{CODE}\n```", "ground_truth": truth}] * max(1, programs // TESTS)
    began_s = time.perf_counter()
    scores = pool.grade(resolve("prime_code"), rows).scores
    if set(scores) != {1.0}:
        raise SystemExit(f"right programs scored {scores}")
    return len(rows) * TESTS / (time.perf_counter() - began_s)


if __name__ == "__main__":
    raise SystemExit(main())
