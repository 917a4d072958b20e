"""Law 8: samples come from the truncated distribution, and all that reads them says the log-probs of that distribution.

The statistical tests have fixed seeds: they pass or fail alike in each run. Each would reject a right sampler with
probability `ERROR_RATE` if its seed were drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
import torch
from scipy.stats import power_divergence

import flowgraph
from flowgraph import Loss, flow
from flowgraph.engines.forward_pass.forward import forward_stats
from flowgraph.engines.forward_pass.packing_probe import choose_packing
from flowgraph.engines.forward_pass.truncation import truncated
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import LawError, PlanError, SettingError
from flowgraph.language import Key
from flowgraph.language.handle import (
    Completion,
    ResponseRows,
    SampleRequest,
    Stopping,
    Truncation,
    gather,
)
from flowgraph.models.tokenizing import cut_at_stop, stop_length
from nodes import (
    Advantages,
    LogProbs,
    Policy,
    Prompts,
    Reference,
    Rollout,
    Temperature,
    clipped,
    entropy,
    generate,
    group_normalize,
    kl_k3,
    logprobs,
    policy_gradient,
    score,
    squared_probs,
    update,
)
from nodes.data.source import prompts_at
from tests.looped import looped

ERROR_RATE = 1e-3
SAMPLES = 1000
CLOSE = 1e-4
CONTEXT = (1, 5, 6, 7, 4)
TRUNCATIONS = [
    Truncation(),
    Truncation(top_k=3),
    Truncation(top_p=0.7),
    Truncation(min_p=0.3),
    Truncation(top_k=8, top_p=0.8),
    Truncation(top_k=8, min_p=0.2),
    Truncation(top_p=0.9, min_p=0.2),
    Truncation(top_k=10, top_p=0.9, min_p=0.1),
    Truncation(top_k=1),
    Truncation(top_k=1000),
]
Tiny = Callable[..., LocalModel]


@pytest.fixture(scope="module")
def sharp(tiny_parts: tuple[Any, Any]) -> LocalModel:
    """Return the tiny model with larger logits, so that a truncation leaves out much and keeps several tokens."""
    import copy

    model, tokenizer = copy.deepcopy(tiny_parts[0]), tiny_parts[1]
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(6)
    return LocalModel(model, tokenizer, trainable=True)


def kept(probabilities: Sequence[float], truncation: Truncation) -> dict[int, float]:
    """Return the probabilities of the tokens that a truncation keeps: the rules once more, one token at a time."""
    ranked = sorted(enumerate(probabilities), key=lambda pair: -pair[1])
    ranked = ranked[: truncation.top_k or None]
    total, before, nucleus = sum(p for _, p in ranked), 0.0, list[tuple[int, float]]()
    for token, p in ranked:
        if before / total < truncation.top_p:
            nucleus.append((token, p))
        before += p
    nucleus = [(token, p) for token, p in nucleus if p >= truncation.min_p * nucleus[0][1]]
    total = sum(p for _, p in nucleus)
    return {token: p / total for token, p in nucleus}


def likely(model: LocalModel, context: Sequence[int], temperature: float) -> list[float]:
    """Return the probabilities of the next token, from a plain forward pass."""
    with torch.no_grad():
        logits = model.model(input_ids=torch.tensor([list(context)])).logits[0, -1].double()
    found: list[float] = torch.softmax(logits / temperature, -1).tolist()
    return found


def chance(tokens: Sequence[int], expected: dict[int, float]) -> float:
    """Return the p-value of a G test that tokens come from a distribution; 0 if one is outside of it."""
    if set(tokens) - expected.keys():
        return 0.0
    counts = [sum(token == other for token in tokens) for other in expected]
    if len(counts) == 1:
        return 1.0
    return float(
        power_divergence(counts, [p * len(tokens) for p in expected.values()], lambda_="log-likelihood").pvalue
    )


def requests_of(truncation: Truncation, temperature: float, samples: int, most: int = 1) -> list[SampleRequest]:
    key = Key(11, 1, "policy.generate")
    return [SampleRequest(CONTEXT, 0, sample, most, temperature, key, truncation) for sample in range(samples)]


def test_tokens_come_from_the_truncated_distribution_and_a_copy_samples_alike(sharp: LocalModel) -> None:
    copied = LocalModel(type(sharp.model)(sharp.model.config), sharp.raw_tokenizer)  # as a sharded model samples
    copied.load(sharp.weights())
    for place, truncation in enumerate(TRUNCATIONS):
        temperature = (0.7, 1.3)[place % 2]
        done = gather(sharp, requests_of(truncation, temperature, SAMPLES))
        tokens = [completion.tokens[0] for completion in done]
        probabilities = likely(sharp, CONTEXT, temperature)
        expected = kept(probabilities, truncation)
        assert chance(tokens, expected) > ERROR_RATE, (truncation, temperature)
        if truncation in TRUNCATIONS[1:7]:
            assert 1 < len(expected) < len(probabilities), (truncation, temperature)
            assert chance(tokens, kept(probabilities, Truncation())) < ERROR_RATE, "the test can tell them apart"
        for completion in done[:50]:
            assert completion.logprobs[0] == pytest.approx(math.log(expected[completion.tokens[0]]), abs=CLOSE)
        again = gather(copied, requests_of(truncation, temperature, 100))
        assert [completion.tokens[0] for completion in again] == tokens[:100]


@torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
def test_log_probs_and_statistics_read_again_are_of_the_truncated_distribution(
    sharp: LocalModel, uneven_rows: pa.Table
) -> None:
    policy, prompts = Policy(sharp), prompts_at(uneven_rows, range(4))
    for truncation in TRUNCATIONS[1:]:
        settings: Any = {name: value for name, value in truncation.changed() if name != "top_k"}
        rollout = generate(
            policy, prompts, n=3, temperature=0.8, max_tokens=6, top_k=truncation.top_k, key=Key(5), **settings
        )
        mask = rollout.mask.data > 0
        assert (logprobs(policy, rollout).data - rollout.logprobs.data)[mask].abs().max() < CLOSE
        read = {"entropy": entropy(policy, rollout).data, "squares": squared_probs(policy, rollout).data}
        for row, context in enumerate(rollout.context.data.to_pylist()):
            tokens = rollout.tokens.data[row, : int(rollout.lengths.data[row])].tolist()
            for place, token in enumerate(tokens):
                probabilities = kept(likely(sharp, [*context, *tokens[:place]], 0.8), truncation)
                assert math.log(probabilities[token]) == pytest.approx(rollout.logprobs.data[row, place], abs=CLOSE)
                nats = -sum(p * math.log(p) for p in probabilities.values())
                assert nats == pytest.approx(read["entropy"][row, place], abs=CLOSE)
                assert sum(p * p for p in probabilities.values()) == pytest.approx(
                    read["squares"][row, place], abs=CLOSE
                )


def test_packed_and_padded_passes_agree_and_no_token_of_a_response_is_impossible(sharp: LocalModel) -> None:
    tokens = torch.arange(3, 15).reshape(3, 4)  # responses that no truncated model would sample
    contexts = pa.array([[1, 5, 4], [1, 5, 4], [2]], pa.list_(pa.int32()))
    names = ("entropy", "logprobs", "square_probs")
    for truncation in TRUNCATIONS[1:]:
        rows = ResponseRows(contexts, tokens, torch.tensor([4, 2, 3]), 0.9, truncation)
        passes = list[list[torch.Tensor]]()
        for packing in (choose_packing(sharp.model), None):
            stats = forward_stats(sharp.model, rows, names, packing=packing)
            passes.append([getattr(stats, name) for name in names])
            parameters = list(sharp.model.parameters())
            gradients = torch.autograd.grad(torch.stack(passes[-1]).sum(), parameters, allow_unused=True)
            assert all(gradient.isfinite().all() for gradient in gradients)
        for one, other in zip(*passes, strict=True):
            assert one.isfinite().all() and torch.allclose(one, other, rtol=0, atol=CLOSE)


def test_rules_are_applied_in_order_and_ties_are_kept() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 0.0, -1.0]]).double()

    def left(truncation: Truncation) -> list[int]:
        found: list[int] = truncated(logits, truncation)[0].isfinite().nonzero()[:, 0].tolist()
        return found

    assert left(Truncation(top_k=2)) == [0, 1, 2], "as likely as the last"
    assert left(Truncation(top_p=1e-9)) == [0] and left(Truncation(min_p=1.0)) == [0]
    assert left(Truncation(top_k=9, top_p=1.0)) == [0, 1, 2, 3, 4]
    first = float(logits[0].softmax(-1)[0])  # of these alone, and of more after top_k
    assert left(Truncation(top_p=first + 0.01)) == [0, 1, 2] and left(Truncation(top_k=1, top_p=0.99)) == [0]


def test_a_penalty_lowers_what_context_and_response_have(sharp: LocalModel) -> None:
    key, penalty = Key(4, 1, "g"), 1.8
    (done,) = gather(sharp, [SampleRequest(CONTEXT, 0, 0, 12, 0.9, key, repetition_penalty=penalty)])
    (plain,) = gather(sharp, [SampleRequest(CONTEXT, 0, 0, 12, 0.9, key)])
    assert done.tokens != plain.tokens
    for place, token in enumerate(done.tokens):
        text = [*CONTEXT, *done.tokens[:place]]
        with torch.no_grad():
            logits = sharp.model(input_ids=torch.tensor([text])).logits[0, -1].double()
        for seen in set(text):
            logits[seen] = logits[seen] / penalty if logits[seen] > 0 else logits[seen] * penalty
        assert float((logits / 0.9).log_softmax(-1)[token]) == pytest.approx(done.logprobs[place], abs=CLOSE)


# ------------------------------------------------------------------------------------------- where responses end


class Bytes:
    """A tokenizer with a token for each byte, so that a letter may need several tokens."""

    def decode(self, tokens: Sequence[int], **options: Any) -> str:
        assert options == {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        return bytes(tokens).decode(errors="replace")


@looped(
    "text, stopping, ends",
    [
        ("abcabc", Stopping(texts=("bc",)), "abc"),
        ("abcabc", Stopping(texts=("zz", "ca")), "abca"),
        ("abcabc", Stopping(texts=("abcd",)), None),
        ("aéüb", Stopping(texts=("é",)), "aé"),
        ("a🙂b🙂", Stopping(texts=("🙂b",)), "a🙂b"),
        ("e\u0301x", Stopping(texts=("é",)), None),
        ("abc", Stopping(texts=("c",), ids=(ord("a"),)), "a"),
        ("abc", Stopping(texts=("a",), ids=(ord("c"),)), "a"),
        ("abc", Stopping(ids=(ord("z"),)), None),
        ("", Stopping(texts=("a",), ids=(1,)), None),
    ],
)
def test_a_response_ends_with_the_token_that_completes_the_first_stop(
    text: str, stopping: Stopping, ends: str | None
) -> None:
    tokens = tuple(text.encode())
    length = None if ends is None else len(ends.encode())
    assert stop_length(tokens, stopping, Bytes()) == length
    done = Completion(tokens, tuple(-float(i) for i in range(len(tokens))), False, ((0, 3), (2, 4)))
    cut = cut_at_stop(done, stopping, Bytes())
    if length is None:
        assert cut is done
    else:
        assert (cut.tokens, cut.logprobs) == (tokens[:length], done.logprobs[:length])
        assert cut.finished and cut.versions == ((0, 3), (2, 4))[: 1 + (length > 2)]


def test_samples_end_at_stops_and_are_otherwise_those_without(tiny: Tiny, uneven_rows: pa.Table) -> None:
    policy, prompts = Policy(tiny()), prompts_at(uneven_rows, range(6))

    def responses(**settings: Any) -> list[tuple[list[int], bool, str]]:
        rollout = generate(policy, prompts, n=4, max_tokens=20, key=Key(8, 1, "g"), **settings)
        rows = zip(rollout.tokens.data.tolist(), rollout.lengths.data.tolist(), strict=True)
        finished, texts = rollout.finished.data.tolist(), rollout.text.data.to_pylist()
        return [
            (tokens[:length], done, text) for (tokens, length), done, text in zip(rows, finished, texts, strict=True)
        ]

    plain, endless = responses(), responses(ignore_eos=True)
    assert all(len(tokens) == 20 and not done for tokens, done, _ in endless)
    assert any(2 in tokens for tokens, _, _ in endless), "the end token is one like others"
    by_text, by_id = responses(stop="1"), responses(stop=[7], ignore_eos=True)
    assert {done for _, done, _ in by_text} == {True, False}
    for (tokens, done, text), (whole, was_done, _) in zip(by_text, plain, strict=True):
        assert tokens == whole[: len(tokens)] and "1" not in text[:-1]
        assert done == (text.endswith("1") or was_done)
    for (tokens, done, _), (whole, _, _) in zip(by_id, endless, strict=True):
        assert tokens == whole[: len(tokens)] and done == (tokens[-1] == 7) and 7 not in tokens[:-1]
    eos = policy.handle.raw_tokenizer.eos_token  # type: ignore[attr-defined]
    assert [tokens for tokens, _, _ in responses(stop=eos, ignore_eos=True)] == [tokens for tokens, _, _ in plain]


@looped(
    "name, value, why",
    [
        ("top_p", 0.0, "greater than 0"),
        ("top_p", 1.1, "less than or equal to 1"),
        ("top_p", math.nan, "finite"),
        ("top_k", -1, "greater than or equal to 0"),
        ("top_k", 1.5, "integer"),
        ("min_p", -0.1, "greater than or equal to 0"),
        ("repetition_penalty", 0.0, "greater than 0"),
        ("repetition_penalty", math.inf, "finite|less than or equal to 2"),
        ("stop", ("",), "1 to 1000 characters"),
        ("stop", (-1,), "token ids from 0 to 2147483647"),
        ("stop", ("\ufffd",), r"U\+FFFD"),
        ("stop", (None,), "should be texts and token ids"),
        ("stop", (1.5,), "should be texts and token ids"),
        ("stop", (True,), "should be texts and token ids"),
        ("stop", "x" * 1001, "1 to 1000 characters"),
        ("stop", tuple(range(65)), "at most 64"),
    ],
)
def test_settings_out_of_range_are_refused(
    tiny: Tiny, uneven_rows: pa.Table, name: str, value: object, why: str
) -> None:
    with pytest.raises(SettingError, match=why):
        generate(Policy(tiny()), prompts_at(uneven_rows, [0]), **{name: value})  # type: ignore[arg-type]


def test_a_stop_that_the_vocabulary_lacks_is_refused(tiny: Tiny, uneven_rows: pa.Table) -> None:
    from flowgraph.errors import ModelError

    with pytest.raises(ModelError, match=r"`stop` has the token id 20, but the model's ids are 0 to 19"):
        generate(Policy(tiny()), prompts_at(uneven_rows, [0]), max_tokens=8, stop=(20,))


# ------------------------------------------------------------------------------------------- two distributions

Term = Callable[[LogProbs, Advantages, Rollout, LogProbs], Loss]


def refused(term: Term, **settings: Any) -> str:
    """Describe an update on rows that are sampled with these settings; return what is refused."""

    @flow
    def training(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
        rollout = generate(policy, prompts, **settings)
        advantages = group_normalize(score(rollout, by="partial"), rollout.group)
        other = logprobs(ref, rollout)
        return update(policy, lambda pi: term(logprobs(pi, rollout), advantages, rollout, other))

    try:
        training.graph()
    except LawError as error:
        return str(error)
    return ""


def ratio(new: LogProbs, advantages: Advantages, rollout: Rollout, other: LogProbs) -> Loss:
    return clipped(new, advantages, rollout.mask, old=rollout.logprobs)


def divergence(new: LogProbs, advantages: Advantages, rollout: Rollout, other: LogProbs) -> Loss:
    return clipped(new, advantages, rollout.mask, old=rollout.logprobs) + kl_k3(new, rollout.mask, ref=other)


def plain_gradient(new: LogProbs, advantages: Advantages, rollout: Rollout, other: LogProbs) -> Loss:
    return policy_gradient(new, advantages, rollout.mask)


def test_a_loss_compares_log_probs_of_one_distribution_only() -> None:
    for term in (ratio, divergence, plain_gradient):
        assert refused(term) == refused(term, top_p=0.9, top_k=5, temperature=0.7) == ""
    for term in (ratio, divergence):
        error = refused(term, repetition_penalty=1.2, top_p=0.9)
        what = "clipped(old=) is of the distribution with top_p=0.9, repetition_penalty=1.2, but clipped(new=) of the "
        assert what + "distribution with top_p=0.9" in error
        assert "hint: train on samples without repetition_penalty: a forward pass does not compute it" in error
    error = refused(plain_gradient, repetition_penalty=1.2)
    assert (
        "policy_gradient wants rows of the model it trains" in error and "sampled with repetition_penalty=1.2" in error
    )


@looped(
    "engine, settings, what, fits",
    [
        ("sglang", {"top_k": 20, "top_p": 0.9}, "top_k=20 with top_p=0.9", "local, vllm (--engine sample=vllm)"),
        ("vllm", {"min_p": 0.1, "top_p": 0.9}, "min_p=0.1 with top_p=0.9", "local, sglang (--engine sample=sglang)"),
        ("vllm", {"top_k": 20, "top_p": 0.9}, "", ""),
    ],
)
def test_a_plan_whose_engine_would_sample_otherwise_is_refused(
    engine: str, settings: dict[str, Any], what: str, fits: str
) -> None:
    chosen = {f"policy.generate.{name}": value for name, value in settings.items()}

    def planned() -> Any:
        return flowgraph.plan("dr_grpo", cluster="1xh100", batch=8, engine=[f"sample={engine}"], settings=chosen)

    if what:
        with pytest.raises(PlanError) as error:
            planned()
        assert f"policy.generate: the engine `{engine}` does not run {what}\n  hint: these sample so: {fits}" in str(
            error.value
        )
    else:
        assert planned()


def test_the_distribution_travels_with_a_rollout_and_defaults_leave_it_as_it_was() -> None:
    assert Temperature.with_truncation(0.7, Truncation()).data == 0.7
    assert Temperature.with_truncation(0.0, Truncation(top_k=5)).data == 0.0, "greedy samples are not truncated"
    assert Temperature.with_truncation(0.7, Truncation(top_k=5)).distribution() == (0.7, Truncation(top_k=5))
    for wrong in (
        {},
        {"temperature": "hot"},
        {"temperature": 1.0, "top_q": 3},
        {"temperature": 1.0, "top_k": math.inf},
    ):
        with pytest.raises(LawError, match="a rollout's temperature cannot be"):
            Temperature(wrong).distribution()
