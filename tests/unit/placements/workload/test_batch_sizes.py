"""Batch sizes: what is printed, what is told, and each refusal word for word."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from flowgraph import Graph, Loss, flow, node
from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.analysis.roles import roles
from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import Layout, PlacedRole, Plan, Pool
from flowgraph.errors import BatchError
from flowgraph.language import Key
from flowgraph.language.graph import rewrite
from flowgraph.passes import compile_graph
from nodes import Policy, Prompts, Rollout, clipped, generate, gpg_advantages, group_normalize, logprobs, score, update
from nodes.refill import refill
from placements.workload.batch_partition import batch_text
from placements.workload.batch_sizes import faults, most_ranks, sizes_of, solve_batch

DEVICE = Device(kind="cpu", memory_bytes=2**30)
LAPTOP = Machine(name="laptop", devices=(DEVICE,), host_memory_bytes=2**30, cores=1)


def set_to(graph: Graph, **settings: object) -> Graph:
    """Return the graph with settings changed wherever a node has them."""

    def change(each: Any) -> Any:
        known = {name: value for name, value in settings.items() if name in type(each.settings).model_fields}
        return replace(each, settings=each.settings.model_copy(update=known))

    return rewrite(graph, change)


def planned(graph: Graph, ranks: int | Mapping[str, int]) -> Plan:
    """Return a plan of so many data ranks, of all roles or by role (1 if not named)."""
    of = dict.fromkeys((role.name for role in roles(graph)), ranks) if isinstance(ranks, int) else ranks
    return Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=Cluster(nodes=(LAPTOP,)),
        pools=(Pool(name="all", devices=(("laptop", 0),)),),
        placed=tuple(
            PlacedRole(role=role.name, pool="all", engine="local", layout=Layout(data=of.get(role.name, 1)))
            for role in roles(graph)
        ),
    )


@flow
def refilled(prompts: Prompts, policy: Policy) -> Policy:
    rollout = refill(policy, prompts, groups=4, rounds=2, n=4, max_tokens=8)
    advantages = group_normalize(rollout.scores, rollout.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

    return update(policy, loss)


@node(kind="generate", rows="new")
def answer(policy: Policy, prompts: Prompts, *, key: Key = Key()) -> Rollout:
    """Draw in a way of one's own, without any of the settings by which others are read."""
    raise NotImplementedError


@node(rows="new")
def longest(rollout: Rollout) -> Rollout:
    """Keep some rows."""
    raise NotImplementedError


@flow
def own_way(prompts: Prompts, policy: Policy) -> Policy:
    rollout = longest(answer(policy, prompts))
    advantages = gpg_advantages(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

    return update(policy, loss)


@flow
def two_players(prompts: Prompts, white: Policy, black: Policy) -> tuple[Policy, Policy]:
    ours, theirs = generate(white, prompts, n=4, max_tokens=8), generate(black, prompts, n=2, max_tokens=5)
    good, bad = group_normalize(score(ours), ours.group), group_normalize(score(theirs), theirs.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, ours), good, ours.mask, old=ours.logprobs)

    def other_loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, theirs), bad, theirs.mask, old=theirs.logprobs)

    return update(white, loss, minibatch=3), update(black, other_loss)


REFILLED, OWN, TWO = (compile_graph(each.graph()) for each in (refilled, own_way, two_players))


def refusal(graph: Graph, prompts: int, ranks: int | Mapping[str, int] = 1, **more: Any) -> str:
    with pytest.raises(BatchError) as caught:
        solve_batch(graph, prompts, plan=planned(graph, ranks), **more)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return str(caught.value)


# ------------------------------------------------------------------------------------------- as text


def test_a_step_is_told_in_a_few_lines(graph: Graph) -> None:
    sizes = solve_batch(set_to(graph, minibatch=5, epochs=2), 16, plan=planned(graph, 3), prompt_tokens=64)
    assert batch_text(sizes) == (
        "policy.generate: 16 prompts × 8 = 128 rows, of at most 64 + 256 tokens, 33,792 in all\n"
        "3 ranks of policy.train, policy.sample, ref.infer: 5 to 6 prompts each\n"
        "policy.update: 2 epochs of 4 minibatches of 4 prompts, 8 optimizer steps, "
        "each of at most 1 micro-batch on a rank\n"
        "note: a rank of policy.train has no row in up to 18% of optimizer steps: "
        "a minibatch is drawn from the prompts of all ranks"
    )


def test_on_one_rank_nothing_is_said_of_ranks(graph: Graph) -> None:
    for sizes in (solve_batch(graph, 1), solve_batch(graph, 1, plan=planned(graph, 1))):
        assert batch_text(sizes).splitlines() == [
            "policy.generate: 1 prompt × 8 = 8 rows",
            "policy.update: 1 epoch of 1 minibatch of 1 prompt, 1 optimizer step",
        ]


def test_rows_that_are_drawn_in_rounds_are_told_as_the_most() -> None:
    """Eight prompts in two rounds of four; four groups are kept, so that one round may do."""
    sizes = solve_batch(REFILLED, 8, plan=planned(REFILLED, 1))
    assert batch_text(sizes).startswith("policy.refill: 8 prompts × 4 = 32 rows in at most 2 rounds\n")
    (drawn,) = sizes.samplers
    assert (drawn.min_rounds, drawn.max_rounds, drawn.prompts_in(1)) == (1, 2, 4)
    (once,) = sizes_of(set_to(REFILLED, rounds=1), 8).samplers
    assert "rounds" not in batch_text(solve_batch(set_to(REFILLED, rounds=1), 8)) and once.max_rounds == 1


def test_prompts_that_do_not_divide_are_shared_out_as_evenly_as_they_go(graph: Graph) -> None:
    """Seven prompts on two ranks, in minibatches of three: 7 = 4 + 3, and 7 = 3 + 2 + 2."""
    sizes = solve_batch(set_to(graph, minibatch=3), 7, plan=planned(graph, 2))
    assert [(each.prompts.value, each.ranks) for each in sizes.shares] == [(7, 2)]
    (cut,) = sizes.updates
    assert (cut.minibatches, cut.largest, cut.smallest, cut.optimizer_steps) == (3, 3, 2, 3)
    assert cut.rank_rows == 3 * 8, "a whole minibatch may lie on one rank"


def test_each_update_is_cut_by_its_own_settings() -> None:
    ranks = {"white.train": 2, "black.train": 4}
    sizes = solve_batch(TWO, 8, plan=planned(TWO, ranks), prompt_tokens=10)
    assert [(c.node, c.ranks, c.minibatches, c.largest, c.n, c.row_tokens) for c in sizes.updates] == [
        ("white.update", 2, 3, 3, 4, 18),
        ("black.update", 4, 1, 8, 2, 15),
    ]
    assert [(share.roles, share.ranks) for share in sizes.shares] == [
        (("white.train",), 2),
        (("white.sample", "black.sample"), 1),
        (("black.train",), 4),
    ]


# ------------------------------------------------------------------------------------------- what is refused


def test_fewer_prompts_than_data_ranks_are_refused(graph: Graph) -> None:
    assert refusal(graph, 5, {"policy.train": 8}, origins={"run.batch": "--batch"}) == (
        "--batch 5 on 8 data ranks of policy.train: 3 ranks would never have a row\n"
        "    ranks share prompts, not rows: the responses to a prompt stay on one rank\n"
        "    --batch 5 (--batch) · data=8 of policy.train (the plan)\n"
        "  hint: nearest: --batch 8, or data=5 of policy.train"
    )


def test_more_samples_do_not_help_ranks_that_have_no_prompt(graph: Graph) -> None:
    assert "1 rank would never have a row" in refusal(set_to(graph, n=64), 3, 4)


def test_a_minibatch_of_fewer_prompts_than_ranks_is_refused(graph: Graph) -> None:
    told = {"policy.update.minibatch": "--set", "run.batch": "known for data digits"}
    assert refusal(set_to(graph, minibatch=2), 16, {"policy.train": 4}, origins=told) == (
        "policy.update.minibatch=2 cuts --batch 16 into 8 minibatches of 2 prompts for 4 data ranks of policy.train\n"
        "    2 ranks would have no row in an optimizer step, whichever prompts it has, and wait for the others\n"
        "    policy.update.minibatch=2 (--set) · --batch 16 (known for data digits) · "
        "data=4 of policy.train (the plan)\n"
        "  hint: nearest: policy.update.minibatch=4, or data=2 of policy.train"
    )


def test_a_minibatch_that_is_large_enough_may_still_leave_too_few_prompts_for_the_last(graph: Graph) -> None:
    """Seven prompts in minibatches of four are 4 + 3; eight, or four, are whole minibatches."""
    assert refusal(set_to(graph, minibatch=4), 7, {"policy.train": 4}).splitlines()[-1] == (
        "  hint: nearest: policy.update.minibatch=7, or --batch 4, or --batch 8, or data=3 of policy.train"
    )


def test_more_prompts_than_the_data_has_are_refused_and_other_faults_stand_below(graph: Graph) -> None:
    assert refusal(graph, 9, {"policy.train": 10}, data_rows=8) == (
        "--batch 9 reads more prompts than the data set has: 8 rows\n"
        "    the prompts of one step are all different\n"
        "    --batch 9\n"
        "    also: --batch 9 on 10 data ranks of policy.train: 1 rank would never have a row"
    ), "no batch is both, so none is offered"


def test_no_prompt_is_refused(graph: Graph) -> None:
    assert refusal(graph, 0, 2).splitlines()[::3] == ["--batch 0 reads no prompt", "  hint: nearest: --batch 2"]


def test_a_refill_of_more_groups_than_prompts_is_refused() -> None:
    assert refusal(REFILLED, 3) == (
        "--batch 3 is too few for refill.groups=4: the batch would never be full\n"
        "    a group is the responses to one prompt, and a step samples each prompt once\n"
        "    --batch 3 · refill.groups=4\n"
        "  hint: nearest: --batch 4, or refill.groups=3"
    ).replace("refill.groups", "policy.refill.groups")


def test_what_follows_a_refill_has_its_groups_not_all_prompts() -> None:
    assert refusal(REFILLED, 16, 6) == (
        "refill.groups=4 on 6 data ranks of policy.train: 2 ranks would never have a row\n"
        "    ranks share prompts, not rows: the responses to a prompt stay on one rank\n"
        "    refill.groups=4 · data=6 of policy.train (the plan)\n"
        "  hint: nearest: refill.groups=6, or data=4 of policy.train"
    ).replace("refill.groups", "policy.refill.groups")
    sizes = sizes_of(REFILLED, 16, plan=planned(REFILLED, 6))
    assert [(share.roles, share.prompts.value) for share in sizes.shares] == [
        (("policy.train",), 4),
        (("policy.sample",), 16),
    ]


def test_all_faults_are_given(graph: Graph) -> None:
    plan = planned(graph, {"policy.train": 4, "ref.infer": 8})
    found = faults(sizes_of(set_to(graph, minibatch=3), 6, plan=plan, data_rows=5))
    assert [fault.what.partition(" ")[0] for fault in found] == ["--batch", "--batch", "policy.update.minibatch=3"]


def test_lengths_that_are_asked_for_go_before_what_samplers_allow(graph: Graph) -> None:
    sizes = solve_batch(graph, 8, prompt_tokens=512, response_tokens=8192)
    assert [each.tokens for each in sizes.samplers] == [8192]
    assert [cut.row_tokens for cut in sizes.updates] == [512 + 8192]


def test_the_most_ranks_are_those_of_the_smallest_minibatch(graph: Graph) -> None:
    assert [most_ranks(set_to(graph, minibatch=size), 7) for size in (0, 1, 3, 4, 7)] == [7, 1, 2, 3, 7]
    assert (most_ranks(REFILLED, 16), most_ranks(graph, 0)) == (4, 1)


# ------------------------------------------------------------------------------------------- what is told


def told(graph: Graph, prompts: int, ranks: int = 1, **more: Any) -> tuple[str, ...]:
    return solve_batch(graph, prompts, plan=planned(graph, ranks), **more).notes


def test_a_plain_step_tells_nothing(graph: Graph) -> None:
    assert told(graph, 16, 4, prompt_tokens=64, data_rows=16) == ()


def test_a_minibatch_of_more_prompts_than_there_are_is_told(graph: Graph) -> None:
    assert told(set_to(graph, minibatch=32), 16, 4) == (
        "policy.update.minibatch=32 is more than the 16 prompts there are: they are one minibatch",
    )


def test_a_row_longer_than_the_budget_is_told_where_its_length_is_known(graph: Graph) -> None:
    small = set_to(graph, micro_batch_tokens=319)
    assert told(small, 4) == ()
    assert told(small, 4, prompt_tokens=63) == ()
    assert told(small, 4, prompt_tokens=64) == (
        "policy.update.micro_batch_tokens=319 is less than the longest row, 320 tokens: such a row goes alone",
    )
    assert solve_batch(small, 4, prompt_tokens=64).updates[0].micro_batches == 4 * 8


def test_groups_of_one_response_are_told(graph: Graph) -> None:
    assert told(set_to(graph, n=1), 4) == (
        "group_normalize compares the responses to a prompt, but policy.generate samples only one",
    )


def test_a_refill_tells_what_it_has_to_spare() -> None:
    spare = "policy.refill.groups=4 of 16 prompts, 12 prompts to spare: later nodes have fewer if too few are kept"
    assert told(REFILLED, 16) == (spare,)
    assert told(set_to(REFILLED, rounds=8), 4, 2) == (
        "policy.refill.groups=4 of 4 prompts, no prompt to spare: later nodes have fewer if too few are kept",
        "policy.refill.rounds=8 of 4 prompts: a round samples one",
        "policy.refill samples 1 prompt a round on 2 ranks: the others wait",
    )


def test_settings_that_a_node_of_ones_own_lacks_stay_unknown() -> None:
    sizes = solve_batch(OWN, 4, prompt_tokens=3)
    (drawn,), (cut,) = sizes.samplers, sizes.updates
    assert (drawn.n, drawn.tokens, drawn.groups) == (1, None, None)
    assert (cut.row_tokens, cut.micro_batches) == (None, None)
    assert sizes.notes == (
        "longest makes new rows: nodes that read them may have other counts",
        "gpg_advantages compares the responses to a prompt, but policy.answer samples only one",
    )
