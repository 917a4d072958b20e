"""Judging: scores by a model, either a reward model that gives a number or a judge that writes its verdict."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from flowgraph import Key, Measure, Metric, Parts, node
from flowgraph.errors import RuleError, nearest
from flowgraph.language.handle import ResponseRows as Texts
from flowgraph.language.handle import SampleRequest, gather
from nodes.scoring import OF_SCORES, measures_of
from nodes.values import Judge, RewardModel, Rollout, Scores

QUESTION = (
    "Grade the answer to a question from 0 (wrong) to 10 (right and clear).\n\n"
    "Question:\n{prompt}\n\nAnswer:\n{response}\n\nEnd with the grade alone on the last line."
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_FIELD = re.compile(r"\{([A-Za-z_]\w*)\}")


@node(kind="score", stat="score", metrics=OF_SCORES)
def reward(model: RewardModel, rollout: Annotated[Rollout, Parts("group", "text", "columns")]) -> Scores:
    """Score each response by a reward model: [B].

    The model reads the prompt's messages and the response's text by its own chat template and tokenizer, which may be
    others than the policy's; its output at the last token is the score.
    """
    import pyarrow as pa
    import torch

    encode = model.handle.tokenizer.encode
    asked, texts = rollout.columns.data.column("prompt").to_pylist(), rollout.text.data.to_pylist()
    chats = pa.array([encode(*each) for each in zip(asked, texts, strict=True)], pa.list_(pa.int32()))
    none = torch.zeros(len(texts), 0, dtype=torch.int64)
    rows = Texts(chats, none, torch.zeros(len(texts), dtype=torch.int64))
    scores = model.handle.token_stats(rows, ("score",)).score
    assert scores is not None, "a classifier gives the score that it is asked for"
    return Scores(scores, measures_of(scores, rollout.group.data))


@node(
    kind="generate",
    metrics=(*OF_SCORES, Metric("unread", about="share of verdicts that end with no such number, scored `on_error`")),
)
def judged(
    model: Judge,
    rollout: Annotated[Rollout, Parts("group", "sample", "text", "columns")],
    *,
    question: str = QUESTION,
    scale: Annotated[float, Field(gt=0)] = 10.0,
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0,
    max_tokens: Annotated[int, Field(ge=1)] = 256,
    on_error: float | Literal["fail"] = "fail",
    key: Key = Key(),
) -> Scores:
    """Score each response by what a judge writes: the last number in its verdict, 0 to `scale`, / `scale`: [B].

    In `question`, `{prompt}` stands for the prompt's last message, `{response}` for the response, and any other name
    for the data set's column, `{ground_truth}` included. A verdict without such a number fails the run, or
    scores `on_error`.
    Source: Zheng et al. 2023 (LLM as a judge), arXiv 2306.05685, section 3.1, single-answer grading.
    """
    import torch

    handle = model.handle
    rows, texts = rollout.columns.data.to_pylist(), rollout.text.data.to_pylist()
    asked = [filled(question, _seen(row, text)) for row, text in zip(rows, texts, strict=True)]
    ids = zip(asked, rollout.group.data.tolist(), rollout.sample.data.tolist(), strict=True)
    chats = ((handle.tokenizer.encode([{"role": "user", "content": text}]), *identity) for text, *identity in ids)
    requests = [SampleRequest(chat, group, sample, max_tokens, temperature, key) for chat, group, sample in chats]
    verdicts = [handle.tokenizer.decode(each.tokens) for each in gather(handle, requests)]
    grades = [grade(each, scale) for each in verdicts]
    missing = [verdict for verdict, found in zip(verdicts, grades, strict=True) if found is None]
    if missing and on_error == "fail":
        what = f"a verdict ends with no number from 0 to {scale:g}: {missing[0]!r}"
        hint = "ask for one, or give more tokens, or set on_error"
        raise RuleError(what, hint=hint)
    otherwise = 0.0 if on_error == "fail" else on_error
    scores = torch.tensor([otherwise if each is None else each / scale for each in grades])
    return Scores(
        scores, [*measures_of(scores, rollout.group.data), Measure("unread", len(missing), max(1, len(verdicts)))]
    )


def _seen(row: Mapping[str, Any], response: str) -> dict[str, str]:
    """Give what a question can name of one response."""
    truth = (row.get("reward_model") or {}).get("ground_truth", "")
    return {"ground_truth": truth, **row, "prompt": row["prompt"][-1]["content"], "response": response}


def filled(question: str, values: Mapping[str, object]) -> str:
    """Fill the names of a question in, once: what is filled in is text, not a question.

    Raises RuleError for a name that nothing has, or whose value is null.

    >>> filled("{a} {b} {}", {"a": "{b}", "b": 2})
    '{b} 2 {}'
    """
    for name in _FIELD.findall(question):
        if name not in values:
            raise RuleError(f"the question names `{{{name}}}`, and nothing has that name", hint=nearest(name, values))
        if values[name] is None:
            raise RuleError(f"the question names `{{{name}}}`, which is null", hint="give the row one, or leave it out")
    return _FIELD.sub(lambda found: str(values[found[1]]), question)


def grade(verdict: str, scale: float) -> float | None:
    """Give the last number of a verdict, None without one, or where it is not from 0 to `scale`.

    >>> grade("Good, 8.5 of 10. Grade: 7", 10), grade("no idea", 10), grade("Grade: 11", 10)
    (7.0, None, None)
    """
    found: Sequence[str] = _NUMBER.findall(verdict)
    given = float(found[-1]) if found else -1.0
    return given if 0 <= given <= scale else None
