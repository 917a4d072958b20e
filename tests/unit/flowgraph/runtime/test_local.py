"""Programs executed in this process: a store for each place, a copy of weights for each home, state carried on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pytest
import torch

from examples.grpo import grpo
from flowgraph import Flow, Graph, Loss, Metric, State, Value, flow, node, stale
from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.analysis.roles import roles
from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import PlacedRole, Plan, Pool, RoleSettings
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import LawError, UserCodeError
from flowgraph.flows.settings import resolve_settings
from flowgraph.language import Key, Parts
from flowgraph.language.values import Group, Measure
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import HOST, Home, Program, Read, Run, Sync, Transfer
from flowgraph.passes import compile_graph
from flowgraph.runtime.interpreter import LOST, Executor, StepResult
from flowgraph.runtime.local import InProcess
from flowgraph.runtime.places import RowSource
from flowgraph.runtime.record.run_folder import write_rollout
from flowgraph.runtime.row_identity import StoredValue
from nodes import (
    Advantages,
    LogProbs,
    Policy,
    Prompts,
    Reference,
    Rollout,
    Scores,
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
SETTINGS: Mapping[str, object] = {
    "policy.generate.n": 8,
    "policy.generate.max_tokens": 3,
    "policy.generate#2.max_tokens": 3,
    "policy.update.lr": 1e-1,
    "policy.update.optimizer": "sgd",
}


class Coefficient(State):
    """A factor that adapts from step to step."""


@node(carries="coefficient", metrics=(Metric("coefficient"),))
def adapt(coefficient: Coefficient, rollout: Rollout) -> Coefficient:
    """Add the tokens of a batch to it."""
    grown = coefficient.data + int(rollout.lengths.data.sum())
    return Coefficient(grown, [Measure("coefficient", grown, 1)])


@node
def weigh(advantages: Advantages, coefficient: Coefficient) -> Advantages:
    """Scale advantages."""
    return Advantages(advantages.data * coefficient.data)


@flow
def adaptive(prompts: Prompts, policy: Policy, coefficient: Coefficient) -> tuple[Policy, Coefficient]:
    rollout = generate(policy, prompts)
    advantages = weigh(group_normalize(score(rollout, by="partial"), rollout.group), coefficient)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    return update(policy, loss), adapt(coefficient, rollout)


@flow
def sampled_again(prompts: Prompts, policy: Policy) -> tuple[Policy, Rollout]:
    rollout = generate(policy, prompts)
    advantages = group_normalize(score(rollout, by="partial"), rollout.group)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    trained = update(policy, loss)
    return trained, generate(trained, prompts)


@flow
def only_read(prompts: Prompts, policy: Policy, ref: Reference) -> LogProbs:
    return logprobs(ref, generate(policy, prompts))


@dataclass(frozen=True)
class Constant:
    """A source that gives the same every step, and counts how often."""

    value: Value
    asked: list[int]

    def batch(self, step: int) -> Value:
        self.asked.append(step)
        return self.value


def compiled(of: Flow[..., object]) -> Graph:
    graph = compile_graph(of.graph())
    names = {each.name for each in graph.nodes}
    known = {name: value for name, value in SETTINGS.items() if name.rpartition(".")[0] in names}
    return resolve_settings(graph, [], known)[0]


def hybrid(of: Flow[..., object], lag: int) -> Program:
    """Lower a flow under a plan of one device, on which training and drawing, by an engine's servers, take turns."""
    graph = compiled(of)
    cpu = Device(kind="cpu", memory_bytes=2**30)
    laptop = Machine(name="laptop", devices=(cpu,), host_memory_bytes=2**31, cores=2)
    placed = [
        PlacedRole(
            role=role.name,
            pool="all",
            engine="sglang" if role.use == "sample" else "local",
            lag=lag if role.use == "sample" else 0,
            running=RoleSettings(sleeps=True),
        )
        for role in roles(graph)
    ]
    pool = Pool(name="all", devices=(("laptop", 0),))
    return lower(
        graph,
        Plan(
            flow=graph.name,
            structure_hash=structure_hash(graph),
            cluster=Cluster(nodes=(laptop,)),
            pools=(pool,),
            placed=tuple(placed),
        ),
    )


def apart(of: Flow[..., object]) -> Program:
    """Lower a flow under a plan with a pool of one device for each use of a model."""
    graph = compiled(of)
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


class Noting(InProcess):
    """Places that write down what they are asked to do."""

    said: list[str]

    def __init__(self, handles: Mapping[Home, LocalModel]) -> None:
        super().__init__(handles)
        self.said = []

    def read(self, source: RowSource, step: int) -> StoredValue:
        self.said.append(f"read step {step}")
        return super().read(source, step)

    def run(self, graph: Graph, task: Run, *rest: Any) -> Mapping[str, StoredValue]:
        self.said.append(f"run {', '.join(task.nodes)}")
        return super().run(graph, task, *rest)

    def transfer(self, task: Transfer, item: StoredValue) -> StoredValue:
        self.said.append(f"transfer {task.value} to {task.target}")
        return super().transfer(task, item)

    def sync(self, task: Sync, version: int) -> None:
        self.said.append(f"sync {task.value} to {task.target} at {version}")
        super().sync(task, version)

    def switch(self, home: Home, *, awake: bool) -> None:
        self.said.append(f"{'wake' if awake else 'sleep'} {home.engine}")
        super().switch(home, awake=awake)


@pytest.fixture
def handles(tiny: Tiny) -> Callable[[Program], dict[Home, LocalModel]]:
    """Return `handles(program)`: a copy of the tiny model for each home."""
    return lambda program: {home: tiny(trainable=home in program.trained) for home in program.homes}


@pytest.fixture
def prompts(digit_rows: pa.Table) -> dict[str, RowSource]:
    return {"prompts": PromptSource(digit_rows, 3)}


def rollout_of(ran: StepResult, name: str = "policy.generate") -> Any:
    return ran.items[name].value


# ------------------------------------------------------------------------------------------- tasks in order


def test_tasks_are_done_in_order_each_once(handles: Any, prompts: dict[str, RowSource]) -> None:
    program = apart(grpo)
    places = Noting(handles(program))
    Executor(places).run(program, prompts, Key(0, 4))
    assert places.said == [
        "read step 4",
        "transfer prompts to sample",
        "run policy.generate",
        "transfer policy.generate to host",
        "transfer policy.generate to infer",
        "transfer policy.generate to train",
        "run score, group_normalize",
        "run ref.logprobs",
        "transfer ref.logprobs to train",
        "transfer group_normalize to train",
        "run policy.update",
    ], "the first sync would bring what is there already"


def test_a_sync_brings_a_version_once(handles: Any, prompts: dict[str, RowSource]) -> None:
    program = apart(sampled_again)
    places = Noting(handles(program))
    executor = Executor(places)
    for step in range(2):
        executor.run(program, prompts, Key(0, step))
    syncs = [said for said in places.said if said.startswith("sync")]
    assert syncs == ["sync policy.update to sample/local at 1", "sync policy.update to sample/local at 2"]


def test_each_home_has_weights_of_its_own_until_a_sync(handles: Any, prompts: dict[str, RowSource]) -> None:
    program = apart(grpo)
    places = InProcess(handles(program))
    executor = Executor(places)
    train, sample = (next(h for h in program.homes if h.param == "policy" and h.pool == use) for use in USES)
    executor.run(program, prompts, Key(0, 0))
    one, other = (places.handles[home] for home in (train, sample))
    assert (one.version, other.version) == (1, 0)
    assert not same(one.weights(), other.weights())
    before = one.weights()
    executor.run(program, prompts, Key(0, 1))
    assert (one.version, other.version) == (2, 1)
    assert same(before, other.weights())
    assert executor.versions == {home: handle.version for home, handle in places.handles.items()}


def test_weights_that_servers_lost_in_their_sleep_come_anew_however_late_they_may_be(
    handles: Any, prompts: dict[str, RowSource]
) -> None:
    program = hybrid(late, lag=2)
    places = Noting(handles(program))
    executor = Executor(places)
    for step in range(3):
        executor.run(program, prompts, Key(0, step))
    turns = [said for said in places.said if said.startswith(("sync", "wake", "sleep", "run policy"))]
    first = ["sleep local", "run policy.generate", "sleep sglang", "wake local", "run policy.update"]
    again = ["wake sglang", "sync policy to all/sglang at {}", *first]
    assert turns == [*first, *(line.format(step) for step in (1, 2) for line in again)]


def test_weights_are_saved_while_nothing_else_is_on_their_devices(
    handles: Any, prompts: dict[str, RowSource], tmp_path: Path
) -> None:
    program = hybrid(sampled_again, lag=0)
    places = Noting(handles(program))
    executor = Executor(places)
    executor.run(program, prompts, Key(0, 0))
    said = len(places.said)
    executor.save_state(program, tmp_path)
    assert places.said[said:] == ["sleep sglang", "wake local"]
    executor.load_state(program, tmp_path)
    assert places.said[said + 2 :] == ["wake sglang", "sync policy to all/sglang at 1"]


def test_servers_that_hold_nobody_knows_what_get_our_weights_before_the_first_sample(
    handles: Any, prompts: dict[str, RowSource]
) -> None:
    program = hybrid(late, lag=2)
    places = Noting(handles(program))
    sampler = next(home for home in program.homes if home.engine == "sglang")
    Executor(places, versions={sampler: LOST}).run(program, prompts, Key(0, 0))
    assert "sync policy to all/sglang at 0" in places.said


USES, SAMPLES = ("train", "sample"), ("policy.generate", "policy.generate#2")


def same(one: Mapping[str, torch.Tensor], two: Mapping[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], two[name]) for name in one)


def test_a_flow_that_samples_after_its_update_samples_with_what_it_made(
    handles: Any, prompts: dict[str, RowSource]
) -> None:
    program = apart(sampled_again)
    executor = Executor(InProcess(handles(program)))
    for step in range(2):
        ran = executor.run(program, prompts, Key(0, step))
        drawn = [set(rollout_of(ran, name).versions.data[:, 0].tolist()) for name in SAMPLES]
        assert drawn == [{step}, {step + 1}]


def test_a_model_that_nothing_updates_stays_at_its_first_version(handles: Any, prompts: dict[str, RowSource]) -> None:
    program = apart(only_read)
    assert program.frozen == ("policy", "ref")
    executor = Executor(InProcess(handles(program)))
    for step in range(2):
        executor.run(program, prompts, Key(0, step))
    assert set(executor.versions.values()) == {0}


def test_a_plan_of_many_places_gives_what_one_place_gives(
    handles: Any, prompts: dict[str, RowSource], one_device: Callable[[Graph], Plan]
) -> None:
    found = list[list[dict[str, float]]]()
    for program in (apart(grpo), lower(compiled(grpo), one_device(compiled(grpo)))):
        executor = Executor(InProcess(handles(program)))
        found.append([executor.run(program, prompts, Key(3, step)).observed.means() for step in range(3)])
    for one, other in zip(*found, strict=True):
        assert one == pytest.approx(other, abs=1e-6)


def test_what_is_observed_is_told_once(handles: Any, prompts: dict[str, RowSource]) -> None:
    program = apart(grpo)
    executor = Executor(InProcess(handles(program)))
    told = [executor.run(program, prompts, Key(0, step)).observed for step in range(2)]
    assert [each.sums["score", "reward"][1] for each in told] == [24, 24]
    assert [set(each.seconds) for each in told] == [{node.name for node in program.graph.nodes}] * 2


def test_results_can_be_read_as_tables(handles: Any, prompts: dict[str, RowSource], tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    program = apart(grpo)
    ran = Executor(InProcess(handles(program))).run(program, prompts, Key(0, 0))
    assert set(ran.items) == {node.name for node in program.graph.nodes} - {"policy.update"}
    ran.apply(write_rollout, ["policy.generate", "score"], ["score"], tmp_path / "rollout.parquet")
    assert (
        pq.read_table(tmp_path / "rollout.parquet").column("score").to_pylist()
        == ran.items["score"].value.data.tolist()
    )


def test_the_newest_weights_are_saved(handles: Any, prompts: dict[str, RowSource], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    program = apart(grpo)
    places = InProcess(handles(program))
    executor = Executor(places)
    executor.run(program, prompts, Key(0, 0))
    executor.save(program, "policy", tmp_path / "saved")
    newest = places.handles[dict(program.origins)["policy"]]
    assert newest.version == 1
    assert same(load_file(tmp_path / "saved" / "model.safetensors"), newest.weights())


# ------------------------------------------------------------------------------------------- stores


def test_a_value_is_written_and_read_between_two_places(handles: Any, prompts: dict[str, RowSource]) -> None:
    places = InProcess({})
    first = places.read(prompts["prompts"], 0)
    second = places.transfer(Transfer("prompts", HOST, "all"), first)
    assert second.value is not first.value and second.ids is first.ids
    assert torch.equal(second.value.group.data, first.value.group.data)  # type: ignore[attr-defined]
    second.value.group.data[0] = -1  # type: ignore[attr-defined]
    assert first.value.group.data[0] != -1, "they share no memory"  # type: ignore[attr-defined]


def test_a_task_that_reads_what_is_not_there_is_refused(handles: Any, prompts: dict[str, RowSource]) -> None:
    program = apart(only_read)
    place = next(i for i, task in enumerate(program.tasks) if isinstance(task, Read))
    with pytest.raises(LawError) as caught:
        Executor(InProcess(handles(program))).run(program.without(place), prompts, Key())
    assert str(caught.value) == (
        "`transfer prompts host -> sample` reads `prompts`, which is not in the store of host\n"
        "  hint: a transfer or a sync to that store is missing before this task"
    )


def test_stores_are_empty_at_the_start_of_each_step(handles: Any, prompts: dict[str, RowSource]) -> None:
    program = apart(only_read)
    executor = Executor(InProcess(handles(program)))
    executor.run(program, prompts, Key(0, 0))
    place = next(i for i, task in enumerate(program.tasks) if isinstance(task, Transfer))
    with pytest.raises(LawError):
        executor.run(program.without(place), prompts, Key(0, 1))


def test_a_sync_from_a_home_that_holds_nothing_is_refused(handles: Any, prompts: dict[str, RowSource]) -> None:
    program = apart(sampled_again)
    nowhere = Home("policy", "nowhere", "local", program.homes[0].layout)
    turned = tuple(replace(task, source=nowhere) if isinstance(task, Sync) else task for task in program.tasks)
    with pytest.raises(LawError) as caught:
        Executor(InProcess(handles(program))).run(replace(program, tasks=turned), prompts, Key())
    assert str(caught.value) == (
        "`sync policy nowhere/local -> sample/local` reads `policy`, which is not in the store of nowhere/local\n"
        "  hint: a transfer or a sync to that store is missing before this task"
    )


def test_weights_that_a_home_does_not_hold_are_refused(handles: Any, prompts: dict[str, RowSource]) -> None:
    program = apart(grpo)
    places = InProcess(handles(program))
    places.handles[dict(program.origins)["ref"]].version = 5  # someone has updated them meanwhile
    with pytest.raises(LawError) as caught:
        Executor(places).run(program, prompts, Key())
    assert str(caught.value) == (
        "version 0 of these weights was consumed by an update; they are at 5\n"
        "  hint: use the model that `update` returned"
    )


# ------------------------------------------------------------------------------------------- recorded results


def test_recorded_results_stand_in_for_a_node(handles: Any, prompts: dict[str, RowSource], make_rollout: Any) -> None:
    program = apart(only_read)
    recorded = Constant(make_rollout([3, 1]), [])
    places = Noting(handles(program))
    ran = Executor(places).run(program, prompts | {"policy.generate": recorded}, Key(0, 7))
    assert recorded.asked == [7]
    assert "run policy.generate" not in places.said and "run ref.logprobs" in places.said
    assert rollout_of(ran) is recorded.value
    assert ran.items["ref.logprobs"].value.data.shape == (2, 3)
    assert ran.items["ref.logprobs"].ids["#sample"].tolist() == [0, 1]


# ------------------------------------------------------------------------------------------- carried state


def test_state_that_is_no_model_is_carried_from_step_to_step(handles: Any, prompts: dict[str, RowSource]) -> None:
    program, first = apart(adaptive), Constant(Coefficient(0.5), [])
    executor, wanted = Executor(InProcess(handles(program))), [0.5]
    for step in range(3):
        ran = executor.run(program, prompts | {"coefficient": first}, Key(0, step))
        wanted.append(wanted[-1] + int(rollout_of(ran).lengths.data.sum()))
        assert ran.observed.means()["adapt.coefficient"] == wanted[-1]
        assert executor.carried["coefficient"].value.data == wanted[-1]
    assert first.asked == [0], "its source gives what a run begins with"


def test_what_is_carried_is_what_the_next_step_reads(
    handles: Any, prompts: dict[str, RowSource], tmp_path: Path
) -> None:
    program, zero = apart(adaptive), Constant(Coefficient(0.0), [])  # it takes away the signal of the first step
    places = InProcess(handles(program))
    executor, home = Executor(places), dict(program.origins)["policy"]
    weights = [places.handles[home].weights()]
    for step in range(3):
        executor.run(program, prompts | {"coefficient": zero}, Key(1, step))
        weights.append(places.handles[home].weights())
    assert same(weights[0], weights[1])
    assert not same(weights[1], weights[3]), "it has grown"


def test_an_executor_of_another_run_begins_anew(handles: Any, prompts: dict[str, RowSource]) -> None:
    program, first = apart(adaptive), Constant(Coefficient(0.5), [])
    for _ in range(2):
        executor = Executor(InProcess(handles(program)))
        executor.run(program, prompts | {"coefficient": first}, Key())
    assert first.asked == [0, 0]


# ------------------------------------------------------------------------------------------- copies that lag


@flow
def late(prompts: Prompts, policy: Policy) -> Policy:
    rollout = generate(stale(policy, at_most=2), prompts)
    advantages = group_normalize(score(rollout, by="partial"), rollout.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

    return update(policy, loss)


def behind(lag: int) -> Program:
    """Lower the flow with its sampling apart, so many updates behind."""
    graph = compiled(late)
    plan = apart(late).plan
    placed = [each.model_copy(update={"lag": lag * (each.role == "policy.sample")}) for each in plan.placed]
    return lower(graph, plan.model_copy(update={"placed": tuple(placed)}))


@pytest.mark.parametrize(
    ("lag", "versions", "synced"),
    [
        (0, [0, 1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]),
        (1, [0, 0, 2, 2, 4, 4, 6], [2, 4, 6]),
        (2, [0, 0, 0, 3, 3, 3, 6], [3, 6]),
    ],
)
def test_a_copy_that_may_lag_is_synced_when_it_would_lag_too_far(
    lag: int, versions: list[int], synced: list[int], handles: Any, prompts: dict[str, RowSource]
) -> None:
    program = behind(lag)
    places = Noting(handles(program))
    executor, drawn = Executor(places), list[set[int]]()
    for step in range(7):
        rollout = rollout_of(executor.run(program, prompts, Key(0, step)))
        drawn.append(set(rollout.versions.data[rollout.mask.data > 0].tolist()))
        assert executor.versions[dict(program.origins)["policy"]] == step + 1
    assert drawn == [{version} for version in versions], "what draws says which weights it drew with"
    assert all(step - version <= lag for step, version in enumerate(versions))
    said = [f"sync policy to sample/local at {version}" for version in synced]
    assert [each for each in places.said if each.startswith("sync")] == said


def test_what_a_lagging_copy_draws_is_drawn_with_its_own_weights(handles: Any, prompts: dict[str, RowSource]) -> None:
    told = dict[int, list[list[int]]]()
    for lag in (0, 2):
        program = behind(lag)
        executor = Executor(InProcess(handles(program)))
        runs = [rollout_of(executor.run(program, prompts, Key(0, step))) for step in range(4)]
        told[lag] = [run.logprobs.data.flatten().tolist() for run in runs]
    assert told[0][0] == told[2][0], "the first step draws with the first weights, however far a copy may lag"
    assert told[0][1] != told[2][1] and told[0][3] != told[2][3]


def test_without_lag_a_program_gives_what_it_gave_of_a_flow_that_allows_none(
    handles: Any, prompts: dict[str, RowSource]
) -> None:
    found = list[list[dict[str, float]]]()
    for program in (behind(0), apart(punctual)):
        executor = Executor(InProcess(handles(program)))
        found.append([executor.run(program, prompts, Key(0, step)).observed.means() for step in range(3)])
    assert found[0] == found[1]


@flow
def punctual(prompts: Prompts, policy: Policy) -> Policy:
    rollout = generate(policy, prompts)
    advantages = group_normalize(score(rollout, by="partial"), rollout.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

    return update(policy, loss)


# ------------------------------------------------------------------------------------------- parts of records


@node
def peeking(rollout: Annotated[Rollout, Parts("tokens", "mask")], group: Group) -> Scores:
    """Read a part that is not declared."""
    return Scores(rollout.tokens.data.sum(dim=1).float() + len(rollout.text.data))


@node(kind="score")
def peeking_beside(model: Policy, rollout: Annotated[Rollout, Parts("tokens", "mask")]) -> Scores:
    """Read a part that is not declared, where the rollout was made."""
    return Scores(rollout.lengths.data.float())


@flow
def peeked(prompts: Prompts, policy: Policy) -> Scores:
    rollout = generate(policy, prompts)
    return peeking(rollout, rollout.group)


@flow
def peeked_beside(prompts: Prompts, policy: Policy) -> tuple[Scores, Rollout]:
    rollout = generate(policy, prompts)
    return peeking_beside(policy, rollout), rollout


@pytest.mark.parametrize(
    ("of", "name", "part", "there"),
    [(peeked, "peeking", "text", apart), (peeked_beside, "policy.peeking_beside", "lengths", None)],
    ids=["after a transfer", "in its own place"],
)
def test_a_node_that_reads_a_part_that_it_does_not_declare_is_refused_in_process_too(
    of: Any, name: str, part: str, there: Any, handles: Any, prompts: dict[str, RowSource], one_device: Any
) -> None:
    program = apart(of) if there else lower(compiled(of), one_device(compiled(of)))
    with pytest.raises(LawError) as caught:
        Executor(InProcess(handles(program))).run(program, prompts, Key())
    at = next(each.at for each in program.graph.nodes if each.name == name)
    assert str(caught.value) == (
        f"{at}: {name}: it reads the part `{part}` of Rollout, but declares tokens, mask\n"
        f'  hint: add "{part}" to the Parts(…) of its port'
    )


def test_a_transfer_brings_only_the_parts_that_are_read(handles: Any, prompts: dict[str, RowSource]) -> None:
    program = apart(grpo)
    found = dict[str, Sequence[str]]()

    class Looking(InProcess):
        def transfer(self, task: Transfer, item: StoredValue) -> StoredValue:
            brought = super().transfer(task, item)
            found[f"{task.value} to {task.target}"] = list(getattr(brought.value, "parts", ()))
            assert brought.ids.keys() == item.ids.keys(), "which row is which goes along"
            return brought

    Executor(Looking(handles(program))).run(program, prompts, Key())
    assert found["policy.generate to infer"] == ["context", "tokens", "lengths", "temperature"]
    assert found["prompts to sample"] == ["group", "columns"], "who declares nothing gets all"


# ------------------------------------------------------------------------------------------- fused nodes


@node
def failing(advantages: Advantages) -> Advantages:
    """Fail."""
    raise ZeroDivisionError("no such luck")


@flow
def failing_late(prompts: Prompts, policy: Policy) -> Advantages:
    rollout = generate(policy, prompts)
    return failing(group_normalize(score(rollout, by="partial"), rollout.group))


def chain_of(program: Program) -> Run:
    return next(task for task in program.tasks if isinstance(task, Run) and "score" in task.nodes)


def test_an_error_in_a_fused_task_names_its_node(handles: Any, prompts: dict[str, RowSource]) -> None:
    program = apart(failing_late)
    assert chain_of(program).nodes == ("score", "group_normalize", "failing")
    with pytest.raises(UserCodeError) as caught:
        Executor(InProcess(handles(program))).run(program, prompts, Key())
    at = next(each.at for each in program.graph.nodes if each.name == "failing")
    assert str(caught.value).splitlines()[0] == f"{at}: failing raised ZeroDivisionError: no such luck"


def test_seconds_and_metrics_of_fused_nodes_stay_those_of_each(handles: Any, prompts: dict[str, RowSource]) -> None:
    program = apart(grpo)
    assert chain_of(program).nodes == ("score", "group_normalize")
    told = Executor(InProcess(handles(program))).run(program, prompts, Key()).observed
    assert {"score", "group_normalize"} <= set(told.seconds)
    assert {("score", "reward"), ("group_normalize", "no_signal")} <= set(told.sums)


@pytest.mark.parametrize("name", ["score", "group_normalize"])
def test_what_is_recorded_of_a_fused_node_stands_in_for_it(
    name: str, handles: Any, prompts: dict[str, RowSource]
) -> None:
    program = apart(grpo)
    assert len(chain_of(program).nodes) == 2
    plain = Executor(InProcess(handles(program))).run(program, prompts, Key())
    other = type(plain.items[name].value)(torch.arange(24.0))
    places = Noting(handles(program))
    ran = Executor(places).run(program, prompts | {name: Constant(other, [])}, Key())
    rest = {"score", "group_normalize"} - {name}
    assert f"run {rest.pop()}" in places.said
    assert ran.items[name].value is other
    same_scores = torch.equal(ran.items["score"].value.data, plain.items["score"].value.data)
    assert same_scores is (name != "score")
    assert not torch.equal(ran.items["group_normalize"].value.data, plain.items["group_normalize"].value.data)
    assert ran.observed.means()["policy.update.loss"] != plain.observed.means()["policy.update.loss"]
