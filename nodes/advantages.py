"""Advantages from the scores of responses to one prompt, a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from flowgraph import Measure, Metric, NodeKind, node
from flowgraph.values import Group
from nodes.values import Advantages, Scores

if TYPE_CHECKING:
    from torch import Tensor

SIGNAL = (Metric("no_signal", about="share of groups whose responses all score the same"),)


@node(kind=NodeKind.ADVANTAGE, metrics=SIGNAL)
def group_normalize(
    scores: Scores, group: Group, *, deviation: bool = True, eps: Annotated[float, Field(gt=0)] = 1e-6
) -> Advantages:
    """Normalise scores within each group: (score - mean) / (sample deviation + eps), or without the deviation.

    [B] scores to [B] advantages. A group of one keeps its score (mean 0, deviation 1); equal scores give 0.
    Source: Shao et al. 2024 (GRPO), arXiv 2402.03300, section 4.1.2; without deviation: Liu et al. 2025 (Dr. GRPO),
    arXiv 2503.20783.
    """
    import torch

    index, counts = _index(group)
    mean = torch.where(counts > 1, _sum(scores.data, index, counts) / counts, 0.0)
    centred = scores.data - mean[index]
    spread = torch.where(counts > 1, (_sum(centred**2, index, counts) / (counts - 1).clamp(min=1)).sqrt(), 1.0)
    given = centred / (spread[index] + eps) if deviation else centred
    return Advantages(given, [_no_signal(scores.data, index, counts)])


@node(kind=NodeKind.ADVANTAGE, separable=False, metrics=(*SIGNAL, Metric("alpha", about="B / rows with a score")))
def gpg_advantages(scores: Scores, group: Group) -> Advantages:
    """Centre scores within each group and scale by alpha = rows / max(1, rows whose score is not 0) of the batch.

    [B] scores to [B] advantages; a group of one is not centred.
    Source: Chu et al. 2025 (GPG), arXiv 2504.02546, equation 7, with its normaliser 1.
    """
    import torch

    index, counts = _index(group)
    mean = torch.where(counts > 1, _sum(scores.data, index, counts) / counts, 0.0)
    alpha = len(index) / max(1, int((scores.data != 0).sum()))
    measures = [_no_signal(scores.data, index, counts), Measure("alpha", alpha, 1)]
    return Advantages(alpha * (scores.data - mean[index]), measures)


def _index(group: Group) -> tuple[Tensor, Tensor]:
    """Give each row's place among the groups [B], and the size of each group [G]."""
    import torch

    _, index, counts = torch.unique(group.data, return_inverse=True, return_counts=True)
    return index, counts


def _sum(values: Tensor, index: Tensor, counts: Tensor) -> Tensor:
    return values.new_zeros(len(counts)).index_add(0, index, values)


def _no_signal(scores: Tensor, index: Tensor, counts: Tensor) -> Measure:
    low = scores.new_full((len(counts),), float("inf")).scatter_reduce(0, index, scores, "amin")
    high = scores.new_full((len(counts),), float("-inf")).scatter_reduce(0, index, scores, "amax")
    return Measure("no_signal", float((low == high).sum()), len(counts))
