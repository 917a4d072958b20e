"""The loop of a run: read a batch, run the flow, carry what it returns; check held-out data now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from flowgraph.evaluate import Env, Observed, Ran
from flowgraph.graph import Graph
from flowgraph.keys import Key
from flowgraph.values import Value


class Source(Protocol):
    """Where a flow's data parameter gets its rows: a pure function of the step."""

    def batch(self, step: int) -> Value:
        """Give the rows of one step."""
        ...


class Executor(Protocol):
    """Who runs a graph's nodes for one step."""

    def run(self, graph: Graph, arguments: Mapping[str, Value], key: Key, given: Env | None = None) -> Ran:
        """Run one step on real arguments; nodes in `given` are not run."""
        ...


@dataclass(frozen=True)
class Check:
    """A flow that is run on held-out data before the first step, every `every` steps, and at the end.

    `models` says which of the job's models each of its model parameters is.
    """

    graph: Graph
    models: Mapping[str, str]
    data: Mapping[str, Value]
    every: int


@dataclass(frozen=True)
class Job:
    """What a run does: a compiled graph, its models and data by parameter, how long, and from which seed."""

    graph: Graph
    models: Mapping[str, Value]
    sources: Mapping[str, Source]
    seed: int
    steps: int
    check: Check | None = None


class Listener(Protocol):
    """Who is told what happens: the run folder, the display."""

    def stepped(self, step: int, ran: Ran, seconds: float) -> None:
        """Take the results of a step and the seconds it took."""
        ...

    def checked(self, step: int, observed: Observed, seconds: float) -> None:
        """Take the metrics of a check that was made before `step`."""
        ...


def train(
    job: Job,
    executor: Executor,
    listeners: Sequence[Listener],
    replay: Callable[[int], Env] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[dict[str, Value], int]:
    """Run the job and give the models as carried, and the steps done; `stop` is asked between steps.

    `replay` gives, for a step, recorded values in place of the nodes that sample.
    """
    models, carries = dict(job.models), job.graph.carries()
    for step in range(job.steps):
        if stop():
            return models, step
        if job.check is not None and job.check.every and step % job.check.every == 0:
            _check(job, job.check, executor, models, step, listeners)
        start = time.perf_counter()
        batch = {name: source.batch(step) for name, source in job.sources.items()}
        ran = executor.run(job.graph, models | batch, Key(job.seed, step), replay(step) if replay else None)
        models |= {name: ran.outputs[i] for name, i in carries.items()}
        for listener in listeners:
            listener.stepped(step, ran, time.perf_counter() - start)
    if job.check is not None and job.check.every:
        _check(job, job.check, executor, models, job.steps, listeners)
    return models, job.steps


def _check(
    job: Job, check: Check, executor: Executor, models: Mapping[str, Value], step: int, listeners: Sequence[Listener]
) -> None:
    start = time.perf_counter()
    wanted = {name: models[source] for name, source in check.models.items()}
    ran = executor.run(check.graph, {**wanted, **check.data}, Key(job.seed, step))
    for listener in listeners:
        listener.checked(step, ran.observed, time.perf_counter() - start)
