"""Steps that overlap, executed: the schedule decides the result, not the order in which tasks happen to end."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from flowgraph import Flow, Loss, Metric, State, flow, node, stale
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import DataError, LawError
from flowgraph.language import Key
from flowgraph.language.values import Measure
from flowgraph.lowering.lower import lower
from flowgraph.lowering.pipeline_steps import iteration, unrolled
from flowgraph.lowering.program import Home, Program, Run, Sync, Task
from flowgraph.lowering.task_names import task_name
from flowgraph.lowering.waits import waits_between
from flowgraph.passes import compile_graph
from flowgraph.runtime.batch import to_table
from flowgraph.runtime.driver import RunSpec, train
from flowgraph.runtime.interpreter import Executor, StepResult
from flowgraph.runtime.local import InProcess
from flowgraph.runtime.places import RowSource, StartState
from nodes import (
    Advantages,
    Policy,
    Prompts,
    Reference,
    Rollout,
    Scores,
    clipped,
    generate,
    group_normalize,
    kl_k3,
    logprobs,
    update,
)
from nodes.data.source import PromptSource
from tests.looped import looped
from tests.unit.flowgraph.lowering.test_pipeline_steps import plan_of

Tiny = Callable[..., LocalModel]
Order = list[tuple[int, Task]]
SEED, STEPS = 7, 5
SCHEDULES = [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4)]


class Coefficient(State):
    """A factor that adapts from step to step."""


@node(carries="coefficient", metrics=(Metric("coefficient"),))
def adapt(coefficient: Coefficient, rollout: Rollout) -> Coefficient:
    """Grow it with the tokens of a batch."""
    grown = coefficient.data + 0.01 * int(rollout.lengths.data.sum())
    return Coefficient(grown, [Measure("coefficient", grown, 1)])


@node(kind="score", pure=False)
def judged(rollout: Rollout) -> Scores:
    """Score responses by their first token; it counts as a side effect, as a rule does, but starts no process."""
    return Scores((rollout.tokens.data[:, 0] % 7).float())


@node
def weigh(advantages: Advantages, coefficient: Coefficient) -> Advantages:
    """Scale advantages."""
    return Advantages((advantages.data + 1) * coefficient.data)


@flow
def carrying(
    prompts: Prompts, policy: Policy, ref: Reference, coefficient: Coefficient
) -> tuple[Policy, Coefficient, Rollout]:
    """Sample ahead, and carry weights, a factor and an order from step to step."""
    rollout = generate(stale(policy, at_most=5), prompts, n=2, max_tokens=2)
    advantages = weigh(group_normalize(judged(rollout), rollout.group), coefficient)
    far = logprobs(ref, rollout)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        return clipped(new, advantages, rollout.mask, old=rollout.logprobs, eps=0.2) + kl_k3(new, rollout.mask, ref=far)

    return update(policy, loss, lr=1e-1, optimizer="sgd"), adapt(coefficient, rollout), rollout


def overlapping(depth: int, every: int = 1, of: Flow[..., object] = carrying) -> Program:
    graph = compile_graph(of.graph())
    return lower(graph, plan_of(graph, depth, every, infer=min(depth, 1)))


@dataclass
class Side:
    """A run in this process: its program, its executor, and what it gave in each step."""

    program: Program
    handles: Mapping[Home, LocalModel]
    executor: Executor
    sources: Mapping[str, RowSource]
    tables: dict[int, pa.Table] = field(default_factory=dict[int, pa.Table])
    metrics: list[Mapping[str, float]] = field(default_factory=list[Mapping[str, float]])

    def stepped(self, step: int, ran: StepResult, seconds: float) -> None:
        self.tables[step] = to_table(ran.items["policy.generate"].value)
        self.metrics.append(ran.observed.means())

    def checked(self, *_: object) -> None:
        raise AssertionError("nothing is checked here")

    def train(self, start: int = 0, until: int | None = None, steps: int = STEPS) -> Side:
        stop = (lambda: False) if until is None else (lambda: len(self.metrics) + start >= until)
        train(RunSpec(self.program, self.sources, SEED, steps), self.executor, [self], stop, start)
        return self

    def in_order(self, order: Order) -> Side:
        """Execute tasks one at a time in an order of their own."""
        for step, task in order:
            self.executor.execute(self.program, self.sources, Key(SEED, step), task)
        for step in [*self.executor.begun]:
            self.tables[step] = to_table(self.executor.begun.pop(step).results["policy.generate"].value)
        return self

    def weights(self) -> dict[str, torch.Tensor]:
        (home,) = self.program.trained
        return {name: tensor.clone() for name, tensor in self.handles[home].weights().items()}

    def bits(self) -> tuple[Any, ...]:
        """Return all that a run leaves: weights, rollouts with log-probs and versions, and carried values."""
        weights = {name: tensor.numpy().tobytes() for name, tensor in self.weights().items()}
        tables = {step: table.to_pydict() for step, table in sorted(self.tables.items())}
        return weights, tables, {name: item.value.data for name, item in self.executor.carried.items()}


@pytest.fixture
def side(tiny: Tiny, digit_rows: pa.Table) -> Callable[[Program], Side]:
    """Return `side(program)`: a run that has not begun."""

    def made(program: Program, places: Callable[..., InProcess] = InProcess) -> Side:
        handles = {home: tiny(trainable=home in program.trained) for home in program.homes}
        sources = {"prompts": PromptSource(digit_rows, 2, seed=SEED), "coefficient": StartState(Coefficient(1.0))}
        return Side(program, handles, Executor(places(handles)), sources)

    return made


def shuffled(waits: tuple[frozenset[int], ...], rng: random.Random) -> list[int]:
    """Return a random order of tasks in which each follows all that it waits for."""
    left, order, done = set(range(len(waits))), list[int](), set[int]()
    while left:
        order.append(rng.choice(sorted(i for i in left if waits[i] <= done)))
        left.remove(order[-1])
        done.add(order[-1])
    return order


# ------------------------------------------------------------------------------------------- what a run gives


class Remembering(InProcess):
    """Places that keep every version of the weights, and give a copy the version of a formula."""

    depth, every = 0, 1
    step = 0

    def sync(self, task: Sync, version: int) -> None:
        first = {name: tensor.clone() for name, tensor in self.handles[task.target].weights().items()}
        kept = self.__dict__.setdefault("kept", {0: first})
        kept[version] = {name: tensor.clone() for name, tensor in self.handles[task.source].weights().items()}
        wanted = self.every * (max(0, version - self.depth) // self.every)
        self.handles[task.target].load(kept[wanted])
        self.handles[task.target].version = version


@looped("depth, every", SCHEDULES)
def test_a_run_equals_whole_steps_in_order_that_sample_from_kept_weights(
    side: Callable[..., Side], depth: int, every: int
) -> None:
    """The other side executes whole steps, one after the other, and looks up the weights of each by the formula."""
    steps = depth + every + 2  # two syncs of each schedule
    found = side(overlapping(depth, every)).train(steps=steps)
    kept = type("Kept", (Remembering,), {"depth": depth, "every": every})
    oracle = side(overlapping(0), kept).train(steps=steps)
    weights, tables, carried = found.bits()
    expected_weights, expected, expected_carried = oracle.bits()
    assert weights == expected_weights
    assert carried == expected_carried
    for step, table in tables.items():
        versions = table.pop("versions")
        del expected[step]["versions"]
        assert table == expected[step], step
        wanted = every * (max(0, step - depth) // every)
        assert {version for row in versions for version in row} == {wanted}
    for ours, theirs in zip(found.metrics, oracle.metrics, strict=True):
        assert {name: value for name, value in ours.items() if "staleness" not in name} == theirs


MORE = [(1, 1, 60), (2, 1, 50), (1, 2, 40), (2, 2, 30), (1, 4, 10), (2, 4, 10)]


@pytest.mark.parametrize(
    ("depth", "every", "count"),
    [(1, 1, 5), (2, 2, 5), *(pytest.param(*each, marks=pytest.mark.slow(group="overlap")) for each in MORE)],
)
def test_two_hundred_random_orders_give_the_same_bits(
    side: Callable[..., Side], depth: int, every: int, count: int
) -> None:
    program, steps = overlapping(depth, every), depth + every + 1
    expected = side(program).train(steps=steps).bits()
    tasks = [*unrolled(program, steps)]
    waits, rng = waits_between(program, tasks), random.Random(depth * 10 + every)
    orders = {tuple(shuffled(waits, rng)) for _ in range(count)}
    assert len(orders) == count
    for order in orders:
        assert side(program).in_order([tasks[i] for i in order]).bits() == expected


def test_staleness_is_a_metric_and_never_above_the_printed_bound(side: Callable[..., Side]) -> None:
    for depth, every in SCHEDULES:
        program = overlapping(depth, every)
        assert program.pipeline is not None
        (copy,) = program.pipeline.copies
        metrics = side(program).train(steps=7).metrics
        staleness = [each["policy.generate.staleness"] for each in metrics]
        assert staleness == [each["policy.generate.staleness_worst"] for each in metrics]
        assert staleness == [step - copy.version(step) for step in range(7)]
        assert max(staleness) <= copy.bound


def test_metrics_belong_to_the_step_whose_rows_they_are_of(side: Callable[..., Side]) -> None:
    found = side(overlapping(2)).train()
    for step, metrics in enumerate(found.metrics):
        lengths = [len(row) for row in found.tables[step].column("tokens").to_pylist()]
        assert metrics["policy.generate.response_length"] == pytest.approx(sum(lengths) / len(lengths))


# ------------------------------------------------------------------------------------------- mutations


def before(place: int, other: int, waits: list[frozenset[int]]) -> list[int] | None:
    """Return an order in which task `place` runs as early as its waits allow, and before `other`; None if none does."""
    order, done = list[int](), set[int]()
    needed, front = {place}, [place]
    while front:
        for need in waits[front.pop()] - needed:
            needed.add(need)
            front.append(need)
    if other in needed:
        return None
    for i in (*sorted(needed), *range(len(waits))):
        if i not in done:
            assert waits[i] <= done, "tasks are numbered in an order that keeps the waits"
            order.append(i)
            done.add(i)
    return order


@pytest.mark.slow(group="overlap")
@looped("depth, every", [(1, 1), (2, 1), (1, 2)])
def test_without_any_wait_some_order_gives_something_else(side: Callable[..., Side], depth: int, every: int) -> None:
    """All but the order of side effects at one place: sampling is named by its step, so its order changes nothing."""
    program = overlapping(depth, every)
    steps = depth + 2 * every + 1
    expected = side(program).train(steps=steps).bits()
    tasks = [*unrolled(program, steps)]
    waits = waits_between(program, tasks)
    survived, tried = list[tuple[str, str]](), 0
    for place, needs in enumerate(waits):
        for need in needs:
            mutated = [waits[i] - {need} if i == place else waits[i] for i in range(len(waits))]
            order = before(place, need, mutated)
            if order is None:
                continue  # another wait implies it
            tried += 1
            try:
                same = side(program).in_order([tasks[i] for i in order]).bits() == expected
            except (LawError, AssertionError):
                continue
            if same:
                survived.append((task_name(tasks[need][1]), task_name(tasks[place][1])))
    assert tried > 10 * steps / 2
    names = {node.name for node in program.graph.nodes if not node.op.pure}
    for first, second in survived:
        assert names & {*first.split(", ")}, f"{second} need not wait for {first}"
        assert names & {*second.split(", ")}, f"{second} need not wait for {first}"


@pytest.mark.slow(group="overlap")
@looped("depth, every", [(1, 1), (2, 2)])
def test_without_any_task_a_run_fails(side: Callable[..., Side], depth: int, every: int) -> None:
    """Also a sync: what samples then has older weights than its schedule says, and refuses them."""
    program = overlapping(depth, every)
    steps = depth + every + 2
    tasks = [*unrolled(program, steps)]
    expected = side(program).train(steps=steps).bits()
    for i, (step, task) in enumerate(tasks):
        if isinstance(task, Run) and "adapt" in task.nodes:
            continue  # the end of its step misses it, in `train`
        try:
            same = side(program).in_order(tasks[:i] + tasks[i + 1 :]).bits() == expected
        except (LawError, KeyError, AssertionError):
            continue
        assert not same, (step, task)


@pytest.mark.parametrize("store", ["begun", "versions", "carried"])
def test_without_a_store_of_steps_under_way_a_run_fails(side: Callable[..., Side], store: str) -> None:
    expected = side(overlapping(1)).train().bits()
    found = side(overlapping(1))
    forgotten = getattr(found.executor, store)

    class Forgetful(Side):
        def stepped(self, step: int, ran: StepResult, seconds: float) -> None:
            super().stepped(step, ran, seconds)
            if step == 2:
                forgotten.clear()

    forgetful = Forgetful(found.program, found.handles, found.executor, found.sources)
    with contextlib.suppress(LawError):
        assert (forgetful.train().bits() == expected) is False


def test_an_iteration_in_which_the_update_is_first_is_refused_at_once(side: Callable[..., Side]) -> None:
    found, program = side(overlapping(1)), overlapping(1)
    found.program = program
    for step, task in unrolled(program, 1):
        found.executor.execute(program, found.sources, Key(SEED, step), task)
    sync = next(each.task for each in iteration(program, 1, 9) if isinstance(each.task, Sync))
    found.executor.execute(program, found.sources, Key(SEED, 2), sync)  # version 1, which is the newest
    with pytest.raises(LawError, match="by the schedule it is 2"):
        found.executor.execute(program, found.sources, Key(SEED, 3), sync)


# ------------------------------------------------------------------------------------------- resume


@looped("depth, every", [(1, 1), (2, 1), (1, 2), (2, 4)])
def test_a_run_that_continues_from_any_step_gives_the_same_bits(
    side: Callable[..., Side], tmp_path: Path, depth: int, every: int
) -> None:
    """The window comes from the disk: rows under way, their metrics so far, the copy of the weights, carried values."""
    program = overlapping(depth, every)
    whole = side(program).train()
    for stop in range(1, STEPS):
        first = side(program).train(until=stop)
        assert len(first.metrics) == stop
        folder = tmp_path / f"{depth}-{every}-{stop}"
        folder.mkdir()
        first.executor.save_state(program, folder)
        again = side(program)
        again.executor.load_state(program, folder)
        again.train(start=stop)
        for step in range(stop):
            again.tables[step] = first.tables[step]
        assert again.bits() == whole.bits(), stop
        assert first.metrics + again.metrics == whole.metrics, stop


def test_a_checkpoint_is_not_resumed_with_another_overlap(side: Callable[..., Side], tmp_path: Path) -> None:
    program = overlapping(1)
    first = side(program).train(until=2)
    first.executor.save_state(program, tmp_path)
    for other, now in ((overlapping(2), "depth 2"), (overlapping(0), "steps that do not overlap")):
        with pytest.raises(DataError, match=rf"was written with depth 1 \(policy 1 ahead.*\), but the plan has {now}"):
            side(other).executor.load_state(other, tmp_path)


def test_rows_under_way_in_pools_that_the_plan_lacks_are_refused(side: Callable[..., Side], tmp_path: Path) -> None:
    program = overlapping(1)
    side(program).train(until=2).executor.save_state(program, tmp_path)
    text = (tmp_path / "window.json").read_text()
    (tmp_path / "window.json").write_text(text.replace('"train"', '"gone"'))
    with pytest.raises(DataError, match=r"was written with the pools .*gone.*, but the plan has the pools"):
        side(program).executor.load_state(program, tmp_path)


def test_a_damaged_window_is_refused(side: Callable[..., Side], tmp_path: Path) -> None:
    program = overlapping(1)
    first = side(program).train(until=2)
    first.executor.save_state(program, tmp_path)
    rows = next((tmp_path / "window").glob("*.arrow"))
    rows.write_bytes(b"not a table")
    with pytest.raises(DataError, match="is not a table of rows"):
        side(program).executor.load_state(program, tmp_path)
    (tmp_path / "window.json").write_text("{}")
    with pytest.raises(DataError, match="has no steps under way"):
        side(program).executor.load_state(program, tmp_path)


def test_a_run_whose_steps_overlap_does_not_begin_in_the_middle(side: Callable[..., Side]) -> None:
    with pytest.raises(LawError, match="step 3 has not begun"):
        side(overlapping(1)).train(start=3)


def test_checkpoints_wait_for_a_sync_where_an_engine_cannot_return_its_weights(side: Callable[..., Side]) -> None:
    program = overlapping(1, 2)
    found = side(program)
    assert all(found.executor.can_save(program, step) for step in range(9))
    assert program.pipeline is not None
    (copy,) = program.pipeline.copies
    served = replace(copy, home=replace(copy.home, engine="sglang"))
    program = replace(program, pipeline=replace(program.pipeline, copies=(served,)))
    assert [found.executor.can_save(program, step) for step in range(5)] == [True, False, True, False, True]
