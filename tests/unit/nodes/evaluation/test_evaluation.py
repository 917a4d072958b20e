"""Held-out accuracy: greedy responses that get full marks, and pass@k."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import torch

from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import LawError
from flowgraph.language import Key
from flowgraph.language.values import Group
from flowgraph.passes import compile_graph
from nodes import Policy, Scores, accuracy, evaluate, pass_at_k
from nodes.data.source import prompts_at
from tests.looped import looped

Tiny = Callable[..., LocalModel]


def test_only_full_marks_count() -> None:
    share = accuracy(Scores(torch.tensor([1.0, 0.999, 0.0, 1.0])))
    assert share.data == 0.5
    assert [(each.name, each.total, each.count) for each in share.measures] == [("accuracy", 2.0, 4)]


def test_without_rows_there_is_no_accuracy_to_report() -> None:
    share = accuracy(Scores(torch.zeros(0)))
    assert share.data == 0 and share.measures[0].count == 0


def test_the_flow_answers_greedily_whatever_the_seed(
    tiny: Tiny, uneven_rows: pa.Table, run_graph: Callable[..., Any]
) -> None:
    graph = compile_graph(evaluate.graph({"max_tokens": 3}))
    policy, prompts = Policy(tiny()), prompts_at(uneven_rows, list(range(12)))
    ran = [run_graph(graph, {"policy": policy, "prompts": prompts}, Key(seed)) for seed in (0, 1)]
    texts = [each.values[graph.nodes[0]].text.data for each in ran]
    assert texts[0] == texts[1] and ran[0].outputs[0].data == ran[1].outputs[0].data


@looped("n, full, k", [(4, 1, 1), (4, 1, 2), (4, 2, 3), (5, 0, 2), (3, 3, 1), (6, 2, 6)])
def test_pass_at_k_is_the_share_of_all_choices_of_k_that_hold_a_full_mark(n: int, full: int, k: int) -> None:
    scores = torch.tensor([1.0] * full + [0.5] * (n - full))
    choices = list(itertools.combinations(scores.tolist(), k))
    wanted = sum(max(choice) == 1.0 for choice in choices) / len(choices)
    found = pass_at_k(Scores(scores), Group(torch.full((n,), 7)), k=k)
    assert found.data == pytest.approx(wanted)


def test_pass_at_k_is_a_mean_over_prompts_of_any_number_of_responses() -> None:
    scores, group = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0]), torch.tensor([1, 2, 1, 2, 2])
    assert pass_at_k(Scores(scores), Group(group), k=2).data == pytest.approx((1.0 + 1.0) / 2)
    assert pass_at_k(Scores(scores), Group(group), k=1).data == pytest.approx((1 / 2 + 2 / 3) / 2)


def test_pass_at_more_than_there_are_is_refused() -> None:
    with pytest.raises(LawError, match="pass@3 of a prompt with 2 responses"):
        pass_at_k(Scores(torch.ones(2)), Group(torch.zeros(2)), k=3)
