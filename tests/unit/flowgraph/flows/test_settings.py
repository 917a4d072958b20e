"""Settings: read from `--set`, resolved in order of precedence, each with its origin."""

from __future__ import annotations

import pytest

from examples.grpo import grpo
from flowgraph import Loss, flow, stale
from flowgraph.errors import SettingError
from flowgraph.flows.settings import ResolvedSetting, Suggestion, parse_assignment, resolve_settings, split_assignments
from flowgraph.language.graph import Graph
from flowgraph.passes import compile_graph
from nodes import Policy, Prompts, Reference, generate, group_normalize, logprobs, policy_gradient, score, update
from tests.looped import looped


@flow
def tuned(prompts: Prompts, policy: Policy, ref: Reference, *, samples: int = 4, rounds: int = 1) -> Policy:
    rollout = generate(policy, prompts, n=samples)
    advantages = group_normalize(score(rollout), rollout.group, deviation=False)
    logprobs(ref, rollout)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    for _ in range(rounds):
        policy = update(policy, loss)
    return policy


GRPO = compile_graph(grpo.graph())
TUNED = compile_graph(tuned.graph())


def origins(graph: Graph, suggestions: list[Suggestion], chosen: dict[str, object]) -> dict[str, tuple[object, str]]:
    resolved = resolve_settings(graph, suggestions, chosen)[1]
    return {each.name: (each.value, each.origin) for each in resolved if each.origin != "default"}


@looped(
    "text, value",
    [
        ("a.b=16", 16),
        ("a.b=1e-3", 0.001),
        ("a.b=true", True),
        ("a.b=null", None),
        ("a.b=exact", "exact"),
        ('a.b="16"', "16"),
        ("a.b=", ""),
        (" a.b = 3", 3),
        ("a.b=x=y", "x=y"),
        ("a.b=[1, 2]", [1, 2]),
        ("a.b=my rule.py:fn", "my rule.py:fn"),
    ],
)
def test_a_value_is_json_if_it_can_be_else_text(text: str, value: object) -> None:
    assert parse_assignment(text) == ("a.b", value)


@looped("text", ["", "n", "=", "=3", " =3"])
def test_what_assigns_nothing_is_refused(text: str) -> None:
    with pytest.raises(SettingError) as raised:
        parse_assignment(text)
    hint = "write name=value: --set policy.generate.n=16"
    assert str(raised.value) == f"--set: `{text}` is not a setting\n  hint: {hint}"


def test_settings_of_the_flow_are_told_from_those_of_its_nodes() -> None:
    own, rest = split_assignments(["samples"], ["samples=8", "policy.generate.n=2", "samples=9"])
    assert (own, rest) == ({"samples": 9}, {"policy.generate.n": 2})


NO_OWNER = "--set: the flow has no node or setting"
NEAR = "  hint: did you mean `policy.generate.n`?"
WRONG = {
    "policy.generate.nn": "--set: policy.generate has no setting `nn`\n  hint: did you mean `n`?",
    "generate.n": f"{NO_OWNER} `generate.n`\n{NEAR}",
    "policy.generat.n": f"{NO_OWNER} `policy.generat.n`\n{NEAR}",
    "policy.generate": f"{NO_OWNER} `policy.generate`\n{NEAR}",
    "sample": f"{NO_OWNER} `sample`\n  hint: did you mean `samples`?",
    "policy.generate.key": "--set: policy.generate has no setting `key`\n"
    "  hint: known: ignore_eos, max_tokens, min_p, n, repetition_penalty, stop, temperature, top_k, top_p",
    "policy.update.lr": "--set: policy.update.lr=-1: should be greater than or equal to 0",
    "policy.update.epochs": "--set: policy.update.epochs=-1: should be greater than or equal to 1",
    "policy.update.optimizer": "--set: policy.update.optimizer=-1: should be 'adamw' or 'sgd'",
}


@looped("name", WRONG)
def test_an_unknown_name_or_a_refused_value_says_which_and_the_nearest(name: str) -> None:
    with pytest.raises(SettingError) as raised:
        resolve_settings(TUNED, [], {name: -1})
    assert str(raised.value) == WRONG[name]


def test_what_the_flow_wrote_has_the_flows_line_as_its_origin() -> None:
    line = GRPO.nodes[0].at.line
    told = origins(GRPO, [], {})
    assert told["policy.generate.n"] == (16, f"grpo.py:{line}")
    assert set(told) == {"policy.generate.n", "policy.update.clipped.eps", "policy.update.scale.factor"}


def test_the_command_line_wins_over_the_flow_and_both_over_what_is_suggested() -> None:
    tips = [
        Suggestion("known for model tiny", {"update.lr": 3e-3, "generate.n": 2, "generate.max_tokens": 8}),
        Suggestion("known for data digits", {"generate.max_tokens": 6}),
    ]
    told = origins(GRPO, tips, {"policy.generate.n": 4, "policy.update.clipped.eps": 0.3})
    assert told["policy.generate.n"] == (4, "--set")
    assert told["policy.update.clipped.eps"] == (0.3, "--set")
    assert told["policy.update.lr"] == (3e-3, "known for model tiny")
    assert told["policy.generate.max_tokens"] == (6, "known for data digits")
    assert origins(GRPO, tips, {})["policy.generate.n"][0] == 16


def test_a_suggestion_for_one_model_reaches_only_nodes_of_that_model() -> None:
    @flow
    def two(prompts: Prompts, policy: Policy, other: Policy) -> tuple[Policy, Policy]:
        rollout = generate(stale(policy, at_most=0, corrected=False), prompts)
        advantages = group_normalize(score(rollout), rollout.group)

        def loss(pi: Policy) -> Loss:
            return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

        return update(update(policy, loss), loss), update(other, loss)

    graph = compile_graph(two.graph())
    told = origins(graph, [Suggestion("tip", {"update.lr": 0.5}, "policy")], {})
    assert told == {"policy.update.lr": (0.5, "tip"), "policy.update#2.lr": (0.5, "tip")}
    assert origins(graph, [], {"policy.update#2.lr": 0.25}) == {"policy.update#2.lr": (0.25, "--set")}


def test_a_bad_suggestion_is_blamed_on_who_made_it() -> None:
    with pytest.raises(SettingError) as raised:
        resolve_settings(GRPO, [Suggestion("known for model tiny", {"update.lr": -1})], {})
    assert str(raised.value) == "known for model tiny: policy.update.lr=-1: should be greater than or equal to 0"


def test_a_flows_own_settings_are_listed_with_their_origin() -> None:
    graph = compile_graph(tuned.graph({"samples": 8}))
    graph, resolved = resolve_settings(graph, [], {})
    assert resolved[:2] == (ResolvedSetting("samples", 8, "--set"), ResolvedSetting("rounds", 1, "default"))
    assert graph.nodes[0].settings.n == 8  # type: ignore[attr-defined]


def test_resolving_leaves_the_graph_it_was_given_alone() -> None:
    before = GRPO.nodes[0].settings
    changed, _ = resolve_settings(GRPO, [], {"policy.generate.n": 3})
    assert changed.nodes[0].settings.n == 3  # type: ignore[attr-defined]
    assert GRPO.nodes[0].settings is before


def test_settings_inside_a_loss_are_named_under_its_update() -> None:
    changed, _ = resolve_settings(GRPO, [], {"policy.update.kl_k3.aggregation": "sequence-mean"})
    found = {each.name: each.settings for each in changed.all_nodes}
    assert found["policy.update.kl_k3"].aggregation == "sequence-mean"  # type: ignore[attr-defined]
    assert changed.nodes[-1].regions[0][1].inner[2].settings == found["policy.update.kl_k3"]
