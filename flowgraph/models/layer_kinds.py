"""What layers remember of the tokens before, and what reading that takes: attention of several reaches, and states.

Data, by which caches and FLOPs are counted. Not here: the weights around it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attention:
    """Layers that attend alike; of each token a layer keeps `cached` numbers.

    A pair of a token and one that it attends to takes `products` multiplications in a layer. `window` is the most
    tokens that are kept; `picks` the most of all kept ones that a token attends to, found by `scan` multiplications for
    every pair; where one entry is kept for each `stride` tokens, these counts are of entries.
    """

    layers: int
    products: int
    cached: int
    window: int | None = None
    picks: int | None = None
    scan: int = 0
    stride: int = 1

    def cache_numbers(self, context_tokens: int) -> int:
        """Count the numbers that are kept of one sequence of that length.

        >>> Attention(2, 64, 16, window=128).cache_numbers(1000)
        4096
        """
        entries = context_tokens // self.stride
        return self.layers * self.cached * (entries if self.window is None else min(entries, self.window))

    def pass_products(self, tokens: int, pairs: int) -> int:
        """Count the multiplications of a pass of so many tokens; `pairs` are counted as if each attended to all before.

        A window or a pick leaves at most so many for each token.
        Deviation: that the first tokens of a long sequence have fewer before them is left out.
        """
        entries = pairs // self.stride
        limit = min((each for each in (self.window, self.picks) if each is not None), default=None)
        read = entries if limit is None else min(entries, limit * tokens)
        return self.layers * (self.products * read + self.scan * entries)


@dataclass(frozen=True)
class Recurrent:
    """Layers that keep `state` numbers of a sequence, whatever its length; a token takes `products` multiplications.

    Linear attention and state-space layers are such.
    """

    layers: int
    state: int
    products: int

    def cache_numbers(self, context_tokens: int) -> int:
        """Count the numbers that are kept of one sequence."""
        return self.layers * self.state * (context_tokens > 0)

    def pass_products(self, tokens: int, pairs: int) -> int:
        """Count the multiplications of a pass by the recurrence; kernels that take tokens in chunks do more."""
        return self.layers * self.products * tokens


Mixer = Attention | Recurrent


def grouped(layers: int, heads: int, kv_heads: int, head_dim: int, window: int | None = None) -> Attention:
    """Give layers of plain attention, whose heads share keys and values in groups.

    Each pair has a product with the key and one with the value in each head; both are kept for each KV head.
    Source: Pope et al. 2022, arXiv 2211.05102, section 3.3; Narayanan et al. 2021, arXiv 2104.04473, appendix.

    >>> grouped(2, 8, 2, 16)
    Attention(layers=2, products=256, cached=64, window=None, picks=None, scan=0, stride=1)
    """
    return Attention(layers, 2 * heads * head_dim, 2 * kv_heads * head_dim, window)
