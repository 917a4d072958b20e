"""The small model made on the spot."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowgraph.errors import ModelError
from flowgraph.models import TinySize, load, resolve, tiny
from flowgraph.models.loading import digest

TOKENIZER = tiny.build(0)[1]


def test_the_same_seed_makes_the_same_weights_and_another_seed_others() -> None:
    assert digest(tiny.build(3)[0]) == digest(tiny.build(3)[0])
    assert digest(tiny.build(3)[0]) != digest(tiny.build(4)[0])


def test_making_it_leaves_the_callers_random_state_alone() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    tiny.build(0)
    assert torch.equal(torch.get_rng_state(), before)


@given(st.text(tiny.CHARACTERS, max_size=30))
def test_any_text_of_its_characters_comes_back_as_it_was(text: str) -> None:
    ids = TOKENIZER(text)["input_ids"]
    assert len(ids) == len(text)
    assert TOKENIZER.decode(ids) == text
    assert TOKENIZER.decode([*ids, TOKENIZER.eos_token_id], skip_special_tokens=True) == text


def test_characters_it_does_not_know_become_unk_one_by_one() -> None:
    assert TOKENIZER.convert_ids_to_tokens(TOKENIZER("1a\né")["input_ids"]) == ["1", "<unk>", "<unk>", "<unk>"]


def test_a_chat_is_bos_the_content_and_a_separator() -> None:
    turn = [{"role": "user", "content": "374"}]
    ids = TOKENIZER.apply_chat_template(turn, add_generation_prompt=True)["input_ids"]
    assert TOKENIZER.convert_ids_to_tokens(ids) == ["<bos>", "3", "7", "4", "<sep>"]
    answered = TOKENIZER.apply_chat_template([*turn, {"role": "assistant", "content": "4"}], tokenize=False)
    assert answered == "<bos>374<sep>4<eos>"


def test_the_made_folder_loads_as_the_same_model_in_silence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tiny.make(5, tmp_path / "made")
    with_ours = load(resolve(str(folder), cache=tmp_path), seed=0, cache=tmp_path, say=print)
    at_once = load(resolve("tiny", cache=tmp_path), seed=5, cache=tmp_path, say=print)
    assert capfd.readouterr() == ("", "")
    assert with_ours.digest == at_once.digest == digest(AutoModelForCausalLM.from_pretrained(folder))
    read = AutoTokenizer.from_pretrained(folder)
    assert read.decode(read("374")["input_ids"]) == "374"
    assert read.chat_template == TOKENIZER.chat_template
    assert read.get_vocab() == TOKENIZER.get_vocab()
    assert (read.pad_token_id, read.bos_token_id, read.eos_token_id, read.unk_token_id) == (0, 1, 2, 3)
    assert "WARN" not in capfd.readouterr().err.upper()


def test_options_set_the_size(tmp_path: Path) -> None:
    source = resolve("tiny:hidden=32,layers=1,positions=64", cache=tmp_path)
    loaded = load(source, seed=0, cache=tmp_path, dtype="bfloat16", say=print)
    assert (loaded.model.config.hidden_size, loaded.model.config.num_hidden_layers) == (32, 1)
    assert loaded.tokenizer.model_max_length == 64
    assert {p.dtype for p in loaded.model.parameters()} == {torch.bfloat16}
    assert not loaded.model.training


def test_it_is_not_made_over_a_folder_that_exists(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        tiny.make(0, tmp_path, TinySize(layers=1))
    assert str(caught.value) == (
        f"{tmp_path}: already exists; a model is not saved over it\n  hint: name another folder"
    )
