"""The reference executor: all four verbs in this process, on torch and transformers.

Every other executor, and every pass, is tested against it on the same flow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self
from weakref import WeakKeyDictionary

import torch

from flowgraph.engines.forward_pass.decode import decode
from flowgraph.engines.forward_pass.turns import Turns
from flowgraph.engines.model_state.optimizers import Optimizers, run_backward
from flowgraph.engines.model_state.torch_handle import TorchHandle
from flowgraph.errors import LawError
from flowgraph.language.handle import Completion, Ranks, SampleRequest, SingleRank
from flowgraph.models.heads import head_of
from flowgraph.models.lora import has_adapters
from flowgraph.models.tokenizing import cut_at_stop, end_tokens, refuse_request, stop_length

if TYPE_CHECKING:
    from torch import Tensor

Waiting = list[tuple[SampleRequest, "asyncio.Future[Completion]"]]


@dataclass(eq=False)
class LocalModel(TorchHandle):
    """A model in this process; each rank in `ranks` holds a full copy of the model, and computes different rows."""

    engine = "local"
    generates = True
    lockstep = True  # conversations wait for each other, so that batches, and their rounding, repeat

    ranks: Ranks = field(default_factory=SingleRank)
    _waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, Waiting] = field(
        default_factory=WeakKeyDictionary, init=False
    )
    _turns: Turns = field(default_factory=Turns, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._optimizers = Optimizers([parameter for parameter in self.model.parameters() if parameter.requires_grad])
        eos = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        self.ends = end_tokens(eos, self.raw_tokenizer)

    @property
    def _every(self) -> Ranks:
        return self.ranks

    def without_adapters(self) -> Self:
        """Return a frozen handle at version 0 on the model without its adapters; both share one copy of the weights."""
        base = super().without_adapters()
        base._waiting = WeakKeyDictionary()
        return base

    async def sample(self, request: SampleRequest) -> Completion:
        """Generate one sample; requests made in one turn of the event loop are decoded in batches of `sample_rows`.

        The response is cut after the first text or token id of `request.stopping` in it. Raises LawError if the model
        has a value or score head or is asleep, if its logits are NaN or infinite, or after `abort`. Raises ModelError
        for a request without a context, with more tokens than the model has positions, or with a stop token id that the
        model does not have.
        """
        self._refuse_asleep()
        if head_of(self.model) != "tokens":
            raise LawError(f"a model with a head of {head_of(self.model)} cannot generate samples: it gives no logits")
        vocabulary = self.model.config.get_text_config().vocab_size
        refuse_request(request, getattr(self.model.config, "max_position_embeddings", None), vocabulary)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        waiting = self._waiting.setdefault(loop, [])
        waiting.append((request, future))
        if len(waiting) == 1:
            loop.call_soon(self._drain, loop)
        return await future

    def _drain(self, loop: asyncio.AbstractEventLoop, waiting: Waiting | None = None) -> None:
        waiting = self._waiting.pop(loop) if waiting is None else waiting
        for start in range(0, len(waiting), self.sample_rows):
            if start and waiting[0][0].early:  # whoever waits for the batch before goes on first
                loop.call_soon(self._drain, loop, waiting[start:])
                return
            batch = waiting[start : start + self.sample_rows]
            try:
                with self._reading():
                    requests = [request for request, _ in batch]
                    completions = decode(self.model, requests, self.ends, self.version, self._stopped, self._turn)
            except Exception as error:  # noqa: BLE001 - every caller that waits for a sample gets it
                for _, future in waiting[start:]:
                    if not future.done():
                        future.set_exception(error)
                return
            for (request, future), completion in zip(batch, completions, strict=True):
                if not future.done():  # else cancelled
                    future.set_result(cut_at_stop(completion, request.stopping, self.raw_tokenizer))

    @contextmanager
    def _turn(self) -> Generator[int]:
        with self._turns:
            yield self.version

    def _stopped(self, request: SampleRequest, tokens: Sequence[int]) -> bool:
        return stop_length(tokens, request.stopping, self.raw_tokenizer) is not None

    def _descend(self, losses: Sequence[Callable[[], Tensor]]) -> list[float]:
        return run_backward(losses, self._optimizers.at)

    def save(self, folder: Path) -> None:
        """Write weights and tokenizer to a new folder that transformers can load; only rank 0 writes.

        Adapters are merged into the weights. Raises LawError if the model is asleep, and ModelError on rank 0 if the
        folder exists or cannot be written.
        """
        from flowgraph.models.saving import save

        self._refuse_asleep()
        if self.ranks.rank == 0:  # all have the same
            save(self.model, self.raw_tokenizer, folder)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the model's weights by `weights`; with adapters, replace only the adapters and a value or score head.

        Raises LawError if the model is asleep or is the frozen base of another handle, or if a model with adapters gets
        other names. torch raises RuntimeError for other shapes, and for other names of a model without adapters.
        """
        self._refuse_asleep()
        names = self._carried_names()
        wrong = sorted(weights.keys() ^ names) if has_adapters(self.model) else []
        if wrong:
            raise LawError(f"the weights do not fit the model: {', '.join(wrong[:3])}")
        self.model.load_state_dict(dict(weights), strict=not has_adapters(self.model))

    def take(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Replace the model's weights by `weights` of version `version`, between two tokens of samples under way.

        Samples of other threads continue with the new weights; their caches are computed again. Raises the errors of
        `load`, and LawError after `abort`; `version` is then unchanged.
        """
        with self._turns:
            self.load(weights)
            self.version = version

    def abort(self) -> None:
        """Make the samples that other threads are generating, and all later ones, raise LawError.

        `take` raises it afterwards, too.
        """
        self._turns.close()

    def _move(self, device: str) -> None:
        if self._home.type == "cpu":
            return
        self.model.to(device)
        self._optimizers.move(device)
        if device == "cpu":
            torch.cuda.empty_cache()  # for other processes of the device
