"""Parquet files: whole, verified, and honest about damage."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowgraph.errors import DataError
from nodes.data.parquet import read_parquet, table_digest, write_parquet
from nodes.data.tasks import digits
from tests.looped import looped

NESTED = pa.table(
    {
        "a": [[{"x": "one", "y": None}], None, [], [{"x": None, "y": 1}, None]] * 3,
        "b": [True, None, False, True] * 3,
        "c": pa.array([1, 2, None, 4] * 3, pa.timestamp("s")),
        "d": [1.5, None, 2.0, 3.0] * 3,
    }
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "train.parquet"


def test_a_table_comes_back_as_it_was_written(path: Path) -> None:
    train, _ = digits()
    write_parquet(train, path)
    back = read_parquet(path)
    assert back.equals(train)
    assert back.schema.metadata is None
    assert table_digest(back) == table_digest(train)


def test_types_that_parquet_does_not_have_are_no_corruption(path: Path) -> None:
    write_parquet(NESTED, path)
    assert read_parquet(path).to_pylist() == NESTED.to_pylist()


def test_metadata_of_the_table_is_kept(path: Path) -> None:
    write_parquet(NESTED.replace_schema_metadata({b"by": b"me"}), path)
    assert read_parquet(path).schema.metadata == {b"by": b"me"}


@pytest.mark.parametrize("last_bytes", [None, 4000], ids=["anywhere", "in the footer"])
def test_of_200_bit_flips_all_are_detected_or_harmless(path: Path, last_bytes: int | None) -> None:
    train, _ = digits("sort")
    write_parquet(train, path)
    whole, chance = path.read_bytes(), random.Random(0)
    detected = 0
    for _ in range(200):
        flipped = bytearray(whole)
        place = chance.randrange(len(whole) - last_bytes if last_bytes else 0, len(whole))
        flipped[place] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        try:
            assert read_parquet(path).equals(train), f"byte {place} is wrong and nothing was said"
        except DataError:
            detected += 1
    assert detected > 100


@pytest.mark.parametrize("kept", [0, 3, 100, -1])
def test_a_truncated_file_is_corrupt(path: Path, kept: int) -> None:
    write_parquet(digits()[0], path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match="corrupt") as caught:
        read_parquet(path)
    assert str(caught.value).startswith(f"{path}: corrupt, or not Parquet\n    ")
    assert str(caught.value).endswith("\n  hint: write or copy it again")


def test_rows_that_another_program_took_out_differ_from_the_digest_that_it_kept(path: Path) -> None:
    write_parquet(pa.table({"a": [1, 2]}), path)
    pq.write_table(pq.read_table(path).slice(1), path)
    with pytest.raises(DataError) as caught:
        read_parquet(path)
    assert str(caught.value) == (
        f"{path}: corrupt: its contents differ from the digest in its footer\n"
        "  hint: write or copy it again; if it was changed on purpose, write it without its old schema metadata"
    )


def test_a_file_of_another_writer_without_checksums_is_read(path: Path) -> None:
    pq.write_table(NESTED, path)
    assert read_parquet(path).num_rows == NESTED.num_rows


def test_a_failed_write_leaves_the_old_file_and_no_other(path: Path) -> None:
    write_parquet(pa.table({"a": [1]}), path)
    path.with_name("folder").mkdir()
    with pytest.raises(DataError, match="cannot be written"):
        write_parquet(pa.table({"a": [2]}), path.with_name("folder"))
    assert read_parquet(path).to_pylist() == [{"a": 1}]
    assert sorted(each.name for each in path.parent.iterdir()) == ["folder", "train.parquet"]


def test_a_write_replaces_the_file_and_makes_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "a.parquet"
    write_parquet(pa.table({"a": [1]}), path)
    write_parquet(pa.table({"a": [2]}), path)
    assert read_parquet(path).to_pylist() == [{"a": 2}]
    assert [each.name for each in path.parent.iterdir()] == ["a.parquet"]


def test_a_digest_does_not_depend_on_chunks_or_slices() -> None:
    chunked = pa.concat_tables([NESTED.slice(0, 5), NESTED.slice(5, 2), NESTED.slice(7)])
    fresh = pa.Table.from_pylist(NESTED.slice(3, 6).to_pylist(), schema=NESTED.schema)
    assert table_digest(chunked) == table_digest(NESTED)
    assert table_digest(NESTED.slice(3, 6)) == table_digest(fresh) != table_digest(NESTED)


@looped(
    "other",
    [
        pa.table({"b": ["x", "yz"]}),
        pa.table({"a": ["xy", "z"]}),
        pa.table({"a": ["x", None]}),
        pa.table({"a": ["x", "yz", ""]}),
        pa.table({"a": [["x"], ["yz"]]}),
    ],
)
def test_a_digest_differs_by_name_value_null_length_and_type(other: pa.Table) -> None:
    assert table_digest(other) != table_digest(pa.table({"a": ["x", "yz"]}))
