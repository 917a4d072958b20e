"""Scoring by a model: a reward model that returns a number, or a judge that writes a verdict."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from flowgraph import Metric, node
from flowgraph.errors import RuleError, nearest
from flowgraph.language import Key, Measure, NodeName, Parts
from flowgraph.language.handle import ResponseRows, SampleRequest, Tokenizer, gather
from nodes.likelihood import READ
from nodes.sampling import SamplingTemperature
from nodes.scoring import OF_SCORES, measures_of
from nodes.values import Judge, ProcessRewardModel, Responses, RewardModel, Rewards, Rollout, Scores

QUESTION = (
    "Grade the answer to a question from 0 (wrong) to 10 (right and clear).\n\n"
    "Question:\n{prompt}\n\nAnswer:\n{response}\n\nEnd with the grade alone on the last line."
)
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)(?:\s*/\s*\d+(?:\.\d+)?)?")  # of 7/10, the 7
CHARACTER_BYTES = 4  # the most tokens over which a tokenizer of bytes splits a character
_FIELD = re.compile(r"\{([A-Za-z_]\w*)\}")


@node(kind="score", stat="score", metrics=OF_SCORES)
def reward(
    model: RewardModel, rollout: Annotated[Rollout, Parts("group", "text", "columns")], *, name: NodeName = ""
) -> Scores:
    """Return the score of each response by a reward model: [B].

    The model reads the prompt's messages and the response's text with its chat template and tokenizer, which may differ
    from the policy's. The score is the model's output at the last token.
    """
    import pyarrow as pa
    import torch

    encode = model.handle.tokenizer.encode
    prompts, texts = rollout.columns.data.column("prompt").to_pylist(), rollout.text.data.to_pylist()
    chats = pa.array(list(map(encode, prompts, texts)), pa.list_(pa.int32()))
    none = torch.zeros(len(texts), 0, dtype=torch.int64)
    rows = ResponseRows(chats, none, torch.zeros(len(texts), dtype=torch.int64))
    scores = model.handle.token_stats(rows, ("score",)).score
    assert scores is not None, "a classifier returns scores"
    return Scores(scores, measures_of(scores, rollout.group.data))


@node(
    kind="score",
    stat="values",
    metrics=(
        Metric("reward", headline=True, about="mean over responses of the sum of their tokens' rewards"),
        Metric("steps", about="mean number of a response's tokens that have a reward"),
    ),
)
def process_rewards(
    model: ProcessRewardModel, rollout: Annotated[Responses, READ], *, step: str = "", name: NodeName = ""
) -> Rewards:
    """Return the reward of each response token by a process reward model: its output after the token, [B, T].

    With `step`, such as a blank line, only tokens that end a step have a reward: tokens that complete the text `step`,
    and the last token of the response. All others have 0. The model reads the policy's tokens, so both need the same
    tokenizer.

    Source: Lightman et al. 2023 (Let's Verify Step by Step), arXiv 2305.20050, section 2.6: a score after each step.
    """
    import torch

    tokens, lengths = rollout.tokens.data, rollout.lengths.data
    # The statistic is the output before each token, so that before one more token is the output after the last.
    longer = ResponseRows(rollout.context.data, torch.nn.functional.pad(tokens, (0, 1)), lengths + 1)
    after = model.handle.token_stats(longer, ("values",)).values
    assert after is not None, "a classifier of tokens returns values"
    rewarded = torch.arange(tokens.shape[1])[None] < lengths[:, None]
    if step:
        ends = [
            step_ends(row[:length], model.handle.tokenizer, step)
            for row, length in zip(tokens.tolist(), lengths.tolist(), strict=True)
        ]
        rewarded = torch.tensor([[*row, *[False] * (tokens.shape[1] - len(row))] for row in ends], dtype=torch.bool)
        rewarded = rewarded.view(tokens.shape)  # also without rows
    rewards, count = torch.where(rewarded, after[:, 1:], 0.0), len(lengths)
    return Rewards(
        rewards,
        [
            Measure.of_rows("reward", rewards),
            Measure("steps", total=float(rewarded.sum()), count=count),
        ],
    )


@node(
    kind="generate",
    metrics=(*OF_SCORES, Metric("unread", about="share of verdicts without a valid number, scored `on_error`")),
)
def judged(
    model: Judge,
    rollout: Annotated[Rollout, Parts("group", "sample", "text", "columns")],
    *,
    question: str = QUESTION,
    scale: Annotated[float, Field(gt=0)] = 10.0,
    temperature: SamplingTemperature = 0.0,
    max_tokens: Annotated[int, Field(ge=1)] = 256,
    on_error: float | Literal["fail"] = "fail",
    key: Key = Key(),
    name: NodeName = "",
) -> Scores:
    """Return the score of each response: the last number in a judge's verdict, 0 to `scale`, divided by `scale`: [B].

    In `question`, `{prompt}` is replaced by the prompt's last message, `{response}` by the response, and any other name
    by a column of the data set, such as `{ground_truth}`; RuleError is raised for an unknown name or a null value. A
    verdict that has no number, or whose last number is not from 0 to `scale`, scores `on_error`, or raises RuleError if
    that is "fail". `temperature`, `max_tokens` and the random `key` are those of the judge's sampling.

    Source: Zheng et al. 2023 (LLM as a judge), arXiv 2306.05685, section 3.1, single-answer grading.
    """
    import torch

    handle = model.handle
    rows, texts = rollout.columns.data.to_pylist(), rollout.text.data.to_pylist()
    requests = list[SampleRequest]()
    for row, text, group, sample in zip(
        rows, texts, rollout.group.data.tolist(), rollout.sample.data.tolist(), strict=True
    ):
        truth = (row.get("reward_model") or {}).get("ground_truth", "")
        fields = {"ground_truth": truth, **row, "prompt": row["prompt"][-1]["content"], "response": text}
        chat = handle.tokenizer.encode([{"role": "user", "content": filled(question, fields)}])
        requests.append(SampleRequest(chat, group, sample, max_tokens, temperature, key))
    verdicts = [handle.tokenizer.decode(completion.tokens) for completion in gather(handle, requests)]
    grades = [grade(verdict, scale) for verdict in verdicts]
    missing = [verdict for verdict, number in zip(verdicts, grades, strict=True) if number is None]
    if missing and on_error == "fail":
        what = f"a verdict ends with no number from 0 to {scale:g}: {missing[0]!r}"
        hint = "ask for one, or give more tokens, or set on_error"
        raise RuleError(what, hint=hint)
    otherwise = 0.0 if on_error == "fail" else on_error
    scores = torch.tensor([otherwise if number is None else number / scale for number in grades])
    return Scores(
        scores, [*measures_of(scores, rollout.group.data), Measure("unread", len(missing), max(1, len(verdicts)))]
    )


def step_ends(tokens: Sequence[int], tokenizer: Tokenizer, step: str) -> list[bool]:
    """Return for each token of a response whether it ends a step: it completes the text `step`, or is the last."""
    ends, text = list[bool](), ""
    start = read = 0  # of the tokens read last: a text after them keeps its space, and its characters are whole
    for index in range(len(tokens)):
        before, now = tokenizer.decode(tokens[start:read]), tokenizer.decode(tokens[start : index + 1])
        if now.endswith("\ufffd") and index - read < CHARACTER_BYTES - 1:
            ends.append(False)
            continue
        text, start, read = text + now[len(before) :], read, index + 1
        ends.append(step in text)
        text = text[text.rindex(step) + len(step) :] if step in text else text[-len(step) :]
    return [*ends[:-1], True] if ends else []


def filled(question: str, values: Mapping[str, object]) -> str:
    """Return a question with each `{name}` replaced by its value; names within the values are not replaced.

    Raises RuleError for an unknown name, with the nearest as a hint, and for a name whose value is None.

    >>> filled("{a} {b} {}", {"a": "{b}", "b": 2})
    '{b} 2 {}'
    """
    for name in _FIELD.findall(question):
        if name not in values:
            raise RuleError(f"the question uses `{{{name}}}`, but no column has that name", hint=nearest(name, values))
        if values[name] is None:
            raise RuleError(f"the question uses `{{{name}}}`, which is null", hint="give the row one, or leave it out")
    return _FIELD.sub(lambda field: str(values[field[1]]), question)


def grade(verdict: str, scale: float) -> float | None:
    """Return the last number in a verdict; None if there is none, or if it is not from 0 to `scale`.

    Two numbers with a slash between them, such as `7/10`, count as the first.

    >>> grade("Good, 8.5 of 10. Grade: 7", 10), grade("no idea", 10), grade("Grade: 11", 10)
    (7.0, None, None)
    """
    numbers: Sequence[str] = _NUMBER.findall(verdict)
    last = float(numbers[-1]) if numbers else -1.0
    return last if 0 <= last <= scale else None
