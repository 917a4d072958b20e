"""The loop of a run: execute steps, notify listeners, and check held-out data at intervals."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flowgraph.errors import FlowError
from flowgraph.language.graph import Graph
from flowgraph.language.keys import Key
from flowgraph.lowering.program import Program
from flowgraph.runtime.interpreter import Executor, StepResult
from flowgraph.runtime.places import RowSource
from flowgraph.runtime.record.checkpoint import Saver


@dataclass(frozen=True)
class HeldOutCheck:
    """A program that runs on held-out data before every `every` steps and at the end; never, if `every` is 0.

    The last check runs `program`, which syncs copies of weights. The others run `during`, which lets copies lag as far
    as a step does. `grade` computes more metrics, by name, from the tables of the results named in `graded`.
    """

    program: Program
    sources: Mapping[str, RowSource]
    every: int
    during: Program
    graded: tuple[str, ...] = ()
    grade: Callable[[Sequence[Any]], Mapping[str, float]] | None = None


@dataclass(frozen=True)
class HeldOutResult:
    """The results of one check of held-out data: its graph, the values of its nodes, and its metrics, `eval/NAME`."""

    graph: Graph
    ran: StepResult
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class RunSpec:
    """The program of a run, the sources of its rows, the number of steps, the seed, and the held-out check, if any.

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

    def checked(self, step: int, result: HeldOutResult, seconds: float) -> None:
        """Handle the `result` of a held-out check before step `step`; the check took `seconds`."""
        ...


def train(
    job: RunSpec,
    executor: Executor,
    listeners: Sequence[Listener],
    stop: Callable[[], bool] = lambda: False,
    start: int = 0,
    saver: Saver | None = None,
) -> int:
    """Run the steps of a job from step `start`, and return the number of completed steps, earlier ones included.

    `listeners` are notified after each step and each check of held-out data. A check, unless `job.check.every` is 0,
    runs before each step whose number is a multiple of it, and after the last step unless the run ended early. `stop`
    is called before each step; if it returns True, the run ends early. `saver` writes checkpoints, each before a check
    that follows the same step: a check updates copies of weights, and a resumed run repeats it. The saver is notified
    of a check before the listeners, so that a checkpoint of the best weights does not contain the records of this
    check. If steps overlap, a run ends, and a checkpoint is written, only after a step from which `executor` can
    continue. Errors of steps, checks, listeners and the saver are raised; a FlowError of a check gets a note with the
    step.
    """
    check = job.check if job.check is not None and job.check.every else None
    steps_done = job.steps
    for step in range(start, job.steps):
        resumable = executor.can_save(job.program, step)
        if stop() and resumable:
            steps_done = step
            break
        if check is not None and step % check.every == 0:
            _check(check, check.during, executor, Key(job.seed, step), listeners, saver if resumable else None)
        began = time.perf_counter()
        result = executor.run(job.program, job.sources, Key(job.seed, step), job.steps)
        for listener in listeners:
            listener.stepped(step, result, time.perf_counter() - began)
        if saver is not None and executor.can_save(job.program, step + 1):
            saver.stepped(step + 1)
    if saver is not None:
        saver.ended(steps_done)
    if steps_done == job.steps and check is not None:
        _check(check, check.program, executor, Key(job.seed, job.steps), listeners, saver)
    return steps_done


def _check(
    check: HeldOutCheck,
    program: Program,
    executor: Executor,
    key: Key,
    listeners: Sequence[Listener],
    saver: Saver | None,
) -> None:
    began = time.perf_counter()
    try:
        ran = executor.run(program, check.sources, key)
        metrics = {f"eval/{name.rpartition('.')[2]}": mean for name, mean in ran.observed.means().items()}
        if check.grade is not None:
            grades = ran.apply(check.grade, check.graded)
            executor.places.finish()
            metrics |= grades()
    except FlowError as error:
        error.notes = (*error.notes, f"in the check of held-out data before step {key.step + 1}")
        raise
    seconds = time.perf_counter() - began
    if saver is not None:
        saver.checked(key.step, metrics)
    result = HeldOutResult(program.graph, ran, metrics)
    for listener in listeners:
        listener.checked(key.step, result, seconds)
