"""FLOPs of decoder passes, from sizes and token counts. Only matrix products are counted; the rest is small.

A multiply and an add are two FLOPs. Attention counts the pairs that the mask keeps: a token attends to itself and to
those before it. Kernels that also compute masked pairs do up to twice as much.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowgraph.models import ModelShape

BACKWARD = 2  # backward passes: one product for the gradient of each factor


@dataclass(frozen=True)
class ModelPass:
    """The size of a pass through a model: `tokens`, `read_out` tokens with logits, and attention `pairs`."""

    tokens: int = 0
    read_out: int = 0
    pairs: int = 0

    def __add__(self, added: ModelPass) -> ModelPass:
        return ModelPass(self.tokens + added.tokens, self.read_out + added.read_out, self.pairs + added.pairs)

    def times(self, count: int) -> ModelPass:
        """Return the size of `count` such passes together."""
        return ModelPass(self.tokens * count, self.read_out * count, self.pairs * count)


def forward_flops(shape: ModelShape, passed: ModelPass) -> int:
    """Return the FLOPs of a forward pass: 2 · weights · tokens, and 4 · layers · heads · head dimension · pairs.

    Each token is multiplied with the weights of all layers, but only with the experts that it is sent to; a token with
    logits also with the head. The embedding is looked up. Layers with a window have fewer pairs, layers with a state a
    fixed cost for each token, and with latent attention a key is wider than a value. Source: Kaplan et al. 2020, arXiv
    2001.08361, section 2.1; Narayanan et al. 2021, arXiv 2104.04473, appendix. Unlike there, masked pairs are not
    counted.
    """
    weights = shape.matmul_parameters * passed.tokens + shape.outputs * shape.hidden * passed.read_out
    return 2 * (weights + shape.attention_products(passed.tokens, passed.pairs))


def training_flops(shape: ModelShape, passed: ModelPass) -> int:
    """Return the FLOPs of a forward and a backward pass: three times a forward pass, without recomputation.

    If only adapters are trained, the FLOPs are twice those of a forward pass, because frozen weights have no gradient.
    The result is slightly too high: a context needs only keys and values in the last layer, so most of its backward
    pass there is not done. Source: Kaplan et al. 2020, arXiv 2001.08361, section 2.1: a backward pass is twice a
    forward pass.
    """
    return (BACKWARD if shape.adapters else 1 + BACKWARD) * forward_flops(shape, passed)


def decoding(contexts: int, rows: int, prompt_tokens: int, response_tokens: int) -> ModelPass:
    """Return the size of generating `rows` responses: each context is read once, and every response token but the last.

    The `contexts` prompts have `prompt_tokens` tokens each, and the responses `response_tokens`. The last token of a
    context and the response tokens that are read have logits.

    >>> decoding(1, 2, 3, 4)
    ModelPass(tokens=9, read_out=7, pairs=36)
    """
    steps = response_tokens - 1
    prefill = ModelPass(prompt_tokens, 1, prompt_tokens * (prompt_tokens + 1) // 2)
    decode = ModelPass(steps, steps, steps * prompt_tokens + steps * (steps + 1) // 2)
    return prefill.times(contexts) + decode.times(rows)


def reading(contexts: int, rows: int, prompt_tokens: int, response_tokens: int) -> ModelPass:
    """Return the size of one pass over `rows` responses and their `contexts` contexts, each read once.

    All contexts have `prompt_tokens` tokens, and all responses `response_tokens`. A context is read without its last
    token (but at least one token). Each response starts with that last token, and is read without its own last token.
    One token of each context and all tokens of responses have logits.

    >>> reading(1, 2, 3, 4)
    ModelPass(tokens=10, read_out=9, pairs=39)
    """
    before = max(1, prompt_tokens - 1)
    context = ModelPass(before, 1, before * (before + 1) // 2)
    response = ModelPass(
        response_tokens, response_tokens, response_tokens * prompt_tokens + response_tokens * (response_tokens - 1) // 2
    )
    return context.times(contexts) + response.times(rows)


def contexts_read(groups: int, n: int, take: int) -> int:
    """Return how often contexts are read if the rows of `groups` groups of `n` rows are cut into parts of `take` rows.

    Rows of a group have one context and are consecutive; the context of a group that is cut is read once in each part.

    >>> contexts_read(2, 4, 8), contexts_read(2, 4, 3), contexts_read(3, 4, 1)
    (2, 4, 12)
    """
    cuts = -(-groups * n // take) - 1
    between = cuts // (n // gcd(n, take))  # cuts that fall between two groups
    return groups + cuts - between


def even(total: int, parts: int) -> Iterator[tuple[int, int]]:
    """Yield (size, number of parts with that size) if `total` is divided as evenly as possible into `parts` parts.

    The larger size comes first.

    >>> list(even(7, 3)), list(even(2, 3))
    ([(3, 1), (2, 2)], [(1, 2), (0, 1)])
    """
    size, larger = divmod(total, parts)
    yield from ((tokens, count) for tokens, count in ((size + 1, larger), (size, parts - larger)) if count)
