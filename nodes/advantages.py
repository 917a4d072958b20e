"""Advantages from the scores of responses to one prompt, a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from flowgraph import Measure, Metric, node
from flowgraph.values import Group
from nodes.values import Advantages, Scores

if TYPE_CHECKING:
    from torch import Tensor

SIGNAL = (Metric("no_signal", about="share of groups whose responses all score the same"),)


@node(kind="advantage", metrics=SIGNAL)
def group_normalize(
    scores: Scores, group: Group, *, deviation: bool = True, eps: Annotated[float, Field(gt=0)] = 1e-6
) -> Advantages:
    """Normalise scores within each group: (score - mean) / (sample deviation + eps), or without the deviation.

    [B] scores to [B] advantages. A group of one keeps its score (mean 0, deviation 1); equal scores give exactly 0.
    Source: Shao et al. 2024 (GRPO), arXiv 2402.03300, section 4.1.2; without deviation: Liu et al. 2025 (Dr. GRPO),
    arXiv 2503.20783.
    """
    import torch

    index, counts = _index(group)
    centred, flat = _centred(scores, index, counts)
    spread = torch.where(counts > 1, (_sum(centred**2, index, counts) / (counts - 1).clamp(min=1)).sqrt(), 1.0)
    given = centred / (spread[index] + eps) if deviation else centred
    return Advantages(given.float(), [_no_signal(flat)])


@node(kind="advantage", separable=False, metrics=(*SIGNAL, Metric("alpha", about="B / rows with a score")))
def gpg_advantages(scores: Scores, group: Group) -> Advantages:
    """Centre scores within each group and scale by alpha = rows / max(1, rows whose score is not 0) of the batch.

    [B] scores to [B] advantages; a group of one is not centred.
    Source: Chu et al. 2025 (GPG), arXiv 2504.02546, equation 7, with its normaliser 1.
    """
    index, counts = _index(group)
    centred, flat = _centred(scores, index, counts)
    alpha = len(index) / max(1, int((scores.data != 0).sum()))
    return Advantages((alpha * centred).float(), [_no_signal(flat), Measure("alpha", alpha, 1)])


def _index(group: Group) -> tuple[Tensor, Tensor]:
    """Give each row's place among the groups [B], and the size of each group [G]."""
    import torch

    _, index, counts = torch.unique(group.data, return_inverse=True, return_counts=True)
    return index, counts


def _sum(values: Tensor, index: Tensor, counts: Tensor) -> Tensor:
    return values.new_zeros(len(counts)).index_add(0, index, values)


def _centred(scores: Scores, index: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Give scores minus their group's mean [B] (a group of one has mean 0), and which groups score all the same [G].

    In float64, and exactly 0 where all score the same: the rounding of a mean, divided by eps, would be a signal.
    """
    import torch

    values = scores.data.double()
    low = values.new_full((len(counts),), float("inf")).scatter_reduce(0, index, values, "amin")
    high = values.new_full((len(counts),), float("-inf")).scatter_reduce(0, index, values, "amax")
    mean = torch.where(counts > 1, _sum(values, index, counts) / counts, 0.0)
    mean = torch.where((counts > 1) & (low == high), low, mean)
    return values - mean[index], low == high


def _no_signal(flat: Tensor) -> Measure:
    return Measure("no_signal", float(flat.sum()), len(flat))
