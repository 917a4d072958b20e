"""Checks of a table of rows, which report the first fault. Files are read in `rows`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from flowgraph.errors import DataError
from nodes.data.arrow import Array, ChunkedArray, DataType, Table

PROMPT_HINT = 'write a prompt as [{"role": "user", "content": "…"}]'
MODEL_HINT = "models here read only text; if the text is enough, leave the column out"
NOT_TEXT = ("images", "image", "videos", "video", "audios", "audio", "multi_modal_data", "multi_modal_inputs")
"""Columns with data other than text, by their names in verl's data sets."""
MESSAGES = "list<struct<role: string, content: string>>"

Fault = tuple[int, str]


def check_rows(table: Table, *, file: str, where: Callable[[int], str]) -> None:
    """Raise DataError for the first fault of a table, such as no rows, a malformed `prompt`, a wrong type, or images.

    `file` names the table in errors; `where` returns the name of a row, given its index.
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
    for name in (name for name in NOT_TEXT if name in table.column_names):
        array = pa.concat_arrays(table[name].chunks)
        is_list = pa.types.is_list(array.type) or pa.types.is_large_list(array.type)
        is_filled = pc.call_function("greater", [array.value_lengths(), 0]) if is_list else array.is_valid()
        index: int = is_filled.index(True).as_py()
        if index >= 0:
            raise DataError.bad_row(where(index), name, "is not text, so models would not read it", hint=MODEL_HINT)
    faults = list(prompt_faults(table["prompt"]))
    if faults:
        index, what = min(faults, key=lambda fault: fault[0])
        raise DataError.bad_row(where(index), "prompt", what, hint=PROMPT_HINT)


def check_type(name: str, dtype: DataType, *, where: str) -> None:
    """Raise DataError if the column `name` of a data set must not have the type `dtype`; `where` names its file.

    Only `prompt`, `data_source`, `ability` and `reward_model` have a required type; a column of nulls always passes.

    >>> check_type("prompt", pa.string(), where="file")
    Traceback (most recent call last):
    flowgraph.errors.inputs.DataError: file: column `prompt` is string, not list<struct<role: string, content: string>>
      hint: write a prompt as [{"role": "user", "content": "…"}]
    """
    if pa.types.is_null(dtype):
        return
    if name == "prompt" and not is_messages(dtype):
        raise DataError.wrong_type(where, name, dtype, MESSAGES, hint=PROMPT_HINT)
    if name in ("data_source", "ability") and not is_text(dtype):
        raise DataError.wrong_type(where, name, dtype, "string")
    if name != "reward_model":
        return
    if not pa.types.is_struct(dtype):
        raise DataError.wrong_type(where, name, dtype, "struct<style: string, ground_truth: string>")
    for part in ("style", "ground_truth"):
        index: int = dtype.get_field_index(part)
        if index >= 0 and not _has_text(dtype, part):
            raise DataError.wrong_type(where, f"{name}.{part}", dtype.field(index).type, "string")


def check_value(name: str, value: object, *, where: str) -> None:
    """Raise DataError if Arrow cannot store one value, or if its type is not one that the column `name` may have.

    `where` names the value's row in the error. To find the faulty row of a column, call this for each of its values.
    """
    try:
        array = pa.array([value])
    except (pa.ArrowException, OverflowError, UnicodeError) as fault:
        raise DataError.bad_row(where, name, str(fault)) from fault
    check_type(name, array.type, where=where)


def prompt_faults(prompts: ChunkedArray) -> Iterator[Fault]:
    """Yield for each kind of fault in prompts the index of the first faulty row, and a description of the fault."""
    array = pa.concat_arrays(prompts.chunks)
    yield from _first(array.is_null(), True, "is null")
    if pa.types.is_null(array.type):
        return
    yield from _first(array.value_lengths(), 0, "has no messages")
    rows, messages = array.value_parent_indices(), array.flatten()
    yield from ((rows[index].as_py(), what) for index, what in message_faults(messages))


def message_faults(messages: Array) -> Iterator[Fault]:
    """Yield for each kind of fault the index of the first faulty message among all messages, and a description."""
    yield from _first(messages.is_null(), True, "has a message that is null")
    if pa.types.is_null(messages.type):
        return
    for field, values in zip(messages.type, messages.flatten(), strict=True):
        if field.name in ("role", "content"):
            yield from _first(values.is_null(), True, f"has a message without {field.name}")


def is_text(dtype: DataType) -> bool:
    """Return whether a type is text, plain or dictionary-encoded.

    >>> is_text(pa.dictionary(pa.int32(), pa.string())), is_text(pa.binary())
    (True, False)
    """
    if pa.types.is_dictionary(dtype):
        return is_text(dtype.value_type)
    return bool(pa.types.is_string(dtype) or pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype))


def is_messages(dtype: DataType) -> bool:
    """Return whether a type is a list of structs that have at least the texts `role` and `content`, or of nulls."""
    if not (pa.types.is_list(dtype) or pa.types.is_large_list(dtype)):
        return False
    message = dtype.value_type
    if pa.types.is_null(message):
        return True
    return bool(pa.types.is_struct(message)) and all(_has_text(message, part) for part in ("role", "content"))


def _has_text(struct: DataType, name: str) -> bool:
    index: int = struct.get_field_index(name)
    return index >= 0 and (pa.types.is_null(struct.field(index).type) or is_text(struct.field(index).type))


def _first(array: Array, value: object, what: str) -> Iterator[Fault]:
    index: int = array.index(value).as_py()
    if index >= 0:
        yield index, what
