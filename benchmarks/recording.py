"""Time GRPO steps in one process with and without recording their rollouts. docs/samples.md says what it measured.

python benchmarks/recording.py [--rounds 15] [--tokens 64] [--model tiny:hidden=160,layers=4] [--json FILE]

Each way has its own models and takes the same steps in turn, each second round backwards, on one thread. The files go
to a temporary folder; a checkpoint, which flushes them to the disk, is not part of a step.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # a script's own folder is on the path, the checkout is not

from benchmarks.machine import ONE_THREAD  # noqa: E402

if __name__ == "__main__":
    os.environ.update(ONE_THREAD)  # before torch is imported

from benchmarks.figures import Spread, ratios, table  # noqa: E402
from benchmarks.machine import machine  # noqa: E402
from benchmarks.material import make_model  # noqa: E402
from benchmarks.overhead_side import IN_PROCESS, SEED, Job, grpo_graph, one_pool, places, rows  # noqa: E402
from flowgraph.language import Key  # noqa: E402
from flowgraph.lowering.lower import lower  # noqa: E402
from flowgraph.runtime.interpreter import Executor  # noqa: E402
from flowgraph.runtime.record.recorded_values import TOKEN_ROWS  # noqa: E402
from flowgraph.runtime.record.recorder import Recorder  # noqa: E402
from flowgraph.runtime.record.run_folder import RunFolder  # noqa: E402

NOTHING = "nothing"
WAYS: Mapping[str, int | None] = {
    NOTHING: None,
    "responses (--record-tokens 0)": 0,
    f"and values of tokens of {TOKEN_ROWS} responses (default)": TOKEN_ROWS,
}
"""What is recorded: the number of responses of each step whose values of tokens are, or None without a recorder."""


@dataclass(frozen=True)
class RecordedStep:
    """The seconds of a step, those of them in which it was recorded, and the bytes that were written."""

    step_s: float
    recording_s: float = 0.0
    written_bytes: int = 0


class Side:
    """One way: its models, and its run's folder if it records."""

    def __init__(self, way: str, job: Job, folder: Path, stack: ExitStack) -> None:
        graph = grpo_graph(job)
        self.program, self.sources = lower(graph, one_pool(graph)), {"prompts": rows(job)}
        self.executor = Executor(stack.enter_context(places(IN_PROCESS, self.program, [graph], job)))
        self.recorder, self.folder, token_rows = None, folder, WAYS[way]
        if token_rows is not None:
            self.recorder = stack.enter_context(Recorder(RunFolder.create(folder), graph, print, token_rows))

    def step(self, number: int) -> RecordedStep:
        """Take a step, record it, and return what both took; the files of the step before are counted."""
        start = time.perf_counter()
        result = self.executor.run(self.program, self.sources, Key(SEED, number))
        ran_s = time.perf_counter() - start
        if self.recorder is None:
            return RecordedStep(ran_s)
        self.recorder.stepped(number, result, ran_s)
        step_s = time.perf_counter() - start
        written = sum(file.stat().st_size for file in self.folder.rglob(f"{number:06d}.parquet"))
        return RecordedStep(step_s, step_s - ran_s, written)


def measured(job: Job, rounds: int, folder: Path) -> dict[str, list[RecordedStep]]:
    """Return the steps of each way; the first step of each is not counted."""
    import torch

    torch.set_num_threads(1)
    taken: dict[str, list[RecordedStep]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        sides = {way: Side(way, job, folder / f"run-{place}", stack) for place, way in enumerate(WAYS)}
        for number in range(rounds + 1):
            for way in reversed(WAYS) if number % 2 else WAYS:
                taken[way].append(sides[way].step(number))
    return {way: steps[1:] for way, steps in taken.items()}


def report(taken: Mapping[str, Sequence[RecordedStep]]) -> str:
    """Write a table: a step of each way, its ratio to one that records nothing, and what recording alone takes."""
    bare = [step.step_s for step in taken[NOTHING]]
    lines = list[list[str]]()
    for way, steps in taken.items():
        seconds = [step.step_s for step in steps]
        cells = [way, Spread.of(seconds).text(3)]
        if way != NOTHING:
            share = Spread.of([100 * step.recording_s / (step.step_s - step.recording_s) for step in steps])
            cells += [
                Spread.of(ratios(seconds, bare)).text(3),
                Spread.of([1000 * step.recording_s for step in steps]).text(1),
                f"{share.text(1)} %",
                f"{Spread.of([step.written_bytes / 1024 for step in steps]).median:.0f}",
            ]
        lines.append([*cells, *[""] * (6 - len(cells))])
    head = ["recorded", "seconds a step", "ratio", "recording ms", "of the step", "KiB a step"]
    return f"{len(bare)} rounds, median (least … most)\n{table(head, lines)}"


def main() -> int:
    """Measure, print the table, and write all figures where `--json` says."""
    parser = argparse.ArgumentParser(description="Time GRPO steps with and without recording their rollouts.")
    parser.add_argument("--model", default="tiny:hidden=160,layers=4")
    for name, default in {"prompts": 16, "samples": 16, "tokens": 64, "rounds": 15}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--work", type=Path, default=HERE.parent / ".bench" / "work", help="models and rows")
    parser.add_argument("--json", type=Path, help="write all figures here")
    options = parser.parse_args()
    folder = options.work.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    model = make_model(options.model, folder / "models" / options.model.replace(":", "-"), folder / "cache")
    job, before = Job(str(model), str(folder / "cache"), options.prompts, options.samples, options.tokens), machine()
    with tempfile.TemporaryDirectory() as runs:
        taken = measured(job, options.rounds, Path(runs))
    print(report(taken))
    print(f"{asdict(job)}\nload {before['load']:.1f} before, {os.getloadavg()[0]:.1f} after; {before['cpu']}")
    if options.json:
        figures: Any = {way: [asdict(step) for step in steps] for way, steps in taken.items()}
        options.json.write_text(
            json.dumps({"job": asdict(job), "machine": before, "steps": figures}, indent=1), "utf-8"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
