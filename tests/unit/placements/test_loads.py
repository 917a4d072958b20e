"""Loads of a step: which node passes which model how often, in which stage, and how many rows and tokens that are."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph import Graph, Loss, flow
from nodes import (
    LogProbs,
    Policy,
    Prompts,
    Reference,
    clipped,
    entropy,
    entropy_bonus,
    generate,
    group_normalize,
    logprobs,
    score,
    update,
)
from nodes.values import Entropy
from placements.lengths import Lengths
from placements.loads import Load, loads, of_role, stage_count
from placements.work import Workload, work_of
from tests.examples.flows.two_agents import two_agents
from tests.unit.placements.small_settings import SHIPPED, graph_of

PROMPT, RESPONSE = Lengths.fixed(100), Lengths.fixed(900)


def loads_of(graph: Graph, prompts: int = 64) -> dict[str, Load]:
    """Give the loads of a step by node; rows of 100 and 900 tokens."""
    return {each.node: each for each in loads(graph, prompts, PROMPT, RESPONSE)}


def stages(found: dict[str, Load]) -> dict[str, int]:
    """Give the stage of each node."""
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
    assert [each.node for each in of_role(list(found.values()), "critic.train")] == [
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
    told = {each.node: each.response.most for each in loads(graph_of(read_twice), 64, PROMPT)}
    assert set(told.values()) == {32.0}


def test_a_flow_that_draws_nothing_has_one_row_to_a_prompt() -> None:
    found = loads_of(graph_of("sft"))
    assert found["policy.update"].samples == 1
    assert found["policy.update"].rows == 64


@pytest.mark.parametrize("name", SHIPPED)
def test_each_role_of_a_shipped_flow_has_a_load_and_rows_as_its_largest_pass_has(name: str) -> None:
    """`work_of` says the same of phases and rows by another way: what it cuts into passes are these rows."""
    graph = graph_of(name)
    found = loads_of(graph)
    told = work_of(graph, Workload(64, 100, 900, sample_rows=10**9, forward_tokens=10**12))
    by_node = {each.node: each for each in told}
    assert set(found) <= set(by_node)
    for node, load in found.items():
        assert (load.phase, load.role) == (by_node[node].phase, by_node[node].role)
        if load.phase != "update":
            assert load.rows == by_node[node].rows
    assert {each.role for each in found.values()} == {each.role for each in told}


LENGTHS = st.lists(st.integers(1, 100), min_size=1, max_size=6).map(lambda each: tuple(sorted(map(float, each))))


@given(prompt=LENGTHS, response=LENGTHS, prompts=st.integers(1, 50), samples=st.integers(1, 8))
def test_tokens_and_pairs_are_those_of_all_rows_together(
    prompt: tuple[float, ...], response: tuple[float, ...], prompts: int, samples: int
) -> None:
    """Take every prompt with every response once: rows times their mean is the sum."""
    role = loads_of(graph_of("gpg"))["policy.update"].role
    load = Load("update", role, "update", 1, prompts, samples, Lengths(prompt), Lengths(response))
    rows = [(p, r) for p, r in product(prompt, response)]
    each = load.rows / len(rows)
    assert load.tokens.rows == load.rows == prompts * samples
    assert load.tokens.tokens == pytest.approx(each * sum(p + r for p, r in rows))
    assert load.tokens.pairs == pytest.approx(each * sum((p + r) ** 2 / 2 for p, r in rows))
    assert load.tokens.read_out == pytest.approx(each * sum(r for _, r in rows))
    assert load.longest_tokens == max(p + r for p, r in rows)


def test_no_loads_are_no_stages() -> None:
    assert stage_count([]) == 0
