"""The reference executor: everything in this process, on torch and transformers, all four verbs.

Every other executor, and every pass, is tested against it on the same flow.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flowgraph.cluster.plan import RoleSettings
from flowgraph.engines.forward_pass.decode import decode
from flowgraph.engines.forward_pass.forward import cut, forward_stats, join_stats
from flowgraph.engines.forward_pass.packing_probe import choose
from flowgraph.engines.model_state.handle_rules import SleepState, exchanged, heed, named_once, reading, verbs_of
from flowgraph.engines.model_state.handle_state import HandleState
from flowgraph.engines.model_state.optimizers import Optimizers, descend
from flowgraph.engines.model_state.sharded_checkpoint import TensorPiece
from flowgraph.errors import LawError, ModelError
from flowgraph.language.handle import (
    Completion,
    Optimizer,
    Ranks,
    ResponseRows,
    SampleRequest,
    SingleRank,
    StepReport,
    TokenStats,
    Verb,
)
from flowgraph.models.heads import head_of
from flowgraph.models.lora import adapted, set_trainable

if TYPE_CHECKING:
    from torch import Tensor


class ChatTokenizer:
    """A transformers tokenizer, seen as text in and out."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, messages: Sequence[Mapping[str, str]], answer: str | None = None) -> tuple[int, ...]:
        """Give the token ids of a chat by the model's template, up to where it answers, or with the answer to its end.

        Without a template they are those of the contents, a line each, and after an answer the end token.
        """
        chat = [*messages] if answer is None else [*messages, {"role": "assistant", "content": answer}]
        if self._tokenizer.chat_template:
            rendered = self._tokenizer.apply_chat_template(chat, add_generation_prompt=answer is None, tokenize=False)
            return tuple(self._tokenizer.encode(rendered, add_special_tokens=False, verbose=False))
        ids = tuple(self._tokenizer.encode("\n".join(message["content"] for message in chat), verbose=False))
        return ids if answer is None else (*ids, self._tokenizer.eos_token_id)

    def decode(self, tokens: Sequence[int]) -> str:
        """Give the text of a response, special tokens left out."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text


@dataclass(eq=False)
class LocalModel:
    """A transformers model in this process. `trainable` adds `step`; a frozen one keeps no gradients.

    Of a model with adapters only these are trained, and a head of numbers; its weights are then these alone.
    `sample_rows` bounds the samples decoded side by side, `forward_tokens` the tokens of a pass without gradients.
    `ranks` are those that hold a copy of it each, for nodes that run on rows of their own.
    """

    model: Any
    raw_tokenizer: Any
    trainable: bool = False
    sample_rows: int = 256
    forward_tokens: int = 16384
    version: int = 0
    ranks: Ranks = field(default_factory=SingleRank)
    running: RoleSettings = field(default=RoleSettings(), kw_only=True)
    _under: bool = False
    _waiting: list[tuple[SampleRequest, asyncio.Future[Completion]]] = field(
        default_factory=list[tuple[SampleRequest, "asyncio.Future[Completion]"]]
    )

    def __post_init__(self) -> None:
        heed(self.running, "local")
        self._rest, self._home = SleepState(), next(self.model.parameters()).device
        set_trainable(self.model.eval(), self.trainable)
        self.tokenizer = ChatTokenizer(self.raw_tokenizer)
        self._optimizers = Optimizers([each for each in self.model.parameters() if each.requires_grad])
        named = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        listed = named if isinstance(named, list) else [named]
        self.ends = frozenset(int(each) for each in [*listed, self.raw_tokenizer.eos_token_id] if each is not None)

    @property
    def verbs(self) -> frozenset[Verb]:
        """Give the verbs this handle offers."""
        return verbs_of(self.model, self.trainable, self._under, samples=True)

    @property
    def packs(self) -> bool:
        """Say whether passes read rows one after another, and not padded."""
        return choose(self.model) is not None

    @property
    def micro_batch_tokens(self) -> int | None:
        """Give how many tokens the plan lets through at once, if it says so."""
        return self.running.micro_batch_tokens

    def without_adapters(self) -> LocalModel:
        """Give a frozen handle on what the adapters stand on: the same memory, read with the adapters off."""
        under = copy.copy(self)
        under.trainable, under.version, under._under, under._waiting = False, 0, True, []
        return under

    def token_stats(self, rows: ResponseRows, wanted: Sequence[str]) -> TokenStats:
        """Run the forward pass; without gradients in parts of at most `forward_tokens` tokens."""
        self._rest.refuse()
        if torch.is_grad_enabled() and self.trainable:
            return self._optimizers.see(forward_stats(self.model, rows, wanted))
        cuts = cut(rows, self.forward_tokens, padded=choose(self.model) is None)
        with reading(self.model, self._under):
            parts = [forward_stats(self.model, part, wanted) for part in cuts]
        return join_stats(parts, wanted)

    async def sample(self, request: SampleRequest) -> Completion:
        """Draw one sample; requests made in one turn of the event loop are decoded together.

        Raises LawError if the model's head gives no logits.
        """
        self._rest.refuse()
        if head_of(self.model) != "tokens":
            raise LawError(f"a model with a head of {head_of(self.model)} draws no samples: it gives no logits")
        if not request.context:
            raise ModelError.no_prompt()
        limit = getattr(self.model.config, "max_position_embeddings", None)
        if limit is not None and len(request.context) + request.max_tokens > limit:
            raise ModelError.too_long(len(request.context), request.max_tokens, limit)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        self._waiting.append((request, future))
        if len(self._waiting) == 1:
            loop.call_soon(self._drain)
        return await future

    def _drain(self) -> None:
        waiting, self._waiting = self._waiting, []
        for start in range(0, len(waiting), self.sample_rows):
            batch = waiting[start : start + self.sample_rows]
            try:
                with reading(self.model, self._under):
                    done = decode(self.model, [request for request, _ in batch], self.ends, self.version)
            except Exception as error:  # noqa: BLE001 - whoever waits for a sample gets what went wrong
                for _, future in waiting[start:]:
                    if not future.done():
                        future.set_exception(error)
                return
            for (_, future), completion in zip(batch, done, strict=True):
                if not future.done():  # else cancelled
                    future.set_result(completion)

    def step(self, losses: Sequence[Callable[[], Tensor]], optimizer: Optimizer) -> StepReport:
        """Add up gradients over micro-batches, clip, and step.

        Raises `NotFinite` for a loss or a gradient that is not finite, and leaves the weights as they were.
        """
        self._rest.refuse()
        if not self.trainable:
            raise LawError("this model is frozen: nothing can update it")
        self._optimizers.begin()
        return self._optimizers.step(descend(losses, self._optimizers.at), optimizer)

    def stream(self) -> Iterator[tuple[str, Tensor]]:
        """Give a copy of the weights one after another; tied names come together, with one tensor."""
        self._rest.refuse()
        return self._copied(exchanged(self.model, self._under))

    def weights(self) -> dict[str, Tensor]:
        """Give a copy of the weights by name."""
        return dict(self.stream())

    def whole(self) -> dict[str, Tensor]:
        """Give a copy of all weights by name, those under adapters as well."""
        self._rest.refuse()
        return dict(self._copied(self.model.state_dict()))

    def _copied(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        for aliases, tensor in named_once(self.model, names):
            copied = tensor.detach().clone()
            yield from ((name, copied) for name in aliases)

    def save(self, folder: Path) -> None:
        """Write the weights and tokenizer as a folder that transformers loads."""
        from flowgraph.models.saving import save

        self._rest.refuse()
        if self.ranks.rank == 0:  # all have the same
            save(self.model, self.raw_tokenizer, folder)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the weights; names and shapes must be the same."""
        self._rest.refuse()
        names = exchanged(self.model, self._under)
        wrong = sorted(weights.keys() ^ names) if adapted(self.model) else []
        if wrong:
            raise LawError(f"the weights do not fit the model: {', '.join(wrong[:3])}")
        self.model.load_state_dict(dict(weights), strict=not adapted(self.model))

    # --------------------------------------------------------------------------------------- state and sleep

    def save_state(self, folder: Path) -> None:
        """Write weights, what optimizers keep, and the version; of several ranks the first does, all have the same."""
        self._kept().save(folder, self.version)

    def load_state(self, folder: Path) -> None:
        """Take what `save_state` of any layout wrote; raise DataError or LawError for what is not of this model."""
        self.version = self._kept().load(folder)

    def _kept(self) -> HandleState:
        self._rest.refuse()
        own = named_once(self.model, exchanged(self.model, self._under))
        return HandleState(
            {aliases[0]: TensorPiece.whole(tensor.detach()) for aliases, tensor in own},
            [name for name, each in self.model.named_parameters() if each.requires_grad] if self.trainable else [],
            self._optimizers,
            (0, 1) if self.ranks.rank == 0 else None,
            self.ranks,
        )

    @property
    def asleep(self) -> bool:
        """Say whether the model's memory is away from its device."""
        return self._rest.asleep

    def sleep(self) -> None:
        """Move the model to host memory, until `wake`; all but that is refused meanwhile."""
        if not self.asleep:
            self._optimizers.begin()
            self._move("cpu")
            self._rest.asleep = True

    def wake(self) -> None:
        """Move the model back to its device."""
        if self.asleep:
            self._move(str(self._home))
            self._rest.asleep = False

    def _move(self, device: str) -> None:
        """Move the parameters, which stay the same objects, and what the optimizers keep of them."""
        if self._home.type == "cpu":
            return
        self.model.to(device)
        self._optimizers.move(device)
        if device == "cpu":
            torch.cuda.empty_cache()  # other processes of the device can have it
