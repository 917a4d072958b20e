"""The model that an executor hosts, behind four verbs, and the small data that go in and out of them.

A handle offers some of `token_stats`, `sample`, `step`, `weights`/`load`, and lists them in `verbs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from flowgraph.errors import LawError
from flowgraph.language.hand_out import HandOut, Result, RowsOf
from flowgraph.language.keys import Key

if TYPE_CHECKING:
    from torch import Tensor

    from flowgraph.language.values import Value

Verb = Literal["token_stats", "sample", "step", "weights"]


@dataclass(frozen=True)
class Truncation:
    """The tokens that a sample may consist of, by their probabilities at the sampling temperature; all by default.

    Three rules, in this order, each on what the one before leaves, with probabilities that again add up to 1: the
    `top_k` likeliest tokens (0: all); the likeliest tokens until their probabilities reach `top_p`; the tokens at least
    `min_p` times as likely as the likeliest. Tokens as likely as the last one that a rule keeps are kept too.
    """

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def changed(self) -> tuple[tuple[str, float], ...]:
        """Return the rules that differ from their defaults, and so leave tokens out, as (name, value).

        >>> Truncation(top_p=0.9).changed(), Truncation().changed()
        ((('top_p', 0.9),), ())
        """
        pairs = ((rule.name, getattr(self, rule.name), rule.default) for rule in fields(self))
        return tuple((name, value) for name, value, default in pairs if value != default)


WHOLE_VOCABULARY = Truncation()


@dataclass(frozen=True)
class Stopping:
    """The texts and token ids that end a response, which contains them, besides the model's end tokens.

    With `ignore_eos`, the model's end tokens do not end a response.
    """

    texts: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True)
class ResponseRows:
    """Responses to read: `context` is B lists of token ids (`pyarrow.ListArray`), `tokens` [B, T] int64, `lengths` [B].

    `temperature` divides the logits, as it did when the responses were sampled; 0 (greedy) reads as 1. `truncation`
    leaves out tokens, as it did in sampling, but never a token of the response.
    """

    context: Any
    tokens: Tensor
    lengths: Tensor
    temperature: float = 1.0
    truncation: Truncation = WHOLE_VOCABULARY


@dataclass(frozen=True)
class TokenStats:
    """The statistics of one forward pass for each response token: [B, T], zero beyond a row's length; None if unasked.

    `logprobs` and `entropy` are in nats; `square_probs` is the sum over the vocabulary of squared probabilities;
    `values` is the output of a value head before each token, and `score` [B] that of a classifier for each row.
    """

    logprobs: Tensor | None = None
    entropy: Tensor | None = None
    square_probs: Tensor | None = None
    values: Tensor | None = None
    score: Tensor | None = None


COLDEST = 0.01
"""The lowest temperature that is not greedy: vLLM samples no colder, and gradients are divided by the temperature."""


@dataclass(frozen=True)
class SampleRequest:
    """A request for one sample: the context that it continues, and the key of its random numbers.

    `repetition_penalty` divides the positive logits of tokens that the context or the response has already, and
    multiplies the negative ones, before the temperature. A sample that is `early` is returned when its own batch of
    an engine ends, also while others that were requested with it are waiting. `turn` is the turn of a conversation,
    from 0: each turn of a sample has random numbers of its own.
    """

    context: tuple[int, ...]
    prompt: int
    sample: int
    max_tokens: int
    temperature: float
    key: Key
    truncation: Truncation = WHOLE_VOCABULARY
    repetition_penalty: float = 1.0
    stopping: Stopping = Stopping()
    early: bool = False
    turn: int = 0

    @property
    def stream(self) -> tuple[int, ...]:
        """Return the numbers that, with `key`, name the random numbers of the sample: prompt, sample, and later turns.

        >>> SampleRequest((1,), 3, 0, 8, 1.0, Key()).stream, SampleRequest((1,), 3, 0, 8, 1.0, Key(), turn=2).stream
        ((3, 0), (3, 0, 2))
        """
        return (self.prompt, self.sample, self.turn) if self.turn else (self.prompt, self.sample)

    def reshaped(self) -> dict[str, float]:
        """Return the settings, by name, that change the distribution of tokens: `repetition_penalty` and truncation.

        The names of truncation are `top_k`, `top_p` and `min_p`. Settings at their defaults are left out, and so is the
        truncation of a greedy sample (temperature 0), which it cannot change.

        >>> SampleRequest((1,), 0, 0, 8, 0.0, Key(), Truncation(top_k=5), 1.1).reshaped()
        {'repetition_penalty': 1.1}
        """
        penalty = {"repetition_penalty": self.repetition_penalty} if self.repetition_penalty != 1 else {}
        return dict(self.truncation.changed() if self.temperature else ()) | penalty

    def ends(self, model_ends: Collection[int]) -> frozenset[int]:
        """Return the token ids that end the response; `model_ends`, the model's own, are ignored with `ignore_eos`."""
        return frozenset(self.stopping.ids).union(() if self.stopping.ignore_eos else model_ends)


@dataclass(frozen=True)
class Completion:
    """One sample: token ids, their log-probs, whether an end token or stop ended it, and (first token, version) spans.

    Log-probs are of the distribution that a token was drawn from: after penalty, temperature and truncation.
    """

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
    """The loss of one optimizer step, and the norm of its gradient before clipping."""

    loss: float
    grad_norm: float


WHOLE = -1
"""The row of a fault that concerns a whole micro-batch."""
TOLD_AT_MOST = 3

FaultyRow = tuple[int, int, int]
"""A row as (rank, micro-batch, row), each from 0."""


class NotFinite(LawError):
    """A step that was refused because its loss or gradient is not finite; `rows` are the rows that caused it.

    A row with index `WHOLE` means a whole micro-batch: its loss is not finite, although the values of its rows are.
    If `rows` is empty, only the model's backward pass gave values that are not finite.
    """

    rows: tuple[FaultyRow, ...] = ()

    @classmethod
    def of(cls, report: StepReport, rows: Sequence[FaultyRow]) -> NotFinite:
        """Return the error for a step with this loss and gradient norm; its text names the first 3 faulty `rows`."""
        part = "loss" if math.isfinite(report.grad_norm) else "gradient"
        what = f"the {part} is not finite (norm {report.grad_norm}, loss {report.loss})"
        notes = list[str]()
        for rank, batch, row in rows[:TOLD_AT_MOST]:
            notes.append(f"by {'' if row == WHOLE else f'row {row} of '}micro-batch {batch} on rank {rank}")
        notes += [f"and {len(rows) - TOLD_AT_MOST} more"] if len(rows) > TOLD_AT_MOST else []
        hint = "a log-prob of -inf, a learning rate too high, or an advantage that is not finite"
        error = cls(f"{what}; this step did not change the weights", notes=notes, hint=hint)
        error.rows = tuple(rows)
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        return *super().__reduce__(), {"rows": self.rows}


class Ranks(Protocol):
    """The data-parallel ranks that run one node together, each on rows of its own, seen from one of them.

    Every rank makes the same calls in the same order, or the others wait.
    """

    @property
    def rank(self) -> int:
        """Return the index of this rank, from 0."""
        ...

    @property
    def count(self) -> int:
        """Return the number of ranks."""
        ...

    def total(self, numbers: Tensor) -> Tensor:
        """Return the sum over ranks of `numbers` [n] float64, entry by entry. All ranks must call it."""
        ...

    def union(self, numbers: Tensor) -> Tensor:
        """Return the `numbers` [n] int64 of all ranks in the order of ranks; n may differ. All ranks must call it."""
        ...


class SingleRank:
    """The `Ranks` of a node that runs on one rank."""

    rank, count = 0, 1

    def total(self, numbers: Tensor) -> Tensor:
        """Return `numbers` unchanged, which is the sum over one rank."""
        return numbers

    def union(self, numbers: Tensor) -> Tensor:
        """Return `numbers` unchanged, which is all that one rank has."""
        return numbers


class Tokenizer(Protocol):
    """Text to token ids and back, with the tokenizer and the chat template of the model."""

    def encode(self, messages: Sequence[Mapping[str, str]], answer: str | None = None) -> tuple[int, ...]:
        """Return the token ids of a chat up to the start of the model's turn, or with `answer` as this turn."""
        ...

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Return the text of a response, with its special tokens only if `special`."""
        ...

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), *, answers: bool = True
    ) -> str:
        """Return the text of a chat by the model's template, which gets the schemas of `tools`.

        If `answers`, the text ends where the model's turn starts. An error of the template is raised.
        """
        ...

    def tokens_of(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a rendered text, to which nothing is added."""
        ...


class Handle(Protocol):
    """A hosted model. `version` is the number of its updates."""

    version: int

    @property
    def verbs(self) -> frozenset[Verb]:
        """Return the verbs that this handle supports."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        ...

    @property
    def ranks(self) -> Ranks:
        """Return the ranks that run this model's nodes together."""
        ...

    @property
    def packs(self) -> bool:
        """Return whether forward passes pack rows into one sequence, a shared context once, instead of padding rows."""
        ...

    @property
    def micro_batch_tokens(self) -> int | None:
        """Return the maximum number of tokens in a micro-batch of an update; None if the plan does not set it."""
        ...

    def token_stats(self, rows: ResponseRows, wanted: Sequence[str]) -> TokenStats:
        """Run a forward pass over `rows`, and return its statistics; `wanted` names the fields that are computed.

        They have gradients if torch records them.
        """
        ...

    async def sample(self, request: SampleRequest) -> Completion:
        """Sample the response to one request and return it; requests open at the same time are decoded together."""
        ...

    def step(self, losses: Sequence[Callable[[], Tensor]], optimizer: Optimizer) -> StepReport:
        """Take an optimizer step on the sum of `losses`, one for each micro-batch; return its loss and gradient norm.

        Raises `NotFinite` and leaves the weights unchanged if loss or gradient is not finite. All ranks must call it.
        """
        ...

    def weights(self) -> dict[str, Tensor]:
        """Return a copy of the full weights by tensor name. All ranks of a sharded model must call it."""
        ...

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the model's weights by the tensors in `weights`, by name; `version` does not change."""
        ...


def gather(handle: Handle, requests: Sequence[SampleRequest], rows: RowsOf | None = None) -> list[Completion]:
    """Send all requests to a handle at once, and return their completions in the order of the requests.

    Blocks until all completions are there, also inside a running event loop, where the requests run in another thread.
    Raises the first error of a request.

    A node with the trait `hands_out` passes `rows`, so that other nodes can read the responses to some prompts while
    the rest are being sampled. `rows` is a function of indices into `requests`, in ascending order, and their
    completions, which returns the node's result for these alone. The plan decides whether responses are read early. If
    so, `rows` is called with all responses to one or more prompts as soon as these have finished, and a second call of
    `gather` with `rows` in one run of the node's body raises LawError. If not, `rows` is never called.
    """

    def sample(place: int, early: bool) -> Coroutine[Any, Any, Completion]:
        request = requests[place]
        return handle.sample(replace(request, early=True) if early else request)

    return run_together(handle, [request.prompt for request in requests], sample, rows)


def run_together(
    handle: Handle,
    prompts: Sequence[int],
    start: Callable[[int, bool], Coroutine[Any, Any, Result]],
    rows: Callable[[Sequence[int], Sequence[Result]], Value] | None = None,
) -> list[Result]:
    """Run one coroutine for each entry of `prompts` at once, and return their results in this order.

    `start` makes the coroutine of an index, which samples from `handle`; its second argument says whether the requests
    must be `early`. `prompts` are the numbers of the prompts that the coroutines answer, and `rows` is that of
    `gather`, with results in place of completions. All else is as in `gather`, too.
    """
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    hand_out: HandOut | None = getattr(handle, "hand_out", None) if rows is not None else None
    if hand_out is not None:
        hand_out.begin(prompts)

    async def one(place: int) -> Result:
        result = await start(place, hand_out is not None)
        if hand_out is not None and rows is not None:
            hand_out.ended(place, result, rows)
        return result

    async def ask() -> list[Result]:
        return list(await asyncio.gather(*map(one, range(len(prompts)))))

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(ask())
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(ask())).result()
