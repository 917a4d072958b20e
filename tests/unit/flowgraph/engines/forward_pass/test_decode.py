"""Decoding side by side: the keyed draw, where a response ends, and what the model is asked to read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from flowgraph.engines.forward_pass.decode import decode, pad_left
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import LawError
from flowgraph.language.handle import SampleRequest
from flowgraph.language.keys import Key

Tiny = Callable[..., LocalModel]

CONTEXTS = [(1, 5, 4), (1, 5, 6, 7, 8, 9, 10, 11, 4), (1, 4), (1, 9, 9, 9, 9, 4), (1, 5, 4)]


def request(context: Sequence[int], sample: int = 0, temperature: float = 1.0, max_tokens: int = 12) -> SampleRequest:
    return SampleRequest(tuple(context), 3, sample, max_tokens, temperature, Key(1, 2, "policy.generate"))


def next_logits(model: Any, context: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
    """Read the whole sequence again, alone, without padding or cache."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([[*context, *tokens]])).logits[0, -1].float()


def watched(model: Any) -> list[tuple[int, ...]]:
    """Note the shape of what each forward pass reads."""
    shapes: list[tuple[int, ...]] = []
    model.register_forward_pre_hook(lambda _, args, kw: shapes.append(tuple(kw["input_ids"].shape)), with_kwargs=True)
    return shapes


def test_greedy_is_the_argmax_of_a_plain_forward_pass_step_by_step(tiny: Tiny) -> None:
    model = tiny().model
    done = decode(model, [request(context, temperature=0.0) for context in CONTEXTS], frozenset({2}), 0)
    for context, completion in zip(CONTEXTS, done, strict=True):
        for place, token in enumerate(completion.tokens):
            logits = next_logits(model, context, completion.tokens[:place])
            assert token == int(logits.argmax())
            assert completion.logprobs[place] == pytest.approx(float(logits.log_softmax(0)[token]), abs=1e-5)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
def test_a_draw_is_the_argmax_of_the_tempered_logits_plus_the_samples_own_gumbel_noise(
    tiny: Tiny, temperature: float
) -> None:
    model = tiny().model
    requests = [request(context, sample, temperature) for sample, context in enumerate(CONTEXTS)]
    for asked, completion in zip(requests, decode(model, requests, frozenset({2}), 0), strict=True):
        noise = asked.key.generator(asked.prompt, asked.sample)
        for place, token in enumerate(completion.tokens):
            logits = next_logits(model, asked.context, completion.tokens[:place]) / temperature
            gumbel = -np.log(-np.log(noise.random(20, dtype=np.float32)))
            assert token == int((logits.numpy() + gumbel).argmax())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_as_often_as_the_softmax_says(tiny: Tiny, temperature: float) -> None:
    model, draws = tiny().model, 4000
    model.lm_head.weight.data *= 8  # a distribution that is not flat
    requests = [request((1, 5, 4), sample, temperature, max_tokens=1) for sample in range(draws)]
    drawn = [completion.tokens[0] for completion in decode(model, requests, frozenset(), 0)]
    expected = (next_logits(model, (1, 5, 4), ()) / temperature).softmax(0).numpy() * draws
    counts = np.bincount(drawn, minlength=20)
    rare = expected < 5
    counts, expected = np.append(counts[~rare], counts[rare].sum()), np.append(expected[~rare], expected[rare].sum())
    chi_square = float(((counts - expected) ** 2 / np.maximum(expected, 1e-9)).sum())
    degrees = len(expected) - 1
    assert chi_square < degrees + 4 * (2 * degrees) ** 0.5
    assert expected.max() > 2 * expected.min()


def test_a_response_ends_at_an_end_token_and_is_cut_at_its_limit(tiny: Tiny) -> None:
    ends, limit = frozenset({2, 7}), 6
    requests = [request((1, 5, 4), sample, max_tokens=limit) for sample in range(200)]
    done = decode(tiny().model, requests, ends, 5)
    for each in done:
        assert each.finished == (each.tokens[-1] in ends)
        assert not ends & set(each.tokens[:-1])
        assert len(each.tokens) == limit or each.finished
        assert len(each.tokens) == len(each.logprobs) <= limit
        assert each.versions == ((0, 5),)
    assert {each.finished for each in done if len(each.tokens) == limit} == {True, False}


def test_each_request_has_its_own_limit_and_temperature_in_one_batch(tiny: Tiny) -> None:
    requests = [request((1, 5, 4), 0, 0.0, 3), request((1, 6, 4), 1, 1.0, 9), request((1, 5, 4), 2, 0.0, 1)]
    done = decode(tiny().model, requests, frozenset(), 0)
    assert [len(each.tokens) for each in done] == [3, 9, 1]
    assert done[2].tokens == done[0].tokens[:1]


def test_equal_contexts_are_read_once_and_rows_that_end_leave_the_batch(tiny: Tiny) -> None:
    model = tiny().model
    shapes = watched(model)
    requests = [request(CONTEXTS[i % 2], sample=i, max_tokens=1 + i) for i in range(6)]
    decode(model, requests, frozenset(), 0)
    assert shapes == [(2, 9), (5, 1), (4, 1), (3, 1), (2, 1), (1, 1)]


def test_a_model_in_half_precision_still_gives_log_probs_in_full(tiny: Tiny) -> None:
    model = tiny().model.to(torch.bfloat16)
    logprob = decode(model, [request((1, 5, 4), temperature=0.0)], frozenset(), 0)[0].logprobs[0]
    assert float(torch.tensor(logprob).bfloat16()) != logprob


def test_contexts_are_padded_on_the_left() -> None:
    ids, mask = pad_left([[5, 6], [], [7, 8, 9]])
    assert ids.tolist() == [[0, 5, 6], [0, 0, 0], [7, 8, 9]]
    assert mask.tolist() == [[0, 1, 1], [0, 0, 0], [1, 1, 1]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_refused_with_the_prompt(tiny: Tiny, temperature: float) -> None:
    model = tiny().model
    with torch.no_grad():
        model.model.norm.weight.fill_(1e38)
        model.lm_head.weight.mul_(1e30)  # finite weights whose product is not
    with pytest.raises(LawError, match="no probabilities at token 0 of a response to prompt 3: its logits are NaN"):
        decode(model, [request(CONTEXTS[0], temperature=temperature)], frozenset({2}), 0)
