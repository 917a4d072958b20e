"""Graphs: what is reachable, what is carried, rebuilding, and which line a node stands on."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import get_args

import pytest

import flowgraph
import nodes
from examples.grpo import grpo
from flowgraph import Loss, State, flow, node, stale
from flowgraph.errors import UnknownNameError
from flowgraph.flows.flow_files import import_file
from flowgraph.language import Key
from flowgraph.language.call_site import Site, call_site
from flowgraph.language.graph import Const, Edge, Graph, Node, NodeKind, Param, carried_from, reachable, rewrite
from flowgraph.passes import compile_graph
from flowgraph.serialize.graph_text import graph_text
from nodes import Policy, Prompts, Scores, generate, group_normalize, logprobs, policy_gradient, score, update


class Level(State):
    """A small carried number."""


@node(carries="level")
def adapt(level: Level, scores: Scores) -> Level:
    return level


@flow
def adaptive(prompts: Prompts, policy: Policy, level: Level) -> tuple[Level, Scores, Policy]:
    rollout = generate(stale(policy, at_most=0, corrected=False), prompts)
    scores = score(rollout)
    advantages = group_normalize(scores, rollout.group)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    return adapt(level, scores), scores, update(update(policy, loss), loss)


@flow
def passing(prompts: Prompts, policy: Policy) -> tuple[Prompts, Policy]:
    return prompts, policy


def test_carries_are_matched_by_the_state_trait_through_any_number_of_updates() -> None:
    assert adaptive.graph().carries() == {"level": 0, "policy": 2}
    assert passing.graph().carries() == {"policy": 1}


def test_an_edge_is_followed_back_through_carries_only() -> None:
    graph = adaptive.graph()
    level, scores, policy = graph.outputs
    assert [carried_from(each) for each in (level, policy)] == [graph.param("level"), graph.param("policy")]
    assert carried_from(scores) is None


def test_nodes_and_their_parts_cannot_be_changed() -> None:
    graph = compile_graph(grpo.graph())
    for thing, name in (
        (graph, "name"),
        (graph.nodes[0], "name"),
        (graph.outputs[0], "port"),
        (graph.params[0], "name"),
    ):
        with pytest.raises(FrozenInstanceError):
            setattr(thing, name, "other")
    with pytest.raises(ValueError, match="frozen"):
        graph.nodes[0].settings.n = 3  # type: ignore[attr-defined]


def test_a_graph_is_what_the_results_depend_on() -> None:
    @flow
    def idle(prompts: Prompts, policy: Policy) -> Policy:
        score(generate(policy, prompts))
        return policy

    assert idle.graph().nodes == ()


def test_sources_come_in_the_order_they_were_written() -> None:
    graph = compile_graph(grpo.graph())
    told = [each.name for each in reachable(graph.outputs)]
    names = ["prompts", "policy", "ref", "policy.generate", "score", "group_normalize", "ref.logprobs", "policy.update"]
    assert told == names
    assert [each.stamp for each in graph.all_nodes] == sorted(each.stamp for each in graph.all_nodes)
    assert {each.op.name for each in set(graph.all_nodes) - set(graph.nodes)} == {
        "logprobs",
        "clipped",
        "kl_k3",
        "scale",
        "add",
    }


def test_rewriting_reaches_every_node_and_keeps_stamps_and_order() -> None:
    graph = compile_graph(grpo.graph())
    seen: list[Node] = []

    def change(each: Node) -> Node:
        seen.append(each)
        return replace(each, name=each.name.upper())

    changed = rewrite(graph, change)
    assert [each.name for each in changed.all_nodes] == [each.name.upper() for each in graph.all_nodes]
    assert [each.stamp for each in changed.all_nodes] == [each.stamp for each in graph.all_nodes]
    assert len(seen) == len(graph.all_nodes)
    inside = [each for _, region in changed.nodes[-1].regions for each in (*region.inner, region.output.source)]
    assert set(inside) <= set(changed.all_nodes)
    assert [each.name for each in graph.all_nodes] != [each.name for each in changed.all_nodes]


def test_rewriting_with_no_change_prints_the_same() -> None:
    graph = compile_graph(grpo.graph())
    assert graph_text(rewrite(graph, lambda each: each)) == graph_text(graph)


def test_a_name_that_is_no_parameter_gives_none() -> None:
    assert grpo.graph().param("nobody") is None


def test_a_site_is_the_nearest_line_that_is_not_ours() -> None:
    assert call_site() == Site(__file__, call_site().line)
    assert {each.at.file for each in grpo.graph().all_nodes} == {str(Path(grpo.fn.__code__.co_filename))}
    ours = tuple(str(Path(str(package.__file__)).parent) for package in (flowgraph, nodes))
    assert not any(each.at.file.startswith(ours) for each in grpo.graph().all_nodes)


def test_a_flow_that_a_wheel_ships_inside_our_package_stands_on_its_own_lines(tmp_path: Path) -> None:
    home = Path(str(flowgraph.__file__)).parent.parent
    for name in ("flowgraph", "nodes"):
        (tmp_path / name).symlink_to(home / name)
    text = "import sys; sys.path.insert(0, sys.argv[1])\n"
    text += "from flowgraph.language import call_site\n"
    text += "shipped = call_site.__file__.replace('language/call_site.py', 'examples/grpo.py')\n"
    text += "print(call_site.is_internal(shipped), call_site.is_internal(call_site.__file__))"
    import subprocess
    import sys

    told = subprocess.run(
        [sys.executable, "-c", text, str(tmp_path)], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert told.stdout.split() == ["False", "True"]


def test_what_a_helper_of_the_user_draws_stands_on_the_helpers_line(tmp_path: Path) -> None:
    file = tmp_path / "helped.py"
    file.write_text(
        "from nodes import generate\n\n\ndef sample(policy, prompts):\n    return generate(policy, prompts)\n"
    )
    helped = import_file(file)

    @flow
    def sampling(prompts: Prompts, policy: Policy) -> nodes.Rollout:
        rollout: nodes.Rollout = helped.sample(policy, prompts)
        return rollout

    assert str(sampling.graph().nodes[0].at) == "helped.py:5"


def test_an_edge_says_where_it_was_made_and_what_it_is() -> None:
    graph = compile_graph(grpo.graph())
    generated, reference = graph.nodes[0], graph.params[2]
    assert Edge(generated, nodes.Rollout).made() == f"from generate at {generated.at}"
    assert Edge(reference, nodes.Reference).made() == "the parameter `ref` of flow grpo"
    assert Edge(Const(Scores(1), Site("mine.py", 3)), Scores).made() == "a real value"
    assert str(Edge(generated, nodes.Rollout).part("mask", flowgraph.Mask)) == "policy.generate.mask"
    assert repr(generated) == f"<policy.generate at {generated.at}>"


def test_a_flow_without_nodes_or_parameters_is_a_graph() -> None:
    graph = Graph("empty", (), (), Site("mine.py", 1))
    assert (graph.nodes, graph.all_nodes, graph.carries()) == ((), (), {})


def test_kinds_of_node_are_those_the_field_draws() -> None:
    assert list(get_args(NodeKind)) == ["generate", "score", "logprob", "advantage", "update", "host"]
    assert {each.op.name: each.op.kind for each in grpo.graph().nodes} == {
        "generate": "generate",
        "score": "score",
        "group_normalize": "advantage",
        "logprobs": "logprob",
        "update": "update",
    }


def test_two_equal_samplings_are_two_samples() -> None:
    @flow
    def twice(prompts: Prompts, policy: Policy) -> tuple[nodes.Rollout, nodes.Rollout]:
        return generate(policy, prompts), generate(policy, prompts)

    graph = compile_graph(twice.graph())
    assert [each.name for each in graph.nodes] == ["policy.generate", "policy.generate#2"]
    assert Key(node="policy.generate").bits() != Key(node="policy.generate#2").bits()


def test_params_are_told_apart_by_identity() -> None:
    one, two = (Param("it", Scores, "flow mine", Site("mine.py", 1)) for _ in range(2))
    assert one != two
    assert Edge(one, Scores) != Edge(two, Scores)


def test_a_port_that_an_op_does_not_have_is_refused_with_the_nearest() -> None:
    op = compile_graph(grpo.graph()).nodes[0].op
    assert op.port("policy").name == "policy"
    with pytest.raises(UnknownNameError) as caught:
        op.port("polcy")
    assert str(caught.value) == "no port of generate `polcy`\n  hint: did you mean `policy`?"
