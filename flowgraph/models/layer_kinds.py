"""Kinds of layers that mix tokens, with their caches and their work: attention of several kinds, and recurrent states.

Cache sizes and FLOPs are computed from these data. Not here: the weights.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attention:
    """A group of `layers` with the same attention; each layer caches `cached` numbers per token.

    In each layer, a pair of a token and one that it attends to takes `products` multiplications. `window` is the
    largest number of tokens that are cached; `picks` is the largest number of these that a token attends to, chosen
    with `scan` multiplications for every pair. If `stride` tokens share one cache entry, all these numbers count
    entries.
    """

    layers: int
    products: int
    cached: int
    window: int | None = None
    picks: int | None = None
    scan: int = 0
    stride: int = 1

    def cache_numbers(self, context_tokens: int) -> int:
        """Return the number of elements (not bytes) in the KV cache of one sequence, over all these layers.

        >>> Attention(2, 64, 16, window=128).cache_numbers(1000)
        4096
        """
        entries = context_tokens // self.stride
        return self.layers * self.cached * (entries if self.window is None else min(entries, self.window))

    def pass_products(self, tokens: int, pairs: int) -> int:
        """Return the number of multiplications of attention in a pass over `tokens` tokens, in all these layers.

        `pairs` is the number of pairs (token, earlier token or itself) under full causal attention; `window`, `picks`
        and `stride` reduce this number here.

        Deviation: the first tokens of a long sequence, which have fewer tokens before them, are counted like the rest.
        """
        entries = pairs // self.stride
        limit = min((limit for limit in (self.window, self.picks) if limit is not None), default=None)
        read = entries if limit is None else min(entries, limit * tokens)
        return self.layers * (self.products * read + self.scan * entries)


@dataclass(frozen=True)
class Recurrent:
    """A group of `layers` of linear attention or state-space layers, with a state of fixed size.

    Each layer keeps `state` numbers for a sequence of any length; a token takes `products` multiplications.
    """

    layers: int
    state: int
    products: int

    def cache_numbers(self, context_tokens: int) -> int:
        """Return the number of elements (not bytes) in the states of one sequence, in all layers; 0 without context."""
        return self.layers * self.state * (context_tokens > 0)

    def pass_products(self, tokens: int, pairs: int) -> int:
        """Return the number of multiplications of the recurrence in a pass over `tokens` tokens, in all these layers.

        `pairs` is not used. Kernels that compute in chunks need more multiplications.
        """
        return self.layers * self.products * tokens


Mixer = Attention | Recurrent


def grouped_query_attention(
    layers: int, heads: int, kv_heads: int, head_dim: int, window: int | None = None
) -> Attention:
    """Return a group of `layers` layers of grouped-query attention; `window` is in tokens, None for full attention.

    For each query head, a pair of tokens needs `head_dim` multiplications with the key and as many with the value; keys
    and values are cached for each KV head.

    Source: Pope et al. 2022, arXiv 2211.05102, section 3.3; Narayanan et al. 2021, arXiv 2104.04473, appendix.

    >>> grouped_query_attention(2, 8, 2, 16)
    Attention(layers=2, products=256, cached=64, window=None, picks=None, scan=0, stride=1)
    """
    return Attention(layers, 2 * heads * head_dim, 2 * kv_heads * head_dim, window)
