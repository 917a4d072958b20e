"""Time a GRPO step by hand, in process, and on Ray: what graph, Arrow and Ray add to the same bodies. See README.md.

python benchmarks/overhead.py [--rounds 12] [--steps 2] [--model tiny:hidden=160,layers=4] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # a script's own folder is on the path, the checkout is not

from benchmarks.figures import Spread, ratios, table  # noqa: E402
from benchmarks.machine import ONE_THREAD, machine  # noqa: E402
from benchmarks.material import make_model  # noqa: E402
from benchmarks.overhead_side import BY_HAND, CALLS, WAYS, Job, grpo_graph, one_pool  # noqa: E402

SAME = 1e-5  # of each metric, relative above 1
NODE_GOAL_MS, STEP_GOAL = 15.0, 0.05
SECONDS, CPU = "seconds", "cpu_s"


class OtherWorkError(Exception):
    """Two ways that should do the same work gave other metrics."""


@dataclass(eq=False)
class Side:
    """A way in a process of its own, which does nothing until it is asked."""

    way: str
    child: subprocess.Popen[str]

    @classmethod
    def start(cls, way: str, job: Job) -> Side:
        """Start it, and wait until it is ready."""
        command = [sys.executable, str(HERE / "overhead_side.py"), way, json.dumps(asdict(job))]
        env = os.environ | ONE_THREAD
        child = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        side = cls(way, child)
        assert side.read() == {"ready": way}
        return side

    def ask(self, told: object) -> Any:
        """Ask, and wait for the answer."""
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(told) + "\n")
        self.child.stdin.flush()
        return self.read()

    def read(self) -> Any:
        """Read an answer. Raises EOFError where the process ended instead."""
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        if not line:
            raise EOFError(f"`{self.way}` ended with {self.child.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """Let it end."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait(timeout=60)


def main() -> int:
    """Measure, print the tables, and write all figures where `--json` says."""
    options = _options()
    folder = options.work.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    model = make_model(options.model, folder / "models" / options.model.replace(":", "-"), folder / "cache")
    job = Job(str(model), str(folder / "cache"), options.prompts, options.samples, options.tokens)
    before = machine()
    with ExitStack() as stack:
        sides = dict[str, Side]()
        for way in WAYS:
            sides[way] = Side.start(way, job)
            stack.callback(sides[way].close)
        taken = rounds(sides, options.rounds, options.steps)
        calls = {way: sides[way].ask("calls") for way in WAYS if way != BY_HAND}
    report = {
        "job": asdict(job),
        "machine": before,
        "load_after": os.getloadavg()[0],
        "tasks": tasks_of(job),
        "rounds": taken,
        "calls": calls,
    }
    print(tables(report))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1), "utf-8")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time a GRPO step by hand, in process, and on Ray.")
    parser.add_argument("--model", default="tiny:hidden=160,layers=4")
    defaults = {"prompts": 16, "samples": 16, "tokens": 16, "rounds": 12, "steps": 2}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--work", type=Path, default=HERE.parent / ".bench" / "work", help="models and rows")
    parser.add_argument("--json", type=Path, help="write all figures here")
    return parser.parse_args()


Taken = Mapping[str, Mapping[str, float]]
"""Of one round: by way, the seconds and CPU seconds of a step."""


def rounds(sides: Mapping[str, Side], count: int, steps: int) -> list[Taken]:
    """Let each way take the same steps in turn, each second round backwards; the first round is not counted."""
    taken = list[Taken]()
    for number in range(count + 1):
        wanted = list(range(number * steps, (number + 1) * steps))
        order = WAYS[::-1] if number % 2 else WAYS
        told: dict[str, list[dict[str, Any]]] = {way: sides[way].ask(wanted) for way in order}
        for way in WAYS:
            same_work(way, told[BY_HAND], told[way])
        taken.append({way: {each: sum(s[each] for s in told[way]) / steps for each in (SECONDS, CPU)} for way in WAYS})
    return taken[1:]


def same_work(way: str, wanted: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]) -> None:
    """Raise OtherWorkError where a way's metrics are not those of the loop by hand."""
    for step, (one, other) in enumerate(zip(wanted, found, strict=True)):
        for name, value in one["metrics"].items():
            given = other["metrics"].get(name)
            if given is None or abs(value - given) > SAME * max(1.0, abs(value)):
                raise OtherWorkError(f"{way}, step {step} of this turn: {name} is {given}, by hand {value}")


def tasks_of(job: Job) -> list[str]:
    """Name the tasks of a step that run nodes."""
    from flowgraph.lowering.lower import lower
    from flowgraph.lowering.program import Run

    graph = grpo_graph(job)
    return [", ".join(task.nodes) for task in lower(graph, one_pool(graph)).tasks if isinstance(task, Run)]


def added(taken: Sequence[Taken], way: str, what: str) -> tuple[list[float], list[float]]:
    """Return by round what a way adds to the step by hand: as a part of it, and in milliseconds."""
    hand, other = ([each[name][what] for each in taken] for name in (BY_HAND, way))
    more = [1000 * (b - a) for a, b in zip(hand, other, strict=True)]
    return [ratio - 1 for ratio in ratios(other, hand)], more


def call_ms(calls: Mapping[str, float]) -> dict[str, float]:
    """Return the milliseconds of one call of a node that does nothing, from runs of flows of many calls.

    The flows are `CALLS` calls beside a model, and as many with a host node after each: the rest is the same.
    """
    beside = 1000 * calls["on_models"] / (CALLS + 1)  # what reads the prompts and the first host node are one more
    return {"beside a model": beside, "on the host": 1000 * (calls["in_turns"] - calls["on_models"]) / CALLS}


def tables(report: Mapping[str, Any]) -> str:
    """Write what each way takes, what it adds, and what a call takes."""
    taken, tasks = report["rounds"], len(report["tasks"])
    lines = list[list[str]]()
    for way in WAYS:
        figures = [Spread.of([each[way][what] for each in taken]).text(3) for what in (SECONDS, CPU)]
        lines.append([way, *figures, *([""] * 4 if way == BY_HAND else _more(taken, way, tasks))])
    head = ["", "seconds a step", "CPU s a step", "added", "added ms a node call", "CPU added", "CPU ms a node call"]
    calls = [[way, *(f"{ms:.1f}" for ms in call_ms(found).values())] for way, found in report["calls"].items()]
    goal = f"goals: at most {STEP_GOAL:.0%} of a step of 1 s, and {NODE_GOAL_MS:.0f} ms a node call"
    return "\n".join(
        (
            f"{len(taken)} rounds, median (least … most); {tasks} node calls a step: {' | '.join(report['tasks'])}",
            table(head, lines),
            f"load {report['machine']['load']:.1f} before, {report['load_after']:.1f} after; {goal}",
            "",
            table(["ms for a node that does nothing", "beside a model", "on the host"], calls),
        )
    )


def _more(taken: Sequence[Taken], way: str, tasks: int) -> list[str]:
    cells = list[str]()
    for what in (SECONDS, CPU):
        part, ms = added(taken, way, what)
        cells += [Spread.of([100 * each for each in part]).text(1) + " %", f"{Spread.of(ms).median / tasks:.1f}"]
    return cells


if __name__ == "__main__":
    raise SystemExit(main())
