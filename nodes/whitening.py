"""Whitening: advantages normalised over all tokens of the batch. Over groups it is done in `advantages`."""

from __future__ import annotations

from flowgraph import node
from flowgraph.language.values import Mask
from nodes.terms import masked
from nodes.values import Advantages, TokenAdvantages

LEAST_VARIANCE = 1e-8  # added to the variance, so that equal advantages do not divide by 0; as verl has it


@node(kind="advantage", separable=False)
def whiten(advantages: Advantages, mask: Mask, *, shift_mean: bool = True) -> TokenAdvantages:
    """Scale advantages to variance 1 over all tokens that the mask keeps in the batch, and shift their mean to 0.

    [B], the same for each of a response's tokens, or [B, T], to [B, T]: (A - mean) / √(sample variance + 1e-8), and
    without `shift_mean` the mean added again; 0 where the mask is 0. A single token has variance 0: it gives 0, or
    itself without the shift. No token, nothing to do.
    Source: the per-batch normalisation of Andrychowicz et al. 2020, arXiv 2006.05990; constants as verl's
    `masked_whiten`. Deviation: verl's mean is over the count + 1e-8, so that equal advantages A give A·1e-4 / count
    there, and exactly 0 here; and it refuses a single token.
    """
    import torch

    kept = mask.data != 0
    given = torch.zeros_like(kept, dtype=torch.float64) + advantages.per_token()
    values = given[kept]
    low = values.min() if len(values) else 0.0  # counted from the lowest, equal advantages give exactly 0
    mean = low + (values - low).mean()
    variance = ((values - mean) ** 2).sum() / max(1, len(values) - 1)
    white = (given - mean) * (variance + LEAST_VARIANCE).rsqrt() + (0.0 if shift_mean else mean)
    data = advantages.data
    dtype = data.dtype if data.is_floating_point() else torch.float32
    return TokenAdvantages(masked(white, mask).to(dtype))
