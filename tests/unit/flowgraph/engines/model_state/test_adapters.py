"""A handle on a model with adapters: what a step changes, what copies exchange, and what lies under the adapters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import LawError
from flowgraph.language.handle import Completion, Optimizer, ResponseRows, SampleRequest, gather
from flowgraph.language.keys import Key
from flowgraph.models import LoadedModel, load, resolve
from nodes.values import Rollout

Make = Callable[..., Rollout]
RULE = Optimizer("adamw", 1e-2)
LENGTHS, CONTEXTS = [3, 1, 7, 5, 2, 7], [2, 9, 1, 4, 30, 3]


@pytest.fixture
def rows(make_rollout: Make) -> ResponseRows:
    rollout = make_rollout(LENGTHS, CONTEXTS)
    return ResponseRows(rollout.context.data, rollout.tokens.data, rollout.lengths.data)


def read(text: str, head: Any = "tokens") -> LoadedModel:
    return load(resolve(text, cache=Path("none")), seed=0, cache=Path("none"), head=head, say=print)


def handle_of(text: str, head: Any = "tokens", **fields: Any) -> LocalModel:
    loaded = read(text, head)
    return LocalModel(loaded.model, loaded.tokenizer, **fields)


def logprobs(handle: LocalModel, rows: ResponseRows) -> torch.Tensor:
    found = handle.token_stats(rows, ("logprobs",)).logprobs
    assert found is not None
    return found


def worth(handle: LocalModel, rows: ResponseRows) -> Callable[[], torch.Tensor]:
    def loss() -> torch.Tensor:
        found = handle.token_stats(rows, ("values",)).values
        assert found is not None
        return ((found - 1.0) ** 2).mean()

    return loss


def trained(rows: ResponseRows, steps: int = 3) -> LocalModel:
    handle = handle_of("tiny+lora=4", trainable=True)
    for _ in range(steps):
        handle.step([lambda: logprobs(handle, rows).mean()], RULE)
    return handle


def drawn(handle: LocalModel) -> list[Completion]:
    return gather(handle, [SampleRequest((1, 5, 4), 0, i, 6, 1.0, Key(node="generate")) for i in range(8)])


def test_an_update_changes_adapters_only(rows: ResponseRows) -> None:
    handle = handle_of("tiny+lora=4", trainable=True)
    before = {name: each.clone() for name, each in handle.model.state_dict().items()}
    told = handle.step([lambda: logprobs(handle, rows).mean()], RULE)
    assert told.grad_norm > 1e-4
    changed = {name for name, each in handle.model.state_dict().items() if not torch.equal(each, before[name])}
    assert changed == {name for name in before if ".lora_B." in name}, "A has no gradient while B is zero"
    handle.step([lambda: logprobs(handle, rows).mean()], RULE)
    changed = {name for name, each in handle.model.state_dict().items() if not torch.equal(each, before[name])}
    assert changed == {name for name in before if ".lora_" in name}


def test_a_value_head_is_trained_beside_adapters(rows: ResponseRows) -> None:
    handle = handle_of("tiny+lora=4", "values", trainable=True)
    before = {name: each.clone() for name, each in handle.model.state_dict().items()}
    losses = [handle.step([worth(handle, rows)], RULE).loss for _ in range(20)]
    changed = {name for name, each in handle.model.state_dict().items() if not torch.equal(each, before[name])}
    assert (
        changed == {name for name in before if ".lora_" in name or name.startswith("score.")} == set(handle.weights())
    )
    assert losses[-1] < 0.5 * losses[0]


def test_what_copies_exchange_is_what_is_trained(rows: ResponseRows) -> None:
    one, other = trained(rows), handle_of("tiny+lora=4")
    assert not torch.allclose(logprobs(one, rows), logprobs(other, rows), atol=1e-3)
    weights = one.weights()
    assert all(".lora_" in name for name in weights)
    assert len(weights) == 2 * 2 * 7
    other.load(weights)
    with torch.no_grad():
        assert torch.equal(logprobs(one, rows), logprobs(other, rows))
    assert drawn(one) == drawn(other)
    next(iter(weights.values())).zero_()
    assert any(each.any() for name, each in one.weights().items()), "what is given is a copy"


@pytest.mark.parametrize("change", ["less", "more"])
def test_other_weights_than_those_are_refused(rows: ResponseRows, change: str) -> None:
    handle = handle_of("tiny+lora=4")
    weights = handle.weights()
    if change == "less":
        weights.pop("model.layers.1.mlp.up_proj.lora_A.default.weight")
    else:
        weights["model.norm.weight"] = torch.zeros(64)
    wrong = {"less": "model.layers.1.mlp.up_proj.lora_A.default.weight", "more": "model.norm.weight"}
    with pytest.raises(LawError) as caught:
        handle.load(weights)
    assert str(caught.value) == f"the weights do not fit the model: {wrong[change]}"


def test_what_lies_under_adapters_is_still_the_base_after_updates_in_one_memory(rows: ResponseRows) -> None:
    handle, plain = trained(rows), handle_of("tiny")
    under = handle.without_adapters()
    assert not torch.allclose(logprobs(handle, rows), logprobs(plain, rows), atol=1e-3)
    found = logprobs(under, rows)
    assert torch.equal(found, logprobs(plain, rows))
    assert not found.requires_grad
    assert {each.data_ptr() for each in under.model.parameters()} == {
        each.data_ptr() for each in handle.model.parameters()
    }
    assert drawn(under) == drawn(plain) != drawn(handle)


def test_a_reading_of_what_lies_under_leaves_the_training_as_it_is(rows: ResponseRows) -> None:
    alone, beside = trained(rows, 0), trained(rows, 0)
    under = beside.without_adapters()

    def loss() -> torch.Tensor:
        new = logprobs(beside, rows)
        return ((new - logprobs(under, rows)) ** 2).mean() + new.mean()

    fixed = logprobs(handle_of("tiny"), rows)
    for _ in range(3):
        alone.step([lambda: ((logprobs(alone, rows) - fixed) ** 2).mean() + logprobs(alone, rows).mean()], RULE)
        beside.step([loss], RULE)
    weights = alone.weights()
    assert all(torch.allclose(each, weights[name], atol=1e-5) for name, each in beside.weights().items())
    assert (beside.version, under.version, beside.trainable, under.trainable) == (0, 0, True, False)


def test_what_lies_under_is_frozen_and_its_weights_are_not_its_own(rows: ResponseRows) -> None:
    under = trained(rows, 1).without_adapters()
    assert under.verbs == {"token_stats", "sample"}
    with pytest.raises(LawError):
        under.step([lambda: logprobs(under, rows).mean()], RULE)
    for call in (under.weights, lambda: under.load({})):
        with pytest.raises(LawError) as caught:
            call()
        assert str(caught.value) == (
            "these weights are shared with another model's adapters, so they are read-only\n"
            "  hint: a model that is trained needs its own adapters: add +lora= to its name too"
        )


def test_a_trained_model_is_saved_as_a_plain_folder_that_gives_the_same_logprobs(
    rows: ResponseRows, tmp_path: Path
) -> None:
    handle = trained(rows)
    with torch.no_grad():
        wanted = logprobs(handle, rows)
    handle.save(tmp_path / "saved")
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.allclose(logprobs(LocalModel(back, handle.raw_tokenizer), rows), wanted, atol=1e-5)
    assert (tmp_path / "saved" / "adapter" / "adapter_config.json").is_file()


def test_a_trained_classifier_is_saved_as_a_folder_that_the_library_loads(rows: ResponseRows, tmp_path: Path) -> None:
    for text in ("tiny", "tiny+lora=2"):
        handle = handle_of(text, "values", trainable=True)
        for _ in range(2):
            handle.step([worth(handle, rows)], RULE)
        folder = tmp_path / text
        handle.save(folder)
        back = transformers.AutoModelForTokenClassification.from_pretrained(folder)
        found = LocalModel(back, handle.raw_tokenizer).token_stats(rows, ("values",)).values
        with torch.no_grad():
            wanted = handle.token_stats(rows, ("values",)).values
        assert wanted is not None and found is not None
        assert wanted.abs().max() > 1e-3
        assert torch.allclose(found, wanted, atol=1e-5)
