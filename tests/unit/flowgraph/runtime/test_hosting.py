"""Which homes have a copy of their own, under which head, and which read what lies under another's adapters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.ppo import ppo
from flowgraph.cluster.plan import Layout
from flowgraph.language.handle import Optimizer, ResponseRows
from flowgraph.lowering.program import Home
from flowgraph.models import resolve
from flowgraph.runtime.hosting import ModelSetup, Told, heads_of, host
from nodes.values import Rollout

TRAIN = Home("policy", "all", "local", Layout())
SAMPLE = Home("policy", "other", "local", Layout())
REF = Home("ref", "all", "local", Layout())
WORTH = Home("worth", "all", "local", Layout())


def setup(tmp_path: Path, heads: Any = None, **texts: str) -> ModelSetup:
    sources = {name: resolve(text, cache=tmp_path) for name, text in texts.items()}
    return ModelSetup(sources, 0, tmp_path, heads=heads or {})


def hosted(homes: list[Home], trained: list[Home], models: ModelSetup) -> tuple[dict[Home, Any], Told]:
    handles, told = host(homes, trained, models)
    return dict(handles), told


@pytest.fixture
def rows(make_rollout: Callable[..., Rollout]) -> ResponseRows:
    rollout = make_rollout([3, 5, 2])
    return ResponseRows(rollout.context.data, rollout.tokens.data, rollout.lengths.data)


def test_heads_are_those_of_the_types_of_a_flows_models() -> None:
    assert heads_of(ppo.graph()) == {"policy": "tokens", "critic": "values", "ref": "tokens"}


def test_one_source_under_two_heads_is_two_models(tmp_path: Path, rows: ResponseRows) -> None:
    models = setup(tmp_path, {"worth": "values"}, policy="tiny", worth="tiny", ref="tiny")
    handles, told = hosted([TRAIN, REF, WORTH], [TRAIN, WORTH], models)
    assert len({id(each.model) for each in handles.values()}) == 3
    assert handles[TRAIN].token_stats(rows, ("logprobs",)).logprobs is not None
    assert handles[WORTH].token_stats(rows, ("values",)).values is not None
    assert {"step", "sample"} & handles[WORTH].verbs == {"step"}
    assert told["policy"]["digest"] == told["ref"]["digest"] != told["worth"]["digest"]
    assert told["worth"]["notes"] == "tiny: its head was replaced by one of one output, which starts at 0"


def test_a_frozen_base_of_adapters_in_the_same_place_has_no_copy(tmp_path: Path, rows: ResponseRows) -> None:
    models = setup(tmp_path, policy="tiny+lora=4", ref="tiny")
    handles, told = hosted([REF, TRAIN], [TRAIN], models)
    assert handles[REF].model is handles[TRAIN].model
    first = handles[REF].token_stats(rows, ("logprobs",)).logprobs

    def loss() -> torch.Tensor:
        found: torch.Tensor = handles[TRAIN].token_stats(rows, ("logprobs",)).logprobs
        return found.mean()

    for _ in range(2):
        handles[TRAIN].step([loss], Optimizer("sgd", 1.0))
    assert torch.equal(handles[REF].token_stats(rows, ("logprobs",)).logprobs, first)
    with torch.no_grad():
        assert not torch.allclose(handles[TRAIN].token_stats(rows, ("logprobs",)).logprobs, first, atol=1e-3)
    assert told["policy"] == {"name": "tiny+lora=4", "digest": told["ref"]["digest"], "notes": ""}
    assert told["ref"]["name"] == "tiny"
    assert told["ref"]["notes"] == "no copy of its own: `policy` with its adapters off"
    plain = hosted([REF], [], models)[1]
    assert plain["ref"] == told["ref"] | {"notes": ""}


@pytest.mark.parametrize(
    ("texts", "place", "trained", "heads"),
    [
        ({"policy": "tiny+lora=4", "ref": "tiny"}, {"pool": "other"}, (TRAIN,), {}),
        ({"policy": "tiny+lora=4", "ref": "tiny"}, {"engine": "fsdp"}, (TRAIN,), {}),
        ({"policy": "tiny+lora=4", "ref": "tiny"}, {"layout": Layout(data=2)}, (TRAIN,), {}),
        ({"policy": "tiny+lora=4", "ref": "tiny:layers=1"}, {}, (TRAIN,), {}),
        ({"policy": "tiny+lora=4", "ref": "tiny+lora=4"}, {}, (TRAIN,), {}),
        ({"policy": "tiny", "ref": "tiny"}, {}, (TRAIN,), {}),
        ({"policy": "tiny+lora=4", "ref": "tiny"}, {}, (TRAIN, REF), {}),
        ({"policy": "tiny+lora=4", "ref": "tiny"}, {}, (), {}),
        ({"policy": "tiny+lora=4", "ref": "tiny"}, {}, (TRAIN,), {"policy": "values"}),
        ({"policy": "tiny+lora=4", "ref": "tiny"}, {}, (TRAIN,), {"policy": "values", "ref": "values"}),
    ],
)
def test_any_other_model_has_its_own(
    tmp_path: Path, texts: dict[str, str], place: dict[str, Any], trained: tuple[Home, ...], heads: Any
) -> None:
    home = replace(REF, **place)
    handles, _ = hosted([TRAIN, home], list(trained), setup(tmp_path, heads, **texts))
    assert handles[home].model is not handles[TRAIN].model
    mine, others = ({each.data_ptr() for each in handle.model.parameters()} for handle in handles.values())
    assert not mine & others


def test_copies_of_a_model_with_adapters_take_what_is_trained_of_it(tmp_path: Path, rows: ResponseRows) -> None:
    handles, _ = hosted([TRAIN, SAMPLE, REF], [TRAIN], setup(tmp_path, policy="tiny+lora=4", ref="tiny"))
    assert handles[SAMPLE].model is not handles[TRAIN].model

    def loss() -> torch.Tensor:
        found: torch.Tensor = handles[TRAIN].token_stats(rows, ("logprobs",)).logprobs
        return found.mean()

    handles[TRAIN].step([loss], Optimizer("sgd", 1.0))
    handles[SAMPLE].load(handles[TRAIN].weights())
    with torch.no_grad():
        one, other = (handles[home].token_stats(rows, ("logprobs",)).logprobs for home in (TRAIN, SAMPLE))
    assert torch.equal(one, other)
