"""What layers keep between tokens, and the work of reading it: attention of several kinds, and recurrent states.

Caches and FLOPs are counted from this data. Not here: the weights.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attention:
    """Layers with the same attention; each layer caches `cached` numbers for each token.

    A pair of a token and one that it attends to takes `products` multiplications in a layer. `window` bounds the tokens
    that are cached; `picks` bounds those of them that a token attends to, chosen by `scan` multiplications for every
    pair. If one entry is cached for `stride` tokens, these numbers count entries.
    """

    layers: int
    products: int
    cached: int
    window: int | None = None
    picks: int | None = None
    scan: int = 0
    stride: int = 1

    def cache_numbers(self, context_tokens: int) -> int:
        """Return the elements (not bytes) in the KV cache of one sequence of this length, over all these layers.

        >>> Attention(2, 64, 16, window=128).cache_numbers(1000)
        4096
        """
        entries = context_tokens // self.stride
        return self.layers * self.cached * (entries if self.window is None else min(entries, self.window))

    def pass_products(self, tokens: int, pairs: int) -> int:
        """Count the multiplications of a pass of `tokens`; `pairs` are counted as under full causal attention.

        A window or picks bound the pairs of each token.
        Deviation: the first tokens of a long sequence, which have fewer tokens before them, are counted like the rest.
        """
        entries = pairs // self.stride
        limit = min((limit for limit in (self.window, self.picks) if limit is not None), default=None)
        read = entries if limit is None else min(entries, limit * tokens)
        return self.layers * (self.products * read + self.scan * entries)


@dataclass(frozen=True)
class Recurrent:
    """Layers that keep `state` numbers for a sequence of any length; a token takes `products` multiplications.

    These are linear attention and state-space layers.
    """

    layers: int
    state: int
    products: int

    def cache_numbers(self, context_tokens: int) -> int:
        """Count the numbers that are kept for one sequence."""
        return self.layers * self.state * (context_tokens > 0)

    def pass_products(self, tokens: int, pairs: int) -> int:
        """Count the multiplications of a pass by the recurrence; kernels that work in chunks need more."""
        return self.layers * self.products * tokens


Mixer = Attention | Recurrent


def grouped(layers: int, heads: int, kv_heads: int, head_dim: int, window: int | None = None) -> Attention:
    """Return layers of plain attention, whose heads share keys and values in groups.

    Each pair has a product with the key and one with the value in each head; both are cached for each KV head.
    Source: Pope et al. 2022, arXiv 2211.05102, section 3.3; Narayanan et al. 2021, arXiv 2104.04473, appendix.

    >>> grouped(2, 8, 2, 16)
    Attention(layers=2, products=256, cached=64, window=None, picks=None, scan=0, stride=1)
    """
    return Attention(layers, 2 * heads * head_dim, 2 * kv_heads * head_dim, window)
