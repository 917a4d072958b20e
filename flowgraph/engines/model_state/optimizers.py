"""The optimizer step of a trainable model, whole or in shards: sum the gradients, measure, refuse or clip, step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from flowgraph.engines.model_state.nonfinite import FiniteWatch
from flowgraph.language.handle import NotFinite, Optimizer, Ranks, SingleRank, StepReport, TokenStats

if TYPE_CHECKING:
    from torch import Tensor

States = list[dict[str, "Tensor"]]
"""What an optimizer keeps of each tensor, by name: of the tensor's own shape, or one number."""


KEEPS: Mapping[str, frozenset[str]] = {"adamw": frozenset({"step", "exp_avg", "exp_avg_sq"}), "sgd": frozenset()}
"""What each optimizer keeps of a tensor that it has changed, by the names of both."""


def descend(losses: Sequence[Callable[[], Tensor]], before: Callable[[int], None] = lambda part: None) -> list[float]:
    """Run each loss forward and backward, so that gradients add up, and give the losses; `before` is told its place."""
    values = list["Tensor"]()
    with torch.enable_grad():
        for part, loss in enumerate(losses):
            before(part)
            value = loss()
            value.backward()  # type: ignore[no-untyped-call]
            values.append(value.detach())
    return [float(value) for value in values]  # at the end, so that a device is not waited for in between


@dataclass(eq=False)
class Optimizers:
    """The torch optimizers of one model: each is made when it is first asked for, and keeps its own state.

    `tensors` are what they change: the model's parameters, or this rank's shards of them. What lies on `every` rank
    together is `copies` times the whole model, and `peers` of these ranks tell of the same rows. With `offloaded` the
    states lie in host memory between steps.
    """

    tensors: Sequence[Tensor]
    every: Ranks = field(default_factory=SingleRank)
    copies: int = 1
    peers: int = 1
    offloaded: bool = False
    _made: dict[str, Any] = field(default_factory=dict[str, Any])
    _watch: FiniteWatch = field(default_factory=FiniteWatch)

    def clear(self) -> None:
        """Drop all gradients, so that none lies in memory while samples are drawn."""
        for tensor in self.tensors:
            tensor.grad = None

    def begin(self) -> None:
        """Begin a step: without gradients, and without what was seen of the last."""
        self.clear()
        self._watch.clear()

    def at(self, part: int) -> None:
        """Say which micro-batch comes next, from 0."""
        self._watch.part = part

    def see(self, stats: TokenStats) -> TokenStats:
        """Watch statistics that a loss reads, so that a step that is refused can name rows; give them back."""
        return self._watch.see(stats)

    def step(self, losses: Sequence[float], rule: Optimizer, readers: Ranks | None = None) -> StepReport:
        """Clip the gradients that lie on the tensors, step, and drop them; `losses` are this rank's, by micro-batch.

        Raises `NotFinite` on every rank alike, and leaves the tensors untouched, when the gradient is not finite:
        `readers` are the ranks with rows of their own, whose rows it names.
        """
        try:
            told = self._measure(sum(losses))
            if not (math.isfinite(told.grad_norm) and math.isfinite(told.loss)):
                raise NotFinite.of(told, self._watch.found(losses, readers or self.every))
            if rule.max_grad_norm and self.tensors:
                norm = self.tensors[0].new_tensor(told.grad_norm)
                torch.nn.utils.clip_grads_with_norm_(self.tensors, rule.max_grad_norm, norm)
            self._take(rule)
        finally:
            self.begin()
        return told

    def _take(self, rule: Optimizer) -> None:
        chosen = self._chosen(rule)
        if self.offloaded:
            self.move(None)
        chosen.step()
        if self.offloaded:
            self.move("cpu")

    def _measure(self, loss: float) -> StepReport:
        """Give the loss and the norm of the gradient over all ranks, each counted once."""
        gradients = [tensor.grad for tensor in self.tensors if tensor.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        numbers = torch.tensor([loss / self.peers, norm * norm / self.copies], dtype=torch.float64)
        loss, squared = self.every.total(numbers).tolist()
        return StepReport(loss, math.sqrt(squared))

    def _chosen(self, rule: Optimizer) -> Any:
        """Give the optimizer of the rule's name, set to the rule."""
        chosen = self._named(rule.name, rule.lr)
        for group in chosen.param_groups:
            group |= {"lr": rule.lr, "weight_decay": rule.weight_decay}
        return chosen

    def _named(self, name: str, lr: float) -> Any:

        kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
        if name not in self._made:
            self._made[name] = kinds[name](list(self.tensors), lr=lr)
        return self._made[name]

    # --------------------------------------------------------------------------------------- what they keep

    def states(self) -> dict[str, States]:
        """Give what each optimizer keeps of each tensor; nothing of a tensor that it has not changed yet."""
        return {
            name: [
                {key: kept for key, kept in made.state.get(tensor, {}).items() if kept is not None}
                for tensor in self.tensors
            ]
            for name, made in self._made.items()
        }

    def restore(self, states: Mapping[str, States]) -> None:
        """Keep this in place of all that is kept; what has a tensor's shape lies where that does."""
        self._made.clear()
        for name, kept in states.items():
            made = self._named(name, 0.0)
            for tensor, told in zip(self.tensors, kept, strict=True):
                if told:
                    made.state[tensor] = told
        if self.offloaded:
            self.move("cpu")

    def move(self, device: str | None) -> None:
        """Move what is kept to a device, None: each to where its tensor lies. One number stays on the CPU."""
        for made in self._made.values():
            for tensor, kept in made.state.items():
                for key, told in kept.items():
                    if told is not None and told.dim():
                        kept[key] = told.to(device or tensor.device)

    def rebind(self, tensors: Sequence[Tensor]) -> None:
        """Change these tensors from now on, which stand for the ones before, in the same order."""
        states = self.states()
        self.tensors = tensors
        for name, made in self._made.items():
            made.param_groups[0]["params"] = list(tensors)
            made.state.clear()
            for tensor, kept in zip(tensors, states[name], strict=True):
                if kept:
                    made.state[tensor] = kept
