"""What a table of rows must be, and the first place where it is not. No files here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from flowgraph.errors import DataError
from nodes.data.arrow import Array, ChunkedArray, DataType, Table

PROMPT_HINT = 'write a prompt as [{"role": "user", "content": "…"}]'
MODEL_HINT = "models here read text alone; where the text is all that is meant, leave the column out"
NOT_TEXT = ("images", "image", "videos", "video", "audios", "audio", "multi_modal_data", "multi_modal_inputs")
"""Columns of what is no text, as verl's data sets name them."""
MESSAGES = "list<struct<role: string, content: string>>"

Fault = tuple[int, str]


def check_rows(table: Table, *, file: str, where: Callable[[int], str]) -> None:
    """Check that a table can be run: rows, a well-formed `prompt`, the right types elsewhere, and nothing but text.

    `where` says how to name a row by its index. Raises DataError at the first fault.
    """
    for name in table.column_names:
        if table.column_names.count(name) > 1:
            raise DataError.unusable(file, f"has more than one column `{name}`")
    if not table.num_rows:
        raise DataError.unusable(file, "has no rows")
    if "prompt" not in table.column_names:
        raise DataError.lacks_column(file, "prompt", table.column_names)
    for field in table.schema:
        check_type(field.name, field.type, where=file)
    for name in NOT_TEXT:
        index = _first_value(table[name]) if name in table.column_names else None
        if index is not None:
            raise DataError.bad_row(where(index), name, "is no text, and would not be read", hint=MODEL_HINT)
    faults = list(prompt_faults(table["prompt"]))
    if faults:
        index, what = min(faults, key=lambda fault: fault[0])
        raise DataError.bad_row(where(index), "prompt", what, hint=PROMPT_HINT)


def check_type(name: str, found: DataType, *, where: str) -> None:
    """Check a column's type, if its name is one that the schema knows. A column of nulls passes.

    >>> check_type("prompt", pa.string(), where="file")
    Traceback (most recent call last):
    flowgraph.errors.inputs.DataError: file: column `prompt` is string, not list<struct<role: string, content: string>>
      hint: write a prompt as [{"role": "user", "content": "…"}]
    """
    if pa.types.is_null(found):
        return
    if name == "prompt" and not is_messages(found):
        raise DataError.wrong_type(where, name, found, MESSAGES, hint=PROMPT_HINT)
    if name in ("data_source", "ability") and not is_text(found):
        raise DataError.wrong_type(where, name, found, "string")
    if name == "reward_model":
        _check_reward_model(found, where)


def check_value(name: str, value: object, *, where: str) -> None:
    """Check the type of one value by itself, to find which row spoils a column."""
    try:
        alone = pa.array([value])
    except (pa.ArrowException, OverflowError, UnicodeError) as fault:
        raise DataError.bad_row(where, name, str(fault)) from fault
    check_type(name, alone.type, where=where)


def prompt_faults(prompts: ChunkedArray) -> Iterator[Fault]:
    """Yield the first row of each kind of fault, as its index and what is wrong there."""
    array = pa.concat_arrays(prompts.chunks)
    yield from _first(array.is_null(), True, "is null")
    if pa.types.is_null(array.type):
        return
    yield from _first(array.value_lengths(), 0, "has no messages")
    rows, messages = array.value_parent_indices(), array.flatten()
    yield from ((rows[place].as_py(), what) for place, what in message_faults(messages))


def message_faults(messages: Array) -> Iterator[Fault]:
    """Yield the first message of each kind of fault, as its index among all messages and what is wrong."""
    yield from _first(messages.is_null(), True, "has a message that is null")
    if pa.types.is_null(messages.type):
        return
    for field, values in zip(messages.type, messages.flatten(), strict=True):
        if field.name in ("role", "content"):
            yield from _first(values.is_null(), True, f"has a message without {field.name}")


def is_text(found: DataType) -> bool:
    """Tell whether a type holds text, plain or dictionary-encoded.

    >>> is_text(pa.dictionary(pa.int32(), pa.string())), is_text(pa.binary())
    (True, False)
    """
    if pa.types.is_dictionary(found):
        return is_text(found.value_type)
    return bool(pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found))


def is_messages(found: DataType) -> bool:
    """Tell whether a type is a list of messages; a message may hold more than role and content."""
    if not (pa.types.is_list(found) or pa.types.is_large_list(found)):
        return False
    message = found.value_type
    if pa.types.is_null(message):
        return True
    return bool(pa.types.is_struct(message)) and all(_holds_text(message, part) for part in ("role", "content"))


def _holds_text(struct: DataType, name: str) -> bool:
    place: int = struct.get_field_index(name)
    return place >= 0 and (pa.types.is_null(struct.field(place).type) or is_text(struct.field(place).type))


def _check_reward_model(found: DataType, where: str) -> None:
    if not pa.types.is_struct(found):
        raise DataError.wrong_type(where, "reward_model", found, "struct<style: string, ground_truth: string>")
    for part in ("style", "ground_truth"):
        place: int = found.get_field_index(part)
        if place >= 0 and not _holds_text(found, part):
            raise DataError.wrong_type(where, f"reward_model.{part}", found.field(place).type, "string")


def _first_value(column: ChunkedArray) -> int | None:
    """Return the index of the first value of a column that is something: not null, and no empty list."""
    array = pa.concat_arrays(column.chunks)
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        lengths = array.value_lengths().to_numpy(zero_copy_only=False)
        return next((index for index, length in enumerate(lengths) if length > 0), None)
    index: int = array.is_valid().index(True).as_py()
    return index if index >= 0 else None


def _first(array: Array, value: object, what: str) -> Iterator[Fault]:
    index: int = array.index(value).as_py()
    if index >= 0:
        yield index, what
