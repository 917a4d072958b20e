"""A pass over packed tokens against the padded one: families of models, heads, chunks of logits, and what is left."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from flowgraph.engines.forward_pass.chunked_head import stats_head
from flowgraph.engines.forward_pass.forward import forward_stats
from flowgraph.engines.forward_pass.packed import Packing
from flowgraph.engines.forward_pass.packing import pack
from flowgraph.engines.forward_pass.packing_probe import CHOSEN, choose_packing, padding_reason
from flowgraph.errors import LawError
from flowgraph.language.handle import ResponseRows, TokenStats
from flowgraph.models.heads import with_head
from tests.looped import looped

ALL = ("logprobs", "entropy", "square_probs")
SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
CONTEXTS = [[5, 6, 7, 8, 9, 10, 11, 12]] * 3 + [[4]] * 2 + [[3, 4, 5, 6]] * 2
HEAD: dict[str, Any] = {"head_dim": 8, "query_pre_attn_scalar": 8}
PACKED: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {"head_dim": 8},
    "Mistral": {"sliding_window": 4},
    "Gemma3Text": {"sliding_window": 4, "final_logit_softcapping": 5.0, **HEAD},
    "Cohere": {},
    "Granite": {"logits_scaling": 3.0},
    "Phi3": {"pad_token_id": 0},
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
}
LLAMA_4 = {"head_dim": 8, "num_local_experts": 2, "intermediate_size_mlp": 48, "attention_chunk_size": 4}
PADDED: dict[str, tuple[dict[str, Any], str]] = {
    "Gemma2": (HEAD, "packed tokens are refused (LawError: attention of packed tokens does not support softcap)"),
    "Llama4Text": (LLAMA_4, "its layers attend to spans of 4 tokens, but do not pass them to attention"),
    "Nemotron": ({}, "packed tokens change the result by "),
    "Bloom": ({"n_layer": 2, "n_head": 4}, "its attention is eager, and not sdpa"),
}


def made(family: str, **sizes: Any) -> Any:
    """Make a small model, with weights large enough that attention matters."""
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **sizes, "bos_token_id": 1, "eos_token_id": 2})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def rows_of(lengths: Sequence[int] = (6, 1, 12, 3, 0, 9, 5), vocabulary: int = 50) -> ResponseRows:
    tokens = torch.randint(0, vocabulary, (len(lengths), 12), generator=torch.Generator().manual_seed(0))
    contexts = pa.array(CONTEXTS[: len(lengths)], pa.list_(pa.int64()))
    return ResponseRows(contexts, tokens, torch.tensor(lengths, dtype=torch.int64), 0.7)


def told(model: Any, rows: ResponseRows, wanted: Sequence[str], packing: Packing | None) -> list[torch.Tensor]:
    """Return the statistics, and the gradient of a sum of them."""
    stats = forward_stats(model, rows, wanted, packing=packing)
    given = [getattr(stats, name) for name in wanted]
    total = torch.stack([(place + 1) * each.sum() for place, each in enumerate(given)]).sum()
    gradient: Any = torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
    return [*given, *(torch.zeros(()) if each is None else each for each in gradient)]


def assert_close(one: list[torch.Tensor], other: list[torch.Tensor], limit: float = 2e-5) -> None:
    for have, want in zip(one, other, strict=True):
        assert have.shape == want.shape
        far = (have - want).detach().abs().max() / want.detach().abs().max().clamp(min=1)
        assert float(far) < limit


# ------------------------------------------------------------------------------------------- families and heads


@looped("family", PACKED)
def test_packed_tokens_have_the_statistics_and_gradients_of_padded_rows(family: str) -> None:
    model, rows = made(family, **PACKED[family]), rows_of()
    packing = choose_packing(model)
    assert packing is not None and packing == Packing("segments"), padding_reason(model)
    padded = told(model, rows, ALL, None)
    for each in (packing, replace(packing, chunk_tokens=3), Packing("mask", chunked=False)):
        assert_close(told(model, rows, ALL, each), padded)


@pytest.mark.parametrize("family", PADDED)
def test_a_model_that_packed_tokens_do_not_suit_reads_padded_rows_and_says_why(family: str) -> None:
    sizes, why = PADDED[family]
    model, rows = made(family, **sizes), rows_of()
    assert choose_packing(model) is None
    assert padding_reason(model).startswith(f"{type(model).__name__} uses padded rows: {why}")
    stats, padded = forward_stats(model, rows, ALL), forward_stats(model, rows, ALL, packing=None)
    assert all(torch.equal(getattr(stats, name), getattr(padded, name)) for name in ALL)


def test_values_are_packed_though_a_head_of_zeros_tells_nothing() -> None:
    model, _ = with_head(made("Qwen2"), "values", "small")
    assert choose_packing(model) == Packing("segments", chunked=False)
    with torch.no_grad():
        model.score.weight.normal_()
    assert_close(told(model, rows_of(), ("values",), choose_packing(model)), told(model, rows_of(), ("values",), None))
    other, _ = with_head(made("Nemotron"), "values", "small")
    assert choose_packing(other) is None


def test_scores_of_texts_stay_padded() -> None:
    model, _ = with_head(made("Qwen2"), "score", "small", 0)
    assert (
        padding_reason(model) == "Qwen2ForSequenceClassification gives one number for a whole text, so texts are padded"
    )
    score = forward_stats(model, rows_of(), ("score",)).score
    assert score is not None and score.shape == (7,)


def test_a_choice_is_made_once_and_goes_with_its_model() -> None:
    model, calls = made("Llama"), list[int]()
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    choose_packing(model)
    tried = len(calls)
    assert tried > 0
    forward_stats(model, rows_of(), ALL)
    assert len(calls) == tried + 1, "one call of the model"
    kept = len(CHOSEN)
    del model
    gc.collect()
    assert len(CHOSEN) < kept


def test_no_rows_call_the_model_once_and_have_a_gradient_of_zero() -> None:
    model = made("Llama")
    stats, *gradients = told(model, rows_of(()), ("logprobs",), choose_packing(model))
    assert stats.shape == (0, 12)
    assert len(gradients) == len(list(model.parameters())) and not any(each.any() for each in gradients)
    assert all(each.dim() for each in gradients), "each parameter has a gradient"


def test_what_lies_beyond_lengths_is_zero_and_not_read() -> None:
    model, rows = made("Llama"), rows_of()
    beyond = torch.arange(12)[None] >= rows.lengths[:, None]
    wild = replace(rows, tokens=rows.tokens.masked_fill(beyond, 10**6))
    found = forward_stats(model, wild, ("entropy",)).entropy
    assert found is not None and not found[beyond].any() and found[~beyond].all()


# ------------------------------------------------------------------------------------------- the model around it


def test_a_model_is_left_as_it_was_also_after_a_pass_that_failed() -> None:
    model = made("Gemma3Text", **PACKED["Gemma3Text"])
    ids = torch.arange(12)[None]
    before, config = model(input_ids=ids).logits, model.config.to_dict()
    forward_stats(model, rows_of(), ALL)
    with pytest.raises(ZeroDivisionError), stats_head(model, ids[0], ids[0], ALL, 1.0, None):
        raise ZeroDivisionError
    with pytest.raises(IndexError):
        forward_stats(model, rows_of(vocabulary=10**6), ALL)
    assert torch.equal(model(input_ids=ids).logits, before)
    assert model.config.to_dict() == config
    assert "forward" not in vars(model.get_output_embeddings())


def test_layers_that_are_run_again_in_the_backward_pass_attend_as_before() -> None:
    from torch.utils.checkpoint import checkpoint

    model, rows = made("Mistral", sliding_window=4), rows_of()
    plain = told(model, rows, ALL, choose_packing(model))
    for layer in model.model.layers:
        layer.forward = again(checkpoint, layer.forward)
    assert_close(told(model, rows, ALL, choose_packing(model)), plain, 1e-6)


def again(checkpoint: Any, forward: Any) -> Any:
    return lambda *args, **given: checkpoint(forward, *args, use_reentrant=False, **given)


def test_dropout_in_attention_is_refused() -> None:
    model = made("Llama", attention_dropout=0.5)
    packing = choose_packing(model)
    with pytest.raises(LawError, match="attention of packed tokens does not support dropout"):
        forward_stats(model.train(), rows_of(), ALL, packing=packing)


@looped("packed", [True, False])
@looped("contexts", [[[4], []], [[], []]])
def test_an_empty_context_is_refused(packed: bool, contexts: list[list[int]]) -> None:
    model = made("Llama")
    context = pa.array(contexts, pa.list_(pa.int64()))
    rows = ResponseRows(context, torch.tensor([[1, 2], [3, 4]]), torch.tensor([2, 2]), 1.0)
    with pytest.raises(LawError, match="a response to 0 tokens has no token that its first token could follow"):
        forward_stats(model, rows, ALL, packing=choose_packing(model) if packed else None)


# ------------------------------------------------------------------------------------------- memory


class Largest(TorchDispatchMode):
    """Note the numbers of the largest tensor that any operation gives, but for weights and their gradients."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.numbers, self._weights = 0, {tuple(each.shape) for each in model.parameters()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, tuple | list) else [out]:
            known = isinstance(each, torch.Tensor) and {tuple(each.shape), tuple(each.shape)[::-1]} & self._weights
            if isinstance(each, torch.Tensor) and each.dim() >= 2 and not known:
                self.numbers = max(self.numbers, each.numel())
        return out


@pytest.mark.parametrize("lengths", [(12,) * 7, (12,) * 28])
def test_no_tensor_of_all_tokens_and_the_whole_vocabulary_is_ever_made(lengths: tuple[int, ...]) -> None:
    vocabulary, chunk = 4000, 8
    model = made("Llama", vocab_size=vocabulary, tie_word_embeddings=True)
    rows = rows_of((12,) * 7, vocabulary)
    times = len(lengths) // 7
    rows = ResponseRows(
        pa.array(CONTEXTS * times, pa.list_(pa.int64())), rows.tokens.repeat(times, 1), torch.tensor(lengths), 1.0
    )
    choose_packing(model)
    found = dict[bool, int]()
    for chunked in (True, False):
        with Largest(model) as largest:
            stats = forward_stats(model, rows, ALL, packing=Packing(chunked=chunked, chunk_tokens=chunk))
            total(stats).backward()
        found[chunked] = largest.numbers
    assert found[True] == chunk * vocabulary, "whatever the rows"
    assert found[False] >= len(pack(rows).reads) * vocabulary


def total(stats: TokenStats) -> torch.Tensor:
    assert stats.logprobs is not None and stats.entropy is not None and stats.square_probs is not None
    return stats.logprobs.sum() + stats.entropy.sum() + stats.square_probs.sum()


def test_by_default_a_chunk_has_64_mebibytes_of_logits() -> None:
    model, seen = made("Llama", vocab_size=2**17), list[int]()
    rows = ResponseRows(
        pa.array([[1]], pa.list_(pa.int64())), torch.zeros(1, 300, dtype=torch.int64), torch.tensor([300])
    )
    choose_packing(model)
    head = model.get_output_embeddings()
    plain = head.forward
    head.forward = lambda hidden: (seen.append(hidden.shape[1]), plain(hidden))[1]
    with torch.no_grad():
        forward_stats(model, rows, ALL)
    assert seen == [128, 128, 44]


# ------------------------------------------------------------------------------------------- GPU


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["varlen", "flex"])
def test_kernels_of_a_gpu_attend_as_under_the_explicit_mask(way: Any) -> None:
    from flowgraph.engines.forward_pass.attention import PackedAttention

    packed = pack(rows_of())
    torch.manual_seed(0)
    shapes = [(1, heads, len(packed.ids), 64) for heads in (4, 2, 2)]
    given = [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for shape in shapes]
    query, key, value = given
    for window in (None, 4):
        found = list[tuple[torch.Tensor, ...]]()
        for each in (way, "mask"):
            out = PackedAttention(packed.segments, each, torch.device("cuda")).attend(query, key, value, None, window)
            found.append((out, *torch.autograd.grad(out.float().square().sum(), given)))
        for one, other in zip(*found, strict=True):
            assert torch.allclose(one.float(), other.float(), rtol=0, atol=0.05)


@pytest.mark.gpu
def test_on_a_gpu_half_precision_is_read_by_variable_lengths() -> None:
    model = made("Qwen2", head_dim=64, hidden_size=256).to("cuda", torch.bfloat16)
    assert choose_packing(model) == Packing("varlen"), padding_reason(model)
