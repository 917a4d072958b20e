"""The reference model: one forward pass of ragged rows, requests decoded together, and a step that can be trusted."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import torch

from flowgraph.engines.forward_pass.packing_probe import choose_packing
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import LawError, ModelError
from flowgraph.language.handle import Completion, Optimizer, ResponseRows, SampleRequest, SingleRank, TokenStats, gather
from flowgraph.language.keys import Key
from nodes.values import Policy, Reference, Rollout
from tests.looped import looped

Tiny = Callable[..., LocalModel]
Make = Callable[..., Rollout]

BOTH = ("logprobs", "entropy")
LENGTHS, CONTEXTS = [3, 1, 7, 5, 2, 7], [2, 9, 1, 4, 30, 3]


def rows_of(rollout: Rollout) -> ResponseRows:
    return ResponseRows(rollout.context.data, rollout.tokens.data, rollout.lengths.data, rollout.temperature.data)


def request(context: tuple[int, ...] = (1, 5, 4), sample: int = 0, max_tokens: int = 5) -> SampleRequest:
    return SampleRequest(context, 0, sample, max_tokens, 1.0, Key(node="generate"))


def plain_stats(model: Any, rows: ResponseRows) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute both statistics from the full logits of each row alone, without padding."""
    logprobs, entropy = torch.zeros(rows.tokens.shape), torch.zeros(rows.tokens.shape)
    for i, context in enumerate(rows.context.to_pylist()):
        tokens = rows.tokens[i, : rows.lengths[i]]
        logits = model(input_ids=torch.tensor([[*context, *tokens.tolist()]])).logits[0] / (rows.temperature or 1.0)
        told = logits[len(context) - 1 : -1].log_softmax(-1)
        logprobs[i, : len(tokens)] = told[range(len(tokens)), tokens]
        entropy[i, : len(tokens)] = -(told.exp() * told).sum(-1)
    return logprobs, entropy


def close(stats: TokenStats, wanted: tuple[torch.Tensor, torch.Tensor], limit: float = 1e-5) -> bool:
    assert stats.logprobs is not None
    assert stats.entropy is not None
    pairs = zip((stats.logprobs, stats.entropy), wanted, strict=True)
    return all(torch.allclose(have, want, rtol=0, atol=limit) for have, want in pairs)


def reads(handle: LocalModel) -> list[tuple[int, ...]]:
    """Note the shape of what each forward pass reads; how the model reads has been tried by then."""
    choose_packing(handle.model)
    shapes: list[tuple[int, ...]] = []

    def note(_: object, args: object, given: dict[str, torch.Tensor]) -> None:
        shapes.append(tuple(given["input_ids"].shape))

    handle.model.register_forward_pre_hook(note, with_kwargs=True)
    return shapes


# ------------------------------------------------------------------------------------------- the forward pass


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0, 1.3])
def test_statistics_are_those_of_each_row_alone_without_padding(
    tiny: Tiny, make_rollout: Make, temperature: float
) -> None:
    handle, rows = tiny(), rows_of(make_rollout(LENGTHS, CONTEXTS, temperature=temperature))
    stats = handle.token_stats(rows, BOTH)
    assert close(stats, plain_stats(handle.model, rows))


@pytest.mark.parametrize("forward_tokens", [1, 40, 100, 16384])
def test_statistics_do_not_depend_on_how_a_pass_without_gradients_is_cut(
    tiny: Tiny, make_rollout: Make, forward_tokens: int
) -> None:
    handle, rows = tiny(forward_tokens=forward_tokens), rows_of(make_rollout(LENGTHS, CONTEXTS))
    shapes = reads(handle)
    stats = handle.token_stats(rows, BOTH)
    longest = max(sum(pair) for pair in zip(LENGTHS, CONTEXTS, strict=True))
    assert all(count == 1 and width <= max(forward_tokens, longest) for count, width in shapes)
    assert close(stats, plain_stats(handle.model, rows))


def test_responses_to_one_prompt_read_it_once(tiny: Tiny, make_rollout: Make) -> None:
    handle, rollout = tiny(), make_rollout([5, 3, 1, 4], [30] * 4)
    same = rollout.context.data.take(pa.array([0, 0, 0, 0]))
    rows = replace(rows_of(rollout), context=same)
    shapes = reads(handle)
    stats = handle.token_stats(rows, BOTH)
    assert sum(count * width for count, width in shapes) <= 30 + 4 * 5
    assert close(stats, plain_stats(handle.model, rows))


def test_padding_asks_for_no_position_that_the_model_does_not_have(tiny: Tiny, make_rollout: Make) -> None:
    """GPT-2 looks positions up in a table, here of 16: no row is longer, but longest context and response are."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=20, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=2)
    handle = LocalModel(GPT2LMHeadModel(config), tiny().raw_tokenizer)
    rows = rows_of(make_rollout([12, 2, 1], [4, 14, 1]))
    assert close(handle.token_stats(rows, BOTH), plain_stats(handle.model, rows))
    done = gather(handle, [request((1,) * size, size, max_tokens=16 - size) for size in (1, 8, 15)])
    assert all(len(each.tokens) <= 15 for each in done)


def test_statistics_do_not_depend_on_the_order_of_rows_or_on_what_lies_beyond_their_lengths(
    tiny: Tiny, make_rollout: Make
) -> None:
    handle, rows, order = tiny(), rows_of(make_rollout(LENGTHS, CONTEXTS)), [4, 0, 5, 2, 1, 3]
    plain = handle.token_stats(rows, BOTH)
    wide = torch.full((len(LENGTHS), 11), 10**6)
    wide[:, :7] = torch.where(torch.arange(7)[None] < rows.lengths[:, None], rows.tokens, 10**6)
    moved = handle.token_stats(ResponseRows(rows.context.take(pa.array(order)), wide[order], rows.lengths[order]), BOTH)
    for have, want in ((moved.logprobs, plain.logprobs), (moved.entropy, plain.entropy)):
        assert have is not None and want is not None
        assert torch.allclose(have[:, :7], want[order], rtol=0, atol=1e-5)
        assert not have[:, 7:].any()


def test_only_what_is_wanted_is_given(tiny: Tiny, make_rollout: Make) -> None:
    stats = tiny().token_stats(rows_of(make_rollout(LENGTHS)), ("entropy",))
    assert stats.logprobs is None and stats.entropy is not None


def test_gradients_with_padding_on_the_left_are_finite_and_those_of_each_row_alone(
    tiny: Tiny, make_rollout: Make
) -> None:
    handle, rows = tiny(trainable=True), rows_of(make_rollout(LENGTHS, CONTEXTS))
    together = handle.token_stats(rows, BOTH)
    assert together.logprobs is not None and together.entropy is not None
    parameters = list(handle.model.parameters())
    have = torch.autograd.grad(together.logprobs.sum() + 0.1 * together.entropy.sum(), parameters)
    logprobs, entropy = plain_stats(handle.model, rows)
    want = torch.autograd.grad(logprobs.sum() + 0.1 * entropy.sum(), parameters)
    for one, other in zip(have, want, strict=True):
        assert one.isfinite().all()
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)


def test_a_frozen_model_and_a_pass_without_gradients_record_none(tiny: Tiny, make_rollout: Make) -> None:
    rows = rows_of(make_rollout(LENGTHS))
    frozen = tiny().token_stats(rows, BOTH).logprobs
    with torch.no_grad():
        unrecorded = tiny(trainable=True).token_stats(rows, BOTH).logprobs
    assert frozen is not None and not frozen.requires_grad
    assert unrecorded is not None and not unrecorded.requires_grad


@looped("contexts", [CONTEXTS, [1] * 6, [1, 9, 1, 1, 2, 1], []])
@looped("recorded", [True, False])
def test_the_model_is_called_once_whatever_the_rows(
    tiny: Tiny, make_rollout: Make, contexts: list[int], recorded: bool
) -> None:
    """Ranks that share a sharded model wait for each other in each call."""
    handle, rows = tiny(trainable=True), rows_of(make_rollout(LENGTHS[: len(contexts)], contexts))
    shapes = reads(handle)
    with torch.set_grad_enabled(recorded):
        handle.token_stats(rows, BOTH)
    assert len(shapes) == 1


@pytest.mark.parametrize("kind", ["tiny", "gpt2", "qwen2"])
def test_contexts_of_one_token_are_read_without_what_stands_in_for_their_empty_head(
    tiny: Tiny, make_rollout: Make, kind: str
) -> None:
    handle, rows = model_of(kind, tiny), rows_of(make_rollout(LENGTHS, [1] * 6))
    together = handle.token_stats(rows, BOTH)
    assert close(together, plain_stats(handle.model, rows))
    assert together.logprobs is not None and together.entropy is not None
    parameters = list(handle.model.parameters())
    have = torch.autograd.grad(together.logprobs.sum() + 0.1 * together.entropy.sum(), parameters)
    logprobs, entropy = plain_stats(handle.model, rows)
    want = torch.autograd.grad(logprobs.sum() + 0.1 * entropy.sum(), parameters)
    assert all(torch.allclose(one, other, rtol=1e-4, atol=1e-5) for one, other in zip(have, want, strict=True))


def model_of(kind: str, tiny: Tiny) -> LocalModel:
    from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    ends = {"vocab_size": 20, "bos_token_id": 1, "eos_token_id": 2}
    if kind == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(n_positions=16, n_embd=16, n_layer=2, n_head=2, **ends))
    elif kind == "qwen2":
        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
        model = Qwen2ForCausalLM(Qwen2Config(num_attention_heads=4, num_key_value_heads=2, **sizes, **ends))
    else:
        return tiny(trainable=True)
    return LocalModel(model, tiny().raw_tokenizer, trainable=True)


@pytest.mark.parametrize("width", [0, 4])
@pytest.mark.parametrize("trainable", [True, False])
def test_no_rows_are_read_as_well_and_have_a_gradient_of_zero(
    tiny: Tiny, make_rollout: Make, trainable: bool, width: int
) -> None:
    handle, rows = tiny(trainable=trainable), rows_of(make_rollout([]))
    logprobs = handle.token_stats(replace(rows, tokens=torch.zeros(0, width, dtype=torch.int64)), BOTH).logprobs
    assert logprobs is not None and logprobs.shape == (0, width)
    if trainable:
        told = handle.step([logprobs.sum], Optimizer("sgd", lr=1.0))
        assert (told.loss, told.grad_norm) == (0.0, 0.0)


def test_no_rows_reach_every_parameter_that_rows_reach(tiny: Tiny, make_rollout: Make) -> None:
    """Ranks that share a sharded model add up its gradients, and wait for each."""
    handle = tiny(trainable=True)
    for lengths, contexts in (([], []), ([0, 0], [1, 3])):
        stats = handle.token_stats(rows_of(make_rollout(lengths, contexts)), BOTH)
        assert stats.logprobs is not None and stats.entropy is not None
        (stats.logprobs.sum() + stats.entropy.sum()).backward()  # type: ignore[no-untyped-call]
        assert all(p.grad is not None and not p.grad.any() for p in handle.model.parameters())
        handle.model.zero_grad(set_to_none=True)


def test_rows_without_tokens_have_statistics_of_zero(tiny: Tiny, make_rollout: Make) -> None:
    stats = tiny().token_stats(rows_of(make_rollout([0, 2, 0], [3, 1, 7])), BOTH)
    assert stats.logprobs is not None and stats.logprobs.ne(0).sum(1).tolist() == [0, 2, 0]


def test_a_model_in_double_precision_is_read_in_double_precision(tiny: Tiny, make_rollout: Make) -> None:
    handle, rows = tiny(), rows_of(make_rollout(LENGTHS, CONTEXTS))
    handle.model.double()
    stats = handle.token_stats(rows, BOTH)
    assert stats.logprobs is not None and stats.logprobs.dtype == torch.float64


# ------------------------------------------------------------------------------------------- sampling


def test_requests_made_together_are_decoded_together_at_most_sample_rows_at_a_time(tiny: Tiny) -> None:
    handle = tiny(sample_rows=3)
    shapes = reads(handle)
    gather(handle, [request((1, 5 + i, 4), i, max_tokens=1) for i in range(8)])
    assert shapes == [(3, 3), (3, 3), (2, 3)]


def test_samples_come_back_in_the_order_they_were_asked_for_inside_a_running_event_loop_too(tiny: Tiny) -> None:
    handle, requests = tiny(), [request((1, 5 + i, 4), i) for i in range(5)]

    async def notebook() -> list[Completion]:
        return gather(handle, requests)

    assert asyncio.run(notebook()) == gather(handle, requests)


def test_a_response_too_long_for_the_model_is_refused(tiny: Tiny) -> None:
    with pytest.raises(ModelError) as caught:
        gather(tiny(), [request(), request((1,) * 120, max_tokens=9)])
    assert str(caught.value) == (
        "a prompt of 120 tokens and a response of up to 9 exceed its 128 positions\n"
        "  hint: max_tokens=8 fits this prompt"
    )
    assert len(gather(tiny(), [request((1,) * 119, max_tokens=9)])) == 1


def test_a_prompt_without_tokens_is_refused(tiny: Tiny) -> None:
    with pytest.raises(ModelError) as caught:
        gather(tiny(), [request(())])
    assert str(caught.value) == (
        "a prompt of 0 tokens leaves the model nothing to continue\n"
        "  hint: check whether its chat template drops the text"
    )


def test_an_error_inside_a_running_event_loop_arrives_as_itself(tiny: Tiny) -> None:
    async def notebook() -> list[Completion]:
        return gather(tiny(), [request(())])

    with pytest.raises(ModelError):
        asyncio.run(notebook())


def test_an_exception_while_decoding_reaches_every_request(tiny: Tiny) -> None:
    handle, calls = tiny(sample_rows=2), list[int]()

    def fail_on_the_third(*_: object) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("out of memory")

    handle.model.register_forward_pre_hook(fail_on_the_third)

    async def ask() -> list[Completion | BaseException]:
        asked = [handle.sample(request(sample=i, max_tokens=2)) for i in range(7)]
        return await asyncio.gather(*asked, return_exceptions=True)

    told = asyncio.run(ask())
    assert [str(each) for each in told if isinstance(each, BaseException)] == ["out of memory"] * 5
    assert len([each for each in told if isinstance(each, Completion)]) == 2
    assert len(gather(handle, [request()])) == 1


def test_a_request_that_is_cancelled_leaves_the_others_waiting_for_nothing(tiny: Tiny) -> None:
    handle = tiny()

    async def ask() -> Completion:
        tasks = [asyncio.create_task(handle.sample(request(sample=i))) for i in range(3)]
        await asyncio.sleep(0)  # all three are in the queue
        tasks[1].cancel()
        return (await asyncio.wait_for(asyncio.gather(tasks[0], tasks[2]), 20))[1]

    assert asyncio.run(ask()).tokens == gather(handle, [request(sample=2)])[0].tokens


def test_the_end_tokens_are_those_of_the_model_and_of_its_tokenizer(tiny: Tiny) -> None:
    handle = tiny()
    assert handle.ends == {2}
    handle.model.generation_config.eos_token_id = [7, 9]
    assert LocalModel(handle.model, handle.raw_tokenizer).ends == {2, 7, 9}


# ------------------------------------------------------------------------------------------- the step


def squares(handle: LocalModel) -> Callable[[], torch.Tensor]:
    return lambda: sum((p.double() ** 2).sum() for p in handle.model.parameters())  # type: ignore[return-value]


def sums(handle: LocalModel) -> Callable[[], torch.Tensor]:
    return lambda: sum(p.sum() for p in handle.model.parameters()).abs()  # type: ignore[union-attr,return-value]


def norm_of(weights: dict[str, torch.Tensor]) -> float:
    return float(sum((tensor.double() ** 2).sum() for tensor in weights.values()) ** 0.5)


def test_a_frozen_model_offers_no_step_and_refuses_one(tiny: Tiny) -> None:
    handle = tiny()
    assert "step" not in handle.verbs and "step" in tiny(trainable=True).verbs
    with pytest.raises(LawError, match="this model is frozen: nothing can update it"):
        handle.step([squares(handle)], Optimizer())


def test_plain_descent_takes_the_learning_rate_times_the_gradient_summed_over_micro_batches(tiny: Tiny) -> None:
    handle = tiny(trainable=True)
    before = handle.weights()
    told = handle.step([squares(handle), squares(handle)], Optimizer("sgd", lr=0.01, max_grad_norm=0))
    for name, tensor in handle.weights().items():
        assert torch.allclose(tensor, before[name] * (1 - 0.04), atol=1e-6)
    assert told.loss == pytest.approx(2 * norm_of(before) ** 2, rel=1e-5)
    assert told.grad_norm == pytest.approx(4 * norm_of(before), rel=1e-4)


def test_a_gradient_is_clipped_to_its_norm_and_told_as_it_was_before(tiny: Tiny) -> None:
    handle = tiny(trainable=True)
    before = handle.weights()
    told = handle.step([squares(handle)], Optimizer("sgd", lr=1.0, max_grad_norm=0.5))
    moved = {name: tensor - before[name] for name, tensor in handle.weights().items()}
    assert norm_of(moved) == pytest.approx(0.5, rel=1e-4)
    assert told.grad_norm == pytest.approx(2 * norm_of(before), rel=1e-4)


@pytest.mark.parametrize("bad", ["nan", "inf"])
def test_a_gradient_that_is_not_finite_leaves_the_weights_as_they_were(tiny: Tiny, bad: str) -> None:
    handle = tiny(trainable=True)
    before = handle.weights()
    with pytest.raises(LawError) as caught:
        handle.step([lambda: squares(handle)() * 0.0, lambda: sums(handle)() * float(bad)], Optimizer(lr=0.1))
    assert str(caught.value) == (
        f"the gradient is not finite (norm {bad}, loss {bad}); this step did not change the weights\n"
        "    by micro-batch 1 on rank 0\n"
        "  hint: a log-prob of -inf, a learning rate too high, or an advantage that is not finite"
    )
    assert all(torch.equal(tensor, before[name]) for name, tensor in handle.weights().items())
    assert all(p.grad is None for p in handle.model.parameters())
    handle.step([squares(handle)], Optimizer(lr=0.1))
    assert all(tensor.isfinite().all() for tensor in handle.weights().values())


def test_each_optimizer_of_a_model_keeps_its_own_state_and_takes_each_steps_settings(tiny: Tiny) -> None:
    handle, by_hand = tiny(trainable=True), tiny(trainable=True)
    other = torch.optim.AdamW(by_hand.model.parameters(), lr=1.0)
    for lr, decay in ((0.01, 0.0), (0.002, 0.1)):
        handle.step([squares(handle)], Optimizer("adamw", lr, decay, max_grad_norm=0))
        handle.step([squares(handle)], Optimizer("sgd", 0.001, max_grad_norm=0))
        for group in other.param_groups:
            group.update(lr=lr, weight_decay=decay)
        other.zero_grad()
        squares(by_hand)().backward()  # type: ignore[no-untyped-call]
        other.step()
        with torch.no_grad():
            for p in by_hand.model.parameters():
                p.mul_(1 - 0.002)
    for one, two in zip(handle.model.parameters(), by_hand.model.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-6)


def test_no_gradient_is_kept_after_a_step(tiny: Tiny) -> None:
    handle = tiny(trainable=True)
    handle.step([squares(handle)], Optimizer())
    assert all(p.grad is None for p in handle.model.parameters())


# ------------------------------------------------------------------------------------------- weights, text, versions


def test_weights_are_a_copy_and_can_be_put_back(tiny: Tiny) -> None:
    handle = tiny(trainable=True)
    before = handle.weights()
    handle.step([squares(handle)], Optimizer("sgd", lr=0.1))
    assert not torch.equal(handle.weights()["lm_head.weight"], before["lm_head.weight"])
    handle.load(before)
    assert all(torch.equal(tensor, before[name]) for name, tensor in handle.weights().items())


def test_a_chat_becomes_tokens_by_the_models_template_and_a_response_text_without_special_tokens(tiny: Tiny) -> None:
    tokenizer = tiny().tokenizer
    assert tokenizer.encode([{"role": "user", "content": "12"}]) == (1, 6, 7, 4)
    assert tokenizer.decode((1, 6, 7, 4, 8, 2)) == "123"


def test_without_a_template_a_chat_is_its_contents_on_lines_of_their_own(tiny: Tiny) -> None:
    handle = tiny()
    handle.raw_tokenizer.chat_template, template = None, handle.raw_tokenizer.chat_template
    try:
        chat = [{"role": "system", "content": "1"}, {"role": "user", "content": "2"}]
        assert handle.tokenizer.encode(chat) == (6, 3, 7)
    finally:
        handle.raw_tokenizer.chat_template = template


def test_weights_that_an_update_has_consumed_can_no_longer_be_read(tiny: Tiny) -> None:
    policy = Policy(tiny(trainable=True))
    after = policy.advanced()
    assert after.version == 1 and after.handle is after.data
    with pytest.raises(LawError) as caught:
        _ = policy.handle
    assert str(caught.value) == (
        "version 0 of these weights was consumed by an update; they are at 1\n"
        "  hint: use the model that `update` returned"
    )


def test_a_model_of_one_process_runs_on_one_rank_unless_told(tiny: Tiny) -> None:
    handle = tiny()
    assert (handle.ranks.rank, handle.ranks.count) == (0, 1)
    ranks = SingleRank()
    assert tiny(ranks=ranks).ranks is ranks


def test_a_handle_leaves_no_warning_and_no_gradient_on_a_frozen_model(tiny: Tiny) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        handle = tiny()
    assert not any(p.requires_grad for p in handle.model.parameters())
    assert not handle.model.training
    assert Reference(handle).handle is handle
