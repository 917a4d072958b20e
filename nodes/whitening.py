"""Whitening: advantages normalised over all tokens of the batch. Normalising within groups is in `advantages`."""

from __future__ import annotations

from flowgraph import node
from flowgraph.language import NodeName
from flowgraph.language.values import Mask
from nodes.losses.terms import masked
from nodes.values import Advantages, TokenAdvantages

EPSILON = 1e-8  # added to the variance, so that equal advantages do not divide by 0; the value is verl's


@node(kind="advantage", separable=False)
def whiten(advantages: Advantages, mask: Mask, *, shift_mean: bool = True, name: NodeName = "") -> TokenAdvantages:
    """Return advantages scaled to variance 1 and shifted to mean 0, over all tokens of the batch that the mask keeps.

    Advantages of responses [B] or of tokens [B, T] become [B, T]: (A - mean) / √(sample variance + 1e-8), and 0 where
    the mask is 0. Without `shift_mean` the mean is added again. A single token has variance 0: its result is 0, or A
    itself without the shift.
    Source: the per-batch normalisation of Andrychowicz et al. 2020, arXiv 2006.05990; constants of verl's
    `masked_whiten`. Deviation: verl divides by the count + 1e-8 for the mean, so equal advantages A become
    A·1e-4 / count there and exactly 0 here; verl refuses a single token.
    """
    import torch

    unmasked = mask.data != 0
    tokens = torch.zeros_like(unmasked, dtype=torch.float64) + advantages.per_token()
    values = tokens[unmasked]
    low = values.min() if len(values) else 0.0  # differences from the lowest make equal advantages exactly 0
    mean = low + (values - low).mean()
    variance = ((values - mean) ** 2).sum() / max(1, len(values) - 1)
    white = (tokens - mean) * (variance + EPSILON).rsqrt() + (0.0 if shift_mean else mean)
    data = advantages.data
    dtype = data.dtype if data.is_floating_point() else torch.float32
    return TokenAdvantages(masked(white, mask).to(dtype))
