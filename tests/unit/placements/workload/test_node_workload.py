"""Loads of a step: which node passes which model how often, in which stage, and how many rows and tokens that are."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowgraph import Graph, Loss, flow, node
from flowgraph.analysis.roles import roles
from flowgraph.errors import FlowTypeError
from flowgraph.language import Key
from flowgraph.passes import named
from nodes import (
    KLWeight,
    LanguageModel,
    LogProbs,
    MovingReference,
    Policy,
    Prompts,
    Reference,
    Rollout,
    averaged,
    clipped,
    cross_entropy,
    demonstrations,
    entropy,
    entropy_bonus,
    generate,
    group_normalize,
    logprobs,
    score,
    update,
)
from nodes.values import Entropy
from placements.workload.batch_sizes import sizes_of
from placements.workload.lengths import LengthDistribution
from placements.workload.node_workload import NodeWorkload, node_workloads, stage_count, taken
from tests.examples.flows.moving_reference import with_average, with_refreshes
from tests.examples.flows.two_agents import two_agents
from tests.looped import looped
from tests.unit.placements.small_problems import SHIPPED, Of, found_of, graph_of

PROMPT, RESPONSE = LengthDistribution.fixed(100), LengthDistribution.fixed(900)


def loads_of(graph: Graph, prompts: int = 64) -> dict[str, NodeWorkload]:
    """Return the loads of a step by node; rows of 100 and 900 tokens."""
    return {each.node: each for each in node_workloads(graph, prompts, PROMPT, RESPONSE)}


def stages(found: dict[str, NodeWorkload]) -> dict[str, int]:
    """Return the stage of each node."""
    return {name: each.stage for name, each in found.items()}


def test_ppo_draws_then_reads_then_updates_both_models() -> None:
    """Draw: generate → ref.logprobs, critic_values → update of policy, update of critic.

    Three stages. The updates read all three before them, but not each other. `minibatch=8` of 64 prompts are 8 steps.
    """
    found = loads_of(graph_of("ppo"))
    assert stages(found) == {
        "policy.generate": 0, "ref.logprobs": 1, "critic.critic_values": 1, "policy.update": 2, "critic.update": 2,
    }  # fmt: skip
    assert stage_count(list(found.values())) == 3
    assert {name: each.role.name for name, each in found.items()} == {
        "policy.generate": "policy.sample", "ref.logprobs": "ref.infer", "critic.critic_values": "critic.train",
        "policy.update": "policy.train", "critic.update": "critic.train",
    }  # fmt: skip
    assert {(each.prompts, each.samples, each.rows) for each in found.values()} == {(64, 16, 1024)}
    assert (found["policy.update"].epochs, found["policy.update"].steps) == (1, 8)
    assert [each.node for each in found.values() if each.role.name == "critic.train"] == [
        "critic.critic_values", "critic.update",
    ]  # fmt: skip


def test_grpo_has_no_critic_and_one_optimizer_step() -> None:
    """Draw: generate → ref.logprobs → update."""
    found = loads_of(graph_of("grpo"))
    assert stages(found) == {"policy.generate": 0, "ref.logprobs": 1, "policy.update": 2}
    assert found["policy.update"].steps == 1


def test_gpg_reads_log_probs_and_entropy_in_one_pass_of_its_update() -> None:
    """Draw: generate → update, whose loss asks one pass for both."""
    found = loads_of(graph_of("gpg"))
    assert stages(found) == {"policy.generate": 0, "policy.update": 1}
    assert found["policy.update"].stats == {"logprobs", "entropy"}
    assert found["policy.update"].optimizer == "adamw"
    assert found["policy.generate"].optimizer == ""


def test_dapo_draws_to_all_prompts_and_trains_on_the_groups_that_it_keeps() -> None:
    """Draw: refill (64 prompts, 12 groups kept) → update (12 prompts, minibatches of 8)."""
    found = loads_of(graph_of("dapo"))
    assert stages(found) == {"policy.refill": 0, "policy.update": 1}
    assert (found["policy.refill"].prompts, found["policy.update"].prompts) == (64, 12)
    assert found["policy.update"].steps == 2


def test_dapo_draws_in_rounds_one_after_another_and_says_that_fewer_may_do() -> None:
    """64 prompts in 3 rounds: 22 + 21 + 21, of 16 samples each; the first has enough for 12 groups."""
    dapo = graph_of("dapo")
    refill = loads_of(dapo)["policy.refill"]
    assert (refill.rounds, refill.rows, refill.round_rows) == (3, 64 * 16, 22 * 16)
    (said,) = taken(dapo, 64)
    assert said == (
        "policy.refill is assumed to sample all 64 prompts in 3 rounds, the maximum: "
        "it needs 1 if it keeps 12 of the first 22 prompts"
    )


@pytest.mark.parametrize(("prompts", "rounds"), [(12, 3), (2, 2), (1, 1)])
def test_rounds_that_are_needed_whatever_is_kept_are_no_assumption(prompts: int, rounds: int) -> None:
    """12 groups of 12 prompts need all of 3 rounds; a round draws to a prompt at least."""
    assert loads_of(graph_of("dapo"), prompts)["policy.refill"].rounds == rounds
    assert taken(graph_of("dapo"), prompts) == ()


def test_what_draws_all_at_once_has_one_round_and_nothing_is_taken_for_granted() -> None:
    for name in ("grpo", "ppo", "remax"):
        assert {each.rounds for each in loads_of(graph_of(name)).values()} == {1}
        assert taken(graph_of(name), 64) == ()


def test_the_rounds_of_dapo_are_those_that_it_draws() -> None:
    """Refill cuts prompts as torch's `tensor_split` does, and `Drawn.tried` counts them."""
    for prompts in range(1, 40):
        (drawn,) = sizes_of(graph_of("dapo"), prompts).samplers
        parts = torch.tensor_split(torch.arange(prompts), max(1, min(3, prompts)))
        assert drawn.max_rounds == len(parts)
        tried = [sum(map(len, parts[:rounds])) for rounds in range(len(parts) + 1)]
        assert [drawn.prompts_in(rounds) for rounds in range(len(parts) + 1)] == tried
        least = next((rounds for rounds, count in enumerate(tried) if count >= 12), len(parts))
        assert drawn.min_rounds == least


def test_remax_draws_twice_from_the_same_weights() -> None:
    """Draw: generate (16 samples), generate#2 (greedy, one) → update, which trains on the 16."""
    found = loads_of(graph_of("remax"))
    assert stages(found) == {"policy.generate": 0, "policy.generate#2": 0, "policy.update": 1}
    assert {name: each.samples for name, each in found.items()} == {
        "policy.generate": 16, "policy.generate#2": 1, "policy.update": 16,
    }  # fmt: skip


def test_decoupled_ppo_reads_its_own_policy_between_drawing_and_the_update() -> None:
    """Draw: generate → policy.logprobs (in the train role) → update."""
    found = loads_of(graph_of("decoupled_ppo"))
    assert stages(found) == {"policy.generate": 0, "policy.logprobs": 1, "policy.update": 2}
    assert found["policy.logprobs"].role.name == "policy.train"
    assert found["policy.logprobs"].phase == "logprob"


def test_an_agent_that_reads_what_another_wrote_draws_a_stage_later() -> None:
    """Draw: solver.generate → editor.generate → editor.update; solver.update waits for its own drafts only."""
    found = loads_of(graph_of(two_agents))
    assert stages(found) == {"solver.generate": 0, "editor.generate": 1, "solver.update": 1, "editor.update": 2}


@flow
def read_twice(prompts: Prompts, policy: Policy, ref: Reference) -> tuple[Policy, LogProbs, Entropy]:
    """Read log-probs and entropy of the same rows; train for three epochs."""
    rollout = generate(policy, prompts, n=4, max_tokens=32)
    advantages = group_normalize(score(rollout), rollout.group)
    read, unsure = logprobs(ref, rollout), entropy(ref, rollout)

    def loss(pi: Policy) -> Loss:
        surrogate = clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)
        return surrogate + 0.1 * entropy_bonus(entropy(pi, rollout), rollout.mask)

    return update(policy, loss, epochs=3, minibatch=16), read, unsure


def test_what_one_pass_gives_together_is_one_load() -> None:
    """Draw: generate → ref.logprobs with ref.entropy, one pass; each epoch of the update passes all rows again."""
    found = loads_of(graph_of(read_twice))
    assert stages(found) == {"policy.generate": 0, "ref.logprobs": 1, "policy.update": 1}
    assert (found["policy.update"].epochs, found["policy.update"].steps) == (3, 12)


def test_without_lengths_of_responses_they_have_the_most_that_their_sampler_says() -> None:
    told = {each.node: each.response.most for each in node_workloads(graph_of(read_twice), 64, PROMPT)}
    assert set(told.values()) == {32.0}


def test_a_flow_that_draws_nothing_has_one_row_to_a_prompt() -> None:
    found = loads_of(graph_of("sft"))
    assert found["policy.update"].samples == 1
    assert found["policy.update"].rows == 64


def test_reading_answers_out_of_a_data_set_is_no_pass_through_the_model() -> None:
    """Draw: update, in the first stage; demonstrations read a tokenizer alone."""
    sft = graph_of("sft")
    assert stages(loads_of(sft)) == {"policy.update": 0}
    assert taken(sft, 64) == (
        "policy.demonstrations is a host node: it is assumed to pass no rows through `policy`, which it reads",
    )


@flow
def short_answers(prompts: Prompts, policy: Policy) -> Policy:
    """Learn answers of the data set, of 300 tokens at most."""
    answers = demonstrations(policy, prompts, max_tokens=300)

    def loss(pi: Policy) -> Loss:
        return cross_entropy(logprobs(pi, answers), answers.mask)

    return update(policy, loss)


def test_answers_of_a_data_set_have_the_most_tokens_that_are_read_of_them() -> None:
    graph = graph_of(short_answers)
    (update_load,) = node_workloads(graph, 64, PROMPT)
    assert (update_load.phase, update_load.response) == ("update", LengthDistribution.fixed(300))
    assert update_load.responses == (("policy.demonstrations", 64 * 300),)
    (cut,) = sizes_of(graph, 64, prompt_tokens=100).updates
    assert (cut.row_tokens, cut.micro_batches) == (400, 2)  # 64 · 400 tokens, 16,384 in a pass


@pytest.mark.parametrize("moving", [with_average, with_refreshes], ids=lambda each: each.name)
def test_a_reference_that_moves_is_read_like_one_that_does_not(moving: Of) -> None:
    """Draw: generate → ref.logprobs → update; what moves the reference passes no rows."""
    found = loads_of(graph_of(moving))
    assert stages(found) == {"policy.generate": 0, "ref.logprobs": 1, "policy.update": 2}
    assert (found["ref.logprobs"].role.name, found["ref.logprobs"].role.use) == ("ref.infer", "infer")
    (said,) = taken(graph_of(moving), 64)
    assert said.endswith(" moves weights without a loss: that is assumed to take no time")


@flow
def kept_average(prompts: Prompts, policy: Policy, ref: MovingReference) -> tuple[Policy, MovingReference]:
    """Keep an average of the policies that nothing reads."""
    rollout = generate(policy, prompts, n=4)
    advantages = group_normalize(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

    trained = update(policy, loss)
    return trained, averaged(ref, policy=trained)


@flow
def lent_tokenizer(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
    """Learn answers as another model's tokenizer reads them."""
    answers = demonstrations(ref, prompts)

    def loss(pi: Policy) -> Loss:
        return cross_entropy(logprobs(pi, answers), answers.mask)

    return update(policy, loss)


@pytest.mark.parametrize("of", [kept_average, lent_tokenizer], ids=lambda each: each.name)
def test_a_model_that_no_row_passes_is_placed_all_the_same_and_takes_hardly_any_time(of: Of) -> None:
    """Every role has a load, so that its weights count; this one's has no rows."""
    found = {each.role.name: each for each in node_workloads(graph_of(of), 64, PROMPT, RESPONSE)}
    assert (found["ref.infer"].node, found["ref.infer"].rows) == ("ref.infer", 0)
    plan = found_of(of).best.plan()
    (ref,) = [each for each in plan.placed if each.role == "ref.infer"]
    assert ref.memory["weights"] > 0
    assert "optimizer" not in ref.memory
    step = plan.step
    assert step is not None
    own_s = sum(each.seconds or 0.0 for each in step.tasks if each.role == "ref.infer")
    assert step.period_s is not None
    assert own_s < 0.1 * step.period_s


@node(kind="logprob", carries="by")
def weighed(model: LanguageModel, rollout: Rollout, *, by: KLWeight) -> tuple[KLWeight, LogProbs]:
    """Read log-probs, and carry a number on."""
    raise NotImplementedError


@flow
def weighing(prompts: Prompts, policy: Policy, ref: Reference, weight: KLWeight) -> tuple[KLWeight, LogProbs]:
    """Draw, and read with a number that is carried from step to step."""
    return weighed(ref, generate(policy, prompts), by=weight)


def test_a_node_that_carries_a_number_passes_rows_through_the_model_that_it_reads() -> None:
    assert stages(loads_of(graph_of(weighing))) == {"policy.generate": 0, "ref.weighed": 1}


@looped("name", SHIPPED)
def test_each_role_of_a_shipped_flow_has_loads_of_its_use_with_the_rows_that_a_run_cuts(name: str) -> None:
    """`sizes_of` says by another way what a sampler draws and what an update cuts."""
    graph = graph_of(name)
    found, sizes = loads_of(graph), sizes_of(graph, 64, prompt_tokens=100)
    assert {each.role for each in found.values()} == {*roles(graph)}
    phases = {"sample": {"generate"}, "infer": {"logprob"}, "train": {"logprob", "update"}}
    assert all(each.phase in phases[each.role.use] for each in found.values())
    drawn = {each.node: each.rows for each in sizes.samplers}
    assert drawn == {each.node: each.rows for each in found.values() if each.phase == "generate"}
    for cut in sizes.updates:
        load = found[cut.node]
        assert (load.role.name, load.prompts, load.samples) == (cut.role, cut.prompts.value, cut.n)
        assert (load.epochs, load.steps) == (cut.epochs, cut.optimizer_steps)


LENGTHS = st.lists(st.integers(1, 100), min_size=1, max_size=6).map(lambda each: tuple(sorted(map(float, each))))


@given(prompt=LENGTHS, response=LENGTHS, prompts=st.integers(1, 50), samples=st.integers(1, 8))
def test_tokens_and_pairs_are_those_of_all_rows_together(
    prompt: tuple[float, ...], response: tuple[float, ...], prompts: int, samples: int
) -> None:
    """Take every prompt with every response once: rows times their mean is the sum."""
    role = loads_of(graph_of("gpg"))["policy.update"].role
    load = NodeWorkload(
        "update", role, "update", 1, prompts, samples, LengthDistribution(prompt), LengthDistribution(response)
    )
    rows = [(p, r) for p, r in product(prompt, response)]
    each = load.rows / len(rows)
    assert load.tokens.rows == load.rows == prompts * samples
    assert load.tokens.tokens == pytest.approx(each * sum(p + r for p, r in rows))
    assert load.tokens.pairs == pytest.approx(each * sum((p + r) ** 2 / 2 for p, r in rows))
    assert load.tokens.read_out == pytest.approx(each * sum(r for _, r in rows))
    assert load.longest_tokens == max(p + r for p, r in rows)


def test_no_loads_are_no_stages() -> None:
    assert stage_count([]) == 0


def searching(**traits: Any) -> Graph:
    @node(kind="generate", **traits)
    def tree(
        policy: Policy, prompts: Prompts, *, k: int = 4, turns: int = 3, max_tokens: int = 16, key: Key = Key()
    ) -> Rollout:
        raise NotImplementedError

    @flow
    def searched(prompts: Prompts, policy: Policy) -> Policy:
        rollout = tree(policy, prompts)
        advantages = group_normalize(score(rollout), rollout.group)

        def loss(pi: Policy) -> Loss:
            return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

        return update(policy, loss)

    return named(searched.graph())


def test_a_sampler_of_ones_own_draws_the_product_of_the_settings_that_it_names() -> None:
    found = {
        load.node: load for load in node_workloads(searching(samples=("k", "turns")), 8, LengthDistribution.fixed(4))
    }
    assert (found["policy.tree"].rows, found["policy.update"].rows) == (96, 96)
    assert found["policy.update"].responses == (("policy.tree", 96 * 16),)


def test_one_that_does_not_say_how_many_it_draws_is_not_costed_as_one() -> None:
    with pytest.raises(
        FlowTypeError, match=r"does not declare how many responses it generates for each prompt.*`k`, `turns`"
    ):
        node_workloads(searching(), 8, LengthDistribution.fixed(4))
    assert {load.rows for load in node_workloads(searching(samples=[]), 8, LengthDistribution.fixed(4))} == {8}, (
        "it says that it is one"
    )
    with pytest.raises(FlowTypeError, match="samples='turn' must name a whole-number setting"):
        searching(samples=["turn"])
