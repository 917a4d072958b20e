"""The families of decoders whose parameters are counted from config.json, by `model_type`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowgraph.models.families import dense, early, hybrid, latent, sparse
from flowgraph.models.families.decoder import Decoder, Gated

__all__ = ["FAMILIES", "Decoder", "Gated", "family_of", "language_model"]

FAMILIES: Mapping[str, type[Decoder]] = {
    "llama": dense.Llama,
    "mistral": dense.Mistral,
    "qwen2": dense.Qwen2,
    "qwen3": dense.Qwen3,
    "phi3": dense.Phi3,
    "gemma": dense.Gemma,
    "gemma2": dense.Gemma2,
    "gemma3_text": dense.Gemma3,
    "granite": dense.Llama,
    "olmo2": dense.Olmo2,
    "olmo3": dense.Olmo3,
    "smollm3": dense.SmolLM3,
    "mixtral": sparse.Mixtral,
    "qwen2_moe": sparse.Qwen2Moe,
    "qwen3_moe": sparse.Qwen3Moe,
    "gpt_oss": sparse.GptOss,
    "glm4_moe": sparse.Glm4Moe,
    "minimax_m2": sparse.MiniMaxM2,
    "llama4_text": sparse.Llama4,
    "deepseek_v2": latent.DeepseekV2,
    "deepseek_v3": latent.Latent,
    "kimi_k2": latent.Latent,
    "deepseek_v32": latent.Indexed,
    "glm_moe_dsa": latent.Glm5,
    "deepseek_v4": latent.DeepseekV4,
    "qwen3_next": hybrid.Qwen3Next,
    "qwen3_5_text": hybrid.Qwen35,
    "qwen3_5_moe_text": hybrid.Qwen35Moe,
    "nemotron_h": hybrid.NemotronH,
    "gpt2": early.GPT2,
    "opt": early.OPT,
    "bloom": early.Bloom,
    "gpt_neox": early.GPTNeoX,
    "phi": early.Phi,
    "falcon": early.Falcon,
    "nemotron-nas": dense.LlamaNemotron,
}

# Vision-language models; transformers loads only their language model.
_VISION = {"qwen3_5", "qwen3_5_moe", "llama4", "kimi_k25"}


def language_model(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a config.json that describes the language model.

    This is `text_config` for a known vision-language model, and otherwise the whole config.json.

    >>> language_model({"model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_text"}})
    {'model_type': 'qwen3_5_text'}
    """
    inner = config.get("text_config")
    return inner if str(config.get("model_type")) in _VISION and isinstance(inner, Mapping) else config


def family_of(config: Mapping[str, Any]) -> type[Decoder] | None:
    """Return the class that counts a model's parameters from its config.json; None for a model that no class counts.

    >>> family_of({"model_type": "zebra"}) is None
    True
    """
    if config.get("model_type") == "opt" and config.get("word_embed_proj_dim") not in (None, config.get("hidden_size")):
        return None  # the embeddings have another width than the layers
    return FAMILIES.get(str(config.get("model_type")))
