"""Running nodes on real values: shared forward passes, what is reported, whose error it is, regions part by part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from flowgraph import Loss, Mask, Metric, Record, Value, flow, node
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import FlowError, LawError, RuleError, UserCodeError
from flowgraph.language import Aggregation, BoundRegion, Key, Kind, Measure
from flowgraph.language.handle import ResponseRows
from flowgraph.language.loss import Counts, Term
from flowgraph.language.region import Observations
from flowgraph.language.values import Group
from flowgraph.passes import compile_graph
from nodes import (
    Advantages,
    Entropy,
    LanguageModel,
    LogProbs,
    Policy,
    Reference,
    Rollout,
    Scores,
    clipped,
    entropy,
    entropy_bonus,
    kl_k3,
    logprobs,
    policy_gradient,
    update,
)

Tiny = Callable[..., LocalModel]
Make = Callable[..., Rollout]
HERE = Path(__file__).name


@pytest.fixture
def run(run_graph: Callable[..., Any]) -> Callable[..., Any]:
    """Return `run(flow, **arguments)`: describe a flow and run its nodes."""
    return lambda described, **arguments: run_graph(compile_graph(described.graph()), arguments, Key(1, 2))


def calls(handle: LocalModel) -> list[int]:
    """Note each forward pass from here on, by its tokens; how a model reads is tried before."""
    seen: list[int] = []
    assert handle.packs

    def note(_: object, args: object, given: dict[str, Any]) -> None:
        seen.append(given["input_ids"].numel())

    handle.model.register_forward_pre_hook(note, with_kwargs=True)
    return seen


class Number(Value):
    kind = Kind.SCALAR


class Two(Record):
    first: Rollout
    second: Rollout


@node(metrics=(Metric("mean"),))
def mean(scores: Scores) -> Number:
    """Report the mean."""
    total = float(scores.data.sum())
    return Number(total / len(scores.data), [Measure("mean", total, len(scores.data))])


@node
def same(scores: Scores) -> Scores:
    """Hand the scores on as they are."""
    return scores


@node
def halved(scores: Scores) -> Scores:
    """Halve the scores."""
    return Scores(scores.data / 2, [Measure("surprise", 1, 1)])


@node(metrics=(Metric("reward"),))
def lengths_as_scores(rollout: Rollout) -> Scores:
    """Score a response by its length."""
    scores = rollout.lengths.data.float()
    return Scores(scores, [Measure("reward", float(scores.sum()), len(scores))])


@node
def failing(scores: Scores, *, how: str = "value") -> Scores:
    """Fail in one of several ways."""
    if how == "value":
        raise ValueError("  bad luck ")
    if how == "law":
        raise LawError("broken", notes=["a note"], hint="a hint")
    if how.startswith("interrupt"):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise (RuntimeError if how == "interrupt" else LawError)("the event loop is already running") from None
    raise RuleError("its own place", where="rule.py:3")


@node
def flat_mask(rollout: Rollout) -> Mask:
    """Return a mask of the wrong shape."""
    return Mask(rollout.mask.data.sum(1))


# ------------------------------------------------------------------------------------------- one forward pass


@flow
def two_statistics(policy: Policy, ref: Reference, rollout: Rollout) -> tuple[LogProbs, Entropy, LogProbs]:
    """Read two statistics of one model, one of another."""
    return logprobs(policy, rollout), entropy(policy, rollout), logprobs(ref, rollout)


def test_log_probs_and_entropy_of_one_model_and_rollout_are_one_forward_pass(
    run: Callable[..., Any], tiny: Tiny, make_rollout: Make
) -> None:
    policy, ref, rollout = tiny(), tiny(), make_rollout([3, 5])
    of_policy, of_ref = calls(policy), calls(ref)
    ran = run(two_statistics, policy=Policy(policy), ref=Reference(ref), rollout=rollout)
    assert (len(of_policy), len(of_ref)) == (1, 1)
    stats = policy.token_stats(
        ResponseRows(rollout.context.data, rollout.tokens.data, rollout.lengths.data), ("logprobs", "entropy")
    )
    assert torch.equal(ran.outputs[0].data, stats.logprobs) and torch.equal(ran.outputs[1].data, stats.entropy)


@flow
def with_bonus(policy: Policy, ref: Reference, rollout: Rollout, advantages: Advantages) -> Policy:
    """Read both statistics of the policy in the loss, and those of a reference, which do not change."""

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        near = kl_k3(new, rollout.mask, ref=logprobs(ref, rollout))
        return policy_gradient(new, advantages, rollout.mask) + near + entropy_bonus(entropy(pi, rollout), rollout.mask)

    return update(policy, loss, micro_batch_tokens=8)


def test_in_a_loss_each_micro_batch_is_one_forward_pass_and_what_does_not_read_the_parameter_runs_once(
    run: Callable[..., Any], tiny: Tiny, make_rollout: Make
) -> None:
    policy, ref = tiny(trainable=True), tiny()
    of_policy, of_ref = calls(policy), calls(ref)
    arguments = {"rollout": make_rollout([5, 5, 5]), "advantages": Advantages(torch.ones(3))}
    run(with_bonus, policy=Policy(policy), ref=Reference(ref), **arguments)
    assert (len(of_policy), len(of_ref)) == (3, 1)


def test_called_on_real_values_both_statistics_are_one_forward_pass_as_well(tiny: Tiny, make_rollout: Make) -> None:
    policy, rollout = tiny(trainable=True), make_rollout([5, 5, 5])
    seen = calls(policy)

    def loss(pi: Policy) -> Loss:
        gradient = policy_gradient(logprobs(pi, rollout), Advantages(torch.ones(3)), rollout.mask)
        return gradient + 0.1 * entropy_bonus(entropy(pi, rollout), rollout.mask)

    update(Policy(policy), loss)
    assert len(seen) == 1


@node(stat="logprobs")
def cooler(model: LanguageModel, rollout: Rollout, *, temperature: float = 0.5) -> LogProbs:
    """Read log-probs at a temperature of its own."""
    rows = ResponseRows(rollout.context.data, rollout.tokens.data, rollout.lengths.data, temperature)
    return LogProbs(model.handle.token_stats(rows, ("logprobs",)).logprobs)


@flow
def at_two_temperatures(policy: Policy, rollout: Rollout) -> tuple[LogProbs, LogProbs]:
    """Read one rollout at its own temperature and at another."""
    return logprobs(policy, rollout), cooler(policy, rollout)


def test_a_node_that_reads_other_rows_or_another_temperature_is_not_given_the_pass_of_another(
    run: Callable[..., Any], tiny: Tiny, make_rollout: Make
) -> None:
    policy, rollout = Policy(tiny()), make_rollout([3, 5])
    warm, cool = run(at_two_temperatures, policy=policy, rollout=rollout).outputs
    assert not torch.allclose(warm.data, cool.data)
    assert torch.equal(cool.data, cooler(policy, rollout).data)


# ------------------------------------------------------------------------------------------- what is reported


@flow
def reported(rollout: Rollout) -> tuple[Scores, Number]:
    """Report twice."""
    scores = lengths_as_scores(rollout)
    return same(scores), mean(scores)


def test_metrics_are_named_by_their_node_and_an_input_handed_on_is_reported_once(
    run: Callable[..., Any], make_rollout: Make
) -> None:
    ran = run(reported, rollout=make_rollout([2, 3, 4]))
    assert ran.observed.means() == {"lengths_as_scores.reward": 3.0, "mean.mean": 3.0}
    assert set(ran.observed.seconds) == {"lengths_as_scores", "same", "mean"}


@flow
def surprising(rollout: Rollout) -> Scores:
    """Report what is not declared."""
    return halved(lengths_as_scores(rollout))


def test_a_metric_that_is_not_declared_is_refused(run: Callable[..., Any], make_rollout: Make) -> None:
    with pytest.raises(LawError) as caught:
        run(surprising, rollout=make_rollout([2]))
    assert str(caught.value) == f"{caught.value.where}: halved reports `surprise`, which it does not declare"
    assert caught.value.where.startswith(HERE)


def test_sums_and_counts_add_up_so_that_means_are_exact_however_they_were_cut() -> None:
    one, two = Observations(), Observations()
    one.add("loss", [Measure("kl", 3.0, 2), Measure("never", 0.0, 0)])
    two.add("loss", [Measure("kl", 1.0, 6)])
    one.merge(two)
    assert one.means() == {"loss.kl": 0.5}


# ------------------------------------------------------------------------------------------- whose error it is


@flow
def failing_flow(rollout: Rollout, *, how: str = "value") -> Scores:
    """Fail in a node."""
    return failing(lengths_as_scores(rollout), how=how)


def failure(run_graph: Callable[..., Any], make_rollout: Make, how: str) -> FlowError:
    with pytest.raises(FlowError) as caught:
        graph = compile_graph(failing_flow.graph({"how": how}))
        run_graph(graph, {"rollout": make_rollout([2])})
    return caught.value


def line_of(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(place for place, line in enumerate(lines, 1) if line.strip() == text)


def test_an_exception_in_a_body_says_which_node_which_line_of_the_flow_and_which_line_of_the_body(
    run_graph: Callable[..., Any], make_rollout: Make
) -> None:
    error, raised = failure(run_graph, make_rollout, "value"), line_of('raise ValueError("  bad luck ")')
    flow_line = line_of("return failing(lengths_as_scores(rollout), how=how)")
    assert isinstance(error, UserCodeError)
    assert str(error) == (f"{HERE}:{flow_line}: failing raised ValueError: bad luck\n    at {HERE}:{raised} in failing")


def test_an_error_of_ours_gets_the_node_and_the_line_beside_a_place_of_its_own(
    run_graph: Callable[..., Any], make_rollout: Make
) -> None:
    flow_line = line_of("return failing(lengths_as_scores(rollout), how=how)")
    assert str(failure(run_graph, make_rollout, "law")) == (
        f"{HERE}:{flow_line}: failing: broken\n    a note\n  hint: a hint"
    )
    own = failure(run_graph, make_rollout, "rule")
    assert str(own) == f"rule.py:3: its own place\n    in failing at {HERE}:{flow_line}"
    assert own.__cause__ is None


@pytest.mark.parametrize("how", ["interrupt", "interrupt law"])
def test_an_error_while_a_body_cleans_up_after_an_interrupt_is_that_interrupt(
    run_graph: Callable[..., Any], make_rollout: Make, how: str
) -> None:
    graph = compile_graph(failing_flow.graph({"how": how}))
    with pytest.raises(KeyboardInterrupt):
        run_graph(graph, {"rollout": make_rollout([2])})


@flow
def flat(rollout: Rollout) -> Mask:
    """Return a mask of the wrong shape."""
    return flat_mask(rollout)


def test_token_values_are_tensors_of_rows_and_tokens(run: Callable[..., Any], make_rollout: Make) -> None:
    with pytest.raises(LawError, match=r"flat_mask returned a Mask of shape \[2\], not \[rows, tokens\]"):
        run(flat, rollout=make_rollout([2, 2]))


# ------------------------------------------------------------------------------------------- regions


class Caught(Value):
    kind = Kind.SCALAR


@node
def catch(policy: Policy, loss: Callable[[Policy], Loss]) -> Caught:
    """Return the region as it arrives."""
    return Caught(loss)


def region_of(policy: Policy, loss: Callable[[Policy], Loss]) -> BoundRegion:
    region: BoundRegion = catch(policy, loss).data
    return region


def weighted(rollout: Rollout, old: LogProbs, advantages: Advantages) -> Callable[[Policy], Loss]:
    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=old)

    return loss


def test_counts_are_those_of_each_terms_own_mask_without_running_the_model(tiny: Tiny, make_rollout: Make) -> None:
    policy, rollout = tiny(trainable=True), make_rollout([2, 3], mask=[[1, 0, 0], [0, 0, 0]])
    other, seen = make_rollout([2, 3]).mask, calls(policy)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        return policy_gradient(new, Advantages(torch.ones(2)), rollout.mask) - 0.5 * entropy_bonus(
            entropy(pi, rollout), other
        )

    region = region_of(Policy(policy), loss)
    assert region.counts(torch.tensor([0, 1])) == (Counts(1, 1), Counts(5, 2))
    assert region.counts(torch.tensor([1])) == (Counts(0, 0), Counts(3, 1))
    assert seen == []


def test_what_a_loss_captures_is_a_constant_of_it_though_it_came_from_the_model_that_is_trained(
    tiny: Tiny, make_rollout: Make
) -> None:
    """On real values `old` carries a gradient of its own, which would cancel that of `new`: the ratio is always 1."""
    policy, rollout, ones = Policy(tiny(trainable=True)), make_rollout([3, 5]), Advantages(torch.ones(2))
    region = region_of(policy, weighted(rollout, logprobs(policy, rollout), ones))
    total = region(policy).total(region.counts(torch.arange(2)))
    gradient = torch.autograd.grad(total, list(policy.handle.model.parameters()))  # type: ignore[attr-defined]
    assert max(float(each.abs().max()) for each in gradient) > 1e-4


def test_a_part_of_the_rows_is_cut_to_its_own_longest_response(tiny: Tiny, make_rollout: Make) -> None:
    policy, rollout, ones = Policy(tiny(trainable=True)), make_rollout([3, 5, 2]), Advantages(torch.ones(3))
    region = region_of(policy, weighted(rollout, rollout.logprobs, ones))
    assert region(policy, torch.tensor([2, 0])).terms[0].mask.shape == (2, 3)
    assert region(policy).terms[0].mask.shape == (3, 5)
    assert region.tokens().tolist() == [6, 8, 5] and region.groups().tolist() == [0, 1, 2] and len(region) == 3


def test_of_two_rollouts_in_one_loss_neither_is_cut_by_the_lengths_of_the_other(tiny: Tiny, make_rollout: Make) -> None:
    policy, ones = Policy(tiny(trainable=True)), Advantages(torch.ones(2))
    short, long = make_rollout([1, 2]), make_rollout([6, 4])

    def loss(pi: Policy) -> Loss:
        one = policy_gradient(logprobs(pi, short), ones, short.mask)
        return one - policy_gradient(logprobs(pi, long), ones, long.mask)

    region = region_of(policy, loss)
    assert region.counts(torch.arange(2)) == (Counts(3, 2), Counts(10, 2))
    assert region.tokens().tolist() == [13, 12]
    assert [float(term.mask.sum()) for term in region(policy, torch.tensor([1])).terms] == [2, 4]


def test_values_that_differ_in_their_rows_cannot_be_cut_together(tiny: Tiny, make_rollout: Make) -> None:
    policy, one, two = Policy(tiny(trainable=True)), make_rollout([1, 2]), make_rollout([6, 4, 5])

    def loss(pi: Policy) -> Loss:
        first = policy_gradient(logprobs(pi, one), Advantages(torch.ones(2)), one.mask)
        return first + policy_gradient(logprobs(pi, two), Advantages(torch.ones(3)), two.mask)

    with pytest.raises(LawError, match=r"the values of one loss differ in their rows: .* has 2, .* has 3"):
        update(policy, loss)


@node
def narrowing(new: LogProbs, mask: Mask) -> Loss:
    """Average over another mask than the one it takes."""
    narrower = mask.data.clone()
    narrower[:, 0] = 0
    return Loss([Term(new.data, narrower, Aggregation.TOKEN_MEAN)])


def test_terms_over_another_mask_than_the_one_that_is_counted_are_refused(tiny: Tiny, make_rollout: Make) -> None:
    policy, rollout = Policy(tiny(trainable=True)), make_rollout([3, 5])

    def loss(pi: Policy) -> Loss:
        return narrowing(logprobs(pi, rollout), rollout.mask)

    with pytest.raises(LawError) as caught:
        update(policy, loss)
    assert caught.value.what == (
        "narrowing must return one term over the mask that it takes, whose count divides the term"
    )
    assert caught.value.where == f"{HERE}:{line_of('return narrowing(logprobs(pi, rollout), rollout.mask)')}"


def test_rows_that_do_not_tell_their_prompt_cannot_be_grouped(tiny: Tiny) -> None:
    @node
    def spread(policy: Policy, mask: Mask) -> Loss:
        """Return a loss that reads no rollout."""
        return Loss.of(mask.data * 0.0, mask)

    mask = Mask(torch.ones(2, 3))
    with pytest.raises(LawError, match="the loss captures no record that says which prompt each row answers"):
        update(Policy(tiny(trainable=True)), lambda pi: spread(pi, mask))


def test_parts_of_a_record_are_edges_of_the_node_that_made_it(run: Callable[..., Any], make_rollout: Make) -> None:
    @node
    def pair(rollout: Rollout) -> Two:
        """Pair a rollout with itself."""
        return Two(first=rollout, second=rollout)

    @node
    def second_of(group: Group) -> Number:
        """Read a part of a part."""
        return Number(int(group.data.sum()))

    @flow
    def nested(rollout: Rollout) -> Number:
        """Read a part of a part of a result."""
        return second_of(pair(rollout).second.group)

    assert run(nested, rollout=make_rollout([1, 1, 1])).outputs[0].data == 3


def test_nodes_that_are_given_are_not_run(run_graph: Callable[..., Any], make_rollout: Make) -> None:
    graph = compile_graph(reported.graph())
    given: Mapping[Any, Value] = {graph.nodes[0]: Scores(torch.tensor([7.0]))}
    ran = run_graph(graph, {"rollout": make_rollout([2])}, Key(), dict(given))
    assert ran.observed.means() == {"mean.mean": 7.0}
