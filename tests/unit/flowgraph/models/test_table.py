"""The shipped table of models: its sizes against published counts and real modules, and the names it is asked by."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import flowgraph.models.table as of_table
from flowgraph.errors import ModelError
from flowgraph.models import ModelSource, resolve, shape
from flowgraph.models.families import FAMILIES
from flowgraph.models.sizes import shape_of
from flowgraph.models.table import full_name, listed, nearest_names, table

CACHE = Path("cache")

# Published counts of parameters, and numbers cached for each token in a short context.
PUBLISHED = {
    "Llama-3.1-8B": (8_030_261_248, 65_536),
    "Llama-3.1-70B": (70_553_706_496, 163_840),
    "Llama-3.1-405B": (405_853_388_800, 258_048),
    "Llama-3.2-1B": (1_235_814_400, 16_384),
    "Llama-3.2-3B": (3_212_749_824, 57_344),
    "Llama-2-70B": (68_976_648_192, 163_840),
    "LLaMA-7B": (6_738_415_616, 262_144),
    "LLaMA-13B": (13_015_864_320, 409_600),
    "LLaMA-33B": (32_528_943_616, 798_720),
    "CodeLlama-34B": (33_743_970_304, 98_304),
    "Mistral-7B": (7_241_732_096, 65_536),
    "Qwen2.5-0.5B": (494_032_768, 6_144),
    "Qwen2.5-1.5B": (1_543_714_304, 14_336),
    "Qwen2.5-3B": (3_085_938_688, 18_432),
    "Qwen2.5-7B": (7_615_616_512, 28_672),
    "Qwen2.5-14B": (14_770_033_664, 98_304),
    "Qwen2.5-32B": (32_763_876_352, 131_072),
    "Qwen2.5-72B": (72_706_203_648, 163_840),
    "Qwen3-0.6B": (596_049_920, 57_344),
    "Qwen3-1.7B": (1_720_574_976, 57_344),
    "Qwen3-4B": (4_022_468_096, 73_728),
    "Qwen3-8B": (8_190_735_360, 73_728),
    "Qwen3-14B": (14_768_307_200, 81_920),
    "Qwen3-32B": (32_762_123_264, 131_072),
    "Qwen3-30B-A3B": (30_532_122_624, 49_152),
    "Qwen3-235B-A22B": (235_093_634_560, 96_256),
}

# Source: the count of each checkpoint on the hub, without its routers' biases, which transformers keeps as buffers.
MINUS_BUFFERS = {
    "deepseek-ai/DeepSeek-V3": 671_026_419_200 - 58 * 256,
    "moonshotai/Kimi-K2-Instruct": 1_026_408_232_448 - 60 * 384,
}

# Source: model cards. Parameters that a token passes, in billions; some cards leave the embedding out.
ACTIVE = {
    "Qwen/Qwen3-30B-A3B": 3.3,
    "Qwen/Qwen3-235B-A22B": 22,
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": 35,
    "Qwen/Qwen3.5-397B-A17B": 17,
    "mistralai/Mixtral-8x7B-v0.1": 12.9,
    "mistralai/Mixtral-8x22B-v0.1": 39,
    "deepseek-ai/DeepSeek-V2": 21,
    "deepseek-ai/DeepSeek-V3": 37,
    "moonshotai/Kimi-K2-Instruct": 32,
    "zai-org/GLM-4.5": 32,
    "zai-org/GLM-4.5-Air": 12,
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": 17,
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8": 12,
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": 55,
}

SMALL = sorted(
    {entry.config["model_type"]: name for name, entry in sorted(table().items(), key=lambda each: -each[1].parameters)}
    .values(), key=lambda name: table()[name].parameters,
)[:10]  # fmt: skip
ELSEWHERE = {"nemotron-nas"}  # not in transformers


def of_transformers(name: str) -> int:
    """Count the parameters of the real module that config.json describes, without making its numbers."""
    import torch
    import transformers

    config = dict(table()[name].config)
    model_type = {"kimi_k2": "deepseek_v3"}.get(config["model_type"], config["model_type"])
    made = transformers.CONFIG_MAPPING[model_type].from_dict(config | {"model_type": model_type})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(made)
    return sum(each.numel() for each in model.parameters())


@pytest.mark.parametrize("name", SMALL)
def test_the_smallest_of_ten_families_count_as_transformers_makes_them(name: str) -> None:
    assert table()[name].parameters == of_transformers(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, each in table().items() if each.config["model_type"] not in ELSEWHERE])
def test_every_model_counts_as_transformers_makes_it(name: str) -> None:
    assert table()[name].parameters == of_transformers(name)


def test_every_count_is_what_config_json_comes_to() -> None:
    wrong = {name: each.parameters for name, each in table().items()
             if shape_of(each.config, name).parameters != each.parameters}  # fmt: skip
    assert wrong == {}
    assert len(table()) >= 130


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_cache_are_the_published_ones(name: str) -> None:
    found = shape(resolve(name, cache=CACHE))
    assert (found.parameters, found.cache_numbers(1)) == PUBLISHED[name]
    assert found.cache_numbers(100) == 100 * PUBLISHED[name][1]


@pytest.mark.parametrize("name", MINUS_BUFFERS)
def test_routers_have_no_bias_among_the_parameters(name: str) -> None:
    assert table()[name].parameters == MINUS_BUFFERS[name]


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_are_those_of_the_card(name: str) -> None:
    found = shape_of(table()[name].config, name)
    assert found.active / 1e9 == pytest.approx(ACTIVE[name], rel=0.12)
    assert found.matmul_parameters < found.active < found.parameters
    assert found.expert_parameters < found.parameters


def test_all_parameters_of_a_dense_model_are_active() -> None:
    found = shape_of(table()["Qwen/Qwen3-8B"].config, "")
    assert (found.active, found.expert_parameters, found.expert_layers) == (found.parameters, 0, 0)
    assert found.attention_layers == found.layers
    assert found.matmul_parameters == found.parameters - 2 * 151_936 * 4096 - 36 * (2 * 4096 + 256) - 4096


def test_active_parameters_of_a_sparse_model_by_hand() -> None:
    found = shape_of(table()["Qwen/Qwen3-30B-A3B"].config, "")
    assert found.active == 3_353_032_704
    assert found.expert_parameters == 48 * 128 * 3 * 2048 * 768
    assert (found.experts, found.experts_per_token, found.expert_intermediate, found.dense_layers) == (128, 8, 768, 0)
    assert (found.shared_intermediate, found.expert_layers) == (0, 48)


def test_what_deepseek_keeps_of_a_token_by_hand() -> None:
    """Source: DeepSeek-AI 2024, arXiv 2405.04434, table 1: a latent of 512 and 64 rotated numbers in each layer."""
    found = shape_of(table()["deepseek-ai/DeepSeek-V3"].config, "")
    assert found.cache_numbers(1000) == 1000 * 61 * (512 + 64)
    assert (found.dense_layers, found.shared_intermediate, found.head_dim) == (3, 2048, 192)
    assert found.attention_products(1, 10) == 10 * 61 * 128 * (192 + 128)
    indexed = shape_of(table()["deepseek-ai/DeepSeek-V3.2"].config, "")
    assert indexed.cache_numbers(1000) == 1000 * 61 * (512 + 64 + 128)
    assert indexed.attention_products(1, 5000) == 61 * (2048 * 128 * (192 + 128) + 5000 * 64 * 128)


def test_windows_bound_what_is_kept_and_read() -> None:
    found = shape_of(table()["openai/gpt-oss-20b"].config, "")
    assert (found.layers, found.attention_layers) == (24, 12)
    assert found.cache_numbers(1000) == 2 * 8 * 64 * 12 * (1000 + 128)
    assert found.attention_products(1, 1000) == 2 * 64 * 64 * 12 * (1000 + 128)
    assert shape_of(table()["microsoft/Phi-3-mini-128k-instruct"].config, "").attention_layers == 32, (
        "longer than texts"
    )
    assert shape_of(table()["google/gemma-3-27b-pt"].config, "").attention_layers == 10


def test_states_do_not_grow_with_the_context() -> None:
    """Three of four layers of Qwen3-Next keep 32 matrices of 128 by 128, and three tokens for their convolution."""
    found = shape_of(table()["Qwen/Qwen3-Next-80B-A3B-Instruct"].config, "")
    states = 36 * (32 * 128 * 128 + 3 * (2 * 16 * 128 + 32 * 128))
    assert (found.attention_layers, found.cache_numbers(0)) == (12, 0)
    assert found.cache_numbers(1000) == 12 * 2 * 2 * 256 * 1000 + states
    assert found.attention_products(5, 15) == 12 * 2 * 16 * 256 * 15 + 36 * 3 * 32 * 128 * 128 * 5


# ------------------------------------------------------------------------------------------- names


def test_ids_and_short_names_are_those_of_one_model() -> None:
    ids = Counter(each.casefold() for entry in table().values() for each in entry.ids)
    assert [name for name, count in ids.items() if count > 1] == []
    own = Counter(each.casefold() for entry in table().values() for each in entry.short_names)
    assert [name for name, count in own.items() if count > 1] == []
    assert all(name.count("/") == 1 for name in ids)


def test_every_family_of_the_table_is_known_and_every_entry_has_a_source() -> None:
    assert {each.config["model_type"] for each in table().values()} <= FAMILIES.keys()
    assert [name for name, each in table().items() if not each.source] == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("qwen/qwen3-8b", "Qwen/Qwen3-8B"),
        ("Qwen3-8B", "Qwen/Qwen3-8B"),
        ("qwen3-8b-base", "Qwen/Qwen3-8B-Base"),
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("llama-3.1-8b-instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("Meta-Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B"),
        ("LLAMA3_70B", "meta-llama/Meta-Llama-3-70B"),
        ("GPT OSS 120B", "openai/gpt-oss-120b"),
        ("Kimi_K2", "moonshotai/Kimi-K2-Instruct"),
        ("DeepSeekV3", "deepseek-ai/DeepSeek-V3"),
        ("DeepSeek-R1", "deepseek-ai/DeepSeek-R1"),
        ("bloom-176b", "bigscience/bloom"),
        ("Qwen2.5-Math-7B", "Qwen/Qwen2.5-Math-7B"),
        ("QwQ-32B", "Qwen/QwQ-32B"),
    ],
)
def test_a_model_is_found_by_its_id_or_a_short_name(text: str, name: str) -> None:
    assert full_name(text) == name
    assert resolve(text, cache=CACHE) == ModelSource(name, "hub")
    assert listed(name) is not None


def test_adapters_stand_on_a_model_of_the_table() -> None:
    source = resolve("qwen3-8b+lora=16", cache=CACHE)
    assert (source.name, source.kind, source.base.name) == ("Qwen/Qwen3-8B+lora=16", "hub", "Qwen/Qwen3-8B")
    found, plain = shape(source), shape(source.base)
    assert (found.adapters, found.parameters) == (43_646_976, plain.parameters + 43_646_976)
    assert found.base == "Qwen/Qwen3-8B"


def test_a_folder_comes_before_a_short_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen3-8b").mkdir()
    assert resolve("qwen3-8b", cache=CACHE).kind == "folder"
    assert resolve("SmolLM2-135M", cache=CACHE).kind == "package", "the built-in model, in any case"


def test_a_text_near_to_several_models_names_them() -> None:
    with pytest.raises(ModelError) as caught:
        resolve("llama-3.1-9b", cache=CACHE)
    assert str(caught.value) == (
        "no model `llama-3.1-9b`\n"
        "  hint: did you mean `Llama-3.1-8B` or `Llama-3.1-70B` or `Llama-3.1-405B`? "
        "Or a folder such as ./llama-3.1-9b, or a hub id such as org/name"
    )


def test_nothing_is_near_to_a_word_of_another_kind() -> None:
    assert nearest_names("zebra") == ()
    assert full_name("zebra") is None
    assert listed("org/zebra") is None


def test_a_model_of_the_table_needs_no_network_and_no_heavy_library() -> None:
    code = (
        "import sys; from pathlib import Path; import flowgraph.models as m;"
        "print(m.shape(m.resolve('qwen3-8b', cache=Path('x'))).parameters);"
        "print([n for n in ('torch', 'transformers', 'huggingface_hub', 'numpy', 'pyarrow') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("8190735360\n[]\n", "")


def test_a_model_is_looked_up_within_milliseconds() -> None:
    """From nothing read, in seconds of processor: 4 ms; the best of five, since what runs beside it only adds."""

    def once() -> float:
        for each in (table, of_table._by_id, of_table._by_short_name):  # pyright: ignore[reportPrivateUsage]
            each.cache_clear()
        before = time.process_time()
        shape(resolve("qwen3-8b", cache=CACHE))
        return time.process_time() - before

    assert min(once() for _ in range(5)) < 0.02
