"""Groups in chunks, as programs: what reads them, what waits, and the laws that refuse every program that loses one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from examples.grpo import grpo
from examples.ppo import ppo
from flowgraph import Graph
from flowgraph.analysis.placed_graph import check_plan
from flowgraph.app.planning.overlap import with_chunks
from flowgraph.cluster.plan import Plan
from flowgraph.errors import LawError, PlanError
from flowgraph.flows.flow_files import flows_in, shipped_files
from flowgraph.lowering.check_program import check_program
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import IDS_ONLY, Join, Run, Transfer
from flowgraph.lowering.stream_groups import in_one_batch
from flowgraph.lowering.task_names import task_name, without_chunk
from flowgraph.passes import compile_graph
from flowgraph.serialize.program import program_from_json, program_to_json
from flowgraph.serialize.program_text import program_text
from tests.unit.flowgraph.runtime.test_streaming import plan_of

GRPO = compile_graph(grpo.graph())
SHIPPED = {name: flow for path in shipped_files() for name, flow in flows_in(path).items()}
REFUSED = frozenset({"dapo"})


def test_a_plan_without_chunks_is_the_program_of_before() -> None:
    plan = plan_of(GRPO)
    assert "chunks" not in plan.to_json()
    program = lower(GRPO, plan)
    assert not any(isinstance(task, Join) for task in program.tasks)
    assert not {'"chunk"', '"streamed"'} & {*program_to_json(program).replace(":", " ").split()}


def test_rules_and_references_read_chunks_and_arithmetic_waits() -> None:
    program = lower(GRPO, plan_of(GRPO, 2))
    streamed = {task.nodes for task in program.tasks if isinstance(task, Run) and task.streamed}
    assert streamed == {("score",), ("ref.logprobs",)}
    joins = {task.value: task.like for task in program.tasks if isinstance(task, Join)}
    assert joins == {"score": "policy.generate", "ref.logprobs": "policy.generate"}
    text = program_text(program)
    assert "run       policy.generate 2/2" in text
    assert "2 chunks, in the order of policy.generate" in text
    assert program_text(program_from_json(program_to_json(program))) == text


def test_without_its_chunks_a_program_runs_the_same_nodes() -> None:
    program = lower(GRPO, plan_of(GRPO, 3))
    names = {without_chunk(task_name(task)) for task in program.tasks if isinstance(task, Run)}
    batch = in_one_batch(program)
    assert {task_name(task) for task in batch.tasks if isinstance(task, Run)} == names
    assert all(task.chunk is None for task in batch.tasks if isinstance(task, Run | Transfer))
    assert all(task.parts != IDS_ONLY for task in batch.tasks if isinstance(task, Transfer))


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_every_shipped_flow_lowers_with_chunks_or_says_why_not(name: str) -> None:
    graph = compile_graph(SHIPPED[name].graph())
    plan = plan_of(graph, 4)
    if name in REFUSED:
        with pytest.raises(PlanError, match="chunks=4, but"):
            lower(graph, plan)
    else:
        check_program(lower(graph, plan))


def refused(graph: Graph, plan: Plan) -> str:
    with pytest.raises(PlanError) as error:
        lower(graph, plan)
    return f"{error.value.what} | {error.value.hint}"


def test_chunks_that_nothing_can_read_are_refused_with_the_reason() -> None:
    plan = plan_of(GRPO, 2, infer="samples")
    graph = compile_graph(ppo.graph())
    assert lower(GRPO, plan).tasks, "the rule still reads them on the host"
    plan = plan_of(graph, 2).model_copy(update={"flow": graph.name})
    placed = tuple(row.model_copy(update={"chunks": 2 if row.role == "ref.infer" else 1}) for row in plan.placed)
    assert "ref.infer: chunks=2, but it samples nothing" in refused(graph, plan.model_copy(update={"placed": placed}))


def test_an_engine_that_returns_all_responses_at_once_is_refused() -> None:
    plan = plan_of(GRPO, 2)
    placed = tuple(row.model_copy(update={"engine": "trtllm"}) if row.chunks > 1 else row for row in plan.placed)
    with pytest.raises(PlanError):
        check_plan(plan.model_copy(update={"placed": placed}), GRPO)


@pytest.mark.parametrize("index", range(30))
def test_a_program_that_lacks_any_task_of_a_chunk_is_refused(index: int) -> None:
    program = lower(GRPO, plan_of(GRPO, 3))
    of_chunks = [
        place
        for place, task in enumerate(program.tasks)
        if isinstance(task, Join) or (isinstance(task, Run | Transfer) and task.chunk is not None)
    ]
    if index < len(of_chunks):
        with pytest.raises((LawError, PlanError)):
            check_program(program.without(of_chunks[index]))


def test_a_join_in_another_order_is_refused() -> None:
    program = lower(GRPO, plan_of(GRPO, 2))
    tasks = tuple(replace(task, like="score") if isinstance(task, Join) else task for task in program.tasks)
    with pytest.raises((LawError, PlanError)):
        check_program(replace(program, tasks=tasks))


def test_a_request_for_chunks_changes_the_roles_that_sample() -> None:
    plan = with_chunks(plan_of(GRPO), GRPO, 4)
    assert {row.role: row.chunks for row in plan.placed if row.chunks > 1} == {"policy.sample": 4}
    assert Plan.from_json(plan.to_json()) == plan
