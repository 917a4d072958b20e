"""A number at each token, and one for a whole text: against transformers' own classifiers on each row alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

from flowgraph.engines.forward_pass.packing_probe import choose_packing
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import LawError
from flowgraph.language.handle import Optimizer, ResponseRows, SampleRequest, gather
from flowgraph.language.keys import Key
from flowgraph.models import tiny
from flowgraph.models.heads import head_names, with_head
from nodes.values import Rollout
from tests.looped import looped

Make = Callable[..., Rollout]
LENGTHS, CONTEXTS = [3, 1, 7, 5, 2, 7], [2, 9, 1, 4, 30, 3]
KINDS = ("tiny", "gpt2", "qwen2")


def handle_of(kind: str, head: Any, **fields: Any) -> LocalModel:
    """Make a small model under a head whose numbers are drawn."""
    model, tokenizer = tiny.build(0)
    torch.manual_seed(0)
    ends = {"vocab_size": 20, "bos_token_id": 1, "eos_token_id": 2}
    if kind == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(n_positions=64, n_embd=16, n_layer=2, n_head=2, **ends))
    elif kind == "qwen2":
        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
        model = Qwen2ForCausalLM(Qwen2Config(num_attention_heads=4, num_key_value_heads=2, **sizes, **ends))
    made, _ = with_head(model, head, kind)
    with torch.no_grad():
        for name in sorted(head_names(made)):
            made.get_parameter(name).normal_()
    return LocalModel(made, tokenizer, **fields)


def rows_of(rollout: Rollout) -> ResponseRows:
    return ResponseRows(rollout.context.data, rollout.tokens.data, rollout.lengths.data, rollout.temperature.data)


def plain_values(model: Any, rows: ResponseRows) -> torch.Tensor:
    """Read each row alone, without padding or cache: the output before each of its tokens."""
    told = torch.zeros(rows.tokens.shape)
    for i, context in enumerate(rows.context.to_pylist()):
        tokens = rows.tokens[i, : rows.lengths[i]].tolist()
        out = model(input_ids=torch.tensor([[*context, *tokens]])).logits[0, :, 0]
        told[i, : len(tokens)] = out[len(context) - 1 : len(context) + len(tokens) - 1]
    return told


def values_of(handle: LocalModel, rows: ResponseRows) -> torch.Tensor:
    found = handle.token_stats(rows, ("values",)).values
    assert found is not None
    return found


def scores_of(handle: LocalModel, rows: ResponseRows) -> torch.Tensor:
    found = handle.token_stats(rows, ("score",)).score
    assert found is not None
    return found


def texts(*rows: list[int]) -> ResponseRows:
    none = torch.zeros(len(rows), 0, dtype=torch.int64)
    return ResponseRows(pa.array(rows, pa.list_(pa.int32())), none, torch.zeros(len(rows), dtype=torch.int64))


# ------------------------------------------------------------------------------------------- a number at each token


@looped("kind", KINDS)
@looped("contexts", [CONTEXTS, [1] * 6, [4] * 6])
def test_values_are_those_before_each_token_of_each_row_alone(make_rollout: Make, kind: str, contexts: Any) -> None:
    handle, rows = handle_of(kind, "values"), rows_of(make_rollout(LENGTHS, contexts, temperature=0.5))
    found, wanted = values_of(handle, rows), plain_values(handle.model, rows)
    assert found.dtype == torch.float32
    assert wanted.abs().max() > 0.1
    assert torch.allclose(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_values_are_those_of_each_row_alone_in_backbone_and_head(make_rollout: Make, kind: str) -> None:
    handle, rows = handle_of(kind, "values", trainable=True), rows_of(make_rollout(LENGTHS, CONTEXTS))
    parameters = dict(handle.model.named_parameters())
    weights = torch.linspace(-1, 1, 42).reshape(6, 7)
    have = torch.autograd.grad((weights * values_of(handle, rows)).sum(), list(parameters.values()))
    want = torch.autograd.grad((weights * plain_values(handle.model, rows)).sum(), list(parameters.values()))
    for name, one, other in zip(parameters, have, want, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4), name
        assert other.any() or "k_proj.bias" in name, f"nothing reaches {name}"  # a key's bias changes no attention


@pytest.mark.parametrize("forward_tokens", [1, 40, 16384])
def test_values_do_not_depend_on_how_a_pass_is_cut(make_rollout: Make, forward_tokens: int) -> None:
    rows = rows_of(make_rollout(LENGTHS, CONTEXTS))
    handle = handle_of("tiny", "values", forward_tokens=forward_tokens)
    assert torch.allclose(values_of(handle, rows), plain_values(handle.model, rows), rtol=0, atol=1e-5)


def test_no_rows_have_values_with_a_gradient_of_zero(make_rollout: Make) -> None:
    handle = handle_of("tiny", "values", trainable=True)
    none = values_of(handle, rows_of(make_rollout([])))
    assert none.shape == (0, 0)
    none.sum().backward()  # type: ignore[no-untyped-call]
    assert all(each.grad is not None and not each.grad.any() for each in handle.model.parameters())


def test_a_head_of_zeros_learns_and_so_does_what_is_under_it(make_rollout: Make) -> None:
    model, tokenizer = tiny.build(0)
    handle = LocalModel(with_head(model, "values", "tiny")[0], tokenizer, trainable=True)
    rows, before = rows_of(make_rollout(LENGTHS, CONTEXTS)), handle.weights()
    target = plain_values(handle_of("tiny", "values").model, rows)

    def loss() -> torch.Tensor:
        return ((values_of(handle, rows) - target) ** 2).mean()

    steps = [handle.step([loss], Optimizer("adamw", 1e-2)) for _ in range(30)]
    assert steps[-1].loss < 0.2 * steps[0].loss
    after = handle.weights()
    assert all(not torch.equal(after[name], before[name]) for name in ("score.weight", "model.embed_tokens.weight"))


@pytest.mark.parametrize(
    ("head", "wanted", "told"),
    [
        ("values", "logprobs", "this model's head gives values, but not logprobs"),
        ("score", "values", "this model's head gives score, but not values"),
    ],
)
def test_what_a_head_does_not_give_is_refused(make_rollout: Make, head: str, wanted: str, told: str) -> None:
    with pytest.raises(LawError) as caught:
        handle_of("tiny", head).token_stats(rows_of(make_rollout([1])), (wanted,))
    assert str(caught.value) == told


@pytest.mark.parametrize("head", ["values", "score"])
def test_nothing_is_sampled_from_a_model_that_gives_no_logits(head: str) -> None:
    handle = handle_of("tiny", head)
    assert "sample" not in handle.verbs
    with pytest.raises(LawError) as caught:
        gather(handle, [SampleRequest((1, 5), 0, 0, 4, 1.0, Key())])
    assert str(caught.value) == f"a model with a head of {head} cannot generate samples: it gives no logits"


# ------------------------------------------------------------------------------------------- one for a whole text


@looped("padding", [0, 2, 3, None])
@looped("kind", KINDS)
def test_scores_are_those_of_each_text_alone_whatever_token_it_ends_in(kind: str, padding: int | None) -> None:
    handle = handle_of(kind, "score")
    handle.model.config.pad_token_id = padding
    many = [[1, 5, 6, 2], [1, 7, 2, 2, 2], [0, 0, 5], [2], [5, 3, 9, 3, 3, 3, 3, 3], [4, 0, 2, 0]]
    found = scores_of(handle, texts(*many))
    assert handle.model.config.pad_token_id == padding
    handle.model.config.pad_token_id = None  # then it reads a text that is alone at its last token
    alone = torch.stack([handle.model(input_ids=torch.tensor([each])).logits[0, 0] for each in many])
    assert found.shape == (6,)
    assert found.std() > 0.1
    assert torch.allclose(found, alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("forward_tokens", [1, 12, 16384])
def test_scores_are_of_context_and_response_and_do_not_depend_on_the_cut(
    make_rollout: Make, forward_tokens: int
) -> None:
    handle, rows = handle_of("tiny", "score", forward_tokens=forward_tokens), rows_of(make_rollout(LENGTHS, CONTEXTS))
    each = zip(rows.context.to_pylist(), rows.tokens.tolist(), LENGTHS, strict=True)
    whole = texts(*([*context, *tokens[:length]] for context, tokens, length in each))
    assert torch.allclose(scores_of(handle, rows), scores_of(handle, whole), rtol=0, atol=1e-5)


def test_no_texts_have_no_scores_and_a_text_without_tokens_is_refused() -> None:
    handle = handle_of("tiny", "score")
    assert scores_of(handle, texts()).shape == (0,)
    with pytest.raises(LawError) as caught:
        scores_of(handle, texts([1, 2], []))
    assert str(caught.value) == "a text of 0 tokens has no last token to read its score at"


# ------------------------------------------------------------------------------------------- logits and chats


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_squared_probabilities_are_those_of_the_softmax(
    tiny: Callable[..., LocalModel], make_rollout: Make, temperature: float
) -> None:
    handle, rows = tiny(), rows_of(make_rollout(LENGTHS, CONTEXTS, temperature=temperature))
    found = handle.token_stats(rows, ("square_probs",)).square_probs
    assert found is not None
    for i, context in enumerate(rows.context.to_pylist()):
        tokens = rows.tokens[i, : LENGTHS[i]].tolist()
        logits = handle.model(input_ids=torch.tensor([[*context, *tokens]])).logits[0, len(context) - 1 : -1]
        wanted = ((logits / temperature).softmax(-1) ** 2).sum(-1)
        assert torch.allclose(found[i, : len(tokens)], wanted, rtol=0, atol=1e-5)
        assert not found[i, len(tokens) :].any()


def test_a_chat_with_its_answer_is_the_chat_up_to_it_the_answer_and_its_end(tiny: Callable[..., LocalModel]) -> None:
    encode = tiny().tokenizer.encode
    chat = [{"role": "user", "content": "12"}]
    assert encode(chat, "3") == (*encode(chat), 8, 2) == (1, 6, 7, 4, 8, 2)
    assert encode(chat, "") == (*encode(chat), 2)
    assert chat == [{"role": "user", "content": "12"}]
    turns = [*chat, {"role": "assistant", "content": "3"}, {"role": "user", "content": "4"}]
    assert encode(turns, "5") == (1, 6, 7, 4, 8, 2, 9, 4, 10, 2)


def test_without_a_template_an_answer_stands_on_a_line_of_its_own_and_is_ended(tiny: Callable[..., LocalModel]) -> None:
    from flowgraph.models.tokenizing import PLAIN_TEMPLATE

    handle = tiny()
    template = handle.raw_tokenizer.chat_template
    chat = [{"role": "system", "content": "1"}, {"role": "user", "content": "2"}]
    try:
        for other in (None, PLAIN_TEMPLATE):
            handle.raw_tokenizer.chat_template = other
            assert handle.tokenizer.encode(chat) == (6, 3, 7)
            assert handle.tokenizer.encode(chat, "5") == (6, 3, 7, 3, 10, 2)
            assert handle.tokenizer.encode([*chat, {"role": "assistant", "content": "5"}]) == (6, 3, 7, 3, 10)
    finally:
        handle.raw_tokenizer.chat_template = template


def test_a_row_reads_the_same_beside_others_that_share_its_context(make_rollout: Make) -> None:
    rollout = make_rollout([5, 3, 1, 4], [30] * 4)
    rows = replace(rows_of(rollout), context=rollout.context.data.take(pa.array([0, 0, 0, 0])))
    handle, seen = handle_of("tiny", "values"), list[int]()
    assert choose_packing(handle.model) is not None

    def note(_: object, args: object, given: dict[str, torch.Tensor]) -> None:
        seen.append(given["input_ids"].numel())

    handle.model.register_forward_pre_hook(note, with_kwargs=True)
    found = values_of(handle, rows)
    assert sum(seen) <= 30 + 4 * 5
    assert torch.allclose(found, plain_values(handle.model, rows), rtol=0, atol=1e-5)
