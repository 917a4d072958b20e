"""Rows in flight: newer weights come while they are drawn; each token is of one version, no older than the bound."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from examples.decoupled_ppo import decoupled_ppo
from flowgraph import Flow, Graph, Loss, flow, stale
from flowgraph.app.planning.overlap import with_contract
from flowgraph.engines.forward_pass.turns import Turns
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import DataError, LawError, PlanError
from flowgraph.language import Key
from flowgraph.language.handle import Completion, ResponseRows, SampleRequest
from flowgraph.language.values import VersionRange
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Home, Program, Sync
from flowgraph.lowering.waits import waits_between
from flowgraph.passes import compile_graph
from flowgraph.runtime.batch import to_table
from flowgraph.runtime.driver import RunSpec, train
from flowgraph.runtime.in_flight import InFlight
from flowgraph.runtime.interpreter import Executor, StepResult
from flowgraph.runtime.places import RowSource
from nodes import Policy, Prompts, clipped, generate, group_normalize, logprobs, score, update
from nodes.data.source import PromptSource
from tests.unit.flowgraph.lowering.test_pipeline_steps import plan_of

SEED, STEPS, DRAWN = 7, 5, "policy.generate"
PATIENCE_S = 5.0  # in which a response waits for the weights that it is to cross; they always come
TINY_PARTS = tuple[Any, Any]


@flow
def ahead(prompts: Prompts, policy: Policy) -> Policy:
    """Train on rows of weights up to five updates old."""
    rollout = generate(stale(policy, at_most=5), prompts, n=2, max_tokens=6, ignore_eos=True)
    advantages = group_normalize(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs, eps=0.2)

    return update(policy, loss, lr=0.3, optimizer="sgd")


def flying(depth: int, every: int = 1, of: Flow[..., object] = ahead) -> Program:
    graph = compile_graph(of.graph())
    return lower(graph, with_contract(plan_of(graph, depth, every), "in_flight"))


@dataclass(eq=False)
class Crossing(LocalModel):
    """A model that keeps every version of its weights; its responses wait after two tokens for newer ones that come."""

    crossed: Callable[[int], bool] = lambda step: True
    kept: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict[int, "dict[str, torch.Tensor]"])
    passes: threading.local = field(default_factory=threading.local)
    came: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kept[0] = self.weights()

    async def sample(self, request: SampleRequest) -> Completion:
        self.passes.step, self.passes.count, self.passes.first = request.key.step, 0, self.version
        return await super().sample(request)

    @contextmanager
    def _turn(self) -> Any:
        self.passes.count += 1
        if self.passes.count == 3 and self.crossed(self.passes.step):
            first = self.passes.first
            with self.came:
                assert self.came.wait_for(lambda: self.version > first, PATIENCE_S), (
                    "the weights came",
                    self.passes.step,
                    first,
                    self.version,
                )
        with self._turns:
            yield self.version

    def take(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        self.kept[version] = {name: tensor.clone() for name, tensor in weights.items()}
        super().take(weights, version)
        with self.came:
            self.came.notify_all()


@dataclass
class Flight:
    """A run in this process with rows in flight: its program, its executor, and what it gave in each step."""

    program: Program
    handles: Mapping[Home, Any]
    executor: Executor
    sources: Mapping[str, RowSource]
    steps: int = STEPS
    tables: dict[int, pa.Table] = field(default_factory=dict[int, pa.Table])
    metrics: list[Mapping[str, float]] = field(default_factory=list[Mapping[str, float]])

    def stepped(self, step: int, ran: StepResult, seconds: float) -> None:
        self.tables[step] = ran.apply(lambda tables: tables[0], [DRAWN])()
        self.metrics.append(ran.observed.means())

    def crosses(self, step: int) -> bool:
        """Return whether weights that are newer than those which begin the rows of a step come before its update."""
        assert self.program.pipeline is not None
        (copy,) = self.program.pipeline.copies
        return copy.version(min(step + copy.ahead, self.steps - 1)) > copy.version(step)

    def checked(self, *_: object) -> None:
        raise AssertionError("nothing is checked here")

    def train(self, start: int = 0, until: int | None = None, steps: int = STEPS) -> Flight:
        stop = (lambda: False) if until is None else (lambda: len(self.metrics) + start >= until)
        self.steps = steps
        train(RunSpec(self.program, self.sources, SEED, steps), self.executor, [self], stop, start)
        return self

    @property
    def copy(self) -> Any:
        """Return the handle that draws."""
        (home,) = (home for home in self.handles if home.in_flight)
        return self.handles[home]

    def versions(self, step: int) -> list[list[int]]:
        rows: list[list[int]] = self.tables[step].column("versions").to_pylist()
        return rows


@pytest.fixture
def flight(tiny_parts: TINY_PARTS, digit_rows: pa.Table) -> Any:
    """Return `flight(program)`: a run that has not begun; its threads end with the test."""
    import copy

    opened = list[InFlight]()

    def made(program: Program, kind: Callable[..., LocalModel] = Crossing, places: Any = InFlight) -> Flight:
        model, tokenizer = tiny_parts
        handles = {
            home: (kind if home.in_flight else LocalModel)(
                copy.deepcopy(model), tokenizer, trainable=home in program.trained
            )
            for home in program.homes
        }
        opened.append(places(handles))
        sources = {"prompts": PromptSource(digit_rows, 2, seed=SEED)}
        flight = Flight(program, handles, Executor(opened[-1]), sources)
        if isinstance(flight.copy, Crossing):
            flight.copy.crossed = flight.crosses
        return flight

    yield made
    for each in opened:
        each.close()


def test_rows_cross_versions_and_no_token_is_older_than_the_printed_bound(flight: Any) -> None:
    for depth, every in ((1, 1), (2, 1), (1, 2)):
        program = flying(depth, every)
        assert program.pipeline is not None
        (copy,) = program.pipeline.copies
        ran = flight(program).train()
        for step in range(STEPS):
            for row in ran.versions(step):
                assert row == sorted(row), "weights only get newer"
                assert all(copy.version(step) <= version <= step for version in row)
        ages = [step - version for step in range(STEPS) for row in ran.versions(step) for version in row]
        assert max(ages) <= copy.bound
        crossed = [step for step in range(STEPS) if all(len({*row}) > 1 for row in ran.versions(step))]
        assert crossed == [step for step in range(STEPS) if ran.crosses(step)]
        assert crossed, (depth, every)
