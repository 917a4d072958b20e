"""Demonstrations: the data set's own answers, as responses that a model can learn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from flowgraph import Metric, node
from flowgraph.errors import DataError
from flowgraph.language import Measure, NodeName
from flowgraph.language.values import Context, Group, Lengths, Mask, Sample, Tokens, Trajectory
from nodes.sampling import pad
from nodes.values import LanguageModel, Prompts, Responses, Temperature

ANSWER_COLUMNS = ("response", "extra_info.answer", "reward_model.ground_truth")
METRICS = (
    Metric("response_length", "tokens", headline=True),
    Metric("truncated", about="share of answers that are cut at `max_tokens`"),
)


@node(rows="new", metrics=METRICS)
def demonstrations(
    model: LanguageModel,
    prompts: Prompts,
    *,
    column: str = "",
    max_tokens: Annotated[int, Field(ge=1)] = 1024,
    name: NodeName = "",
) -> Responses:
    """Return the data set's answers, one for each prompt, as responses in the model's chat template.

    `column` names the answers' column, or a path into a struct (`extra_info.answer`). By default answers are read from
    `response`, else from `extra_info.answer`, where GSM8K has its worked solutions, else from the ground truth. An
    answer is cut to `max_tokens` tokens, its end token included; the mask keeps all of these. Raises DataError for a
    row without an answer.
    """
    import pyarrow as pa
    import torch

    encode = model.handle.tokenizer.encode
    rows = prompts.columns.data.to_pylist()
    chats = [split_chat(encode(row["prompt"]), encode(row["prompt"], answer_of(row, column))) for row in rows]
    answers = [answer[:max_tokens] for _, answer in chats]
    lengths = torch.tensor([len(answer) for answer in answers], dtype=torch.int64)
    tokens = pad(answers, torch.int64)
    first = torch.zeros(len(rows), dtype=torch.int64)  # each prompt has one sample, and that one trajectory
    return Responses(
        group=Group(prompts.group.data),
        sample=Sample(first),
        trajectory=Trajectory(first),
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
    """Return the answer in a row of the data set. Raises DataError if the answer is missing, empty or not a text.

    `column` names the answer's column, or a path such as `extra_info.answer`. "" means the column `response`; in a row
    without such a column it means `extra_info.answer`, or `reward_model.ground_truth` if that is missing, empty or not
    a text.

    >>> answer_of({"response": "7"}, ""), answer_of({"extra_info": {"answer": "2 + 6 = 8"}}, "")
    ('7', '2 + 6 = 8')
    """
    default = ANSWER_COLUMNS[:1] if ANSWER_COLUMNS[0] in row else ANSWER_COLUMNS[1:]
    for path in (column,) if column else default:
        value: object = row
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, str) and value:
            return value
    raise DataError.lacks_column("the data set", column or "response", list(row))


def split_chat(context: Sequence[int], chat: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Return the tokens of a chat in two parts: the longest prefix that the chat shares with `context`, and the rest.

    `chat` has the tokens with the answer, `context` those without. The first part is usually the whole context, but a
    tokenizer may merge the context's last characters with the answer's first.

    >>> split_chat([1, 2], [1, 2, 8, 9]), split_chat([1, 2, 3], [1, 2, 4, 5])
    (([1, 2], [8, 9]), ([1, 2], [4, 5]))
    """
    shortest = min(len(context), len(chat))
    shared = next((i for i in range(shortest) if context[i] != chat[i]), shortest)
    return chat[:shared], chat[shared:]
