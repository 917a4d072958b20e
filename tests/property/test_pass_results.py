"""Each pass over graphs keeps the results: random flows are run as they are written, and after each pass and all.

Lowering passes are compared in `test_lowering_passes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowgraph import Graph, Loss, Metric, flow, node
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import LawError
from flowgraph.language import Key, Kind, Linear, Measure
from flowgraph.language.graph import rewrite
from flowgraph.language.rows import leaves
from flowgraph.language.values import Group, Model, Value
from flowgraph.passes import named, simplified
from flowgraph.passes.count_masks import count_masks
from flowgraph.passes.dedupe_nodes import computation_of, dedupe_nodes
from flowgraph.passes.prune_nodes import prune_nodes
from nodes import Policy, Prompts, Reference, logprobs, update
from nodes.values import Columns, Rollout
from tests.property.fuzz_nodes import Coef, likely
from tests.property.random_flows import flow_of, random_program

Pass = Callable[[Graph], Graph]
Run = Callable[..., Any]

ALONE: Mapping[str, Pass] = {
    "dedupe_nodes": dedupe_nodes,
    "prune_nodes": prune_nodes,
    "count_masks": count_masks,
    "all of them": simplified,
    "all of them, twice": lambda graph: simplified(simplified(graph)),
    "turned around": lambda graph: dedupe_nodes(prune_nodes(count_masks(graph))),
}


def plain(value: Value) -> list[object]:
    """Return data that can be compared exactly: of a model its weights and version."""
    if isinstance(value, Model):
        return [value.version, *(each.detach().tolist() for each in value.handle.model.parameters())]
    return [
        each.data.tolist() if isinstance(each.data, torch.Tensor | pa.Array) else each.data for each in leaves([value])
    ]


# ------------------------------------------------------------------------------------------- flows without a model


class Level(Linear):
    kind = Kind.ROW


@node(metrics=(Metric("mean"),))
def join(a: Level, *, b: Level, weight: float = 1.0) -> Level:
    """Add with a weight, and say the mean."""
    data = a.data + weight * b.data
    return Level(data, [Measure("mean", float(data.sum()), len(data))])


@node
def pair(a: Level) -> tuple[Level, Level]:
    """Return two results."""
    return Level(a.data - 1.0), Level(a.data * 0.5)


@node(pure=False)
def noted(a: Level, *, log: str = "x") -> Level:
    """Have an effect: never one with another, but gone where nothing reads it."""
    CALLED.append(log)
    return Level(a.data + 0.25)


CALLED = list[str]()

STEP = st.tuples(
    st.sampled_from(["join", "pair", "sum", "zero", "noted", "lost", "less"]), st.integers(0, 9), st.integers(0, 9)
)
STEPS = st.lists(STEP, min_size=1, max_size=20)


def written(steps: list[tuple[str, int, int]]) -> Graph:
    """Describe a flow of steps that write the same things again and again, with factors of 0 and lost calls."""

    @flow
    def random_steps(start: Level, other: Level) -> tuple[Level, Level]:
        made = [start, other]
        for what, left, right in steps:
            a, b = made[left % len(made)], made[right % len(made)]
            if what == "join":
                made.append(join(a, b=b, weight=float(left % 3)))
            elif what == "pair":
                made.extend(pair(a))
            elif what == "sum":
                made.append(2.0 * a + b)
            elif what == "zero":
                made.append([a + 0.0 * b, 0.0 * a + b, 0 * join(a, b=b) + -0.0 * b][left % 3])
            elif what == "less":
                made.append(a - 0.0 * noted(b))
            elif what == "noted":
                made.append(noted(a, log=str(right)))
            else:
                join(noted(b), b=a)
        return made[-1], made[len(made) // 2]

    return named(random_steps.graph())


START = {"start": [0.5, -1.0, 3.0], "other": [2.0, 0.0, -0.5]}


def levels() -> dict[str, Level]:
    """Return real values for the two parameters."""
    return {name: Level(torch.tensor(data, dtype=torch.float64)) for name, data in START.items()}


@dataclass(frozen=True)
class Result:
    """What a graph gave: its outputs, and what each node reported."""

    outputs: list[list[object]]
    metrics: dict[tuple[str, str], tuple[float, float]]


def result(run_graph: Run, graph: Graph, arguments: Mapping[str, Any]) -> Result:
    """Run a graph's nodes once each."""
    ran = run_graph(graph, arguments, Key(3, 1))
    return Result([plain(each) for each in ran.outputs], dict(ran.observed.sums))


def compare(before: Result, after: Result, graph: Graph) -> None:
    """Compare outputs exactly, and the metrics of what is left."""
    assert after.outputs == before.outputs
    left = {each.name for each in graph.all_nodes}
    assert after.metrics == {name: told for name, told in before.metrics.items() if name[0] in left}


def gone_is_told(before: Graph, after: Graph) -> None:
    """Find each node that is gone again: reported as pruned, or equal to one that is left."""
    left = {each.stamp for each in after.all_nodes}
    pruned = prune_nodes(before)
    kept = {each.stamp for each in pruned.all_nodes}
    told = Counter(each.partition("  # ")[0] for each in after.pruned)
    for each in before.all_nodes:
        if each.stamp not in kept and each.op.name != "add":
            assert told[each.name], each.name
    assert left == {each.stamp for each in dedupe_nodes(pruned).all_nodes}
    lost = Counter(each.op.name for each in before.dropped)
    assert all(told[name] >= count for name, count in lost.items())
    assert not after.dropped


@given(STEPS)
def test_each_pass_keeps_the_outputs_of_a_flow_and_the_metrics_of_what_is_left(
    run_graph: Run, steps: list[tuple[str, int, int]]
) -> None:
    graph = written(steps)
    before = result(run_graph, graph, levels())
    for apply in ALONE.values():
        after = apply(graph)
        compare(before, result(run_graph, after, levels()), after)


@given(STEPS)
def test_what_passes_leave_out_is_reported_or_equals_what_is_left(steps: list[tuple[str, int, int]]) -> None:
    graph = written(steps)
    gone_is_told(graph, simplified(graph))


@given(STEPS)
def test_no_two_nodes_that_are_left_compute_the_same_and_effects_are_never_merged(
    run_graph: Run, steps: list[tuple[str, int, int]]
) -> None:
    graph = written(steps)
    after = simplified(graph)
    assert all(count == 1 for what, count in Counter(map(computation_of, after.all_nodes)).items() if what is not None)
    CALLED.clear()
    result(run_graph, dedupe_nodes(graph), levels())
    merged = list(CALLED)
    CALLED.clear()
    result(run_graph, graph, levels())
    assert merged == CALLED


def test_what_pruning_makes_equal_is_one_node(run_graph: Run) -> None:
    @flow
    def twins(start: Level, other: Level) -> tuple[Level, Level]:
        return join(start + 0.0 * other, b=other), join(start, b=other)

    graph = named(twins.graph())
    after = simplified(graph)
    assert [each.name for each in after.nodes] == ["join"]
    assert result(run_graph, after, levels()).outputs == result(run_graph, graph, levels()).outputs


def test_settings_that_differ_keep_nodes_apart(run_graph: Run) -> None:
    @flow
    def near(start: Level, other: Level) -> tuple[Level, Level]:
        return join(start, b=other, weight=0.1) + join(start, b=other, weight=0.1 + 2e-17), join(
            start, b=other, weight=0.3
        )

    graph = named(near.graph())
    assert len(dedupe_nodes(graph).nodes) == 4
    compare(result(run_graph, graph, levels()), result(run_graph, simplified(graph), levels()), simplified(graph))


# ------------------------------------------------------------------------------------------- flows with the tiny model


def arguments_of(graph: Graph, tiny: Callable[..., LocalModel], rows: pa.Table) -> dict[str, Any]:
    """Return real values: two prompts, models that nothing has trained, a number."""
    prompts = Prompts(group=Group(torch.tensor([3, 7])), columns=Columns(rows.take([3, 7])))
    real = {Prompts: lambda: prompts, Coef: lambda: Coef(0.5), Policy: lambda: Policy(tiny(trainable=True))}
    real[Reference] = lambda: Reference(tiny())
    return {param.name: real[param.type]() for param in graph.params}


def test_each_pass_keeps_what_a_flow_trains(
    run_graph: Run, tiny: Callable[..., LocalModel], digit_rows: pa.Table, seeds: Callable[[int, int], range]
) -> None:
    for seed in seeds(24, 480)[::4]:
        keeps_what_it_trains(run_graph, tiny, digit_rows, seed)


def keeps_what_it_trains(run_graph: Run, tiny: Callable[..., LocalModel], digit_rows: pa.Table, seed: int) -> None:
    graph = named(flow_of(random_program(seed, runs=True)).graph())
    counts = count_masks(graph)  # no update runs without
    before = result(run_graph, counts, arguments_of(graph, tiny, digit_rows))
    for apply in (dedupe_nodes, prune_nodes, simplified):
        after = apply(counts)
        compare(before, result(run_graph, after, arguments_of(graph, tiny, digit_rows)), after)


def test_a_loss_whose_masks_nothing_counts_is_refused(
    run_graph: Run, tiny: Callable[..., LocalModel], make_rollout: Callable[..., Rollout]
) -> None:
    @flow
    def one(policy: Policy, rollout: Rollout) -> Policy:
        def loss(pi: Policy) -> Loss:
            return likely(logprobs(pi, rollout), rollout.mask)

        return update(policy, loss, lr=0.1)

    graph = simplified(named(one.graph()))
    arguments = {"policy": Policy(tiny(trainable=True)), "rollout": make_rollout([2, 1])}
    mutant = rewrite(
        graph,
        lambda each: replace(each, regions=tuple((port, replace(region, counts=())) for port, region in each.regions)),
    )
    with pytest.raises(LawError, match="a mask that it does not count"):
        run_graph(mutant, arguments)
    assert run_graph(graph, {**arguments, "policy": Policy(tiny(trainable=True))}).outputs[0].version == 1
