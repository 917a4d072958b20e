"""What is counted from config.json alone, against the modules of transformers, family by family."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

from flowgraph.errors import ModelError
from flowgraph.models.families import FAMILIES, family_of
from flowgraph.models.sizes import ModelShape, shape_of

Config = dict[str, Any]

SIZES: Config = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "pad_token_id": 0,
}
EXPERTS: Config = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
SHARED: Config = {**EXPERTS, "shared_expert_intermediate_size": 20}
LOCAL: Config = {"num_local_experts": 6, "num_experts_per_tok": 2}
ROUTED: Config = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "n_group": 1}
LATENT: Config = {
    **SIZES,
    **ROUTED,
    "num_experts": 6,
    "topk_group": 1,
    "n_shared_experts": 2,
    "num_key_value_heads": 4,
    "q_lora_rank": 10,
    "kv_lora_rank": 14,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
}
INDEX: Config = {"index_head_dim": 8, "index_n_heads": 3}
COMPRESSED: Config = {
    **{name: value for name, value in SIZES.items() if name != "intermediate_size"},
    **ROUTED,
    **INDEX,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "compress_ratios": [0, 4, 128, 4, 128],
    "hc_mult": 3,
    "q_lora_rank": 10,
    "o_groups": 2,
    "o_lora_rank": 6,
    "qk_rope_head_dim": 4,
    "partial_rotary_factor": 0.5,
}
DELTA: Config = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
}
MAMBA: Config = {
    **{name: value for name, value in SIZES.items() if name != "num_hidden_layers"},
    **ROUTED,
    "topk_group": 1,
    "head_dim": 8,
    "mamba_num_heads": 4,
    "mamba_head_dim": 6,
    "ssm_state_size": 8,
    "n_groups": 2,
    "chunk_size": 4,
    "moe_shared_expert_intermediate_size": 20,
}
OLD: Config = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 40}
OLDEST: Config = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 50, "vocab_size": 40}
WINDOWS: Config = {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": 4}
SEEN: Config = {**SIZES, **LOCAL, "intermediate_size_mlp": 56}

# The families, each with options that change what its layers have.
CASES: dict[str, tuple[str, Config]] = {
    "llama": ("llama", SIZES),
    "llama with biases": ("llama", {**SIZES, "attention_bias": True, "mlp_bias": True, "head_dim": 12}),
    "granite": ("granite", {**SIZES, "tie_word_embeddings": True}),
    "smollm3": ("smollm3", SIZES),
    "mistral": ("mistral", SIZES),
    "qwen2": ("qwen2", SIZES),
    "qwen2 with windows": ("qwen2", {**SIZES, **WINDOWS}),
    "qwen3": ("qwen3", {**SIZES, "attention_bias": True}),
    "phi3": ("phi3", SIZES),
    "gemma": ("gemma", SIZES),
    "gemma2": ("gemma2", SIZES),
    "gemma3_text": ("gemma3_text", SIZES),
    "gemma3_text, not tied": ("gemma3_text", {**SIZES, "tie_word_embeddings": False, "head_dim": 8}),
    "olmo2": ("olmo2", SIZES),
    "olmo3": ("olmo3", SIZES),
    "mixtral": ("mixtral", {**SIZES, **LOCAL}),
    "qwen2_moe": ("qwen2_moe", {**SIZES, **SHARED}),
    "qwen2_moe, two sparse layers": (
        "qwen2_moe",
        {**SIZES, **SHARED, "decoder_sparse_step": 2, "mlp_only_layers": [3], "qkv_bias": False},
    ),
    "qwen3_moe": ("qwen3_moe", {**SIZES, **EXPERTS, "head_dim": 12}),
    "qwen3_moe with biases": ("qwen3_moe", {**SIZES, **EXPERTS, "attention_bias": True, "mlp_only_layers": [0]}),
    "gpt_oss": ("gpt_oss", {**SIZES, **LOCAL}),
    "glm4_moe": ("glm4_moe", {**SIZES, **ROUTED, "topk_group": 1, "use_qk_norm": True, "attention_bias": True}),
    "glm4_moe, two dense layers": ("glm4_moe", {**SIZES, **ROUTED, "topk_group": 1, "first_k_dense_replace": 2}),
    "minimax_m2": ("minimax_m2", {**SIZES, **LOCAL}),
    "llama4_text": ("llama4_text", SEEN),
    "llama4_text, every other layer": ("llama4_text", {**SEEN, "interleave_moe_layer_step": 2}),
    "deepseek_v2": ("deepseek_v2", LATENT),
    "deepseek_v2, queries not latent": ("deepseek_v2", {**LATENT, "q_lora_rank": None, "first_k_dense_replace": 1}),
    "deepseek_v3": ("deepseek_v3", {**LATENT, "first_k_dense_replace": 2}),
    "deepseek_v3 with biases": ("deepseek_v3", {**LATENT, "attention_bias": True, "tie_word_embeddings": True}),
    "deepseek_v32": ("deepseek_v32", {**LATENT, **INDEX}),
    "glm_moe_dsa": ("glm_moe_dsa", {**LATENT, **INDEX, "index_topk_freq": 2}),
    "deepseek_v4": ("deepseek_v4", COMPRESSED),
    "qwen3_next": ("qwen3_next", {**SIZES, **SHARED, **DELTA}),
    "qwen3_5_text": ("qwen3_5_text", {**SIZES, **DELTA}),
    "qwen3_5_moe_text": ("qwen3_5_moe_text", {**SIZES, **SHARED, **DELTA}),
    "nemotron_h": ("nemotron_h", {**MAMBA, "hybrid_override_pattern": "M-M*M-"}),
    "nemotron_h with experts": ("nemotron_h", {**MAMBA, "hybrid_override_pattern": "MEM*E", "mlp_bias": True}),
    "nemotron_h, narrow experts": (
        "nemotron_h",
        {**MAMBA, "layers_block_type": ["mamba", "moe", "attention", "mlp"], "moe_latent_size": 10, "use_bias": True},
    ),
    "gpt2": ("gpt2", OLDEST),
    "gpt2, another width": ("gpt2", {**OLDEST, "n_inner": 20, "tie_word_embeddings": False}),
    "opt": ("opt", {**OLD, "ffn_dim": 48, "max_position_embeddings": 50, "word_embed_proj_dim": 32}),
    "opt, norms after": ("opt", {**OLD, "ffn_dim": 48, "do_layer_norm_before": False, "word_embed_proj_dim": 32}),
    "bloom": ("bloom", {"hidden_size": 32, "n_layer": 3, "n_head": 4, "vocab_size": 40}),
    "gpt_neox": ("gpt_neox", {**OLD, "intermediate_size": 48}),
    "phi": ("phi", {**OLD, "intermediate_size": 48, "num_key_value_heads": 2, "qk_layernorm": True, "pad_token_id": 0}),
    "falcon": ("falcon", OLD),
    "falcon, keys in groups": ("falcon", {**OLD, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon, the first": ("falcon", {**OLD, "parallel_attn": False, "multi_query": False, "bias": True, "alibi": True}),
}
PLAIN = [
    name
    for name in CASES
    if name != "nemotron_h" and not shape_of({"model_type": CASES[name][0], **CASES[name][1]}, name).experts
]

# Two-dimensional, but looked up or added.
ADDED = ("embed", "wte", "wpe", "lm_head", "position", "_bias", "gate_up_proj_bias", "down_proj_bias")


@cache
def _made(name: str) -> tuple[Any, Any]:
    """Give the configuration of a case, and its model without numbers."""
    model_type, options = CASES[name]
    config = transformers.CONFIG_MAPPING[model_type].from_dict(dict(options))
    with torch.device("meta"):
        return config, transformers.AutoModelForCausalLM.from_config(config)


def _shape(name: str, folder: Path, **more: Any) -> ModelShape:
    """Read the sizes from the config.json that transformers writes."""
    _made(name)[0].save_pretrained(folder)
    return shape_of(json.loads((folder / "config.json").read_text()), name, **more)


@pytest.mark.parametrize("name", CASES)
def test_parameters_are_those_of_the_real_module(name: str, tmp_path: Path) -> None:
    found, model = _shape(name, tmp_path), _made(name)[1]
    assert found.parameters == sum(each.numel() for each in model.parameters())
    assert found.layers == len(model.get_submodule(_layers(model)))
    assert (found.hidden, found.heads, found.vocabulary) == (32, 4, 40)


@pytest.mark.parametrize("name", CASES)
def test_so_they_are_of_the_plain_options(name: str) -> None:
    """What a config.json of the hub says, which is shorter than what transformers writes."""
    model_type, options = CASES[name]
    known = sum(each.numel() for each in _made(name)[1].parameters())
    assert shape_of({"model_type": model_type, **options}, name).parameters == known


@pytest.mark.parametrize("name", CASES)
def test_matrices_that_a_token_meets_are_the_factors(name: str, tmp_path: Path) -> None:
    """Of tensors with two or more dimensions all but tables and biases; of experts those that a token is sent to."""
    found = _shape(name, tmp_path)
    own = {each: t for each, t in _made(name)[1].named_parameters() if t.ndim > 1 and not _added(each)}
    experts = sum(tensor.numel() for each, tensor in own.items() if ".experts." in each)
    share = found.experts_per_token * experts // found.experts if experts else 0
    assert found.matmul_parameters == sum(tensor.numel() for tensor in own.values()) - experts + share


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")  # peft's, of GPT-2's layers, which are stored the other way round
@pytest.mark.parametrize("name", [*PLAIN, "qwen2_moe", "gpt_oss", "llama4_text", "qwen3_5_moe_text"])
def test_adapters_are_those_that_peft_puts_on_all_linear_layers(name: str, tmp_path: Path) -> None:
    """Of most families with experts peft adapts these too, each in its way; here an expert is no linear layer."""
    found = _shape(name, tmp_path, rank=3)
    config = peft.LoraConfig(r=3, target_modules="all-linear", task_type="CAUSAL_LM")
    model_type, options = CASES[name]
    fresh = transformers.CONFIG_MAPPING[model_type].from_dict(dict(options))
    with torch.device("meta"):
        model = peft.inject_adapter_in_model(config, transformers.AutoModelForCausalLM.from_config(fresh))
    assert found.adapters == sum(each.numel() for name, each in model.named_parameters() if ".lora_" in name)
    assert found.trained == found.adapters
    assert found.parameters - found.adapters == _shape(name, tmp_path).parameters


# What transformers keeps besides: none of the oldest token of a window, which the next one pushes out, and of what a
# convolution reads also the newest token.
SHORT = {"gemma2": -3 * 2 * 2 * 256, "gpt_oss": -3 * 2 * 2 * 64, "mixtral": -5 * 2 * 2 * 8}
BESIDES = {**SHORT, "qwen3_next": 4 * 64, "nemotron_h": 3 * 56}


@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "gpt2", "falcon", "phi", *BESIDES])
def test_what_decoding_keeps_is_what_transformers_caches(name: str) -> None:
    model_type, options = CASES[name]
    options = {**options, "sliding_window": 4} if name in SHORT else dict(options)
    model = transformers.AutoModelForCausalLM.from_config(transformers.CONFIG_MAPPING[model_type].from_dict(options))
    with torch.no_grad():
        layers = model(torch.arange(1, 13)[None], use_cache=True).past_key_values.layers
    kept = sum(each.numel() for layer in layers for each in vars(layer).values() if torch.is_tensor(each) and each.ndim)
    assert kept == shape_of({"model_type": model_type, **options}, name).cache_numbers(12) + BESIDES.get(name, 0)


def test_every_family_has_a_case() -> None:
    elsewhere = {"kimi_k2", "nemotron-nas"}
    assert {model_type for model_type, _ in CASES.values()} | elsewhere == FAMILIES.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_config_without_its_sizes_is_refused_with_the_one_that_is_missing(name: str) -> None:
    with pytest.raises(ModelError, match=r"config\.json: \w+: (Field required|Input should be greater than 0)"):
        shape_of({"model_type": CASES[name][0]}, "config.json")


def test_kimi_is_a_deepseek() -> None:
    assert shape_of({"model_type": "kimi_k2", **LATENT}, "") == shape_of({"model_type": "deepseek_v3", **LATENT}, "")


def test_an_opt_with_narrow_embeddings_is_counted_from_its_weights() -> None:
    assert family_of({"model_type": "opt", "hidden_size": 32, "word_embed_proj_dim": 16}) is None
    assert family_of({"model_type": "opt", "hidden_size": 32, "word_embed_proj_dim": 32}) is not None


@pytest.mark.parametrize("outer", ["qwen3_5", "qwen3_5_moe", "llama4"])
def test_of_a_model_that_sees_the_language_model_counts(outer: str) -> None:
    """Its class is the one that transformers loads where a language model is asked for."""
    model_type, options = CASES[f"{outer}_text"]
    inner = {"model_type": model_type, **options}
    config = transformers.CONFIG_MAPPING[outer].from_dict({"text_config": dict(inner)})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    found = shape_of({"model_type": outer, "text_config": inner, "vision_config": {}}, "")
    assert found.parameters == sum(each.numel() for each in model.parameters())


def _layers(model: Any) -> str:
    names = [name for name, each in model.named_modules() if isinstance(each, torch.nn.ModuleList)]
    return min(names, key=lambda name: name.count("."))


def _added(name: str) -> bool:
    return any(each in name for each in ADDED) or name.endswith("bias")
