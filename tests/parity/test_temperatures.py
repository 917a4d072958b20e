"""Law 8: what the trainer says of tokens is what the sampler said, at the temperature they were drawn at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
import torch

from flowgraph import Key, Loss, flow, node
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import LawError
from nodes import (
    Advantages,
    LanguageModel,
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
    score,
    squared_probs,
    update,
)
from nodes.data.source import prompts_at

TEMPERATURES = (0.7, 1.0, 1.3)
LIMIT = 1e-4
SHAPES = ("tiny", "qwen2", "llama")


def make_model(shape: str) -> tuple[Any, Any]:
    """Make a small model in float32: our own, or one with tied embeddings and grouped heads; weights are drawn."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    from flowgraph.models import tiny

    model, tokenizer = tiny.build(0)
    sizes: dict[str, Any] = {"vocab_size": 20, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    sizes |= {"max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.2}
    torch.manual_seed(0)
    if shape == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**sizes))
    if shape == "llama":
        model = LlamaForCausalLM(LlamaConfig(**sizes))
    return model, tokenizer


@dataclass(frozen=True)
class Drawn:
    """A model, and a rollout that it drew at a temperature."""

    model: Any
    policy: Policy
    rollout: Rollout

    @property
    def mask(self) -> torch.Tensor:
        return self.rollout.mask.data > 0

    def at(self, temperature: float) -> Rollout:
        """Give the same rows as if they were drawn at another temperature."""
        return Rollout.of(self.rollout.parts | {"temperature": Temperature(temperature)})

    def heated(self, temperature: float) -> torch.Tensor:
        """Give the distribution of each token that counts, from a plain forward pass of each row alone: [tokens, V]."""
        responses = zip(self.rollout.tokens.data.tolist(), self.rollout.lengths.data.tolist(), strict=True)
        logits = list[torch.Tensor]()
        for context, (tokens, length) in zip(self.rollout.context.data.to_pylist(), responses, strict=True):
            ids = torch.tensor([[*context, *tokens[:length]]])
            logits.append(self.model(input_ids=ids).logits[0, len(context) - 1 : -1])
        return torch.softmax(torch.cat(logits).double() / temperature, -1)


@pytest.fixture(scope="module", params=[(shape, t) for shape in SHAPES for t in TEMPERATURES], ids=str)
def drawn(request: pytest.FixtureRequest, uneven_rows: pa.Table) -> Drawn:
    """Draw from one of the models at one of the temperatures, without a gradient."""
    shape, temperature = request.param
    model, tokenizer = make_model(shape)
    policy = Policy(LocalModel(model, tokenizer))
    prompts, key = prompts_at(uneven_rows, range(5)), Key(3, 1, "policy.generate")
    return Drawn(model, policy, generate(policy, prompts, n=3, temperature=temperature, max_tokens=10, key=key))


def furthest(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


def test_the_log_probs_of_the_trainer_are_those_of_the_sampler_at_its_temperature_only(drawn: Drawn) -> None:
    mask, told, own = drawn.mask, drawn.rollout.logprobs.data, drawn.rollout.temperature.data
    assert told.dtype is torch.float32
    read = logprobs(drawn.policy, drawn.rollout).data
    assert furthest(read[mask], told[mask]) < LIMIT
    for other in {*TEMPERATURES, 0.99 * own} - {own}:
        assert furthest(logprobs(drawn.policy, drawn.at(other)).data[mask], told[mask]) > 10 * LIMIT


def test_the_log_probs_entropy_and_squared_probabilities_are_of_the_heated_distribution(drawn: Drawn) -> None:
    mask = drawn.mask
    for temperature in TEMPERATURES:
        rollout, likely = drawn.at(temperature), drawn.heated(temperature)
        tokens = rollout.tokens.data[mask]
        own = likely.gather(1, tokens[:, None])[:, 0].log()
        assert furthest(logprobs(drawn.policy, rollout).data[mask], own) < LIMIT
        assert furthest(entropy(drawn.policy, rollout).data[mask], -(likely * likely.log()).sum(-1)) < LIMIT
        assert furthest(squared_probs(drawn.policy, rollout).data[mask], (likely**2).sum(-1)) < LIMIT


def test_every_row_of_a_rollout_has_a_token_that_counts(drawn: Drawn) -> None:
    assert drawn.mask.any(1).all() and len(drawn.rollout.lengths.data.unique()) > 1


# ------------------------------------------------------------------------------------------- two temperatures


@node(kind="logprob")
def logprobs_at(model: LanguageModel, rollout: Rollout, *, temperature: float) -> LogProbs:
    """Give log-probs at a temperature of one's own."""
    raise NotImplementedError


Term = Callable[[LogProbs, Advantages, Rollout, LogProbs], Loss]


def compared(term: Term, drawn_at: float, read_at: float) -> str:
    """Describe an update whose loss reads log-probs of the reference at a temperature; give what is refused."""

    @flow
    def mixing(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
        rollout = generate(policy, prompts, temperature=drawn_at)
        advantages = group_normalize(score(rollout, by="partial"), rollout.group)
        other = logprobs_at(ref, rollout, temperature=read_at)
        return update(policy, lambda pi: term(logprobs(pi, rollout), advantages, rollout, other))

    try:
        mixing.graph()
    except LawError as error:
        return str(error).partition(": ")[2].partition("\n")[0]
    return "no error"


def near(new: LogProbs, advantages: Advantages, rollout: Rollout, other: LogProbs) -> Loss:
    return kl_k3(new, rollout.mask, ref=other)


def beside(new: LogProbs, advantages: Advantages, rollout: Rollout, other: LogProbs) -> Loss:
    surrogate = clipped(new, advantages, rollout.mask, old=rollout.logprobs)
    return surrogate + 0.1 * kl_k3(new, rollout.mask, ref=other)


@pytest.mark.parametrize("term", [near, beside])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_log_probs_at_two_temperatures_are_not_compared(term: Term, temperature: float) -> None:
    assert compared(term, temperature, temperature) == "no error"
    for other in {*TEMPERATURES} - {temperature}:
        what = f"kl_k3(ref=) is at temperature {other}, but kl_k3(new=) at {temperature}"
        assert compared(term, temperature, other) == what


def test_log_probs_that_are_read_with_their_rollout_are_at_its_temperature() -> None:
    @flow
    def plain(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
        rollout = generate(policy, prompts, temperature=0.7)
        before = logprobs(ref, rollout)
        return update(policy, lambda pi: kl_k3(logprobs(pi, rollout), rollout.mask, ref=before))

    assert plain.graph().nodes
