"""The forecast of memory: small numbers worked out by hand, and tensors counted in torch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa
import pytest
import torch
import transformers

from examples.gpg import gpg
from flowgraph import Graph, Loss, flow, node
from flowgraph.errors import PlanError
from flowgraph.executors.base import Rows
from flowgraph.executors.forward import forward_stats
from flowgraph.executors.packable import choose
from flowgraph.graph import Node, rewrite
from flowgraph.machine import laptop
from flowgraph.models import ModelShape
from flowgraph.models.shapes import shape_of
from flowgraph.passes import compile_graph
from flowgraph.roles import Role
from nodes import (
    Policy,
    Prompts,
    Rollout,
    entropy,
    entropy_bonus,
    evaluate,
    generate,
    logprobs,
    policy_gradient,
    update,
)
from nodes import group_normalize as normalized
from nodes import score as scored
from placements import Workload, forecast, peaks, search
from placements.memory import PROCESS_BYTES, Need, activation_bytes, kv_bytes_per_token
from placements.work import Work, work_of

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
SHAPES = {"policy": SHAPE, "ref": SHAPE}
WORK = Workload(2, 6)


def set_to(graph: Graph, **settings: object) -> Graph:
    """Give the graph with settings changed wherever a node has them."""

    def change(each: Node) -> Node:
        known = {name: value for name, value in settings.items() if name in type(each.settings).model_fields}
        return replace(each, settings=each.settings.model_copy(update=known))

    return rewrite(graph, change)


def alone(graph: Graph, workload: Workload = WORK) -> tuple[Need, ...]:
    """Give what roles need with everything in one process."""
    plan = search("colocated", graph, laptop(1, 2**40), SHAPES, workload).plan
    return forecast(plan, graph, SHAPES, workload)


@pytest.fixture
def small(graph: Graph) -> Graph:
    """prompts, policy, ref → generate (n=2, 4 tokens) → score, ref log-probs → update."""
    return set_to(graph, n=2, max_tokens=4)


def held(needs: tuple[Need, ...], role: str) -> dict[tuple[str, str | None], int]:
    return {(need.part, need.phase): need.needed_bytes for need in needs if need.role == role}


def test_each_part_of_a_step_is_what_its_formula_says(small: Graph) -> None:
    """Two prompts of 6 tokens, two responses of 4 to each: 4 rows of 10 tokens, 12 of contexts and 16 of responses."""
    needs = alone(small)
    each = 4 * (2 * 9 + 2 * 2 + 3 * 4)  # float32 × (norms, queries and results, MLP) of each token read
    contexts = 12 * each + 4 * (2 * 2 * 12 + 2 * 6 * 6)  # and keys, values and mask
    responses = 16 * each + 4 * (2 * 2 * 40 + 4 * 4 * 10)
    copy, cache = 4 * 5 * 16, 16  # of the logits; of a token's keys and values
    assert held(needs, "policy.train") == {
        ("weights", None): 400,
        ("gradients", "update"): 400,
        ("optimizer", None): 800,
        ("heap", None): contexts + responses,
        ("activations", "update"): contexts + responses,
        ("logits", "update"): 4 * copy,
        ("working", "update"): contexts + responses,
    }
    assert held(needs, "ref.infer") == {
        ("weights", None): 400,
        ("logits", "logprob"): 2 * copy,
        ("kv_cache", "logprob"): cache * (40 + 12),
        ("working", "logprob"): contexts + responses,
    }
    assert held(needs, "policy.sample") == {
        ("rollout", None): 128 * 16,
        ("kv_cache", "generate"): cache * (40 + 40 + 12),
        ("logits", "generate"): 5 * 4 * 5 * 4,
        ("working", "generate"): contexts,
    }


def test_a_peak_is_the_process_and_all_that_is_held_and_the_phase_s_own(small: Graph) -> None:
    needs = alone(small)
    always = PROCESS_BYTES + sum(need.needed_bytes for need in needs if need.phase is None)
    for peak in peaks(needs):
        own = sum(need.needed_bytes for need in needs if need.phase == peak.phase)
        assert peak.peak_bytes == always + own
    assert [(peak.phase, peak.role) for peak in peaks(needs)] == [
        ("generate", "policy.sample"),
        ("logprob", "ref.infer"),
        ("update", "policy.train"),
    ]


def part(graph: Graph, role: str, name: str, workload: Workload = WORK) -> int:
    return sum(n.needed_bytes for n in alone(graph, workload) if (n.role, n.part) == (role, name))


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({}, 4),
        ({"n": 4}, 8),
        ({"micro_batch_tokens": 20}, 2),
        ({"micro_batch_tokens": 29}, 2.9),
        ({"micro_batch_tokens": 1}, 1),  # a row is never cut
        ({"minibatch": 1}, 2),
        ({"minibatch": 7}, 4),
    ],
)
def test_the_graph_s_settings_say_how_many_rows_an_update_holds(
    small: Graph, settings: dict[str, int], rows: float
) -> None:
    tokens = math.ceil(4 * rows)  # 4 a response
    assert part(set_to(small, **settings), "policy.train", "logits") == 4 * 4 * 5 * tokens


def test_sgd_holds_no_moments_and_a_temperature_holds_its_logits(small: Graph) -> None:
    assert part(set_to(small, optimizer="sgd"), "policy.train", "optimizer") == 0
    assert part(set_to(small, temperature=0.7), "policy.train", "logits") == 5 * 4 * 5 * 16
    assert part(set_to(small, temperature=0.0), "policy.train", "logits") == 4 * 4 * 5 * 16


def test_the_executor_s_bounds_are_arguments(small: Graph) -> None:
    few = Workload(2, 6, sample_rows=1, forward_tokens=10)
    assert part(small, "policy.sample", "logits", few) * 4 == part(small, "policy.sample", "logits")
    assert part(small, "ref.infer", "logits", few) * 4 == part(small, "ref.infer", "logits")


def test_samples_of_one_prompt_share_its_context(small: Graph) -> None:
    one = {work.node: work.contexts for work in work_of(set_to(small, n=8), Workload(1, 6))}
    assert one == {"policy.generate": 1, "ref.logprobs": 1, "policy.update": 1}
    cut = Workload(8, 6, sample_rows=8, forward_tokens=80)
    some = {work.node: work.contexts for work in work_of(set_to(small, n=8, micro_batch_tokens=50), cut)}
    assert some == {"policy.generate": 2, "ref.logprobs": 2, "policy.update": 5}


def test_a_model_that_is_only_sampled_has_weights_and_no_gradients() -> None:
    """policy → generate → score → accuracy."""
    needs = alone(compile_graph(evaluate.graph()))
    assert {need.part for need in needs} == {"weights", "rollout", "kv_cache", "logits", "working"}
    assert [peak.phase for peak in peaks(needs)] == ["generate"]


def test_entropy_costs_one_more_copy_of_the_logits() -> None:
    @flow
    def with_entropy(prompts: Prompts, policy: Policy) -> Policy:
        rollout = generate(policy, prompts, n=2, max_tokens=4)
        advantages = normalized(scored(rollout), rollout.group)

        def loss(pi: Policy) -> Loss:
            bonus = entropy_bonus(entropy(pi, rollout), rollout.mask)
            return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask) + 0.01 * bonus

        return update(policy, loss)

    assert part(compile_graph(with_entropy.graph()), "policy.train", "logits") == 5 * 4 * 5 * 16


@node(kind="generate")
def dream(policy: Policy, prompts: Prompts) -> Rollout:
    """Sample in a way of its own, without our settings."""
    raise NotImplementedError


def test_a_sampler_of_a_user_s_own_is_taken_at_the_length_that_is_assumed() -> None:
    @flow
    def own(prompts: Prompts, policy: Policy) -> Policy:
        rollout = dream(policy, prompts)
        advantages = normalized(scored(rollout), rollout.group)

        def loss(pi: Policy) -> Loss:
            return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

        return update(policy, loss)

    found = work_of(compile_graph(own.graph()), Workload(2, 6, response_tokens=9))
    told = [(work.node, work.rows, work.padded_tokens) for work in found]
    assert told == [("policy.dream", 2, 30), ("policy.update", 2, 30)]


def test_roles_that_work_in_one_phase_work_one_after_another() -> None:
    """Two frozen models read the same responses: the phase needs the larger, not the sum."""
    needs = [
        Need("a.infer", "logits", "logprob", 5),
        Need("b.infer", "logits", "logprob", 7),
        Need("b.infer", "weights", None, 1),
    ]
    assert [(peak.role, peak.peak_bytes - PROCESS_BYTES) for peak in peaks(needs)] == [("b.infer", 8)]


def test_a_model_without_sizes_is_refused(graph: Graph) -> None:
    with pytest.raises(PlanError) as caught:
        search("colocated", graph, laptop(1, 2**40), {"policy": SHAPE, "reff": SHAPE}, Workload(2, 6))
    assert str(caught.value) == "plan of grpo: the sizes of `ref` are not given\n  hint: did you mean `reff`?"


def test_a_flow_without_a_reference_needs_no_sizes_of_one() -> None:
    assert search("colocated", compile_graph(gpg.graph()), laptop(1, 2**40), {"policy": SHAPE}, WORK).plan.forecast


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
@pytest.mark.parametrize(("packing", "most"), [(None, 0.02), ("chosen", 0.1)])
def test_activations_are_the_tensors_that_autograd_saves(
    llama: Any, rows: int, packing: Literal["chosen"] | None, most: float
) -> None:
    """Contexts of 21 tokens, of which the last is read with the response, and so a forecast reads one more.

    Packed tokens hold the keys of a context anew for each response: a tenth more, where nothing is padded or shared.
    """
    contexts = [[5 + row] * (21 - row % 2) for row in range(rows)]
    assert choose(llama) is not None
    weights = {parameter.untyped_storage().data_ptr() for parameter in llama.parameters()}
    saved: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            saved.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    read = Rows(pa.array(contexts, pa.list_(pa.int32())), torch.full((rows, 12), 7), torch.full((rows,), 12))
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward_stats(llama, read, ("logprobs",), packing=packing)
    counted = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    shape, work = shape_of(CONFIG, "config.json"), work_like(rows, 20, 12)
    assert activation_bytes(shape, work) + 4 * 50 * rows * 12 == pytest.approx(counted, rel=most)


def work_like(rows: int, prompt_tokens: int, response_tokens: int) -> Work:
    role = Role("m.train", "m", "train", ("m.update",))
    padded = rows * (prompt_tokens + response_tokens)
    return Work("m.update", role, "update", rows, rows, prompt_tokens, response_tokens, padded, ())


def test_keys_and_values_are_what_the_cache_holds(llama: Any) -> None:
    with torch.no_grad():
        cache = llama(input_ids=torch.zeros(3, 7, dtype=torch.long), use_cache=True).past_key_values
    counted = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert kv_bytes_per_token(shape_of(CONFIG, "config.json")) * 3 * 7 == counted


# ------------------------------------------------------------------------------------------- heads and adapters


def test_a_value_head_gives_one_number_a_token_and_has_no_output_table(small: Graph) -> None:
    shape = replace(SHAPE, vocabulary=1000, tied=False)
    critic = replace(shape, head="values")
    plain, valued = (_needs(small, {"policy": each, "ref": SHAPE}) for each in (shape, critic))
    assert held(plain, "policy.train")["logits", "update"] == 1000 * held(valued, "policy.train")["logits", "update"]
    assert (shape.tables, critic.tables) == (2, 1)


def test_adapters_alone_have_gradients_moments_and_travel(small: Graph) -> None:
    adapted = replace(SHAPE, parameters=110, adapters=10, base="tiny")
    needs = held(_needs(small, {"policy": adapted, "ref": replace(SHAPE, base="other")}), "policy.train")
    assert needs["weights", None] == 4 * 110
    assert needs["gradients", "update"] == 4 * 10
    assert needs["optimizer", None] == 2 * 4 * 10


@pytest.mark.parametrize(("base", "copies"), [("tiny", 0), ("other", 1)])
def test_a_reference_that_is_the_base_of_the_adapters_beside_it_takes_no_copy(
    small: Graph, base: str, copies: int
) -> None:
    adapted = replace(SHAPE, parameters=110, adapters=10, base="tiny")
    needs = held(_needs(small, {"policy": adapted, "ref": replace(SHAPE, base=base)}), "ref.infer")
    assert needs.get(("weights", None), 0) == copies * 400


def _needs(graph: Graph, shapes: dict[str, ModelShape]) -> tuple[Need, ...]:
    plan = search("colocated", graph, laptop(1, 2**40), shapes, WORK).plan
    return forecast(plan, graph, shapes, WORK)
