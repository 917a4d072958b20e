"""The optimizer step of a trainable model, whole or in shards: sum the gradients, measure, refuse or clip, step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flowgraph.errors import LawError
from flowgraph.executors.base import Alone, Optimizer, Ranks, Stepped

if TYPE_CHECKING:
    from torch import Tensor


def descend(losses: Sequence[Callable[[], Tensor]]) -> float:
    """Run each loss forward and backward, so that gradients add up, and give the sum of the losses."""
    import torch

    total = 0.0
    with torch.enable_grad():
        for loss in losses:
            value = loss()
            value.backward()  # type: ignore[no-untyped-call]
            total += float(value.detach())
    return total


@dataclass(eq=False)
class Optimizers:
    """The torch optimizers of one model: each is made when it is first asked for, and keeps its own state.

    `tensors` are what they change: the model's parameters, or this rank's shards of them. What lies on `ranks` together
    is the whole model, once.
    """

    tensors: Sequence[Tensor]
    ranks: Ranks = field(default_factory=Alone)
    _made: dict[str, Any] = field(default_factory=dict[str, Any])

    def clear(self) -> None:
        """Drop all gradients, so that none lies in memory while samples are drawn."""
        for tensor in self.tensors:
            tensor.grad = None

    def step(self, loss: float, rule: Optimizer) -> Stepped:
        """Clip the gradients that lie on the tensors, step, and drop them; `loss` is this rank's share.

        Raises `LawError` on every rank alike, and leaves the tensors untouched, when the gradient is not finite.
        """
        import torch

        try:
            told = self._measure(loss)
            if not math.isfinite(told.grad_norm):
                hint = "a log-prob of -inf, a learning rate too high, or an advantage that is not finite"
                what = f"the gradient is not finite (norm {told.grad_norm}, loss {told.loss})"
                raise LawError(f"{what}; this step left the weights as they were", hint=hint)
            if rule.max_grad_norm:
                norm = self.tensors[0].new_tensor(told.grad_norm)
                torch.nn.utils.clip_grads_with_norm_(self.tensors, rule.max_grad_norm, norm)
            self._chosen(rule).step()
        finally:
            self.clear()
        return told

    def _measure(self, loss: float) -> Stepped:
        """Give the loss and the norm of the gradient over all ranks."""
        import torch

        gradients = [tensor.grad for tensor in self.tensors if tensor.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        loss, squared = self.ranks.total(torch.tensor([loss, norm * norm], dtype=torch.float64)).tolist()
        return Stepped(loss, math.sqrt(squared))

    def _chosen(self, rule: Optimizer) -> Any:
        """Give the optimizer of the rule's name, set to the rule."""
        import torch

        kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
        if rule.name not in self._made:
            self._made[rule.name] = kinds[rule.name](list(self.tensors), lr=rule.lr)
        chosen = self._made[rule.name]
        for group in chosen.param_groups:
            group |= {"lr": rule.lr, "weight_decay": rule.weight_decay}
        return chosen
