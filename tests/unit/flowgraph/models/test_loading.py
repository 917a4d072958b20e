"""Loading a folder, and every way in which a folder can be no model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file

from flowgraph.errors import ModelError
from flowgraph.files.hashes import SUMS
from flowgraph.models import LoadedModel, TinySize, load, resolve, tiny
from flowgraph.models.tokenizing import try_template

SIZE = TinySize(hidden=16, layers=2, heads=2, intermediate=16)
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.make(0, tmp_path_factory.mktemp("made") / "model", SIZE)
    (folder / SUMS).unlink()  # as a folder of others: each test changes it
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "model"))


def read(folder: Path, **options: Any) -> LoadedModel:
    return load(resolve(str(folder), cache=folder), seed=0, cache=folder, say=print, **options)


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(ModelError) as caught:
        read(folder, **options)
    return str(caught.value).replace(str(folder), "FOLDER")


def edit_json(file: Path, **changes: Any) -> None:
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def edit_weights(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})


def test_a_good_folder_loads_in_eval_mode_and_float32(folder: Path) -> None:
    loaded = read(folder)
    assert not loaded.model.training
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    assert (loaded.name, loaded.notes, len(loaded.digest)) == (str(folder), (), 64)


class OneTemplate:
    """As much of a tokenizer as is asked for its template."""

    special_tokens_map: ClassVar = {"bos_token": "<s>"}

    def __init__(self, text: str) -> None:
        self.get_chat_template = lambda: text


def test_a_chat_template_that_eats_memory_or_time_is_refused_and_an_odd_one_is_not(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ 'x' * 10**11 }}")
    much = "FOLDER: its chat template takes more than 1.0 GiB or 1048576 characters for a one-message chat"
    assert refusal(folder) == much
    with pytest.raises(ModelError, match="or 1048576 characters"):
        try_template(OneTemplate("{% for i in range(99999) %}{{ 'spam' * 1000 }}{% endfor %}"), folder)
    loops = "".join(f"{{% for {name} in range(99999) %}}" for name in "abcd") + "{% endfor %}" * 4
    with pytest.raises(ModelError, match="its chat template does not render a one-message chat in 2 s"):
        try_template(OneTemplate(loops), folder)
    for text in (
        "{% generation %}{{ messages[0].content }}{% endgeneration %}",
        "{{ raise_exception('no') }}",
        "{% if",
    ):
        try_template(OneTemplate(text), folder)


def test_another_dtype_is_a_choice_and_an_unknown_one_an_error(folder: Path) -> None:
    assert read(folder, dtype="bfloat16").model.dtype == torch.bfloat16
    assert refusal(folder, dtype="float23") == "FOLDER: no dtype `float23`\n  hint: did you mean `float32`?"


def test_one_changed_number_changes_the_digest(folder: Path) -> None:
    before = read(folder).digest

    def change(tensors: Tensors) -> Tensors:
        tensors["model.norm.weight"][3] += 1e-6
        return tensors

    edit_weights(folder, change)
    assert read(folder).digest != before


def test_sharded_weights_load_and_a_missing_shard_is_named(folder: Path) -> None:
    whole = read(folder)
    shards = folder.parent / "shards"
    whole.model.save_pretrained(shards, max_shard_size="10KB")
    whole.tokenizer.save_pretrained(shards)
    assert read(shards).digest == whole.digest
    first = min(shards.glob("*.safetensors"))
    first.unlink()
    told = refusal(shards)
    assert told.startswith(f"FOLDER: lacks 1 of {len(list(shards.glob('*.safetensors'))) + 1} files of weights: ")
    assert first.name in told


def test_a_folder_without_config_is_refused(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert refusal(folder) == (
        "FOLDER: has no config.json; files: chat_template.jinja, generation_config.json, model.safetensors, "
        "tokenizer.json, tokenizer_config.json"
    )


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path) == "FOLDER: has no config.json; the folder is empty"


def test_a_folder_that_went_away_is_refused(folder: Path) -> None:
    source = resolve(str(folder), cache=folder)
    shutil.rmtree(folder)
    with pytest.raises(ModelError) as caught:
        load(source, seed=0, cache=folder, say=print)
    assert str(caught.value) == f"{folder}: no such folder"


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert refusal(folder) == (
        "FOLDER: has config.json but no model.safetensors or model.safetensors.index.json; files: chat_template.jinja, "
        "config.json, generation_config.json, tokenizer.json, tokenizer_config.json"
    )


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert refusal(folder) == (
        "FOLDER: has its weights as pickles only (pytorch_model.bin), which are not loaded; files: "
        "chat_template.jinja, config.json, generation_config.json, pytorch_model.bin, tokenizer.json, "
        "tokenizer_config.json\n"
        "  hint: save it once more with save_pretrained, which writes safetensors"
    )


@pytest.mark.parametrize(
    ("keep_bytes", "told"),
    [
        (0, "is not a safetensors file, or is cut off (0 bytes)"),
        (5, "is not a safetensors file, or is cut off (5 bytes)"),
        (500, "is not a safetensors file, or is cut off (500 bytes)"),
        (-1, "is cut off or too long: {has} bytes, its header says {wants}"),
    ],
)
def test_cut_off_weights_are_refused(folder: Path, keep_bytes: int, told: str) -> None:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:keep_bytes])
    text = told.format(has=len(content) - 1, wants=len(content))
    assert refusal(folder) == f"FOLDER/model.safetensors: {text}"


@pytest.mark.parametrize("header", [b"[1, 2]", b'{"a": 3}', b"\xff\xff", b'{"a": {"shape": [2], "data_offsets": []}}'])
def test_a_header_that_is_none_is_refused(folder: Path, header: bytes) -> None:
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert refusal(folder) == "FOLDER/model.safetensors: is not a safetensors file: its header cannot be read"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "cannot be read as JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("[]", "is not a JSON object"),
    ],
)
def test_a_config_that_is_no_json_is_refused(folder: Path, text: str, told: str) -> None:
    (folder / "config.json").write_text(text)
    assert refusal(folder) == f"FOLDER/config.json: {told}"


MADE_UP = "\n  hint: a model is not loaded if some of its weights would be random"


def test_missing_weights_are_not_made_up(folder: Path) -> None:
    edit_weights(folder, lambda t: {key: value for key, value in t.items() if key != "lm_head.weight"})
    assert refusal(folder) == (
        f"FOLDER: the weights do not fit config.json\n    not in the file: lm_head.weight{MADE_UP}"
    )


def test_a_layer_too_many_in_the_config_is_refused(folder: Path) -> None:
    edit_json(folder / "config.json", num_hidden_layers=3)
    assert refusal(folder) == (
        "FOLDER: the weights do not fit config.json\n"
        "    not in the file: model.layers.2.input_layernorm.weight, model.layers.2.mlp.down_proj.weight, "
        f"model.layers.2.mlp.gate_proj.weight, … (9 in all){MADE_UP}"
    )


def test_a_layer_too_few_in_the_config_is_refused(folder: Path) -> None:
    edit_json(folder / "config.json", num_hidden_layers=1)
    assert refusal(folder) == (
        "FOLDER: the weights do not fit config.json\n"
        "    not in the model: model.layers.1.input_layernorm.weight, model.layers.1.mlp.down_proj.weight, "
        f"model.layers.1.mlp.gate_proj.weight, … (9 in all){MADE_UP}"
    )


def test_weights_of_other_sizes_are_refused(folder: Path) -> None:
    edit_json(folder / "config.json", intermediate_size=32)
    assert refusal(folder) == (
        "FOLDER: the weights do not fit config.json\n"
        "    model.layers.0.mlp.down_proj.weight: the file has [16, 16], config.json says [16, 32]\n"
        "    model.layers.0.mlp.gate_proj.weight: the file has [16, 16], config.json says [32, 16]\n"
        f"    model.layers.0.mlp.up_proj.weight: the file has [16, 16], config.json says [32, 16]{MADE_UP}"
    )


def test_two_embeddings_that_should_be_one_are_refused(folder: Path) -> None:
    edit_json(folder / "config.json", tie_word_embeddings=True)
    assert refusal(folder) == (
        "FOLDER: the weights do not fit config.json\n"
        f"    config.json ties the output to the embedding, the file has two different ones{MADE_UP}"
    )


def test_weights_that_are_not_numbers_are_refused(folder: Path) -> None:
    def spoil(tensors: Tensors) -> Tensors:
        tensors["model.norm.weight"][0] = float("nan")
        return tensors

    edit_weights(folder, spoil)
    assert refusal(folder) == "FOLDER: has weights that are NaN or infinite: model.norm.weight"


def test_weights_beside_the_model_are_noted(folder: Path) -> None:
    edit_weights(folder, lambda t: t | {"v_head.weight": torch.zeros(1, 16)})
    assert read(folder).notes == (f"{folder}: weights not used: v_head.weight",)


def test_code_that_comes_with_a_model_is_not_run(folder: Path) -> None:
    code = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}
    edit_json(folder / "config.json", model_type="zebra", auto_map=code)
    (folder / "evil.py").write_text("raise SystemExit(3)")
    assert refusal(folder) == "FOLDER: needs code that comes with the model, which is not run"


def test_a_model_of_an_unknown_kind_is_refused(folder: Path) -> None:
    edit_json(folder / "config.json", model_type="zebra")
    assert refusal(folder).startswith("FOLDER: transformers cannot load it: The checkpoint you are trying to load has")


def test_a_model_that_is_no_language_model_is_refused(folder: Path) -> None:
    edit_json(folder / "config.json", model_type="vit")
    assert refusal(folder) == "FOLDER: config.json does not describe a causal language model"


def test_a_config_with_a_value_of_the_wrong_type_is_refused(folder: Path) -> None:
    edit_json(folder / "config.json", hidden_size="wide")
    assert refusal(folder).startswith("FOLDER: transformers cannot load it: ")


def test_a_folder_without_tokenizer_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert refusal(folder) == (
        "FOLDER: has no tokenizer (tokenizer.json, tokenizer.model, vocab.json, vocab.txt); files: "
        "chat_template.jinja, config.json, generation_config.json, model.safetensors, tokenizer_config.json"
    )


def test_a_broken_tokenizer_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    assert refusal(folder).startswith("FOLDER: the tokenizer cannot be read: ")


def test_a_tokenizer_without_an_end_is_refused(folder: Path) -> None:
    edit_json(folder / "tokenizer_config.json", eos_token=None)
    assert refusal(folder) == (
        "FOLDER: the tokenizer has no end token, so no response would end\n"
        "  hint: name its `eos_token` in tokenizer_config.json"
    )


def test_a_tokenizer_of_another_model_is_refused(folder: Path) -> None:
    edit_json(folder / "config.json", vocab_size=10)
    edit_weights(folder, lambda t: {k: v[:10].clone() if "embed" in k or "lm_head" in k else v for k, v in t.items()})
    assert refusal(folder) == "FOLDER: the tokenizer has ids up to 19, the model has 10 rows"


def test_a_base_model_gets_the_contents_joined_and_this_is_noted(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    edit_json(folder / "tokenizer_config.json", pad_token=None)
    loaded = read(folder)
    assert loaded.notes == (
        f"{folder}: the tokenizer has no padding token; <eos> pads",
        f"{folder}: the tokenizer has no chat template; a prompt is its messages joined by line breaks",
    )
    turns = [{"role": "system", "content": "1"}, {"role": "user", "content": "2+3"}]
    assert loaded.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True) == "1\n2+3"


@pytest.mark.parametrize("fault", ["good", "missing", "tied"])
def test_nothing_is_printed_and_the_settings_of_transformers_come_back(
    folder: Path, fault: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers.utils import logging

    before = (logging.get_verbosity(), logging.is_progress_bar_enabled())
    if fault == "good":
        read(folder)
    else:
        edit_json(
            folder / "config.json", **{"tie_word_embeddings": True} if fault == "tied" else {"num_hidden_layers": 9}
        )
        refusal(folder)
    assert capfd.readouterr() == ("", "")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
