"""A device without Ray: two of them by hand do together what one process does, and an error says where it happened."""

from __future__ import annotations

import pickle
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from examples.grpo import grpo
from flowgraph import Graph, Value, flow, node
from flowgraph.analysis.flat_graph import structure_hash, to_json
from flowgraph.analysis.roles import roles
from flowgraph.cluster.cluster import Cluster, Machine
from flowgraph.cluster.cluster import Device as CpuOrGpu
from flowgraph.cluster.plan import Layout, PlacedRole, Plan, Pool
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import DataError, LawError, UserCodeError, WorkerError
from flowgraph.flows.settings import resolve_settings
from flowgraph.language import Key, Kind
from flowgraph.language.region import Observations
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Home, Program, Run, Sync
from flowgraph.models import resolve
from flowgraph.passes import compile_graph
from flowgraph.runtime.batch import from_table, select
from flowgraph.runtime.hosting import ModelSetup
from flowgraph.runtime.ray.device import Flows, PoolRank, RankActor
from flowgraph.runtime.ray.host_tasks import apply_to_tables, host_process, read_source, run_on_host
from flowgraph.runtime.row_identity import IDS, PLACE, Guide, balanced_shares, join_shards
from flowgraph.runtime.serving import ServerPlace, Servers
from nodes import LanguageModel, LogProbs, Policy, Prompts, Reference, Rollout, Scores, generate, logprobs
from nodes.data.source import FixedPrompts

Tiny = Callable[..., LocalModel]
KEY = Key(5, 3)


class Weighted(LogProbs):
    """Log-probs times a score."""


class Total(Value):
    """A sum over the batch."""

    kind = Kind.SCALAR


def test_the_port_where_ranks_will_meet_is_held_until_they_do() -> None:
    device = RankActor(Flows((), ""))
    port = device.port()
    with pytest.raises(OSError, match="in use"):
        socket.create_server(("", port))
    assert device.port() == port and device.reserved is not None
    device.reserved.close()


class Unwell:
    """A server that has ended."""

    def check(self) -> None:
        raise WorkerError("replica 0 ended")


def test_a_device_that_is_asked_whether_it_is_there_says_that_its_server_is_not_well(tmp_path: Path) -> None:
    device = RankActor(Flows((), ""))
    assert device.beat()
    device.servers = Servers(ModelSetup({}, 0, tmp_path), tmp_path, 1.0, _running=[Unwell()])
    with pytest.raises(WorkerError, match="replica 0 ended"):
        device.beat()


@node
def turned(scores: Scores, rollout: Rollout) -> Scores:
    """Score responses by their first token."""
    return Scores(rollout.tokens.data[:, 0].float())


@node(kind="logprob")
def weighted(model: LanguageModel, scores: Scores, rollout: Rollout) -> Weighted:
    """Weigh each token: a plain value of tokens, whose rows are in the order of the scores."""
    return Weighted(scores.data[:, None] * rollout.mask.data)


@node(kind="score")
def total(model: LanguageModel, rollout: Rollout) -> Total:
    """Return what depends on how the batch is cut."""
    return Total(int(rollout.tokens.data.sum()))


@node(kind="score")
def failing(model: LanguageModel, rollout: Rollout) -> Scores:
    """Fail where the third prompt is."""
    if 12 in rollout.group.data.tolist():
        raise ZeroDivisionError("no such luck")
    return Scores(torch.zeros(len(rollout.group.data)))


@flow
def measuring(
    prompts: Prompts, scores: Scores, policy: Policy, ref: Reference
) -> tuple[LogProbs, Weighted, Total, Scores]:
    rollout = generate(policy, prompts, n=3, max_tokens=12)
    return logprobs(ref, rollout), weighted(ref, scores, rollout), total(ref, rollout), failing(ref, rollout)


def two_devices(graph: Graph) -> Program:
    """Return the program of a plan with each model copied to both devices of one pool."""
    cpu = CpuOrGpu(kind="cpu", memory_bytes=2**30)
    plan = Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=Cluster(nodes=(Machine(name="laptop", devices=(cpu, cpu), host_memory_bytes=2**31, cores=2),)),
        pools=(Pool(name="all", devices=(("laptop", 0), ("laptop", 1))),),
        placed=tuple(
            PlacedRole(role=role.name, pool="all", engine="local", layout=Layout(data=1 if role.use == "train" else 2))
            for role in roles(graph)
        ),
    )
    return lower(graph, plan)


GRAPH = compile_graph(measuring.graph())
PROGRAM = two_devices(GRAPH)
TASKS = {name: task for task in PROGRAM.tasks if isinstance(task, Run) for name in task.nodes}
FLOWS = Flows((to_json(GRAPH),), "")


def made(tiny: Tiny, rank: int, program: Program = PROGRAM, flows: Flows = FLOWS) -> RankActor:
    """Return one of two devices, with copies of its own."""
    seat = PoolRank("all", rank, 2, "cpu", program.homes, program.trained)
    handles: dict[Home, Any] = {
        home: tiny(trainable=home in program.trained) for home in program.homes if rank < home.layout.data
    }
    return RankActor(flows, seat, handles)


@pytest.fixture
def two(tiny: Tiny) -> list[RankActor]:
    return [made(tiny, rank) for rank in range(2)]


@pytest.fixture
def one(tiny: Tiny, one_device: Callable[[Graph], Plan]) -> Callable[..., tuple[pa.Table, ...]]:
    """Return `one(name, *tables)`: run a node on a single device, on whole tables."""
    program = lower(GRAPH, one_device(GRAPH))
    seat = PoolRank("all", 0, 1, "cpu", program.homes, program.trained)
    alone = RankActor(FLOWS, seat, {home: tiny() for home in program.homes})
    tasks = {name: task for task in program.tasks if isinstance(task, Run) for name in task.nodes}

    def run(name: str, *tables: pa.Table) -> tuple[pa.Table, ...]:
        task = tasks[name]
        *given, _ = alone.run(0, task, dict.fromkeys(dict(task.homes), 0), KEY, [(1, False)] * len(tables), *tables)
        return tuple(given)

    return run


@pytest.fixture
def prompts(uneven_rows: pa.Table) -> pa.Table:
    """Return three prompts, so that the ranks have two and one."""
    return read_source(FixedPrompts(uneven_rows, (9, 2, 4)), 0)


Given = Sequence[pa.Table] | pa.Table
"""A table of each rank's own rows, or one of all rows, of which each rank takes its share."""


def on_two(two: Sequence[RankActor], name: str, *inputs: Given) -> list[tuple[Any, ...]]:
    """Run a node on both devices."""
    task = TASKS[name]
    versions = dict.fromkeys(dict(task.homes), 0)
    own = [not isinstance(each, pa.Table) for each in inputs]
    return [
        device.run(
            0,
            task,
            versions,
            KEY,
            [(1, each) for each in own],
            *(each if isinstance(each, pa.Table) else each[rank] for each in inputs),
        )
        for rank, device in enumerate(two)
    ]


def without_ids(table: pa.Table) -> pa.Table:
    return table.select([name for name in table.column_names if name not in (*IDS, PLACE)])


def test_two_devices_sample_what_one_does_in_the_same_order(
    two: list[RankActor], one: Callable[..., tuple[pa.Table, ...]], prompts: pa.Table
) -> None:
    (whole,) = one("policy.generate", prompts)
    given = on_two(two, "policy.generate", prompts)
    parts = [table for table, _ in given]
    assert [table.num_rows for table in parts] == [6, 3]
    assert [sorted(set(table.column("group").to_pylist())) for table in parts] == [[2, 4], [9]]
    found = join_shards(parts, "rollout")
    exact = [name for name in whole.column_names if name != "logprobs"]
    assert found.select(exact).equals(whole.select(exact))
    assert found.column("group").to_pylist() == [9] * 3 + [2] * 3 + [4] * 3, "in the order of the prompts"


def test_rows_that_stay_on_their_ranks_and_rows_that_come_from_elsewhere_meet(
    two: list[RankActor], one: Callable[..., tuple[pa.Table, ...]], prompts: pa.Table
) -> None:
    (rollout,) = one("policy.generate", prompts)
    own = [table for table, _ in on_two(two, "policy.generate", prompts)]
    (wanted,) = one("ref.logprobs", rollout)
    for given in (own, rollout):
        parts = [table for table, _ in on_two(two, "ref.logprobs", given)]
        found = join_shards(parts, "logprobs")
        assert without_ids(found).column("value").to_pylist() == [
            pytest.approx(row, abs=1e-5) for row in wanted.column("value").to_pylist()
        ]
        assert found.select(list(IDS)).equals(wanted.select(list(IDS)))


def test_rows_from_elsewhere_may_come_in_another_order(
    two: list[RankActor], one: Callable[..., tuple[pa.Table, ...]], prompts: pa.Table
) -> None:
    (rollout,) = one("policy.generate", prompts)
    scores = rollout.select(list(IDS)).append_column("value", pa.array([float(i) for i in range(9)], pa.float32()))
    (wanted,) = one("ref.weighted", scores, rollout)
    lengths = [len(row) for row in wanted.column("value").to_pylist()]
    assert lengths == rollout.column("lengths").to_pylist(), "each row is cut to its response's length"
    assert len(set(lengths)) > 3
    own = [table for table, _ in on_two(two, "policy.generate", prompts)]
    mixed = scores.take([8, 1, 3, 0, 6, 2, 7, 5, 4])
    told = {tuple(row[name] for name in IDS): row["value"] for row in wanted.to_pylist()}
    for given in (own, rollout, rollout.take([2, 1, 0, 5, 4, 3, 8, 7, 6])):
        found = join_shards([table for table, _ in on_two(two, "ref.weighted", mixed, given)], "weighted")
        assert {tuple(row[name] for name in IDS): row["value"] for row in found.to_pylist()} == told


def test_a_rank_without_rows_gives_none(two: list[RankActor], uneven_rows: pa.Table) -> None:
    prompt = read_source(FixedPrompts(uneven_rows, (7,)), 0)
    given = on_two(two, "policy.generate", prompt)
    assert [table.num_rows for table, _ in given] == [3, 0]
    assert given[0][0].schema.equals(given[1][0].schema, check_metadata=True)
    parts = [table for table, _ in on_two(two, "ref.logprobs", [table for table, _ in given])]
    assert [table.num_rows for table in parts] == [3, 0]
    assert join_shards(parts, "logprobs").num_rows == 3


def test_each_rank_tells_what_it_observed(two: list[RankActor], prompts: pa.Table) -> None:
    whole = Observations()
    for _, observed in on_two(two, "policy.generate", prompts):
        assert isinstance(observed, Observations)
        whole.merge(observed)
    assert whole.sums["policy.generate", "finished"][1] == 9.0


def test_several_tables_of_a_value_are_joined_before_they_are_shared_by_work(
    two: list[RankActor], prompts: pa.Table
) -> None:
    parts = [table for table, _ in on_two(two, "policy.generate", prompts)]
    task, versions = TASKS["ref.logprobs"], {"ref": 0}
    shares = balanced_shares(join_shards(parts, "rollout"), Guide("rollout", "context", "lengths"), 2)
    for rank, device in enumerate(two):
        told, _ = device.run(0, task, versions, KEY, [(2, False)], *parts)
        assert set(told.column("#group").to_pylist()) == {*shares.groups[shares.ranks == rank].tolist()}


# ------------------------------------------------------------------------------------------- errors


def test_scalars_that_ranks_do_not_agree_on_are_refused_where_they_are_read(
    two: list[RankActor], prompts: pa.Table
) -> None:
    own = [table for table, _ in on_two(two, "policy.generate", prompts)]
    parts = [table for table, _ in on_two(two, "ref.total", own)]
    with pytest.raises(LawError) as caught:
        join_shards(parts, "ref.total")
    assert str(caught.value) == "the rows of `ref.total` are not those of `ref.total`: its ranks give different scalars"


def test_an_error_says_on_which_rank_it_happened(two: list[RankActor], uneven_rows: pa.Table, tiny: Tiny) -> None:
    rows = pa.concat_tables([uneven_rows, uneven_rows])
    prompts = read_source(FixedPrompts(rows, (9, 2, 12)), 0)
    own = [table for table, _ in on_two(two, "policy.generate", prompts)]
    at = next(each.at for each in GRAPH.nodes if each.name == "ref.failing")
    line = 1 + Path(__file__).read_text().splitlines().index('        raise ZeroDivisionError("no such luck")')
    task = TASKS["ref.failing"]
    assert two[0].run(0, task, {"ref": 0}, KEY, [(1, True)], own[0])[0].num_rows == 6
    with pytest.raises(UserCodeError) as caught:
        two[1].run(0, task, {"ref": 0}, KEY, [(1, True)], own[1])
    assert str(caught.value) == (
        f"{at}: ref.failing raised ZeroDivisionError: no such luck\n"
        f"    at test_device.py:{line} in failing\n"
        "    in ref.failing as ref.infer on rank 1 of pool `all`, step 3"
    )
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_rows_that_cannot_be_shared_say_so_with_the_place(two: list[RankActor], prompts: pa.Table) -> None:
    with pytest.raises(LawError) as caught:
        on_two(two, "policy.generate", without_ids(prompts))
    line = next(str(node.at) for node in two[0].workers[0].graph.nodes if node.op.name == "generate")
    assert str(caught.value) == (
        f"{line}: the rows of `prompts` have no identity, so they cannot be split over 2 ranks\n"
        "    in policy.generate as policy.sample on rank 0 of pool `all`, step 3\n"
        "  hint: make it from a record with Group, Sample and Trajectory, or run its reader with data=1"
    )


def test_a_column_that_did_not_arrive_is_named(two: list[RankActor], prompts: pa.Table) -> None:
    with pytest.raises(DataError) as caught:
        on_two(two, "policy.generate", prompts.drop(["group"]))
    assert str(caught.value) == (
        "transfer of prompts: lacks the column `group`\n"
        "    in policy.generate as policy.sample on rank 0 of pool `all`, step 3\n"
        "  hint: did you mean `#group`?"
    )


def test_weights_of_another_version_are_refused_with_the_place(two: list[RankActor], prompts: pa.Table) -> None:
    task = TASKS["policy.generate"]
    with pytest.raises(LawError) as caught:
        two[1].run(0, task, {"policy": 4}, KEY, [(1, False)], prompts)
    assert caught.value.notes[-1] == "in policy.generate as policy.sample on rank 1 of pool `all`, step 3"


# ------------------------------------------------------------------------------------------- weights


def policies(program: Program) -> tuple[Home, Home]:
    """Return the home where the policy is trained, and that where it samples."""
    train, sample = (home for home in program.homes if home.param == "policy")
    return train, sample


@pytest.fixture(scope="module")
def trained() -> Program:
    return two_devices(resolve_settings(compile_graph(grpo.graph()), [], {})[0])


def moved(device: RankActor, home: Home) -> Mapping[str, torch.Tensor]:
    """Change the weights of a home by hand, and give them."""
    handle: Any = device.handles[home]
    with torch.no_grad():
        for parameter in handle.model.parameters():
            parameter.add_(0.25)
    return handle.weights()


def same(one: Mapping[str, torch.Tensor], two: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_weights_are_copied_between_homes_of_one_process(tiny: Tiny, trained: Program) -> None:
    device, (train, sample) = made(tiny, 0, trained), policies(trained)
    wanted = moved(device, train)
    assert not same(device.handles[sample].weights(), wanted)
    device.sync(Sync("policy", train, sample), 7)
    assert same(device.handles[sample].weights(), wanted)
    assert (device.handles[train].version, device.handles[sample].version) == (0, 7)


def test_weights_are_given_by_the_first_rank_and_taken_by_any(tiny: Tiny, trained: Program) -> None:
    first, second = (made(tiny, rank, trained) for rank in range(2))
    train, sample = policies(trained)
    wanted = moved(first, train)
    wire = first.give(Sync("policy", train, sample))
    assert wire is not None
    for device in (first, second):
        device.take(sample, wire, 3)
        assert same(device.handles[sample].weights(), wanted)
        assert device.handles[sample].version == 3
    assert second.give(Sync("policy", sample, train)) is None, "one copy is enough"


def test_a_home_is_saved_as_a_folder_that_loads(tiny: Tiny, trained: Program, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    device, (train, _) = made(tiny, 0, trained), policies(trained)
    wanted = moved(device, train)
    device.on_disk(train, "save", tmp_path / "saved", None)
    assert same(load_file(tmp_path / "saved" / "model.safetensors"), wanted)


def test_opening_loads_a_copy_for_each_home_that_this_rank_has_a_part_in(trained: Program, tmp_path: Path) -> None:
    source = resolve("tiny", cache=tmp_path)
    setup = ModelSetup({"policy": source, "ref": source}, 0, tmp_path)
    train, sample = policies(trained)
    for rank in range(2):
        device = RankActor(
            Flows((to_json(trained.graph),), ""), PoolRank("all", rank, 2, "cpu", trained.homes, trained.trained)
        )
        told = device.open(setup, None, 10.0)
        assert set(device.handles) == set(trained.homes) - ({train} if rank else set())
        assert set(told) == {"policy", "ref"} and told["ref"]["name"] == "tiny"
        assert "step" not in device.handles[sample].verbs
        models = [id(handle.model) for handle in device.handles.values() if isinstance(handle, LocalModel)]
        assert len(set(models)) == len(device.handles)
        assert rank == 1 or "step" in device.handles[train].verbs


# ------------------------------------------------------------------------------------------- hosts, recording


def test_host_nodes_run_without_a_device(
    one: Callable[..., tuple[pa.Table, ...]], prompts: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    graph = compile_graph(scoring.graph())
    flows, program = Flows((to_json(GRAPH), to_json(graph)), ""), two_devices(graph)
    task = next(each for each in program.tasks if isinstance(each, Run) and each.nodes == ("turned",))
    (rollout,) = one("policy.generate", prompts)
    scores = rollout.select(list(IDS)).append_column("value", pa.array([0.0] * 9, pa.float32()))
    told, observed = run_on_host(flows, tmp_path, 1, task, {}, KEY, [(1, False), (1, False)], scores, rollout)
    assert tempfile.gettempdir() == str(tmp_path), "temporary files go with the run"
    assert told.column("value").to_pylist() == [float(row[0]) for row in rollout.column("tokens").to_pylist()]
    assert list(observed.seconds) == ["turned"]
    assert PLACE not in told.column_names
    assert host_process(flows) is host_process(Flows(flows.graphs, "")), "flows are read once"


@flow
def scoring(prompts: Prompts, scores: Scores, policy: Policy) -> Scores:
    return turned(scores, generate(policy, prompts))


def test_an_error_on_a_host_says_so(prompts: pa.Table, tmp_path: Path) -> None:
    graph = compile_graph(scoring.graph())
    task = next(each for each in two_devices(graph).tasks if isinstance(each, Run) and each.nodes == ("turned",))
    with pytest.raises(DataError) as caught:
        run_on_host(
            Flows((to_json(graph),), ""),
            tmp_path / "gone",
            0,
            task,
            {},
            KEY,
            [(1, False), (1, False)],
            prompts,
            prompts,
        )
    assert caught.value.notes[-1] == "in turned on the host, step 3"


def test_flows_of_a_users_file_are_read_from_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from flowgraph import flow, node\nfrom nodes import Rollout, Scores\n\n\n"
        "@node\ndef doubled(scores: Scores) -> Scores:\n    '''Double.'''\n    return Scores(scores.data * 2)\n\n\n"
        "@flow\ndef doubling(scores: Scores) -> Scores:\n    '''Double.'''\n    return doubled(scores)\n"
    )
    from flowgraph.flows.flow_files import find_flow

    graph = compile_graph(find_flow(str(file)).flow.graph())
    (read,) = Flows((to_json(graph),), str(file)).read()
    assert read.nodes[0].op is graph.nodes[0].op, "its types are the same classes everywhere"


def test_a_source_is_read_as_a_table_with_ids(uneven_rows: pa.Table) -> None:
    table = read_source(FixedPrompts(uneven_rows, (3, 1)), 0)
    assert table.column("#group").to_pylist() == table.column("group").to_pylist() == [3, 1]
    assert from_table(Prompts, table, "here").columns.data.equals(uneven_rows.take([3, 1]))


def test_what_is_recorded_is_whole_and_has_no_ids(two: list[RankActor], prompts: pa.Table) -> None:
    parts = [table for table, _ in on_two(two, "policy.generate", prompts)]
    seen = list[Any]()
    apply_to_tables(lambda tables, word: seen.extend([*tables, word]), [2, 1], ["said"], *parts, prompts)
    rollout, asked, word = seen
    assert (rollout.num_rows, asked.num_rows, word) == (9, 3, "said")
    assert not {*IDS, PLACE} & {*rollout.column_names, *asked.column_names}
    assert rollout.column("group").to_pylist() == [9] * 3 + [2] * 3 + [4] * 3


def test_a_device_answers_and_says_which_it_is(two: list[RankActor]) -> None:
    assert two[0].beat()
    assert [str(device.seat) for device in two] == ["rank 0 of pool `all`", "rank 1 of pool `all`"]
    gpu = PoolRank("all", 0, 1, "gpu", (), ())
    assert (gpu.torch_device, PoolRank("all", 0, 1, "cpu", (), ()).torch_device) == ("cuda", "cpu")


# ------------------------------------------------------------------------------------------- parts of records


def test_what_is_sent_in_part_has_the_columns_of_those_parts_and_ids(
    one: Callable[..., tuple[pa.Table, ...]], tiny: Tiny, prompts: pa.Table
) -> None:
    task, parts = TASKS["policy.generate"], ("tokens", "lengths", "columns", "temperature")
    device = made(tiny, 0, PROGRAM)
    whole, sent, _ = device.run(
        0, replace(task, sends=((task.nodes[0], parts),)), {"policy": 0}, KEY, [(1, True)], prompts
    )
    assert sent.equals(whole.select(sent.column_names))
    inside = [name for name in whole.column_names if name.startswith("columns.")]
    assert inside and set(sent.column_names) == {"tokens", "lengths", *inside, *IDS}
    back = from_table(Rollout, sent, "here", parts)
    assert list(back.parts) == ["tokens", "lengths", "temperature", "columns"]


def test_a_run_reads_its_parts_of_what_comes_whole_or_in_part(
    two: list[RankActor], one: Callable[..., tuple[pa.Table, ...]], prompts: pa.Table
) -> None:
    task = TASKS["ref.logprobs"]
    assert task.parts == (("policy.generate", ("context", "tokens", "lengths", "temperature")),)
    (rollout,) = one("policy.generate", prompts)
    own = [table for table, _ in on_two(two, "policy.generate", prompts)]
    parts = select(rollout, task.parts[0][1])
    assert "text" not in parts.column_names
    wanted = [table for table, _ in on_two(two, "ref.logprobs", own)]
    for given in (rollout, parts, [select(each, task.parts[0][1]) for each in own]):
        found = [table for table, _ in on_two(two, "ref.logprobs", given)]
        assert join_shards(found, "x").equals(join_shards(wanted, "x"))


@pytest.mark.parametrize("here", [True, False])
def test_servers_keep_their_files_on_their_own_machine_and_leave_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "own"))
    scratch, own = tmp_path / "driver", tmp_path / "own"
    own.mkdir()
    if here:
        scratch.mkdir()
    home = Home("policy", "draw", "sglang", Layout(data=1))
    device = RankActor(Flows((), ""), PoolRank("draw", 0, 1, "cpu", (home,), ()))
    two = ModelSetup({}, 0, tmp_path, attached={"policy": (None, None)})
    with pytest.raises(LawError, match="2 servers are attached"):
        device.serve(two, ServerPlace(home, "cpu"), scratch, 1.0)
    (kept,) = (scratch if here else own).iterdir()
    assert kept.name.startswith("draw-0-" if here else "flowgraph-")
    device.shut()
    assert not kept.exists() and scratch.exists() == here


def test_a_device_is_printed_in_few_words_as_ray_puts_them_before_each_line() -> None:
    flows = Flows(("x" * 23_000,), "")
    assert repr(RankActor(flows)) == "Device(host)"
    assert repr(RankActor(flows, PoolRank("all", 1, 2, "cpu", (), ()))) == "Device(rank 1 of pool `all`)"
