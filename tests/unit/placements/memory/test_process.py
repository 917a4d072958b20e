"""What a role holds in a process on a CPU device: each formula written a second time, on sizes of one digit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from flowgraph.analysis.roles import Role
from flowgraph.cluster.plan import Layout, RoleSettings
from flowgraph.engines.forward_pass.forward import forward_stats
from flowgraph.engines.forward_pass.packing_probe import choose_packing
from flowgraph.language.handle import ResponseRows
from flowgraph.models.sizes import ModelShape, shape_of
from placements.hardware.topology import classes
from placements.memory.footprint import Bytes, MemoryConstants
from placements.memory.process import (
    ProcessFootprint,
    RowsPass,
    gathered_bytes,
    kept_blocks,
    packed_pass,
    padded_pass,
    process_footprint,
    sampled_pass,
    shard_bytes,
)
from placements.search.search import find
from placements.step.role_costs import DeviceGroup, footprint
from placements.workload.lengths import LengthDistribution
from placements.workload.node_workload import NodeWorkload
from tests.unit.placements.small_problems import cluster_of, problem_of

MIB, GIB = 2**20, 2**30
SHAPE = ModelShape(
    parameters=100,
    hidden=2,
    layers=1,
    heads=1,
    kv_heads=1,
    head_dim=2,
    intermediate=3,
    vocabulary=5,
    tied=True,
)
RETURNED = MemoryConstants(kept_block_bytes=0)
"""A C library that gives every block back."""
KEEPING = MemoryConstants(kept_block_bytes=2**40, fragmented_share=0.5)
"""One that keeps them all, and finds half as much again too small to be used."""

# Two prompts of 6 tokens with two responses of 4 each: 4 rows of 10 tokens, 12 of contexts and 16 of responses.


def example(*, prompts: int, samples: int, prompt_tokens: int, response_tokens: int) -> NodeWorkload:
    """Return a load of an update whose rows are all alike."""
    role = Role("m.train", "m", "train", ("m.update",))
    lengths = LengthDistribution.fixed(prompt_tokens), LengthDistribution.fixed(response_tokens)
    return NodeWorkload("m.update", role, "update", 0, prompts, samples, *lengths)


LOAD = example(prompts=2, samples=2, prompt_tokens=6, response_tokens=4)
UPDATE = replace(LOAD, optimizer="adamw", responses=(("m.generate", 16),))
READ = replace(LOAD, phase="logprob", responses=(("m.generate", 16),))
DRAWN = replace(LOAD, phase="generate", responses=(("m.generate", 16),))

# In float32: of 28 tokens read 6 hidden widths, 3 of queries and results, 4 of the MLP; keys of contexts for each head;
# keys and values of 4 rows of 10 tokens; a mask of 4 rows of 4 by 10 tokens.
LAYER = 4 * 28 * (6 * 2 + 3 * 2 + 4 * 3) + 2 * 4 * 12 * 2 + 2 * 4 * 40 * 2 + 4 * 4 * 4 * 10
LAST = 3 * 4 * 28 * 2  # the last norm
LOGITS = 4 * 16 * 5  # one copy


def held(
    *loads: NodeWorkload,
    shape: ModelShape = SHAPE,
    layout: Layout | None = None,
    running: RoleSettings | None = None,
    constants: MemoryConstants = RETURNED,
    **parts: Any,
) -> ProcessFootprint:
    """Return what a role with these loads holds."""
    trains = any(load.phase == "update" for load in loads)
    told: dict[str, Any] = {"sample_rows": 256, "forward_tokens": 4096, "trains": trains, "context_bytes": 0}
    return process_footprint(
        shape, loads, layout or Layout(), running or RoleSettings(), constants=constants, **(told | parts)
    )


def working(*loads: NodeWorkload, **parts: Any) -> Bytes:
    """Return what comes on top in the phase of the last load."""
    return held(*loads, **parts).phases[loads[-1].phase]


# ------------------------------------------------------------------------------------------- what is always there


def test_weights_and_two_moments_are_there_throughout_and_each_token_of_a_response() -> None:
    found = held(UPDATE, context_bytes=7)
    assert found.resident == {"weights": 400, "optimizer": 800, "rollout": 128 * 16, "context": 7}
    assert found.resident == found.asleep
    assert (found.host, found.asleep_host) == ({}, {})


@pytest.mark.parametrize(
    ("loads", "parts"),
    [
        ((replace(UPDATE, optimizer="sgd"),), {"weights": 400, "rollout": 2048}),
        ((READ,), {"weights": 400, "rollout": 2048}),
        ((READ, UPDATE), {"weights": 400, "optimizer": 800, "rollout": 2048}),
        ((replace(READ, responses=(("a", 3), ("b", 5))), replace(UPDATE, responses=(("a", 4),))), 9 * 128),
    ],
    ids=["sgd", "read", "read and trained", "of two samplers"],
)
def test_plain_sgd_keeps_no_moments_and_responses_count_once_for_each_sampler(
    loads: Sequence[NodeWorkload], parts: dict[str, int] | int
) -> None:
    found = held(*loads).resident
    assert found == parts if isinstance(parts, dict) else found["rollout"] == parts


def test_full_sharding_cuts_weights_and_moments_and_data_ranks_share_responses() -> None:
    found = held(UPDATE, layout=Layout(data=3, sharding="full"))
    assert shard_bytes(100, Layout(data=3, sharding="full")) == 4 * 34  # of 100 numbers a third, rounded up
    assert found.resident == {"weights": 4 * 34, "optimizer": 2 * 4 * 34, "rollout": 128 * 6}
    copies = held(UPDATE, layout=Layout(data=4, replicas=2, sharding="full"))
    assert copies.resident["weights"] == 4 * 50


def test_of_adapters_alone_there_are_moments_and_gradients() -> None:
    adapted = replace(SHAPE, parameters=110, adapters=10, base="tiny")
    found = held(UPDATE, shape=adapted, constants=KEEPING)
    assert found.resident == {"weights": 400, "adapters": 40, "optimizer": 80, "rollout": 2048}
    only = replace(adapted, parameters=1_000_110, adapters=1_000_010)  # so that an optimizer's step holds most
    assert working(UPDATE, shape=only) == {"gradients": 4 * 1_000_010}


# ------------------------------------------------------------------------------------------- gathered weights


@pytest.mark.parametrize(("tied", "root", "layer"), [(True, 2 * 6, 88), (False, 2 * 11, 78)])
def test_gathered_are_the_root_and_layers_in_turn(tied: bool, root: int, layer: int) -> None:
    """The root is the embedding and the last norm, and a head of its own; the rest of 100 numbers is one layer."""
    shape, full = replace(SHAPE, tied=tied), Layout(data=2, sharding="full")
    assert gathered_bytes(shape, full, backward=False) == 4 * (root + 2 * layer + max(root, layer))
    assert gathered_bytes(shape, full, backward=True) == 4 * (2 * root + 4 * layer)
    assert gathered_bytes(shape, full, backward=True, number_bytes=2) == 2 * (2 * root + 4 * layer)
    assert gathered_bytes(shape, Layout(data=2), backward=True) == 0


def test_a_sharded_pass_has_what_is_gathered_and_an_optimizer_s_step_has_not() -> None:
    full = Layout(data=2, sharding="full")
    assert working(READ, layout=full)["gathered"] == 4 * (12 + 2 * 88 + 88)
    assert working(UPDATE, layout=full)["gathered"] == 4 * (2 * 12 + 4 * 88)
    large = replace(SHAPE, parameters=10_000_010, vocabulary=1_000_000, hidden=2, layers=1_000_000)
    assert "gathered" in working(UPDATE, layout=full, shape=large)


# ------------------------------------------------------------------------------------------- an update


def test_a_backward_pass_begins_with_all_that_waits_and_five_copies_of_the_logits() -> None:
    assert working(UPDATE) == {"activations": LAYER + LAST, "logits": 5 * LOGITS}


def test_in_its_first_layer_it_has_gradients_of_the_head_and_of_the_tokens_it_passes() -> None:
    """With two entries the logits are less than a hidden width and two of the MLP, of 28 tokens."""
    few = replace(SHAPE, vocabulary=2)
    back = 4 * 28 * (2 + 2 * 3)
    assert back > 5 * 4 * 16 * 2
    assert working(UPDATE, shape=few) == {"activations": LAYER + LAST + back, "gradients": 4 * 2 * 2}


@pytest.mark.parametrize(("optimizer", "numbers"), [("adamw", 2), ("sgd", 1)])
def test_a_step_of_the_optimizer_has_all_gradients_and_numbers_of_the_largest_tensor(
    optimizer: str, numbers: int
) -> None:
    many = replace(SHAPE, parameters=100_000)
    found = working(replace(UPDATE, optimizer=optimizer), shape=many)
    assert found == {"gradients": 4 * 100_000, "working": numbers * 4 * 5 * 2}


def test_micro_batches_read_fewer_rows_beside_the_gradients_of_those_before() -> None:
    """One row: a context of 6, a response of 4. The plan says so, or else the node."""
    layer = 4 * 10 * (6 * 2 + 3 * 2 + 4 * 3) + 2 * 4 * 6 * 2 + 2 * 4 * 10 * 2 + 4 * 4 * 10
    wanted = {"activations": layer + 3 * 4 * 10 * 2, "logits": 5 * 4 * 4 * 5, "gradients": 400}
    assert working(UPDATE, running=RoleSettings(micro_batch_tokens=10)) == wanted
    by_node = replace(UPDATE, micro_batch_tokens=10)
    assert working(by_node) == wanted
    assert working(by_node, running=RoleSettings(micro_batch_tokens=40)) == working(UPDATE)


def test_checkpointing_keeps_the_inputs_of_all_layers_and_one_layer() -> None:
    deep = replace(SHAPE, layers=7)
    without, again = (
        working(UPDATE, shape=deep, running=RoleSettings(checkpointing=mode))["activations"]
        for mode in ("none", "full")
    )
    assert without == 7 * LAYER + LAST
    assert again == LAYER + LAST + 7 * 4 * 28 * 2


def test_numbers_of_two_bytes_halve_what_is_computed_and_not_what_is_kept() -> None:
    half = held(UPDATE, running=RoleSettings(precision="bfloat16"))
    assert half.phases["update"] == {"activations": (LAYER + LAST) // 2, "logits": 5 * LOGITS // 2}
    assert half.resident == held(UPDATE).resident


def test_of_many_logits_a_chunk_is_there_at_once_with_the_gradient_of_the_head() -> None:
    wide = replace(SHAPE, vocabulary=2**21)  # of 16 tokens 2**25 logits, in chunks of 2**24
    found = working(UPDATE, shape=wide)
    assert found == {"activations": LAYER + LAST, "logits": 5 * 4 * 2**24, "gradients": 4 * 2**21 * 2}
    read = working(READ, shape=wide)
    assert read == {"activations": 2 * 4 * 28 * 2, "logits": 2 * 4 * 2**24}


# ------------------------------------------------------------------------------------------- reading and drawing


def test_a_pass_without_gradients_has_a_layer_or_the_logits() -> None:
    """In a layer 10 widths of 28 tokens: 3 hidden and 3.5 of queries and keys; keys, values, and two masks."""
    layer = 4 * 28 * 20 + 2 * 4 * 40 * 2 + 2 * 4 * 4 * 4 * 10
    assert working(READ) == {"activations": layer}
    wide = replace(SHAPE, vocabulary=100)
    states = {"activations": 2 * 4 * 28 * 2}
    assert working(READ, shape=wide) == states | {"logits": 2 * 4 * 16 * 100}
    entropy = replace(READ, stats=frozenset({"entropy"}))
    assert working(entropy, shape=wide) == states | {"logits": 3 * 4 * 16 * 100}


def test_a_head_of_one_number_has_no_logits() -> None:
    for head in ("values", "score"):
        found = held(READ, UPDATE, shape=replace(SHAPE, head=head))
        assert all("logits" not in parts for parts in found.phases.values())


def test_drawing_reads_contexts_first() -> None:
    """Of 12 tokens keys and values, a layer of 20 numbers each with keys and values of its own, and two logits each."""
    assert working(DRAWN) == {"kv_cache": 2 * 4 * 12 * 2, "activations": 4 * 12 * 20 + 2 * 4 * 12 * 2, "logits": 80}


@pytest.mark.parametrize(("heads", "copied"), [(1, 4 * 4 * 46 * 2), (2, 2 * 4 * 4 * 46 * 2 * 2)])
def test_at_full_length_there_are_keys_and_values_a_copy_of_one_and_five_copies_of_the_logits(
    heads: int, copied: int
) -> None:
    """4 rows of 46 tokens; where heads share keys, keys and values are repeated for each head."""
    long = replace(example(prompts=2, samples=2, prompt_tokens=6, response_tokens=40), phase="generate")
    found = working(long, shape=replace(SHAPE, heads=heads))
    assert found == {"kv_cache": 2 * 4 * 4 * 46 * 2, "working": copied, "logits": 5 * 4 * 4 * 5}


def test_what_is_drawn_side_by_side_is_bounded() -> None:
    long = replace(example(prompts=2, samples=2, prompt_tokens=6, response_tokens=40), phase="generate")
    assert working(long, sample_rows=1)["kv_cache"] * 4 == working(long)["kv_cache"]


def test_a_load_without_rows_has_no_phase() -> None:
    found = held(replace(READ, prompts=0))
    assert (found.phases, found.working, found.kept_bytes) == ({}, {}, 0)


# ------------------------------------------------------------------------------------------- the heap


def test_freed_blocks_stay_with_the_process_and_half_as_much_again_is_lost() -> None:
    layer = 4 * 28 * 20 + 2 * 4 * 40 * 2 + 2 * 4 * 4 * 4 * 10
    found = held(READ, constants=KEEPING)
    assert found.kept_bytes == layer * 3 // 2
    assert found.phases == {"logprob": {"activations": layer, "heap": layer // 2}}


def test_every_phase_has_the_heap_that_the_largest_left() -> None:
    found = held(READ, UPDATE, constants=KEEPING)
    most = LAYER + LAST + 5 * LOGITS
    assert found.kept_bytes == most * 3 // 2
    assert {phase: sum(parts.values()) for phase, parts in found.phases.items()} == {
        "logprob": found.kept_bytes,
        "update": found.kept_bytes,
    }


def test_blocks_larger_than_a_library_keeps_go_back() -> None:
    """Only gradients and an optimizer's numbers have less than 90 bytes: 400, and twice 40."""
    found = held(UPDATE, constants=replace(KEEPING, kept_block_bytes=90))
    assert found.kept_bytes == 480 * 3 // 2
    assert found.phases["update"] == {"activations": LAYER + LAST, "logits": 5 * LOGITS, "heap": found.kept_bytes}


# ------------------------------------------------------------------------------------------- rows at once

SIZES = st.integers(1, 9)


def rows_of(prompts: int, samples: int, prompt: int, response: int, minibatch: int) -> NodeWorkload:
    """Return a load of rows that are all alike."""
    load = example(prompts=prompts, samples=samples, prompt_tokens=prompt, response_tokens=response)
    return replace(load, minibatch=minibatch)


@given(SIZES, SIZES, SIZES, SIZES, st.integers(0, 9), st.integers(1, 4), st.integers(0, 400))
def test_a_pass_has_as_many_rows_as_its_budget_lets_it(
    prompts: int, samples: int, prompt: int, response: int, minibatch: int, ranks: int, budget: int
) -> None:
    """Rows are counted one by one, in the order of prompts: packed ones share a context, padded ones do not."""
    load = rows_of(prompts, samples, prompt, response, minibatch)
    share = -(-prompts // ranks)
    there = range(1, samples * min(share, minibatch or share) + 1)
    packed = max((r for r in there if -(-r // samples) * prompt + r * response <= budget), default=1)
    padded = max((r for r in there if r * (prompt + response) <= budget), default=1)
    assert packed_pass(load, ranks, budget) == RowsPass(packed, -(-packed // samples), prompt, response)
    assert padded_pass(load, ranks, budget) == RowsPass(padded, padded, prompt, response)


@given(SIZES, SIZES, st.integers(1, 4), st.integers(1, 4), st.integers(1, 40))
def test_what_draws_has_the_rows_of_a_round_side_by_side(
    prompts: int, samples: int, rounds: int, ranks: int, most: int
) -> None:
    load = replace(rows_of(prompts, samples, 3, 2, 0), rounds=rounds)
    first = -(-prompts // rounds)
    rows = min(-(-first // ranks) * samples, most)
    assert sampled_pass(load, ranks, most) == RowsPass(rows, -(-rows // samples), 3, 2)


def test_a_pass_counts_its_tokens() -> None:
    found = RowsPass(rows=3, contexts=2, prompt_tokens=5, response_tokens=4)
    assert (found.width, found.read_out, found.context_tokens, found.tokens) == (9, 12, 10, 22)


# ------------------------------------------------------------------------------------------- tensors counted in torch

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 50,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="module")
def llama() -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG))


@pytest.mark.parametrize("rows", [2, 6])
@pytest.mark.parametrize(("packing", "most"), [(None, 0.1), ("chosen", 0.05)])
def test_activations_are_the_tensors_that_autograd_saves(
    llama: Any, rows: int, packing: Literal["chosen"] | None, most: float
) -> None:
    """Contexts of 21 tokens, of which the last is read with the response, and so a forecast reads one more."""
    contexts = [[5 + row] * (21 - row % 2) for row in range(rows)]
    assert choose_packing(llama) is not None
    weights = {parameter.untyped_storage().data_ptr() for parameter in llama.parameters()}
    saved: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            saved.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    read = ResponseRows(pa.array(contexts, pa.list_(pa.int32())), torch.full((rows, 12), 7), torch.full((rows,), 12))
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward_stats(llama, read, ("logprobs",), packing=packing)
    counted = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    shape, once = shape_of(CONFIG, "config.json"), RowsPass(rows, rows, 20, 12)
    layer = sum(size * count for _, size, count in kept_blocks(shape, once))
    forecast = 4 * layer + 3 * 4 * once.tokens * 64 + 4 * 50 * rows * 12  # and the last norm, and logits
    assert forecast == pytest.approx(counted, rel=most)


def test_keys_and_values_are_what_the_cache_holds(llama: Any) -> None:
    with torch.no_grad():
        cache = llama(input_ids=torch.zeros(3, 7, dtype=torch.long), use_cache=True).past_key_values
    counted = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert 4 * shape_of(CONFIG, "config.json").cache_numbers(7) * 3 == counted


# ------------------------------------------------------------------------------------------- roles of a process


def group_on(cluster: str) -> DeviceGroup:
    """Return all devices of a cluster."""
    (of,) = classes(cluster_of(cluster))
    links = of.links(of.count)
    assert links is not None
    return DeviceGroup(of, of.count, links)


@pytest.mark.parametrize(("cluster", "beside"), [("1xcpu-8GiB", 0), ("4xcpu-8GiB", 40 + 640 / 4)])
def test_a_process_has_its_share_of_ray_where_there_are_several_devices(cluster: str, beside: float) -> None:
    problem, group = problem_of("grpo", cluster), group_on(cluster)
    role = next(each for each in problem.roles if each.use == "infer")
    found = footprint(problem, role, group, "local", Layout(data=group.devices), RoleSettings())
    assert found.resident["context"] == (504 + beside) * MIB


def test_a_server_on_a_cpu_has_weights_a_cache_of_16384_tokens_and_a_process_of_its_own() -> None:
    problem, group = problem_of("grpo", "2xcpu-64GiB"), group_on("2xcpu-64GiB")
    role = next(each for each in problem.roles if each.use == "sample")
    shape = problem.shape(role)
    found = footprint(problem, role, group, "sglang", Layout(data=2), RoleSettings())
    assert found.resident == found.asleep == {
        "weights": 4 * shape.parameters,
        "kv_cache": 16384 * 4 * 2 * shape.layers * shape.kv_heads * shape.head_dim,
        "context": (504 + 40 + 640 / 2) * MIB + 1.5 * GIB,
    }  # fmt: skip
    assert {*found.working} == {"activations", "logits"}


@pytest.mark.parametrize(("base", "copies"), [("tiny", 0), ("other", 1)])
def test_a_reference_that_is_the_base_of_the_adapters_beside_it_takes_no_copy(base: str, copies: int) -> None:
    adapted = replace(SHAPE, parameters=110, adapters=10, base="tiny")
    problem = replace(problem_of("grpo", "1xcpu-8GiB"), shapes={"policy": adapted, "ref": replace(SHAPE, base=base)})
    memory = {each.role: each.memory for each in find(problem).best.plan().placed}
    assert memory["ref.infer"].get("weights", 0) == copies * 400
    assert sum(parts.get("weights", 0) for parts in memory.values()) == (1 + copies) * 400
