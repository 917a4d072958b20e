"""Logits of the tokens that a truncation keeps, for the sampler and for the forward pass that reads its samples."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from flowgraph.language.handle import Truncation


def truncated(logits: Tensor, truncation: Truncation, tokens: Tensor | None = None) -> Tensor:
    """Return logits [..., V] with -inf for the tokens that `truncation` leaves out.

    `logits` must already be divided by the temperature. The sampled `tokens` [...] keep their logits even if
    `truncation` leaves them out: otherwise, a policy updated after sampling could give them a log-prob of -inf. Tokens
    with the same logit as the last token that is kept are kept too. Gradients flow through the logits that are kept.

    Source: top-k: Fan, Lewis and Dauphin 2018, arXiv 1805.04833; top-p: Holtzman et al. 2019, arXiv 1904.09751; min-p:
    Nguyen et al. 2024, arXiv 2407.01082.
    """
    with torch.no_grad():
        lowest = torch.full_like(logits[..., :1], -math.inf)
        if truncation.top_k:
            lowest = logits.topk(min(truncation.top_k, logits.shape[-1]), -1).values[..., -1:]
        if truncation.top_p < 1:
            ordered = logits.masked_fill(logits < lowest, -math.inf).sort(-1, descending=True).values
            likely = ordered.softmax(-1)
            count = (likely.cumsum(-1) - likely < truncation.top_p).sum(-1, keepdim=True)
            lowest = torch.maximum(lowest, ordered.gather(-1, count.clamp(min=1) - 1))
        if truncation.min_p:
            lowest = torch.maximum(lowest, logits.amax(-1, keepdim=True) + math.log(truncation.min_p))
        removed = logits < lowest
        if tokens is not None:
            removed = removed.scatter(-1, tokens[..., None], False)
    return logits.masked_fill(removed, -math.inf)
