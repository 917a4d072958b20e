"""The loop of a run: execute steps, notify listeners, and check held-out data at intervals."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from flowgraph.errors import FlowError
from flowgraph.language.keys import Key
from flowgraph.language.region import Observations
from flowgraph.lowering.program import Program
from flowgraph.runtime.interpreter import Executor, RowSource, StepResult
from flowgraph.runtime.record.checkpoint import Saver


@dataclass(frozen=True)
class HeldOutCheck:
    """A program that runs on held-out data before the first step, every `every` steps, and at the end.

    `during` runs instead of `program` in every check except the last; it lets copies of weights lag as far as a step
    does.
    """

    program: Program
    sources: Mapping[str, RowSource]
    every: int
    during: Program | None = None


@dataclass(frozen=True)
class RunSpec:
    """The program of a run, the sources of its rows, the number of steps, and the seed.

    `sources` contains data parameters by name, and recorded results by the name of the node that they replace.
    """

    program: Program
    sources: Mapping[str, RowSource]
    seed: int
    steps: int
    check: HeldOutCheck | None = None


class Listener(Protocol):
    """An object that is notified during a run, such as the run's recorder or the display."""

    def stepped(self, step: int, ran: StepResult, seconds: float) -> None:
        """Handle the results `ran` of step `step` (from 0), which took `seconds`."""
        ...

    def checked(self, step: int, observed: Observations, seconds: float) -> None:
        """Handle the metrics `observed` in a held-out check before step `step`; the check took `seconds`."""
        ...


def train(
    job: RunSpec,
    executor: Executor,
    listeners: Sequence[Listener],
    stop: Callable[[], bool] = lambda: False,
    start: int = 0,
    saver: Saver | None = None,
) -> int:
    """Run the steps of a job with `executor`, from step `start`, and return the number of completed steps.

    Held-out data is checked before every `job.check.every` steps and after the last step. `listeners` are notified
    after each step and check. `stop` is called before each step; if it returns True, the run ends early. `saver` writes
    checkpoints, each before any check of held-out data that follows the same step: a check updates copies of weights,
    and a resumed run repeats it.
    """
    check = job.check if job.check is not None and job.check.every else None
    steps_done = job.steps
    for step in range(start, job.steps):
        if stop():
            steps_done = step
            break
        if check is not None and step % check.every == 0:
            _check(check, check.during or check.program, executor, Key(job.seed, step), listeners)
        began = time.perf_counter()
        result = executor.run(job.program, job.sources, Key(job.seed, step))
        for listener in listeners:
            listener.stepped(step, result, time.perf_counter() - began)
        if saver is not None:
            saver.stepped(step + 1)
    if saver is not None:
        saver.ended(steps_done)
    if steps_done == job.steps and check is not None:
        _check(check, check.program, executor, Key(job.seed, job.steps), listeners)
    return steps_done


def _check(check: HeldOutCheck, program: Program, executor: Executor, key: Key, listeners: Sequence[Listener]) -> None:
    began = time.perf_counter()
    try:
        result = executor.run(program, check.sources, key)
    except FlowError as error:
        error.notes = (*error.notes, f"in the check of held-out data before step {key.step + 1}")
        raise
    for listener in listeners:
        listener.checked(key.step, result.observed, time.perf_counter() - began)
