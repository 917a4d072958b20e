"""Attention over packed tokens: each run attends to itself and to the run that it continues, by one of four kernels.

Layers reach it through transformers' `AttentionInterface`, under the name `packed_tokens`. A call without `packed=`
uses SDPA, so the name may stay set. Layers that run again in a backward pass (activation checkpointing) pass `packed=`
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
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

    from flowgraph.engines.fsdp.ranks import ProcessRanks

NAME = "packed_tokens"
Way = Literal["segments", "mask", "varlen", "flex"]
_UNSUPPORTED = ("softcap", "s_aux", "position_bias")  # arguments of some models that no kernel here has
_WINDOWS: ContextVar[set[int | None] | None] = ContextVar("windows that a model requests masks for", default=None)


@dataclass(eq=False)
class PackedAttention:
    """The attention of one forward pass over packed tokens, computed by the kernel that `way` names.

    `segments` describe all tokens, even if each rank of `sequence` runs only a slice of them. `windows` collects the
    sliding windows that layers request, in tokens; None means no limit. "varlen" (half precision) and "flex" need CUDA.
    """

    segments: Segments
    way: Way
    device: Any
    sequence: ProcessRanks | None = None
    windows: set[int | None] = field(default_factory=set["int | None"])
    _cache: dict[Any, Any] = field(default_factory=dict[Any, Any])

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
        """Return the attention output [1, N, heads, size] for `query` [1, heads, N, size].

        `key` and `value` may have fewer heads (grouped-query attention). `scale` None means 1 / sqrt(size). With a
        `window`, each token attends to itself and at most `window` - 1 tokens before it; None means no limit. With
        sequence parallelism, N is the length of this rank's slice of the tokens, and every rank must call this. Raises
        LawError if the number of these ranks does not divide the number of query heads.
        """
        self.windows.add(window)
        ways = {"segments": self._segments, "mask": self._mask, "varlen": self._varlen, "flex": self._flex}
        if self.sequence is None:
            return ways[self.way](query, key, value, scale, window)
        query, key, value = all_tokens(query, key, value, self.sequence)
        return own_tokens(ways[self.way](query, key, value, scale, window), self.sequence)

    def _segments(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
        width = query.shape[1] * query.shape[3]
        buckets, back = self._cached("buckets", lambda: bucketed(self.segments, width, self.device))
        queries, keys, values = (tensor[0].transpose(0, 1) for tensor in (query, key, value))

        def read(bucket: Bucket) -> Tensor:  # [tokens, heads, size]
            query = _runs(queries, bucket.queries, bucket.runs)
            key, value = (_runs(tensor, bucket.keys, bucket.runs) for tensor in (keys, values))
            dtype = query.dtype
            mask = self._cached((id(bucket), window, dtype), lambda: bucket.mask(window, dtype))
            return _sdpa(query, key, value, mask, scale).transpose(1, 2).flatten(0, 1)

        return torch.cat([read(bucket) for bucket in buckets]).index_select(0, back)[None]

    def _mask(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
        """Attend over all pairs of tokens under an explicit mask: the reference, which needs N² memory."""
        mask = self._cached(window, lambda: segment_mask(self.segments, window, self.device))
        return _sdpa(query, key, value, mask, scale).transpose(1, 2)

    def _varlen(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
        """Attend with torch's variable-length flash attention: on CUDA, in half precision.

        If a run has fewer queries than keys, the kernel aligns its causal mask to the lower right corner, as is needed
        here.

        Source: Dao 2023, arXiv 2307.08691; the FlashAttention 2.1 change of causal masks.
        """
        untyped: Any = varlen
        index, ends, longest = self._cached("varlen", lambda: run_keys(self.segments, self.device))
        heads = query.shape[1]
        out: Tensor = untyped.varlen_attn(
            query[0].transpose(0, 1).contiguous(),
            *(_repeated(tensor, heads)[0].transpose(0, 1).index_select(0, index) for tensor in (key, value)),
            *ends,
            *longest,
            scale=scale,
            window_size=(-1 if window is None else window - 1, 0),
        )
        return out[None]

    def _flex(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
        """Attend with compiled flex attention, on CUDA, which skips blocks of the mask that are false everywhere."""
        mask = self._cached(window, lambda: flex_block_mask(self.segments, window, self.device))
        grouped = key.shape[1] != query.shape[1]
        out: Tensor = _compiled_flex()(query, key, value, block_mask=mask, scale=scale, enable_gqa=grouped)
        return out.transpose(1, 2)

    def _cached(self, name: Any, make: Callable[[], Any]) -> Any:
        if name not in self._cache:
            self._cache[name] = make()
        return self._cache[name]


def segment_mask(segments: Segments, window: int | None, device: Any) -> Tensor:
    """Return the attention mask [N, N] of packed tokens: entry [i, j] is true if token i attends to token j.

    A run is one context or one response in the packed row. A token attends to itself, to the earlier tokens of its run,
    and to all tokens of the run that its run continues. With a `window`, it attends only to the last `window` of these
    tokens, including itself; None means no limit.
    """
    token = torch.arange(int(segments.tokens.sum()), device=device)
    mask: Tensor = _sees(segments, window, device)(token[:, None], token[None])
    return mask


def _sees(segments: Segments, window: int | None, device: Any) -> Callable[[Any, Any], Any]:
    """Return a function of token and key indices (numbers or tensors) that is true if the token attends to the key."""
    runs = (segments.start, segments.before_start, segments.before)
    columns = [np.repeat(column, segments.tokens) for column in runs]
    columns.append(ranges(segments.before, segments.tokens))
    start, before_start, before, position = (torch.from_numpy(column).to(device) for column in columns)

    def sees(token: Any, key: Any) -> Any:
        in_run = (key >= start[token]) & (key <= token)
        in_context = (key >= before_start[token]) & (key < before_start[token] + before[token])
        in_window = position[key] > position[token] - (window or len(start))
        return (in_run | in_context) & in_window

    return sees


def run_keys(segments: Segments, device: Any) -> tuple[Tensor, tuple[Tensor, Tensor], tuple[int, int]]:
    """Return the inputs of variable-length attention: (key indices, cumulative lengths, longest lengths).

    A run is one context or one response in the packed row. The indices [keys] select the packed tokens that are keys of
    a run, one run after another. The cumulative lengths are two int32 tensors [runs + 1] that start at 0, for queries
    and for keys. The longest lengths are the largest numbers of queries and of keys in one run.
    """
    keys = segments.before + segments.tokens
    counts = np.stack([segments.before, segments.tokens], 1).reshape(-1)
    index = ranges(np.stack([segments.before_start, segments.start], 1).reshape(-1), counts)
    ends = [np.concatenate([[0], sizes.cumsum()]).astype(np.int32) for sizes in (segments.tokens, keys)]
    ends_of = (torch.from_numpy(ends[0]).to(device), torch.from_numpy(ends[1]).to(device))
    return torch.from_numpy(index).to(device), ends_of, (int(segments.tokens.max()), int(keys.max()))


def flex_block_mask(segments: Segments, window: int | None, device: Any) -> Any:
    """Return the block mask for torch's flex attention that has the same true entries as `segment_mask`."""
    untyped: Any = flex
    sees, count = _sees(segments, window, device), int(segments.tokens.sum())
    return untyped.create_block_mask(
        lambda _batch, _head, token, key: sees(token, key), None, None, count, count, device=str(device)
    )


@cache
def _compiled_flex() -> Any:
    untyped: Any = flex
    return torch.compile(untyped.flex_attention, dynamic=True)


def _runs(tensor: Tensor, index: Tensor, runs: int) -> Tensor:
    """Select [runs, heads, tokens, size] from [N, heads, size]."""
    return tensor.index_select(0, index).reshape(runs, -1, *tensor.shape[1:]).transpose(1, 2)


def _sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """Run SDPA, causal without a mask; with one, query heads that share a key head are queries of one head."""
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    groups = query.shape[1] // key.shape[1]
    if mask is None:
        key, value = (_repeated(tensor, query.shape[1]) for tensor in (key, value))
        return sdpa(query, key, value, is_causal=True, scale=scale)
    if groups == 1:
        return sdpa(query, key, value, attn_mask=mask, scale=scale)
    folded = query.reshape(*key.shape[:2], groups * query.shape[2], -1)
    mask = mask.repeat(*[1] * (mask.dim() - 2), groups, 1)
    return sdpa(folded, key, value, attn_mask=mask, scale=scale).reshape(*query.shape[:3], -1)


def _repeated(tensor: Tensor, heads: int) -> Tensor:
    return tensor if tensor.shape[1] == heads else tensor.repeat_interleave(heads // tensor.shape[1], 1)


# ------------------------------------------------------------------------------------------- transformers


def attention_obstacle(model: Any) -> str:
    """Return why a model's attention cannot be replaced by packed attention, as a clause; "" if it can be replaced.

    Only attention that is configured as `sdpa`, or as packed attention already, can be replaced.
    """
    unknown = {str(config._attn_implementation) for config in _configs(model)} - {"sdpa", NAME}
    return f"its attention is {', '.join(sorted(unknown))}, and not sdpa" if unknown else ""


def set_attention(model: Any, name: str = NAME) -> None:
    """Set the attention of all layers of a model, in place: to packed attention, or to `name`, such as "sdpa".

    Also registers packed attention with transformers, in this process.
    """
    library = transformers()
    library.AttentionInterface.register(NAME, _layer_attention)
    library.AttentionMaskInterface.register(NAME, _layer_mask)
    for config in _configs(model):
        config._attn_implementation_internal = name


@contextmanager
def requested_windows() -> Generator[set[int | None]]:
    """Yield a set that collects the attention windows for which a model requests masks inside the `with` block.

    Only models whose attention `set_attention` has replaced are observed; they get no masks inside the block. Windows
    are in tokens; the set contains None if a model requests a mask without a window.
    """
    windows = set["int | None"]()
    token = _WINDOWS.set(windows)
    try:
        yield windows
    finally:
        _WINDOWS.reset(token)


def _configs(model: Any) -> Iterable[Any]:
    configs = (getattr(module, "config", None) for module in model.modules())
    return {id(config): config for config in configs if hasattr(config, "_attn_implementation")}.values()


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
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention for transformers, by SDPA without `packed`; raise LawError for options that packing lacks."""
    if packed is None:
        sdpa = transformers().AttentionInterface()["sdpa"]
        options |= {"dropout": dropout, "scaling": scaling, "sliding_window": sliding_window}
        result: tuple[Tensor, None] = sdpa(module, query, key, value, attention_mask, **options)
        return result
    wrong = [name for name in _UNSUPPORTED if options.get(name) is not None] + ["dropout"] * bool(dropout)
    if options.get("is_causal") is False or not getattr(module, "is_causal", True):
        wrong.append("attention to later tokens")
    if wrong:
        raise LawError(f"attention of packed tokens does not support {', '.join(wrong)}")
    return packed.attend(query, key, value, scaling, sliding_window), None


def _layer_mask(*args: Any, **options: Any) -> Any:
    windows = _WINDOWS.get()
    if windows is None:
        return transformers().AttentionMaskInterface()["sdpa"](*args, **options)
    windows.add(options.get("local_size"))
    return None
