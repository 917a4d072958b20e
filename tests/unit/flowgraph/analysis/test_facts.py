"""What is known of values: whose rows they are, which weights made them, at which version and temperature."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import torch

from examples.grpo import grpo
from flowgraph import Loss, Record, Value, flow, node, stale
from flowgraph.analysis.facts import Facts, facts_of, masks_along, value_facts
from flowgraph.errors import FlowTypeError, LawError
from flowgraph.language import Kind, Rows
from flowgraph.language.graph import Graph
from flowgraph.language.rows import take
from flowgraph.language.values import Group, Mask, State
from flowgraph.passes import compile_graph
from nodes import (
    Advantages,
    LogProbs,
    Policy,
    Prompts,
    Reference,
    Rollout,
    Scores,
    clipped,
    generate,
    group_normalize,
    logprobs,
    policy_gradient,
    score,
    update,
)


def known(graph: Graph) -> dict[str, Facts]:
    found = facts_of(graph)
    return {each.name: found.of[each] for each in graph.all_nodes}


def test_rows_are_those_of_the_node_that_drew_them_and_values_those_of_the_weights_that_made_them() -> None:
    facts = known(compile_graph(grpo.graph()))
    rows = facts["policy.generate"].rows
    assert rows is not None and rows.drawn is not None
    assert str(rows) == "policy.generate at grpo.py:16"
    assert rows.identity == ("prompt", "sample", "trajectory")
    assert masks_along(rows) == ["policy.generate.mask"]
    assert (rows.drawn.param.name, rows.drawn.at_most, rows.drawn.temperature) == ("policy", 0, 1.0)
    assert all(
        facts[name].rows == rows for name in ("score", "group_normalize", "ref.logprobs", "policy.update.logprobs")
    )
    made = {name: each.made for name, each in facts.items() if each.made is not None}
    assert {name: each.param.name for name, each in made.items()} == {
        "policy.generate": "policy",
        "ref.logprobs": "ref",
        "policy.update.logprobs": "policy",
        "policy.update": "policy",
    }
    assert [name for name, each in made.items() if each.trained] == ["policy.update.logprobs"]
    assert made["ref.logprobs"].temperature == 1.0, "log-probs are taken at the rollout's own"


def test_what_is_known_of_each_value_can_be_read() -> None:
    told = {each.value: each for each in value_facts(compile_graph(grpo.graph()))}
    drawn, inner = told["policy.generate"], told["policy.update.logprobs"]
    assert (drawn.kind, drawn.identity, drawn.mask) == ("record", "prompt, sample, trajectory", "policy.generate.mask")
    assert (drawn.weights, told["score"].mask) == ("policy, at 1.0", "")
    assert (inner.kind, inner.dtype, inner.rows) == ("row x token", "float32", "policy.generate")
    assert (inner.mask, inner.weights) == ("policy.generate.mask", "pi of policy, at 1.0")
    assert (told["policy"].kind, told["policy"].rows) == ("model", "")


class Kept(Record):
    group: Group
    scores: Scores
    mask: Mask


@node(rows="new")
def best(rollout: Rollout, *, scores: Scores) -> Kept:
    """Keep the rows that score."""
    rows = (scores.data > 0).nonzero()[:, 0]
    return Kept(group=take(rollout.group, rows), scores=take(scores, rows), mask=take(rollout.mask, rows))


@node(rows="reordered")
def turned(rollout: Rollout) -> Rollout:
    """Return the rows backwards."""
    return take(rollout, torch.arange(len(rollout.lengths.data)).flip(0))


@node
def halved(new: LogProbs) -> LogProbs:
    """Halve."""
    return LogProbs(new.data / 2)


@node
def against(scores: Scores, *, baseline: Annotated[Scores, Rows.OTHER]) -> Advantages:
    """Compare with the mean of other rows."""
    return Advantages(scores.data - baseline.data.mean())


def test_rows_that_are_filtered_are_others_and_rows_that_are_reordered_the_same() -> None:
    @flow
    def both(prompts: Prompts, policy: Policy) -> tuple[Kept, Rollout, LogProbs, LogProbs]:
        rollout = generate(stale(policy, at_most=3), prompts, temperature=0.7)
        kept, back = best(rollout, scores=score(rollout)), turned(rollout)
        return kept, back, halved(rollout.logprobs), logprobs(policy, back)

    facts = known(compile_graph(both.graph()))
    drawn, kept = facts["policy.generate"].rows, facts["best"].rows
    assert drawn is not None and kept is not None and drawn.drawn is not None
    assert facts["turned"].rows == facts["halved"].rows == drawn != kept
    assert (str(kept.origin.name), kept.drawn, kept.identity) == ("best", drawn.drawn, ("prompt",))
    assert (drawn.drawn.at_most, drawn.drawn.temperature) == (3, 0.7)
    assert facts["halved"].made == facts["policy.generate"].made, "what is made of log-probs is by the same weights"
    late, now = facts["policy.generate"].made, facts["policy.logprobs"].made
    assert late is not None and now is not None
    assert (late.at_most, now.at_most, late.version) == (3, 0, now.version)


def test_a_port_that_says_so_reads_other_rows() -> None:
    @flow
    def compared(prompts: Prompts, policy: Policy) -> Advantages:
        return against(score(generate(policy, prompts)), baseline=score(generate(policy, prompts, temperature=0.0)))

    assert len(compared.graph().nodes) == 5


def training(rollout: Any, *, corrected: bool) -> Any:
    """Return a flow that trains on stale rows as told."""

    @flow
    def late(prompts: Prompts, policy: Policy) -> Policy:
        drawn = generate(stale(policy, at_most=2, corrected=corrected), prompts, n=2)
        advantages = group_normalize(score(drawn), drawn.group)

        def plain(pi: Policy) -> Loss:
            return policy_gradient(logprobs(pi, drawn), advantages, drawn.mask)

        def ratio(pi: Policy) -> Loss:
            return clipped(logprobs(pi, drawn), advantages, drawn.mask, old=drawn.logprobs)

        return update(policy, plain if rollout == "plain" else ratio)

    return late


def test_what_stale_weights_drew_is_corrected_for_or_the_flow_says_that_it_need_not_be() -> None:
    training("ratio", corrected=True).graph()
    training("plain", corrected=False).graph()
    with pytest.raises(LawError, match=r"policy_gradient needs rows of the newest weights"):
        training("plain", corrected=True).graph()


@node
def unsaid(new: LogProbs, mask: Mask) -> Loss:
    """Return a loss that says nothing of the weights that it wants."""
    return Loss.of(-new.data, mask)


def test_a_loss_of_ones_own_on_stale_rows_has_to_say_what_corrects_it() -> None:
    @flow
    def own(prompts: Prompts, policy: Policy) -> Policy:
        drawn = generate(stale(policy, at_most=1), prompts)

        def loss(pi: Policy) -> Loss:
            return unsaid(logprobs(pi, drawn), drawn.mask)

        return update(policy, loss)

    with pytest.raises(LawError, match=r"`loss` corrects nothing, but those of generate at .* up to 1 update late"):
        own.graph()


@flow
def two_models(prompts: Prompts, one: Policy, two: Policy, ref: Reference) -> Policy:
    rollout = generate(two, prompts, n=2)
    advantages = group_normalize(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

    return update(one, loss)


def test_one_model_may_learn_from_what_another_drew_if_the_old_log_probs_are_of_that_one() -> None:
    two_models.graph()


# ------------------------------------------------------------------------------------------- real rows


class Plain(Value):
    kind = Kind.ROW
    dtype = "float32"


@node
def fewer(scores: Scores) -> Plain:
    """Lose a row, unsaid."""
    return Plain(scores.data[:-1])


@node
def backwards(rollout: Rollout) -> Rollout:
    """Reorder, unsaid."""
    return take(rollout, torch.arange(len(rollout.lengths.data)).flip(0))


@node
def whole_numbers(scores: Scores) -> Plain:
    """Return another dtype than the type says."""
    return Plain(scores.data.long())


def run(fn: Any, argument: Value, run_graph: Any) -> Any:
    kind = type(argument)
    annotations = {"value": kind, "return": fn.op.returns[0]}

    def one(value: Any) -> Any:
        return fn(value)

    one.__annotations__ = annotations
    return run_graph(compile_graph(flow(one).graph()), {"value": argument})


def test_rows_that_a_body_loses_or_moves_without_saying_so_are_refused(run_graph: Any, make_rollout: Any) -> None:
    scores = Scores(torch.tensor([0.0, 1.0, 0.5]))
    with pytest.raises(LawError, match="fewer got 3 rows and returned 2"):
        run(fewer, scores, run_graph)
    with pytest.raises(LawError, match="backwards returned its rows in another order"):
        run(backwards, make_rollout([1, 2, 3]), run_graph)
    run(turned, make_rollout([1, 2, 3]), run_graph)


def test_a_column_of_another_sort_of_number_than_its_type_says_is_refused(run_graph: Any) -> None:
    with pytest.raises(LawError, match="whole_numbers returned a Plain of int64, not float32"):
        run(whole_numbers, Scores(torch.tensor([0.0])), run_graph)


class Buffer(State):
    """Rollouts of earlier steps, in a form of one's own."""


EMPTY = Buffer([])


@node(carries="buffer")
def pushed(buffer: Buffer, rollout: Rollout) -> Buffer:
    """Keep these too."""
    raise NotImplementedError


@node(rows="new")
def replayed(buffer: Buffer, rollout: Rollout) -> Rollout:
    """Mix the rows of this step with some of earlier ones."""
    raise NotImplementedError


@node(rows="new")
def eased(level: Annotated[Buffer, Rows.NONE], rollout: Rollout) -> Rollout:
    """Keep the rows of a level, which the state says."""
    raise NotImplementedError


def replaying(take: Any, old: str) -> Graph:
    @flow
    def own(prompts: Prompts, policy: Policy, buffer: Buffer = EMPTY) -> tuple[Policy, Buffer]:
        fresh = generate(policy, prompts, n=4)
        rollout = take(buffer, fresh)
        advantages = group_normalize(score(rollout), rollout.group)
        anew = logprobs(policy, rollout)

        def loss(pi: Policy) -> Loss:
            new = logprobs(pi, rollout)
            if not old:
                return policy_gradient(new, advantages, rollout.mask)
            return clipped(new, advantages, rollout.mask, old=rollout.logprobs if old == "own" else anew)

        return update(policy, loss), pushed(buffer, fresh)

    return own.graph()


def test_rows_that_a_state_kept_are_of_an_earlier_step_and_a_loss_on_them_has_to_correct() -> None:
    assert replaying(replayed, "own") is not None, "clipped around the log-probs that the rows carry"
    assert replaying(eased, "") is not None, "a state that says that it holds no rows"
    with pytest.raises(LawError, match=r"policy_gradient needs rows of the newest weights, but those of replayed at"):
        replaying(replayed, "")
    with pytest.raises(LawError, match=r"that sampled its rows, of an earlier step where `buffer` kept them"):
        replaying(replayed, "anew")


def test_only_the_port_of_a_state_says_that_it_brings_no_rows() -> None:
    with pytest.raises(FlowTypeError, match=r"`mask` declares Rows.NONE, which only a port of a state can"):

        @node
        def wrong(mask: Annotated[Mask, Rows.NONE]) -> Mask:
            raise NotImplementedError
