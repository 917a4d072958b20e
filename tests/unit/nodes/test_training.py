"""`update`: how rows are shared out, that the whole equals a loop by hand, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from flowgraph import Loss
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import FlowError, LawError, SettingError
from flowgraph.language import Aggregation, Key
from flowgraph.language.values import Group
from nodes import Advantages, Policy, Rollout, clipped, entropy, entropy_bonus, logprobs, policy_gradient, update
from nodes.training import micro_batches, minibatches, scheduled
from tests.looped import looped

Tiny = Callable[..., LocalModel]
Make = Callable[..., Rollout]

GROUPS = torch.tensor([4, 4, 9, 9, 9, 1, 30, 30, 2, 7, 7, 5])  # seven prompts, of one to three rows
PROMPTS = torch.unique(GROUPS)
NONE = torch.zeros(0, dtype=torch.int64)


def prompts_of(parts: list[torch.Tensor]) -> list[list[int]]:
    return [sorted(set(GROUPS[rows].tolist())) for rows in parts]


# ------------------------------------------------------------------------------------------- sharing out


@looped("size", [1, 2, 3, 4, 6, 7, 50, 0])
def test_each_epoch_holds_every_row_once_groups_whole_and_prompts_shared_evenly(size: int) -> None:
    parts = minibatches(GROUPS, PROMPTS, size, Key(3, 1, "update"), 0)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(GROUPS)))
    shares = [len(each) for each in prompts_of(parts)]
    assert sum(shares) == 7 and max(shares) - min(shares) <= 1
    assert max(shares) <= (size or 7) and len(parts) == -(-7 // (size or 7))


def test_the_order_of_prompts_is_keyed_by_seed_step_node_and_epoch() -> None:
    keys = [(Key(0, 0, "u"), 0), (Key(1, 0, "u"), 0), (Key(0, 1, "u"), 0), (Key(0, 0, "v"), 0), (Key(0, 0, "u"), 1)]
    orders = [prompts_of(minibatches(GROUPS, PROMPTS, 1, key, epoch)) for key, epoch in keys]
    assert orders[0] == prompts_of(minibatches(GROUPS, PROMPTS, 1, Key(0, 0, "u"), 0))
    assert all(orders[i] != orders[j] for i in range(5) for j in range(i))


def test_the_order_depends_on_the_prompts_not_on_where_their_rows_lie() -> None:
    moved = torch.randperm(len(GROUPS), generator=torch.Generator().manual_seed(1))
    plain = [sorted(GROUPS[rows].tolist()) for rows in minibatches(GROUPS, PROMPTS, 2, Key(5), 0)]
    assert [sorted(GROUPS[moved][rows].tolist()) for rows in minibatches(GROUPS[moved], PROMPTS, 2, Key(5), 0)] == plain


def test_no_rows_cannot_be_trained_on() -> None:
    with pytest.raises(LawError, match="update got no rows to train on"):
        minibatches(NONE, NONE, 2, Key(), 0)


def test_micro_batches_hold_every_row_once_within_the_budget_longest_first() -> None:
    tokens, rows = torch.tensor([3, 50, 7, 20, 1, 20, 8]), torch.tensor([0, 1, 2, 3, 5, 6])
    parts = micro_batches(tokens, rows, 40)
    assert sorted(torch.cat(parts).tolist()) == rows.tolist()
    assert [part.tolist() for part in parts] == [[1], [3, 5], [6, 2, 0]]
    assert all(len(part) == 1 or len(part) * int(tokens[part].max()) <= 40 for part in parts)


def test_no_rows_are_one_empty_micro_batch() -> None:
    (part,) = micro_batches(torch.tensor([3]), torch.zeros(0, dtype=torch.int64), 40)
    assert part.tolist() == []


# ------------------------------------------------------------------------------------------- the whole


def loss_of(rollout: Rollout, advantages: Advantages, aggregation: Aggregation) -> Callable[[Policy], Loss]:
    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        surrogate = clipped(new, advantages, rollout.mask, old=rollout.logprobs, aggregation=aggregation)
        return surrogate + 0.01 * entropy_bonus(entropy(pi, rollout), rollout.mask)

    return loss


def by_hand(handle: LocalModel, rollout: Rollout, advantages: torch.Tensor, batches: list[torch.Tensor]) -> list[float]:
    """Take the same steps with nothing of ours: full logits of each row alone, and torch's AdamW."""
    model, optimizer = handle.model, torch.optim.AdamW(handle.model.parameters(), lr=3e-3, weight_decay=0.05)
    losses = []
    for batch in batches:
        total, bonus, tokens = torch.zeros(()), torch.zeros(()), 0
        for i in batch.tolist():
            context, length = rollout.context.data[i].as_py(), int(rollout.lengths.data[i])
            answer = rollout.tokens.data[i, :length].tolist()
            logits = model(input_ids=torch.tensor([context + answer])).logits[0]
            told = logits[len(context) - 1 : -1].log_softmax(-1)
            ratio = (told[range(length), answer] - rollout.logprobs.data[i, :length]).exp()
            gain = advantages[i]
            total = total + torch.maximum(-gain * ratio, -gain * ratio.clamp(0.8, 1.2)).sum()
            bonus = bonus + (told.exp() * told).sum()
            tokens += length
        loss = total / tokens + 0.01 * bonus / tokens
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_an_update_is_the_loop_one_would_write_by_hand(tiny: Tiny, make_rollout: Make) -> None:
    handle, other, key = tiny(trainable=True), tiny(trainable=True), Key(7, 3, "policy.update")
    rollout = make_rollout([3, 1, 6, 2, 5, 4, 1, 2, 7, 3, 2, 1], contexts=[2, 8] * 6, group=GROUPS.tolist())
    rollout.logprobs.data.copy_(logprobs(Policy(other), rollout).data.detach() * 0.95)
    advantages = Advantages(torch.linspace(-1, 1.5, 12))
    after = update(
        Policy(handle),
        loss_of(rollout, advantages, Aggregation.TOKEN_MEAN),
        lr=3e-3,
        weight_decay=0.05,
        max_grad_norm=0.5,
        epochs=2,
        minibatch=3,
        micro_batch_tokens=20,
        key=key,
    )
    batches = [rows for epoch in (0, 1) for rows in minibatches(GROUPS, PROMPTS, 3, key, epoch)]
    losses = by_hand(other, rollout, advantages.data, batches)
    for one, two in zip(handle.model.parameters(), other.model.parameters(), strict=True):
        assert torch.allclose(one, two, rtol=0, atol=2e-5)
    told = {each.name: (each.total, each.count) for each in after.measures}
    assert told["loss"] == (pytest.approx(sum(losses), abs=1e-4), 6)
    assert told["optimizer_steps"] == (6, 1) and told["lr"] == (3e-3, 1)
    assert told["grad_norm"][1] == 6 and told["grad_norm"][0] > 0
    assert after.version == 1 and after.handle is handle


def test_rows_of_different_prompts_in_another_order_give_the_same_update(tiny: Tiny, make_rollout: Make) -> None:
    one, two, order = tiny(trainable=True), tiny(trainable=True), torch.tensor([3, 0, 2, 1])
    rollout, advantages = make_rollout([3, 1, 6, 2], group=[8, 8, 5, 5]), torch.tensor([1.0, -1.0, 0.5, 2.0])
    from flowgraph.language.rows import take

    settings = {"lr": 1e-2, "minibatch": 1, "optimizer": "sgd"}
    update(Policy(one), loss_of(rollout, Advantages(advantages), Aggregation.SEQUENCE_MEAN), **settings)  # type: ignore[arg-type]
    moved = loss_of(take(rollout, order), Advantages(advantages[order]), Aggregation.SEQUENCE_MEAN)
    update(Policy(two), moved, **settings)  # type: ignore[arg-type]
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-6)


# ------------------------------------------------------------------------------------------- what it refuses


def simple(rollout: Rollout, advantages: torch.Tensor) -> Callable[[Policy], Loss]:
    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), Advantages(advantages), rollout.mask)

    return loss


def test_an_advantage_that_is_nan_is_refused_and_the_weights_stay(tiny: Tiny, make_rollout: Make) -> None:
    handle, rollout = tiny(trainable=True), make_rollout([3, 2])
    before = handle.weights()
    with pytest.raises(LawError, match="the gradient is not finite"):
        update(Policy(handle), simple(rollout, torch.tensor([1.0, float("nan")])), lr=0.1)
    assert handle.version == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in handle.weights().items())


def test_a_frozen_model_cannot_be_updated(tiny: Tiny, make_rollout: Make) -> None:
    with pytest.raises(FlowError, match="this model is frozen: nothing can update it"):
        update(Policy(tiny()), simple(make_rollout([3]), torch.ones(1)))


def test_a_version_that_an_update_has_consumed_cannot_be_updated_again(tiny: Tiny, make_rollout: Make) -> None:
    policy, loss = Policy(tiny(trainable=True)), simple(make_rollout([3]), torch.ones(1))
    after = update(policy, loss)
    weights = after.handle.weights()
    with pytest.raises(LawError, match="version 0 of these weights was consumed by an update; they are at 1"):
        update(policy, loss, lr=1.0)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in after.handle.weights().items())
    assert update(after, loss).version == 2


@looped(
    "setting, value",
    [
        ("lr", -1.0),
        ("lr", float("inf")),
        ("epochs", 0),
        ("minibatch", -1),
        ("micro_batch_tokens", 0),
        ("optimizer", "adam"),
    ],
)
def test_settings_out_of_range_are_refused(tiny: Tiny, make_rollout: Make, setting: str, value: object) -> None:
    with pytest.raises(SettingError, match=f"update.{setting}="):
        update(Policy(tiny(trainable=True)), simple(make_rollout([3]), torch.ones(1)), **{setting: value})  # type: ignore[arg-type]


def test_a_group_is_what_a_row_answers_not_where_it_stands(tiny: Tiny, make_rollout: Make) -> None:
    rollout = make_rollout([2, 2, 2], group=[3, 8, 3])
    assert Group is type(rollout.group)
    after = update(Policy(tiny(trainable=True)), simple(rollout, torch.ones(3)), minibatch=1)
    assert {each.name: each.total for each in after.measures}["optimizer_steps"] == 2


# ------------------------------------------------------------------------------------------- packed, and scheduled


def test_packed_micro_batches_count_a_context_that_rows_share_once() -> None:
    contexts = torch.tensor([6, 6, 6, 2])
    tokens, groups = contexts + torch.tensor([2, 4, 3, 9]), torch.tensor([8, 8, 8, 1])
    parts = micro_batches(tokens, torch.arange(4), 15, groups, contexts)
    assert [each.tolist() for each in parts] == [[3], [1, 2, 0]]
    assert [each.tolist() for each in micro_batches(tokens, torch.arange(4), 14, groups, contexts)] == [
        [3],
        [1, 2],
        [0],
    ]


def test_a_row_beyond_the_budget_goes_alone_and_no_row_is_lost() -> None:
    generator = torch.Generator().manual_seed(0)
    contexts = torch.randint(0, 20, (40,), generator=generator)
    tokens, groups = contexts + torch.randint(1, 60, (40,), generator=generator), torch.arange(40) // 4
    parts = micro_batches(tokens, torch.arange(40), 50, groups, contexts)
    assert sorted(torch.cat(parts).tolist()) == list(range(40))
    for part in parts:
        first = torch.ones(len(part), dtype=torch.bool)
        first[1:] = groups[part][1:] != groups[part][:-1]
        held = int((tokens - contexts)[part].sum() + contexts[part][first].sum())
        assert held <= 50 or len(part) == 1


@pytest.mark.parametrize(
    ("schedule", "least", "wanted"),
    [
        ("constant", 0.0, [1 / 3, 2 / 3, 1, 1, 1, 1, 1, 1]),
        ("linear", 0.2, [1 / 3, 2 / 3, 1, 1, 0.8, 0.6, 0.4, 0.2]),
        ("cosine", 0.0, [1 / 3, 2 / 3, 1, 1, 0.853553, 0.5, 0.146447, 0.0]),
    ],
)
def test_a_learning_rate_rises_then_falls_by_its_schedule(schedule: str, least: float, wanted: list[float]) -> None:
    found = [scheduled(step, schedule, 3, 7, least) for step in range(8)]
    assert found == pytest.approx(wanted, abs=1e-6)
    assert scheduled(99, schedule, 3, 7, least) == pytest.approx(wanted[-1])


def test_a_schedule_that_never_falls_is_refused() -> None:
    with pytest.raises(LawError, match="a cosine schedule of 3 steps ends in its warm-up of 3"):
        scheduled(0, "cosine", 3, 3, 0.0)


def test_an_update_steps_at_the_rate_of_its_step(tiny: Tiny, make_rollout: Make) -> None:
    rollout, told, advantages = make_rollout([3, 4]), list[float](), Advantages(torch.tensor([1.0, -1.0]))

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    for step in (0, 3, 7):
        policy = Policy(tiny(trainable=True))
        after = update(
            policy, loss, lr=0.5, optimizer="sgd", schedule="linear", warmup_steps=2, decay_steps=6, key=Key(0, step)
        )
        told += [each.total for each in after.measures if each.name == "lr"]
    assert told == pytest.approx([0.25, 0.375, 0.0])
