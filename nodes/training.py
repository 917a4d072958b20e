"""Training: descend a loss in minibatches of whole groups, each cut into micro-batches by a token budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from pydantic import Field

from flowgraph import BoundRegion, Key, Loss, Metric, Trainable, node
from flowgraph.errors import LawError
from flowgraph.executors.base import Optimizer, Stepped
from flowgraph.values import Measure

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
    key: Key = Key(),
) -> M:
    """Train `model` in place on `loss` and give its next version.

    Each epoch goes through all rows once, in minibatches of at most `minibatch` prompts (0: all at once), one optimizer
    step each. Groups stay whole, no row is left out, and prompts are shared as evenly as they divide. A minibatch runs
    in micro-batches of at most `micro_batch_tokens` padded tokens; its gradient is the same however it is cut, because
    every term is divided by the count of its mask over the whole minibatch. `max_grad_norm` 0 clips no gradient.
    Before `start_step` the model is handed on as it is: a policy can wait until its critic has warmed up.
    """
    region = loss
    assert isinstance(region, BoundRegion), "a node's region arrives bound"
    rule = Optimizer(optimizer, lr, weight_decay, max_grad_norm)
    tokens, groups, prompts = region.tokens(), region.groups(), region.prompts()
    epochs = epochs if key.step >= start_step else 0
    batches = (batch for epoch in range(epochs) for batch in minibatches(groups, prompts, minibatch, key, epoch))
    steps = [_step(region, model, micro_batches(tokens, batch, micro_batch_tokens), batch, rule) for batch in batches]
    after = model.advanced()
    after.measures = (
        Measure("loss", sum(step.loss for step in steps), len(steps)),
        Measure("grad_norm", sum(step.grad_norm for step in steps), len(steps)),
        Measure("lr", lr, 1),
        Measure("optimizer_steps", len(steps), 1),
    )
    return after


def _step(region: BoundRegion, model: Trainable, parts: list[Tensor], batch: Tensor, rule: Optimizer) -> Stepped:
    """Take one optimizer step on `batch`, its loss summed over `parts`, each divided by the counts of the whole."""
    counts, parts = region.counts(batch), region.level(parts)

    def share(rows: Tensor) -> Callable[[], Tensor]:
        return lambda: region(model, rows).total(counts)

    return model.handle.step([share(rows) for rows in parts], rule)


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


def micro_batches(tokens: Tensor, rows: Tensor, budget: int) -> list[Tensor]:
    """Cut `rows` so that none holds more than `budget` tokens when padded to its longest row; a longer row goes alone.

    `tokens` [B] counts each row's tokens. Rows go longest first, so that little is padding.

    >>> import torch
    >>> [each.tolist() for each in micro_batches(torch.tensor([5, 1, 4]), torch.tensor([0, 1, 2]), 10)]
    [[0, 2], [1]]
    """
    import torch

    order = rows[tokens[rows].argsort(descending=True, stable=True)]
    cuts: list[Tensor] = []
    start = 0
    while start < len(order):
        take = max(1, budget // max(1, int(tokens[order[start]])))
        cuts.append(order[start : start + take])
        start += take
    return cuts or [torch.zeros(0, dtype=torch.int64)]
