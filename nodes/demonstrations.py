"""Demonstrations: answers that the data set holds, as responses that a model can learn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from flowgraph import Measure, Metric, node
from flowgraph.errors import DataError
from flowgraph.language.values import Context, Group, Lengths, Mask, Sample, Tokens, Trajectory
from nodes.sampling import pad
from nodes.values import LanguageModel, Prompts, Responses, Temperature

PLACES = ("response", "extra_info.answer", "reward_model.ground_truth")
METRICS = (
    Metric("response_length", "tokens", headline=True),
    Metric("truncated", about="share of answers cut at `max_tokens`"),
)


@node(rows="new", metrics=METRICS)
def demonstrations(
    model: LanguageModel,
    prompts: Prompts,
    *,
    column: str = "",
    max_tokens: Annotated[int, Field(ge=1)] = 1024,
) -> Responses:
    """Give the answer to each prompt that the data set holds, as `model`'s chat template writes it: B = prompts.

    The answer is in `column`, a name or a path into a struct (`extra_info.answer`); without one it is in `response`,
    else in `extra_info.answer`, where GSM8K has its worked solutions, else it is the ground truth. Every token of it
    counts, its end included, up to `max_tokens`. Raises DataError for a row without an answer.
    """
    import pyarrow as pa
    import torch

    encode = model.handle.tokenizer.encode
    rows = prompts.columns.data.to_pylist()
    chats = [parted(encode(row["prompt"]), encode(row["prompt"], answer_of(row, column))) for row in rows]
    answers = [answer[:max_tokens] for _, answer in chats]
    lengths = torch.tensor([len(each) for each in answers], dtype=torch.int64)
    tokens = pad(answers, torch.int64)
    one_each = torch.zeros(len(rows), dtype=torch.int64)
    return Responses(
        group=Group(prompts.group.data),
        sample=Sample(one_each),
        trajectory=Trajectory(one_each),
        context=Context(pa.array([context for context, _ in chats], pa.list_(pa.int32()))),
        tokens=Tokens(tokens),
        mask=Mask((torch.arange(tokens.shape[1])[None] < lengths[:, None]).float()),
        lengths=Lengths(lengths),
        temperature=Temperature(1.0),
    ).measured(
        Measure("response_length", float(lengths.sum()), len(rows)),
        Measure("truncated", sum(len(answer) > max_tokens for _, answer in chats), len(rows)),
    )


def answer_of(row: Mapping[str, object], column: str) -> str:
    """Give the answer that a row of the data set holds.

    >>> answer_of({"response": "7"}, ""), answer_of({"extra_info": {"answer": "2 + 6 = 8"}}, "")
    ('7', '2 + 6 = 8')
    """
    for path in (column,) if column else PLACES[:1] if PLACES[0] in row else PLACES[1:]:
        found: object = row
        for name in path.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        if isinstance(found, str) and found:
            return found
    raise DataError.lacks_column("the data set", column or "response", list(row))


def parted(context: Sequence[int], whole: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Part the tokens of a chat with its answer behind those that the chat without it begins with too.

    Mostly that is the whole of the latter; a tokenizer may join the last of it with the answer's first.

    >>> parted([1, 2], [1, 2, 8, 9]), parted([1, 2, 3], [1, 2, 4, 5])
    (([1, 2], [8, 9]), ([1, 2], [4, 5]))
    """
    least = min(len(context), len(whole))
    same = next((i for i in range(least) if context[i] != whole[i]), least)
    return whole[:same], whole[same:]
