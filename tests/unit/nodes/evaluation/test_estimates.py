"""Estimates from scored responses: each formula against a second way to the same number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flowgraph.errors import LawError
from flowgraph.language.values import Group
from nodes import Scores, pass_at_k
from nodes.evaluation.estimates import Marks, estimate, reported, shown_ks

RANDOM = np.random.default_rng(5)


def marks(scores: Any, prompts: Any, **more: Any) -> Marks:
    """Return responses of which only this is known."""
    return Marks(
        np.array(prompts), np.array(scores, np.float32), **{name: np.array(each) for name, each in more.items()}
    )


def test_pass_at_k_is_what_the_node_gives() -> None:
    scores, prompts = (RANDOM.random(60) < 0.3).astype(np.float32), np.repeat(np.arange(10), 6)
    found = reported(marks(scores, prompts)).pass_at
    assert list(found) == [1, 2, 3, 4, 5, 6]
    for k, each in found.items():
        wanted = pass_at_k(Scores(torch.tensor(scores)), Group(torch.tensor(prompts)), k=k)
        assert each.mean == pytest.approx(wanted.data, abs=1e-12)


def test_the_interval_is_that_of_resampled_prompts_not_of_resampled_responses() -> None:
    each_prompt = RANDOM.random(80)
    scores = (RANDOM.random((80, 8)) < each_prompt[:, None]).astype(np.float32)
    found = reported(marks(scores.reshape(-1), np.repeat(np.arange(80), 8))).score
    means = scores.mean(1)[RANDOM.integers(0, 80, (4000, 80))].mean(1)
    assert found.mean == pytest.approx(scores.mean(), abs=1e-7)
    assert found.half_width == pytest.approx(1.96 * means.std(), rel=0.08)
    naive = estimate(scores.reshape(-1)).half_width
    assert found.half_width is not None and naive is not None and found.half_width > 1.5 * naive


def test_prompts_count_alike_however_many_responses_they_have() -> None:
    found = reported(marks([1, 1, 1, 0], [4, 4, 4, 9], tokens=[1, 2, 3, 10], finished=[True, True, False, True]))
    assert (found.prompts, found.responses, found.score.mean) == (2, 4, 0.5)
    assert list(found.pass_at) == [1], "one prompt has one response"
    assert found.tokens is not None
    assert (found.tokens.mean, found.tokens.median, found.tokens.most) == (4.0, 2.5, 10)
    assert found.truncated == 0.25


def test_one_prompt_and_prompts_that_agree_have_no_interval() -> None:
    assert estimate(np.array([0.5])).half_width is None
    assert estimate(np.zeros(9)).half_width is None


def test_rows_are_sorted_by_their_source_where_there_are_several() -> None:
    both = marks([1, 0, 0.5], [0, 1, 2], source=["b", "a", "b"])
    assert {name: reported(each).score.mean for name, each in both.by_source().items()} == {"a": 0.0, "b": 0.75}
    assert both.of(both.prompt < 1).by_source() == marks([1], [0]).by_source() == {}


def test_nothing_is_estimated_from_no_response() -> None:
    with pytest.raises(LawError, match="without scored responses"):
        reported(marks([], []))


def test_a_score_counts_in_full_as_it_does_for_the_check_of_a_run() -> None:
    assert reported(marks([1.0, 0.9999995, 0.999], [0, 1, 2])).pass_at[1].mean == pytest.approx(2 / 3)
    assert shown_ks([1]) == [1] and shown_ks(list(range(1, 17))) == [1, 2, 4, 8, 16]
