"""Sizes read from config.json against the modules of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from flowgraph.errors import ModelError
from flowgraph.models import resolve, shape, smollm2
from flowgraph.models.sizes import shape_of
from tests.looped import looped

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
}


@looped("tied", [False, True])
@looped(
    "family, more",
    [
        ("Llama", {}),
        ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 16}),
        ("Mistral", {"head_dim": 12}),
        ("Qwen2", {}),
        ("Qwen3", {}),
        ("Qwen3", {"attention_bias": True, "head_dim": 8}),
        ("Olmo2", {}),
        ("Gemma2", {"head_dim": 8}),
    ],
)
def test_the_count_is_that_of_the_real_module(family: str, more: dict[str, Any], tied: bool, tmp_path: Path) -> None:
    config = getattr(transformers, f"{family}Config")(**SIZES, **more, tie_word_embeddings=tied)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    model.save_pretrained(tmp_path / "model")
    found = shape(resolve(str(tmp_path / "model"), cache=tmp_path))
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert (found.hidden, found.layers, found.heads, found.kv_heads) == (32, 3, 4, 2)
    assert found.head_dim == model.model.layers[0].self_attn.head_dim
    assert (found.intermediate, found.vocabulary, found.tied) == (48, 40, tied)


@pytest.mark.parametrize("text", ["tiny", "tiny:hidden=48,layers=3,heads=6,intermediate=64"])
def test_the_count_of_tiny_is_that_of_its_module(text: str, tmp_path: Path) -> None:
    from flowgraph.models import tiny

    source = resolve(text, cache=tmp_path)
    model, _ = tiny.build(0, source.size)
    assert shape(source).parameters == sum(p.numel() for p in model.parameters())


def test_the_count_of_the_packaged_model_is_known_without_it(tmp_path: Path) -> None:
    assert shape(resolve("smollm2-135m", cache=tmp_path)).parameters == 134_515_008
    assert shape_of(smollm2.CONFIG, "built in").kv_heads == 3


def test_a_config_that_lacks_a_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 8}))
    with pytest.raises(ModelError) as caught:
        shape(resolve(str(tmp_path), cache=tmp_path))
    assert str(caught.value) == f"{tmp_path}/config.json: num_hidden_layers: Field required"


def test_an_unknown_family_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "zebra", **SIZES}))
    with pytest.raises(ModelError) as caught:
        shape(resolve(str(tmp_path), cache=tmp_path))
    assert str(caught.value) == (
        f"{tmp_path}/config.json: the parameters of a zebra model are counted from its weights, which are not here\n"
        f"    {tmp_path}: has config.json but no model.safetensors or model.safetensors.index.json; "
        "files: config.json\n"
        "  hint: counted from config.json: llama, mistral, qwen2, qwen3 and 32 more"
    )
