"""Steps that take the groups that have finished: each once, within the bound, with their own prompts, in any order."""

from __future__ import annotations

import asyncio
import copy
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pytest

from flowgraph import Flow, Loss, flow, node, stale
from flowgraph.analysis.flat_graph import to_json
from flowgraph.analysis.placed_graph import PlacedGraph, check_plan
from flowgraph.app.planning.overlap import with_contract
from flowgraph.checks.in_flight import check_groups_are_taken_once, check_in_flight_roles, check_ready_roles
from flowgraph.cluster.plan import Layout, Plan, RoleSettings
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import DataError, LawError, PlanError
from flowgraph.language import Key
from flowgraph.language.handle import Completion, SampleRequest
from flowgraph.language.region import Observations
from flowgraph.language.traits import Rows
from flowgraph.language.values import VersionRange
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Home, Program, Run, Take
from flowgraph.lowering.take_groups import without_takes
from flowgraph.passes import compile_graph
from flowgraph.runtime.driver import RunSpec, train
from flowgraph.runtime.finished_groups import (
    AGAIN,
    FinishedGroup,
    GroupPool,
    Pick,
    TakenGroup,
    TakenRows,
    age_in,
    picked_table,
)
from flowgraph.runtime.group_order import GroupName
from flowgraph.runtime.in_flight import PlacesInFlight
from flowgraph.runtime.interpreter import Executor, StepResult
from flowgraph.runtime.local import InProcess
from flowgraph.runtime.places import RowSource
from flowgraph.runtime.ray.device import Flows, RankActor
from flowgraph.runtime.ray.task_tables import table_with_ids
from flowgraph.runtime.row_identity import StoredValue
from flowgraph.runtime.token_versions import AGED
from flowgraph.serialize.program_text import program_text
from nodes import (
    Policy,
    Prompts,
    Rollout,
    Scores,
    clipped,
    generate,
    group_normalize,
    logprobs,
    update,
)
from nodes.data.source import PromptSource
from tests.unit.flowgraph.lowering.test_pipeline_steps import plan_of

SEED, STEPS, SIZE, DRAWN = 7, 6, 3, "policy.generate"
TINY_PARTS = tuple[Any, Any]


@node(kind="score")
def rows_match(rollout: Rollout, prompts: Annotated[Prompts, Rows.OTHER]) -> Scores:
    """Return the lengths of responses; raise ValueError unless the prompts are those of the groups, in their order."""
    groups = list(dict.fromkeys(rollout.group.data.tolist()))
    if groups != prompts.group.data.tolist():
        raise ValueError(f"{groups} are not {prompts.group.data.tolist()}")
    return Scores(rollout.lengths.data.float() + rollout.tokens.data.float().mean(1))


@flow
def finishing(prompts: Prompts, policy: Policy) -> Policy:
    """Train on rows of weights up to three updates old."""
    rollout = generate(stale(policy, at_most=3), prompts, n=2, max_tokens=4, ignore_eos=True)
    advantages = group_normalize(rows_match(rollout, prompts), rollout.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs, eps=0.2)

    return update(policy, loss, lr=0.3, optimizer="sgd")


def ready(depth: int = 1, every: int = 1, of: Flow[..., object] = finishing) -> Program:
    graph = compile_graph(of.graph())
    return lower(graph, with_contract(plan_of(graph, depth, every), graph, "ready"))


@dataclass(eq=False)
class Uneven(LocalModel):
    """A model whose responses to a prompt begin after the seconds in `delay_s`."""

    delay_s: Callable[[int, int], float] = lambda step, prompt: 0.0

    async def sample(self, request: SampleRequest) -> Completion:
        await asyncio.sleep(self.delay_s(request.key.step, request.prompt))
        return await super().sample(request)


@dataclass
class Ran:
    """A run in this process, and what it gave in each step."""

    program: Program
    executor: Executor
    sources: Mapping[str, RowSource]
    handles: Mapping[Home, Any]
    tables: dict[int, pa.Table] = field(default_factory=dict[int, pa.Table])
    metrics: dict[int, Mapping[str, float]] = field(default_factory=dict[int, Mapping[str, float]])
    taken: dict[int, Sequence[TakenGroup]] = field(default_factory=dict[int, Sequence[TakenGroup]])

    def stepped(self, step: int, ran: StepResult, seconds: float) -> None:
        self.tables[step] = ran.apply(lambda tables: tables[0], [DRAWN])()
        self.metrics[step], self.taken[step] = ran.observed.means(), ran.groups

    def checked(self, *_: object) -> None:
        raise AssertionError("nothing is checked here")

    def train(self, start: int = 0, until: int | None = None, steps: int = STEPS) -> Ran:
        stop = (lambda: False) if until is None else (lambda: max(self.tables, default=start - 1) + 1 >= until)
        train(RunSpec(self.program, self.sources, SEED, steps), self.executor, [self], stop, start)
        return self

    def names(self, step: int) -> list[GroupName]:
        return [group.name for group in self.taken[step]]

    def keeps_the_bound(self, steps: range = range(STEPS)) -> None:
        """Assert that tokens are as old as metrics and the journal say, never beyond the bound, and groups not late."""
        assert self.program.pipeline is not None
        (schedule,) = self.program.pipeline.copies
        for step in steps:
            rows = self.tables[step].column("versions").to_pylist()
            ages = [step - version for row in rows for version in row]
            assert 0 <= min(ages) <= max(ages) <= schedule.bound == 3
            assert self.metrics[step][f"{DRAWN}.staleness_worst"] == max(ages)
            assert self.metrics[step][f"{DRAWN}.staleness"] == pytest.approx(sum(ages) / len(ages))
            oldest = [min(version for row in rows[place : place + 2] for version in row) for place in (0, 2, 4)]
            assert [group.first_version for group in self.taken[step]] == oldest
            late = [step - name.step for name in self.names(step)]
            assert max(late) <= schedule.behind
            assert self.metrics[step][f"{DRAWN}.late"] == max(0, *late)
            assert self.metrics[step][f"{DRAWN}.moved"] == pytest.approx(sum(each != 0 for each in late) / SIZE)


@pytest.fixture
def ran(tiny_parts: TINY_PARTS, digit_rows: pa.Table) -> Any:
    """Return `ran(program, delay_s)`: a run that has not begun; its threads end with the test."""
    opened = list[Ran]()

    def begun(
        program: Program,
        delay_s: Callable[[int, int], float] = lambda step, prompt: 0.0,
        rows: int = 64,
        kind: Callable[..., LocalModel] = Uneven,
        places: Any = PlacesInFlight,
    ) -> Ran:
        model, tokenizer = tiny_parts
        handles: dict[Home, Any] = {}
        for home in program.homes:
            handles[home] = (kind if home.in_flight else LocalModel)(
                copy.deepcopy(model), tokenizer, trainable=home in program.trained
            )
            if isinstance(handles[home], Uneven):
                handles[home].delay_s = delay_s
        sources = {"prompts": PromptSource(digit_rows.slice(0, rows), SIZE, seed=SEED)}
        opened.append(Ran(program, Executor(places(handles)), sources, handles))
        return opened[-1]

    yield begun
    for each in opened:
        each.executor.places.close()


def at_random(seed: int, most_s: float = 0.3) -> Callable[[int, int], float]:
    return lambda step, prompt: random.Random(f"{seed} {step} {prompt}").random() ** 3 * most_s


def each_once(taken: Mapping[int, Sequence[TakenGroup]], sources: Mapping[str, RowSource]) -> None:
    names = [group.name for step in sorted(taken) for group in taken[step]]
    prompts = (sources["prompts"].batch(step).group.data.tolist() for step in range(len(taken)))  # type: ignore[attr-defined]
    assert sorted(names) == sorted(GroupName(step, prompt) for step, ids in enumerate(prompts) for prompt in ids)


@pytest.mark.parametrize(("depth", "every"), [(1, 1), (2, 1), (1, 2)])
def test_each_group_is_trained_on_once_within_the_bound_with_its_own_prompt(ran: Any, depth: int, every: int) -> None:
    run = ran(ready(depth, every), at_random(depth * 10 + every)).train()
    each_once(run.taken, run.sources)
    run.keeps_the_bound()
    assert any(metrics[f"{DRAWN}.moved"] for metrics in run.metrics.values()), "some group finished early or late"
    for metrics in run.metrics.values():
        assert metrics[f"{DRAWN}.response_length"] == 4


def test_a_slow_group_is_not_waited_for_before_its_last_step(ran: Any) -> None:
    first = next(iter(PromptSource.rows(ran(ready()).sources["prompts"], 0).tolist()))

    released, steps = threading.Event(), [0]

    class Waiting(Uneven):
        """Its first response comes when step 2 waits for it."""

        async def sample(self, request: SampleRequest) -> Completion:
            while (request.key.step, request.prompt) == (0, first) and not released.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            return await super().sample(request)

    class Watched(PlacesInFlight):
        def finished(self, *, wait: bool = True) -> FinishedGroup | None:
            if wait and steps[-1] == 2:
                released.set()
            return super().finished(wait=wait)

    class Noted(GroupPool):
        def take(self, step: int, places: Any) -> Any:
            steps.append(step)
            return super().take(step, places)

    run = ran(ready(), kind=Waiting, places=Watched)
    run.executor.groups = Noted(run.executor.groups.order)
    run.train()
    each_once(run.taken, run.sources)
    run.keeps_the_bound()
    (trained,) = [step for step in range(STEPS) if GroupName(0, first) in run.names(step)]
    assert trained == 2
    assert run.metrics[2][f"{DRAWN}.waited"] == 1
    assert run.metrics[2][f"{DRAWN}.late"] == 2
    assert not run.metrics[1][f"{DRAWN}.waited"]


def test_a_prompt_that_a_step_has_twice_stays_two_groups(ran: Any) -> None:
    run = ran(ready(), at_random(3), rows=4).train()
    each_once(run.taken, run.sources)
    groups = [list(dict.fromkeys(run.tables[step].column("group").to_pylist())) for step in range(STEPS)]
    assert all(len(each) == SIZE for each in groups)
    again = [step for step in range(STEPS) if max(groups[step]) >= AGAIN]
    assert again == [step for step in range(STEPS) if len({name.prompt for name in run.names(step)}) < SIZE]


def test_rows_in_the_order_of_groups_are_those_of_their_steps(digit_rows: pa.Table) -> None:
    source = PromptSource(digit_rows.slice(0, 8), 4, seed=1)
    names = [GroupName(2, int(source.rows(2)[3])), GroupName(0, int(source.rows(0)[1]))]
    names.append(next(GroupName(step, names[0].prompt) for step in range(3, 9) if names[0].prompt in source.rows(step)))
    rows: Any = TakenRows(source, {7: [TakenGroup(name, 0) for name in names]}).batch(7)
    assert rows.group.data.tolist() == [names[0].prompt, names[1].prompt, names[0].prompt + AGAIN]
    column = digit_rows.column("prompt").to_pylist()
    assert rows.columns.data.column("prompt").to_pylist() == [column[name.prompt] for name in names]


# ------------------------------------------------------------------------------------------- resume


def test_a_resumed_run_trains_on_the_saved_groups_once(ran: Any, tmp_path: Path) -> None:
    program = ready(2)
    begun = ran(program, at_random(5)).train(until=3)
    begun.executor.save_state(program, tmp_path)
    again = ran(program, at_random(6))
    again.executor.load_state(program, tmp_path)
    saved = set(again.executor.groups.order.waiting)
    assert len(saved) == 2 * SIZE
    again.train(start=3)
    run = Ran(program, again.executor, again.sources, again.handles)
    run.tables, run.metrics = begun.tables | again.tables, begun.metrics | again.metrics
    run.taken = begun.taken | again.taken
    each_once(run.taken, run.sources)
    run.keeps_the_bound()
    assert not again.executor.groups.finished


def test_a_planned_order_is_repeated(ran: Any) -> None:
    first = ran(ready(2), at_random(8)).train()
    again = ran(ready(2), at_random(9))
    again.executor.groups.order.planned = {step: first.names(step) for step in range(4)}
    again.train()
    assert all(again.names(step) == first.names(step) for step in range(4))
    each_once(again.taken, again.sources)


def test_a_saved_window_that_lacks_groups_is_refused(ran: Any, tmp_path: Path) -> None:
    program = ready()
    begun = ran(program, at_random(2)).train(until=2)
    begun.executor.save_state(program, tmp_path)
    window = tmp_path / "window.json"
    text = window.read_text()
    for old, new, why in (
        ('"size":3'.replace(":", ": "), '"size": 4', "has 3 groups; 1 steps of 4 groups had begun"),
        ('"prompts": [', '"prompts": [\n    1,', "groups; 1 steps of 3 groups had begun"),
    ):
        assert old in text
        window.write_text(text.replace(old, new, 1))
        with pytest.raises(DataError, match=why):
            ran(program).executor.load_state(program, tmp_path)
    window.write_text(text)
    ran(program).executor.load_state(program, tmp_path)


# ------------------------------------------------------------------------------------------- mutations


def test_a_token_outside_the_bound_is_refused(ran: Any) -> None:
    class Lying(Uneven):
        """Its tokens of step 3 claim to be of the first weights."""

        async def sample(self, request: SampleRequest) -> Completion:
            answer = await super().sample(request)
            if request.key.step != 3:
                return answer
            return Completion(answer.tokens, answer.logprobs, answer.finished, ((0, 0),))

    with pytest.raises(LawError, match="drew a token of step 3 by version 0 of the weights; its step allows 2 to 5"):
        ran(ready(1), kind=Lying).train()


def test_a_group_that_is_trained_on_too_late_is_refused() -> None:
    def group() -> FinishedGroup:
        sums = {("g", f"{AGED}4"): (6.0, 1.0), ("g", f"{AGED}3"): (2.0, 1.0), ("g", "spans"): (2.0, 1.0)}
        return FinishedGroup(GroupName(2, 9), None, Observations(sums))

    drawn, in_time = VersionRange(oldest=1, newest=5), group()
    assert age_in(4, in_time, drawn, VersionRange(oldest=1, newest=4), "g") == TakenGroup(GroupName(2, 9), 1)
    assert in_time.observed.sums == {("g", f"{AGED}3"): (6, 1), ("g", f"{AGED}2"): (2, 1), ("g", "spans"): (2, 1)}
    with pytest.raises(LawError, match="drew a token of step 5 by version 1 of the weights; its step allows 2 to 5"):
        age_in(5, group(), drawn, VersionRange(oldest=2, newest=5), "g")
    with pytest.raises(LawError, match="drew a token of step 1 by version 2 of the weights; its step allows 0 to 1"):
        age_in(1, group(), drawn, VersionRange(oldest=0, newest=1), "g")


def test_an_error_of_what_samples_reaches_the_step_that_waits(ran: Any) -> None:
    class Failing(Uneven):
        async def sample(self, request: SampleRequest) -> Completion:
            if request.key.step == 2:
                raise LawError("no response")
            return await super().sample(request)

    with pytest.raises(LawError, match="no response"):
        ran(ready(1), kind=Failing).train()


@flow
def two_sets(prompts: Prompts, others: Prompts, policy: Policy) -> Policy:
    """Read the rows of another data set beside those of groups."""
    rollout = generate(stale(policy, at_most=3), prompts, n=2, max_tokens=4)
    advantages = group_normalize(rows_match(rollout, others), rollout.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs, eps=0.2)

    return update(policy, loss)


def test_what_cannot_be_taken_as_it_finishes_is_refused_with_a_reason(golden: Callable[[str, str], None]) -> None:
    graph, texts = compile_graph(finishing.graph()), list[str]()

    def changed(role: str, **fields: Any) -> Plan:
        plan = with_contract(plan_of(graph, 1), graph, "ready")
        rows = [row.model_copy(update=fields) if row.role == role else row for row in plan.placed]
        return plan.model_copy(update={"placed": tuple(rows)})

    flying = RoleSettings(contract="in_flight")
    plans = {
        "no step late": changed("policy.sample", behind=0),
        "more steps late than the lag has": changed("policy.sample", behind=3),
        "another contract": changed("policy.sample", running=flying),
        "an engine that returns all at once": changed("policy.sample", engine="trtllm"),
        "several ranks": changed("policy.sample", layout=Layout(data=2)),
        "on the trainer's devices": changed("policy.train", pool="sample"),
        "chunks": changed("policy.sample", chunks=2),
    }
    for name, plan in plans.items():
        told = [str(error) for error in [*check_ready_roles(PlacedGraph(graph, plan, "plan.json"))]]
        told += [str(error) for error in check_in_flight_roles(PlacedGraph(graph, plan, "plan.json"))]
        texts.append("\n".join([name, *told]))
    other = compile_graph(two_sets.graph())
    with pytest.raises(PlanError) as refused:
        check_plan(with_contract(plan_of(other, 1), other, "ready"), other, "plan.json")
    texts.append(f"rows of two data sets\n{refused.value}")
    for depth, every in ((3, 1), (2, 2)):
        with pytest.raises(PlanError) as refused:
            with_contract(plan_of(graph, depth, every), graph, "ready", "plan.json")
        texts.append(f"depth {depth}, sync every {every}\n{refused.value}")
    golden("\n\n".join(texts), "programs/ready/refused.txt")


def test_the_law_finds_a_take_that_is_missing_or_late(golden: Callable[[str, str], None]) -> None:
    program = ready()
    golden(program_text(program).partition("\n")[2], "programs/ready/lowered.txt")
    assert not [*check_groups_are_taken_once(program)]
    (take,) = (task for task in program.tasks if isinstance(task, Take))
    without = replace(program, tasks=tuple(task for task in program.tasks if task is not take))
    later = replace(program, tasks=tuple(replace(task, behind=7) if task is take else task for task in program.tasks))
    last = replace(program, tasks=(*without.tasks, take))
    for wrong, why in (
        (without, "policy.generate samples by group, and 0 tasks take groups"),
        (later, "the plan sets another number of steps"),
        (without_takes(program), "the plan lets groups of policy.sample be 2 steps late, and the program takes none"),
        (last, "rows_match, group_normalize reads the rows of a step before they are taken"),
    ):
        assert any(why in str(error) for error in check_groups_are_taken_once(wrong))
    assert without_takes(program) is without_takes(program)
    assert not any(isinstance(task, Take) for task in without_takes(program).tasks)


def test_a_plan_file_has_the_steps_that_a_group_may_be_late(digit_rows: pa.Table) -> None:
    graph = compile_graph(finishing.graph())
    plan = with_contract(plan_of(graph, 1), graph, "ready")
    assert Plan.from_json(plan.to_json()) == plan
    assert '"behind": 2' in plan.to_json()
    assert with_contract(plan, graph, "ready") == plan
    assert with_contract(plan, graph, "scheduled") == plan_of(graph, 1)
    assert "behind" not in plan_of(graph, 1).to_json()


def test_one_task_at_a_time_cannot_take_what_finishes(ran: Any) -> None:
    with pytest.raises(LawError, match="only where places work side by side"):
        ran(ready(), places=InProcess).train()


# ------------------------------------------------------------------------------------------- in an actor


def test_an_actor_returns_groups_one_by_one_and_then_the_error_of_what_samples(
    tiny_parts: TINY_PARTS, digit_rows: pa.Table
) -> None:
    program, source = ready(), PromptSource(digit_rows, SIZE, seed=SEED)
    (task,) = (task for task in program.tasks if isinstance(task, Run) and task.by_group)
    assert task.home is not None and program.pipeline is not None
    model, tokenizer = tiny_parts
    handle: Any = Uneven(copy.deepcopy(model), tokenizer)
    slow = int(source.rows(0)[0])
    handle.delay_s = lambda step, prompt: 0.5 if prompt == slow else 0.0
    actor = RankActor(Flows((to_json(program.graph),), __file__), handles={task.home: handle})
    versions = {"policy": program.pipeline.copies[0].versions(0)}
    rows = table_with_ids(StoredValue.of(source.batch(0)))
    results = actor.run(0, task, versions, Key(SEED, 0), [(1, False)], rows)
    assert len(results) == 1, "the groups are in the mailbox"
    assert not results[0].sums, "what is observed belongs to the groups"
    groups = [actor.finished() for _ in range(SIZE)]
    prompts = [prompt for _, (_, prompt, _) in groups]
    assert prompts[-1] == slow and sorted(prompts) == sorted(source.rows(0).tolist())
    for table, (step, prompt, observed) in groups:
        assert step == 0 and table.column("group").to_pylist() == table.column("#group").to_pylist() == [prompt] * 2
        assert observed.sums[DRAWN, "response_length"] == (8, 2)
        assert observed.sums[DRAWN, f"{AGED}{program.pipeline.copies[0].behind}"] == (8, 1)
    picks = [Pick(prompts[2]), Pick(prompts[0], again=1)]
    picked = picked_table([groups[2][0], groups[0][0]], picks, ["group"], DRAWN)
    assert picked.column("group").to_pylist() == [prompts[2]] * 2 + [prompts[0] + AGAIN] * 2
    assert picked.column("#group").to_pylist() == picked.column("group").to_pylist()
    together = picked_table([picked, picked], [Pick(prompts[2]), Pick(prompts[0] + AGAIN)], ["group"], DRAWN)
    assert together.equals(picked), "of a table of several groups, the rows of one"
    other = groups[0][0].replace_schema_metadata({b"flowgraph.scalars": b"{}"})
    with pytest.raises(LawError, match="its groups give different scalars"):
        picked_table([groups[1][0], other], picks, [], DRAWN)
    handle.version = 9
    with pytest.raises(LawError, match="they are at 9"):
        actor.run(0, task, versions, Key(SEED, 1), [(1, False)], rows)
    with pytest.raises(LawError, match="they are at 9"):
        actor.finished()
