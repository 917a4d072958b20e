"""What one sequence has in the cache of an inference engine, on each device of a replica.

Not here: how much cache there is (`time.cache_capacity`), and how long it takes to read (`time.decode`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowgraph.models import ModelShape

MORE_TOKENS = 64  # of a context, by which what grows with it is told from windows that are full and from states


def sequence_bytes(shape: ModelShape, tensor: int, context_tokens: float, number_bytes: float) -> float:
    """Return the bytes of cache that a sequence of that length has on each of `tensor` devices.

    Tensor parallelism cuts keys and values by their heads, so into no more parts than these; latents not at all, and
    what does not grow with the context evenly. Source: Pope et al. 2022, arXiv 2211.05102, section 3.3; DeepSeek-AI
    2024, arXiv 2405.04434, section 2.1.
    """
    context = max(1, round(context_tokens))
    heads = 2 * shape.attention_layers * shape.kv_heads * shape.head_dim * context
    cuts = min(tensor, shape.kv_heads)
    if not shape.mixing:
        return heads / cuts * number_bytes
    numbers = shape.cache_numbers(context)
    growing = (shape.cache_numbers(context + MORE_TOKENS) - numbers) / MORE_TOKENS * context
    steady = max(0.0, numbers - growing)
    return (min(growing, numbers) / (cuts if growing >= heads else 1) + steady / tensor) * number_bytes
