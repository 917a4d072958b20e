"""Several data sets as one: shares, joined columns, and which rows a step reads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph.errors import DataError, FlowError, UsageError
from nodes.data.mixing import SetRows, shares, split_weight, step_rows
from nodes.data.order import PERIOD
from nodes.data.sets import DataSet, load
from nodes.data.source import PromptSource
from tests.looped import looped


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    path.write_text("".join(f"{json.dumps({'prompt': path.stem} | dict(each))}\n" for each in rows))
    return str(path)


def source_of(data: DataSet, batch: int, seed: int = 0) -> PromptSource:
    return PromptSource(data.train, batch, seed, data.mixed(batch))


@looped(
    "spec, expected",
    [
        ("a.parquet", ("a.parquet", None)),
        ("a.parquet:0.3", ("a.parquet", Fraction(3, 10))),
        ("a.parquet:1e-3", ("a.parquet", Fraction(1, 1000))),
        ("digits:max:2", ("digits:max", Fraction(2))),
        ("hf:openai/gsm8k:main", ("hf:openai/gsm8k:main", None)),
        ("digits:nan", ("digits:nan", None)),
        ("hf:wikimedia/wikipedia:nan", ("hf:wikimedia/wikipedia:nan", None)),
        (":0.5", (":0.5", None)),
    ],
)
def test_a_number_after_a_set_is_its_weight(spec: str, expected: tuple[str, Fraction | None]) -> None:
    assert split_weight(spec) == expected


@looped("weight", ["0", "-1", "1e7", "nan", "inf", "-inf", "1/3", "half", "", "1e99999999", "1e-99999999"])
def test_a_weight_out_of_range_is_refused(weight: str) -> None:
    with pytest.raises(UsageError, match="a weight is a number above 0"):
        split_weight(f"a.parquet:{weight}")


def test_weights_that_leave_nothing_are_refused_and_those_of_all_sets_are_scaled() -> None:
    assert shares([None, None], [3, 4]) == [None, None]
    assert shares([Fraction(7), Fraction(3)], [1, 1]) == [Fraction(7, 10), Fraction(3, 10)]
    with pytest.raises(UsageError, match="the weights add up to 1"):
        shares([Fraction(1), None], [1, 1])


@given(
    weights=st.lists(st.integers(1, 50), min_size=2, max_size=5),
    batch=st.integers(1, 64),
    steps=st.integers(1, 2 * PERIOD),
)
def test_every_step_has_each_share_rounded_and_the_run_has_it_exactly(
    weights: list[int], batch: int, steps: int
) -> None:
    parts = shares([Fraction(weight) for weight in weights], [1000] * len(weights))
    read = step_rows([SetRows(str(place), 1000, share) for place, share in enumerate(parts)], batch)
    for step in range(0, steps, max(1, steps // 20)):
        sizes = [rows.start(step + 1) - rows.start(step) for rows in read]
        assert sum(sizes) == batch
        wanted = [batch * share for share in parts if share is not None]
        assert all(int(want) <= size <= int(want) + 1 for size, want in zip(sizes, wanted, strict=True))
    for rows, share in zip(read, parts, strict=True):
        assert share is not None
        assert abs(rows.start(steps) - steps * batch * share) <= 12 + Fraction(steps, PERIOD)


def test_steps_read_each_set_by_its_share_in_mixed_order_and_alike_whenever_asked(tmp_path: Path) -> None:
    specs = [write(tmp_path / "a.jsonl", [{}] * 40), write(tmp_path / "b.jsonl", [{}] * 10)]
    data = load([specs[0], f"{specs[1]}:0.3"], cache=tmp_path)
    assert data.sets == (SetRows("a", 40, Fraction(7, 10)), SetRows("b", 10, Fraction(3, 10)))
    source = source_of(data, 8, seed=5)
    batches = [source.batch(step) for step in range(PERIOD)]
    names = [each.columns.data["data_source"].to_pylist() for each in batches]
    counts = Counter(name for each in names for name in each)
    assert abs(counts["b"] / (8 * PERIOD) - 0.3) < 1 / PERIOD
    assert len({tuple(each) for each in names}) > 20, "rows of both sets are mixed in a step"
    rows = [each.group.data.tolist() for each in batches]
    assert all(len(set(each)) == 8 for each in rows)
    assert [source_of(data, 8, seed=5).batch(step).group.data.tolist() for step in (700, 3)] == [rows[700], rows[3]]
    assert source_of(data, 8, seed=6).batch(3).group.data.tolist() != rows[3]
    read = Counter(row for each in rows for row in each)
    for part in (range(40), range(40, 50)):
        assert max(read[row] for row in part) - min(read[row] for row in part) <= 1


def test_sets_without_weights_are_read_as_one_file_and_keep_their_sources(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", [{"data_source": "mine", "extra_info": {"index": 1}}, {}])
    second = write(tmp_path / "b.jsonl", [{"extra_info": {"level": "hard"}, "score": 1.5}])
    data = load([first, second], cache=tmp_path, held_out=[second, first])
    assert (data.name, data.origin, data.mixed(2)) == ("a+b", f"{first}, {second}", ())
    assert data.train["data_source"].to_pylist() == ["mine", "a", "b"]
    assert data.train["extra_info"].to_pylist()[2] == {"index": None, "level": "hard"}
    assert data.held_out is not None
    assert data.held_out["data_source"].to_pylist() == ["b", "mine", "a"]
    assert data.checks == (SetRows("b", 1), SetRows("a", 2))
    assert [data.check_rows(most) for most in (1, 2, 9)] == [(0,), (0, 1), (0, 1, 2)]
    assert data.files == (Path(first), Path(second))
    assert [name for name, _ in data.train_sets()] == ["a", "b"]


def test_held_out_rows_of_several_sets_are_those_that_each_has(tmp_path: Path) -> None:
    data = load(["digits", "addition", write(tmp_path / "c.jsonl", [{}])], cache=tmp_path)
    assert data.held_out is not None
    assert data.held_out["data_source"].unique().to_pylist() == ["digits", "addition"]
    assert [part.rows for part in data.checks] == [200, 15]
    assert len(data.check_rows(100)) == 100
    assert sum(row >= 200 for row in data.check_rows(100)) == 15


def test_sets_of_one_file_name_go_by_their_folders_too(tmp_path: Path) -> None:
    files = list[str]()
    for name in ("gsm8k", "math"):
        (tmp_path / name).mkdir()
        files.append(write(tmp_path / name / "train.jsonl", [{"prompt": name}] * 4))
    other = write(tmp_path / "other.jsonl", [{"prompt": "x"}])
    data = load([f"{files[0]}:0.5", f"{files[1]}:0.5"], held_out=[*files, other], cache=tmp_path)
    assert [part.name for part in data.sets] == ["gsm8k/train", "math/train"]
    assert [part.name for part in data.checks] == ["gsm8k/train", "math/train", "other"]
    assert data.data_sources == ("gsm8k/train", "math/train"), "of rows without one"


def fault_of(tmp_path: Path, specs: Sequence[str], batch: int = 4) -> str:
    with pytest.raises(FlowError) as caught:
        load(specs, cache=tmp_path).mixed(batch)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_sets_that_cannot_be_mixed_are_named(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", [{"extra_info": {"index": 1}, "level": 3}] * 9)
    assert fault_of(tmp_path, [a, write(tmp_path / "b.jsonl", [{"extra_info": {"index": "x"}}])]) == (
        "b: column `extra_info.index` is string here, but int64 in a\n"
        "  hint: give the column one type in all files, or leave it out of them"
    )
    assert fault_of(tmp_path, [a, write(tmp_path / "b.jsonl", [{"level": 0.5}])]).startswith(
        "b: column `level` is double here, but int64 in a"
    )
    few = write(tmp_path / "b.jsonl", [{}] * 2)
    assert fault_of(tmp_path, [a, f"{few}:0.9"]) == (
        "b: a step of 4 prompts reads 4 of it, but it has 2 rows\n  hint: a smaller weight, or a smaller --batch"
    )
    assert fault_of(tmp_path, [a, f"{few}:0.0001"]).startswith("b: its share is less than one prompt in 1,024 steps")
    assert fault_of(tmp_path, [f"{a}:0.5"]).startswith("--data a.jsonl:0.5: a weight has no effect")
    assert fault_of(tmp_path, [a, str(tmp_path / "none.jsonl:0.5")]).startswith("none.jsonl: no such file")
    (tmp_path / "c.jsonl").write_text(f"{json.dumps({'prompt': 'x'})}\n{json.dumps({'promt': 'x'})}\n")
    assert fault_of(tmp_path, [a, str(tmp_path / "c.jsonl")]).startswith("c.jsonl:2: `prompt` is null")
    (tmp_path / "d.jsonl").touch()
    with pytest.raises(DataError, match=r"d\.jsonl: has no rows"):
        load(a, cache=tmp_path, held_out=[a, str(tmp_path / "d.jsonl")])


def test_text_columns_of_any_arrow_type_are_joined(tmp_path: Path) -> None:
    from nodes.data.mixing import joined

    kinds = (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()), pa.null())
    tables = [(str(place), pa.table({"x": pa.array([None], kind)})) for place, kind in enumerate(kinds)]
    assert joined(tables).column("x").to_pylist() == [None] * 5
