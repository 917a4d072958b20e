"""A loss does not depend on how its rows lie: cut, on ranks, padded or packed; nor what reads all rows together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nodes
from flowgraph import Graph, Loss, Value, flow, node
from flowgraph.analysis.flat_graph import structure_hash, to_json
from flowgraph.analysis.roles import roles
from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import Layout, PlacedRole, Plan, Pool
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import LawError
from flowgraph.language import Key, Kind, op_of
from flowgraph.language.graph import Op
from flowgraph.language.handle import ResponseRows, SingleRank, TokenStats
from flowgraph.language.region import Observations
from flowgraph.language.values import Group, Mask, Record, Trainable
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import HOST, Program, Run
from flowgraph.passes import compile_graph
from flowgraph.runtime.batch import to_table
from flowgraph.runtime.ray.device import Flows
from flowgraph.runtime.ray.host_tasks import run_on_host
from flowgraph.runtime.row_identity import IDS, ids_of, rows_of_rank
from nodes import (
    Advantages,
    Chosen,
    Critic,
    ImportanceWeights,
    KLWeight,
    LogProbs,
    Policy,
    Prompts,
    Responses,
    Rollout,
    Scores,
    TokenAdvantages,
    generate,
    gpg_advantages,
    high_covariance,
    logprobs,
    normalized_weights,
    top_covariance,
    update,
    whiten,
)
from tests.parity import layout_ranks
from tests.parity.layout_ranks import (
    CASES,
    TEMPERATURE,
    Batch,
    Sums,
    columns,
    dealt,
    descended,
    few,
    make_batch,
    one_of_each,
    stepped,
    trained,
)
from tests.rank_processes import RankProcesses

pytestmark = pytest.mark.processes  # its processes are started once

LIMIT = 1e-6  # transformers normalises in float32 whatever the weights are
LIMIT_S = 120.0
WHOLE = 10**6
ROOT = Path(__file__).parents[2]
ASKED = {"one of each": one_of_each(), "every": CASES}
Handles = Mapping[type[Trainable], LocalModel]
Gradients = dict[str, torch.Tensor]
Logits = list[torch.Tensor]
Told = list[dict[str, np.ndarray]]


@pytest.fixture(scope="module", params=["one of each", pytest.param("every", marks=pytest.mark.slow(group="shards"))])
def asked(request: pytest.FixtureRequest) -> str:
    """Name the cases that two ranks are asked for."""
    return str(request.param)


@pytest.fixture(scope="module")
def started(asked: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, RankProcesses]]:
    """Start two ranks: they work while this process does."""
    folder, file = tmp_path_factory.mktemp("layout"), str(layout_ranks.__file__)
    ranks = RankProcesses(file, 2, folder, asked)
    yield folder, ranks
    ranks.end()


@pytest.fixture(scope="module")
def two(started: tuple[Path, RankProcesses]) -> Told:
    """Return what each of two ranks told: gradients by batch and case."""
    folder, ranks = started
    ranks.wait(LIMIT_S)
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(2)]


@pytest.fixture(scope="module")
def handles() -> Handles:
    return {kind: LocalModel(*trained(kind), trainable=True) for kind in (Policy, Critic)}


@pytest.fixture(scope="module")
def at_once(handles: Handles) -> dict[str, tuple[torch.Tensor, Sums]]:
    """Return each case's gradient and metrics, of the whole batch in one forward pass."""
    return {case.name: stepped(handles[case.model], case, make_batch(), WHOLE) for case in CASES}


@pytest.fixture(scope="module")
def whole(at_once: dict[str, tuple[torch.Tensor, Sums]]) -> Gradients:
    """Return the gradients alone."""
    return {name: gradient for name, (gradient, _) in at_once.items()}


def apart(gradients: Gradients, others: Gradients) -> dict[str, float]:
    """Name the cases whose gradients differ, and how far."""
    assert gradients.keys() == others.keys()
    found = {name: float((each - others[name]).abs().max()) for name, each in gradients.items()}
    return {name: far for name, far in found.items() if not far < LIMIT}


# ------------------------------------------------------------------------------------------- the cases themselves


def test_every_loss_has_a_gradient_and_every_setting_of_it_changes_that(whole: Gradients) -> None:
    assert {name for name, each in whole.items() if not each.abs().max() > 0.01} == set()
    for first in CASES:
        for other in CASES:
            if first is not other and first.name.partition("(")[0] == other.name.partition("(")[0]:
                assert (whole[first.name] - whole[other.name]).abs().max() > 1e-3, (first.name, other.name)


# ------------------------------------------------------------------------------------------- micro-batches and ranks


def test_gradients_and_metrics_are_the_same_in_many_micro_batches(
    handles: Handles, at_once: dict[str, tuple[torch.Tensor, Sums]]
) -> None:
    cut = {case.name: stepped(handles[case.model], case, make_batch(), 60) for case in CASES}
    assert apart(*({name: each[0] for name, each in told.items()} for told in (cut, at_once))) == {}
    for name, (_, sums) in cut.items():
        assert sums.keys() == at_once[name][1].keys()
        assert columns(sums) == pytest.approx(columns(at_once[name][1]), abs=1e-4), name


def test_a_gradient_is_the_same_where_each_row_is_a_micro_batch(handles: Handles, whole: Gradients) -> None:
    cut = {case.name: descended(handles[case.model], case, make_batch(), 1) for case in few()}
    assert apart(cut, {name: whole[name] for name in cut}) == {}


def test_a_gradient_is_the_same_on_two_ranks(two: Told, whole: Gradients, asked: str) -> None:
    names = [case.name for case in ASKED[asked]]
    for rank in two:
        told = {name: torch.from_numpy(rank[f"all: {name}"]) for name in names}
        assert apart(told, {name: whole[name] for name in names}) == {}


def test_metrics_are_summed_over_two_ranks(
    two: Told, at_once: dict[str, tuple[torch.Tensor, Sums]], asked: str
) -> None:
    for name in (case.name for case in ASKED[asked]):
        sums = at_once[name][1]
        here = [rank[f"all, metrics: {name}"] for rank in two]
        assert sum(here) == pytest.approx(columns(sums), abs=1e-4), name


def test_a_gradient_is_the_same_where_one_of_two_ranks_has_no_row(two: Told, handles: Handles) -> None:
    batch, cases = dealt(())["one prompt"]
    alone = {case.name: descended(handles[case.model], case, batch, WHOLE) for case in cases}
    assert all(each.abs().max() > 0.01 for each in alone.values())
    for rank in two:
        assert apart({name: torch.from_numpy(rank[f"one prompt: {name}"]) for name in alone}, alone) == {}


def test_gradient_and_metrics_are_the_same_where_two_ranks_read_the_same_rows_by_parts(
    two: Told, whole: Gradients, at_once: dict[str, tuple[torch.Tensor, Sums]]
) -> None:
    names = [case.name for case in few()]
    for rank in two:
        told = {name: torch.from_numpy(rank[f"peers: {name}"]) for name in names}
        assert apart(told, {name: whole[name] for name in names}) == {}
        for name in names:
            assert rank[f"peers, metrics: {name}"] == pytest.approx(columns(at_once[name][1]), abs=1e-4), name


def test_an_update_that_is_called_on_a_sharded_model_counts_over_all_ranks_too(two: Told, whole: Gradients) -> None:
    for rank in two:
        assert apart({"called": torch.from_numpy(rank["called"])}, {"called": whole[CASES[0].name]}) == {}


def test_sharded_models_are_trained_without_a_warning(two: Told) -> None:
    assert [rank["warned"].tolist() for rank in two] == [[], []]


# ------------------------------------------------------------------------------------------- padded and packed


def test_a_gradient_is_the_same_when_rows_are_padded_wider_with_what_is_no_number(
    handles: Handles, whole: Gradients
) -> None:
    wide, tight = padded(make_batch(), 3), dict[str, torch.Tensor]()
    for case in CASES:
        handle = handles[case.model]
        tight[case.name] = gradient(handle.model, case.of(wide)(case.model(handle, handle.version)))
    assert apart(tight, whole) == {}
    cut = {case.name: descended(handles[case.model], case, wide) for case in few()}
    assert apart(cut, {name: whole[name] for name in cut}) == {}


def padded(batch: Batch, columns: int) -> Batch:
    given = {name: wider(each, columns) for name, each in batch.given.items()}
    return Batch(wider(batch.rollout, columns), given)


def wider(value: Any, columns: int) -> Any:
    if isinstance(value, Record):
        return type(value).of({name: wider(part, columns) for name, part in value.parts.items()})
    if value.kind is not Kind.TOKEN:
        return value
    plain = isinstance(value, Mask) or not value.data.is_floating_point()
    return type(value)(torch.nn.functional.pad(value.data, (0, columns), value=0 if plain else torch.nan))


def gradient(model: Any, loss: Loss) -> torch.Tensor:
    """Return the gradient of a loss whose terms are those of the whole batch, in the order of the parameters' names."""
    total = loss.total([term.counts() for term in loss.terms])
    parameters = dict(sorted(model.named_parameters()))
    found = torch.autograd.grad(total, list(parameters.values()), retain_graph=True)
    return torch.cat([each.flatten() for each in found])


@pytest.mark.parametrize("packed", [False, True], ids=["each row alone", "all rows in one sequence"])
def test_a_gradient_is_that_of_a_plain_forward_pass(whole: Gradients, packed: bool) -> None:
    batch, found = make_batch(), dict[str, torch.Tensor]()
    for kind in (Policy, Critic):
        model, _ = trained(kind)
        read = Read(read_packed(model, batch.rollout) if packed else read_alone(model, batch.rollout), batch.rollout)
        for case in (each for each in CASES if each.model is kind):
            found[case.name] = gradient(model, case.of(batch)(kind(read)))
    assert apart(found, whole) == {}


class Read:
    """A handle that gives what was read of one rollout's rows, whichever way: logits [tokens, V] of each row."""

    version, ranks = 0, SingleRank()

    def __init__(self, logits: Logits, rollout: Rollout) -> None:
        self.rows, self.stats = rollout.tokens.data, dict[str, Logits]()
        tokens = [row[:n] for row, n in zip(rollout.tokens.data, rollout.lengths.data.tolist(), strict=True)]
        if logits[0].shape[-1] == 1:
            self.stats["values"] = [each[:, 0] for each in logits]
            return
        likely = [torch.log_softmax(each / TEMPERATURE, -1) for each in logits]
        self.stats["logprobs"] = [each.gather(1, row[:, None])[:, 0] for each, row in zip(likely, tokens, strict=True)]
        self.stats["entropy"] = [-(each.exp() * each).sum(-1) for each in likely]

    def token_stats(self, rows: ResponseRows, wanted: tuple[str, ...]) -> TokenStats:
        assert rows.tokens is self.rows, "it has read one rollout"
        pad = torch.nn.utils.rnn.pad_sequence
        return TokenStats(**{name: pad(self.stats[name], batch_first=True) for name in wanted})


def texts(rollout: Rollout) -> list[tuple[list[int], int]]:
    """Return the tokens of each row, and how many of them are its context."""
    responses = zip(rollout.tokens.data.tolist(), rollout.lengths.data.tolist(), strict=True)
    pairs = zip(rollout.context.data.to_pylist(), responses, strict=True)
    return [([*context, *row[:n]], len(context)) for context, (row, n) in pairs]


def read_alone(model: Any, rollout: Rollout) -> Logits:
    """Read each row by itself. What is said of a token stands where the token before it is read."""
    return [model(input_ids=torch.tensor([ids])).logits[0, start - 1 : -1] for ids, start in texts(rollout)]


def read_packed(model: Any, rollout: Rollout) -> Logits:
    """Read all rows as one sequence, in which each begins at position 0 and sees only itself."""
    rows = texts(rollout)
    sizes = [len(ids) for ids, _ in rows]
    row = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(sizes))
    place = torch.cat([torch.arange(size) for size in sizes])
    seen = (row[:, None] == row[None]) & (place[:, None] >= place[None])
    mask = torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, torch.finfo(torch.float64).min)[None, None]
    ids = torch.tensor([[token for each, _ in rows for token in each]])
    logits = model(input_ids=ids, position_ids=place[None], attention_mask=mask).logits[0]
    return [each[start - 1 : -1] for each, (_, start) in zip(logits.split(sizes), rows, strict=True)]


# ------------------------------------------------------------------------------------------- what reads all rows


def whole_ops() -> dict[str, Op]:
    """Return every node of ours that says that it reads all rows together, by name."""
    ops = {name: op_of(getattr(nodes, name)) for name in nodes.__all__}
    return {name: op for name, op in ops.items() if op is not None and not op.separable}


REQUIRED: Mapping[str, Mapping[str, Any]] = {"normalized_weights": {"level": "token"}}


def bridge(taken: type[Value], given: type[Value]) -> Callable[..., Any]:
    """Make a node from any type to any other."""

    def made(value: Any) -> Any:
        raise NotImplementedError

    made.__annotations__ |= {"value": taken, "return": given}
    return node(made)


def inputs_of(op: Op, rollout: Rollout, source: Value, beta: KLWeight) -> dict[str, Any]:
    """Return what an op takes: of the rollout what it has, the rest made of `source`."""
    have = dict[type[Value], Value]({Mask: rollout.mask, Group: rollout.group, Responses: rollout, KLWeight: beta})
    if isinstance(source, Rollout):
        have[LogProbs] = rollout.logprobs
    ports = [port for port in op.ports if not port.optional]
    made = {each: bridge(type(source), each)(source) for each in {port.value_type for port in ports} - have.keys()}
    return {port.name: (have | made)[port.value_type] for port in ports}


@pytest.mark.parametrize("name", whole_ops())
def test_what_reads_all_rows_is_refused_in_a_loss(name: str) -> None:
    op, made = whole_ops()[name], getattr(nodes, name)

    @node
    def spent(mask: Mask, *, of: Value) -> Loss:
        raise NotImplementedError

    @flow
    def whole(prompts: Prompts, policy: Policy, beta: KLWeight) -> Policy:
        rollout = generate(policy, prompts)

        def loss(pi: Policy) -> Loss:
            inputs = inputs_of(op, rollout, logprobs(pi, rollout), beta)
            return spent(rollout.mask, of=made(**inputs, **REQUIRED.get(name, {})))

        return update(policy, loss)

    with pytest.raises(
        LawError, match=rf"^\S+ {name} (reads all rows together|uses random numbers|has effects).* `loss`"
    ):
        whole.graph()


@pytest.mark.parametrize("name", whole_ops())
def test_what_reads_all_rows_runs_once_for_all_ranks(name: str) -> None:
    op, made = whole_ops()[name], getattr(nodes, name)

    def whole(prompts: Prompts, policy: Policy, beta: KLWeight) -> Any:
        rollout = generate(policy, prompts)
        return made(**inputs_of(op, rollout, rollout, beta), **REQUIRED.get(name, {}))

    whole.__annotations__ |= {"return": op.returns[0]}
    program = on_two_ranks(compile_graph(flow(whole).graph()))
    assert {task.place for task in program.tasks if isinstance(task, Run) and task.role} == {"all"}
    found = [task for task in program.tasks if isinstance(task, Run) and any(name in each for each in task.nodes)]
    assert [task.place for task in found] == [HOST]


def on_two_ranks(graph: Graph) -> Program:
    """Lower a graph with every model copied to two devices."""
    cpu = Device(kind="cpu", memory_bytes=2**30)
    plan = Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=Cluster(nodes=(Machine(name="laptop", devices=(cpu, cpu), host_memory_bytes=2**31, cores=2),)),
        pools=(Pool(name="all", devices=(("laptop", 0), ("laptop", 1))),),
        placed=tuple(
            PlacedRole(role=role.name, pool="all", engine="local", layout=Layout(data=2)) for role in roles(graph)
        ),
    )
    return lower(graph, plan)


@node
def first_token(rollout: Rollout) -> Scores:
    """Score a response by its first token."""
    return Scores(rollout.tokens.data[:, 0].double() % 3)


@node
def by_place(rollout: Rollout) -> ImportanceWeights:
    """Weigh tokens by what they are."""
    return ImportanceWeights(rollout.tokens.data.double() * rollout.mask.data)


@flow
def reading_all(
    prompts: Prompts, policy: Policy
) -> tuple[Advantages, TokenAdvantages, Chosen, Chosen, ImportanceWeights]:
    rollout = generate(policy, prompts, n=3)
    gains = gpg_advantages(first_token(rollout), rollout.group)
    return (
        gains,
        whiten(gains, rollout.mask),
        top_covariance(rollout.logprobs, gains, rollout.mask, fraction=0.2),
        high_covariance(rollout.logprobs, gains, rollout.mask, ids=rollout, low=-1.0, fraction=0.2),
        normalized_weights(by_place(rollout), rollout.mask, level="sequence"),
    )


def test_what_reads_all_rows_gives_the_same_of_the_rows_of_two_ranks_as_of_all_at_once(tmp_path: Path) -> None:
    graph = compile_graph(reading_all.graph())
    flows = Flows((to_json(graph),), "")
    table = identified(make_batch().rollout)
    tasks = [task for task in on_two_ranks(graph).tasks if isinstance(task, Run) and task.place == HOST]
    results = []
    for parts in ([table], [rows_of_rank(table, rank, 2, "rollout") for rank in range(2)]):
        have = {"policy.generate": parts}
        for task in tasks:
            shards = [(len(have[name]), False) for name in task.reads]
            tables = [each for name in task.reads for each in have[name]]
            *given, seen = run_on_host(flows, tmp_path / "gone", 0, task, {}, Key(1), shards, *tables)
            assert isinstance(seen, Observations)
            have |= {name: [each] for name, each in zip(results_of(graph, task), given, strict=True)}
        results.append({name: each for name, each in have.items() if name != "policy.generate"})
    assert len(results[0]) >= 5
    for name, (one,) in results[0].items():
        (other,) = results[1][name]
        assert one.equals(other.select(one.column_names)), name


def identified(rollout: Rollout) -> Any:
    table = to_table(rollout)
    for name, column in ids_of(rollout).items():
        table = table.append_column(name, [column])
    assert set(IDS) <= set(table.column_names)
    return table


def results_of(graph: Graph, task: Run) -> list[str]:
    """Name the results that leave a task: of nodes with one result each."""
    return [name for name in task.nodes if name not in task.inner]
