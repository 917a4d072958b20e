"""A model sharded over ranks with FSDP2 (`torch.distributed.fsdp.fully_shard`): forward passes, steps and weights.

Every rank makes the same calls in the same order, each on different rows; the result is that of `LocalModel` on all
rows. Not here: sampling, which runs on gathered plain weights, because ranks whose rows end early would block the
others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor

from flowgraph.cluster.plan import Offloaded
from flowgraph.engines.forward_pass.forward import forward_stats
from flowgraph.engines.forward_pass.packing_probe import choose_packing
from flowgraph.engines.fsdp.ranks import ProcessRanks
from flowgraph.engines.fsdp.sharding import (
    EVERYTHING,
    Grid,
    accumulates_unreduced,
    gather_full,
    reset_after_failure,
    shard,
)
from flowgraph.engines.model_state.optimizers import Optimizers, run_backward
from flowgraph.engines.model_state.sharded_checkpoint import TensorPiece
from flowgraph.engines.model_state.torch_handle import TorchHandle
from flowgraph.errors import LawError
from flowgraph.language.handle import Completion, ResponseRows, SampleRequest, TokenStats

if TYPE_CHECKING:
    from torch import Tensor

    from flowgraph.language.handle import Ranks


@dataclass(eq=False)
class FsdpModel(TorchHandle):
    """A transformers model that is sharded over `ranks`; each rank holds a share of every tensor.

    All ranks pass a copy of the same plain model, which is sharded in place. The ranks hold `replicas` whole copies,
    each on adjacent ranks. Groups of `sequence` adjacent ranks have the same rows, and divide the tokens. After
    construction, `ranks` contains one rank of each such group. Raises LawError if a degree does not divide the number
    of ranks, or if the engine does not support a setting.
    """

    engine = "fsdp"
    generates = False

    ranks: ProcessRanks = field(kw_only=True)
    replicas: int = field(default=1, kw_only=True)
    sequence: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        if {*self.running.offload} not in (set[Offloaded](), {"optimizer"}, EVERYTHING):
            hint = "offload the optimizer alone, or parameters, gradients and optimizer together"
            what = f"the engine `fsdp` does not offload {' and '.join(self.running.offload)} alone"
            raise LawError(what, hint=hint)
        super().__post_init__()
        self._grid = Grid.of(self.ranks, self.replicas, self.sequence)
        self.ranks = self._grid.data
        choose_packing(self.model, half=self.running.precision == "bfloat16")  # before its weights are sharded
        device = str(self._home)
        self._sums_once = accumulates_unreduced(self.model, self._grid, self.running, device)
        self._units = shard(self.model, self._grid, self.running, device, twice=not self.packs)
        self._parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._optimizers = Optimizers(
            self._shards(),
            self._grid.every,
            self._grid.data,
            copies=self.replicas,
            peers=self.sequence,
            offloaded={*self.running.offload} == {"optimizer"},
        )

    @property
    def _every(self) -> Ranks:
        return self._grid.every

    # --------------------------------------------------------------------------------------- passes and steps

    def _cut(self, rows: ResponseRows) -> list[ResponseRows]:
        """Split rows into as many parts as the rank with the most needs; some may be empty."""
        parts = super()._cut(rows)
        calls = int(self._grid.every.union(torch.tensor([len(parts)])).max())
        empty = replace(rows, context=rows.context.slice(0, 0), tokens=rows.tokens[:0], lengths=rows.lengths[:0])
        return [*parts, *[empty] * (calls - len(parts))]

    @contextlib.contextmanager
    def _reading(self) -> Generator[None]:
        try:
            with torch.no_grad(), super()._reading():
                yield
        finally:
            self._reshard()

    def _read(self, rows: ResponseRows, wanted: Sequence[str]) -> TokenStats:
        return forward_stats(self.model, rows, wanted, sequence=self._grid.peers)

    async def sample(self, request: SampleRequest) -> Completion:
        """Raise LawError: a sharded model cannot generate samples."""
        what = f"a model sharded over {self._grid.every.count} ranks cannot generate samples"
        raise LawError(what, hint="place the sampling role on an engine that can generate; its weights are synced")

    def _descend(self, losses: Sequence[Callable[[], Tensor]]) -> list[float]:
        counts = self._grid.every.union(torch.tensor([len(losses)])).tolist()
        if len(set(counts)) > 1:
            what = f"the ranks have different numbers of micro-batches: {', '.join(map(str, counts))}"
            raise LawError(what, hint="give every rank as many as the rank with the most; they may be empty")

        def before(part: int) -> None:
            self._optimizers.at(part)
            last = part == len(losses) - 1
            if self._sums_once:
                self.model.set_requires_gradient_sync(last)
            elif self.replicas > 1:  # copies add up their own micro-batches, and exchange the sum at the end
                self.model.set_requires_all_reduce(last)

        try:
            values = run_backward(losses, before)
            for tensor, parameter in zip(self._optimizers.tensors, self._parameters, strict=True):
                tensor.grad = None if parameter.grad is None else parameter.grad.to_local()
            return values
        except BaseException:
            reset_after_failure(self.model)
            raise
        finally:
            self._reshard()
            for parameter in self._parameters:
                parameter.grad = None

    def _reshard(self) -> None:
        """Free the gathered weights: FSDP keeps some for the next pass, and a step changes the shards only."""
        for unit in self._units:
            unit.reshard()

    # --------------------------------------------------------------------------------------- weights and state

    def _full(self, tensor: Tensor) -> Tensor:
        return gather_full(tensor, self._grid)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy this rank's shard of `weights`, which are full tensors by name, into the model; `version` is unchanged.

        Raises LawError if the names or shapes are not those of the model (with adapters: of its adapters and head), if
        the model is asleep, or if it is the frozen base of another handle.
        """
        self._refuse_asleep()
        tensors = self._carried()
        shapes = {name: tensor.shape for aliases, tensor in tensors for name in aliases}
        wrong = sorted(
            name
            for name in shapes.keys() | weights.keys()
            if name not in shapes or name not in weights or shapes[name] != weights[name].shape
        )
        if wrong:
            raise LawError(f"the weights do not fit the model: {', '.join(wrong)}")
        with torch.no_grad():
            for aliases, tensor in tensors:
                piece, full = self._piece(tensor), weights[aliases[-1]]
                piece.tensor.copy_(full[slice(*piece.rows)] if full.dim() else full)

    def _piece(self, tensor: Tensor) -> TensorPiece:
        if not isinstance(tensor, DTensor):
            return super()._piece(tensor)
        with torch.no_grad():  # so that it shares its memory with the parameter
            return TensorPiece(tensor.to_local(), tuple(tensor.shape), self._grid.rows_of_rank(len(tensor))[0])

    def _shards(self) -> list[Tensor]:
        return [self._piece(parameter).tensor for parameter in self._parameters]

    def save(self, folder: Path) -> None:
        """Write weights and tokenizer to a new folder that transformers can load; only rank 0 writes.

        Every rank must call this, because weights are gathered. Adapters are merged into the weights. Raises LawError
        if the model is asleep, and ModelError on rank 0 if the folder exists or cannot be written.
        """
        from flowgraph.models.saving import save

        self._refuse_asleep()
        writes = self._grid.every.rank == 0
        weights = dict(pair for pair in self._copies(self._saved) if writes)
        if writes:
            save(self.model, self.raw_tokenizer, folder, weights)

    @property
    def _writer(self) -> tuple[int, int] | None:
        shards = self._grid.shards
        return (shards.rank, shards.count) if self._grid.copies.rank == 0 else None

    def _move(self, device: str) -> None:
        if device == "cpu":
            self._reshard()
        if self._home.type == "cpu" or {*self.running.offload} >= EVERYTHING:
            return
        self.model.to(device)
        self._optimizers.rebind(self._shards())
        if not self._optimizers.offloaded:
            self._optimizers.move(device)
        if device == "cpu":
            torch.cuda.empty_cache()  # for other processes of the device
