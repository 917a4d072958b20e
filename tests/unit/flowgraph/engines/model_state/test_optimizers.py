"""Optimizers of one model: what is refused and told, what they keep, and where that lies."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from flowgraph.engines.model_state.optimizers import KEEPS, Optimizers, run_backward
from flowgraph.language.handle import NotFinite, Optimizer, TokenStats

ADAMW = Optimizer("adamw", 0.1, 0.01, max_grad_norm=0)


def weights(seed: int = 0) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(3, 2, requires_grad=True), torch.randn(4, requires_grad=True)]


def stepped(optimizers: Optimizers, steps: int = 2) -> Optimizers:
    for _ in range(steps):
        optimizers.begin()
        losses = run_backward([lambda: sum((each**3).sum() for each in optimizers.tensors)], optimizers.at)  # type: ignore[list-item,return-value]
        optimizers.step(losses, ADAMW)
    return optimizers


def same(one: Optimizers, other: Optimizers) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.tensors, other.tensors, strict=True))


def refused(optimizers: Optimizers, losses: list[Any]) -> NotFinite:
    optimizers.begin()
    with pytest.raises(NotFinite) as caught:
        optimizers.step(run_backward(losses, optimizers.at), ADAMW)
    return caught.value


@pytest.mark.parametrize("name", KEEPS)
def test_an_optimizer_keeps_what_is_said_of_it(name: Any) -> None:
    optimizers = Optimizers(weights())
    optimizers.begin()
    optimizers.step(run_backward([(optimizers.tensors[0] ** 2).sum]), Optimizer(name, 0.1))
    changed, untouched = optimizers.states()[name]
    assert changed.keys() == KEEPS[name]
    assert untouched == {}, "a tensor without a gradient is not changed"


def test_what_is_kept_goes_on_in_place_of_other_tensors_that_stand_for_the_first() -> None:
    one, other = stepped(Optimizers(weights())), stepped(Optimizers(weights()))
    other.rebind([each.detach().clone().requires_grad_() for each in other.tensors])
    assert same(stepped(one), stepped(other))


def test_what_is_kept_is_taken_over_by_others_to_the_last_bit() -> None:
    one, other = stepped(Optimizers(weights())), Optimizers(weights(1))
    for mine, its in zip(other.tensors, one.tensors, strict=True):
        mine.data.copy_(its.detach())
    copied = {
        name: [{key: told.clone() for key, told in each.items()} for each in kept]
        for name, kept in one.states().items()
    }
    other.restore(copied)
    assert same(stepped(one), stepped(other))


def test_states_in_host_memory_change_no_step() -> None:
    assert same(stepped(Optimizers(weights())), stepped(Optimizers(weights(), offloaded=True)))


def test_rows_are_at_fault_by_their_gradient_then_by_what_was_read_then_by_their_loss() -> None:
    optimizers = Optimizers(weights())
    read = optimizers.tensors[0]

    def reads(stats: torch.Tensor) -> torch.Tensor:
        told = optimizers.see(TokenStats(logprobs=stats)).logprobs
        assert told is not None
        return told

    def by_gradient() -> torch.Tensor:
        infinite = torch.zeros(3, 2).index_fill_(0, torch.tensor([1]), torch.inf)
        kept = torch.tensor([0.0, 1.0, 1.0])[:, None]
        told = reads(read * 1.0) * kept
        return (
            told + reads(read + infinite).masked_fill(infinite.isinf(), 0.0) * torch.tensor([1, 1, torch.nan])[:, None]
        ).sum()

    def by_reading() -> torch.Tensor:
        return reads(read + torch.tensor([0.0, torch.inf, 0.0])[:, None]).sum()

    assert refused(optimizers, [read.sum, by_gradient]).rows == ((0, 1, 2),)
    assert refused(optimizers, [by_reading]).rows == ((0, 0, 1),)
    assert refused(optimizers, [read.sum, lambda: read.sum() * torch.nan]).rows == ((0, 1, -1),)
    assert refused(optimizers, [lambda: (read * 0.0).abs().sqrt().sum()]).rows == ()
    before = [each.detach().clone() for each in optimizers.tensors]
    assert all(torch.equal(each, other) for each, other in zip(optimizers.tensors, before, strict=True))
    assert optimizers.states() == {}


def test_a_refusal_crosses_processes_with_its_rows() -> None:
    error = refused(Optimizers(weights()), [lambda: torch.full((), torch.nan, requires_grad=True) * 1.0])
    assert error.rows == ((0, 0, -1),)
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), back.rows) == (NotFinite, str(error), error.rows)


def test_a_refusal_names_three_rows_and_how_many_more() -> None:
    optimizers = Optimizers([torch.ones(7, 2, requires_grad=True)])

    def loss() -> torch.Tensor:
        told = optimizers.see(TokenStats(logprobs=optimizers.tensors[0] * 1.0)).logprobs
        assert told is not None
        return (told * torch.nan).sum()

    assert str(refused(optimizers, [loss])) == (
        "the gradient is not finite (norm nan, loss nan); this step did not change the weights\n"
        "    by row 0 of micro-batch 0 on rank 0\n"
        "    by row 1 of micro-batch 0 on rank 0\n"
        "    by row 2 of micro-batch 0 on rank 0\n"
        "    and 4 more\n"
        "  hint: a log-prob of -inf, a learning rate too high, or an advantage that is not finite"
    )
