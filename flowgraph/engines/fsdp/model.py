"""A model sharded over ranks with FSDP2 (`torch.distributed.fsdp.fully_shard`): forward passes, steps and weights.

Every rank makes the same calls in the same order, each on rows of its own; the result is that of `LocalModel` on all
rows. Not here: sampling, which runs on gathered plain weights, because ranks whose rows end early hang the others.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from flowgraph.cluster.plan import RoleSettings
from flowgraph.engines.forward_pass.forward import cut, forward_stats, join_stats
from flowgraph.engines.forward_pass.packing_probe import choose
from flowgraph.engines.forward_pass.sequence_parallel import SequenceRanks
from flowgraph.engines.fsdp.ranks import ProcessRanks
from flowgraph.engines.fsdp.sharding import EVERYTHING, Grid, accumulates, forget, refuse_offload, shard, whole
from flowgraph.engines.local.model import ChatTokenizer
from flowgraph.engines.model_state.handle_rules import (
    SleepState,
    device_of,
    exchanged,
    heed,
    named_once,
    reading,
    verbs_of,
)
from flowgraph.engines.model_state.handle_state import HandleState
from flowgraph.engines.model_state.optimizers import Optimizers, descend
from flowgraph.engines.model_state.sharded_checkpoint import TensorPiece
from flowgraph.errors import LawError
from flowgraph.language.handle import Completion, Optimizer, ResponseRows, SampleRequest, StepReport, TokenStats, Verb
from flowgraph.models.lora import set_trainable

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(eq=False)
class FsdpModel:
    """A transformers model of which each of `ranks` holds a share of every tensor. `trainable` adds `step`.

    All ranks give the same plain model, each a copy of its own, which is sharded in place. `forward_tokens` bounds the
    tokens of a pass without gradients; `sample_rows` is for engines that sample. Of a model with adapters only these
    are trained, and a head of numbers; its weights are then these alone.

    The ranks hold `replicas` whole copies, each on adjacent ranks; `sequence` adjacent ranks share the same rows, and
    read a part of their tokens each. Once made, `ranks` are those with rows of their own: one of each such group.
    """

    model: Any
    raw_tokenizer: Any
    trainable: bool = False
    sample_rows: int = 256
    forward_tokens: int = 16384
    version: int = 0
    ranks: ProcessRanks = field(kw_only=True)
    running: RoleSettings = field(default=RoleSettings(), kw_only=True)
    replicas: int = field(default=1, kw_only=True)
    sequence: int = field(default=1, kw_only=True)
    _under: bool = False

    def __post_init__(self) -> None:
        refuse_offload(self.running.offload)
        heed(self.running, "fsdp")
        self._grid = Grid.of(self.ranks, self.replicas, self.sequence)
        self.ranks, self._rest = self._grid.data, SleepState()
        set_trainable(self.model.eval(), self.trainable)
        self.tokenizer = ChatTokenizer(self.raw_tokenizer)
        self._saved, self._packing = frozenset(self.model.state_dict()), choose(self.model, half=self._half)
        place = str(next(self.model.parameters()).device)
        self._sums_once = accumulates(self.model, self._grid, self.running, place)
        self._units = shard(self.model, self._grid, self.running, place, twice=self._packing is None)
        self._parameters = [each for each in self.model.parameters() if each.requires_grad]
        self._optimizers = Optimizers(
            self._shards(),
            self._grid.every,
            copies=self.replicas,
            peers=self.sequence,
            offloaded={*self.running.offload} == {"optimizer"},
        )

    @property
    def verbs(self) -> frozenset[Verb]:
        """Give the verbs this handle offers."""
        return verbs_of(self.model, self.trainable, self._under, samples=False)

    @property
    def _half(self) -> bool:
        return self.running.precision == "bfloat16"

    @property
    def packs(self) -> bool:
        """Say whether passes read rows one after another, and not padded."""
        return self._packing is not None

    @property
    def micro_batch_tokens(self) -> int | None:
        """Give how many tokens the plan lets through at once, if it says so."""
        return self.running.micro_batch_tokens

    def without_adapters(self) -> FsdpModel:
        """Give a frozen handle on what the adapters stand on: the same shards, read with the adapters off."""
        under = copy.copy(self)
        under.trainable, under.version, under._under = False, 0, True
        return under

    # --------------------------------------------------------------------------------------- passes and steps

    def token_stats(self, rows: ResponseRows, wanted: Sequence[str]) -> TokenStats:
        """Run the forward pass; without gradients in parts, as many as the rank with the most needs."""
        self._rest.refuse()
        if torch.is_grad_enabled() and self.trainable:
            return self._optimizers.see(self._read(rows, wanted))
        parts = cut(rows, self.forward_tokens, padded=self._packing is None)
        calls = int(self._grid.every.union(torch.tensor([len(parts)])).max())
        none = ResponseRows(rows.context.slice(0, 0), rows.tokens[:0], rows.lengths[:0], rows.temperature)
        try:
            with torch.no_grad(), reading(self.model, self._under):
                told = [self._read(part, wanted) for part in [*parts, *[none] * (calls - len(parts))]]
        finally:
            self._reshard()
        return join_stats(told, wanted)

    def _read(self, rows: ResponseRows, wanted: Sequence[str]) -> TokenStats:
        peers = self._grid.peers
        sequence = SequenceRanks(peers.group) if peers.count > 1 else None
        return forward_stats(self.model, rows, wanted, packing=self._packing, sequence=sequence)

    async def sample(self, request: SampleRequest) -> Completion:
        """Refuse: nothing is sampled from shards."""
        what = f"a model sharded over {self._grid.every.count} ranks draws no samples"
        raise LawError(what, hint="place the role that samples on an engine that does; weights are synced to it")

    def step(self, losses: Sequence[Callable[[], Tensor]], optimizer: Optimizer) -> StepReport:
        """Add up gradients over micro-batches and ranks, clip, and step; refuse a gradient that is not finite.

        Each loss is this rank's share of the whole; loss and norm are told of the whole. Raises `NotFinite` for a loss
        or a gradient that is not finite, and `LawError` when ranks come with different many losses: on every rank.
        """
        self._rest.refuse()
        if not self.trainable:
            raise LawError("this model is frozen: nothing can update it")
        self._check_losses(len(losses))
        self._optimizers.begin()
        try:
            told = self._descend(losses)
        finally:
            self._reshard()
            for parameter in self._parameters:
                parameter.grad = None
        return self._optimizers.step(told, optimizer, self.ranks)

    def _descend(self, losses: Sequence[Callable[[], Tensor]]) -> list[float]:
        """Give the losses, and leave the gradients on the shards, as the optimizers know them."""

        def before(part: int) -> None:
            self._optimizers.at(part)
            last = part == len(losses) - 1
            if self._sums_once:
                self.model.set_requires_gradient_sync(last)
            elif self.replicas > 1:  # copies add up their own micro-batches, and tell each other at the end
                self.model.set_requires_all_reduce(last)

        try:
            told = descend(losses, before)
        except BaseException:
            forget(self.model)
            raise
        for own, parameter in zip(self._optimizers.tensors, self._parameters, strict=True):
            own.grad = None if parameter.grad is None else parameter.grad.to_local()
        return told

    def _check_losses(self, count: int) -> None:

        counts = self._grid.every.union(torch.tensor([count])).tolist()
        if len(set(counts)) > 1:
            what = f"the ranks came with different many micro-batches: {', '.join(map(str, counts))}"
            raise LawError(what, hint="every rank takes as many as the one with the most; empty ones are allowed")

    def _reshard(self) -> None:
        """Drop the gathered weights: FSDP keeps some for the next pass, and a step changes the shards only."""
        for unit in self._units:
            unit.reshard()

    # --------------------------------------------------------------------------------------- weights

    def stream(self) -> Iterator[tuple[str, Tensor]]:
        """Gather the full weights one after another; every rank goes through all, and keeps what it asks for.

        Tied names come together, with one tensor. Nothing but the tensor at hand is held.
        """
        self._rest.refuse()
        return self._gathered(exchanged(self.model, self._under))

    def weights(self) -> dict[str, Tensor]:
        """Gather a copy of the full weights by name, on every rank; tied names share one tensor."""
        return dict(self.stream())

    def whole(self) -> dict[str, Tensor]:
        """Gather all weights by name, those under adapters as well, on every rank."""
        self._rest.refuse()
        return dict(self._gathered(self._saved))

    def _gathered(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        for aliases, tensor in named_once(self.model, names):
            full = whole(tensor, self._grid)
            yield from ((name, full) for name in aliases)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the weights by full plain ones, of which this rank keeps its share; names and shapes are the same."""
        self._rest.refuse()
        own = named_once(self.model, exchanged(self.model, self._under))
        shapes = {name: tensor.shape for aliases, tensor in own for name in aliases}
        wrong = sorted(
            name
            for name in shapes.keys() | weights.keys()
            if name not in shapes or name not in weights or shapes[name] != weights[name].shape
        )
        if wrong:
            raise LawError(f"the weights do not fit the model: {', '.join(wrong)}")
        with torch.no_grad():
            for aliases, tensor in own:
                piece, full = self._piece(tensor), weights[aliases[-1]]
                piece.tensor.copy_(full[slice(*piece.rows)] if full.dim() else full)

    def _piece(self, tensor: Tensor) -> TensorPiece:
        """Give this rank's share of one of the model's tensors: the shard itself, or all where each rank holds all."""
        if not isinstance(tensor, DTensor):
            return TensorPiece.whole(tensor.detach())
        with torch.no_grad():  # then it is the shard itself, one memory with the parameter
            return TensorPiece(tensor.to_local(), tuple(tensor.shape), self._grid.held(len(tensor))[0])

    def _shards(self) -> list[Tensor]:
        return [self._piece(each).tensor for each in self._parameters]

    def save(self, folder: Path) -> None:
        """Write the weights and tokenizer as a folder that transformers loads; rank 0 writes it."""
        from flowgraph.models.saving import save

        self._rest.refuse()
        first = self._grid.every.rank == 0
        kept = [pair for pair in self._gathered(self._saved) if first]
        if first:
            save(self.model, self.raw_tokenizer, folder, dict(kept))

    # --------------------------------------------------------------------------------------- state

    def save_state(self, folder: Path) -> None:
        """Write weights, what optimizers keep, and the version: each rank its share, into a folder that all see."""
        self._kept().save(folder, self.version)

    def load_state(self, folder: Path) -> None:
        """Take what `save_state` of any layout wrote; raise DataError or LawError for what is not of this model."""
        self.version = self._kept().load(folder)

    def _kept(self) -> HandleState:
        self._rest.refuse()
        own = named_once(self.model, exchanged(self.model, self._under))
        grid = self._grid
        place = (grid.shards.rank, grid.shards.count) if grid.copies.rank == 0 else None
        return HandleState(
            {aliases[0]: self._piece(tensor) for aliases, tensor in own},
            [name for name, each in self.model.named_parameters() if each.requires_grad] if self.trainable else [],
            self._optimizers,
            place,
            grid.every,
        )

    # --------------------------------------------------------------------------------------- sleep

    @property
    def asleep(self) -> bool:
        """Say whether the model's memory is away from its device."""
        return self._rest.asleep

    def sleep(self) -> None:
        """Move what this rank holds to host memory, until `wake`; all but that is refused meanwhile."""
        if self.asleep:
            return
        self._reshard()
        self._optimizers.begin()
        self._move("cpu")
        self._rest.asleep = True

    def wake(self) -> None:
        """Move what this rank holds back to its device."""
        if self.asleep:
            self._move(str(device_of(self.model)))
            self._rest.asleep = False

    def _move(self, device: str) -> None:
        """Move the shards, which are other tensors then, with what the optimizers keep of them."""
        if device_of(self.model).type == "cpu" or {*self.running.offload} >= EVERYTHING:
            return
        self.model.to(device)
        self._optimizers.rebind(self._shards())
        if not self._optimizers.offloaded:
            self._optimizers.move(device)
        if device == "cpu":
            torch.cuda.empty_cache()  # other processes of the device can have it
