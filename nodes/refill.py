"""Refill: draw responses until the batch is full of groups with signal, within bounds.

How one response is drawn is in `sampling`, how it is scored in `scoring`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from flowgraph import Key, Measure, Metric, node
from flowgraph.language.rows import take
from flowgraph.language.values import Kind, Value
from nodes.sampling import METRICS as OF_SAMPLING
from nodes.sampling import generate
from nodes.scoring import METRICS as OF_SCORING
from nodes.scoring import Rule, score
from nodes.values import LanguageModel, Prompts, Rollout, Scores

if TYPE_CHECKING:
    from torch import Tensor

METRICS = (
    Metric("rounds", headline=True, about="rounds that were drawn"),
    Metric("groups_tried", about="prompts that responses were drawn to"),
    Metric("groups_kept", headline=True, about="prompts whose responses are kept"),
    Metric("no_signal", about="share of the groups tried whose responses all score the same"),
)


class ScoredRollout(Rollout):
    """Sampled responses, each with its score."""

    scores: Scores


@node(kind="generate", regroups=True, metrics=(*OF_SCORING, *OF_SAMPLING, *METRICS))
def refill(
    policy: LanguageModel,
    prompts: Prompts,
    *,
    groups: Annotated[int, Field(ge=1)],
    rounds: Annotated[int, Field(ge=1)] = 3,
    n: Annotated[int, Field(ge=1)] = 8,
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0,
    max_tokens: Annotated[int, Field(ge=1)] = 256,
    by: Rule = "data",
    format_score: float | None = None,
    workers: Annotated[int, Field(ge=1, le=256)] = 1,
    limit_s: Annotated[float, Field(gt=0)] = 10.0,
    call_limit_s: Annotated[float, Field(gt=0)] | None = None,
    on_error: float | Literal["fail"] = "fail",
    allow: tuple[str, ...] = (),
    key: Key = Key(),
) -> ScoredRollout:
    """Draw `n` responses to prompt after prompt, score them, and keep `groups` groups with signal.

    A group, the responses to one prompt, has signal if its scores differ; one of a single response always has. The
    step's prompts are cut into `rounds`, as evenly as they divide, in an order of their own each step. A round draws to
    its prompts; after the round that fills the batch no more is drawn, and what is over is dropped. If too few have
    signal the batch is smaller, but it holds one group at least. Metrics of sampling and scoring tell of all that was
    drawn. Nothing depends on how the prompts are split over ranks, nor does a response on its round.
    Source: Yu et al. 2025 (DAPO), arXiv 2503.14476, section 3.2. Deviation: bounded by `rounds`.
    """
    import torch

    done, kept, tried, ranks = list[ScoredRollout](), list[int](), 0, policy.handle.ranks
    order = _shuffled(torch.unique(ranks.union(prompts.group.data)), key)
    more: Any = {"workers": workers, "limit_s": limit_s, "call_limit_s": call_limit_s, "allow": allow}
    for part in torch.tensor_split(order, max(1, min(rounds, len(order)))):
        mine = take(prompts, torch.isin(prompts.group.data, part).nonzero()[:, 0])
        drawn = generate(policy, mine, n=n, temperature=temperature, max_tokens=max_tokens, key=key)
        scores = score(drawn, by=by, format_score=format_score, on_error=on_error, **more)
        done.append(_scored(drawn, scores))
        signal = set(ranks.union(_with_signal(done[-1])).tolist())
        kept += [group for group in part.tolist() if group in signal]
        tried += len(part)
        if len(kept) >= groups:
            break
    chosen = kept[:groups] or order[:1].tolist()
    return take(_joined(done), _rows_of(chosen, [each.group.data for each in done], prompts)).measured(
        *(measure for each in done for measure in each.measures),
        Measure("rounds", len(done), 1),
        Measure("groups_tried", tried, 1),
        Measure("groups_kept", len(chosen), 1),
        Measure("no_signal", tried - len(kept), tried),
    )


def _shuffled(groups: Tensor, key: Key) -> Tensor:
    """Put groups [G], ascending, into the order that the key names."""
    import numpy as np
    import torch

    words = key.generator().bit_generator.random_raw(len(groups))
    return groups[torch.from_numpy(np.argsort(words, kind="stable"))]


def _scored(rollout: Rollout, scores: Scores) -> ScoredRollout:
    parts: dict[str, Any] = {**rollout.parts, "scores": scores}
    return ScoredRollout(**parts).measured(*rollout.measures, *scores.measures)


def _with_signal(rollout: ScoredRollout) -> Tensor:
    """Give the groups whose scores differ, and those of one response."""
    import torch

    groups, index, counts = torch.unique(rollout.group.data, return_inverse=True, return_counts=True)
    scores, none = rollout.scores.data, torch.zeros(len(groups))
    low = none.scatter_reduce(0, index, scores, "amin", include_self=False)
    high = none.scatter_reduce(0, index, scores, "amax", include_self=False)
    found: Tensor = groups[(low < high) | (counts == 1)]
    return found


def _rows_of(chosen: Sequence[int], drawn: Sequence[Tensor], prompts: Prompts) -> Tensor:
    """Give the rows [b] of the chosen groups among all that were drawn, in the order of the prompts.

    That is the order in which `generate` gives them, and in which rows of several ranks come together.
    """
    import torch

    kept = set(chosen)
    places = {group: place for place, group in enumerate(prompts.group.data.tolist()) if group in kept}
    groups = torch.cat(list(drawn)).tolist()
    rows = [row for row, group in enumerate(groups) if group in places]
    return torch.tensor(sorted(rows, key=lambda row: places[groups[row]]), dtype=torch.int64)


def _joined(rollouts: Sequence[ScoredRollout]) -> ScoredRollout:
    """Put the rows of rollouts one below the other, token columns as wide as the widest."""
    names = rollouts[0].parts
    parts: dict[str, Any] = {name: _stacked([each.parts[name] for each in rollouts]) for name in names}
    return ScoredRollout(**parts)


def _stacked(values: Sequence[Value]) -> Value:
    import pyarrow as pa
    import torch

    first, columns = values[0], [value.data for value in values]
    if first.kind not in (Kind.ROW, Kind.TOKEN):
        return first
    if isinstance(first.data, pa.Table):
        return type(first)(pa.concat_tables(columns))
    if not isinstance(first.data, torch.Tensor):
        return type(first)(pa.concat_arrays(columns))
    if first.kind is Kind.TOKEN:
        width = max(column.shape[1] for column in columns)
        columns = [torch.nn.functional.pad(column, (0, width - column.shape[1])) for column in columns]
    return type(first)(torch.cat(columns))
