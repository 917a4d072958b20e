"""Attention of packed tokens: each run to itself and to the run that it continues, by one of four ways.

It is reached through transformers' `AttentionInterface`, under a name of our own. A layer's call that brings no
`packed=` is handed on to SDPA as it is, so the name may stay set: layers that are run again in a backward pass
(activation checkpointing) bring it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.nn.attention import flex_attention as flex
from torch.nn.attention import varlen

from flowgraph.engines.forward_pass.buckets import Bucket, bucketed
from flowgraph.engines.forward_pass.packing import Segments, ranges
from flowgraph.engines.forward_pass.sequence_parallel import all_tokens, own_tokens
from flowgraph.errors import LawError
from flowgraph.models.libraries import transformers

if TYPE_CHECKING:
    from collections.abc import Generator

    from torch import Tensor

    from flowgraph.engines.forward_pass.sequence_parallel import SequenceRanks

NAME = "packed_tokens"
Way = Literal["segments", "mask", "varlen", "flex"]
_NOT_HONOURED = ("softcap", "s_aux", "position_bias")  # what some models ask of attention, and no way here does
_ASKED: ContextVar[set[int | None] | None] = ContextVar("windows that a model asks masks for", default=None)


@dataclass(eq=False)
class PackedAttention:
    """The attention of one forward pass over packed tokens: `segments` of all of them, whichever slice a rank has.

    `windows` collects the sliding windows that layers ask for.
    """

    segments: Segments
    way: Way
    device: Any
    sequence: SequenceRanks | None = None
    windows: set[int | None] = field(default_factory=set["int | None"])
    _made: dict[Any, Any] = field(default_factory=dict[Any, Any])

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
        """Give [1, N, heads, size] for `query` [1, heads, N, size], and keys and values that may have fewer heads."""
        self.windows.add(window)
        if self.sequence is None:
            return self._whole(query, key, value, scale, window)

        query, key, value = all_tokens(query, key, value, self.sequence)
        return own_tokens(self._whole(query, key, value, scale, window), self.sequence)

    def _whole(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
        ways = {"segments": self._segments, "mask": self._mask, "varlen": self._varlen, "flex": self._flex}
        return ways[self.way](query, key, value, scale, window)

    def _segments(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
        """Read runs of near lengths together, one call of SDPA for each such bucket."""
        width = query.shape[1] * query.shape[3]
        buckets, back = self._kept("buckets", lambda: bucketed(self.segments, width, self.device))
        flat = [each[0].transpose(0, 1) for each in (query, key, value)]
        outs = [self._read(each, flat, scale, window) for each in buckets]
        return torch.cat(outs).index_select(0, back)[None]

    def _read(self, bucket: Bucket, flat: list[Tensor], scale: float | None, window: int | None) -> Tensor:
        """Give [tokens, heads, size] of a bucket's padded tokens."""
        query = _taken(flat[0], bucket.queries, bucket.runs)
        key, value = (_taken(each, bucket.keys, bucket.runs) for each in flat[1:])
        mask = self._kept((id(bucket), window, query.dtype), lambda: bucket.mask(window, query.dtype))
        return _grouped(query, key, value, mask, scale).transpose(1, 2).flatten(0, 1)

    def _mask(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
        """Read all tokens against all, under an explicit mask: the reference, of N² memory."""
        mask = self._kept(window, lambda: seen(self.segments, window, self.device))
        return _grouped(query, key, value, mask, scale).transpose(1, 2)

    def _varlen(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
        """Read runs by torch's variable-length flash attention: on CUDA, in half precision.

        Where a run has fewer queries than keys, its causal mask ends in the lower right corner, as we need it.
        Source: Dao 2023, arXiv 2307.08691; the FlashAttention 2.1 change of causal masks.
        """
        untyped: Any = varlen
        segments = self.segments
        index, until, most = self._kept("varlen", lambda: run_keys(segments, self.device))
        heads = query.shape[1]
        flat = [each[0].transpose(0, 1) for each in (query, _repeated(key, heads), _repeated(value, heads))]
        out: Tensor = untyped.varlen_attn(
            flat[0].contiguous(),
            *(each.index_select(0, index) for each in flat[1:]),
            *until,
            *most,
            scale=scale,
            window_size=(-1 if window is None else window - 1, 0),
        )
        return out[None]

    def _flex(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
        """Read all tokens against all, but for the blocks that no run sees: compiled, on CUDA."""
        untyped: Any = flex
        mask = self._kept(window, lambda: blocks(self.segments, window, self.device))
        given = {"block_mask": mask, "scale": scale, "enable_gqa": key.shape[1] != query.shape[1]}
        out: Tensor = _compiled(untyped.flex_attention)(query, key, value, **given)
        return out.transpose(1, 2)

    def _kept(self, name: Any, make: Any) -> Any:
        """Make what all layers share when the first one asks for it."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]


def seen(segments: Segments, window: int | None, device: Any) -> Tensor:
    """Say which token [N] attends to which [N]; of a window of W it sees itself and the W - 1 before it."""
    at, first, before, place = (each.to(device) for each in _of_tokens(segments))
    token, key = torch.arange(len(at), device=device)[:, None], torch.arange(len(at), device=device)[None]
    own = (key >= at[:, None]) & (key <= token)
    continued = (key >= first[:, None]) & (key < (first + before)[:, None])
    near = True if window is None else place[None] > place[:, None] - window
    return (own | continued) & near


def _of_tokens(segments: Segments) -> list[Tensor]:
    """Give of each token [N] where its run begins, where what that continues begins, that one's tokens; its place."""
    runs = (segments.start, segments.before_start, segments.before)
    columns = [np.repeat(each, segments.tokens) for each in runs]
    return [torch.from_numpy(each) for each in (*columns, ranges(segments.before, segments.tokens))]


def run_keys(segments: Segments, device: Any) -> tuple[Tensor, tuple[Tensor, Tensor], tuple[int, int]]:
    """Give the keys of all runs one after another, where queries and keys of each run end, and the most of both."""
    keys = segments.before + segments.tokens
    both = np.stack([segments.before, segments.tokens], 1).reshape(-1)
    index = ranges(np.stack([segments.before_start, segments.start], 1).reshape(-1), both)
    ends = [np.concatenate([[0], each.cumsum()]).astype(np.int32) for each in (segments.tokens, keys)]
    until = (torch.from_numpy(ends[0]).to(device), torch.from_numpy(ends[1]).to(device))
    return torch.from_numpy(index).to(device), until, (int(segments.tokens.max()), int(keys.max()))


def blocks(segments: Segments, window: int | None, device: Any) -> Any:
    """Give flex attention's mask of what `seen` says, by blocks."""
    untyped: Any = flex
    at, first, before, place = (each.to(device) for each in _of_tokens(segments))

    def visible(_batch: Any, _head: Any, token: Any, key: Any) -> Any:
        own = (key >= at[token]) & (key <= token)
        continued = (key >= first[token]) & (key < first[token] + before[token])
        near = place[key] > place[token] - (window or len(at))
        return (own | continued) & near

    return untyped.create_block_mask(visible, None, None, len(at), len(at), device=str(device))


_COMPILED = dict[str, Any]()


def _compiled(function: Any) -> Any:
    """Compile a function once a process."""
    if "flex" not in _COMPILED:
        _COMPILED["flex"] = torch.compile(function, dynamic=True)
    return _COMPILED["flex"]


def _taken(flat: Tensor, index: Tensor, runs: int) -> Tensor:
    """Take [runs, heads, tokens, size] of [N, heads, size]."""
    return flat.index_select(0, index).reshape(runs, -1, *flat.shape[1:]).transpose(1, 2)


def _grouped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """Run SDPA, causal without a mask; heads that share keys and values are read as more queries of one head."""
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    groups = query.shape[1] // key.shape[1]
    if mask is None:
        key, value = (_repeated(each, query.shape[1]) for each in (key, value))
        return sdpa(query, key, value, is_causal=True, scale=scale)
    if groups == 1:
        return sdpa(query, key, value, attn_mask=mask, scale=scale)
    tokens = query.shape[2]
    folded = query.reshape(*key.shape[:2], groups * tokens, -1)
    mask = mask.repeat(*[1] * (mask.dim() - 2), groups, 1)
    out = sdpa(folded, key, value, attn_mask=mask, scale=scale)
    return out.reshape(*query.shape[:3], -1)


def _repeated(each: Tensor, heads: int) -> Tensor:
    """Repeat heads [B, fewer, N, size] that several queries share, up to `heads`."""
    return each if each.shape[1] == heads else each.repeat_interleave(heads // each.shape[1], 1)


# ------------------------------------------------------------------------------------------- transformers


def switchable(model: Any) -> str:
    """Say why a model's attention cannot be packed, as far as its configuration tells; "" where it may be."""
    other = {str(each._attn_implementation) for each in _configs(model)} - {"sdpa", NAME}
    return f"its attention is {', '.join(sorted(other))}, and not sdpa" if other else ""


def switch(model: Any, name: str = NAME) -> None:
    """Let a model's layers reach the attention here, or with `sdpa` transformers' own again."""
    library = transformers()
    library.AttentionInterface.register(NAME, _layer_attention)
    library.AttentionMaskInterface.register(NAME, _layer_mask)
    for config in _configs(model):
        config._attn_implementation_internal = name


@contextmanager
def asked_windows() -> Generator[set[int | None]]:
    """Collect the windows that a model asks masks for."""
    asked = set["int | None"]()
    token = _ASKED.set(asked)
    try:
        yield asked
    finally:
        _ASKED.reset(token)


def _configs(model: Any) -> Iterable[Any]:
    found = (getattr(module, "config", None) for module in model.modules())
    return {id(each): each for each in found if hasattr(each, "_attn_implementation")}.values()


def _layer_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    packed: PackedAttention | None = None,
    sliding_window: int | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers calls it: [1, heads, N, size] in, [1, N, heads, size] out."""
    if packed is None:
        sdpa = transformers().AttentionInterface()["sdpa"]
        given = more | {"dropout": dropout, "scaling": scaling, "sliding_window": sliding_window}
        told: tuple[Tensor, None] = sdpa(module, query, key, value, attention_mask, **given)
        return told
    wrong = [name for name in _NOT_HONOURED if more.get(name) is not None] + ["dropout"] * bool(dropout)
    if more.get("is_causal") is False or not getattr(module, "is_causal", True):
        wrong.append("attention to later tokens")
    if wrong:
        raise LawError(f"attention of packed tokens knows no {', '.join(wrong)}")
    return packed.attend(query, key, value, scaling, sliding_window), None


def _layer_mask(*args: Any, **given: Any) -> Any:
    """Make the mask that SDPA needs, or none, and note the window, where `asked_windows` collects them."""
    asked = _ASKED.get()
    if asked is None:
        return transformers().AttentionMaskInterface()["sdpa"](*args, **given)
    asked.add(given.get("local_size"))
    return None
