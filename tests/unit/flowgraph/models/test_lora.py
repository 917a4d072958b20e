"""Adapters: named in a text, put on, counted, and merged into what is saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from flowgraph.errors import ModelError
from flowgraph.models import LoadedModel, ModelSource, load, lora, resolve, save, shape
from flowgraph.models.loading import digest
from flowgraph.models.sources import Lora
from tests.looped import looped

IDS = torch.tensor([[1, 5, 6, 7, 4, 9], [1, 9, 9, 4, 6, 2]])
CACHE = Path("cache")
Read = Callable[..., LoadedModel]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Return `read(text, **options)`: load what a text names."""

    def loaded(text: str, seed: int = 0, **options: Any) -> LoadedModel:
        return load(resolve(text, cache=tmp_path), seed=seed, cache=tmp_path, say=print, **options)

    return loaded


def moved(model: Any) -> Any:
    """Draw what adapters start at zero with, and heads."""
    torch.manual_seed(7)
    with torch.no_grad():
        for name in sorted(lora.trained_names(model)):
            model.get_parameter(name).normal_(std=0.1)
    return model


# ------------------------------------------------------------------------------------------- texts


def test_a_text_may_end_in_adapters_whose_alpha_is_twice_the_rank_unless_said(tmp_path: Path) -> None:
    assert resolve("tiny+lora=8", cache=CACHE).lora == Lora(8, 16)
    assert resolve("smollm2-135m+lora=16,alpha=32", cache=CACHE) == ModelSource(
        "smollm2-135m+lora=16,alpha=32", "package", CACHE / "smollm2-135m", lora=Lora(16, 32)
    )
    assert resolve("org/name+lora=4", cache=CACHE).kind == "hub"
    (tmp_path / "model").mkdir()
    found = resolve(f"{tmp_path}/model+lora=2", cache=CACHE)
    assert (found.kind, found.path) == ("folder", tmp_path / "model")


@pytest.mark.parametrize("text", ["tiny", "tiny:hidden=32,layers=1", "org/name", "smollm2-135m"])
def test_what_adapters_stand_on_is_what_the_text_before_them_names(text: str) -> None:
    assert resolve(f"{text}+lora=8,alpha=3", cache=CACHE).base == resolve(text, cache=CACHE)
    assert resolve(text, cache=CACHE).base == resolve(text, cache=CACHE)


@looped(
    "options, why",
    [
        ("0", "rank=0 is not an integer from 1 to 1024"),
        ("", "rank= is not an integer from 1 to 1024"),
        ("2000", "rank=2000 is not an integer from 1 to 1024"),
        ("8,alpha=1.5", "alpha=1.5 is not an integer from 1 to 65536"),
        ("8,alfa=1", "`lora` has no option `alfa`\n  hint: it takes a rank and alpha: +lora=8,alpha=16"),
        ("8,alpha=1,alpha=2", "alpha is given twice\n  hint: it takes a rank and alpha: +lora=8,alpha=16"),
        ("8+lora=4", "adapters need a model that has none\n  hint: write +lora= once"),
    ],
)
def test_adapters_that_cannot_be_are_refused(options: str, why: str) -> None:
    with pytest.raises(ModelError) as caught:
        resolve(f"tiny+lora={options}", cache=CACHE)
    assert str(caught.value) == f"tiny+lora={options}: {why}"


def test_what_is_suggested_for_adapters_is_ten_times_the_learning_rate() -> None:
    plain, adapted = (resolve(text, cache=CACHE).suggest() for text in ("smollm2-135m", "smollm2-135m+lora=8"))
    assert adapted["update.lr"] == pytest.approx(10 * plain["update.lr"])
    assert {**adapted, "update.lr": 0} == {**plain, "update.lr": 0}


# ------------------------------------------------------------------------------------------- loading


def test_adapters_change_no_output_at_first_and_are_the_same_in_every_process(read: Read) -> None:
    plain, one, two, other = read("tiny"), read("tiny+lora=4"), read("tiny+lora=4"), read("tiny+lora=4", seed=1)
    assert torch.equal(plain.model(input_ids=IDS).logits, one.model(input_ids=IDS).logits)
    assert type(one.model) is type(plain.model)
    assert one.name == "tiny+lora=4"
    assert one.digest == plain.digest
    assert digest(one.model) == digest(two.model) != plain.digest
    name = "model.layers.0.mlp.up_proj.lora_A.default.weight"
    assert not torch.equal(one.model.get_parameter(name), other.model.get_parameter(name))
    assert not one.model.training


@pytest.mark.parametrize("head", ["tokens", "values"])
def test_every_linear_layer_but_the_head_has_adapters(read: Read, head: str) -> None:
    model = read("tiny+lora=4", head=head).model
    layers = {name.partition(".lora_")[0].rpartition(".")[2] for name in lora.trained_names(model) if ".lora_" in name}
    assert layers == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    rest = {name for name in lora.trained_names(model) if ".lora_" not in name}
    assert rest == ({"score.weight", "score.bias"} if head == "values" else set())


@pytest.mark.parametrize("trainable", [True, False])
def test_what_stands_under_adapters_is_never_trained(read: Read, trainable: bool) -> None:
    model = read("tiny+lora=4", head="values").model
    lora.set_trainable(model, trainable)
    trained = {name for name, each in model.named_parameters() if each.requires_grad}
    assert trained == (lora.trained_names(model) if trainable else set())
    with lora.adapters_off(model):
        pass
    assert trained == {name for name, each in model.named_parameters() if each.requires_grad}


def test_without_adapters_everything_is_trained(read: Read) -> None:
    model = read("tiny").model
    assert not lora.has_adapters(model)
    assert lora.trained_names(model) == {name for name, _ in model.named_parameters()}
    assert lora.carried_names(model) == set(model.state_dict())


def test_with_adapters_off_a_model_answers_as_what_they_stand_on(read: Read) -> None:
    plain, adapted = read("tiny"), read("tiny+lora=4")
    wanted = plain.model(input_ids=IDS).logits
    moved(adapted.model)
    assert not torch.allclose(adapted.model(input_ids=IDS).logits, wanted, atol=0.01)
    with lora.adapters_off(adapted.model):
        assert torch.equal(adapted.model(input_ids=IDS).logits, wanted)
    with pytest.raises(ZeroDivisionError), lora.adapters_off(adapted.model):
        _ = 1 // 0
    assert not torch.allclose(adapted.model(input_ids=IDS).logits, wanted, atol=0.01)


# ------------------------------------------------------------------------------------------- saving


def test_what_is_saved_is_the_plain_model_with_the_adapters_merged_into_it(read: Read, tmp_path: Path) -> None:
    made = read("tiny+lora=4,alpha=12")
    wanted = moved(made.model)(input_ids=IDS).logits
    save(made.model, made.tokenizer, tmp_path / "saved")
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert back.state_dict().keys() == read("tiny").model.state_dict().keys()
    assert torch.allclose(back(input_ids=IDS).logits, wanted, atol=1e-5)
    assert torch.equal(made.model(input_ids=IDS).logits, wanted), "the model itself is as it was"
    assert torch.allclose(read(str(tmp_path / "saved")).model(input_ids=IDS).logits, wanted, atol=1e-5)


def test_the_adapters_lie_beside_it_as_peft_reads_them(read: Read, tmp_path: Path) -> None:
    from peft import PeftModel

    made = read("tiny+lora=4,alpha=12")
    wanted = moved(made.model)(input_ids=IDS).logits
    save(made.model, made.tokenizer, tmp_path / "saved")
    put_on = PeftModel.from_pretrained(read("tiny").model, str(tmp_path / "saved" / "adapter"))
    assert torch.allclose(put_on(input_ids=IDS).logits, wanted, atol=1e-6)
    assert put_on.peft_config["default"].base_model_name_or_path == "tiny"


def test_a_classifier_with_adapters_is_saved_whole_with_its_head(read: Read, tmp_path: Path) -> None:
    made = read("tiny+lora=4", head="values")
    wanted = moved(made.model)(input_ids=IDS).logits
    save(made.model, made.tokenizer, tmp_path / "saved")
    back = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "saved")
    assert torch.allclose(back(input_ids=IDS).logits, wanted, atol=1e-5)
    assert not (tmp_path / "saved" / "adapter").exists()


def test_layers_whose_weights_lie_the_other_way_round_and_tied_heads_are_merged_as_well(tmp_path: Path) -> None:
    from flowgraph.models import tiny

    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=20, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    model = transformers.GPT2LMHeadModel(config)
    source = resolve("tiny+lora=3", cache=CACHE)
    moved(lora.add_adapters(model, source, 0))
    wanted = model(input_ids=IDS).logits
    save(model, tiny.build(0)[1], tmp_path / "saved")
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.allclose(back(input_ids=IDS).logits, wanted, atol=1e-5)


# ------------------------------------------------------------------------------------------- sizes


@looped("head", ["tokens", "values", "score"])
@looped("text", ["tiny", "tiny:hidden=48,heads=6+lora=5"])
def test_parameters_and_what_is_trained_are_those_of_the_real_module(read: Read, text: str, head: Any) -> None:
    found, model = shape(resolve(text, cache=CACHE), head), read(text, head=head).model
    assert found.parameters == sum(each.numel() for each in model.parameters())
    assert found.trained == sum(model.get_parameter(name).numel() for name in lora.trained_names(model))
    assert found.adapters == sum(each.numel() for name, each in model.named_parameters() if ".lora_" in name)
    assert found.outputs == model(input_ids=IDS).logits.shape[-1]
    assert (found.tables, found.base) == (2 if head == "tokens" else 1, text.partition("+")[0])


@looped("tied", [False, True])
@looped("has", ["CausalLM", "TokenClassification"])
@looped("family", ["Qwen3", "Gemma2"])
def test_a_folder_is_counted_as_it_is_loaded(read: Read, tmp_path: Path, family: str, has: str, tied: bool) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 40, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = getattr(transformers, f"{family}Config")(**sizes, **heads, num_labels=1, tie_word_embeddings=tied)
    model = getattr(transformers, f"{family}For{has}")(config)
    save(model, read("tiny").tokenizer, tmp_path / "model")
    text = f"{tmp_path}/model+lora=3"
    loaded = read(text, head="values").model
    found = shape(resolve(text, cache=CACHE), "values")
    assert found.parameters == sum(each.numel() for each in loaded.parameters())
    assert found.trained == sum(loaded.get_parameter(name).numel() for name in lora.trained_names(loaded))
