"""Law 3: however a minibatch is cut into micro-batches, its loss, gradient and metrics are the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from flowgraph import Aggregation, BoundRegion, Kind, Loss, Value, node
from flowgraph.engines.local.model import LocalModel
from nodes import (
    Advantages,
    Policy,
    Rollout,
    clipped,
    entropy,
    entropy_bonus,
    kl_k3,
    logprobs,
    policy_gradient,
    update,
)
from nodes.training import micro_batches
from nodes.values import Mask

Tiny = Callable[..., LocalModel]
Make = Callable[..., Rollout]

LENGTHS, CONTEXTS = [1, 30, 2, 5, 5, 17, 3, 1, 9, 4], [2, 3, 40, 1, 8, 2, 2, 11, 5, 5]
CUTS = [1, 45, 90, 10**6]


class Caught(Value):
    kind = Kind.SCALAR


@node
def catch(policy: Policy, loss: Callable[[Policy], Loss]) -> Caught:
    """Give the region as it arrives."""
    return Caught(loss)


def holes(seed: int) -> list[list[float]]:
    """Make a mask with zeros in the middle of responses, and rows that keep nothing."""
    random, mask = np.random.default_rng(seed), np.zeros((len(LENGTHS), max(LENGTHS)))
    for row, length in enumerate(LENGTHS):
        mask[row, :length] = random.random(length) < 0.7
    mask[seed % len(LENGTHS)] = mask[5] = 0
    return mask.tolist()


def problem(make_rollout: Make) -> tuple[Rollout, Mask, Advantages]:
    rollout = make_rollout(LENGTHS, CONTEXTS, group=[0, 0, 1, 1, 1, 2, 3, 3, 4, 4], mask=holes(2))
    other = Mask(torch.tensor(holes(7), dtype=torch.float32))
    return rollout, other, Advantages(torch.linspace(-2, 1, len(LENGTHS)))


def mixed(rollout: Rollout, other: Mask, advantages: Advantages, aggregation: Aggregation) -> Callable[[Policy], Loss]:
    """Sum terms of different weights, masks and aggregations."""

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        surrogate = clipped(new, advantages, rollout.mask, old=rollout.logprobs, aggregation=aggregation)
        near = kl_k3(new, other, ref=rollout.logprobs)
        bonus = entropy_bonus(entropy(pi, rollout), rollout.mask, aggregation=Aggregation.SEQUENCE_SUM)
        return surrogate + 0.3 * near - 2.0 * (bonus + 0.5 * policy_gradient(new, advantages, other))

    return loss


def gradient(handle: LocalModel, region: BoundRegion, batch: torch.Tensor, budget: int) -> tuple[float, torch.Tensor]:
    counts, total = region.counts(batch), 0.0
    handle.model.zero_grad()
    for rows in micro_batches(region.tokens(), batch, budget):
        share = region(Policy(handle), rows).total(counts)
        share.backward()
        total += float(share.detach())
    return total, torch.cat([p.grad.flatten() for p in handle.model.parameters()])


@pytest.mark.parametrize("aggregation", Aggregation)
@pytest.mark.parametrize(("double", "limit"), [(False, 1e-5), (True, 1e-10)])
def test_loss_and_gradient_are_the_same_however_a_minibatch_is_cut(
    tiny: Tiny, make_rollout: Make, aggregation: Aggregation, double: bool, limit: float
) -> None:
    handle = tiny(trainable=True)
    if double:
        handle.model.double()
    region = catch(Policy(handle), mixed(*problem(make_rollout), aggregation)).data
    for batch in (torch.arange(10), torch.tensor([7, 1, 5, 2]), torch.tensor([2, 5])):
        (loss, grad), *others = [gradient(handle, region, batch, budget) for budget in reversed(CUTS)]
        assert grad.abs().max() > 1e-3
        for other_loss, other_grad in others:
            assert other_loss == pytest.approx(loss, abs=limit)
            assert torch.allclose(grad, other_grad, rtol=0, atol=limit * max(1.0, float(grad.abs().max())))


@pytest.mark.parametrize("aggregation", Aggregation)
def test_the_loss_is_its_terms_divided_by_the_counts_of_their_own_masks(
    tiny: Tiny, make_rollout: Make, aggregation: Aggregation
) -> None:
    """A second writing, with loops."""
    handle = tiny()
    handle.model.double()
    rollout, other, advantages = problem(make_rollout)
    region = catch(Policy(handle), mixed(rollout, other, advantages, aggregation)).data
    new = logprobs(Policy(handle), rollout).data.numpy()
    heat = entropy(Policy(handle), rollout).data.numpy()
    old, gain = rollout.logprobs.data.double().numpy(), advantages.data.double().numpy()

    def averaged(term: Callable[[int, int], float], mask: np.ndarray, how: Aggregation) -> float:
        rows = [[term(i, t) for t in range(mask.shape[1]) if mask[i, t]] for i in range(len(mask))]
        kept = [row for row in rows if row]
        if how is Aggregation.TOKEN_MEAN:
            return sum(map(sum, kept)) / sum(map(len, kept))
        parts = [sum(row) / (len(row) if how is Aggregation.SEQUENCE_MEAN else 1) for row in kept]
        return sum(parts) / len(kept)

    def surrogate(i: int, t: int) -> float:
        ratio = np.exp(new[i, t] - old[i, t])
        return max(-gain[i] * ratio, -gain[i] * min(max(ratio, 0.8), 1.2))

    def near(i: int, t: int) -> float:
        difference = old[i, t] - new[i, t]
        return np.exp(difference) - difference - 1

    own, second = rollout.mask.data.numpy(), other.data.numpy()
    wanted = (
        averaged(surrogate, own, aggregation)
        + 0.3 * averaged(near, second, Aggregation.TOKEN_MEAN)
        - 2.0 * averaged(lambda i, t: -heat[i, t], own, Aggregation.SEQUENCE_SUM)
        - 1.0 * averaged(lambda i, t: -gain[i] * new[i, t], second, Aggregation.TOKEN_MEAN)
    )
    got, _ = gradient_free(region, handle)
    assert got == pytest.approx(wanted, abs=1e-6)


def gradient_free(region: BoundRegion, handle: LocalModel) -> tuple[float, int]:
    counts = region.counts(torch.arange(len(region)))
    parts = micro_batches(region.tokens(), torch.arange(len(region)), 60)
    return sum(float(region(Policy(handle), rows).total(counts)) for rows in parts), len(parts)


def test_metrics_are_the_same_however_a_minibatch_is_cut(tiny: Tiny, make_rollout: Make) -> None:
    told = []
    for budget in CUTS:
        handle = tiny(trainable=True)
        region = catch(Policy(handle), mixed(*problem(make_rollout), Aggregation.TOKEN_MEAN)).data
        for rows in micro_batches(region.tokens(), torch.arange(10), budget):
            region(Policy(handle), rows)
        told.append(region.observed.sums)
    for other in told[1:]:
        assert other.keys() == told[0].keys()
        for name, (total, count) in other.items():
            assert (total, count) == (pytest.approx(told[0][name][0], abs=1e-4), told[0][name][1])


@pytest.mark.parametrize("minibatch", [0, 2])
def test_an_update_leaves_the_same_weights_whatever_its_micro_batches_hold(
    tiny: Tiny, make_rollout: Make, minibatch: int
) -> None:
    weights = []
    for budget in CUTS:
        handle = tiny(trainable=True)
        loss = mixed(*problem(make_rollout), Aggregation.SEQUENCE_MEAN)
        update(Policy(handle), loss, lr=0.01, optimizer="sgd", minibatch=minibatch, micro_batch_tokens=budget, epochs=2)
        weights.append(torch.cat([p.detach().flatten() for p in handle.model.parameters()]))
    for other in weights[1:]:
        assert torch.allclose(weights[0], other, rtol=0, atol=1e-5)


def test_a_minibatch_whose_masks_keep_nothing_changes_nothing(tiny: Tiny, make_rollout: Make) -> None:
    handle, rollout = tiny(trainable=True), make_rollout([3, 2], mask=[[0, 0, 0], [0, 0, 0]])
    before = handle.weights()
    after = update(
        Policy(handle), mixed(rollout, rollout.mask, Advantages(torch.ones(2)), Aggregation.TOKEN_MEAN), lr=1.0
    )
    assert all(torch.equal(tensor, before[name]) for name, tensor in handle.weights().items())
    assert {each.name: each.total for each in after.measures}["loss"] == 0
