"""How a model is cut over ranks: the mesh they form, its units, and what `fully_shard` is told of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from flowgraph.cluster.plan import Offloaded, RoleSettings
from flowgraph.engines.fsdp.activation_checkpointing import recompute
from flowgraph.engines.fsdp.ranks import ProcessRanks
from flowgraph.engines.model_state.handle_rules import computes_on
from flowgraph.errors import LawError
from flowgraph.models.heads import head_names

if TYPE_CHECKING:
    from torch import Tensor

EVERYTHING: frozenset[Offloaded] = frozenset({"parameters", "gradients", "optimizer"})


@dataclass(frozen=True)
class Grid:
    """All ranks of a model as the groups that they form, seen from one of them; adjacent ranks are nearest.

    A row of `shards` adjacent ranks holds the model once; ranks of `copies`, one of each row, hold the same share.
    `peers` are adjacent ranks with the same rows, each of which reads some of their tokens; ranks of `data`, one of
    each group of peers, have rows of their own.
    """

    every: ProcessRanks
    shards: ProcessRanks
    copies: ProcessRanks
    data: ProcessRanks
    peers: ProcessRanks

    @classmethod
    def of(cls, ranks: ProcessRanks, replicas: int, sequence: int) -> Grid:
        """Form the groups; every rank calls this. Raises `LawError` where the ranks do not divide."""
        for name, degree in (("replicas", replicas), ("sequence", sequence)):
            if degree < 1 or ranks.count % degree:
                raise LawError(f"{name}={degree} does not divide {ranks.count} ranks")
        copies, shards = ranks.grid(ranks.count // replicas)
        data, peers = ranks.grid(sequence)
        return cls(ranks, shards, copies, data, peers)

    def mesh(self, device: str) -> Any:
        """Give the mesh that `fully_shard` takes: (shard), or (replicate, shard); `device` is a type, as `cuda`."""
        if self.copies.count == 1:
            return DeviceMesh.from_group(self.every.group, device)
        members: list[int] = dist.get_process_group_ranks(self.every.group)
        width = self.shards.count
        rows = [members[start : start + width] for start in range(0, len(members), width)]
        groups = [self.copies.group, self.shards.group]
        return DeviceMesh.from_group(groups, device, mesh=rows, mesh_dim_names=("replicate", "shard"))

    def held(self, rows: int) -> tuple[int, int]:
        """Give which of a tensor's rows this rank holds, from the first up to the second.

        >>> from types import SimpleNamespace as Ranks
        >>> [Grid(None, Ranks(rank=rank, count=3), None, None, None).held(4) for rank in range(3)]
        [(0, 2), (2, 4), (4, 4)]
        """
        each = -(-rows // self.shards.count)
        return min(self.shards.rank * each, rows), min((self.shards.rank + 1) * each, rows)


def shard(model: Any, grid: Grid, running: RoleSettings, device: str, *, twice: bool) -> list[Any]:
    """Shard a model in place, by its decoder layers and the rest, and give these units, the whole model last.

    It computes on `device`, wherever its shards lie. Gradients are summed over ranks: each rank's loss is divided by
    counts of the whole already. `twice` says that each unit is called twice in a pass.
    """
    for head in _heads(model):  # FSDP warns of outputs that share memory, as those of a layer with a bias may
        head.register_forward_hook(lambda module, given, out: out.clone() if out._is_view() else out)
    place = torch.device(device)
    mesh, layers = grid.mesh(place.type), decoder_layers(model)
    recompute(layers, running.checkpointing)
    for unit in [*layers, model]:
        fully_shard(unit, mesh=mesh, **_policies(running, place.type, root=unit is model))
        unit.set_gradient_divide_factor(1.0)  # FSDP averages otherwise
        unit.set_force_sum_reduction_for_comms(True)  # gloo scales no sum
    computes_on(model, place)
    if twice:
        _keep_last(layers)
    return [*layers, model]


def _heads(model: Any) -> list[Any]:
    """Give the modules whose outputs are the model's."""
    names = {name.rpartition(".")[0] for name in head_names(model)}
    return [model.get_submodule(name) for name in sorted(names)] or [model.get_output_embeddings()]


def _keep_last(layers: list[Any]) -> None:
    for last in layers[-1:]:
        # A unit is gathered for its backward pass when a gradient reaches its output, and dropped when one leaves its
        # input. `forward_stats` runs each unit twice, contexts first, which ends in keys and values: the last layer's
        # output has no gradient there, but its keys and values have, so it stays gathered until the end of the step.
        # All other units are gathered anew for each pass, and each pass adds its gradients to the shards.
        last.set_reshard_after_backward(False, recurse=False)
        last.set_reshard_after_forward(False, recurse=False)  # it is the first that the backward pass needs


def _policies(running: RoleSettings, device: str, *, root: bool) -> dict[str, Any]:
    """Say in which precision a unit computes, and where its shards lie; shards themselves stay as they are."""
    told = dict[str, Any]()
    if running.precision == "bfloat16":
        out = torch.float32 if root else None
        told["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32, output_dtype=out)
    if {*running.offload} >= EVERYTHING:
        told["offload_policy"] = CPUOffloadPolicy(pin_memory=device == "cuda")
    return told


def refuse_offload(offload: tuple[Offloaded, ...]) -> None:
    """Refuse what `fully_shard` cannot leave in host memory alone; raise LawError."""
    if {*offload} not in (set[Offloaded](), {"optimizer"}, EVERYTHING):
        hint = "offload the optimizer alone, or parameters, gradients and optimizer together"
        raise LawError(f"the engine `fsdp` does not offload {' and '.join(offload)} alone", hint=hint)


def decoder_layers(model: Any) -> list[Any]:
    """Give a model's layers: of its lists of modules of one class the one that holds the most parameters."""
    lists = [each for each in model.modules() if isinstance(each, nn.ModuleList) and len({*map(type, each)}) == 1]
    return list(max(lists, key=lambda each: sum(p.numel() for p in each.parameters()), default=[]))


def whole(tensor: Tensor, grid: Grid) -> Tensor:
    """Gather a tensor of a sharded model from all ranks, as a copy; the rest stays where it lies."""
    if not isinstance(tensor, DTensor):
        return tensor.detach().clone()
    full: Tensor = DTensor.full_tensor(tensor.detach())  # type: ignore[arg-type]
    return full.clone() if grid.shards.count == 1 else full


def forget(model: Any) -> None:
    """Drop what a step that broke off has left in FSDP: gradients that are not summed over ranks yet, and its state.

    FSDP has no public way to drop these gradients, and before torch 2.13 none to reset the rest.
    """
    states = model._get_fsdp_state()._state_ctx.all_states
    reset = getattr(model, "reset_iter_state", None)
    if reset is not None and states:  # before its first pass a model has no state to reset
        reset()
    for state in states:
        for group in _groups(state):
            group._partial_reduce_output = None
            for each in group.fsdp_params:
                each.unsharded_accumulated_grad = None
                if hasattr(each, "_unsharded_param"):
                    each._unsharded_param.grad = None


def _groups(state: Any) -> list[Any]:
    """Give a unit's groups of parameters: torch 2.11 and 2.12 have one at most."""
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [group for group in [state._fsdp_param_group] if group is not None]


ACCUMULATED_SHARE = 1 / 16
"""Of a device's memory: what a model's whole gradient may take on each rank, so that it is summed over ranks once."""


def accumulates(model: Any, grid: Grid, running: RoleSettings, device: str) -> bool:
    """Say whether micro-batches add up their gradients on each rank, whole, and ranks add up theirs once a step.

    It saves a reduce-scatter for each micro-batch but one, and takes 4 bytes a parameter. All ranks say the same.
    """
    if "gradients" in running.offload:
        return False
    needed = sum(each.numel() * max(4, each.element_size()) for each in model.parameters() if each.requires_grad)
    place = torch.device(device)
    if place.type == "cuda":
        has = int(torch.cuda.get_device_properties(place).total_memory)
    else:
        has = int(psutil.virtual_memory().total) // grid.every.count  # at most: they may not share one machine
    return int(grid.every.union(torch.tensor([int(needed <= ACCUMULATED_SHARE * has)])).min()) == 1
