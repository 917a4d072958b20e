"""Held-out accuracy: greedy responses that get full marks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import torch

from flowgraph import Key
from flowgraph.executors.local import LocalModel
from flowgraph.passes import compile_graph
from nodes import Policy, Scores, accuracy, evaluate
from nodes.data.source import prompts_at

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
