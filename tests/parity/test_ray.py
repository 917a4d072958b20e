"""What a plan says is what runs, and gives the same: two ranks under Ray, or a model moved, against one process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from examples.grpo import grpo
from flowgraph import Graph
from flowgraph.analysis.flat_graph import structure_hash, to_json
from flowgraph.analysis.roles import roles
from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import Layout, PlacedRole, Plan, Pool
from flowgraph.errors import LawError
from flowgraph.flows.flow_files import find_flow
from flowgraph.flows.settings import resolve_settings
from flowgraph.language import Key
from flowgraph.language.region import Observations
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Home, Program, Sync, Transfer
from flowgraph.models import resolve
from flowgraph.passes import compile_graph
from flowgraph.runtime.batch import to_table
from flowgraph.runtime.hosting import ModelSetup, host, to_wire
from flowgraph.runtime.interpreter import Executor
from flowgraph.runtime.local import InProcess
from flowgraph.runtime.places import Places, RowSource
from flowgraph.runtime.ray.device import Flows
from flowgraph.runtime.ray.places import RayPlaces, TableReferences
from flowgraph.runtime.ray.session import Session
from flowgraph.runtime.ray.start import start
from flowgraph.runtime.record.run_folder import RecordedRollouts, rollout_file, write_rollout
from flowgraph.runtime.row_identity import StoredValue
from flowgraph.serialize.program_text import program_text
from nodes import Columns, Rollout
from nodes.data.source import PromptSource
from nodes.values import Finished, Text

pytestmark = pytest.mark.processes

LIMIT = 1e-5
OWN = Path(__file__).parent / "own_flows.py"
SAMPLED = "policy.generate"
MOST_DEVICES = 6

# Prompts of each replayed step, none a multiple of two but the last; with one, a rank has no row at all.
PROMPTS = [[0, 2, 3, 5, 9], [4], [1, 6, 7], [8, 9, 10, 11, 0, 1, 2], [3, 5]]
LENGTHS = [1, 12, 3, 7, 2, 1, 9, 5, 12, 1]
SETTINGS: Mapping[str, object] = {
    "policy.generate.n": 4,
    "policy.generate.max_tokens": 8,
    "policy.update.optimizer": "sgd",
    "policy.update.lr": 0.05,
    "policy.update.max_grad_norm": 0,
    "policy.update.minibatch": 2,
    "policy.update.micro_batch_tokens": 40,
}
ADAMW = {"policy.update.optimizer": "adamw", "policy.update.lr": 1e-3, "policy.update.max_grad_norm": 0.3}
ONE_STEP = {"policy.update.lr": 1.0, "policy.update.minibatch": 0}  # so that weights move by the gradient itself


def with_settings(of: Graph, changed: Mapping[str, object] | None = None) -> Graph:
    return resolve_settings(of, [], dict(SETTINGS) | dict(changed or {}))[0]


def own(name: str) -> Graph:
    """Return the graph of a flow in the user's own file."""
    return with_settings(compile_graph(find_flow(f"{OWN}:{name}").flow.graph()))


GRPO = compile_graph(grpo.graph())
GRAPHS = {
    "sgd": with_settings(GRPO),
    "adamw": with_settings(GRPO, ADAMW),
    "one_step": with_settings(GRPO, ONE_STEP),
    "telling": own("telling"),
    "shuffling": own("shuffling"),
    "adapting": own("adapting"),
}


def plan_of(graph: Graph, devices: int) -> Plan:
    """Put all on one pool of so many of a laptop's devices; where they are several, what is trained is in shards."""
    cpu = Device(kind="cpu", memory_bytes=2**30)
    laptop = Machine(name="laptop", devices=(cpu,) * MOST_DEVICES, host_memory_bytes=2**33, cores=2)
    trained = ("fsdp", Layout(data=devices, sharding="full")) if devices > 1 else ("local", Layout())
    engines = {"train": trained}
    found = [(role.name, *engines.get(role.use, ("local", Layout(data=devices)))) for role in roles(graph)]
    return Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=Cluster(nodes=(laptop,)),
        pools=(Pool(name="all", devices=tuple(("laptop", i) for i in range(devices))),),
        placed=tuple(PlacedRole(role=name, pool="all", engine=engine, layout=layout) for name, engine, layout in found),
    )


def moved(plan: Plan, role: str) -> Plan:
    """Edit a plan as a person does, in its text: give one role a pool of its own, of one device."""
    text = json.loads(plan.to_json())
    text["pools"].append({"name": "apart", "devices": [["laptop", 2]]})
    (placed,) = (each for each in text["placed"] if each["role"] == role)
    placed |= {"pool": "apart", "engine": "local", "layout": {"data": 1}}
    return Plan.from_json(json.dumps(text))


ONE = {name: lower(graph, plan_of(graph, 1)) for name, graph in GRAPHS.items()}
TWO = {name: lower(graph, plan_of(graph, 2)) for name, graph in GRAPHS.items()}
REFERENCE_APART = lower(GRAPHS["telling"], moved(plan_of(GRAPHS["telling"], 2), "ref.infer"))
SAMPLING_APART = lower(GRAPHS["sgd"], moved(plan_of(GRAPHS["sgd"], 2), "policy.sample"))


@dataclass(eq=False)
class Side:
    """One way to run programs of one set of homes, and how to give these weights."""

    places: Places
    homes: Sequence[Home]
    give: Callable[[Home], None]
    executor: Executor = field(init=False)

    def begin(self) -> Side:
        """Go back to the first weights in every home."""
        for home in self.homes:
            self.give(home)
        self.executor = Executor(self.places)
        return self

    def steps(self, program: Program, sources: Mapping[str, RowSource], count: int = 5) -> list[dict[str, float]]:
        """Run steps and give the metrics of each."""
        return [self.executor.run(program, sources, Key(7, step)).observed.means() for step in range(count)]

    def rollouts(
        self, program: Program, sources: Mapping[str, RowSource], folder: Path, count: int = 3
    ) -> tuple[list[pa.Table], list[dict[str, float]]]:
        """Run steps and give the rollout and the metrics of each."""
        metrics = list[dict[str, float]]()
        for step in range(count):
            ran = self.executor.run(program, sources, Key(7, step))
            ran.apply(write_rollout, [SAMPLED], [], folder / f"{step}.parquet")
            metrics.append(ran.observed.means())
        self.places.finish()
        return [pq.read_table(folder / f"{step}.parquet") for step in range(count)], metrics

    def weights(self, program: Program, folder: Path) -> dict[str, torch.Tensor]:
        """Return the newest weights, as they are saved."""
        from safetensors.torch import load_file

        self.executor.save(program, "policy", folder)
        return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def models(model_cache: Path) -> ModelSetup:
    source = resolve("tiny", cache=model_cache)
    return ModelSetup({"policy": source, "ref": source}, 0, model_cache)


@pytest.fixture(scope="module")
def in_process(models: ModelSetup) -> Callable[..., Side]:
    """Return `in_process(program, places)`: run a program here, at first weights, in places of this class."""

    def made(program: Program, kind: type[InProcess] = InProcess) -> Side:
        handles, _ = host(program.homes, program.trained, models)
        return Side(kind(handles), program.homes, lambda home: None).begin()

    return made


@pytest.fixture(scope="module")
def on_ray(ray_session: Callable[[], Session], models: ModelSetup) -> Callable[..., Any]:
    """Return `on_ray(program, graphs)`: run programs of one set of homes on Ray, while the context is open."""
    handles, _ = host(ONE["sgd"].homes, (), models)
    first = to_wire(next(iter(handles.values())).weights())

    @contextmanager
    def opened(program: Program, graphs: Sequence[Graph]) -> Iterator[Side]:
        session = ray_session()
        import ray  # not before there is a session: Ray reads what authentication it asks for when it is imported

        flows = Flows(tuple(to_json(each) for each in graphs), str(OWN))
        places = start(program, graphs, flows, models, session)

        def give(home: Home) -> None:
            members = places.pools[home.pool][: home.layout.data]
            ray.get([member.actor.take.remote(home, first, 0) for member in members], timeout=60)

        try:
            yield Side(places, program.homes, give).begin()
        finally:
            places.close()

    return opened


@pytest.fixture(scope="module")
def two_open(on_ray: Callable[..., Any]) -> Iterator[Side]:
    """Keep two ranks on Ray that run every graph, and one more device to sample on: a start takes seconds."""
    homes = tuple(dict.fromkeys((*TWO["sgd"].homes, *SAMPLING_APART.homes)))
    with on_ray(replace(SAMPLING_APART, homes=homes), list(GRAPHS.values())) as side:
        yield side


@pytest.fixture
def two(two_open: Side) -> Side:
    """Return what is open on Ray, at the first weights."""
    return two_open.begin()


@pytest.fixture(scope="module")
def replayed(
    make_rollout: Callable[..., Rollout], uneven_rows: pa.Table, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, RowSource]:
    """Return recorded rollouts of five steps: four responses to each prompt, of 1 to 12 tokens, some right."""
    folder = tmp_path_factory.mktemp("replayed")
    for step, prompts in enumerate(PROMPTS):
        group = [prompt for prompt in prompts for _ in range(4)]
        lengths = [LENGTHS[(step + 3 * row) % len(LENGTHS)] for row in range(len(group))]
        contexts = [1 + (5 * prompt) % 12 for prompt in group]
        made = make_rollout(lengths, contexts, group, seed=step)
        truths = [uneven_rows.column("reward_model")[prompt].as_py()["ground_truth"] for prompt in group]
        texts = [truth[: row % 3] + "?" * (row % 2) for row, truth in enumerate(truths)]
        parts = made.parts | {
            "columns": Columns(uneven_rows.take(group)),
            "text": Text(pa.array(texts, pa.string())),
            "finished": Finished(torch.arange(len(group)) % 5 != 0),
        }
        write_rollout([to_table(Rollout(**parts))], [], rollout_file(folder, SAMPLED, step))
    return {SAMPLED: RecordedRollouts(folder, SAMPLED, Rollout), "prompts": PromptSource(uneven_rows, 1)}


def near(ours: Sequence[Mapping[str, float]], theirs: Sequence[Mapping[str, float]], limit: float = LIMIT) -> None:
    """Hold that the metrics of each step are the same."""
    assert len(ours) == len(theirs)
    for step, (one, two) in enumerate(zip(ours, theirs, strict=True)):
        assert one.keys() == two.keys()
        far = {name: (one[name], two[name]) for name in one if not abs(one[name] - two[name]) <= limit}
        assert far == {}, f"step {step}"


def farthest(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> float:
    """Return the largest difference between two sets of weights."""
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


# ------------------------------------------------------------------------------------------- two ranks


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_five_replayed_steps_on_two_ranks_are_those_of_one_process(
    name: str, two: Side, in_process: Callable[..., Side], replayed: Mapping[str, RowSource], tmp_path: Path
) -> None:
    one = in_process(ONE[name])
    first = one.weights(ONE[name], tmp_path / "first")
    wanted, told = one.steps(ONE[name], replayed), two.steps(TWO[name], replayed)
    near(told, wanted)
    assert [each["policy.update.optimizer_steps"] for each in told] == [3, 1, 2, 4, 1]
    assert all(each["policy.update.grad_norm"] > 0.05 for each in told), "nothing is trained, so nothing is compared"
    weights = one.weights(ONE[name], tmp_path / "one")
    assert farthest(weights, first) > 1e-3
    if name == "sgd":  # Adam divides a gradient by its own size: where that is rounding, so is the sign of the step
        assert farthest(two.weights(TWO[name], tmp_path / "two"), weights) < LIMIT


def test_gradients_on_two_ranks_are_those_of_one_process(
    two: Side, in_process: Callable[..., Side], replayed: Mapping[str, RowSource], tmp_path: Path
) -> None:
    one = in_process(ONE["one_step"])
    gradients = list[dict[str, torch.Tensor]]()
    for name, side, program in (("one", one, ONE["one_step"]), ("two", two, TWO["one_step"])):
        before = side.weights(program, tmp_path / f"{name}_before")
        told = side.steps(program, replayed, 1)
        after = side.weights(program, tmp_path / f"{name}_after")
        gradients.append({name: before[name] - after[name] for name in before})
        norm = torch.cat([each.flatten() for each in gradients[-1].values()]).norm()
        assert float(norm) == pytest.approx(told[0]["policy.update.grad_norm"], abs=LIMIT), "lr 1 moves by the gradient"
    assert farthest(*gradients) < LIMIT
    assert all(float(each.abs().max()) > 10 * LIMIT for each in gradients[0].values())


def test_two_ranks_sample_the_same_responses_in_the_same_order(
    two: Side, in_process: Callable[..., Side], digit_rows: pa.Table, tmp_path: Path
) -> None:
    sources = {"prompts": PromptSource(digit_rows, 5, seed=3)}
    wanted, _ = in_process(ONE["sgd"]).rollouts(ONE["sgd"], sources, tmp_path / "one")
    found, _ = two.rollouts(TWO["sgd"], sources, tmp_path / "two")
    for step, (one, other) in enumerate(zip(wanted, found, strict=True)):
        assert first_differences(one, other) == {}, f"step {step}: (row, its first other token)"
        exact = [name for name in one.column_names if name != "logprobs"]
        assert one.select(exact).equals(other.select(exact))
        logprobs = [table.column("logprobs").combine_chunks().flatten().to_numpy() for table in (one, other)]
        assert abs(logprobs[0] - logprobs[1]).max() < LIMIT
    assert set(wanted[2].column("versions").combine_chunks().flatten().to_pylist()) == {2}


def first_differences(one: pa.Table, other: pa.Table) -> dict[int, int]:
    """Return the rows whose tokens differ, each with the place of the first that does."""
    pairs = zip(one.column("tokens").to_pylist(), other.column("tokens").to_pylist(), strict=True)
    return {
        row: next((i for i, (a, b) in enumerate(zip(*pair, strict=False)) if a != b), min(map(len, pair)))
        for row, pair in enumerate(pairs)
        if pair[0] != pair[1]
    }


def test_steps_that_sample_on_two_ranks_tell_what_one_process_tells(
    two: Side, in_process: Callable[..., Side], digit_rows: pa.Table
) -> None:
    for prompts in (1, 3):  # one prompt: the second rank samples nothing, and trains on nothing
        sources = {"prompts": PromptSource(digit_rows, prompts, seed=1)}
        wanted = in_process(ONE["sgd"]).steps(ONE["sgd"], sources, 3)
        near(two.begin().steps(TWO["sgd"], sources, 3), wanted)


def test_results_are_put_back_by_identity(
    two: Side, in_process: Callable[..., Side], replayed: Mapping[str, RowSource]
) -> None:
    plain = in_process(ONE["sgd"]).steps(ONE["sgd"], replayed)
    near(in_process(ONE["shuffling"]).steps(ONE["shuffling"], replayed), plain)
    near(two.steps(TWO["shuffling"], replayed), plain)


def test_state_that_is_no_model_is_carried_on_ray_as_in_process(
    two: Side, in_process: Callable[..., Side], replayed: Mapping[str, RowSource]
) -> None:
    import ray

    one = in_process(ONE["adapting"])
    first = StoredValue.of(find_flow(f"{OWN}:adapting").flow.graph().params[-1].type(0.5))
    one.executor.carried["coefficient"] = first
    two.executor.carried["coefficient"] = TableReferences((ray.put(to_table(first.value)),))
    wanted = one.steps(ONE["adapting"], replayed)
    near(two.steps(TWO["adapting"], replayed), wanted)
    grown = [each["adapt.coefficient"] for each in wanted]
    assert grown == sorted(set(grown)) and grown[-1] > 3, "each step reads what the one before gave"


def test_the_controller_fetches_reports_and_no_values(
    two: Side, digit_rows: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    fetched, put, get, hand_over = set[type](), set[type](), ray.get, ray.put

    def noting_get(*args: Any, **named: Any) -> Any:
        got = get(*args, **named)
        for each in got if isinstance(got, tuple | list) else [got]:
            fetched.add(type(each))
        return got

    def noting_put(value: Any, *rest: Any) -> Any:
        put.add(type(value))
        return hand_over(value, *rest)

    monkeypatch.setattr(ray, "get", noting_get)
    monkeypatch.setattr(ray, "put", noting_put)
    told = two.steps(TWO["sgd"], {"prompts": PromptSource(digit_rows, 3)}, 2)
    assert "policy.update.loss" in told[1]
    assert Observations in fetched and fetched <= {Observations, bool, type(None)}
    assert put <= {PromptSource, Flows}, "what a source and the flows are, once"


# ------------------------------------------------------------------------------------------- a model moved


def process_ids(side: Side, program: Program, sources: Mapping[str, RowSource], folder: Path) -> list[set[int]]:
    """Run a step of `telling` and say which processes read rows with the policy, and with the reference."""
    ran = side.executor.run(program, sources, Key(7, 0))
    names = [f"{param}.read_by" for param in ("policy", "ref")]
    for name in names:
        ran.apply(write_rollout, [name], [], folder / f"{name}.parquet")
    side.places.finish()
    return [set(pq.read_table(folder / f"{name}.parquet").column("value").to_pylist()) for name in names]


@pytest.mark.slow(group="ray")
def test_a_reference_moved_by_hand_runs_there_and_changes_nothing(
    two: Side,
    on_ray: Callable[..., Any],
    in_process: Callable[..., Side],
    replayed: Mapping[str, RowSource],
    tmp_path: Path,
) -> None:
    assert any(task.target == "apart" for task in REFERENCE_APART.tasks if isinstance(task, Transfer))
    before = two.steps(TWO["telling"], replayed, 3)
    with on_ray(REFERENCE_APART, [REFERENCE_APART.graph]) as side:
        near(side.steps(REFERENCE_APART, replayed, 3), before, 1e-6)
        near(in_process(REFERENCE_APART).steps(REFERENCE_APART, replayed, 3), before)
        assert isinstance(side.places, RayPlaces)
        ids = {name: {member.pid for member in members} for name, members in side.places.pools.items()}
        assert (len(ids["all"]), len(ids["apart"]), len({os.getpid()} | ids["all"] | ids["apart"])) == (2, 1, 4)
        side.begin()
        assert process_ids(side, REFERENCE_APART, replayed, tmp_path) == [ids["all"], ids["apart"]]
    assert isinstance(two.places, RayPlaces)
    here = {member.pid for member in two.places.pools["all"]}
    assert process_ids(two.begin(), TWO["telling"], replayed, tmp_path) == [here, here], "before it was moved"


def test_a_reference_moved_by_hand_changes_nothing(
    two: Side, in_process: Callable[..., Side], replayed: Mapping[str, RowSource]
) -> None:
    assert any(task.target == "apart" for task in REFERENCE_APART.tasks if isinstance(task, Transfer))
    before = two.steps(TWO["telling"], replayed, 3)
    near(in_process(REFERENCE_APART).steps(REFERENCE_APART, replayed, 3), before)


def test_sampling_in_a_pool_of_another_size_gives_the_same_rollouts_and_losses(
    two: Side, in_process: Callable[..., Side], digit_rows: pa.Table, tmp_path: Path
) -> None:
    sources = {"prompts": PromptSource(digit_rows, 3, seed=3)}
    wanted, metrics = in_process(ONE["sgd"]).rollouts(ONE["sgd"], sources, tmp_path / "one")
    found, told = two.rollouts(SAMPLING_APART, sources, tmp_path / "apart")
    near(told, metrics)
    assert [first_differences(one, other) for one, other in zip(wanted, found, strict=True)] == [{}, {}, {}]


def test_what_moving_a_model_adds_to_the_program(golden: Callable[[str, str], None]) -> None:
    golden(program_text(REFERENCE_APART), "programs/telling_reference_apart.txt")


# ------------------------------------------------------------------------------------------- nothing can be left out

APART = {"reference": REFERENCE_APART, "sampling": SAMPLING_APART}
BROUGHT = [
    pytest.param(name, i, id=f"{name}: {' '.join(str(task).split())}")
    for name, program in APART.items()
    for i, task in enumerate(program.tasks)
    if isinstance(task, Transfer | Sync)
]


def test_there_are_transfers_and_syncs_to_leave_out() -> None:
    for program in APART.values():
        assert {Transfer, Sync} <= {type(task) for task in program.tasks}


@pytest.mark.parametrize(("name", "place"), BROUGHT)
def test_a_step_without_any_one_transfer_or_sync_is_refused(
    name: str, place: int, in_process: Callable[..., Side], digit_rows: pa.Table
) -> None:
    program, sources = APART[name], {"prompts": PromptSource(digit_rows, 1)}
    task = program.tasks[place]
    assert isinstance(task, Transfer | Sync)
    with pytest.raises(LawError) as caught:
        in_process(program).steps(program.without(place), sources, 2)
    what, hint = str(caught.value).splitlines()
    assert what.endswith(f" reads `{task.value}`, which is not in the store of {task.target}")
    assert hint == "  hint: a transfer or a sync to that store is missing before this task"


def test_what_is_said_of_a_sync_that_is_missing(in_process: Callable[..., Side], digit_rows: pa.Table) -> None:
    place = next(i for i, task in enumerate(SAMPLING_APART.tasks) if isinstance(task, Sync))
    with pytest.raises(LawError) as caught:
        in_process(SAMPLING_APART).steps(SAMPLING_APART.without(place), {"prompts": PromptSource(digit_rows, 1)}, 1)
    assert str(caught.value) == (
        "`run policy.generate on apart/local, role policy.sample` reads `policy`, which is not in the store of "
        "apart/local\n  hint: a transfer or a sync to that store is missing before this task"
    )


class Forgetful(InProcess):
    """Places whose syncs say that weights were brought, and bring none."""

    def sync(self, task: Sync, version: int) -> None:
        self.handles[task.target].version = version


def test_a_sync_that_brings_nothing_changes_what_is_sampled(
    in_process: Callable[..., Side], digit_rows: pa.Table, tmp_path: Path
) -> None:
    sources = {"prompts": PromptSource(digit_rows, 3, seed=3)}
    wanted, _ = in_process(SAMPLING_APART).rollouts(SAMPLING_APART, sources, tmp_path / "brought")
    found, _ = in_process(SAMPLING_APART, Forgetful).rollouts(SAMPLING_APART, sources, tmp_path / "forgot")
    assert first_differences(wanted[0], found[0]) == {}, "there is nothing to bring before the first update"
    assert first_differences(wanted[1], found[1]) != {}
