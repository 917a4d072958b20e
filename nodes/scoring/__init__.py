"""Scoring: one number per response, computed by a rule in a process that can be killed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from flowgraph import Metric, node
from flowgraph.errors import RuleError
from flowgraph.language import Measure, NodeName, Parts
from nodes.scoring.grader_messages import name_of
from nodes.scoring.graders import Extras, Graders
from nodes.scoring.remote_settings import Sandbox
from nodes.scoring.rules import is_for_a_model, reference_of, resolve, rule_for
from nodes.values import Rollout, Scores

if TYPE_CHECKING:
    from torch import Tensor

Rule = str | Callable[..., Any]
FULL_MARKS = 1.0 - 1e-6  # a score of 1, up to rounding
warm_graders = cache(Graders)  # by their settings; their processes end with this one

OF_SCORES = (
    Metric("reward", headline=True, about="mean score"),
    Metric("full_marks", about="share of responses that score 1"),
    Metric("best", about="mean over prompts of the best response's score"),
    Metric("solved", about="share of prompts with a response that scores 1: pass@n"),
)
METRICS = (
    *OF_SCORES,
    Metric("unreadable", about="share of responses in which the rule found no answer, so they are wrong"),
    Metric("rule_failures", about="responses whose rule failed or timed out, scored `on_error`"),
    Metric("*", about="mean of each other number that the rule returns, by its name: `acc`"),
)
MAX_NAMES = 64  # of extras: a response that has taken over a rule's process could send others in each row
_NAMES = frozenset(metric.name for metric in METRICS)


@node(kind="score", pure=False, metrics=METRICS)
def score(
    rollout: Annotated[Rollout, Parts("group", "sample", "finished", "text", "columns")],
    *,
    by: Rule = "data",
    format_score: float | None = None,
    workers: Annotated[int, Field(ge=1, le=256)] = 1,
    limit_s: Annotated[float, Field(gt=0)] = 10.0,
    call_limit_s: Annotated[float, Field(gt=0)] | None = None,
    on_error: float | Literal["fail"] = "fail",
    allow: tuple[str, ...] = (),
    confined: bool = False,
    sandbox: Sandbox = "",
    name: NodeName = "",
) -> Scores:
    """Return the score of each response by a rule: [B].

    `by` is the name of a shipped or installed rule, a function at a module's top level, `path.py:name`, or "data": then
    each row's `data_source` selects its rule, and a row whose `reward_model.style` is "model" is refused. The rule is
    called once per response, with the arguments that its parameters name: `response`, `ground_truth`, `finished`,
    `prompt`, and any column of the data set. It returns a finite number, or a dict with such a number under `score`;
    other entries of the dict are recorded with the scores, and the numbers among them become metrics. `format_score` is
    passed to the rule, which must have this parameter.

    Each rule has up to `workers` processes, each with `limit_s` seconds per response. All responses of one rule
    together may take `call_limit_s` seconds: by default a quarter of `limit_s` for each response that one worker
    scores, and at least 12 times `limit_s`. If a rule raises, hangs, ends its process, or returns no number, the run
    fails with RuleError, or the response scores `on_error` if this is a number. If a shipped rule hangs, ends its
    process or runs out of time, the response always scores 0. Whatever `on_error` is, RuleError is raised for a rule
    that is unknown or cannot be loaded or confined, and for a row without a column or ground truth that its rule needs.

    Rules run confined: without network, keys, or files other than their code. `allow` lists further permissions:
    "network", "read=PATH", "env=NAME", "memory=8GiB", "state" (one process for many responses), or "unconfined". With
    `confined`, any rule that this machine cannot confine is refused, also one that only compares text. Programs that a
    model wrote always run confined, in one process per test; `limit_s` is then the limit of one test. `sandbox` is the
    URL of a SandboxFusion server that runs these programs instead of this machine.
    """
    import torch

    rows = rows_of(rollout)
    settings = {} if format_score is None else {"format_score": format_score}
    scores, failures, unreadable = torch.zeros(len(rows)), 0, 0
    extras: list[Extras] = [{}] * len(rows)
    graders = warm_graders(workers, limit_s, call_limit_s=call_limit_s, allow=allow, confined=confined, sandbox=sandbox)
    for rule, indices in _indices_by_rule(by, rows).items():
        graded = graders.grade(resolve(rule), [rows[i] for i in indices], settings, on_error=on_error)
        scores[torch.tensor(indices, dtype=torch.int64)] = torch.tensor(graded.scores, dtype=torch.float32)
        for index, extra in zip(indices, graded.extras, strict=False):
            extras[index] = extra
        failures += graded.failures
        unreadable += graded.unreadable
    measures = [
        *measures_of(scores, rollout.group.data),
        Measure("unreadable", unreadable, len(rows)),
        Measure("rule_failures", failures, len(rows)),
        *measures_of_extras(extras),
    ]
    result = Scores(scores, measures)
    if any(extras):
        result.extras = tuple(map(json.dumps, extras))
    return result


def measures_of_extras(extras: Sequence[Extras]) -> list[Measure]:
    """Return one measure for each number that rules returned besides scores: its mean over the responses that have it.

    A name that `score` uses for a metric of its own gets the prefix `rule_`. Only the first 64 names are used.
    """
    numbers = dict[str, list[float]]()
    for extra in extras:
        for name, value in extra.items():
            if isinstance(value, float):
                numbers.setdefault(f"rule_{name}" if name in _NAMES else name, []).append(value)
    return [Measure(name, sum(values), len(values)) for name, values in islice(numbers.items(), MAX_NAMES)]


def measures_of(scores: Tensor, groups: Tensor) -> list[Measure]:
    """Return four measures of scores [B]: `reward`, `full_marks`, `best` and `solved`, as `OF_SCORES` describes them.

    `groups` [B] has the index of each response's prompt.
    """
    import torch

    prompts, index = torch.unique(groups, return_inverse=True)
    best = scores.new_zeros(len(prompts)).scatter_reduce(0, index, scores, "amax", include_self=False)
    return [
        Measure.of_rows("reward", scores),
        Measure("full_marks", float((scores >= FULL_MARKS).sum()), len(scores)),
        Measure.of_rows("best", best, prompts),
        Measure("solved", float((best >= FULL_MARKS).sum()), len(best)),
    ]


def rows_of(rollout: Rollout) -> list[dict[str, object]]:
    """Return one dict per response for rules: its data columns, `response`, `finished`, `prompt_id` and `sample`."""
    columns: list[dict[str, object]] = rollout.columns.data.to_pylist()
    texts, finished = rollout.text.data.to_pylist(), rollout.finished.data.tolist()
    prompts, samples = rollout.group.data.tolist(), rollout.sample.data.tolist()
    return [
        {**row, "response": text, "finished": ended, "prompt_id": prompt, "sample": sample}
        for row, text, ended, prompt, sample in zip(columns, texts, finished, prompts, samples, strict=True)
    ]


def _indices_by_rule(by: Rule, rows: Sequence[Mapping[str, object]]) -> dict[str, list[int]]:
    if by != "data":
        return {by if isinstance(by, str) else reference_of(by): list(range(len(rows)))}
    indices: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        if is_for_a_model(row):
            raise RuleError.for_a_model(name_of(row, index))
        indices.setdefault(rule_for(str(row.get("data_source", ""))), []).append(index)
    return indices
