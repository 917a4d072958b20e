"""Groups that are handed out as they finish: whatever finishes first, the result is that of the whole batch."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from flowgraph import Graph, Loss, Metric, flow, node
from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.analysis.roles import roles
from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import PlacedRole, Plan, Pool
from flowgraph.engines.local.model import LocalModel
from flowgraph.language import Key
from flowgraph.language.handle import Completion, SampleRequest
from flowgraph.language.values import Measure
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Home, Program
from flowgraph.passes import compile_graph
from flowgraph.runtime.batch import to_table
from flowgraph.runtime.interpreter import Executor
from flowgraph.runtime.local import InProcess
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
