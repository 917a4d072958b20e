"""Prompts of more tokens than a run allows: refused, dropped, or cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flowgraph.errors import DataError
from nodes.data.arrow import Table

LONG_PROMPTS = ("refuse", "drop", "truncate-left", "truncate-right", "truncate-middle")
"""What to do with a prompt that is too long; a cut keeps the end, the start, or both."""

TEMPLATE_TOKENS = 32  # of a message; a text has at most as many tokens as bytes
ENCODED_ROWS = 1000

Message = dict[str, Any]
"""A message: its role, its content, and other fields."""
Encode = Callable[[Sequence[Mapping[str, str]]], Sequence[int]]
"""Returns the tokens of a chat, with the model's chat template."""


@dataclass(frozen=True, kw_only=True)
class PromptCounts:
    """How many of `rows` prompts had more than `limit` tokens, the tokens of the longest, and what was done (`how`)."""

    limit: int
    how: str
    rows: int
    long: int
    longest: int

    def __str__(self) -> str:
        act = "dropped" if self.how == "drop" else f"cut ({self.how})"
        tokens = f"more than {self.limit:,} tokens, the longest {self.longest:,}"
        return f"{self.long:,} of {self.rows:,} prompts had {tokens}: {act}" if self.long else f"no prompt had {tokens}"


def fit_prompts(
    table: Table, encode: Encode, limit: int, how: str, name: str
) -> tuple[Table, Sequence[bool], PromptCounts]:
    """Return a table whose prompts have at most `limit` tokens, whether each row remains, and a count of long prompts.

    `how` is one of `LONG_PROMPTS`. A cut shortens the longest message of a prompt as little as possible, and further
    messages only if the prompt is too long without any of it. `name` is the data set's, for errors. Raises DataError
    for a long prompt if `how` is "refuse", if "drop" leaves no prompt, and if a cut prompt is too long even without its
    text.
    """
    prompts: list[list[Message]] = table.column("prompt").to_pylist()
    lengths = [len(encode(prompt)) for prompt in prompts]
    long = [index for index, length in enumerate(lengths) if length > limit]
    counted = PromptCounts(limit=limit, how=how, rows=len(prompts), long=len(long), longest=max(lengths, default=0))
    if not long:
        return table, [True] * len(prompts), counted
    if how == "refuse":
        first = long[0]
        notes = [f"{len(long):,} of {len(prompts):,} prompts are longer; the longest has {counted.longest:,} tokens"]
        what = f"`prompt` has {lengths[first]:,} tokens, more than --max-prompt-tokens {limit}"
        hint = "--long-prompts drop, or truncate-left, truncate-right or truncate-middle"
        raise DataError(what, where=f"{name} row {first} (from 0)", notes=notes, hint=hint)
    if how == "drop":
        stays = [length <= limit for length in lengths]
        if not any(stays):
            what = f"all {len(prompts):,} prompts have more than --max-prompt-tokens {limit}"
            hint = f"the shortest has {min(lengths):,} tokens, the longest {counted.longest:,}"
            raise DataError.unusable(name, what, hint=hint)
        return table.filter(pa.array(stays)), stays, counted
    for index in long:
        prompts[index] = _cut(prompts[index], encode, limit, how, f"{name} row {index} (from 0)")
    column = table.schema.get_field_index("prompt")
    chats = pa.array(prompts, table.schema.field(column).type)
    return table.set_column(column, "prompt", chats), [True] * len(prompts), counted


def refuse_oversized(table: Table, tokenizer: Callable[[], Encode], limit: int, name: str, why: str, hint: str) -> None:
    """Raise DataError for a prompt of more than `limit` tokens, among the 1,000 prompts with the longest texts.

    `tokenizer` returns the function that counts; it is called only if some text is long enough. `name` is the data
    set's; `why` says in the error where the limit comes from, and `hint` how to avoid it.
    """
    prompts = pa.concat_arrays(table.column("prompt").chunks)
    messages = prompts.flatten()
    texts = messages.flatten()[messages.type.get_field_index("content")].cast(pa.string())
    text_bytes = pc.call_function("binary_length", [texts]).fill_null(0).to_numpy() + TEMPLATE_TOKENS
    row_bytes = np.bincount(prompts.value_parent_indices().to_numpy(), text_bytes, len(prompts))
    longest = [int(row) for row in np.argsort(-row_bytes, kind="stable")[:ENCODED_ROWS] if row_bytes[row] > limit]
    encode = tokenizer() if longest else None
    for row in longest:
        assert encode is not None
        if (tokens := len(encode(prompts[row].as_py()))) > limit:
            raise DataError(f"`prompt` has {tokens:,} tokens, {why}", where=f"{name} row {row} (from 0)", hint=hint)


def _cut(prompt: list[Message], encode: Encode, limit: int, how: str, where: str) -> list[Message]:
    """Return a prompt of at most `limit` tokens, with the longest message shortened, and then the next."""
    for place in sorted(range(len(prompt)), key=lambda place: -len(prompt[place]["content"])):
        fits, too_long = 0, len(prompt[place]["content"])
        if len(encode(_with_characters(prompt, place, 0, how))) <= limit:
            while fits + 1 < too_long:
                middle = (fits + too_long) // 2
                if len(encode(_with_characters(prompt, place, middle, how))) <= limit:
                    fits = middle
                else:
                    too_long = middle
            return _with_characters(prompt, place, fits, how)
        prompt = _with_characters(prompt, place, 0, how)
    what = f"`prompt` has {len(encode(prompt)):,} tokens without its text, more than --max-prompt-tokens {limit}"
    raise DataError.unusable(where, what, hint="they are those of the model's chat template")


def _with_characters(prompt: list[Message], place: int, count: int, how: str) -> list[Message]:
    shorter = {**prompt[place], "content": shortened(prompt[place]["content"], count, how)}
    return [*prompt[:place], shorter, *prompt[place + 1 :]]


def shortened(text: str, count: int, how: str) -> str:
    """Return `count` characters of a text: its end if `how` is "truncate-left", its start if it is "truncate-right".

    With "truncate-middle", half of them are from the start and half from the end; an odd character is from the start.
    `count` must not exceed the text's length.

    >>> [shortened("123456", 3, f"truncate-{side}") for side in ("left", "right", "middle")]
    ['456', '123', '126']
    """
    start = {"truncate-left": 0, "truncate-right": count, "truncate-middle": (count + 1) // 2}[how]
    return text[:start] + text[len(text) - (count - start) :]
