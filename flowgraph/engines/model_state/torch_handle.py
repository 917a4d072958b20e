"""The common part of the engines on torch: a handle on a transformers model, whole or sharded.

Not here: forward passes (`forward_pass`), and what differs between one process (`local`) and many (`fsdp`).
"""

from __future__ import annotations

import contextlib
import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from flowgraph.cluster.plan import RoleSettings
from flowgraph.engines.forward_pass.forward import forward_stats, split_rows
from flowgraph.engines.forward_pass.packing_probe import choose_packing
from flowgraph.engines.model_state.handle_state import HandleState
from flowgraph.engines.model_state.optimizers import Optimizers
from flowgraph.engines.model_state.sharded_checkpoint import TensorPiece
from flowgraph.engines.table import ENGINES
from flowgraph.errors import LawError
from flowgraph.language.handle import Optimizer, ResponseRows, StepReport, TokenStats
from flowgraph.models.heads import head_of
from flowgraph.models.lora import adapters_off, carried_names, set_trainable
from flowgraph.models.tokenizing import ChatTokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from flowgraph.language.handle import Ranks, Verb


@dataclass(eq=False)
class TorchHandle(ABC):
    """A transformers model with the verbs of a handle; `step` is offered only if `trainable`.

    If the model has adapters, only they and a value or score head are trained, and `weights` returns only these.
    `sample_rows` is the largest number of samples in a decoding batch, `forward_tokens` the largest number of tokens in
    a pass without gradients. Raises LawError for settings that the engine does not support.
    """

    engine: ClassVar[str]
    generates: ClassVar[bool]

    model: Any
    raw_tokenizer: Any
    trainable: bool = False
    sample_rows: int = 256
    forward_tokens: int = 16384
    version: int = 0
    running: RoleSettings = field(default=RoleSettings(), kw_only=True)
    _base_only: bool = field(default=False, init=False)
    """Whether passes read the model without its adapters."""
    _optimizers: Optimizers = field(init=False)

    def __post_init__(self) -> None:
        refuse_settings(self.running, self.engine)
        self._asleep = [False]  # a list, so that all handles on this memory share it
        self._home: torch.device = next(self.model.parameters()).device
        self._saved = frozenset(self.model.state_dict())
        set_trainable(self.model.eval(), self.trainable)
        self.tokenizer = ChatTokenizer(self.raw_tokenizer)

    @property
    def verbs(self) -> frozenset[Verb]:
        """Return the operations that this handle offers: `token_stats`, and any of `sample`, `weights` and `step`.

        `sample` requires an engine that generates and a language-model head, `weights` a handle that is not the frozen
        base of another, and `step` a trainable model.
        """
        offered: dict[Verb, bool] = {
            "token_stats": True,
            "sample": self.generates and head_of(self.model) == "tokens",
            "weights": not self._base_only,
            "step": self.trainable,
        }
        return frozenset(verb for verb, is_offered in offered.items() if is_offered)

    @property
    @abstractmethod
    def _every(self) -> Ranks:
        """Return all ranks that hold this model or a part of it."""

    @property
    def packs(self) -> bool:
        """Return whether passes run on packed tokens, without padding; may run the model, as `choose_packing` does."""
        return choose_packing(self.model) is not None

    @property
    def micro_batch_tokens(self) -> int | None:
        """Return the plan's largest number of tokens in a pass with gradients; None if the plan does not set one."""
        return self.running.micro_batch_tokens

    def without_adapters(self) -> Self:
        """Return a frozen handle at version 0 on the model without its adapters; both share one copy of the weights."""
        base = copy.copy(self)
        base.trainable, base.version, base._base_only = False, 0, True
        return base

    @contextlib.contextmanager
    def _reading(self) -> Generator[None]:
        if not self._base_only:
            yield
            return
        with torch.no_grad(), adapters_off(self.model):
            yield

    def token_stats(self, rows: ResponseRows, wanted: Sequence[str]) -> TokenStats:
        """Return the statistics `wanted` of each response token [rows, tokens], or the score of each text [rows].

        With gradients enabled on a trainable model, this is one pass, and the result has gradients. Otherwise rows are
        split into parts of at most `forward_tokens` tokens, and the result has no gradients. Every rank of a sharded
        model must call this. Raises LawError if the model is asleep, and as `forward_stats` does.
        """
        self._refuse_asleep()
        if torch.is_grad_enabled() and self.trainable:
            return self._optimizers.see(self._read(rows, wanted))
        parts = self._cut(rows)
        with self._reading():
            stats = [self._read(part, wanted) for part in parts]
        return TokenStats(**{name: torch.cat([getattr(part, name) for part in stats]) for name in wanted})

    def _read(self, rows: ResponseRows, wanted: Sequence[str]) -> TokenStats:
        return forward_stats(self.model, rows, wanted)

    def _cut(self, rows: ResponseRows) -> list[ResponseRows]:
        return split_rows(rows, self.forward_tokens, padded=not self.packs)

    def step(self, losses: Sequence[Callable[[], Tensor]], optimizer: Optimizer) -> StepReport:
        """Run the losses backward, clip the gradient, and update the weights; return the loss and the gradient norm.

        `losses` has one function for each micro-batch; each returns this rank's share of the whole loss. Losses and
        gradients are summed over micro-batches and ranks; the norm is that of the summed gradient before clipping.
        Every rank must call this. Raises NotFinite on every rank for a loss or a gradient that is not finite, and
        LawError if the ranks of a sharded model have different numbers of losses, or if the model is frozen or asleep;
        the weights are then unchanged.
        """
        self._refuse_asleep()
        if not self.trainable:
            raise LawError("this model is frozen: nothing can update it")
        self._optimizers.begin()
        return self._optimizers.step(self._descend(losses), optimizer)

    @abstractmethod
    def _descend(self, losses: Sequence[Callable[[], Tensor]]) -> list[float]:
        """Run the losses forward and backward, and return them; sets the gradients of the optimizers' tensors."""

    # --------------------------------------------------------------------------------------- weights

    def stream(self) -> Iterator[tuple[str, Tensor]]:
        """Return an iterator of (name, tensor) over copies of the full weights that an update of another copy needs.

        These are the adapters and a value or score head if the model has adapters, and otherwise all weights. Tied
        names are adjacent and share one tensor. Sharded weights are gathered one at a time, so every rank must exhaust
        the iterator. Raises LawError, at the call, if the model is asleep or is the frozen base of another handle.
        """
        self._refuse_asleep()
        return self._copies(self._carried_names())

    def weights(self) -> dict[str, Tensor]:
        """Return copies of the full weights that an update of another copy of the model needs, by name.

        These are the copies that `stream` yields. Every rank must call this. Raises LawError as `stream` does.
        """
        return dict(self.stream())

    def whole(self) -> dict[str, Tensor]:
        """Return copies of all full weights by name, including those of the base model; tied names share one tensor.

        Every rank must call this. Raises LawError if the model is asleep.
        """
        self._refuse_asleep()
        return dict(self._copies(self._saved))

    def _carried_names(self) -> frozenset[str]:
        if self._base_only:
            hint = "a model that is trained needs its own adapters: add +lora= to its name too"
            raise LawError("these weights are shared with another model's adapters, so they are read-only", hint=hint)
        return carried_names(self.model)

    def _copies(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        for aliases, tensor in named_once(self.model, names):
            full = self._full(tensor)
            yield from ((name, full) for name in aliases)

    def _full(self, tensor: Tensor) -> Tensor:
        return tensor.detach().clone()

    # --------------------------------------------------------------------------------------- state and sleep

    def _state(self) -> HandleState:
        self._refuse_asleep()
        parameters = self.model.named_parameters() if self.trainable else ()
        return HandleState(
            weights={aliases[0]: self._piece(tensor) for aliases, tensor in self._carried()},
            trained=[name for name, parameter in parameters if parameter.requires_grad],
            optimizers=self._optimizers,
            writer=self._writer,
            ranks=self._every,
        )

    def _carried(self) -> list[tuple[list[str], Tensor]]:
        return named_once(self.model, self._carried_names())

    def _piece(self, tensor: Tensor) -> TensorPiece:
        return TensorPiece.whole(tensor.detach())

    @property
    def _writer(self) -> tuple[int, int] | None:
        """Return (index, number) of this rank among the ranks that write, or None if it does not write."""
        return (0, 1) if self._every.rank == 0 else None

    def save_state(self, folder: Path) -> None:
        """Write weights, optimizer states and version into `folder`, which all ranks must be able to read and write.

        Every rank must call this, writes its part, and waits for the others. Files of the same ranks are replaced.
        Raises OSError or SafetensorError if a file cannot be written, and LawError if the model is asleep or is the
        frozen base of another handle.
        """
        self._state().save(folder, self.version)

    def load_state(self, folder: Path) -> None:
        """Load the weights, optimizer states and version that `save_state` wrote, possibly on another number of ranks.

        Raises DataError for files that cannot be read or contain NaN or infinite numbers (weights may then be loaded in
        part), and LawError for another model's state, or if this model is asleep or the frozen base of another handle.
        """
        self.version = self._state().load(folder)

    def _refuse_asleep(self) -> None:
        if self.asleep:
            raise LawError("this model is asleep: its weights have left the device", hint="wake it first")

    @property
    def asleep(self) -> bool:
        """Return whether the model sleeps: whether `sleep` was called, and `wake` was not called since."""
        return self._asleep[0]

    def sleep(self) -> None:
        """Drop the gradients, and move weights and optimizer states to host memory; on a CPU, nothing is moved.

        Until `wake`, passes, steps, and access to weights or state raise LawError. Has no effect if the model is
        asleep.
        """
        if not self.asleep:
            self._optimizers.begin()
            self._move("cpu")
            self._asleep[0] = True

    def wake(self) -> None:
        """Move weights and optimizer states back to where they were before `sleep`.

        Has no effect if the model is not asleep.
        """
        if self.asleep:
            self._move(str(self._home))
            self._asleep[0] = False

    @abstractmethod
    def _move(self, device: str) -> None:
        """Move the weights and the optimizer states to `device`, unless the model's original device is a CPU."""


def refuse_settings(running: RoleSettings, engine: str) -> None:
    """Raise LawError if the engine named `engine` does not support a setting in `running`, or the setting's value.

    Settings with their default values are always accepted.
    """
    supported, default = ENGINES[engine].supported, RoleSettings()
    settings = supported.settings if supported is not None else {}
    for name, value in running:
        if settings is None or value == getattr(default, name):
            continue
        values = settings.get(name)
        if values is None or (values and value not in values):
            hint = f"it takes {', '.join(map(_shown, values))}" if values else f"it supports {', '.join(settings)}"
            raise LawError(f"the engine `{engine}` does not run with {name}={_shown(value)}", hint=hint)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return "+".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def named_once(model: Any, names: Iterable[str]) -> list[tuple[list[str], Tensor]]:
    """Return (names, tensor) for each parameter or buffer with at least one of `names`; tied weights are one tensor.

    Each pair has those of the tensor's names that are in `names`. Parameters come before buffers, both in the model's
    order, which is the same in every process and for every layout.
    """
    selected, tensors = {*names}, dict[int, tuple[list[str], "Tensor"]]()
    for name, tensor in (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)):
        if name in selected:
            tensors.setdefault(id(tensor), ([], tensor))[0].append(name)
    return list(tensors.values())
