"""Sharding of a model over ranks: the device mesh, the sharded modules, and the policies of `fully_shard` for each.

Also activation checkpointing: a decoder layer keeps less of its forward pass, and recomputes the rest.

Source: Chen et al. 2016, arXiv 1604.06174; by operation, as torchtitan does it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from flowgraph.cluster.plan import Offloaded, RoleSettings
from flowgraph.engines.forward_pass.decode import computes_on
from flowgraph.engines.fsdp.ranks import ProcessRanks
from flowgraph.errors import LawError
from flowgraph.models.heads import head_names
from flowgraph.models.libraries import transformers

if TYPE_CHECKING:
    from torch import Tensor

    from flowgraph.cluster.plan import Checkpointing

EVERYTHING: frozenset[Offloaded] = frozenset({"parameters", "gradients", "optimizer"})


@dataclass(frozen=True)
class Grid:
    """The groups that the ranks of a model form, seen from one rank.

    `shards` are adjacent ranks that together hold one copy of the model; `copies` are the ranks, one from each copy,
    that hold the same shard. `peers` are adjacent ranks that have the same rows of data, and divide the tokens; `data`
    are ranks, one from each group of peers, that have different rows.
    """

    every: ProcessRanks
    shards: ProcessRanks
    copies: ProcessRanks
    data: ProcessRanks
    peers: ProcessRanks

    @classmethod
    def of(cls, ranks: ProcessRanks, replicas: int, sequence: int) -> Grid:
        """Return the grid of `ranks` with `replicas` copies of the model, and `sequence` ranks for the same rows.

        Every rank must call this. Raises LawError if a degree is less than 1 or does not divide the number of ranks.
        """
        for name, degree in (("replicas", replicas), ("sequence", sequence)):
            if degree < 1 or ranks.count % degree:
                raise LawError(f"{name}={degree} does not divide {ranks.count} ranks")
        copies, shards = ranks.grid(ranks.count // replicas)
        data, peers = ranks.grid(sequence)
        return cls(ranks, shards, copies, data, peers)

    def mesh(self, device: str) -> Any:
        """Return the DeviceMesh for `fully_shard`: (shard), or (replicate, shard) for several copies of the model.

        `device` is a device type, such as "cuda".
        """
        if self.copies.count == 1:
            return DeviceMesh.from_group(self.every.group, device)
        members: list[int] = dist.get_process_group_ranks(self.every.group)
        width = self.shards.count
        rows = [members[start : start + width] for start in range(0, len(members), width)]
        groups = [self.copies.group, self.shards.group]
        return DeviceMesh.from_group(groups, device, mesh=rows, mesh_dim_names=("replicate", "shard"))

    def rows_of_rank(self, rows: int) -> tuple[int, int]:
        """Return the range of rows, (first, last + 1), that this rank holds of a tensor with `rows` rows; may be empty.

        >>> from types import SimpleNamespace as Ranks
        >>> [Grid(None, Ranks(rank=rank, count=3), None, None, None).rows_of_rank(4) for rank in range(3)]
        [(0, 2), (2, 4), (4, 4)]
        """
        share = -(-rows // self.shards.count)
        return min(self.shards.rank * share, rows), min((self.shards.rank + 1) * share, rows)


def shard(model: Any, grid: Grid, running: RoleSettings, device: str, *, twice: bool) -> list[Any]:
    """Shard each decoder layer and then the whole model with FSDP, in place; return the layers, followed by the model.

    Every rank of `grid` must call this. The model computes on `device`, even if its shards are offloaded. `running`
    sets precision and activation checkpointing; shards are in host memory if it offloads parameters, gradients and
    optimizer. Gradients are summed over ranks, not averaged, because each rank's loss is already divided by counts over
    all ranks. `twice` means that a forward pass calls each module twice.
    """
    heads = [model.get_submodule(name) for name in sorted({name.rpartition(".")[0] for name in head_names(model)})]
    for head in heads or [model.get_output_embeddings()]:
        # FSDP warns of outputs that share memory, as those of a layer with a bias may.
        head.register_forward_hook(lambda module, inputs, out: out.clone() if out._is_view() else out)
    kind = torch.device(device).type
    mesh, layers = grid.mesh(kind), decoder_layers(model)
    recompute(layers, running.checkpointing)
    for unit in [*layers, model]:
        policies = dict[str, Any]()  # where the shards lie, and the precision of a pass; that of shards is unchanged
        if running.precision == "bfloat16":
            out = torch.float32 if unit is model else None
            policies["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32, output_dtype=out)
        if {*running.offload} >= EVERYTHING:
            policies["offload_policy"] = CPUOffloadPolicy(pin_memory=kind == "cuda")
        fully_shard(unit, mesh=mesh, **policies)
        unit.set_gradient_divide_factor(1.0)  # FSDP averages otherwise
        unit.set_force_sum_reduction_for_comms(True)  # gloo cannot scale a sum
    computes_on(model, torch.device(device))
    if twice and layers:
        # A unit is gathered for its backward pass when a gradient reaches its output, and dropped when one leaves its
        # input. `forward_stats` runs each unit twice, contexts first, which ends in keys and values: the last layer's
        # output has no gradient there, but its keys and values have, so it stays gathered until the end of the step.
        # All other units are gathered anew for each pass, and each pass adds its gradients to the shards.
        layers[-1].set_reshard_after_backward(False, recurse=False)
        layers[-1].set_reshard_after_forward(False, recurse=False)  # it is the first that the backward pass needs
    return [*layers, model]


def decoder_layers(model: Any) -> list[Any]:
    """Return the decoder layers of a model in order, or [] if none are found.

    These are the modules of the ModuleList with the most parameters, among lists whose modules all have one class.
    """
    lists = [
        module for module in model.modules() if isinstance(module, nn.ModuleList) and len({*map(type, module)}) == 1
    ]
    return list(max(lists, key=lambda layers: sum(p.numel() for p in layers.parameters()), default=[]))


def gather_full(tensor: Tensor, grid: Grid) -> Tensor:
    """Return a full copy of a tensor of a sharded model, gathered from the ranks that hold its shards.

    Every rank must call this. A tensor that is not sharded is only copied.
    """
    if not isinstance(tensor, DTensor):
        return tensor.detach().clone()
    full: Tensor = DTensor.full_tensor(tensor.detach())  # type: ignore[arg-type]
    return full.clone() if grid.shards.count == 1 else full


def reset_after_failure(model: Any) -> None:
    """Drop the gradients that a failed step has not yet reduced over ranks, and FSDP's state of the failed pass."""
    states = model._get_fsdp_state()._state_ctx.all_states
    reset = getattr(model, "reset_iter_state", None)
    if reset is not None and states:  # before its first pass a model has no state to reset
        reset()
    for state in states:
        # torch 2.11 and 2.12 have at most one group of parameters in a unit.
        groups = state._fsdp_param_groups if hasattr(state, "_fsdp_param_groups") else [state._fsdp_param_group]
        for group in filter(None, groups):
            group._partial_reduce_output = None
            for param in group.fsdp_params:
                param.unsharded_accumulated_grad = None
                if hasattr(param, "_unsharded_param"):
                    param._unsharded_param.grad = None


ACCUMULATED_SHARE = 1 / 16
"""The share of a device's memory that a model's whole gradient may take, for it to be summed over ranks only once."""


def accumulates_unreduced(model: Any, grid: Grid, running: RoleSettings, device: str) -> bool:
    """Return whether ranks should sum gradients over micro-batches locally, and reduce them over ranks once per step.

    The result is False if gradients are offloaded, or if the gradients of all trained parameters, with at least 4 bytes
    for each number, take more than 1/16 of the memory of the torch device `device` (for a CPU, of the machine's memory
    divided by the number of ranks). Every rank must call this, and all get the same answer.
    """
    if "gradients" in running.offload:
        return False
    needed = sum(
        parameter.numel() * max(4, parameter.element_size())
        for parameter in model.parameters()
        if parameter.requires_grad
    )
    if torch.device(device).type == "cuda":
        memory = int(torch.cuda.get_device_properties(torch.device(device)).total_memory)
    else:
        memory = int(psutil.virtual_memory().total) // grid.every.count  # at most: they may not share one machine
    return int(grid.every.union(torch.tensor([int(needed <= ACCUMULATED_SHARE * memory)])).min()) == 1


# ------------------------------------------------------------------------------------------- checkpointing

_PRODUCTS = ("mm", "addmm")
_ATTENTION = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)


def recompute(layers: Iterable[Any], how: Checkpointing) -> None:
    """Enable activation checkpointing of decoder layers, in place: the backward pass runs parts of a layer again.

    With "full", only the inputs of layers are stored. With "selective", the results of attention and of every second
    matrix product are stored too. "none" changes nothing. A pass that fills a key-value cache is never recomputed,
    because the cache would be filled twice.
    """
    if how != "none":
        for layer in layers:
            layer.forward = _checkpointed(layer.forward, how)


def _checkpointed(plain: Callable[..., Any], how: Checkpointing) -> Callable[..., Any]:
    contexts: dict[str, Any] = {"context_fn": _selective_contexts} if how == "selective" else {}

    @functools.wraps(plain)
    def forward(*args: Any, **kwargs: Any) -> Any:
        cache = transformers().Cache
        if not torch.is_grad_enabled() or any(isinstance(value, cache) for value in (*args, *kwargs.values())):
            return plain(*args, **kwargs)
        # No layer uses random numbers: models are trained in evaluation mode, without dropout.
        call = functools.partial(plain, **kwargs)
        return checkpoint(call, *args, use_reentrant=False, preserve_rng_state=False, **contexts)

    return forward


def _selective_contexts() -> Any:
    aten: Any = torch.ops.aten
    products = {getattr(aten, name).default for name in _PRODUCTS}
    attention = {getattr(aten, name).default for name in _ATTENTION if hasattr(aten, name)}
    attention.add(getattr(torch.ops.higher_order, "flex_attention", None))
    counts = {False: 0, True: 0}  # of products so far, in the forward pass and in the second computation

    def policy(context: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if op in products:
            counts[context.is_recompute] += 1
        odd = op in products and counts[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if odd or op in attention else CheckpointPolicy.PREFER_RECOMPUTE

    untyped: Any = create_selective_checkpoint_contexts
    return untyped(policy)
