"""Models loaded under a head: taken over, whole, or refused, and saved as folders that transformers loads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from flowgraph.errors import ModelError
from flowgraph.files.hashes import SUMS
from flowgraph.models import LoadedModel, load, resolve, save, tiny
from flowgraph.models.heads import head_names, head_of, with_head
from flowgraph.models.loading import digest

IDS = torch.tensor([[1, 5, 6, 7, 4, 9]])
Read = Callable[..., LoadedModel]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Return `read(text, **options)`: load what a text names."""

    def loaded(text: str, **options: Any) -> LoadedModel:
        return load(resolve(text, cache=tmp_path), seed=0, cache=tmp_path, say=print, **options)

    return loaded


def labelled(kind: str, folder: Path, labels: int = 1) -> Path:
    """Save a Llama that classifies, whose head is drawn, with its tokenizer."""
    model, tokenizer = tiny.build(3)
    model.config.num_labels = labels
    torch.manual_seed(5)
    made = getattr(transformers, f"LlamaFor{kind}Classification")(model.config)
    made.score.weight.data.normal_()
    save(made, tokenizer, folder)
    (folder / SUMS).unlink()  # as a folder of others: tests change it
    return folder


def refusal(call: Callable[[], object], folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        call()
    return str(caught.value).replace(str(folder), "FOLDER")


def test_a_language_models_backbone_is_taken_over_under_a_head_of_zeros(read: Read, tmp_path: Path) -> None:
    plain = read("tiny")
    save(plain.model, plain.tokenizer, tmp_path / "plain")
    for text in ("tiny", str(tmp_path / "plain")):
        found = read(text, head="values")
        assert type(found.model).__name__ == "LlamaForTokenClassification"
        assert not found.model(input_ids=IDS).logits.any()
        pairs = zip(found.model.model.named_parameters(), plain.model.model.named_parameters(), strict=True)
        assert all(one[0] == two[0] and torch.equal(one[1], two[1]) for one, two in pairs)
        assert (found.model(input_ids=IDS).logits.shape, found.model.training) == ((1, 6, 1), False)
        assert found.notes == (f"{text}: its head was replaced by one of one output, which starts at 0",)
        assert found.digest == digest(found.model) != plain.digest
        assert found.tokenizer.get_vocab() == plain.tokenizer.get_vocab()


def test_a_tied_embedding_stays_when_the_head_goes(tmp_path: Path) -> None:
    model, _ = tiny.build(0)
    config = transformers.LlamaConfig(**model.config.to_dict() | {"tie_word_embeddings": True})
    tied = transformers.LlamaForCausalLM(config)
    before = tied.model.embed_tokens.weight.clone()
    found, _ = with_head(tied, "values", "tied")
    assert torch.equal(found.model.embed_tokens.weight, before)
    assert head_names(found) == {"score.weight", "score.bias"}
    found.save_pretrained(tmp_path / "saved")
    back = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "saved")
    assert torch.equal(back(input_ids=IDS).logits, found(input_ids=IDS).logits)


def test_a_classifier_of_tokens_is_loaded_whole(read: Read, tmp_path: Path) -> None:
    folder = labelled("Token", tmp_path / "model")
    found = read(str(folder), head="values")
    alone = transformers.AutoModelForTokenClassification.from_pretrained(folder).eval()
    assert torch.equal(found.model(input_ids=IDS).logits, alone(input_ids=IDS).logits)
    assert found.notes == ()


def test_a_classifier_of_texts_hands_its_head_on_to_values(read: Read, tmp_path: Path) -> None:
    folder = labelled("Sequence", tmp_path / "model")
    found = read(str(folder), head="values")
    alone = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert torch.allclose(found.model(input_ids=IDS).logits[:, -1], alone(input_ids=IDS).logits, atol=1e-6)
    assert found.notes == (f"{folder}: its head for whole texts is reused at each token",)


def test_a_classifier_of_texts_is_loaded_whole_and_tiny_gets_one_from_the_seed(read: Read, tmp_path: Path) -> None:
    folder = labelled("Sequence", tmp_path / "model")
    found = read(str(folder), head="score")
    alone = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert torch.equal(found.model(input_ids=IDS).logits, alone(input_ids=IDS).logits)
    one, two = read("tiny", head="score"), read("tiny", head="score")
    assert one.digest == two.digest
    assert one.model.score.weight.std() > 0.01
    assert one.notes == ("tiny: its head was replaced by one of one output, which is drawn from the seed",)


def test_what_has_no_head_for_texts_is_refused(read: Read, tmp_path: Path) -> None:
    tiny.make(0, tmp_path / "plain")
    labelled("Token", tmp_path / "tokens")
    for name, has in (("plain", "a causal language model"), ("tokens", "a classifier of tokens with one label")):
        folder = tmp_path / name
        assert refusal(lambda folder=folder: read(str(folder), head="score"), folder) == (
            f"FOLDER: has no head that scores whole texts: config.json describes {has}\n"
            "  hint: name a folder or hub id of a classifier of whole texts with one label"
        )


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("kind", "what"), [("Token", "tokens"), ("Sequence", "whole texts")])
def test_a_classifier_is_no_language_model(read: Read, tmp_path: Path, kind: str, what: str, tied: bool) -> None:
    """Where embeddings are tied transformers finds an output in it, and nothing that is missing."""
    folder = labelled(kind, tmp_path / "model")
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tie_word_embeddings": tied}))
    assert refusal(lambda: read(str(folder)), folder) == (
        f"FOLDER: has no head that gives logits: config.json describes a classifier of {what} with one label\n"
        "  hint: name a folder or hub id of a causal language model"
    )


@pytest.mark.parametrize(("kind", "head"), [("Token", "values"), ("Sequence", "score"), ("Sequence", "values")])
def test_a_head_of_several_numbers_is_refused(read: Read, tmp_path: Path, kind: str, head: str) -> None:
    folder = labelled(kind, tmp_path / "model", labels=3)
    told = refusal(lambda: read(str(folder), head=head), folder)
    assert told == "FOLDER: its head gives 3 numbers instead of one"


def test_a_classifier_whose_head_is_not_in_the_file_is_refused(read: Read, tmp_path: Path) -> None:
    folder = tiny.make(0, tmp_path / "model")
    (folder / SUMS).unlink()
    file = folder / "config.json"
    content = json.loads(file.read_text()) | {"architectures": ["LlamaForTokenClassification"], "num_labels": 1}
    file.write_text(json.dumps(content))
    assert "not in the file: score." in refusal(lambda: read(str(folder), head="values"), folder)


def test_a_family_without_such_a_class_is_refused() -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.OlmoForCausalLM(transformers.OlmoConfig(vocab_size=20, **sizes))
    with pytest.raises(ModelError) as caught:
        with_head(model, "values", "olmo")
    assert str(caught.value) == "olmo: transformers makes no AutoModelForTokenClassification of the family olmo"


def test_a_head_is_told_by_the_class(read: Read) -> None:
    assert [head_of(read("tiny", head=head).model) for head in ("tokens", "values", "score")] == [
        "tokens",
        "values",
        "score",
    ]
    assert head_names(read("tiny").model) == frozenset()


def test_a_head_draws_nothing_from_the_callers_random_state(read: Read) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    for head in ("values", "score"):
        read("tiny+lora=2", head=head)
    assert torch.equal(torch.get_rng_state(), before)
