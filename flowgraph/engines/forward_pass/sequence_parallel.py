"""Ulysses: peers that got the same rows, and run a slice each of their tokens; attention trades tokens for heads.

Each peer runs its slice of the packed tokens through the layers. Inside attention an all-to-all turns a slice's tokens
with all heads into all tokens with a share of the heads, and back.

Why gradients add up: a loss L is the same function of the statistics of all tokens on every peer. A peer's backward
pass starts from dL/dstatistics of its own slice only (`all_stats` drops the rest), so that over the peers each
statistic starts once. The backward of an all-to-all is an all-to-all: what a peer's keys and values did to tokens
of another comes back to it. So each peer ends with dL/dparameters by way of its own tokens, and the sum over the peers
is that of one process.
Source: Jacobs et al. 2023 (DeepSpeed Ulysses), arXiv 2309.14509, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from flowgraph.errors import LawError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SequenceRanks:
    """The processes that share one sequence, seen from one of them; all make the same calls on the same rows."""

    group: Any  # torch.distributed.ProcessGroup

    @property
    def rank(self) -> int:
        """Give the place of this process in the group, from 0."""
        return dist.get_rank(self.group)

    @property
    def count(self) -> int:
        """Give how many processes the group has."""
        return dist.get_world_size(self.group)


def all_tokens(query: Tensor, key: Tensor, value: Tensor, ranks: SequenceRanks) -> tuple[Tensor, Tensor, Tensor]:
    """Give [1, heads / P, N, size] for [1, heads, N / P, size]; heads of keys that P does not divide are repeated.

    Raises LawError where the number of ranks P does not divide the heads of queries.
    """
    count, heads = ranks.count, query.shape[1]
    if heads % count:
        what = f"{count} ranks cannot share the {heads} attention heads of a sequence"
        raise LawError(what, hint="the number of sequence ranks must divide the number of heads")
    times = lcm(key.shape[1], count) // key.shape[1]
    parts = [query, *(each.repeat_interleave(times, 1) if times > 1 else each for each in (key, value))]
    shares = [_shared(each[0], count).transpose(1, 2).flatten(2) for each in parts]  # [P, N / P, numbers]
    widths = [each.shape[2] for each in shares]
    told = torch.split(_exchange(torch.cat(shares, 2), ranks).flatten(0, 1), widths, 1)
    pairs = zip(told, parts, strict=True)
    made = [each.reshape(len(each), -1, part.shape[3]).transpose(0, 1)[None] for each, part in pairs]
    return made[0], made[1], made[2]


def own_tokens(read: Tensor, ranks: SequenceRanks) -> Tensor:
    """Give [1, N / P, heads, size] for [1, N, heads / P, size]."""
    told = _exchange(_shared(read[0], ranks.count).flatten(2), ranks)  # [P, N / P, numbers]
    return told.transpose(0, 1).reshape(1, told.shape[1], -1, read.shape[3])


def all_stats(own: Tensor, ranks: SequenceRanks) -> Tensor:
    """Join each rank's statistics [n, kinds], of as many tokens: [P * n, kinds]; gradients reach the own ones only."""

    class Join(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, own: Tensor) -> Tensor:
            ctx.tokens = len(own)
            parts = [torch.empty_like(own) for _ in range(ranks.count)]
            dist.all_gather(parts, own.contiguous(), group=ranks.group)
            return torch.cat(parts)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return gradients[0][ranks.rank * ctx.tokens :][: ctx.tokens]

    joined: Tensor = Join.apply(own)  # type: ignore[no-untyped-call]
    return joined


def _shared(each: Tensor, count: int) -> Tensor:
    """Cut the first dimension into `count` equal parts: [count, …]."""
    return each.reshape(count, -1, *each.shape[1:])


def _exchange(parts: Tensor, ranks: SequenceRanks) -> Tensor:
    """Send part i [P, …] to rank i, and give what each rank sent here: its own inverse, and its own transpose."""

    def sent(parts: Tensor) -> Tensor:
        told, parts = torch.empty_like(parts, memory_format=torch.contiguous_format), parts.contiguous()
        dist.all_to_all_single(told, parts, group=ranks.group)
        return told

    class Exchange(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, parts: Tensor) -> Tensor:
            return sent(parts)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return sent(gradients[0])

    told: Tensor = Exchange.apply(parts)  # type: ignore[no-untyped-call]
    return told
