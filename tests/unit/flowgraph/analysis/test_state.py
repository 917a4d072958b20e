"""The list of state: what it names, that an executor carries no more, and that a run goes on from it alone."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
import torch

from examples.gpg import gpg
from examples.grpo import grpo
from flowgraph import Flow, Graph, Loss, State, Value, flow, node, stale
from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.analysis.roles import roles
from flowgraph.analysis.state import StateItem, carried_state, state_json, state_text
from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import PlacedRole, Plan, Pool
from flowgraph.engines.local.model import LocalModel
from flowgraph.flows.settings import resolve_settings
from flowgraph.language import Key
from flowgraph.language.handle import Optimizer
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Program, Read
from flowgraph.passes import compile_graph
from flowgraph.runtime.interpreter import Executor
from flowgraph.runtime.local import InProcess
from flowgraph.runtime.places import RowSource
from nodes import (
    Advantages,
    LogProbs,
    Policy,
    Prompts,
    Reference,
    Rollout,
    clipped,
    generate,
    group_normalize,
    logprobs,
    policy_gradient,
    score,
    update,
)
from nodes.data.source import PromptSource

Tiny = Callable[..., LocalModel]
SEED, STEPS = 3, 2


class Coefficient(State):
    """A factor that adapts from step to step."""


@node(carries="coefficient")
def adapt(coefficient: Coefficient, rollout: Rollout) -> Coefficient:
    """Add a tenth of a batch's tokens to it."""
    return Coefficient(coefficient.data + 0.1 * int(rollout.lengths.data.sum()))


@node
def weigh(advantages: Advantages, coefficient: Coefficient) -> Advantages:
    """Scale advantages."""
    return Advantages(advantages.data * coefficient.data)


@node(carries="average")
def follow(average: Policy, *, newest: Policy) -> Policy:
    """Move an average towards weights."""
    raise NotImplementedError


@flow
def adaptive(prompts: Prompts, policy: Policy, coefficient: Coefficient) -> tuple[Policy, Coefficient]:
    rollout = generate(policy, prompts)
    advantages = weigh(group_normalize(score(rollout, by="partial"), rollout.group), coefficient)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    return update(policy, loss), adapt(coefficient, rollout)


@flow
def fixed(prompts: Prompts, policy: Policy, coefficient: Coefficient) -> Policy:
    """Read a state that nothing carries on: it is the same in each step, as data is."""
    rollout = generate(policy, prompts)
    advantages = weigh(group_normalize(score(rollout), rollout.group), coefficient)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    return update(policy, loss)


@flow
def averaged(prompts: Prompts, policy: Policy, average: Policy) -> tuple[Policy, Policy]:
    rollout = generate(stale(policy, at_most=4), prompts)
    advantages = group_normalize(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

    def again(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

    trained = update(update(policy, loss), again, optimizer="sgd")
    return trained, follow(average, newest=trained)


@flow
def only_read(prompts: Prompts, policy: Policy, ref: Reference) -> LogProbs:
    return logprobs(ref, generate(policy, prompts))


@dataclass(frozen=True)
class Constant:
    """A source that gives the same every step."""

    value: Value

    def batch(self, step: int) -> Value:
        return self.value


def graph_of(of: Flow[..., object]) -> Graph:
    return compile_graph(of.graph())


# ------------------------------------------------------------------------------------------- the list


def test_what_a_flow_trains_carries_its_optimizer_and_what_is_frozen_is_no_state() -> None:
    assert state_text(carried_state(graph_of(grpo))).splitlines() == [
        "weights  policy           weights, version, state of adamw",
        "data     prompts          seed, step",
        "random   policy.generate  seed, step",
        "random   policy.update    seed, step",
    ]


def test_a_carried_value_that_is_no_model_is_state() -> None:
    assert state_text(carried_state(graph_of(adaptive))).splitlines() == [
        "weights  policy           weights, version, state of adamw",
        "value    coefficient      value",
        "data     prompts          seed, step",
        "random   policy.generate  seed, step",
        "random   policy.update    seed, step",
    ]


def test_a_state_that_nothing_carries_on_is_read_as_data_is() -> None:
    items = carried_state(graph_of(fixed))
    assert [(item.kind, item.name) for item in items][:3] == [
        ("weights", "policy"),
        ("data", "prompts"),
        ("data", "coefficient"),
    ]


def test_each_optimizer_of_a_model_is_listed_and_an_average_has_none() -> None:
    weights = [item for item in carried_state(graph_of(averaged)) if item.kind == "weights"]
    assert [(item.name, item.holds) for item in weights] == [
        (
            "policy",
            ("weights", "version", "state of adamw", "state of sgd", "weights up to 4 versions old"),
        ),
        ("average", ("weights", "version")),
    ]


def test_a_flow_that_trains_nothing_carries_only_where_it_stands() -> None:
    assert [item.kind for item in carried_state(graph_of(only_read))] == ["data", "random"]


@pytest.mark.parametrize("of", [grpo, gpg, adaptive, averaged])
def test_the_list_is_the_same_each_time_and_goes_through_json(of: Flow[..., object]) -> None:
    items = carried_state(graph_of(of))
    assert carried_state(graph_of(of)) == items
    back = json.loads(json.dumps(state_json(items)))
    assert tuple(StateItem(each["kind"], each["name"], tuple(each["holds"])) for each in back) == items


def test_no_state_prints_nothing() -> None:
    assert state_text(()) == ""


# ------------------------------------------------------------------------------------------- what is carried


def program_of(of: Flow[..., object]) -> Program:
    """Lower a flow under a plan with a pool of one device for each use of a model: copies are filled by sync."""
    graph = graph_of(of)
    names = {each.name for each in graph.nodes}
    told = {"policy.generate.n": 8, "policy.generate.max_tokens": 3, "policy.update.lr": 1e-2}
    graph = resolve_settings(graph, [], {n: v for n, v in told.items() if n.rpartition(".")[0] in names})[0]
    used = list(dict.fromkeys(role.use for role in roles(graph)))
    cpu = Device(kind="cpu", memory_bytes=2**30)
    laptop = Machine(name="laptop", devices=(cpu,) * len(used), host_memory_bytes=2**31, cores=2)
    plan = Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=Cluster(nodes=(laptop,)),
        pools=tuple(Pool(name=use, devices=(("laptop", i),)) for i, use in enumerate(used)),
        placed=tuple(PlacedRole(role=role.name, pool=role.use, engine="local") for role in roles(graph)),
    )
    return lower(graph, plan)


@dataclass
class Run:
    """A program at work in this process."""

    program: Program
    handles: dict[Any, LocalModel]
    executor: Executor
    sources: Mapping[str, RowSource]

    @classmethod
    def begin(cls, program: Program, tiny: Tiny, rows: pa.Table) -> Run:
        handles = {home: tiny(trainable=home in program.trained) for home in program.homes}
        sources: dict[str, RowSource] = {"prompts": PromptSource(rows, 3), "coefficient": Constant(Coefficient(0.5))}
        return cls(program, handles, Executor(InProcess(handles)), sources)

    def step(self, key: Key) -> None:
        self.executor.run(self.program, self.sources, key)

    def newest(self, param: str) -> LocalModel:
        return self.handles[dict(self.program.origins)[param]]

    def told(self) -> tuple[dict[str, torch.Tensor], dict[Any, int], Any]:
        """Return all that one run can differ in from another: weights, versions, and the carried value."""
        carried = {name: item.value.data for name, item in self.executor.carried.items()}
        return self.newest("policy").weights(), dict(self.executor.versions), carried


@pytest.mark.parametrize("of", [grpo, adaptive, only_read])
def test_what_an_executor_carries_is_in_the_list(of: Flow[..., object], tiny: Tiny, digit_rows: pa.Table) -> None:
    run = Run.begin(program_of(of), tiny, digit_rows)
    for step in range(STEPS):
        run.step(Key(SEED, step))
    named = {kind: {item.name for item in carried_state(run.program.graph) if item.kind == kind} for kind in KINDS}
    assert {home.param for home, version in run.executor.versions.items() if version} == named["weights"]
    assert set(run.executor.carried) == named["value"]
    assert {task.value for task in run.program.tasks if isinstance(task, Read)} == named["data"] | named["value"]


KINDS, PLACES = ("weights", "value", "data", "random"), ("data", "random")


def restored(items: tuple[StateItem, ...], old: Run, fresh: Run, without: tuple[str, str] | None) -> Run:
    """Bring what the list says, but for one thing, into a run that has just begun, and take its next step."""
    place = {"seed": 99, "step": 0}
    for item in items:
        for what in item.holds:
            if (item.name, what) != without:
                _bring(item, what, old, fresh, place)
    fresh.step(Key(place["seed"], place["step"]))
    return fresh


def _bring(item: StateItem, what: str, old: Run, fresh: Run, place: dict[str, int]) -> None:
    if item.kind in PLACES:
        place[what] = {"seed": SEED, "step": STEPS}[what]
    elif item.kind == "value":
        fresh.executor.carried[item.name] = old.executor.carried[item.name]
    elif what == "weights":
        fresh.newest(item.name).load(old.newest(item.name).weights())
    elif what == "version":
        home = dict(fresh.program.origins)[item.name]
        fresh.executor.versions[home] = fresh.handles[home].version = old.handles[home].version
    else:
        rule = Optimizer(what.removeprefix("state of "))  # type: ignore[arg-type]
        made = [run.newest(item.name)._optimizers._optimizer(rule.name, rule.lr) for run in (old, fresh)]
        made[1].load_state_dict(copy.deepcopy(made[0].state_dict()))


def same(one: Run, other: Run) -> bool:
    (ours, held, carried), (theirs, *rest) = one.told(), other.told()
    return [held, carried] == rest and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("of", [grpo, adaptive])
def test_a_run_goes_on_from_what_the_list_holds_and_not_from_less(
    of: Flow[..., object], tiny: Tiny, digit_rows: pa.Table
) -> None:
    program = program_of(of)
    items = carried_state(program.graph)
    whole, half = (Run.begin(program, tiny, digit_rows) for _ in range(2))
    for step in range(STEPS + 1):
        whole.step(Key(SEED, step))
    for step in range(STEPS):
        half.step(Key(SEED, step))
    names = [(item.name, what) for item in items if item.kind not in PLACES for what in item.holds]
    again = {
        without: same(whole, restored(items, half, Run.begin(program, tiny, digit_rows), without))
        for without in [None, *names]
    }
    assert again.pop(None)
    assert not any(again.values()), again


@pytest.mark.parametrize("what", ["seed", "step"])
def test_where_a_run_stands_is_its_seed_and_step(what: str, tiny: Tiny, digit_rows: pa.Table) -> None:
    """Without either the data and the streams of all nodes are others."""
    program = program_of(grpo)
    whole, half = (Run.begin(program, tiny, digit_rows) for _ in range(2))
    for step in range(STEPS + 1):
        whole.step(Key(SEED, step))
    for step in range(STEPS):
        half.step(Key(SEED, step))
    items = [item for item in carried_state(program.graph) if item.kind not in PLACES]
    here = [StateItem("random", "all", tuple({"seed", "step"} - {what}))]
    assert not same(whole, restored((*items, *here), half, Run.begin(program, tiny, digit_rows), None))
