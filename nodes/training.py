"""Training: descend a loss in minibatches of whole groups, each cut into micro-batches by a token budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from pydantic import Field

from flowgraph import BoundRegion, Key, Loss, Metric, Trainable, node
from flowgraph.errors import LawError
from flowgraph.language.handle import TOLD_AT_MOST, WHOLE, NotFinite, Optimizer, StepReport
from flowgraph.language.values import Measure

if TYPE_CHECKING:
    from torch import Tensor

M = TypeVar("M", bound=Trainable)
METRICS = (
    Metric("loss", headline=True, about="mean over optimizer steps"),
    Metric("grad_norm", headline=True, about="before clipping, mean over optimizer steps"),
    Metric("lr", about="learning rate"),
    Metric("optimizer_steps", about="optimizer steps taken in this update"),
)


@node(kind="update", carries="model", metrics=METRICS)
def update(
    model: M,
    loss: Callable[[M], Loss],
    *,
    lr: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-6,
    optimizer: Literal["adamw", "sgd"] = "adamw",
    weight_decay: Annotated[float, Field(ge=0)] = 0.0,
    max_grad_norm: Annotated[float, Field(ge=0)] = 1.0,
    epochs: Annotated[int, Field(ge=1)] = 1,
    minibatch: Annotated[int, Field(ge=0)] = 0,
    micro_batch_tokens: Annotated[int, Field(ge=1)] = 16384,
    start_step: Annotated[int, Field(ge=0)] = 0,
    schedule: Literal["constant", "linear", "cosine"] = "constant",
    warmup_steps: Annotated[int, Field(ge=0)] = 0,
    decay_steps: Annotated[int, Field(ge=0)] = 0,
    least_lr: Annotated[float, Field(ge=0, le=1)] = 0.0,
    key: Key = Key(),
) -> M:
    """Train `model` in place on `loss` and give its next version.

    Each epoch goes through all rows once, in minibatches of at most `minibatch` prompts (0: all at once), one optimizer
    step each. Groups stay whole, no row is left out, and prompts are shared as evenly as they divide. A minibatch runs
    in micro-batches of at most `micro_batch_tokens` tokens, or what the plan says, contexts that rows share counted
    once. Its gradient is the same however it is cut, because every term is divided by the count of its mask over the
    whole minibatch. `max_grad_norm` 0 clips no gradient.
    Before `start_step` the model is handed on as it is: a policy can wait until its critic has warmed up. The learning
    rate follows `schedule` by the run's step (`scheduled`): up to `lr` over `warmup_steps`, then down, until
    `decay_steps`, to `least_lr` of it.
    """
    region = loss
    assert isinstance(region, BoundRegion), "a node's region arrives bound"
    lr = lr * scheduled(key.step, schedule, warmup_steps, decay_steps, least_lr)
    rule = Optimizer(optimizer, lr, weight_decay, max_grad_norm)
    groups, prompts = region.groups(), region.prompts()
    budget = model.handle.micro_batch_tokens or micro_batch_tokens
    contexts = region.contexts() if model.handle.packs else None
    cut = partial(micro_batches, region.tokens(), budget=budget, groups=groups, contexts=contexts)
    epochs = epochs if key.step >= start_step else 0
    batches = (batch for epoch in range(epochs) for batch in minibatches(groups, prompts, minibatch, key, epoch))
    steps = [_step(region, model, cut(batch), batch, rule) for batch in batches]
    after = model.advanced()
    after.measures = (
        Measure("loss", sum(step.loss for step in steps), len(steps)),
        Measure("grad_norm", sum(step.grad_norm for step in steps), len(steps)),
        Measure("lr", lr, 1),
        Measure("optimizer_steps", len(steps), 1),
    )
    return after


def scheduled(step: int, schedule: str, warmup_steps: int, decay_steps: int, least: float) -> float:
    """Give the part of the learning rate that holds in one step of a run, counted from 0.

    It rises in equal parts over `warmup_steps`, the last of which has the whole. "linear" then falls in a line,
    "cosine" in half a wave, to `least` at `decay_steps`, where it stays. Raises LawError for a fall that has no steps.
    Source: Loshchilov and Hutter 2017 (SGDR), arXiv 1608.03983, equation 5. Deviation: the first step of a warm-up is
    not 0, as in transformers' schedulers, so that no step is lost.

    >>> [scheduled(step, "linear", 2, 6, 0.5) for step in (0, 1, 2, 4, 6, 9)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.5]
    """
    if schedule != "constant" and decay_steps <= warmup_steps:
        what = f"a {schedule} schedule of {decay_steps} steps ends in its warm-up of {warmup_steps}"
        raise LawError(what, hint="decay_steps says at which step of the run the learning rate is at its least")
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    done = min(1.0, (step - warmup_steps) / (decay_steps - warmup_steps))
    left = 1 - done if schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return least + (1 - least) * left


def _step(region: BoundRegion, model: Trainable, parts: list[Tensor], batch: Tensor, rule: Optimizer) -> StepReport:
    """Take one optimizer step on `batch`, its loss summed over `parts`, each divided by the counts of the whole."""
    counts, parts = region.counts(batch), region.level(parts)

    def share(rows: Tensor) -> Callable[[], Tensor]:
        return lambda: region(model, rows).total(counts)

    try:
        return model.handle.step([share(rows) for rows in parts], rule)
    except NotFinite as error:
        error.notes = (*error.notes, *_at_fault(error, model.handle.ranks.rank, parts, region.groups()))
        raise


def _at_fault(error: NotFinite, rank: int, parts: Sequence[Tensor], groups: Tensor) -> Iterator[str]:
    """Name the first rows of this rank that are at fault, by what they answer."""
    own = ((part, row) for at, part, row in error.rows if at == rank)
    found = (int(i) for part, row in own for i in (parts[part] if row == WHOLE else parts[part][row : row + 1]))
    for i in islice(found, TOLD_AT_MOST):
        yield f"row {i} of rank {rank}, a response to prompt {int(groups[i])}"


def minibatches(groups: Tensor, prompts: Tensor, size: int, key: Key, epoch: int) -> list[Tensor]:
    """Cut rows into minibatches of at most `size` prompts (0: one), in an order keyed by seed, step and epoch.

    `groups` [B] says which prompt each row answers, `prompts` [P] all that rows of any rank do, each once; gives row
    indices. Every row is in exactly one minibatch, and every rank has as many, some perhaps empty.

    >>> import torch
    >>> groups, prompts = torch.tensor([7, 7, 8, 8]), torch.tensor([7, 8])
    >>> [sorted(rows.tolist()) for rows in minibatches(groups, prompts, 0, Key(), 0)]
    [[0, 1, 2, 3]]
    """
    import numpy as np
    import torch

    if not len(prompts):
        raise LawError("there is no row to train on")
    if size == 0 or size >= len(prompts):
        return [torch.arange(len(groups))]
    order = np.argsort(key.generator(epoch).bit_generator.random_raw(len(prompts)), kind="stable")
    parts = torch.tensor_split(prompts[torch.from_numpy(order)], -(-len(prompts) // size))
    return [torch.isin(groups, part).nonzero()[:, 0] for part in parts]


def micro_batches(
    tokens: Tensor, rows: Tensor, budget: int, groups: Tensor | None = None, contexts: Tensor | None = None
) -> list[Tensor]:
    """Cut `rows` so that none holds more than `budget` tokens; a row that alone holds more goes alone.

    `tokens` [B] counts each row's tokens. With `contexts` [B], how many of them stand before its response, rows are
    packed: those of one of `groups` [B] that lie side by side hold their context once. Without, they are padded to
    their longest. Rows go longest first, so that parts are alike in work, or little is padding.

    >>> import torch
    >>> [each.tolist() for each in micro_batches(torch.tensor([5, 1, 4]), torch.tensor([0, 1, 2]), 10)]
    [[0, 2], [1]]
    >>> context = torch.tensor([3, 3, 3])
    >>> [each.tolist() for each in micro_batches(torch.tensor([5, 4, 7]), torch.arange(3), 8, torch.zeros(3), context)]
    [[2], [0, 1]]
    """
    order = rows[tokens[rows].argsort(descending=True, stable=True)]
    if groups is None or contexts is None:
        return _padded(tokens, order, budget)
    order = order[groups[order].argsort(stable=True)]
    cuts, held, last = list[list[int]]([[]]), 0, -1
    columns = (order.tolist(), (tokens - contexts)[order].tolist(), contexts[order].tolist(), groups[order].tolist())
    for row, response, context, group in zip(*columns, strict=True):
        if cuts[-1] and held + response + (context if group != last else 0) > budget:
            cuts.append([])
            held, last = 0, -1
        held += response + (context if group != last else 0)
        last = group
        cuts[-1].append(row)
    return [order.new_tensor(each) for each in cuts]


def _padded(tokens: Tensor, order: Tensor, budget: int) -> list[Tensor]:
    cuts: list[Tensor] = []
    start = 0
    while start < len(order):
        take = max(1, budget // max(1, int(tokens[order[start]])))
        cuts.append(order[start : start + take])
        start += take
    return cuts or [order]
