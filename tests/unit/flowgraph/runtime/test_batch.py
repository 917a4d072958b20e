"""Records as tables and back: the same to the last bit, also through a Parquet file, and what is missing is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from flowgraph import Kind, Mask, Record, Value
from flowgraph.errors import DataError
from flowgraph.language.rows import leaves
from flowgraph.language.values import Lengths
from flowgraph.runtime.batch import SCALARS, from_table, to_table
from nodes import LogProbs, Rollout

Make = Callable[..., Rollout]


class Pair(Record):
    chosen: Rollout
    rejected: Rollout


class Around(Record):
    mask: Mask
    lengths: Lengths
    inner: Rollout
    beside: Pair


class Matrix(Value):
    kind = Kind.ROW


class Flags(Value):
    kind = Kind.TOKEN


class Loose(Record):
    matrix: Matrix
    flags: Flags


def same(one: Record, two: Record) -> bool:
    """Say whether two records hold the same, to the last bit and type."""
    pairs = list(zip(leaves([one]), leaves([two]), strict=True))
    return all(type(a) is type(b) and _equal(a.data, b.data) for a, b in pairs)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
    return bool(a.equals(b)) if hasattr(a, "equals") else type(a) is type(b) and a == b


def through_parquet(table: pa.Table, folder: Path) -> pa.Table:
    pq.write_table(table, folder / "x.parquet", compression="zstd", row_group_size=2)
    return pq.read_table(folder / "x.parquet")


def test_a_rollout_comes_back_to_the_last_bit(make_rollout: Make, tmp_path: Path) -> None:
    rollout = make_rollout([3, 1, 7, 5], contexts=[2, 9, 1, 4], temperature=0.7)
    rollout.logprobs.data[0, 0], rollout.logprobs.data[1, 0] = float("nan"), -float("inf")
    table = to_table(rollout)
    assert same(from_table(Rollout, table, "x"), rollout)
    assert same(from_table(Rollout, through_parquet(table, tmp_path), "x"), rollout)


def test_a_rollout_without_rows_comes_back(make_rollout: Make, tmp_path: Path) -> None:
    rollout = make_rollout([])
    assert same(from_table(Rollout, through_parquet(to_table(rollout), tmp_path), "x"), rollout)


def test_nothing_is_padded_on_the_wire_and_data_set_columns_keep_their_names(make_rollout: Make) -> None:
    table = to_table(make_rollout([3, 1, 2]))
    assert [len(row) for row in table["tokens"].to_pylist()] == [3, 1, 2]
    assert table["columns.data_source"].to_pylist() == ["digits"] * 3
    assert str(table.schema.field("logprobs").type) in ("list<item: float>", "list<element: float>")


def test_each_record_in_a_record_is_cut_by_its_own_lengths(make_rollout: Make, tmp_path: Path) -> None:
    pair = Pair(chosen=make_rollout([1, 2]), rejected=make_rollout([5, 3], seed=1))
    table = to_table(pair)
    assert [len(row) for row in table["rejected.tokens"].to_pylist()] == [5, 3]
    assert same(from_table(Pair, through_parquet(table, tmp_path), "x"), pair)


def test_lengths_of_an_outer_record_do_not_cut_an_inner_one(make_rollout: Make, tmp_path: Path) -> None:
    inner, mask = make_rollout([5, 3]), Mask(torch.tensor([[1.0, 0], [1, 1]]))
    pair = Pair(chosen=make_rollout([7, 1]), rejected=inner)
    around = Around(mask=mask, lengths=Lengths(torch.tensor([1, 2])), inner=inner, beside=pair)
    assert same(from_table(Around, through_parquet(to_table(around), tmp_path), "x"), around)


def test_a_record_without_lengths_keeps_its_width_and_rows_of_vectors_their_shape(tmp_path: Path) -> None:
    flags, matrix = (
        torch.tensor([[True, False], [False, False]]),
        torch.arange(12, dtype=torch.float64).reshape(2, 3, 2),
    )
    loose = Loose(matrix=Matrix(matrix), flags=Flags(flags))
    assert same(from_table(Loose, through_parquet(to_table(loose), tmp_path), "x"), loose)


def test_padding_beyond_the_longest_row_is_dropped(make_rollout: Make) -> None:
    class Cut(Record):
        mask: Mask
        lengths: Lengths
        logprobs: LogProbs

    values = torch.arange(10.0).reshape(2, 5)
    cut = Cut(mask=Mask(torch.ones(2, 5)), lengths=Lengths(torch.tensor([2, 3])), logprobs=LogProbs(values))
    assert from_table(Cut, to_table(cut), "x").logprobs.data.tolist() == [[0, 1, 0], [5, 6, 7]]


def test_a_column_that_is_missing_is_named(make_rollout: Make) -> None:
    table = to_table(make_rollout([3, 1]))
    with pytest.raises(DataError) as caught:
        from_table(
            Rollout, table.rename_columns([{"mask": "maks"}.get(name, name) for name in table.column_names]), "a/b"
        )
    assert str(caught.value) == "a/b: lacks the column `mask`\n  hint: did you mean `maks`?"
    with pytest.raises(DataError, match="lacks the column `temperature`"):
        from_table(Rollout, table.replace_schema_metadata({}), "a/b")


@pytest.mark.parametrize("column", [["1", "2"], [[1.0], None], [["1"], ["2"]], [[1, None], [2]]])
def test_token_columns_are_lists_of_numbers(make_rollout: Make, column: list[object]) -> None:
    table = to_table(make_rollout([3, 1]))
    place = table.column_names.index("tokens")
    wrong = table.set_column(place, "tokens", pa.array(column))
    with pytest.raises(DataError, match=r"^a/b: column `tokens` is .*, not a list of numbers in each row$"):
        from_table(Rollout, wrong, "a/b")


@pytest.mark.parametrize("scalars", [b"{", b"[]", b"5", b"\xff"])
def test_scalars_that_are_no_json_object_are_refused_by_file(make_rollout: Make, scalars: bytes) -> None:
    table = to_table(make_rollout([3, 1])).replace_schema_metadata({SCALARS: scalars})
    with pytest.raises(DataError, match=r"^a/b: its scalars "):
        from_table(Rollout, table, "a/b")
