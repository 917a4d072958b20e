"""The forecast of memory: small numbers worked out by hand, and tensors counted in torch."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import torch
import transformers

from examples.gpg import gpg
from examples.grpo import grpo
from flowgraph import Graph, Loss, NodeKind, flow, node
from flowgraph.errors import PlanError
from flowgraph.executors.base import Rows
from flowgraph.executors.local import LocalModel
from flowgraph.graph import Node, rewrite
from flowgraph.models import ModelShape
from flowgraph.models.shapes import shape_of
from flowgraph.passes import compile_graph
from nodes import Policy, Prompts, Rollout, entropy, entropy_bonus, evaluate, generate, logprobs, policy_gradient, update
from nodes import group_normalize as normalized
from nodes import score as scored
from placements import Workload, forecast, peaks
from placements.memory import PROCESS_BYTES, Need, activation_bytes, kv_bytes_per_token
from placements.work import work_of

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


def set_to(graph: Graph, **settings: int | str) -> Graph:
    """Give the graph with settings changed wherever a node has them."""
    from dataclasses import replace

    def change(each: Node) -> Node:
        known = {name: value for name, value in settings.items() if name in type(each.settings).model_fields}
        return replace(each, settings=each.settings.model_copy(update=known))

    return rewrite(graph, change)


def small(**settings: int | str) -> Graph:
    """prompts, policy, ref → generate(n=2, 4 tokens) → score, ref log-probs → update."""
    return set_to(compile_graph(grpo.graph()), **({"n": 2, "max_tokens": 4} | settings))


def held(needs: tuple[Need, ...], role: str) -> dict[tuple[str, str | None], int]:
    return {(need.part, need.phase): need.needed_bytes for need in needs if need.role == role}


def test_each_part_of_a_step_is_what_its_formula_says() -> None:
    """Two prompts of 6 tokens, two responses of 4 to each: 4 rows of 10 tokens, 5 places of logits a row."""
    needs = forecast(small(), SHAPES, Workload(2, 6))
    kept = 4 * 40 * (2 * 9 + 2 * 2 + 2 * 2 + 3 * 4)  # float32 × tokens × (norms, queries, keys, MLP)
    layer = kept + 9 * 4 * 10 * 10  # one layer, and the mask [4, 10, 10]
    assert held(needs, "policy.train") == {
        ("weights", None): 400,
        ("gradients", None): 400,
        ("optimizer", None): 800,
        ("heap", None): int(1.2 * kept),
        ("activations", "update"): kept,
        ("logits", "update"): 5 * 4 * 5 * 20,
        ("working", "update"): layer,
    }
    assert held(needs, "ref.infer") == {
        ("weights", None): 400,
        ("logits", "logprob"): 3 * 4 * 5 * 20,
        ("working", "logprob"): layer,
    }
    rows = 4 * 10 * 16  # 4 rows of 10 tokens, 16 bytes of keys and values each
    assert held(needs, "policy.sample") == {
        ("rollout", None): 128 * 4 * 4,
        ("kv_cache", "generate"): rows + rows + 2 * 6 * 16,
        ("logits", "generate"): 5 * 4 * 5 * 4,
        ("working", "generate"): 4 * 12 * 38 + 9 * 2 * 6 * 6,
    }


def test_a_peak_is_the_process_and_all_that_is_held_and_the_phase_s_own() -> None:
    needs = forecast(small(), SHAPES, Workload(2, 6))
    always = PROCESS_BYTES + sum(need.needed_bytes for need in needs if need.phase is None)
    for peak in peaks(needs):
        own = sum(need.needed_bytes for need in needs if need.phase == peak.phase)
        assert peak.peak_bytes == always + own
    assert [(peak.phase, peak.role) for peak in peaks(needs)] == [
        ("generate", "policy.sample"),
        ("logprob", "ref.infer"),
        ("update", "policy.train"),
    ]


def part(graph: Graph, role: str, name: str, workload: Workload = Workload(2, 6)) -> int:
    return sum(n.needed_bytes for n in forecast(graph, SHAPES, workload) if (n.role, n.part) == (role, name))


def test_settings_of_the_graph_are_read() -> None:
    whole = part(small(), "policy.train", "activations")
    assert part(small(n=4), "policy.train", "activations") == 2 * whole
    assert part(small(max_tokens=14), "policy.train", "activations") == 2 * whole
    assert part(small(micro_batch_tokens=20), "policy.train", "activations") == whole // 2
    assert part(small(minibatch=1), "policy.train", "activations") == whole // 2
    assert part(small(minibatch=7), "policy.train", "activations") == whole
    assert part(small(optimizer="sgd"), "policy.train", "optimizer") == 0
    assert part(small(micro_batch_tokens=1), "policy.train", "activations") == whole // 4, "a row is never cut"


def test_the_executor_s_bounds_are_arguments() -> None:
    whole = Workload(2, 6)
    assert part(small(), "policy.sample", "logits", Workload(2, 6, sample_rows=1)) * 4 == part(
        small(), "policy.sample", "logits", whole
    )
    assert part(small(), "ref.infer", "logits", Workload(2, 6, forward_tokens=10)) * 4 == part(
        small(), "ref.infer", "logits", whole
    )


def test_a_model_that_is_only_sampled_has_weights_and_no_gradients() -> None:
    """policy → generate → score → accuracy."""
    needs = forecast(compile_graph(evaluate.graph()), SHAPES, Workload(2, 6))
    assert {need.part for need in needs} == {"weights", "rollout", "kv_cache", "logits", "working"}
    assert [peak.phase for peak in peaks(needs)] == ["generate"]


def test_entropy_costs_two_more_copies_of_the_logits() -> None:
    @flow
    def with_entropy(prompts: Prompts, policy: Policy) -> Policy:
        rollout = generate(policy, prompts, n=2, max_tokens=4)
        advantages = normalized(scored(rollout), rollout.group)

        def loss(pi: Policy) -> Loss:
            bonus = entropy_bonus(entropy(pi, rollout), rollout.mask)
            return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask) + 0.01 * bonus

        return update(policy, loss)

    assert part(compile_graph(with_entropy.graph()), "policy.train", "logits") == 7 * 4 * 5 * 20


@node(kind=NodeKind.GENERATE)
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
    assert [(work.node, work.rows, work.tokens) for work in found] == [("policy.dream", 2, 30), ("policy.update", 2, 30)]


def test_roles_that_work_in_one_phase_work_one_after_another() -> None:
    """Two frozen models read the same responses: the phase needs the larger, not the sum."""
    needs = [
        Need("a.infer", "logits", "logprob", 5),
        Need("b.infer", "logits", "logprob", 7),
        Need("b.infer", "weights", None, 1),
    ]
    assert [(peak.role, peak.peak_bytes - PROCESS_BYTES) for peak in peaks(needs)] == [("b.infer", 8)]


def test_a_model_without_sizes_is_refused() -> None:
    with pytest.raises(PlanError) as caught:
        forecast(compile_graph(grpo.graph()), {"policy": SHAPE, "reff": SHAPE}, Workload(2, 6))
    assert str(caught.value) == "plan of grpo: the sizes of `ref` are not given\n  hint: did you mean `reff`?"


def test_a_flow_without_a_reference_needs_no_sizes_of_one() -> None:
    assert forecast(compile_graph(gpg.graph()), {"policy": SHAPE}, Workload(2, 6))


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


class Ends:
    """The one field of a tokenizer that the executor reads when no text is asked for."""

    eos_token_id = 2
    chat_template = None


def test_activations_are_the_tensors_that_autograd_saves(llama: Any) -> None:
    handle, rows, width = LocalModel(llama, Ends(), trainable=True), 6, 32
    weights = {parameter.untyped_storage().data_ptr() for parameter in llama.parameters()}
    saved: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            saved.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    context = pa.array([[5] * (width - 4)] * rows, pa.list_(pa.int32()))
    read = Rows(context, torch.full((rows, 4), 7), torch.full((rows,), 4))
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        handle.token_stats(read, ("logprobs",))
    counted = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    assert activation_bytes(shape_of(CONFIG, "config.json"), rows * width) == pytest.approx(counted, rel=0.03)


def test_keys_and_values_are_what_the_cache_holds(llama: Any) -> None:
    with torch.no_grad():
        cache = llama(input_ids=torch.zeros(3, 7, dtype=torch.long), use_cache=True).past_key_values
    counted = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert kv_bytes_per_token(shape_of(CONFIG, "config.json")) * 3 * 7 == counted
