"""A model sharded over ranks with FSDP2 (`torch.distributed.fsdp.fully_shard`): forward passes, steps and weights.

Every rank makes the same calls in the same order, each on rows of its own; the result is that of `LocalModel` on all
rows. Not here: sampling, which runs on gathered plain weights, because ranks whose rows end early hang the others.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.errors import LawError
from flowgraph.executors.base import Completion, Optimizer, Request, Rows, Stepped, TokenStats, Verb
from flowgraph.executors.forward import cut, forward_stats, join_stats
from flowgraph.executors.local import ChatTokenizer
from flowgraph.executors.optimizers import Optimizers, descend
from flowgraph.executors.ranks import ProcessRanks
from flowgraph.executors.reading import exchanged, reading, verbs_of
from flowgraph.models.heads import head_names
from flowgraph.models.lora import set_trainable

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(eq=False)
class FsdpModel:
    """A transformers model of which each of `ranks` holds a share of every tensor. `trainable` adds `step`.

    All ranks give the same plain model, each a copy of its own, which is sharded in place. `forward_tokens` bounds the
    padded tokens of a pass without gradients; `sample_rows` is for engines that sample. Of a model with adapters only
    these are trained, and a head of numbers; its weights are then these alone.
    """

    model: Any
    raw_tokenizer: Any
    trainable: bool = False
    sample_rows: int = 256
    forward_tokens: int = 16384
    version: int = 0
    ranks: ProcessRanks = field(kw_only=True)
    _under: bool = False

    def __post_init__(self) -> None:
        import torch

        set_trainable(self.model.eval(), self.trainable)
        self.tokenizer = ChatTokenizer(self.raw_tokenizer)
        self._saved = frozenset(self.model.state_dict())
        self._units = shard(self.model, self.ranks)
        self._parameters = [each for each in self.model.parameters() if each.requires_grad]
        with torch.no_grad():  # then these are the shards themselves, one memory with the parameters
            self._optimizers = Optimizers([each.to_local() for each in self._parameters], self.ranks)

    @property
    def verbs(self) -> frozenset[Verb]:
        """Give the verbs this handle offers."""
        return verbs_of(self.model, self.trainable, self._under, samples=False)

    def without_adapters(self) -> FsdpModel:
        """Give a frozen handle on what the adapters stand on: the same shards, read with the adapters off."""
        under = copy.copy(self)
        under.trainable, under.version, under._under = False, 0, True
        return under

    def token_stats(self, rows: Rows, wanted: Sequence[str]) -> TokenStats:
        """Run the forward pass; without gradients in chunks, as many as the rank with the most needs."""
        import torch

        if torch.is_grad_enabled() and self.trainable:
            return forward_stats(self.model, rows, wanted)
        parts = cut(rows, self.forward_tokens)
        calls = int(self.ranks.union(torch.tensor([len(parts)])).max())
        none = Rows(rows.context.slice(0, 0), rows.tokens[:0], rows.lengths[:0], rows.temperature)
        try:
            with torch.no_grad(), reading(self.model, self._under):
                told = [forward_stats(self.model, part, wanted) for part in [*parts, *[none] * (calls - len(parts))]]
        finally:
            self._reshard()
        return join_stats(told, wanted)

    async def sample(self, request: Request) -> Completion:
        """Refuse: nothing is sampled from shards."""
        what = f"a model sharded over {self.ranks.count} ranks draws no samples"
        raise LawError(what, hint="place the role that samples on an engine that does; weights are synced to it")

    def step(self, losses: Sequence[Callable[[], Tensor]], optimizer: Optimizer) -> Stepped:
        """Add up gradients over micro-batches and ranks, clip, and step; refuse a gradient that is not finite.

        Each loss is this rank's share of the whole; loss and norm are told of the whole. Raises `LawError` on every
        rank when they come with different many losses.
        """
        if not self.trainable:
            raise LawError("this model is frozen: nothing can update it")
        self._check_losses(len(losses))
        self._optimizers.clear()
        try:
            loss = descend(losses)
            for own, parameter in zip(self._optimizers.tensors, self._parameters, strict=True):
                own.grad = None if parameter.grad is None else parameter.grad.to_local()
        finally:
            self._reshard()
            for parameter in self._parameters:
                parameter.grad = None
        return self._optimizers.step(loss, optimizer)

    def _check_losses(self, count: int) -> None:
        import torch

        counts = self.ranks.union(torch.tensor([count])).tolist()
        if len(set(counts)) > 1:
            what = f"the ranks came with different many micro-batches: {', '.join(map(str, counts))}"
            raise LawError(what, hint="every rank takes as many as the one with the most; empty ones are allowed")

    def _reshard(self) -> None:
        """Drop the gathered weights: FSDP keeps some for the next pass, and a step changes the shards only."""
        for unit in self._units:
            unit.reshard()

    def weights(self) -> dict[str, Tensor]:
        """Gather a copy of the full weights by name, on every rank; tied names share one tensor."""
        names = exchanged(self.model, self._under)
        return self._gathered() if names == self._saved else _whole(self.model, names)

    def _gathered(self) -> dict[str, Tensor]:
        """Gather all weights, unit by unit."""
        from torch.distributed.tensor import DTensor

        full, seen = dict[str, "Tensor"](), dict[Any, "Tensor"]()
        for unit in self._units:  # one gather each; the rest of the model is last, and by then only its own are new
            unit.unshard()
            for name, tensor in _named_tensors(self.model):
                if name in self._saved and name not in full and not isinstance(tensor, DTensor):
                    if tensor not in seen:  # tensors are told apart by identity
                        seen[tensor] = tensor.detach().clone()
                    full[name] = seen[tensor]
            unit.reshard()
        return full

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the weights by full plain ones, of which this rank keeps its share; names and shapes are the same."""
        import torch

        names = exchanged(self.model, self._under)
        own = {name: tensor for name, tensor in _named_tensors(self.model) if name in names}
        wrong = sorted(
            name
            for name in own.keys() | weights.keys()
            if name not in own or name not in weights or own[name].shape != weights[name].shape
        )
        if wrong:
            raise LawError(f"the weights do not fit the model: {', '.join(wrong)}")
        with torch.no_grad():
            for name, tensor in own.items():
                _put(tensor, weights[name], self.ranks)

    def save(self, folder: Path) -> None:
        """Write the weights and tokenizer as a folder that transformers loads; rank 0 writes it."""
        from flowgraph.models.saving import save

        weights = self._gathered()
        if self.ranks.rank == 0:
            save(self.model, self.raw_tokenizer, folder, weights)


def shard(model: Any, ranks: ProcessRanks) -> list[Any]:
    """Shard a model in place, by its decoder layers and the rest, and give these units, the whole model last.

    Gradients are summed over ranks: each rank's loss is divided by counts of the whole already.
    """
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    for name in {name.rpartition(".")[0] for name in head_names(model)}:
        # FSDP warns of outputs that share memory with others, as those of a layer with a bias do.
        model.get_submodule(name).register_forward_hook(lambda module, given, out: out.clone())
    mesh = DeviceMesh.from_group(ranks.group, next(model.parameters()).device.type)
    units = [*decoder_layers(model), model]
    for unit in units:
        fully_shard(unit, mesh=mesh)
        unit.set_gradient_divide_factor(1.0)  # FSDP averages otherwise
        unit.set_force_sum_reduction_for_comms(True)  # gloo scales no sum
    for last in units[-2:-1]:
        # A unit is gathered for its backward pass when a gradient reaches its output, and dropped when one leaves its
        # input. `forward_stats` runs each unit twice, contexts first, which ends in keys and values: the last layer's
        # output has no gradient there, but its keys and values have, so it stays gathered until `_reshard`. All other
        # units are gathered anew for each pass, and each pass adds its gradients to the shards.
        last.set_reshard_after_backward(False, recurse=False)
        last.set_reshard_after_forward(False, recurse=False)  # it is the first that the backward pass needs
    return units


def decoder_layers(model: Any) -> list[Any]:
    """Give a model's layers: of its lists of modules of one class the one that holds the most parameters."""
    from torch import nn

    lists = [each for each in model.modules() if isinstance(each, nn.ModuleList) and len({*map(type, each)}) == 1]
    return list(max(lists, key=lambda each: sum(p.numel() for p in each.parameters()), default=[]))


def _named_tensors(model: Any) -> list[tuple[str, Any]]:
    """Give a model's parameters and buffers, under each of their names."""
    return [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]


def _whole(model: Any, names: Iterable[str]) -> dict[str, Tensor]:
    """Gather a few of a sharded model's tensors, each by itself: the rest stays where it lies."""
    tensors = dict(_named_tensors(model))
    return {name: tensors[name].detach().full_tensor().clone() for name in sorted(names)}


def _put(own: Tensor, full: Tensor, ranks: ProcessRanks) -> None:
    """Copy this rank's share of a full tensor, or all of it where each rank holds all."""
    from torch.distributed.tensor import DTensor

    if not isinstance(own, DTensor):
        own.copy_(full)
        return
    parts = full.chunk(ranks.count)
    if ranks.rank < len(parts):  # a tensor of fewer rows than ranks leaves some without
        own.to_local().copy_(parts[ranks.rank])
