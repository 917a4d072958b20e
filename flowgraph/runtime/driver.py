"""The loop of a run: execute a step, tell who listens; check held-out data now and then."""

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
from flowgraph.runtime.record.saver import Saver


@dataclass(frozen=True)
class HeldOutCheck:
    """A program that is run on held-out data before the first step, every `every` steps, and at the end.

    `during` is that of every check but the last: it leaves a copy of weights that lags as late as a step would.
    """

    program: Program
    sources: Mapping[str, RowSource]
    every: int
    during: Program | None = None


@dataclass(frozen=True)
class RunSpec:
    """What a run does: a program and where its rows come from, how long, and from which seed.

    `sources` give data parameters by name; those named as a node, its recorded results in place of running it.
    """

    program: Program
    sources: Mapping[str, RowSource]
    seed: int
    steps: int
    check: HeldOutCheck | None = None


class Listener(Protocol):
    """Who is told what happens: the run folder, the display."""

    def stepped(self, step: int, ran: StepResult, seconds: float) -> None:
        """Take the results of a step and the seconds it took."""
        ...

    def checked(self, step: int, observed: Observations, seconds: float) -> None:
        """Take the metrics of a check that was made before `step`."""
        ...


def train(
    job: RunSpec,
    executor: Executor,
    listeners: Sequence[Listener],
    stop: Callable[[], bool] = lambda: False,
    start: int = 0,
    saver: Saver | None = None,
) -> int:
    """Run the job, of which `start` steps are done, and give the steps done; `stop` is asked between steps.

    A checkpoint is made before the check of held-out data that may follow a step: a check brings copies of weights up
    to date, and who goes on from a checkpoint makes it again.
    """
    done = _steps(job, executor, listeners, stop, start, saver)
    if saver is not None:
        saver.ended(done)
    if done == job.steps and job.check is not None and job.check.every:
        _check(job, job.check, job.check.program, executor, job.steps, listeners)
    return done


def _steps(
    job: RunSpec,
    executor: Executor,
    listeners: Sequence[Listener],
    stop: Callable[[], bool],
    start: int,
    saver: Saver | None,
) -> int:
    for step in range(start, job.steps):
        if stop():
            return step
        if job.check is not None and job.check.every and step % job.check.every == 0:
            _check(job, job.check, job.check.during or job.check.program, executor, step, listeners)
        began = time.perf_counter()
        ran = executor.run(job.program, job.sources, Key(job.seed, step))
        for listener in listeners:
            listener.stepped(step, ran, time.perf_counter() - began)
        if saver is not None:
            saver.stepped(step + 1)
    return job.steps


def _check(
    job: RunSpec, check: HeldOutCheck, program: Program, executor: Executor, step: int, listeners: Sequence[Listener]
) -> None:
    start = time.perf_counter()
    try:
        ran = executor.run(program, check.sources, Key(job.seed, step))
    except FlowError as error:
        error.notes = (*error.notes, f"in the check of held-out data before step {step + 1}")
        raise
    for listener in listeners:
        listener.checked(step, ran.observed, time.perf_counter() - start)
