"""Columns by other names, of files that were not written for training here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowgraph.errors import DataError, FlowError, UsageError
from nodes.data.columns import parse_columns
from nodes.data.sets import load
from tests.looped import looped

BOTH = "prompt=problem,answer=solution"


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    return str(path)


def loaded(spec: str | list[str], *columns: str, held_out: str | None = None) -> list[dict[str, Any]]:
    data = load(spec, cache=Path(), columns=parse_columns(columns), held_out=held_out)
    rows: list[dict[str, Any]] = data.train.to_pylist()
    return rows


def test_a_text_and_its_answer_become_a_chat_and_a_ground_truth_of_the_named_source(tmp_path: Path) -> None:
    file = write(tmp_path / "raw.jsonl", {"problem": "1+1?", "solution": 2}, {"problem": "?", "solution": 3})
    first, second = loaded(file, BOTH)
    assert first == {
        "problem": "1+1?",
        "solution": 2,
        "prompt": [{"role": "user", "content": "1+1?"}],
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "data_source": "raw",
    }
    assert second["reward_model"]["ground_truth"] == "3"


def test_a_path_a_chat_and_any_other_column_can_be_named(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    row = {"info": {"chat": chat, "kind": "k"}, "golden": ["a", "b"], "prompt": "other"}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    (read,) = loaded(str(tmp_path / "a.parquet"), "prompt=info.chat", "ground_truth=golden, data_source=info.kind")
    assert (read["prompt"], read["data_source"]) == (chat, "k")
    assert json.loads(read["reward_model"]["ground_truth"]) == ["a", "b"]


def test_files_that_differ_are_mapped_each_by_what_it_has(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", {"problem": "a", "solution": "1"})
    second = write(tmp_path / "b.jsonl", {"question": "b", "solution": "2"})
    ready = {"prompt": "c", "reward_model": {"style": "rule", "ground_truth": "3"}, "data_source": "mine"}
    rows = loaded([first, second, write(tmp_path / "c.jsonl", ready)], BOTH, "prompt=question")
    assert [each["prompt"][0]["content"] for each in rows] == ["a", "b", "c"]
    assert [each["reward_model"]["ground_truth"] for each in rows] == ["1", "2", "3"]
    assert [each["data_source"] for each in rows] == ["a", "b", "mine"]


@looped(
    "rows, columns, expected",
    [
        ([{"problem": "a"}, {}], "prompt=problem", "a.jsonl:2: `problem` is null or missing"),
        ([{"problem": "a", "solution": None}], BOTH, "a.jsonl:1: `solution` is null or missing"),
        ([{"problems": "a"}], "prompt=problem", "a.jsonl: lacks column `problem`\n  hint: did you mean `problems`?"),
        ([{"problem": "a"}], BOTH, "a.jsonl: lacks column `solution`\n  hint: known: problem"),
        ([{"problem": 1}], "prompt=problem", "a.jsonl: column `problem` is int64, not a text or a list of messages"),
        ([{"problem": "a"}], "answer=problem", "a.jsonl: lacks column `prompt`"),
    ],
)
def test_a_row_or_a_file_that_lacks_a_source_is_named(
    rows: list[object], columns: str, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(FlowError) as caught:
        loaded(write(tmp_path / "a.jsonl", *rows), columns)
    assert str(caught.value).replace(f"{tmp_path}/", "").startswith(expected)
    good = {"problem": "a", "solution": "1", "prompt": "p"}
    with pytest.raises(DataError, match=r"is null or missing|lacks column|column `problem` is"):
        loaded(write(tmp_path / "b.jsonl", good), columns, held_out=write(tmp_path / "a.jsonl", *rows))


@looped("text", ["prompt", "prompt=", "=problem", "prompt=problem,", ""])
def test_a_text_that_maps_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="should be COLUMN=SOURCE"):
        parse_columns([text])
