"""Groups that are handed out as they finish: whatever finishes first, the result is that of the whole batch."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowgraph import Graph, Loss, Metric, flow, node
from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.analysis.roles import roles
from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import PlacedRole, Plan, Pool
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import LawError
from flowgraph.language import Key
from flowgraph.language.hand_out import HandOut
from flowgraph.language.handle import Completion, SampleRequest
from flowgraph.language.values import Measure
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Home, Program
from flowgraph.passes import compile_graph
from flowgraph.runtime import join_chunks
from flowgraph.runtime.batch import to_table
from flowgraph.runtime.interpreter import Executor
from flowgraph.runtime.join_chunks import joined_table, joined_value, with_terms
from flowgraph.runtime.local import InProcess
from flowgraph.runtime.places import RowSource, StartState
from flowgraph.runtime.row_identity import StoredValue, with_ids
from nodes import (
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

Tiny = Callable[..., LocalModel]
SEED, STEPS, BATCH = 7, 3, 6


@node(kind="score", pure=False, metrics=(Metric("uneven"),))
def uneven(rollout: Rollout) -> Scores:
    """Score responses by numbers whose sum depends on the order of its terms."""
    scores = (rollout.tokens.data[:, 0] % 7).float() / 3 + 0.1 * rollout.lengths.data
    result = Scores(scores, [Measure.of_rows("uneven", scores)])
    result.extras = tuple(f'{{"first": {token}}}' for token in rollout.tokens.data[:, 0].tolist())
    return result


@flow
def streams(prompts: Prompts, policy: Policy, ref: Reference) -> tuple[Policy, Rollout, Scores]:
    """Train with a rule and a reference, both of which can read finished groups."""
    rollout = generate(policy, prompts, n=3, max_tokens=6)
    scores = uneven(rollout)
    advantages, far = group_normalize(scores, rollout.group), logprobs(ref, rollout)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        return clipped(new, advantages, rollout.mask, old=rollout.logprobs, eps=0.2) + kl_k3(new, rollout.mask, ref=far)

    return update(policy, loss, lr=1e-1, optimizer="sgd"), rollout, scores


def plan_of(graph: Graph, chunks: int = 1, *, infer: str = "apart") -> Plan:
    """Sample in a pool of its own, in so many chunks; what reads rows has another, and what trains a third."""
    cpu = Device(kind="cpu", memory_bytes=2**30)
    laptop = Machine(name="laptop", devices=(cpu, cpu, cpu), host_memory_bytes=2**33, cores=3)
    names = {"sample": "samples", "infer": infer, "train": "trains"}
    trained = {role.param for role in roles(graph) if role.use == "train"}
    placed = [
        PlacedRole(
            role=role.name,
            pool=names[role.use],
            engine="local",
            chunks=chunks if role.use == "sample" and role.param in trained else 1,
        )
        for role in roles(graph)
    ]
    pools = (Pool(name=name, devices=(("laptop", i),)) for i, name in enumerate(("samples", "apart", "trains")))
    return Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=Cluster(nodes=(laptop,)),
        pools=tuple(pools),
        placed=tuple(placed),
    )


def program_of(chunks: int = 1) -> Program:
    graph = compile_graph(streams.graph())
    return lower(graph, plan_of(graph, chunks))


@dataclass(eq=False)
class Shuffled(LocalModel):
    """A model whose samples end in a random order."""

    ends_in: random.Random = field(default_factory=random.Random)

    async def sample(self, request: SampleRequest) -> Completion:
        completion, turns = await super().sample(request), self.ends_in.randrange(40)
        for _ in range(turns):
            await asyncio.sleep(0)
        return completion


def shuffled(model: LocalModel, seed: int) -> Shuffled:
    return Shuffled(model.model, model.raw_tokenizer, ends_in=random.Random(seed))


def outcome(program: Program, handles: Mapping[Home, LocalModel], rows: pa.Table, steps: int = STEPS) -> dict[str, Any]:
    """Run steps, and return the bits of what they leave: weights, recorded tables and metrics."""
    executor, sources = Executor(InProcess(handles)), {"prompts": PromptSource(rows, BATCH, SEED)}
    bits = dict[str, Any]()
    for step in range(steps):
        ran = executor.run(program, sources, Key(SEED, step), steps)
        bits |= {f"{step} {name}": to_table(item.value).to_pydict() for name, item in ran.items.items()}
        bits[f"{step} metrics"] = ran.observed.sums
    (home,) = program.trained
    return bits | {name: tensor.numpy().tobytes() for name, tensor in handles[home].weights().items()}


@pytest.fixture
def run(tiny: Tiny, digit_rows: pa.Table) -> Callable[..., dict[str, Any]]:
    def ran(chunks: int, seed: int = 0) -> dict[str, Any]:
        program = program_of(chunks)
        handles: dict[Home, LocalModel] = {
            home: shuffled(tiny(), seed) if home.pool == "samples" else tiny(trainable=home.param == "policy")
            for home in program.homes
        }
        return outcome(program, handles, digit_rows)

    return ran


@pytest.mark.parametrize("chunks", [2, 4, 6, 9])
def test_results_do_not_depend_on_chunks_or_on_what_finishes_first(
    run: Callable[..., dict[str, Any]], chunks: int
) -> None:
    whole = run(1)
    for seed in range(3):
        streamed = run(chunks, seed)
        assert streamed.keys() == whole.keys()
        for name, value in whole.items():
            assert streamed[name] == value, name


def test_rows_at_the_wrong_place_are_refused_or_change_the_result(
    run: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutation: a join that keeps the order of finishing gives other bits, one that loses a row an error."""
    monkeypatch.setattr(join_chunks, "order_of", lambda ids, *_: np.arange(len(ids["#group"])))
    with pytest.raises(AssertionError):
        whole, streamed = run(1), run(3, 1)
        assert whole == streamed


def rows_of(groups: list[int], scores: list[float]) -> StoredValue:
    ids = np.array(groups, dtype=np.int64)
    return StoredValue(Scores(torch.tensor(scores)), {"#group": ids, "#sample": np.zeros_like(ids)})


@pytest.mark.parametrize(
    ("chunks", "why"),
    [
        ([[1, 2], [2]], r"two rows of its chunks have the ids \(2, 0\)"),
        ([[1], [3]], r"no chunk has the row with the ids \(2, 0\)"),
        ([[1, 2], [3, 4]], "its chunks have more rows"),
    ],
)
def test_a_join_refuses_rows_that_are_not_those_of_the_batch(chunks: list[list[int]], why: str) -> None:
    batch = rows_of([1, 2, 3], [0.0, 0.0, 0.0])
    with pytest.raises(LawError, match=f"the rows of `score` are not those of `policy.generate`: {why}"):
        joined_value([rows_of(groups, [0.0] * len(groups)) for groups in chunks], batch, "score", "policy.generate")


@given(st.permutations(range(9)), st.lists(st.integers(0, 9), max_size=4), st.floats(-1, 1, width=32))
def test_any_cut_in_any_order_is_put_back(order: list[int], cuts: list[int], scale: float) -> None:
    scores = [scale * group / 3 for group in range(9)]
    starts, stops = [0, *sorted(cuts)], [*sorted(cuts), 9]
    chunks = list[StoredValue]()
    for start, stop in zip(starts, stops, strict=True):
        groups = sorted(order[start:stop])
        part = rows_of(groups, [scores[group] for group in groups])
        terms = {("score", "reward"): Measure.of_rows("reward", part.value.data)}
        chunks.append(replace(part, terms=terms) if groups else part)
    whole = rows_of(list(range(9)), scores)
    joined, observed = joined_value(chunks, whole, "score", "policy.generate")
    assert joined.value.data.equal(whole.value.data)
    assert observed.sums["score", "reward"] == (float(whole.value.data.sum()), 9)
    tables = [
        [with_terms(with_ids(to_table(chunk.value), chunk.ids), chunk.terms)] if len(chunk) else [pa.table({})]
        for chunk in chunks
    ]
    like = [with_ids(to_table(whole.value), whole.ids)]
    table, observed = joined_table(tables, like, "score", "policy.generate")
    assert table.equals(like[0])
    assert observed.sums["score", "reward"] == (float(whole.value.data.sum()), 9)


def test_recorded_rollouts_are_read_as_a_batch(tiny: Tiny, digit_rows: pa.Table) -> None:
    program = program_of(3)
    handles = {home: tiny(trainable=home in program.trained) for home in program.homes}
    sources: dict[str, RowSource] = {"prompts": PromptSource(digit_rows, BATCH, SEED)}
    first = Executor(InProcess(handles)).run(program, sources, Key(SEED, 0), 1)
    recorded = first.items["policy.generate"].value
    again = Executor(InProcess({home: tiny(trainable=home in program.trained) for home in program.homes}))
    ran = again.run(program, sources | {"policy.generate": StartState(recorded)}, Key(SEED, 0), 1)
    assert ran.items["uneven"].value.data.equal(first.items["uneven"].value.data)


def test_hand_out_gives_each_chunk_once_all_its_groups_have_ended() -> None:
    given_chunks = list[tuple[int, Any]]()
    hand_out = HandOut(3, lambda index, rows: given_chunks.append((index, rows)))
    hand_out.begin([7, 7, 8, 8, 9, 9, 5, 5])
    done = Completion((1,), (0.0,), True, ((0, 0),))
    for place in (6, 0, 7, 2, 1, 5, 4, 3):
        hand_out.ended(place, done, lambda places, _: list(places))  # type: ignore[arg-type, return-value]
    assert given_chunks == [(0, [0, 1, 6, 7]), (1, [4, 5]), (2, [2, 3])]
