"""Rewards of tokens by a process reward model, against the model's own output on each whole text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import ModelError
from flowgraph.models import load, resolve, save
from flowgraph.models.heads import with_head
from nodes import Policy, ProcessRewardModel, Rewards, Rollout, Values, gae, generate, process_rewards
from nodes.data.source import prompts_at
from nodes.scoring.judging import step_ends

Tiny = Callable[..., LocalModel]


@pytest.fixture
def rollout(tiny: Tiny, digit_rows: Any) -> Rollout:
    return generate(Policy(tiny()), prompts_at(digit_rows, [5, 2, 7]), n=2, max_tokens=6)


@pytest.fixture
def scorer(tmp_path: Path) -> LocalModel:
    loaded = load(resolve("tiny", cache=tmp_path), seed=3, cache=tmp_path, head="rewards", say=print)
    return LocalModel(loaded.model, loaded.tokenizer)


def outputs(scorer: LocalModel, rollout: Rollout) -> list[list[float]]:
    """Return the model's output at each response token, from one plain pass for each row."""
    rows = zip(rollout.context.data.to_pylist(), rollout.tokens.data, rollout.lengths.data.tolist(), strict=True)
    texts = [torch.tensor([[*context, *tokens[:length].tolist()]]) for context, tokens, length in rows]
    with torch.no_grad():
        logits = [scorer.model(input_ids=text).logits[0, :, 0] for text in texts]
    return [row[len(row) - n :].tolist() for row, n in zip(logits, rollout.lengths.data.tolist(), strict=True)]


def test_the_reward_of_a_token_is_the_models_output_after_it(scorer: LocalModel, rollout: Rollout) -> None:
    rewards = process_rewards(ProcessRewardModel(scorer), rollout)
    assert rewards.data.shape == rollout.tokens.data.shape
    for row, wanted in zip(rewards.data.tolist(), outputs(scorer, rollout), strict=True):
        assert row[: len(wanted)] == pytest.approx(wanted, abs=1e-5)
        assert not any(row[len(wanted) :])
    assert rewards.data.abs().max() > 1e-3, "an untrained head of zeros would pass too"
    told = {measure.name: (measure.total, measure.count) for measure in rewards.measures}
    assert told["steps"] == (float(rollout.lengths.data.sum()), 6)
    assert told["reward"] == (pytest.approx(float(rewards.data.sum())), 6)


def test_with_a_step_only_the_ends_of_steps_have_a_reward(scorer: LocalModel, rollout: Rollout) -> None:
    every = process_rewards(ProcessRewardModel(scorer), rollout).data
    text = rollout.text.data[0].as_py()
    rewards = process_rewards(ProcessRewardModel(scorer), rollout, step=text[0]).data
    for row, length in enumerate(rollout.lengths.data.tolist()):
        tokens = rollout.tokens.data[row, :length].tolist()
        ends = [scorer.tokenizer.decode([token]) == text[0] for token in tokens[:-1]] + [True]
        assert rewards[row, :length].tolist() == (every[row, :length] * torch.tensor(ends)).tolist()
    assert (rewards[0] != 0).sum() >= 2


class Letters:
    def decode(self, tokens: Any) -> str:
        return "".join("ab\n"[token] if token < 3 else "\n\nc\n" for token in tokens)

    def encode(self, messages: Any, answer: str | None = None) -> tuple[int, ...]:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("tokens", "ends"),
    [
        ([], []),
        ([0], [1]),
        ([0, 2, 2, 1], [0, 0, 1, 1]),
        ([2, 2, 2, 2, 0], [0, 1, 0, 1, 1]),
        ([3, 2, 0, 2, 1, 2, 0], [1, 1, 0, 0, 0, 0, 1]),
    ],
)
def test_a_step_ends_with_the_token_that_completes_its_text(tokens: list[int], ends: list[int]) -> None:
    assert step_ends(tokens, Letters(), "\n\n") == [bool(end) for end in ends]


class Pieces(Letters):
    """Bytes, of which the first of a text loses the space before it."""

    def decode(self, tokens: Any) -> str:
        return bytes(tokens).decode(errors="replace").removeprefix(" ")


@pytest.mark.parametrize(("text", "step", "last"), [("a ки b", " ки", 5), ("a🙂b", "🙂", 4), ("é。b", "。", 4)])
def test_a_step_is_found_over_tokens_of_bytes_and_after_a_space(text: str, step: str, last: int) -> None:
    ends = step_ends(list(text.encode()), Pieces(), step)
    assert [index for index, end in enumerate(ends) if end] == [last, len(text.encode()) - 1]


def test_gae_takes_them(scorer: LocalModel, rollout: Rollout) -> None:
    rewards = process_rewards(ProcessRewardModel(scorer), rollout)
    zeros = Values(torch.zeros_like(rewards.data))
    advantages, returns = gae(rewards, zeros, rollout.mask, gamma=1.0, lam=1.0)
    kept = Rewards(rewards.data * rollout.mask.data)
    after = kept.data.flip(1).cumsum(1).flip(1) * rollout.mask.data
    assert torch.allclose(returns.data * rollout.mask.data, after, atol=1e-5)
    assert advantages.data.shape == rewards.data.shape


def test_a_model_without_a_trained_head_is_refused(tmp_path: Path, tiny_parts: Any) -> None:
    model, tokenizer = tiny_parts
    plain, scored = tmp_path / "plain", tmp_path / "scored"
    save(model, tokenizer, plain)
    with pytest.raises(ModelError, match=r"has no head that scores tokens: config\.json describes a causal language"):
        load(resolve(str(plain), cache=tmp_path), seed=0, cache=tmp_path, head="rewards", say=print)
    loaded = load(resolve("tiny", cache=tmp_path), seed=0, cache=tmp_path, say=print)
    save(with_head(loaded.model, "score", "tiny", 1)[0], tokenizer, scored)
    reused = load(resolve(str(scored), cache=tmp_path), seed=0, cache=tmp_path, head="rewards", say=print)
    assert type(reused.model).__name__.endswith("ForTokenClassification")
    assert "its head for whole texts is reused at each token" in str(reused.notes)
