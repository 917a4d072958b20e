"""Named placements: the parts of each form of each of them, for any flow."""

from __future__ import annotations

import pytest

from flowgraph import Loss, flow
from flowgraph.analysis.roles import roles
from flowgraph.errors import UnknownNameError
from nodes import (
    Critic,
    Policy,
    Prompts,
    Reference,
    critic_values,
    cross_entropy,
    demonstrations,
    gae,
    generate,
    logprobs,
    score,
    token_rewards,
    update,
    value_loss,
)
from placements.search.named_placements import (
    NAMES,
    VARIANTS,
    Parts,
    PlacementVariant,
    name_of,
    sorted_roles,
    variant,
)
from tests.examples.flows.distill import learn_from
from tests.examples.flows.moving_reference import with_average
from tests.examples.flows.two_agents import two_agents
from tests.flows.ppo_shaped import ppo_shaped
from tests.looped import looped
from tests.unit.placements.small_problems import SHIPPED, Of, graph_of

OWN = (learn_from, with_average, two_agents, ppo_shaped)
FLOWS = [*SHIPPED, *OWN]


@looped("of", FLOWS)
@looped("each", VARIANTS)
def test_each_role_is_in_one_part_and_no_part_is_empty(each: PlacementVariant, of: Of) -> None:
    graph = graph_of(of)
    found = each.parts_of(graph)
    assert sorted(name for part in found for name in part) == sorted(role.name for role in roles(graph))
    assert all(found)


@looped("of", FLOWS)
def test_parts_are_called_by_the_first_name_that_has_them(of: Of) -> None:
    graph = graph_of(of)
    seen = dict[frozenset[frozenset[str]], str]()
    for each in VARIANTS:
        found = each.parts_of(graph)
        first = seen.setdefault(frozenset(map(frozenset, found)), each.name)
        assert name_of(graph, found) == name_of(graph, tuple(reversed(found))) == first


EVERY: dict[str, Parts] = {
    "colocated:deepspeed-chat": (("policy.train", "policy.sample", "critic.train", "ref.infer", "judge.infer"),),
    "hybrid:verl": (("policy.train", "policy.sample", "critic.train", "ref.infer"), ("judge.infer",)),
    "split:openrlhf": (("policy.train", "ref.infer"), ("policy.sample",), ("critic.train", "judge.infer")),
    "split:nemo-aligner": (("policy.train", "policy.sample", "ref.infer"), ("critic.train", "judge.infer")),
    "standalone:each-role": (
        ("policy.train",), ("policy.sample",), ("critic.train",), ("ref.infer",), ("judge.infer",),
    ),
    "standalone:hybridflow": (
        ("policy.train", "policy.sample"), ("critic.train",), ("ref.infer",), ("judge.infer",),
    ),
}  # fmt: skip


@looped("name", EVERY)
def test_ppo_with_a_reward_model_has_the_parts_that_were_published(name: str) -> None:
    """policy draws and trains; critic trains; ref is read for log-probs; judge scores: five roles of four models."""
    assert variant(name).parts_of(graph_of(ppo_shaped)) == EVERY[name]


def test_there_are_four_names_in_six_forms() -> None:
    assert NAMES == ("colocated", "hybrid", "split", "standalone")
    assert [each.name for each in VARIANTS] == list(EVERY)


def test_a_name_alone_is_its_first_form() -> None:
    assert variant("split").name == "split:openrlhf"
    assert variant("split:nemo-aligner").system == "nemo-aligner"


def test_a_name_that_none_has_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="no placement `colocate`\n  hint: did you mean `colocated`"):
        variant("colocate")


def test_parts_that_no_placement_has_have_no_name() -> None:
    graph = graph_of(ppo_shaped)
    assert name_of(graph, (("policy.train", "judge.infer"), ("policy.sample", "critic.train", "ref.infer"))) == ""


def test_without_a_critic_or_a_scorer_several_names_are_one_placement() -> None:
    """generate → ref → update: what scores has no pool, so hybrid is colocated, and its split has two pools."""
    grpo = graph_of("grpo")
    assert (
        variant("hybrid").parts_of(grpo)
        == variant("colocated").parts_of(grpo)
        == (("policy.train", "policy.sample", "ref.infer"),)
    )
    assert variant("split").parts_of(grpo) == (("policy.train", "ref.infer"), ("policy.sample",))
    assert name_of(grpo, variant("split:nemo-aligner").parts_of(grpo)) == "colocated:deepspeed-chat"


def test_a_teacher_that_writes_counts_as_what_scores_not_as_a_reference() -> None:
    found = sorted_roles(graph_of(learn_from))
    assert (found.scorers, found.references, found.actor_sample) == (("teacher.sample",), (), ())


def test_a_moving_reference_counts_as_a_reference() -> None:
    found = sorted_roles(graph_of(with_average))
    assert (found.actor, found.critics, found.references) == (("policy.train", "policy.sample"), (), ("ref.infer",))


def test_a_policy_that_nobody_draws_from_is_an_actor_all_the_same() -> None:
    """demonstrations → update of policy; a teacher's responses → update of policy."""
    for of, scorers in (("sft", ()), (learn_from, ("teacher.sample",))):
        found = sorted_roles(graph_of(of))
        assert (found.actor_train, found.critics, found.scorers) == (("policy.train",), (), scorers)
    assert variant("hybrid").parts_of(graph_of(learn_from)) == (("policy.train",), ("teacher.sample",))


@flow
def head_alone(prompts: Prompts, policy: Reference, critic: Critic) -> Critic:
    """Warm up: train a critic alone on what a frozen policy draws."""
    rollout = generate(policy, prompts)
    values = critic_values(critic, rollout)
    _, returns = gae(token_rewards(score(rollout), rollout.mask), values, rollout.mask)

    def loss(c: Critic) -> Loss:
        return value_loss(critic_values(c, rollout), returns, rollout.mask, old=values)

    return update(critic, loss)


def test_a_model_whose_head_gives_numbers_is_a_critic_though_it_tells_no_other_update() -> None:
    found = sorted_roles(graph_of(head_alone))
    assert (found.actor, found.critics, found.scorers) == ((), ("critic.train",), ("policy.sample",))


@flow
def two_pupils(prompts: Prompts, one: Policy, other: Policy) -> tuple[Policy, Policy]:
    """Two models learn the same answers, which the first's tokenizer reads."""
    answers = demonstrations(one, prompts)

    def loss(pi: Policy) -> Loss:
        return cross_entropy(logprobs(pi, answers), answers.mask)

    return update(one, loss), update(other, loss)


def test_a_model_that_only_lends_its_tokenizer_tells_no_other_update() -> None:
    assert sorted_roles(graph_of(two_pupils)).actor_train == ("one.train", "other.train")


def test_two_agents_are_both_actors() -> None:
    found = sorted_roles(graph_of(two_agents))
    assert found.actor_train == ("solver.train", "editor.train")
    assert found.actor_sample == ("solver.sample", "editor.sample")
