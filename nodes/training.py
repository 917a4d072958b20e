"""Training: minimise a loss in minibatches of whole groups, each split into micro-batches by a token budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from pydantic import Field

from flowgraph import Loss, Metric, Trainable, node
from flowgraph.errors import LawError
from flowgraph.language import BoundRegion, Key, NodeName
from flowgraph.language.handle import TOLD_AT_MOST, WHOLE, NotFinite, Optimizer, StepReport
from flowgraph.language.values import Measure

if TYPE_CHECKING:
    from torch import Tensor

M = TypeVar("M", bound=Trainable)
METRICS = (
    Metric("loss", headline=True, about="mean over optimizer steps"),
    Metric("grad_norm", headline=True, about="norm of the gradient before clipping, mean over optimizer steps"),
    Metric("lr", about="learning rate"),
    Metric("optimizer_steps", about="optimizer steps in this update"),
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
    name: NodeName = "",
) -> M:
    """Train `model` in place on `loss` and return its next version.

    Each epoch reads all rows once, in minibatches of at most `minibatch` prompts (0: all), with one optimizer step
    each. Minibatches have whole groups and are as equal in size as possible. A minibatch is split into micro-batches of
    at most `micro_batch_tokens` tokens, unless the plan sets another number; where rows are packed, a context that rows
    share counts once. The split does not change the gradient, because every term is divided by the count of its mask
    over the minibatch. `max_grad_norm` 0 turns gradient clipping off. Before `start_step` the model does not change, so
    that a policy can wait for its critic to warm up. The learning rate follows `schedule` by the step of the run: it
    rises to `lr` over `warmup_steps`, and falls to `least_lr` · `lr` at `decay_steps`. Raises LawError without rows, or
    if `decay_steps` is not above `warmup_steps` in a schedule that falls; NotFinite, which names the rows, if a loss or
    a gradient is not finite.
    """
    region = loss
    assert isinstance(region, BoundRegion), "a node's region arrives bound"
    lr = lr * scheduled(key.step, schedule, warmup_steps, decay_steps, least_lr)
    settings = Optimizer(optimizer, lr, weight_decay, max_grad_norm)
    groups, prompts = region.groups(), region.prompts()
    budget = model.handle.micro_batch_tokens or micro_batch_tokens
    contexts = region.contexts() if model.handle.packs else None
    split = partial(micro_batches, region.tokens(), budget=budget, groups=groups, contexts=contexts)
    epochs = epochs if key.step >= start_step else 0
    batches = (batch for epoch in range(epochs) for batch in minibatches(groups, prompts, minibatch, key, epoch))
    steps = [_step(region, model, split(batch), batch, settings) for batch in batches]
    after = model.advanced()
    after.measures = (
        Measure("loss", sum(step.loss for step in steps), len(steps)),
        Measure("grad_norm", sum(step.grad_norm for step in steps), len(steps)),
        Measure("lr", lr, 1),
        Measure("optimizer_steps", len(steps), 1),
    )
    return after


def scheduled(step: int, schedule: str, warmup_steps: int, decay_steps: int, minimum: float) -> float:
    """Return the factor of the learning rate at `step`, the step of a run counted from 0.

    The factor rises linearly to 1 in the last of the `warmup_steps`. Then "constant" stays 1; "linear" and "cosine"
    fall, in a line or half a wave, to `minimum` at step `decay_steps` and stay there. Raises LawError if such a
    `schedule` has `decay_steps` ≤ `warmup_steps`.
    Source: Loshchilov and Hutter 2017 (SGDR), arXiv 1608.03983, equation 5. Deviation: the first factor of a warm-up is
    not 0 as it is in transformers' schedulers, so that no step is lost.

    >>> [scheduled(step, "linear", 2, 6, 0.5) for step in (0, 1, 2, 4, 6, 9)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.5]
    """
    if schedule != "constant" and decay_steps <= warmup_steps:
        what = f"a {schedule} schedule of {decay_steps} steps ends in its warm-up of {warmup_steps}"
        raise LawError(what, hint="decay_steps is the step of the run at which the learning rate reaches its minimum")
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    progress = min(1.0, (step - warmup_steps) / (decay_steps - warmup_steps))
    remaining = 1 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return minimum + (1 - minimum) * remaining


def _step(region: BoundRegion, model: Trainable, parts: list[Tensor], batch: Tensor, settings: Optimizer) -> StepReport:
    counts, parts = region.counts(batch), region.level(parts)

    def share(rows: Tensor) -> Callable[[], Tensor]:
        return lambda: region(model, rows).total(counts)

    try:
        return model.handle.step([share(rows) for rows in parts], settings)
    except NotFinite as error:
        rank, groups = model.handle.ranks.rank, region.groups()
        places = ((part, row) for row_rank, part, row in error.rows if row_rank == rank)
        rows = (int(i) for part, row in places for i in (parts[part] if row == WHOLE else parts[part][row : row + 1]))
        names = (f"row {i} of rank {rank}, a response to prompt {int(groups[i])}" for i in rows)
        error.notes = (*error.notes, *islice(names, TOLD_AT_MOST))
        raise


def minibatches(groups: Tensor, prompts: Tensor, size: int, key: Key, epoch: int) -> list[Tensor]:
    """Return the row indices of each minibatch of at most `size` prompts; the key and the epoch shuffle the prompts.

    `groups` [B] is the prompt of each row, `prompts` [P] has each prompt of all ranks once. If `size` is 0 or at least
    P, there is one minibatch, in order. Every row is in exactly one minibatch; every rank has the same number of
    minibatches, some perhaps empty. Raises LawError if no rank has a row.

    >>> import torch
    >>> groups, prompts = torch.tensor([7, 7, 8, 8]), torch.tensor([7, 8])
    >>> [sorted(rows.tolist()) for rows in minibatches(groups, prompts, 0, Key(), 0)]
    [[0, 1, 2, 3]]
    """
    import numpy as np
    import torch

    if not len(prompts):
        raise LawError("update got no rows to train on")
    if size == 0 or size >= len(prompts):
        return [torch.arange(len(groups))]
    order = np.argsort(key.generator(epoch).bit_generator.random_raw(len(prompts)), kind="stable")
    parts = torch.tensor_split(prompts[torch.from_numpy(order)], -(-len(prompts) // size))
    return [torch.isin(groups, part).nonzero()[:, 0] for part in parts]


def micro_batches(
    tokens: Tensor, rows: Tensor, budget: int, groups: Tensor | None = None, contexts: Tensor | None = None
) -> list[Tensor]:
    """Return the row indices `rows` in parts of at most `budget` tokens; a row with more tokens is a part by itself.

    `tokens` [B] counts each row's tokens. With `groups` [B] and `contexts` [B], the tokens before each row's response,
    rows are packed in the order of their groups: neighbours of one group share their context, which counts once.
    Otherwise each row of a part counts as the part's longest. The longest rows come first, in a packed batch within
    each group. Without rows there is one empty part.

    >>> import torch
    >>> [part.tolist() for part in micro_batches(torch.tensor([5, 1, 4]), torch.tensor([0, 1, 2]), 10)]
    [[0, 2], [1]]
    >>> context = torch.tensor([3, 3, 3])
    >>> [part.tolist() for part in micro_batches(torch.tensor([5, 4, 7]), torch.arange(3), 8, torch.zeros(3), context)]
    [[2], [0, 1]]
    """
    order = rows[tokens[rows].argsort(descending=True, stable=True)]
    if groups is None or contexts is None:
        padded: list[Tensor] = []
        while len(order):
            count = max(1, budget // max(1, int(tokens[order[0]])))
            padded.append(order[:count])
            order = order[count:]
        return padded or [order]
    order = order[groups[order].argsort(stable=True)]
    parts, used, last = list[list[int]]([[]]), 0, -1
    columns = (order.tolist(), (tokens - contexts)[order].tolist(), contexts[order].tolist(), groups[order].tolist())
    for row, response, context, group in zip(*columns, strict=True):
        if parts[-1] and used + response + (context if group != last else 0) > budget:
            parts.append([])
            used, last = 0, -1
        used += response + (context if group != last else 0)
        last = group
        parts[-1].append(row)
    return [order.new_tensor(part) for part in parts]
