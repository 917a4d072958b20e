"""Graphs as text: the shipped flows as goldens, and what does and does not show."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from examples.gpg import gpg
from examples.grpo import grpo
from flowgraph import Flow, flow, node, stale
from flowgraph.passes import compile_graph
from flowgraph.serialize.graph_text import graph_text, shown_settings
from nodes import Policy, Prompts, Rollout, Scores, generate, score

Golden = Callable[[str, str], None]


def rule(response: str) -> float:
    return float(response)


@flow
def scoring(prompts: Prompts, policy: Policy) -> Scores:
    rollout = generate(stale(policy, at_most=2), prompts, n=2, temperature=0.0)
    return score(rollout, by=rule)


@flow
def renamed(prompts: Prompts, policy: Policy) -> Scores:
    drawn: Rollout = generate(stale(policy, at_most=2), prompts, n=2, temperature=0.0)
    given = score(drawn, by=rule)
    return given


@node
def parts(scores: Scores) -> tuple[Scores, Rollout]:
    raise NotImplementedError


@pytest.mark.parametrize("shipped", [grpo, gpg])
def test_a_shipped_flow_prints_as_its_golden(shipped: Flow[..., object], golden: Golden) -> None:
    golden(graph_text(compile_graph(shipped.graph())), f"graphs/{shipped.name}.txt")


def test_settings_that_were_written_show_and_defaults_do_not() -> None:
    graph = compile_graph(scoring.graph())
    assert graph_text(graph, sites=False) == (
        "flow scoring(prompts: Prompts, policy: Policy)\n"
        "  policy.generate = generate(policy=stale(policy, at_most=2), prompts=prompts, n=2, temperature=0.0)"
        " -> Rollout  # generate\n"
        "  score = score(rollout=policy.generate, by=rule) -> Scores  # score\n"
        "  return score"
    )
    assert shown_settings(graph.nodes[0].settings) == [("n", "2"), ("temperature", "0.0")]


def test_names_of_local_variables_do_not_show() -> None:
    texts = [graph_text(compile_graph(each.graph()), sites=False).partition("\n")[2] for each in (scoring, renamed)]
    assert texts[0] == texts[1]


def test_outputs_of_a_node_with_several_are_numbered() -> None:
    @flow
    def several(scores: Scores) -> tuple[Rollout, Scores]:
        same, rollout = parts(scores)
        return rollout, same

    assert graph_text(compile_graph(several.graph()), sites=False).splitlines()[1:] == [
        "  parts = parts(scores=scores) -> Scores, Rollout  # host",
        "  return parts.1, parts.0",
    ]
