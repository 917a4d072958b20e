"""Refill: sample prompts until the batch has enough groups with signal, within a number of rounds.

Sampling a response is in `sampling`, scoring it in `scoring`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from flowgraph import Metric, node
from flowgraph.language import Key, Measure
from flowgraph.language.rows import take
from flowgraph.language.values import Kind, Value
from nodes.sampling import METRICS as OF_SAMPLING
from nodes.sampling import MinP, Penalty, SamplingTemperature, Stop, TopK, TopP, generate
from nodes.scoring import METRICS as OF_SCORING
from nodes.scoring import Rule, score
from nodes.scoring.remote_settings import Sandbox
from nodes.values import LanguageModel, Prompts, Rollout, Scores

if TYPE_CHECKING:
    from torch import Tensor

METRICS = (
    Metric("rounds", headline=True, about="rounds of sampling"),
    Metric("groups_tried", about="prompts for which responses were sampled"),
    Metric("groups_kept", headline=True, about="prompts whose responses are kept"),
    Metric("no_signal", about="share of tried groups whose responses all have the same score"),
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
    temperature: SamplingTemperature = 1.0,
    max_tokens: Annotated[int, Field(ge=1)] = 256,
    by: Rule = "data",
    format_score: float | None = None,
    workers: Annotated[int, Field(ge=1, le=256)] = 1,
    limit_s: Annotated[float, Field(gt=0)] = 10.0,
    call_limit_s: Annotated[float, Field(gt=0)] | None = None,
    on_error: float | Literal["fail"] = "fail",
    allow: tuple[str, ...] = (),
    confined: bool = False,
    sandbox: Sandbox = "",
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: Penalty = 1.0,
    stop: Stop = (),
    ignore_eos: bool = False,
    key: Key = Key(),
) -> ScoredRollout:
    """Sample and score `n` responses to each prompt, round by round, and return up to `groups` groups with signal.

    A group, the responses to one prompt, has signal if its scores differ or if it has one response. The step's prompts
    are shuffled and split evenly into `rounds`. After the round that fills the batch no more responses are sampled, and
    groups beyond `groups` are dropped. If too few groups have signal, the batch is smaller; if none has, it is one
    group without signal. Metrics of sampling and scoring cover all sampled responses. The result depends neither on the
    split of prompts over ranks nor, for each response, on its round. The settings from `by` to `sandbox` are those of
    `score`, and the settings of sampling are those of `generate`. Errors of both nodes pass through.
    Source: Yu et al. 2025 (DAPO), arXiv 2503.14476, section 3.2. Deviation: bounded by `rounds`.
    """
    import torch

    rollouts, useful, tried, ranks = list[ScoredRollout](), list[int](), 0, policy.handle.ranks
    order = _shuffled(torch.unique(ranks.union(prompts.group.data)), key)
    limits: Any = {"workers": workers, "limit_s": limit_s, "call_limit_s": call_limit_s}
    limits |= {"allow": allow, "confined": confined, "sandbox": sandbox}
    sampling: Any = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "stop": stop, "ignore_eos": ignore_eos}
    sampling |= {"repetition_penalty": repetition_penalty, "temperature": temperature, "max_tokens": max_tokens}
    for part in torch.tensor_split(order, max(1, min(rounds, len(order)))):
        rollout = generate(policy, _in_groups(prompts, part), n=n, key=key, **sampling)
        scores = score(rollout, by=by, format_score=format_score, on_error=on_error, **limits)
        rollouts.append(ScoredRollout.of({**rollout.parts, "scores": scores}, [*rollout.measures, *scores.measures]))
        useful += part[torch.isin(part, ranks.union(_with_signal(rollouts[-1])))].tolist()
        tried += len(part)
        if len(useful) >= groups:
            break
    chosen = useful[:groups] or order[:1].tolist()
    stacked = {name: _stacked([rollout.parts[name] for rollout in rollouts]) for name in rollouts[0].parts}
    counts = {"rounds": len(rollouts), "groups_tried": tried, "groups_kept": len(chosen)}
    return take(ScoredRollout.of(stacked), _rows_of(chosen, rollouts, prompts)).measured(
        *(measure for rollout in rollouts for measure in rollout.measures),
        *(Measure(name, total=count, count=1) for name, count in counts.items()),
        Measure("no_signal", total=tried - len(useful), count=tried),
    )


def _in_groups(prompts: Prompts, groups: Tensor) -> Prompts:
    import torch

    return take(prompts, torch.isin(prompts.group.data, groups).nonzero()[:, 0])


def _shuffled(groups: Tensor, key: Key) -> Tensor:
    import numpy as np
    import torch

    order = np.argsort(key.generator().bit_generator.random_raw(len(groups)), kind="stable")
    shuffled: Tensor = groups[torch.from_numpy(order)]
    return shuffled


def _with_signal(rollout: ScoredRollout) -> Tensor:
    import torch

    groups, index, counts = torch.unique(rollout.group.data, return_inverse=True, return_counts=True)
    scores, zeros = rollout.scores.data, torch.zeros(len(groups))
    low = zeros.scatter_reduce(0, index, scores, "amin", include_self=False)
    high = zeros.scatter_reduce(0, index, scores, "amax", include_self=False)
    useful: Tensor = groups[(low < high) | (counts == 1)]
    return useful


def _rows_of(chosen: Sequence[int], rollouts: Sequence[ScoredRollout], prompts: Prompts) -> Tensor:
    """Return the rows [b] of the chosen groups among those of all rollouts, in the order of the prompts.

    `generate` returns rows in this order, and rows of several ranks are joined in it.
    """
    import torch

    index_of = {group: index for index, group in enumerate(prompts.group.data.tolist()) if group in chosen}
    groups = torch.cat([rollout.group.data for rollout in rollouts]).tolist()
    rows = [row for row, group in enumerate(groups) if group in index_of]
    return torch.tensor(sorted(rows, key=lambda row: index_of[groups[row]]), dtype=torch.int64)


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
    stacked = type(first)(torch.cat(columns))
    if any(value.extras for value in values):
        stacked.extras = tuple(text for value in values for text in value.extras or ["{}"] * len(value.data))
    return stacked
