"""Demonstrations: answers that the data set holds, as responses that a model can learn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, cast

from pydantic import Field

from flowgraph import Measure, Metric, node
from flowgraph.errors import DataError
from flowgraph.values import Context, Group, Lengths, Mask, Sample, Tokens, Trajectory
from nodes.sampling import pad
from nodes.values import LanguageModel, Prompts, Responses, Temperature

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

    The answer is in `column`; without a name it is in `response`, or else it is the ground truth. Every token of it
    counts, its end included, up to `max_tokens`. Raises DataError for a row without an answer.
    """
    import pyarrow as pa
    import torch

    encode = model.handle.tokenizer.encode
    rows = prompts.columns.data.to_pylist()
    contexts = [encode(row["prompt"]) for row in rows]
    wholes = [encode(row["prompt"], answer_of(row, column)) for row in rows]
    whole = [_after(context, both) for context, both in zip(contexts, wholes, strict=True)]
    answers = [tokens[:max_tokens] for tokens in whole]
    lengths = torch.tensor([len(each) for each in answers], dtype=torch.int64)
    tokens = pad(answers, torch.int64)
    one_each = torch.zeros(len(rows), dtype=torch.int64)
    return Responses(
        group=Group(prompts.group.data),
        sample=Sample(one_each),
        trajectory=Trajectory(one_each),
        context=Context(pa.array(contexts, pa.list_(pa.int32()))),
        tokens=Tokens(tokens),
        mask=Mask((torch.arange(tokens.shape[1])[None] < lengths[:, None]).float()),
        lengths=Lengths(lengths),
        temperature=Temperature(1.0),
    ).measured(
        Measure("response_length", float(lengths.sum()), len(rows)),
        Measure("truncated", sum(len(each) > max_tokens for each in whole), len(rows)),
    )


def answer_of(row: Mapping[str, object], column: str) -> str:
    """Give the answer that a row of the data set holds.

    >>> answer_of({"response": "7"}, ""), answer_of({"reward_model": {"ground_truth": "8"}}, "")
    ('7', '8')
    """
    graded = cast("Mapping[str, object]", row.get("reward_model") or {})
    name = column or ("response" if "response" in row else "")
    found = row.get(name) if name else graded.get("ground_truth")
    if not isinstance(found, str) or not found:
        raise DataError.lacks_column("the data set", name or "response", list(row))
    return found


def _after(context: Sequence[int], whole: Sequence[int]) -> Sequence[int]:
    """Give the tokens of the answer: those that the chat with it has beyond the chat without."""
    same = next((i for i, (a, b) in enumerate(zip(context, whole, strict=False)) if a != b), len(context))
    return whole[same:]
