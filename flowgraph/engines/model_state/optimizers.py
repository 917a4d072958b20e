"""The optimizer step of a trainable model, whole or sharded: sum the gradients, check and clip them, and update.

A step that is refused names the rows that cause a loss or a gradient that is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from flowgraph.language.handle import WHOLE, NotFinite, Optimizer, Ranks, SingleRank, StepReport, TokenStats

if TYPE_CHECKING:
    from torch import Tensor

States = list[dict[str, "Tensor"]]
"""What an optimizer keeps of each tensor, by name: tensors of its shape, or one number."""

KEEPS: Mapping[str, frozenset[str]] = {"adamw": frozenset({"step", "exp_avg", "exp_avg_sq"}), "sgd": frozenset()}
"""What each optimizer keeps of a tensor that it has changed."""


def run_backward(
    losses: Sequence[Callable[[], Tensor]], before: Callable[[int], None] = lambda part: None
) -> list[float]:
    """Run each loss forward and backward, in order, and return the values of the losses; gradients accumulate.

    `before` is called with the index of each loss before that loss is computed. Gradients are enabled for the losses,
    even if the caller has disabled gradients.
    """
    values = list["Tensor"]()
    with torch.enable_grad():
        for part, loss in enumerate(losses):
            before(part)
            value = loss()
            value.backward()  # type: ignore[no-untyped-call]
            values.append(value.detach())
    return [float(value) for value in values]  # at the end, so that no loss waits for the device


_SHIFT = 2**20  # more than the micro-batches of a step, and than the rows of a micro-batch

Marks = list[tuple[int, "Tensor"]]
"""Micro-batches, each with its rows [B], true where a number is not finite."""


@dataclass(eq=False)
class FiniteWatch:
    """Records which rows have statistics or gradients that are not finite in one step.

    `part` is the index of the current micro-batch.
    """

    part: int = 0
    _stats: Marks = field(default_factory=Marks)
    _gradients: Marks = field(default_factory=Marks)

    def clear(self) -> None:
        """Drop all records, and set `part` to 0."""
        self.part = 0
        self._stats.clear()
        self._gradients.clear()

    def see(self, stats: TokenStats) -> TokenStats:
        """Record which rows of `stats` are not finite, and return `stats`; the backward pass checks the gradients.

        Statistics that need no gradient are not checked.
        """
        part = self.part
        for tensor in vars(stats).values():
            if tensor is not None and tensor.requires_grad:
                self._stats.append((part, _nonfinite_rows(tensor.detach())))
                tensor.register_hook(lambda grad: self._gradients.append((part, _nonfinite_rows(grad))))
        return stats

    def faults(self, losses: Sequence[float], ranks: Ranks) -> list[tuple[int, int, int]]:
        """Return the rows on all ranks with numbers that are not finite, as (rank, micro-batch, row), in order.

        Indices count from 0, and `losses` are this rank's losses by micro-batch. If any rank has rows with gradients
        that are not finite, the result has these rows; else the rows whose statistics are not finite; else the
        micro-batches whose loss is not finite, with WHOLE as the row; else nothing. Every rank must call this.
        """
        by_loss = [(part, WHOLE) for part, loss in enumerate(losses) if not math.isfinite(loss)]
        for rows in (_marked(self._gradients), _marked(self._stats), by_loss):
            codes = [(ranks.rank * _SHIFT + part) * _SHIFT + row + 1 for part, row in rows]
            union = ranks.union(torch.tensor(codes, dtype=torch.int64)).tolist()
            if union:
                return [(code // _SHIFT // _SHIFT, code // _SHIFT % _SHIFT, code % _SHIFT - 1) for code in union]
        return []


def _nonfinite_rows(tensor: Tensor) -> Tensor:
    finite = tensor.isfinite()
    return ~(finite if finite.dim() == 1 else finite.all(-1))


def _marked(marks: Marks) -> list[tuple[int, int]]:
    return sorted({(part, row) for part, rows in marks for row in rows.nonzero()[:, 0].tolist()})


@dataclass(eq=False)
class Optimizers:
    """The torch optimizers of one model: each is created at its first step, and then keeps its state.

    `tensors` are the model's parameters, or this rank's shards of the parameters. The ranks in `every` together hold
    `copies` copies of the model. Groups of `peers` ranks have the same rows; `readers` contains one rank of each group,
    and errors of a refused step name rows by their rank in `readers`. If `offloaded`, states are in host memory between
    steps.
    """

    tensors: Sequence[Tensor]
    every: Ranks = field(default_factory=SingleRank)
    readers: Ranks = field(default_factory=SingleRank)
    copies: int = 1
    peers: int = 1
    offloaded: bool = False
    _optimizers: dict[str, Any] = field(default_factory=dict[str, Any])
    _watch: FiniteWatch = field(default_factory=FiniteWatch)

    def begin(self) -> None:
        """Drop the gradients of all tensors, and the records of rows that were not finite."""
        for tensor in self.tensors:
            tensor.grad = None
        self._watch.clear()

    def at(self, part: int) -> None:
        """Set the index, from 0, of the micro-batch that later calls of `see` belong to."""
        self._watch.part = part

    def see(self, stats: TokenStats) -> TokenStats:
        """Record which rows of `stats`, and which rows of their gradients, are not finite, and return `stats`.

        The backward pass checks the gradients. Statistics that need no gradient are not checked.
        """
        return self._watch.see(stats)

    def step(self, losses: Sequence[float], rule: Optimizer) -> StepReport:
        """Clip the gradients and update the tensors by `rule`; return the loss and the gradient norm before clipping.

        `losses` are this rank's losses by micro-batch. The report sums the losses of all micro-batches and ranks, and
        its norm is that of the summed gradient. Gradients are not clipped if `rule.max_grad_norm` is 0. Every rank must
        call this. Gradients are dropped, also after an error. Raises NotFinite on every rank, with the tensors
        unchanged, if the loss or the norm is not finite.
        """
        try:
            # The loss and the norm of the gradient over all ranks, each counted once.
            norm = float(torch.nn.utils.get_total_norm([t.grad for t in self.tensors if t.grad is not None]))
            numbers = torch.tensor([sum(losses) / self.peers, norm * norm / self.copies], dtype=torch.float64)
            loss, squared = self.every.total(numbers).tolist()
            report = StepReport(loss, math.sqrt(squared))
            if not (math.isfinite(report.grad_norm) and math.isfinite(report.loss)):
                raise NotFinite.of(report, self._watch.faults(losses, self.readers))
            if rule.max_grad_norm and self.tensors:
                total = self.tensors[0].new_tensor(report.grad_norm)
                torch.nn.utils.clip_grads_with_norm_(self.tensors, rule.max_grad_norm, total)
            optimizer = self._optimizer(rule.name, rule.lr)
            for group in optimizer.param_groups:
                group |= {"lr": rule.lr, "weight_decay": rule.weight_decay}
            if self.offloaded:
                self.move(None)
            optimizer.step()
            if self.offloaded:
                self.move("cpu")
        finally:
            self.begin()
        return report

    def _optimizer(self, name: str, lr: float) -> Any:
        if name not in self._optimizers:
            kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
            self._optimizers[name] = kinds[name](list(self.tensors), lr=lr)
        return self._optimizers[name]

    # --------------------------------------------------------------------------------------- states

    def states(self) -> dict[str, States]:
        """Return, by the name of the optimizer, the state of each tensor, in the order of `tensors`.

        The values are not copied. The state of a tensor that an optimizer has not updated yet is {}.
        """
        return {
            name: [
                {key: value for key, value in optimizer.state.get(tensor, {}).items() if value is not None}
                for tensor in self.tensors
            ]
            for name, optimizer in self._optimizers.items()
        }

    def restore(self, states: Mapping[str, States]) -> None:
        """Replace the states of all optimizers by `states`, which has the form that `states()` returns.

        The tensors in `states` are used without a copy and must be on the devices of the model's tensors; with
        `offloaded`, they are then moved to host memory.
        """
        self._optimizers.clear()
        for name, tensor_states in states.items():
            optimizer = self._optimizer(name, 0.0)
            for tensor, state in zip(self.tensors, tensor_states, strict=True):
                if state:
                    optimizer.state[tensor] = state
        if self.offloaded:
            self.move("cpu")

    def move(self, device: str | None) -> None:
        """Move the optimizer states to `device`; None means the device of the tensor that each state belongs to.

        States that are single numbers, such as step counts, are not moved.
        """
        for optimizer in self._optimizers.values():
            for tensor, state in optimizer.state.items():
                for key, value in state.items():
                    if value is not None and value.dim():
                        state[key] = value.to(device or tensor.device)

    def rebind(self, tensors: Sequence[Tensor]) -> None:
        """Replace the tensors that the optimizers update by `tensors`, in the same order; optimizer states are kept."""
        states = self.states()
        self.tensors = tensors
        for name, optimizer in self._optimizers.items():
            optimizer.param_groups[0]["params"] = list(tensors)
            optimizer.state.clear()
            for tensor, state in zip(tensors, states[name], strict=True):
                if state:
                    optimizer.state[tensor] = state
