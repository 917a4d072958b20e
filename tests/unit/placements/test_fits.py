"""Too little memory refuses, and says the smallest changes that fit."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph import Graph
from flowgraph.errors import ResourceError
from flowgraph.machine import laptop
from flowgraph.models import ModelShape
from placements import Workload, check_fits, forecast, overflow, search
from placements.fits import smallest_changes

MIB = 2**20
# The sizes of SmolLM2-135M.
SHAPE = ModelShape(
    parameters=134_515_008,
    hidden=576,
    layers=30,
    heads=9,
    kv_heads=3,
    head_dim=64,
    intermediate=1536,
    vocabulary=49152,
    tied=True,
)
SHAPES = {"policy": SHAPE, "ref": SHAPE}
WORK = Workload(8, 64)


def refusal(graph: Graph, memory_mib: int) -> str:
    plan = search("colocated", graph, laptop(1, memory_mib * MIB), SHAPES, WORK).plan
    with pytest.raises(ResourceError) as caught:
        check_fits(plan, graph, SHAPES, WORK)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return str(caught.value)


def worst_bytes(graph: Graph, workload: Workload = WORK) -> int:
    found = search("colocated", graph, laptop(1, 2**40), SHAPES, workload).plan.forecast[0].worst
    assert found is not None
    return found.memory_bytes


def test_what_fits_to_the_last_byte_passes_and_one_byte_less_does_not(graph: Graph) -> None:
    need = worst_bytes(graph)
    check_fits(search("colocated", graph, laptop(1, need), SHAPES, WORK).plan, graph, SHAPES, WORK)
    found = overflow(search("colocated", graph, laptop(1, need - 1), SHAPES, WORK).plan)
    assert found is not None
    assert (found.pool, found.peak.role, found.peak.phase) == ("all", "policy.train", "update")
    assert found.over_bytes == 1


def test_a_single_change_is_offered_where_one_is_enough(graph: Graph) -> None:
    assert refusal(graph, 24 * 1024).splitlines() == [
        (
            "no placement for grpo on this machine: policy.train needs 40.3 GiB in update, "
            "16.3 GiB more than the 24.0 GiB that its device has"
        ),
        (
            "    weights 513.1 MiB · gradients 513.1 MiB · optimizer 1.0 GiB · heap 8.0 GiB · activations 19.1 GiB"
            " · logits 9.6 GiB · working 652.0 MiB"
        ),
        "    beside it: ref.infer weights 513.1 MiB · the process 448.0 MiB · policy.sample rollout 2.0 MiB",
        (
            "  hint: smallest changes that fit: policy.update.micro_batch_tokens=8192 · policy.generate.n=2"
            " · policy.generate.max_tokens=64 · batch=2"
        ),
    ]


def test_changes_that_leave_results_alone_are_joined_where_none_is_enough(graph: Graph) -> None:
    assert refusal(graph, 5 * 1024).splitlines()[-1] == (
        "  hint: smallest changes that fit: policy.update.micro_batch_tokens=512 and forward_tokens=4096"
    )


def test_what_no_batch_makes_fit_says_what_the_models_take(graph: Graph) -> None:
    assert refusal(graph, 2 * 1024).splitlines()[-1] == (
        "  hint: no smaller batch fits: models, gradients and optimizer alone take 2.5 GiB"
    )


def test_each_change_that_is_offered_fits_and_twice_as_much_does_not(graph: Graph) -> None:
    room = 24 * 2**30
    plan = search("colocated", graph, laptop(1, room), SHAPES, WORK).plan
    offered = [each for each in smallest_changes(plan, graph, SHAPES, WORK) if each.startswith("batch=")]
    prompts = int(offered[0].partition("=")[2])
    assert worst_bytes(graph, Workload(prompts, 64)) <= room < worst_bytes(graph, Workload(2 * prompts, 64))


@given(
    memory=st.tuples(st.integers(1, 2**37), st.integers(1, 2**37)),
    prompts=st.integers(1, 64),
    tokens=st.integers(1, 512),
)
def test_more_memory_never_turns_fit_into_no_fit(
    graph: Graph, memory: tuple[int, int], prompts: int, tokens: int
) -> None:
    work = Workload(prompts, tokens)
    less, more = (overflow(search("colocated", graph, laptop(1, each), SHAPES, work).plan) for each in sorted(memory))
    assert more is None or less is not None


@given(st.integers(1, 32), st.integers(1, 512))
def test_one_prompt_more_never_needs_less_but_for_the_heap(graph: Graph, prompts: int, tokens: int) -> None:
    """What the C library keeps shrinks when blocks grow beyond what it keeps; all else only grows."""

    def needed(workload: Workload) -> int:
        plan = search("colocated", graph, laptop(1, 2**40), SHAPES, workload).plan
        needs = forecast(plan, graph, SHAPES, workload)
        return sum(need.needed_bytes for need in needs if need.part != "heap")

    assert needed(Workload(prompts, tokens)) <= needed(Workload(prompts + 1, tokens))
