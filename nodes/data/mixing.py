"""Several data sets as one: their tables joined, and how many rows of each a step reads.

A weight is a share of the prompts: `b.parquet:0.3` is 3 of 10. Without weights, all rows are in one order, as if they
were in one file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from pathlib import Path

import pyarrow as pa

from flowgraph.errors import DataError, UsageError
from nodes.data.arrow import DataType, Table
from nodes.data.checks import is_text
from nodes.data.order import PERIOD, StepRows
from nodes.data.rows import READERS

MOST_WEIGHT = 1_000_000


@dataclass(frozen=True)
class SetRows:
    """One data set within the joined rows: its name, its number of rows, and its share of the prompts.

    The share is None if all sets are read in one order.
    """

    name: str
    rows: int
    share: Fraction | None = None


def split_weight(spec: str) -> tuple[str, Fraction | None]:
    """Return a data set and its weight, from `SET:WEIGHT` or `SET`; the weight is None if the text has none.

    Raises UsageError for a weight that is not above 0 and up to a million, and if the text after the name of a data
    file is not a number.

    >>> split_weight("b.parquet:0.3"), split_weight("digits:max")
    (('b.parquet', Fraction(3, 10)), ('digits:max', None))
    """
    name, _, text = spec.rpartition(":")
    if not name:
        return spec, None
    try:
        weight = float(text)  # a fraction of 1e99999999 would take hours
    except ValueError:
        weight = math.nan
    # A configuration on the hub may be called `nan`, and generated data has kinds.
    if not math.isfinite(weight) and (spec.startswith("hf:") or Path(name).suffix not in READERS):
        return spec, None
    if not 0 < weight <= MOST_WEIGHT:
        what = f"a weight is a number above 0 and up to {MOST_WEIGHT:,}"
        raise UsageError(what, where=f"--data {spec}", hint=f"{name}:0.3 takes 3 of 10 prompts from it")
    return name, Fraction(text)


def shares(weights: Sequence[Fraction | None], rows: Sequence[int]) -> list[Fraction | None]:
    """Return the fraction of the prompts that each data set supplies; None for all sets if none has a weight.

    `rows` has the number of rows of each set. If every set has a weight, the shares are proportional to the weights and
    sum to 1. Otherwise each weight is itself a share, and the sets without a weight divide the rest in proportion to
    their rows. Raises UsageError if the weights leave nothing for the sets without one.

    >>> shares([Fraction(2), Fraction(1)], [5, 5])
    [Fraction(2, 3), Fraction(1, 3)]
    >>> shares([None, Fraction("0.4"), None], [1, 9, 2])
    [Fraction(1, 5), Fraction(2, 5), Fraction(2, 5)]
    """
    named = [weight for weight in weights if weight is not None]
    if not named:
        return [None] * len(weights)
    total = sum(named, Fraction(0))
    if len(named) == len(weights):
        return [weight / total for weight in named]
    if total >= 1:
        what = f"the weights add up to {float(total):g}, which leaves no prompts for the sets without a weight"
        raise UsageError(what, where="--data", hint="give every set a weight, or weights that add up to less than 1")
    other_rows = sum(count for weight, count in zip(weights, rows, strict=True) if weight is None)
    return [
        (1 - total) * count / max(1, other_rows) if weight is None else weight
        for weight, count in zip(weights, rows, strict=True)
    ]


def step_rows(sets: Sequence[SetRows], batch: int) -> list[StepRows]:
    """Return for each set how many of its rows each step reads; a step reads `batch` rows of all sets together.

    A set has its share of each step, rounded down or up. Raises DataError for a set that has fewer rows than one step
    reads of this set, and for a set that is read less than once in 1,024 steps, such as one without a share.

    >>> [part.whole for part in step_rows([SetRows("a", 9, Fraction(3, 4)), SetRows("b", 9, Fraction(1, 4))], 8)]
    [6, 2]
    """
    targets = [batch * (part.share or 0) for part in sets]
    floors = [int(count) for count in targets]
    bounds = [Fraction(0), *accumulate(count - floor for count, floor in zip(targets, floors, strict=True))]
    bits = PERIOD.bit_length() - 1
    offsets = [Fraction(int(f"{step:0{bits}b}"[::-1], 2), PERIOD) for step in range(PERIOD)]  # evenly spread
    steps = list[StepRows]()
    for part, floor, (low, high) in zip(sets, floors, pairwise(bounds), strict=True):
        extra_rows = (int(offset + high) - int(offset + low) for offset in offsets)
        rows = StepRows(floor, (0, *accumulate(extra_rows)))
        if rows.most > part.rows:
            what = f"a step of {batch} prompts reads {rows.most} of it, but it has {part.rows} rows"
            raise DataError.unusable(part.name, what, hint="a smaller weight, or a smaller --batch")
        if batch * (part.share or 0) * PERIOD < 1:
            what = f"its share is less than one prompt in {PERIOD:,} steps of {batch} prompts"
            raise DataError.unusable(part.name, what, hint="a larger weight, or leave it out")
        steps.append(rows)
    return steps


def joined(tables: Sequence[tuple[str, Table]]) -> Table:
    """Return the rows of one or more named tables as one table; a column that a table lacks is null in its rows.

    Text columns become plain strings, and metadata of the schemas is dropped. Raises DataError, which names the table,
    for a column whose types in two tables cannot be joined.
    """
    plain = list[tuple[str, Table]]()
    for name, table in tables:
        texts = table.replace_schema_metadata(None)
        for index, field in enumerate(table.schema):
            if is_text(field.type) and not pa.types.is_string(field.type):
                texts = texts.set_column(index, field.name, table.column(index).cast(pa.string()))
        plain.append((name, texts))
    first_name, first = plain[0]
    for name, table in plain[1:]:
        for field in table.schema:
            index = first.schema.get_field_index(field.name)
            for path, mine, first_type in (
                _conflicts(field.name, field.type, first.field(index).type) if index >= 0 else ()
            ):
                what = f"column `{path}` is {mine} here, but {first_type} in {first_name}"
                hint = "give the column one type in all files, or leave it out of them"
                raise DataError.unusable(name, what, hint=hint)
        try:
            first = pa.concat_tables([first, table], promote_options="permissive")
        except pa.ArrowException as fault:
            raise DataError.failed(name, f"its columns do not fit those of {first_name}", fault) from fault
        first_name = "the files before it"
    return first.combine_chunks()


def _conflicts(path: str, mine: DataType, theirs: DataType) -> Iterator[tuple[str, DataType, DataType]]:
    """Yield the path and both types of each part in which two types cannot be joined without changing values."""
    if pa.types.is_null(mine) or pa.types.is_null(theirs) or mine.equals(theirs):
        return
    if pa.types.is_struct(mine) and pa.types.is_struct(theirs):
        for field in mine:
            index = theirs.get_field_index(field.name)
            if index >= 0:
                yield from _conflicts(f"{path}.{field.name}", field.type, theirs.field(index).type)
    elif _is_list(mine) and _is_list(theirs):
        yield from _conflicts(path, mine.value_type, theirs.value_type)
    elif not any(kind(mine) and kind(theirs) for kind in (is_text, pa.types.is_integer, pa.types.is_floating)):
        yield path, mine, theirs


def _is_list(dtype: DataType) -> bool:
    return bool(pa.types.is_list(dtype) or pa.types.is_large_list(dtype))
