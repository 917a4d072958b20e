"""What corrects for the weights that drew the rows: asked for where it must be, once, and of the very values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest

from flowgraph import Flow, Loss, flow, node, stale
from flowgraph.analysis.flat_graph import to_json
from flowgraph.errors import FlowError, LawError
from flowgraph.language import By, Corrects, Key
from flowgraph.language.values import Mask
from flowgraph.passes import compile_graph
from flowgraph.serialize.graph import from_json
from nodes.advantages import optimal_token_baseline
from nodes.correction import importance_weights, normalized_weights, rejected
from nodes.data.source import PromptSource
from nodes.likelihood import logprobs, squared_probs
from nodes.losses import clipped
from nodes.losses.terms import log_ratio, masked, weighed
from nodes.rewards import token_rewards
from nodes.sampling import generate
from nodes.scoring import score
from nodes.training import update
from nodes.values import ImportanceWeights, LogProbs, Policy, Prompts, Reference, Rollout


@node
def by_ratio(
    new: Annotated[LogProbs, By.TRAINED],
    mask: Mask,
    *,
    old: Annotated[LogProbs, By.SAMPLER],
    weights: Annotated[ImportanceWeights | None, Corrects("old")] = None,
) -> Loss:
    """Weigh by a ratio of its own, and by what corrects the rest."""
    return Loss.of(weighed(-log_ratio(new, old, mask).exp(), weights, mask), mask)


@node(on_policy=True)
def plain(
    new: Annotated[LogProbs, By.TRAINED],
    mask: Mask,
    *,
    weights: Annotated[ImportanceWeights | None, Corrects()] = None,
) -> Loss:
    """Return a term without a ratio."""
    return Loss.of(weighed(-masked(new.data, mask), weights, mask), mask)


@node
def doubled(weights: ImportanceWeights) -> ImportanceWeights:
    """Take one value of a type and give that type."""
    raise NotImplementedError


@node
def product(weights: ImportanceWeights, *, other: ImportanceWeights) -> ImportanceWeights:
    """Take two values of a type."""
    raise NotImplementedError


@node
def nameless(told: LogProbs, mask: Mask) -> ImportanceWeights:
    """Make weights without saying of what."""
    raise NotImplementedError


Term = Callable[[LogProbs, LogProbs, Rollout, LogProbs], Loss]


def training(
    term: Term, *, at_most: int = 0, temperature: float = 1.0, twin: bool = False
) -> Flow[[Prompts, Policy, Reference], Policy]:
    """Return a flow that trains on `term(new, old, rollout, ref)`; with `twin` the last is `old` computed once more."""

    @flow
    def trained(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
        rollout = generate(stale(policy, at_most=at_most), prompts, n=2, temperature=temperature, max_tokens=3)
        old, other = logprobs(policy, rollout), logprobs(policy if twin else ref, rollout)

        def loss(pi: Policy) -> Loss:
            return term(logprobs(pi, rollout), old, rollout, other)

        return update(policy, loss, lr=0.1, optimizer="sgd")

    return trained


def refusal(term: Term, **how: Any) -> str:
    with pytest.raises(LawError) as caught:
        training(term, **how).graph()
    return str(caught.value).split(": ", 1)[1]


def weighed_by(old: LogProbs, rollout: Rollout, **settings: Any) -> ImportanceWeights:
    return importance_weights(old, rollout.mask, behaviour=rollout.logprobs, **settings)


def decoupled(new: LogProbs, old: LogProbs, rollout: Rollout, _: LogProbs) -> Loss:
    return by_ratio(new, rollout.mask, old=old, weights=weighed_by(old, rollout))


def bypass(new: LogProbs, old: LogProbs, rollout: Rollout, _: LogProbs) -> Loss:
    return by_ratio(new, rollout.mask, old=rollout.logprobs)


# ---------------------------------------------------------------------------------------- lag, and whose weights


def test_log_probs_of_the_trainer_may_stand_for_the_samplers_where_weights_correct_the_rest() -> None:
    training(decoupled, at_most=4).graph()
    training(bypass, at_most=4).graph()
    said = refusal(lambda new, old, rollout, _: by_ratio(new, rollout.mask, old=old), at_most=4)
    assert said.startswith(
        "by_ratio(old=) needs values of the weights that sampled its rows (`policy`, up to 4 updates late)"
    )


def test_values_that_the_loss_trains_are_never_the_old_ones() -> None:
    said = refusal(lambda new, old, rollout, _: by_ratio(new, rollout.mask, old=new, weights=weighed_by(new, rollout)))
    assert said.startswith("by_ratio(old=) needs values of weights that this loss does not train")


def test_weights_correct_late_rows_for_a_loss_that_has_no_ratio() -> None:
    training(lambda n, old, r, _: plain(n, r.mask, weights=weighed_by(old, r)), at_most=4).graph()
    training(lambda n, _, r, __: plain(n, r.mask, weights=weighed_by(n, r)), at_most=4).graph()
    said = refusal(lambda new, _, rollout, __: plain(new, rollout.mask), at_most=4)
    assert said.startswith("plain needs rows of the newest weights")


@node
def careless(
    new: Annotated[LogProbs, By.TRAINED],
    mask: Mask,
    *,
    weights: Annotated[ImportanceWeights | None, Corrects()] = None,
) -> Loss:
    """Return a term that does not ask for the newest rows."""
    raise NotImplementedError


def test_a_loss_of_ones_own_corrects_for_lag_by_weights_alone() -> None:
    training(lambda n, old, r, _: careless(n, r.mask, weights=weighed_by(old, r)), at_most=1).graph()
    assert "corrects nothing" in refusal(lambda n, _, r, __: careless(n, r.mask), at_most=1)


def test_a_mask_without_what_was_drawn_too_differently_is_no_correction_for_lag() -> None:
    def narrowed(new: LogProbs, old: LogProbs, rollout: Rollout, _: LogProbs) -> Loss:
        mask = rejected(rollout.mask, old=old, behaviour=rollout.logprobs, test="seq_mean_k1", high=1.5)
        return careless(new, mask)

    training(narrowed).graph()
    assert "corrects nothing" in refusal(narrowed, at_most=1)


def test_weights_of_a_loss_without_a_ratio_lead_to_what_it_trains() -> None:
    for at_most in (0, 4):
        training(lambda n, old, r, _: plain(n, r.mask, weights=doubled(weighed_by(old, r))), at_most=at_most).graph()
        said = refusal(lambda n, _, r, ref: plain(n, r.mask, weights=doubled(weighed_by(ref, r))), at_most=at_most)
        assert said.startswith(
            "importance_weights(old=) needs values of the weights that are trained (`policy`), which"
        )


@pytest.mark.parametrize("which", ["other", "policy"])
def test_another_policy_learns_from_rows_by_weights_that_lead_to_it(which: str) -> None:
    @flow
    def taught(prompts: Prompts, policy: Policy, other: Policy) -> tuple[Policy, Policy]:
        rollout = generate(policy, prompts)
        weights = weighed_by(logprobs(other if which == "other" else policy, rollout), rollout)

        def loss(pi: Policy) -> Loss:
            return plain(logprobs(pi, rollout), rollout.mask, weights=weights)

        return update(policy, lambda pi: plain(logprobs(pi, rollout), rollout.mask)), update(other, loss)

    if which == "other":
        assert taught.graph().nodes
    else:
        with pytest.raises(LawError, match=r"needs values of the weights that are trained \(`other`\)"):
            taught.graph()


def test_weights_of_the_version_before_an_update_are_late_after_it() -> None:
    @flow
    def twice(prompts: Prompts, policy: Policy) -> Policy:
        rollout = generate(policy, prompts)
        weights = weighed_by(logprobs(policy, rollout), rollout)

        def first(pi: Policy) -> Loss:
            return plain(logprobs(pi, rollout), rollout.mask)

        def second(pi: Policy) -> Loss:
            return plain(logprobs(pi, rollout), rollout.mask, weights=weights)

        return update(update(policy, first), second)

    with pytest.raises(LawError, match=r"importance_weights\(old=\) needs values of the weights that are trained"):
        twice.graph()


# -------------------------------------------------------------------------------------------------- applied once


def test_a_ratio_is_not_applied_twice() -> None:
    said = refusal(lambda n, old, r, _: by_ratio(n, r.mask, old=r.logprobs, weights=weighed_by(old, r)))
    assert said.startswith("by_ratio(weights=) corrects `logprobs`, but by_ratio(old=) is `generate.logprobs`: ")
    assert "the ratio would be applied twice" in said and said.endswith("hint: leave weights= out")


def test_what_is_weighed_is_what_is_used() -> None:
    said = refusal(lambda n, old, r, ref: by_ratio(n, r.mask, old=old, weights=weighed_by(ref, r)))
    assert "the ratio in use would stay uncorrected" in said
    assert said.endswith("hint: give importance_weights(old=) and by_ratio(old=) the same")


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_weights_may_be_worked_on_in_between(level: Any) -> None:
    def term(new: LogProbs, old: LogProbs, rollout: Rollout, twin: LogProbs) -> Loss:
        weights = normalized_weights(weighed_by(twin, rollout, level=level), rollout.mask, level=level)
        return by_ratio(new, rollout.mask, old=old, weights=doubled(weights))

    training(term, twin=True).graph()
    assert "the ratio in use would stay uncorrected" in refusal(term)


def test_two_corrections_are_not_multiplied() -> None:
    said = refusal(
        lambda n, old, r, _: by_ratio(
            n, r.mask, old=old, weights=product(weighed_by(old, r), other=weighed_by(old, r, level="sequence"))
        )
    )
    assert said.startswith("by_ratio(weights=) corrects for by_ratio(old=), but product takes no `old`")


def test_what_makes_weights_says_of_what() -> None:
    said = refusal(lambda n, old, r, _: by_ratio(n, r.mask, old=old, weights=nameless(old, r.mask)))
    assert said.startswith("by_ratio(weights=) corrects for by_ratio(old=), but nameless takes no `old`")
    assert said.endswith("hint: name its port `old`")
    training(lambda n, old, r, _: plain(n, r.mask, weights=nameless(old, r.mask))).graph()


def test_values_that_are_computed_twice_are_the_same_values() -> None:
    training(lambda n, old, r, twin: by_ratio(n, r.mask, old=old, weights=weighed_by(twin, r)), twin=True).graph()


def test_weights_that_compare_a_value_with_itself_are_refused() -> None:
    for term in (
        lambda n, _, r, __: plain(n, r.mask, weights=weighed_by(r.logprobs, r)),
        lambda n, _, r, __: plain(n, rejected(r.mask, old=r.logprobs, behaviour=r.logprobs, test="token_k3", high=1.0)),
    ):
        said = refusal(term)
        assert "(old=) and " in said and "(behaviour=) read the same, so it corrects nothing" in said


@node
def mixed(one: LogProbs, mask: Mask, *, other: LogProbs) -> ImportanceWeights:
    """Take two values that anything may have made."""
    raise NotImplementedError


def test_a_node_that_asks_for_no_samplers_values_may_read_one_value_twice() -> None:
    training(lambda n, old, r, _: plain(n, r.mask, weights=mixed(old, r.mask, other=old))).graph()


def test_weights_that_come_from_elsewhere_are_not_judged() -> None:
    @flow
    def given(prompts: Prompts, policy: Policy, told: ImportanceWeights) -> Policy:
        rollout = generate(policy, prompts)

        def loss(pi: Policy) -> Loss:
            return by_ratio(logprobs(pi, rollout), rollout.mask, old=rollout.logprobs, weights=told)

        return update(policy, loss)

    assert given.graph().nodes


def energies(*, of_sampler: bool) -> Flow[[Prompts, Policy], Policy]:
    """Return a flow of late rows whose baseline reads π as it was drawn, or as the weights correct it to."""

    @flow
    def trained(prompts: Prompts, policy: Policy) -> Policy:
        rollout = generate(stale(policy, at_most=2), prompts, n=2)
        old = logprobs(policy, rollout)
        weights, earned = weighed_by(old, rollout), token_rewards(score(rollout), rollout.mask)
        advantages = optimal_token_baseline(
            earned,
            rollout.group,
            rollout.mask,
            old=rollout.logprobs if of_sampler else old,
            squares=squared_probs(policy, rollout),
            weights=weights,
        )

        def loss(pi: Policy) -> Loss:
            return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=old, weights=weights)

        return update(policy, loss)

    return trained


def test_the_energies_of_a_baseline_are_of_what_its_weights_correct_to() -> None:
    energies(of_sampler=False).graph()
    with pytest.raises(LawError, match=r"optimal_token_baseline\(weights=\) corrects `logprobs`"):
        energies(of_sampler=True).graph()


# ---------------------------------------------------------------------------------------------- greedy responses


@pytest.mark.parametrize("term", [decoupled, bypass], ids=lambda term: term.__name__)
def test_greedy_responses_have_no_distribution_to_correct_by(term: Term) -> None:
    said = refusal(term, temperature=0.0)
    assert "corrects by how likely its rows were, but those of generate at" in said
    training(lambda n, _, r, __: plain(n, r.mask), temperature=0.0).graph()


# ---------------------------------------------------------------------------------------- the laws go everywhere


def test_the_laws_hold_after_the_passes_and_in_a_file() -> None:
    graph = compile_graph(training(decoupled, at_most=2).graph())
    assert to_json(from_json(to_json(graph))) == to_json(graph)


def test_a_stored_graph_whose_weights_correct_another_value_is_refused() -> None:
    """In a file nobody's editor says so: the edge of `old` is moved to what the sampler told."""
    import json

    graph = compile_graph(training(decoupled).graph())
    data = json.loads(to_json(graph))
    by_name = {each["name"]: each for each in data["nodes"]}
    ratio = next(each for each in by_name["policy.update.by_ratio"]["inputs"] if each["port"] == "old")
    drawn = next(each for each in by_name["importance_weights"]["inputs"] if each["port"] == "behaviour")
    ratio.update({key: drawn[key] for key in ("from", "part")})
    region = data["regions"][0]
    region["captures"].append({key: drawn[key] for key in ("from", "part", "type")})
    region["captures"] = [each for each in region["captures"] if each["from"] != by_name["policy.logprobs"]["id"]]
    with pytest.raises(FlowError, match="the ratio would be applied twice"):
        from_json(json.dumps(data))


# -------------------------------------------------------------------------------------------------- what it does


def test_on_one_engine_the_decoupled_form_trains_as_the_bypass_does(tiny: Any, alone: Any, digit_rows: Any) -> None:
    means = list[dict[str, float]]()
    for term in (decoupled, bypass):
        graph = compile_graph(training(term).graph())
        program, executor = alone(graph, {"policy": tiny(trainable=True), "ref": tiny()})
        source = {"prompts": PromptSource(digit_rows, 4)}
        observed = [executor.run(program, source, Key(0, step)).observed for step in range(2)]
        means.append(observed[-1].means())
    with_weights, without = means
    for name in ("loss", "grad_norm"):
        assert with_weights[f"policy.update.{name}"] == pytest.approx(without[f"policy.update.{name}"], rel=1e-4)
    assert with_weights["importance_weights.weight"] == pytest.approx(1.0, abs=1e-4)
