"""Rows in flight: newer weights come while they are drawn; each token is of one version, no older than the bound."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from flowgraph import Flow, Loss, flow, node, stale
from flowgraph.analysis.placed_graph import check_plan
from flowgraph.app.planning.overlap import with_contract
from flowgraph.checks.placed import refuse_unsupported
from flowgraph.cluster.plan import Plan, RoleSettings
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import DataError, LawError, PlanError, UsageError
from flowgraph.language.handle import Completion, ResponseRows, SampleRequest
from flowgraph.language.region import Observations
from flowgraph.language.values import Mask, Measure, VersionRange, Versions
from flowgraph.lowering.lower import lower
from flowgraph.lowering.pipeline_steps import unrolled
from flowgraph.lowering.program import Home, Program, Sync
from flowgraph.lowering.task_names import task_name
from flowgraph.lowering.waits import waits_between
from flowgraph.passes import compile_graph
from flowgraph.runtime.batch import to_table
from flowgraph.runtime.driver import RunSpec, train
from flowgraph.runtime.hosting import ModelSetup
from flowgraph.runtime.in_flight import PlacesInFlight, places_in_process
from flowgraph.runtime.interpreter import Executor, StepResult
from flowgraph.runtime.local import InProcess
from flowgraph.runtime.measure.profiling import Profiles
from flowgraph.runtime.places import RowSource
from flowgraph.runtime.serving import Servers
from flowgraph.runtime.token_versions import AGED, check_token_versions, staleness_of
from nodes import (
    Advantages,
    Policy,
    Prompts,
    Rollout,
    Scores,
    TokenAdvantages,
    clipped,
    generate,
    group_normalize,
    importance_weights,
    logprobs,
    score,
    update,
)
from nodes.data.source import PromptSource
from tests.unit.flowgraph.lowering.test_pipeline_steps import plan_of

SEED, STEPS, DRAWN = 7, 5, "policy.generate"
PATIENCE_S = 60.0  # in which a response waits for the weights that it is to cross; they always come
TINY_PARTS = tuple[Any, Any]
NO_SERVERS = Servers(ModelSetup({}, 0, Path()), Path(), 0.0)


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
    return lower(graph, with_contract(plan_of(graph, depth, every), graph, "in_flight"))


@flow
def untold(prompts: Prompts, policy: Policy) -> tuple[Policy, Rollout]:
    """Train on some rows, and return others."""
    extra = generate(stale(policy, at_most=5, corrected=False), prompts, n=1, max_tokens=3)
    rollout = generate(stale(policy, at_most=5), prompts, n=2, max_tokens=6)
    advantages = group_normalize(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs, eps=0.2)

    return update(policy, loss), extra


def replaced(program: Program) -> Program:
    """Return the program with the contract `scheduled`."""
    return lower(program.graph, with_contract(program.plan, program.graph, "scheduled"))


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
            first, step = self.passes.first, self.passes.step
            with self.came:
                assert self.came.wait_for(lambda: self.version > first or not self.crossed(step), PATIENCE_S), step
        with self._turns:
            yield self.version

    def release(self) -> None:
        """Let all responses go on without newer weights."""
        self.crossed = lambda step: False
        with self.came:
            self.came.notify_all()

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
        (schedule,) = self.program.pipeline.copies
        return schedule.version(min(step + schedule.ahead, self.steps - 1)) > schedule.version(step)

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
        return next(handle for home, handle in self.handles.items() if home not in self.program.trained)

    def versions(self, step: int) -> list[list[int]]:
        rows: list[list[int]] = self.tables[step].column("versions").to_pylist()
        return rows


@pytest.fixture
def flight(tiny_parts: TINY_PARTS, digit_rows: pa.Table) -> Any:
    """Return `flight(program)`: a run that has not begun; its threads end with the test."""
    opened = list[Flight]()

    def made(program: Program, kind: Callable[..., LocalModel] = Crossing, places: Any = PlacesInFlight) -> Flight:
        model, tokenizer = tiny_parts
        handles = {
            home: (kind if home.in_flight else LocalModel)(
                copy.deepcopy(model), tokenizer, trainable=home in program.trained
            )
            for home in program.homes
        }
        sources = {"prompts": PromptSource(digit_rows, 2, seed=SEED)}
        flight = Flight(program, handles, Executor(places(handles)), sources)
        if isinstance(flight.copy, Crossing):
            flight.copy.crossed = flight.crosses
        opened.append(flight)
        return flight

    yield made
    for each in opened:
        if isinstance(each.copy, Crossing):
            each.copy.release()
        each.executor.places.close()


def test_rows_cross_versions_and_no_token_is_older_than_the_printed_bound(flight: Any) -> None:
    for depth, every in ((1, 1), (2, 1), (1, 2)):
        program = flying(depth, every)
        assert program.pipeline is not None
        (schedule,) = program.pipeline.copies
        ran = flight(program).train()
        for step in range(STEPS):
            for row in ran.versions(step):
                assert row == sorted(row), "weights only get newer"
                assert all(schedule.version(step) <= version <= step for version in row)
        ages = [step - version for step in range(STEPS) for row in ran.versions(step) for version in row]
        assert max(ages) <= schedule.bound
        crossed = [step for step in range(STEPS) if all(len({*row}) > 1 for row in ran.versions(step))]
        assert crossed == [step for step in range(STEPS) if ran.crosses(step)]
        assert crossed, (depth, every)


def attribution_error(ran: Flight, step: int) -> float:
    """Return the largest difference between a recorded log-prob and that of the version that its token names.

    The weights of each version read whole rows, without a cache.
    """
    table, worst = ran.tables[step], 0.0
    model = LocalModel(copy.deepcopy(ran.copy.model), ran.copy.raw_tokenizer)
    rows = {name: table.column(name).to_pylist() for name in ("context", "tokens", "logprobs", "versions")}
    for version in {version for row in rows["versions"] for version in row}:
        model.load(ran.copy.kept[version])
        tokens = torch.tensor(rows["tokens"])
        lengths = torch.full((len(tokens),), tokens.shape[1])
        read = ResponseRows(pa.array(rows["context"], pa.list_(pa.int32())), tokens, lengths)
        expected = model.token_stats(read, ["logprobs"]).logprobs
        here = torch.tensor(rows["versions"]) == version
        worst = max(worst, float((expected - torch.tensor(rows["logprobs"]))[here].abs().max()))
    return worst


def test_each_log_prob_is_of_the_version_that_drew_its_token(flight: Any) -> None:
    for depth, every in ((1, 1), (2, 1)):
        ran = flight(flying(depth, every)).train()
        assert max(attribution_error(ran, step) for step in range(STEPS)) < 1e-4


class Keeping(Crossing):
    """A model whose responses go on with the cache of the weights that are gone."""

    @contextmanager
    def _turn(self) -> Any:
        with super()._turn():
            yield 0


def test_with_the_cache_of_old_weights_log_probs_are_of_no_version(flight: Any) -> None:
    program = flying(1)
    places = type("Trusting", (PlacesInFlight,), {})
    ran = flight(program, Keeping, places)
    with pytest.raises(LawError, match="drew a token of step 2 by version 0 of the weights; its step allows 1 to 2"):
        ran.train()
    assert attribution_error(ran, 1) > 1e-2, "the weights differ enough for the test of attribution to see it"


def test_metrics_say_how_old_tokens_are_and_how_many_rows_have_several_versions(flight: Any) -> None:
    ran = flight(flying(2)).train()
    for step, metrics in enumerate(ran.metrics):
        rows = ran.versions(step)
        ages = [step - version for row in rows for version in row]
        spans = [len({*row}) for row in rows]
        assert metrics[f"{DRAWN}.staleness"] == pytest.approx(sum(ages) / len(ages))
        assert metrics[f"{DRAWN}.staleness_worst"] == max(ages)
        assert metrics[f"{DRAWN}.spans"] == pytest.approx(sum(spans) / len(spans))
        assert metrics[f"{DRAWN}.mixed"] == pytest.approx(sum(count > 1 for count in spans) / len(spans))
        assert not [name for name in metrics if "age" in name]
    assert max(metrics[f"{DRAWN}.mixed"] for metrics in ran.metrics) == 1


def test_one_task_at_a_time_is_the_scheduled_run_bit_for_bit(flight: Any) -> None:
    """Then a sync finds nothing under way, and all rows of a step are of one version."""

    def bits(program: Program) -> tuple[Any, ...]:
        ran = flight(program, LocalModel, InProcess).train()
        (home,) = program.trained
        weights = {name: tensor.numpy().tobytes() for name, tensor in ran.handles[home].weights().items()}
        return weights, {step: table.to_pydict() for step, table in ran.tables.items()}

    graph = compile_graph(ahead.graph())
    for depth, every in ((1, 1), (1, 2)):
        assert bits(flying(depth, every)) == bits(lower(graph, plan_of(graph, depth, every)))


def test_a_sync_in_flight_waits_for_the_update_and_not_for_the_rows_that_are_being_drawn() -> None:
    waiting = dict[str, set[str]]()
    for name, program in (("in_flight", flying(1)), ("scheduled", replaced(flying(1)))):
        tasks = [*unrolled(program, STEPS)]
        waits = waits_between(program, tasks)
        sync = next(i for i, (step, task) in enumerate(tasks) if isinstance(task, Sync) and step == 3)
        waiting[name] = {f"{task_name(tasks[i][1])} {tasks[i][0]}" for i in waits[sync]}
    assert waiting["scheduled"] - waiting["in_flight"] == {"policy.generate 2"}
    assert "policy.update 1" in waiting["in_flight"]


# ------------------------------------------------------------------------------------------- mutations


def test_a_task_of_a_later_step_that_failed_ends_the_step_that_is_trained_on() -> None:
    failed, slow = Future[Any](), Future[Any]()
    failed.set_exception(ValueError("the rows of step 5 were lost"))
    places = PlacesInFlight({})
    places._under_way += [("step 4", ended := Future[Any](), Observations()), ("step 5", slow, Observations())]
    ended.set_result(None)
    places.finish("step 4")
    places._under_way += [("step 6", failed, Observations())]
    with pytest.raises(ValueError, match="step 5 were lost"):
        places.finish("step 4")
    slow.set_result(None)
    places.close()


def test_the_end_of_a_run_waits_for_tasks_under_way_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowgraph.runtime.in_flight.CLOSE_S", 0.01)
    places, never = PlacesInFlight({}), threading.Event()
    places._submit("a pool", lambda *_: never.wait(), None)
    queued = places._submit("a pool", lambda *_: None, None)
    places.close()
    assert queued.cancelled()
    never.set()


def test_tasks_side_by_side_in_one_process_cannot_be_profiled(tmp_path: Path) -> None:
    homes, profiles = flying(1).homes, Profiles(tmp_path, frozenset({1}))
    with pytest.raises(UsageError, match="cannot be profiled"):
        places_in_process(homes, {}, NO_SERVERS, profiles)
    assert type(places_in_process(replaced(flying(1)).homes, {}, NO_SERVERS, profiles)) is InProcess


def test_a_token_outside_the_bound_is_refused(flight: Any) -> None:
    class Ahead(Crossing):
        """Its tokens claim to be of weights that only the next update makes."""

        @contextmanager
        def _turn(self) -> Any:
            with super()._turn() as version:
                yield version + 1

    class Lost(PlacesInFlight):
        """A sync is lost."""

        def sync(self, task: Sync, version: int) -> None:
            if version != 2:
                super().sync(task, version)

    with pytest.raises(LawError, match="drew a token of step 0 by version 1 of the weights; its step allows 0"):
        flight(flying(1), Ahead).train()
    with pytest.raises(LawError, match="version 2 of these weights was consumed"):
        flight(flying(1), LocalModel, Lost).train()


def test_versions_of_a_result_are_checked_and_counted() -> None:
    def rollout(versions: list[list[int]], mask: list[list[int]]) -> Any:
        return Rollout.of({"versions": Versions(torch.tensor(versions)), "mask": Mask(torch.tensor(mask))})

    rows = rollout([[3, 4, 4], [4, 9, 4], [4, 0, 0]], [[1, 1, 1], [1, 0, 1], [0, 0, 0]])
    measures = {each.name: (each.total, each.count) for each in check_token_versions("g", rows, VersionRange(3, 5), 5)}
    assert measures == {f"{AGED}2": (1, 1), f"{AGED}1": (4, 1), "spans": (3, 2), "mixed": (1, 2)}
    observed = Observations()
    for share in ([Measure(f"{AGED}2", 1, 1), Measure(f"{AGED}1", 4, 1)], [Measure(f"{AGED}0", 5, 1)]):
        observed.add("g", share)  # two ranks
    assert staleness_of(observed) == {"g": (Measure("staleness", 6, 10), Measure("staleness_worst", 2, 1))}
    assert not observed.sums
    for token, allowed in ((2, "3 to 5"), (6, "3 to 5")):
        with pytest.raises(LawError, match=f"step 5 by version {token} of the weights; its step allows {allowed}"):
            [*check_token_versions("g", rollout([[token]], [[1]]), VersionRange(3, 5), 5)]
    assert not [*check_token_versions("g", Scores(torch.ones(2)), VersionRange(3, 5), 5)]


# ------------------------------------------------------------------------------------------- resume


def test_a_resumed_run_trains_on_each_step_once_with_the_rows_that_were_saved(flight: Any, tmp_path: Path) -> None:
    program = flying(2)
    begun = flight(program).train(until=2)
    begun.copy.release()
    begun.executor.save_state(program, tmp_path)
    drawn = json.loads((tmp_path / "window.json").read_text())
    assert [step["step"] for step in drawn["steps"]] == [2, 3], "rows under way were finished, and saved"
    again = flight(program)
    again.executor.load_state(program, tmp_path)
    saved = {step: item.results[DRAWN] for step, item in again.executor.window.items()}
    again.train(start=2)
    assert sorted({**begun.tables, **again.tables}) == [*range(STEPS)]
    assert program.pipeline is not None
    (schedule,) = program.pipeline.copies
    for step, rows in saved.items():
        assert again.tables[step].equals(to_table(rows.value)), "what was drawn is trained on"
    for step in range(2, STEPS):
        assert all(schedule.version(step) <= version <= step for row in again.versions(step) for version in row)
        assert again.metrics[step - 2][f"{DRAWN}.staleness_worst"] <= schedule.bound
    with pytest.raises(DataError, match="policy 2 ahead, synced every 1, in flight"):
        other = flight(replaced(program), LocalModel, InProcess)
        other.executor.load_state(other.program, tmp_path)


# ------------------------------------------------------------------------------------------- losses


@node
def by_age(advantages: Advantages, versions: Versions, mask: Mask) -> TokenAdvantages:
    """Halve the advantages of tokens of older weights than the newest in their row."""
    newest = (versions.data * mask.data).amax(1, keepdim=True)
    return TokenAdvantages(advantages.per_token() * torch.where(versions.data < newest, 0.5, 1.0))


@flow
def weighed(prompts: Prompts, policy: Policy) -> Policy:
    """Train with weights that depend on the version of each token, and on what its version thought of it."""
    rollout = generate(stale(policy, at_most=5), prompts, n=2, max_tokens=6, ignore_eos=True)
    advantages = group_normalize(score(rollout), rollout.group)
    proximal = logprobs(policy, rollout)
    weights = importance_weights(proximal, rollout.mask, behaviour=rollout.logprobs, cap=2.0)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        aged = by_age(advantages, rollout.versions, rollout.mask)
        return clipped(new, aged, rollout.mask, old=proximal, weights=weights, eps=0.2)

    return update(policy, loss, lr=0.3, optimizer="sgd")


def test_the_versions_of_tokens_reach_losses_and_decoupled_weights_are_right_for_mixed_rows(flight: Any) -> None:
    ran = flight(flying(1, of=weighed))
    weights = dict[int, list[list[float]]]()
    ran.stepped = lambda step, result, seconds: (
        Flight.stepped(ran, step, result, seconds),
        weights.update({step: result.apply(lambda tables: tables[0], ["importance_weights"])().column(0).to_pylist()}),
    )
    (home,) = ran.program.trained
    proximal, trained = dict[int, dict[str, torch.Tensor]](), ran.handles[home]
    step_of = trained.step

    def stepping(*args: Any) -> Any:
        proximal[trained.version] = {name: tensor.clone() for name, tensor in trained.weights().items()}
        return step_of(*args)

    trained.step = stepping
    ran.train()
    for step, rows in weights.items():
        table = ran.tables[step]
        tokens = torch.tensor(table.column("tokens").to_pylist())
        read = ResponseRows(table.column("context").combine_chunks(), tokens, torch.full((len(tokens),), 6))
        ran.copy.load(proximal[step])
        newest = ran.copy.token_stats(read, ["logprobs"]).logprobs
        ratio = (newest - torch.tensor(table.column("logprobs").to_pylist())).exp().clamp(max=2.0)
        assert torch.allclose(torch.tensor(rows), ratio, atol=1e-3), step
    assert ran.metrics[1][f"{DRAWN}.mixed"] == 1


# ------------------------------------------------------------------------------------------- refusals


def test_what_cannot_be_in_flight_is_refused_with_a_reason(golden: Callable[[str, str], None]) -> None:
    graph = compile_graph(ahead.graph())

    def changed(role: str, **fields: Any) -> Plan:
        plan = with_contract(plan_of(graph, 1), graph, "in_flight")
        rows = [row.model_copy(update=fields) if row.role == role else row for row in plan.placed]
        return plan.model_copy(update={"placed": tuple(rows)})

    flying_too = RoleSettings(contract="in_flight")
    plans = {
        "a role that trains": changed("policy.train", running=flying_too),
        "no step ahead": changed("policy.sample", ahead=0, lag=1),
        "asleep": changed("policy.sample", running=RoleSettings(contract="in_flight", sleeps=True)),
        "on the trainer's devices": changed("policy.train", pool="sample", engine="fsdp"),
        "an engine that does not sample": changed("policy.sample", engine="fsdp"),
        "an engine that keeps no cache": changed(
            "policy.sample", running=RoleSettings(contract="in_flight", hold="in_place")
        ),
        "chunks of a step": changed("policy.sample", chunks=2),
        "a hold without the contract": changed("policy.sample", running=RoleSettings(hold="in_place"), engine="sglang"),
    }
    texts = list[str]()
    for name, plan in plans.items():
        with pytest.raises(PlanError) as refused:
            check_plan(plan, graph, "plan.json")
            refuse_unsupported(plan, "plan.json")
        texts.append(f"{name}\n{refused.value}")
    with pytest.raises(PlanError) as refused:
        with_contract(plan_of(graph), graph, "in_flight", "plan.json")
    texts.append(f"a plan without overlap\n{refused.value}")
    unread = compile_graph(untold.graph())
    with pytest.raises(PlanError) as refused:
        check_plan(with_contract(plan_of(unread, 1), unread, "in_flight"), unread, "plan.json")
    texts.append(f"rows that nothing trains on\n{refused.value}")
    golden("\n\n".join(texts), "programs/in_flight/refused.txt")


def test_plan_files_have_the_contract_only_if_it_is_in_flight() -> None:
    graph = compile_graph(ahead.graph())
    plan = plan_of(graph, 1)
    assert "contract" not in plan.to_json()
    assert "hold" not in plan.to_json()
    flies = with_contract(plan, graph, "in_flight")
    assert '"contract": "in_flight"' in flies.to_json()
    assert Plan.from_json(flies.to_json()) == flies
    assert with_contract(flies, graph, "scheduled") == plan
    assert str(flies.placed[0].running) == "contract=in_flight" or str(flies.placed[1].running) == "contract=in_flight"
