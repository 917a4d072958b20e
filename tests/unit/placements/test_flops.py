"""FLOPs of passes through families of every kind, against what torch counts of the real modules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from flowgraph.models.layer_kinds import Attention, Recurrent
from flowgraph.models.sizes import ModelShape, shape_of
from placements.flops import Pass, forward_flops, layer_weights, training_flops

Config = dict[str, Any]

SIZES: Config = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 40,
    "pad_token_id": 0,
}
EXPERTS: Config = {**SIZES, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
LOCAL: Config = {**SIZES, "num_local_experts": 6, "num_experts_per_tok": 2}
ROUTED: Config = {**SIZES, "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "n_group": 1}
LATENT: Config = {
    **{name: value for name, value in ROUTED.items() if name != "head_dim"},
    "num_key_value_heads": 4,
    "topk_group": 1,
    "q_lora_rank": 10,
    "kv_lora_rank": 14,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
}
CASES: dict[str, Config] = {
    "llama": SIZES,
    "qwen3": SIZES,
    "gemma2": SIZES,
    "gemma3_text": SIZES,
    "olmo2": SIZES,
    "mixtral": LOCAL,
    "gpt_oss": LOCAL,
    "minimax_m2": LOCAL,
    "qwen3_moe": EXPERTS,
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 20},
    "glm4_moe": {**ROUTED, "topk_group": 1},
    "deepseek_v2": {**LATENT, "first_k_dense_replace": 1},
    "deepseek_v3": {**LATENT, "first_k_dense_replace": 2, "q_lora_rank": None},
    "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 40},
    "gpt_neox": {name: SIZES[name] for name in SIZES if name not in ("num_key_value_heads", "head_dim")},
}


@pytest.mark.parametrize("family", CASES)
def test_a_forward_pass_takes_what_torch_counts(family: str) -> None:
    """Plain attention works out masked pairs too: all of 9 × 9, for each of two rows; rotations add a little."""
    config = transformers.CONFIG_MAPPING[family].from_dict(dict(CASES[family]))
    config._attn_implementation, config._experts_implementation = "eager", "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.arange(1, 19).reshape(2, 9), use_cache=False)
    own = forward_flops(shape_of({"model_type": family, **CASES[family]}, family), Pass(18, 18, 2 * 81))
    assert own <= counter.get_total_flops() <= 1.003 * own


SPARSE = shape_of({"model_type": "qwen3_moe", **EXPERTS}, "")
HYBRID = shape_of({"model_type": "qwen3_5_text", **SIZES}, "")


def test_experts_that_a_token_is_not_sent_to_take_nothing() -> None:
    one = Pass(1, 0, 0)
    idle = 3 * 4 * 3 * 32 * 12
    assert forward_flops(SPARSE, one) == 2 * layer_weights(SPARSE)
    assert layer_weights(replace(SPARSE, experts_per_token=6)) - layer_weights(SPARSE) == idle
    assert SPARSE.parameters - SPARSE.active == idle


def test_a_shape_made_by_hand_is_plain() -> None:
    """What says nothing of experts, norms or windows is a plain decoder, as it always was."""
    shape = ModelShape(1_000_000, 64, 2, 4, 2, 16, 128, 500, tied=False)
    weights = 1_000_000 - 2 * 500 * 64 - 5 * 64
    assert layer_weights(shape) == shape.matmul_parameters == weights
    assert forward_flops(shape, Pass(10, 3, 55)) == 2 * weights * 10 + 2 * 500 * 64 * 3 + 4 * 2 * 4 * 16 * 55
    assert training_flops(shape, Pass(10, 3, 55)) == 3 * forward_flops(shape, Pass(10, 3, 55))


def test_a_head_of_one_number_is_no_weight_of_the_layers() -> None:
    config = {"model_type": "llama", **SIZES}
    assert len({layer_weights(shape_of(config, "", head=head)) for head in ("tokens", "values", "score")}) == 1


@given(tokens=st.integers(1, 400), window=st.integers(1, 400), stride=st.integers(1, 8))
def test_a_window_never_takes_more_than_none_and_never_less_than_its_share(
    tokens: int, window: int, stride: int
) -> None:
    """For one text read at once, by counting each token's pairs; the bound of a window is at most twice too large."""
    pairs = tokens * (tokens + 1) // 2
    near = Attention(3, 10, 4, window=window).pass_products(tokens, pairs)
    exact = 3 * 10 * sum(min(place, window) for place in range(1, tokens + 1))
    assert exact <= near <= min(2 * exact, 3 * 10 * pairs)
    assert Attention(3, 10, 4, stride=stride).pass_products(tokens, pairs) == 3 * 10 * (pairs // stride)


def test_reading_from_a_state_does_not_grow_with_the_context() -> None:
    assert Recurrent(2, 5, 7).pass_products(10, 10**6) == 2 * 7 * 10
    early, late = (forward_flops(HYBRID, Pass(1, 1, context)) for context in (10, 1010))
    assert late - early == 1000 * 2 * HYBRID.attention_products(0, 1)
