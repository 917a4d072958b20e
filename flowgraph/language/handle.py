"""What an executor hosts: a model behind four verbs, and the small data that go in and out of them.

A handle offers some of `token_stats`, `sample`, `step`, `weights`/`load`, and says which in `verbs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from flowgraph.errors import LawError
from flowgraph.language.keys import Key

if TYPE_CHECKING:
    from torch import Tensor

Verb = Literal["token_stats", "sample", "step", "weights"]


@dataclass(frozen=True)
class ResponseRows:
    """Responses to read: `context` is B lists of token ids (`pyarrow.ListArray`), `tokens` [B, T] int64, `lengths` [B].

    `temperature` divides the logits, as it did when the responses were sampled; 0 (greedy) reads as 1.
    """

    context: Any
    tokens: Tensor
    lengths: Tensor
    temperature: float = 1.0


@dataclass(frozen=True)
class TokenStats:
    """What one forward pass tells of each response token: [B, T] each, zero beyond a row's length.

    `square_probs` is the sum over the vocabulary of squared probabilities, `values` what a value head gives before each
    token, and `score` [B] what a classifier gives for each row.
    """

    logprobs: Tensor | None = None
    entropy: Tensor | None = None
    square_probs: Tensor | None = None
    values: Tensor | None = None
    score: Tensor | None = None


@dataclass(frozen=True)
class SampleRequest:
    """One sample to draw: what it continues, and the name of its random numbers."""

    context: tuple[int, ...]
    prompt: int
    sample: int
    max_tokens: int
    temperature: float
    key: Key


@dataclass(frozen=True)
class Completion:
    """One sample drawn: token ids, their log-probs, whether it ended by itself, and (first token, version) spans."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finished: bool
    versions: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Optimizer:
    """How one step changes the weights; `max_grad_norm` 0 leaves gradients unclipped."""

    name: Literal["adamw", "sgd"] = "adamw"
    lr: float = 1e-6
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0


@dataclass(frozen=True)
class StepReport:
    """What one optimizer step tells: the loss it descended and the norm of its gradient before clipping."""

    loss: float
    grad_norm: float


WHOLE = -1
"""In place of a row at fault: all of a micro-batch."""
TOLD_AT_MOST = 3


class NotFinite(LawError):
    """A step that was refused. `rows` are those at fault as (rank, micro-batch, row), each place from 0.

    Row -1 is the whole micro-batch: its loss is not finite, but nothing that was read of its rows says why. No rows at
    all: the loss is finite, and so is its gradient, until the model's own backward pass.
    """

    rows: tuple[tuple[int, int, int], ...] = ()

    @classmethod
    def of(cls, told: StepReport, rows: Sequence[tuple[int, int, int]]) -> NotFinite:
        """Say what was measured, and which rows are at fault."""
        part = "loss" if math.isfinite(told.grad_norm) else "gradient"
        what = f"the {part} is not finite (norm {told.grad_norm}, loss {told.loss})"
        more = len(rows) - TOLD_AT_MOST
        notes = [f"by {_said(*each)}" for each in rows[:TOLD_AT_MOST]] + ([f"and {more} more"] if more > 0 else [])
        hint = "a log-prob of -inf, a learning rate too high, or an advantage that is not finite"
        error = cls(f"{what}; this step left the weights as they were", notes=notes, hint=hint)
        error.rows = tuple(rows)
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.what, self.where, self.notes, self.hint, self.rows)


def _rebuilt(what: str, where: str, notes: Sequence[str], hint: str, rows: tuple[tuple[int, int, int], ...]) -> Any:
    error = NotFinite(what, where=where, notes=notes, hint=hint)
    error.rows = rows
    return error


def _said(rank: int, part: int, row: int) -> str:
    where = f"micro-batch {part} on rank {rank}"
    return where if row == WHOLE else f"row {row} of {where}"


class Ranks(Protocol):
    """The data-parallel ranks that run one node together, each on rows of its own, seen from one of them.

    Every rank makes the same calls in the same order, or the others wait.
    """

    @property
    def rank(self) -> int:
        """Give the place of this rank, from 0."""
        ...

    @property
    def count(self) -> int:
        """Give how many ranks there are."""
        ...

    def total(self, numbers: Tensor) -> Tensor:
        """Add up each rank's `numbers` [n] float64, entry by entry."""
        ...

    def union(self, numbers: Tensor) -> Tensor:
        """Join each rank's `numbers` [n] int64, of which ranks may have different many, in order of rank."""
        ...


class SingleRank:
    """One rank by itself."""

    rank, count = 0, 1

    def total(self, numbers: Tensor) -> Tensor:
        """Give the numbers."""
        return numbers

    def union(self, numbers: Tensor) -> Tensor:
        """Give the numbers."""
        return numbers


class Tokenizer(Protocol):
    """Text to token ids and back, as the model was trained with."""

    def encode(self, messages: Sequence[Mapping[str, str]], answer: str | None = None) -> tuple[int, ...]:
        """Give the token ids of a chat, up to where the model answers; with an answer, of the whole chat to its end."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Give the text of a response, special tokens left out."""
        ...


class Handle(Protocol):
    """A hosted model. `version` counts its updates; `verbs` says what it can be asked."""

    version: int

    @property
    def verbs(self) -> frozenset[Verb]:
        """Give the verbs this handle offers."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """Give the model's tokenizer."""
        ...

    @property
    def ranks(self) -> Ranks:
        """Give the ranks that this model's nodes run on together."""
        ...

    @property
    def packs(self) -> bool:
        """Say whether passes read rows one after another, a context that several share once, and not padded."""
        ...

    @property
    def micro_batch_tokens(self) -> int | None:
        """Give the most tokens of a pass with gradients that the plan allows, if it says."""
        ...

    def token_stats(self, rows: ResponseRows, wanted: Sequence[str]) -> TokenStats:
        """Run one forward pass over `rows` and give the statistics `wanted`, with gradients if torch records them."""
        ...

    async def sample(self, request: SampleRequest) -> Completion:
        """Draw one sample; requests made together are decoded together."""
        ...

    def step(self, losses: Sequence[Callable[[], Tensor]], optimizer: Optimizer) -> StepReport:
        """Add up the gradients of `losses`, one micro-batch each, and take one optimizer step.

        Raises `NotFinite` and leaves the weights untouched when the loss or the gradient is not finite.
        """
        ...

    def weights(self) -> dict[str, Tensor]:
        """Give a copy of the weights by name."""
        ...

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the weights."""
        ...


def gather(handle: Handle, requests: Sequence[SampleRequest]) -> list[Completion]:
    """Ask for all samples at once and wait for them; works inside a running event loop too (a notebook's)."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    async def ask() -> list[Completion]:
        return list(await asyncio.gather(*(handle.sample(request) for request in requests)))

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(ask())
    with ThreadPoolExecutor(1) as other:
        return other.submit(lambda: asyncio.run(ask())).result()
