"""Time one GRPO step of flowgraph against TRL's trainer, and under Ray against in process. See README.md here.

python benchmarks/step.py [--model tiny|smollm2-135m] [--rounds 5] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # a script's own folder is on the path, the checkout is not

from benchmarks.environment import ensure  # noqa: E402
from benchmarks.figures import STARTS, per_step, ray_table, step_table  # noqa: E402
from benchmarks.machine import ONE_THREAD, machine  # noqa: E402
from benchmarks.material import make_model, make_rows  # noqa: E402

TRL = "TRL"
IN_PROCESS = "in process"
WAYS: dict[str, tuple[str, ...]] = {
    IN_PROCESS: ("--cluster", "1xcpu", "--runtime", "local"),
    "Ray, one actor": ("--cluster", "1xcpu", "--runtime", "ray"),
    "Ray, two FSDP ranks": ("--cluster", "2xcpu", "--runtime", "ray"),
}
"""The ways to run ours: what each adds to the command."""

LIMIT_S = 3600.0
LR = 1e-6
WHOLE = "1000000"  # more tokens than any step has: all rows in one micro-batch


@dataclass(frozen=True)
class Shape:
    """What one step is, and how many steps the short and the long run take."""

    model: str
    data: str
    prompts: int
    samples: int
    tokens: int
    short: int
    long: int

    def text(self) -> str:
        """Say it in one line."""
        rows = f"{self.prompts} prompts × {self.samples} samples × {self.tokens} new tokens"
        return f"{self.model} on {self.data}: {rows}, {self.short} and {self.long} steps"


SHAPES = {
    "tiny": Shape("tiny", "digits", 16, 16, 16, 10, 110),
    "smollm2-135m": Shape("smollm2-135m", "addition", 4, 8, 16, 1, 4),
}
QUICK_LONG = {"tiny": 20, "smollm2-135m": 2}


class FailedRunError(Exception):
    """A run ended badly, or did other work than was asked."""


@dataclass(frozen=True)
class Done:
    """What a run says it did; both programs must say the same but for the time."""

    steps: int
    shortest: float
    longest: float
    step_s: float
    timings: dict[str, float]


@dataclass(frozen=True)
class Run:
    """One run as it was measured; `load` is the machine's before it."""

    way: str
    round: int
    steps: int
    cost: dict[str, Any]
    load: float
    done: Done


def main() -> int:
    """Measure, print the tables, and write all figures where `--json` says."""
    options = _options()
    shape = _shape(options)
    folder = options.work.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    python = ensure(options.env.resolve(), "trl")
    model = make_model(shape.model, folder / "models" / shape.model, folder / "cache")
    rows = make_rows(shape.data, folder / f"{shape.data}.json", shape.long, shape.prompts)
    bench = Bench(shape, folder, model, rows, python)
    print(shape.text(), file=sys.stderr)
    runs = list[Run]()
    for each in range(options.rounds):
        try:
            runs.extend(bench.round(_ways(options), each))
        except FailedRunError as error:
            print(f"round {each + 1} of {options.rounds} failed, and is the last: {error}", file=sys.stderr)
            break
    if runs:
        report = _report(shape, runs)
        print(_tables(report))
        if options.json:
            options.json.write_text(json.dumps(report | {"runs": [asdict(run) for run in runs]}, indent=1), "utf-8")
    return 0 if len({run.round for run in runs}) == options.rounds else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time one GRPO step against TRL's trainer, and under Ray.")
    parser.add_argument("--model", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of few steps: does it work at all")
    parser.add_argument("--no-ray", action="store_true", help="in process against TRL only")
    parser.add_argument("--no-trl", action="store_true", help="ours only: the overhead of Ray")
    for name in ("prompts", "samples", "tokens", "short", "long"):
        parser.add_argument(f"--{name}", type=int, help="default by the model")
    bench = HERE.parent / ".bench"
    parser.add_argument("--env", type=Path, default=bench / "trl", help="TRL's environment; made if not there")
    parser.add_argument("--work", type=Path, default=bench / "work", help="models, rows and runs")
    parser.add_argument("--json", type=Path, help="write all figures here")
    return parser.parse_args()


def _shape(options: argparse.Namespace) -> Shape:
    shape = SHAPES[options.model]
    if options.quick:
        options.rounds, shape = 1, replace(shape, short=1, long=QUICK_LONG[options.model])
    names = ("prompts", "samples", "tokens", "short", "long")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    shape = replace(shape, **given)
    if shape.short >= shape.long:
        sys.exit(f"--short {shape.short} must be less than --long {shape.long}")
    return shape


def _ways(options: argparse.Namespace) -> list[str]:
    """List what is run in a round, TRL right after what it is compared with."""
    ray = [way for way in WAYS if way != IN_PROCESS and not options.no_ray]
    return [IN_PROCESS, *([] if options.no_trl else [TRL]), *ray]


@dataclass(frozen=True)
class Bench:
    """All that a run needs: the step's shape, the work folder, the model's folder, TRL's rows and its Python."""

    shape: Shape
    folder: Path
    model: Path
    rows: Path
    python: Path

    def round(self, ways: Sequence[str], number: int) -> list[Run]:
        """Run every way, the short runs and then the long ones; each second round goes backwards.

        Raises `FailedRunError`.
        """
        turns = [(way, steps) for steps in (self.shape.short, self.shape.long) for way in ways]
        return [self.run(way, steps, number) for way, steps in (turns[::-1] if number % 2 else turns)]

    def run(self, way: str, steps: int, number: int) -> Run:
        """Run one child under the accountant, and check that it did the work that was asked for."""
        out = self.folder / "runs" / f"{way}-{steps}-{number}".replace(" ", "-").replace(",", "").lower()
        _clear(out)
        command = self.trl(out, steps) if way == TRL else self.ours(out, steps, WAYS[way])
        load = os.getloadavg()[0]
        cost = _measured(command, out)
        done = _trl_done(out) if way == TRL else _our_done(out)
        wanted = (steps, self.shape.tokens, self.shape.tokens)
        if (done.steps, done.shortest, done.longest) != wanted:
            raise FailedRunError(f"{way} did {done}, but {steps} steps of {self.shape.tokens} tokens were asked")
        print(f"{way}: {steps} steps, {cost['cpu_s']:.1f} CPU s, {cost['wall_s']:.1f} s", file=sys.stderr)
        return Run(way, number, steps, cost, load, done)

    def ours(self, out: Path, steps: int, added: Sequence[str]) -> list[str]:
        """Return our command."""
        s = self.shape
        sets = {
            "policy.generate.n": s.samples,
            "policy.generate.max_tokens": s.tokens,
            "policy.generate.temperature": 1.0,
            "policy.update.lr": LR,
            "policy.update.micro_batch_tokens": WHOLE,
        }
        # fmt: off
        return [
            sys.executable, "-m", "flowgraph", "run", "grpo",
            "--model", str(self.model), "--data", s.data, "--steps", str(steps), "--batch", str(s.prompts),
            *(text for name, value in sets.items() for text in ("--set", f"{name}={value}")),
            "--sample-rows", str(s.prompts * s.samples), "--forward-tokens", WHOLE,
            "--eval-every", "0", "--threads", "1", *added, "-o", str(out),
        ]
        # fmt: on

    def trl(self, out: Path, steps: int) -> list[str]:
        """Write TRL's job and give its command."""
        out.mkdir(parents=True)
        s, job = self.shape, out / "job.json"
        told = {"prompts": s.prompts, "samples": s.samples, "tokens": s.tokens, "data": s.data, "lr": LR}
        files = {"model": self.model, "rows": self.rows, "folder": out / "trainer", "report": out / "report.json"}
        job.write_text(json.dumps(told | {"steps": steps} | {name: str(file) for name, file in files.items()}), "utf-8")
        return [str(self.python), str(HERE / "trl_step.py"), str(job)]


def _clear(out: Path) -> None:
    """Remove what an earlier run of this name left, its report too, which must not stand for this one's."""
    shutil.rmtree(out, ignore_errors=True)
    out.with_suffix(".cost.json").unlink(missing_ok=True)
    out.parent.mkdir(parents=True, exist_ok=True)


def _measured(command: Sequence[str], out: Path) -> dict[str, Any]:
    """Run a command under `cost.py` and give its report. Raises `FailedRunError` with what it printed."""
    report, log = out.with_suffix(".cost.json"), out.with_suffix(".log")
    accountant = [sys.executable, str(HERE / "cost.py"), str(report), str(LIMIT_S)]
    with log.open("wb") as told:
        env = os.environ | ONE_THREAD
        code = subprocess.call([*accountant, *command], env=env, cwd=HERE.parent, stdout=told, stderr=told)
    cost: dict[str, Any] = json.loads(report.read_text("utf-8")) if report.is_file() else {}
    if code or cost.get("killed"):
        tail = "\n".join(log.read_text("utf-8", "replace").splitlines()[-15:])
        what = f"ended with {code}, killed: {', '.join(cost.get('killed', ())) or 'nothing'}"
        raise FailedRunError(f"{' '.join(command)}\n{what}; {log}:\n{tail}")
    return cost


def _our_done(out: Path) -> Done:
    """Read what our run recorded: no response ended by itself, so the mean length is that of each."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()]
    lengths = [line["policy.generate.response_length"] for line in lines]
    facts = json.loads((out / "run.json").read_text("utf-8"))
    if any(line["policy.generate.finished"] for line in lines):
        raise FailedRunError(f"{out}: a response ended by itself, so the work is not the same")
    step_s = median(line["time"]["step_s"] for line in lines)
    return Done(len(lines), min(lengths), max(lengths), step_s, facts.get("timings", {}))


def _trl_done(out: Path) -> Done:
    told = json.loads((out / "report.json").read_text("utf-8"))
    return Done(told["steps"], told["shortest"], told["longest"], told["step_s"], {})


def _report(shape: Shape, runs: Sequence[Run]) -> dict[str, Any]:
    """Return every figure that is printed, and what they were measured on."""
    ways = list(dict.fromkeys(run.way for run in runs))
    found = {(run.way, run.round, run.steps): run for run in runs}
    rounds = sorted({run.round for run in runs})

    def cost(way: str, number: int) -> float:
        short, long = (found[way, number, steps].cost["cpu_s"] for steps in (shape.short, shape.long))
        return per_step(short, long, shape.short, shape.long)

    ours = [way for way in WAYS if way in ways]
    longest = {way: [found[way, number, shape.long] for number in rounds] for way in ours}
    return {
        "shape": asdict(shape),
        "machine": machine(),
        "cpu_s": {way: [cost(way, number) for number in rounds] for way in ways},
        "step_s": {way: [run.done.step_s for run in longest[way]] for way in ours},
        "starts": {
            way: {name: [run.done.timings[name] for run in longest[way] if name in run.done.timings] for name in STARTS}
            for way in ours
        },
    }


def _tables(report: dict[str, Any]) -> str:
    costs, steps = report["cpu_s"], report["step_s"]
    parts = ["CPU seconds of all processes, median (least … most) of the rounds"]
    parts.append(step_table(costs, TRL if TRL in costs else IN_PROCESS))
    if len(steps) > 1:
        parts.append("\nOverhead of Ray, wall seconds")
        parts.append(ray_table(steps, report["starts"]))
        if not any(any(found.values()) for found in report["starts"].values()):
            parts.append("no run said what ray.init and actor start took: run.json has no `timings`")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
