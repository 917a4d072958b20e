"""Ulysses sequence parallelism: peers with the same rows run a slice of the tokens each.

Each peer runs its slice of the packed tokens through the layers. Inside attention, an all-to-all exchanges a slice of
the tokens with all heads for all tokens with a share of the heads, and back.

Why gradients add up: a loss L is the same function of the statistics of all tokens on every peer. A peer's backward
pass starts from dL/dstatistics of its own slice only (`all_stats` drops the rest), so each statistic is counted once
over the peers. The backward pass of an all-to-all is an all-to-all: the effect of a peer's keys and values on another
peer's tokens comes back to it. So each peer gets the part of dL/dparameters that goes through its own tokens, and the
sum over the peers is the gradient of one process.

Source: Jacobs et al. 2023 (DeepSpeed Ulysses), arXiv 2309.14509, section 3.
"""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from flowgraph.errors import LawError

if TYPE_CHECKING:
    from torch import Tensor

    from flowgraph.engines.fsdp.ranks import ProcessRanks


def all_tokens(query: Tensor, key: Tensor, value: Tensor, ranks: ProcessRanks) -> tuple[Tensor, Tensor, Tensor]:
    """Exchange tokens for heads: return the query, key and value of all tokens, for this rank's share of the heads.

    Arguments are [1, heads, N / P, size] and results [1, heads / P, N, size], for P ranks and N tokens; every rank must
    call this. If P does not divide the number of key-value heads, these heads are repeated. Raises LawError if P does
    not divide the number of query heads.
    """
    count, heads = ranks.count, query.shape[1]
    if heads % count:
        what = f"{count} ranks cannot share the {heads} attention heads of a sequence"
        raise LawError(what, hint="the number of sequence ranks must divide the number of heads")
    times = lcm(key.shape[1], count) // key.shape[1]
    if times > 1:
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
    tensors = (query, key, value)
    shares = [_shared(tensor[0], count).transpose(1, 2).flatten(2) for tensor in tensors]  # [P, N / P, numbers]
    widths = [share.shape[2] for share in shares]
    columns = torch.split(_exchange(torch.cat(shares, 2), ranks).flatten(0, 1), widths, 1)
    query, key, value = (
        column.reshape(len(column), -1, tensor.shape[3]).transpose(0, 1)[None]
        for column, tensor in zip(columns, tensors, strict=True)
    )
    return query, key, value


def own_tokens(read: Tensor, ranks: ProcessRanks) -> Tensor:
    """Exchange heads for tokens: return the attention output of this rank's tokens for all heads.

    `read` [1, N, heads / P, size] is the attention output of all N tokens for this rank's share of the heads, and the
    result is [1, N / P, heads, size], for P ranks. Every rank must call this.
    """
    columns = _exchange(_shared(read[0], ranks.count).flatten(2), ranks)  # [P, N / P, numbers]
    return columns.transpose(0, 1).reshape(1, columns.shape[1], -1, read.shape[3])


def all_stats(local: Tensor, ranks: ProcessRanks) -> Tensor:
    """Return the token statistics of all P ranks [P · n, kinds], in order of rank, from this rank's `local` [n, kinds].

    Every rank must call this, with the same n. The gradient of the result reaches only this rank's `local`.
    """

    class AllGather(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, local: Tensor) -> Tensor:
            ctx.tokens = len(local)
            parts = [torch.empty_like(local) for _ in range(ranks.count)]
            dist.all_gather(parts, local.contiguous(), group=ranks.group)
            return torch.cat(parts)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return gradients[0][ranks.rank * ctx.tokens :][: ctx.tokens]

    joined: Tensor = AllGather.apply(local)  # type: ignore[no-untyped-call]
    return joined


def _shared(tensor: Tensor, count: int) -> Tensor:
    return tensor.reshape(count, -1, *tensor.shape[1:])


def _exchange(parts: Tensor, ranks: ProcessRanks) -> Tensor:
    """Send part i of `parts` [P, …] to rank i, and return the parts that the ranks sent to this one."""

    def sent(parts: Tensor) -> Tensor:
        received = torch.empty_like(parts, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, parts.contiguous(), group=ranks.group)
        return received

    class Exchange(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, parts: Tensor) -> Tensor:
            return sent(parts)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return sent(gradients[0])

    received: Tensor = Exchange.apply(parts)  # type: ignore[no-untyped-call]
    return received
