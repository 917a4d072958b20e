"""Reading rows: what is accepted, and the file, row and column of what is not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowgraph.errors import DataError
from nodes.data.parquet import write_parquet
from nodes.data.rows import ROW_SCHEMA, read, row, table_of
from nodes.data.tasks import digits
from tests.looped import looped

GOOD = [{"role": "user", "content": "374"}]
HINT = '\n  hint: write a prompt as [{"role": "user", "content": "…"}]'
MESSAGES = "list<struct<role: string, content: string>>"


def jsonl(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    return path


def fault_of(path: Path) -> str:
    """Read a file that must be refused, and give the error's text with the file's name for its path."""
    with pytest.raises(DataError) as caught:
        read(path)
    return str(caught.value).replace(str(path), path.name)


def parquet_fault(tmp_path: Path, columns: dict[str, Any]) -> str:
    path = tmp_path / "a.parquet"
    write_parquet(pa.table(columns), path)
    return fault_of(path)


def jsonl_fault(tmp_path: Path, *rows: object) -> str:
    return fault_of(jsonl(tmp_path / "a.jsonl", *rows))


def test_rows_that_are_made_have_the_schema_and_their_extra_info() -> None:
    table = table_of([row("own", "1 + 1?", "2", ability="math", extra_info={"index": 0, "split": "train"})])
    assert table.schema.names == [*ROW_SCHEMA.names, "extra_info"]
    assert table.to_pylist() == [
        {
            "data_source": "own",
            "prompt": [{"role": "user", "content": "1 + 1?"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "2"},
            "extra_info": {"index": 0, "split": "train"},
        }
    ]


def test_rows_come_back_from_parquet_and_from_json_lines_alike(tmp_path: Path) -> None:
    train, _ = digits()
    write_parquet(train, tmp_path / "a.parquet")
    lines = jsonl(tmp_path / "a.jsonl", *train.to_pylist())
    assert read(tmp_path / "a.parquet").equals(train)
    assert read(lines).equals(train)


def test_only_a_prompt_is_needed(tmp_path: Path) -> None:
    assert read(jsonl(tmp_path / "a.jsonl", {"prompt": GOOD})).to_pylist() == [{"prompt": GOOD}]


def test_messages_may_hold_more_and_in_another_order_and_other_columns_anything(tmp_path: Path) -> None:
    rows = [{"prompt": [{"content": "x", "role": "user", "name": "me"}], "tags": [1, 2], "ability": None}]
    assert read(jsonl(tmp_path / "a.jsonl", *rows)).to_pylist() == rows


def test_strings_that_look_like_dates_stay_strings(tmp_path: Path) -> None:
    rows = [{"prompt": GOOD, "reward_model": {"style": "rule", "ground_truth": "2026-01-31"}}]
    assert read(jsonl(tmp_path / "a.jsonl", *rows)).to_pylist() == rows


def test_large_and_dictionary_encoded_strings_are_strings(tmp_path: Path) -> None:
    message = pa.struct([("role", pa.large_string()), ("content", pa.large_string())])
    prompts = pa.array([GOOD, GOOD], pa.large_list(message))
    sources = pa.array(["own", "own"]).dictionary_encode()
    write_parquet(pa.table({"prompt": prompts, "data_source": sources}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet")["data_source"].to_pylist() == ["own", "own"]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert fault_of(tmp_path / "a.parquet") == "a.parquet: no such file"


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt\n")
    assert fault_of(tmp_path / "a.csv") == "a.csv: not a data file: its name must end in .parquet or .jsonl"


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_a_file_without_rows(tmp_path: Path, name: str) -> None:
    if name == "a.jsonl":
        (tmp_path / name).write_text("\n\n")
    else:
        write_parquet(ROW_SCHEMA.empty_table(), tmp_path / name)
    assert fault_of(tmp_path / name) == f"{name}: has no rows"


def test_a_file_without_a_prompt_names_the_nearest_column(tmp_path: Path) -> None:
    columns = {"promt": [GOOD], "ability": ["math"]}
    assert parquet_fault(tmp_path, columns) == "a.parquet: lacks column `prompt`\n  hint: did you mean `promt`?"


def test_a_prompt_that_is_a_text_is_one_message_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": "374"}))
    assert read(tmp_path / "a.jsonl").to_pylist() == [{"prompt": [{"role": "user", "content": "374"}]}]
    pq.write_table(pa.table({"prompt": pa.array(["374"]).dictionary_encode()}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet").to_pylist() == [{"prompt": [{"role": "user", "content": "374"}]}]
    (tmp_path / "b.jsonl").write_text('{"prompt": "374"}\n\n{}\n')
    with pytest.raises(DataError, match=re.escape(f"{tmp_path}/b.jsonl:3: `prompt` is null")):
        read(tmp_path / "b.jsonl")


def test_a_prompt_that_is_a_number(tmp_path: Path) -> None:
    expected = f"column `prompt` is int64, not {MESSAGES}{HINT}"
    assert parquet_fault(tmp_path, {"prompt": [374]}) == f"a.parquet: {expected}"
    assert jsonl_fault(tmp_path, {"prompt": 374}) == f"a.jsonl: {expected}"


def test_a_role_that_is_a_number(tmp_path: Path) -> None:
    found = "list<element: struct<role: int64, content: string>>"
    columns = {"prompt": [[{"role": 1, "content": "x"}]]}
    assert parquet_fault(tmp_path, columns) == f"a.parquet: column `prompt` is {found}, not {MESSAGES}{HINT}"


@looped(
    "prompt, what",
    [
        (None, "is null"),
        ([], "has no messages"),
        ([{"role": None, "content": "x"}], "has a message without role"),
        ([GOOD[0], {"role": "user", "content": None}], "has a message without content"),
        ([GOOD[0], None], "has a message that is null"),
    ],
)
def test_the_first_row_with_a_fault_is_named(tmp_path: Path, prompt: object, what: str) -> None:
    prompts = [GOOD, GOOD, prompt, GOOD, None, []]
    assert parquet_fault(tmp_path, {"prompt": prompts}) == f"a.parquet row 2 (from 0): `prompt` {what}{HINT}"
    rows = [{"prompt": each} for each in prompts]
    assert jsonl_fault(tmp_path, *rows) == f"a.jsonl:3: `prompt` {what}{HINT}"


@pytest.mark.parametrize("prompt", [None, []])
def test_a_fault_in_every_row_is_found_in_the_first(tmp_path: Path, prompt: object) -> None:
    what = "is null" if prompt is None else "has no messages"
    assert jsonl_fault(tmp_path, {"prompt": prompt}) == f"a.jsonl:1: `prompt` {what}{HINT}"


def test_a_null_message_in_every_row_is_found(tmp_path: Path) -> None:
    assert jsonl_fault(tmp_path, {"prompt": [None]}) == f"a.jsonl:1: `prompt` has a message that is null{HINT}"


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("data_source", 3, "column `data_source` is int64, not string"),
        ("ability", ["math"], "column `ability` is list<element: string>, not string"),
        ("reward_model", "4", "column `reward_model` is string, not struct<style: string, ground_truth: string>"),
        ("reward_model", {"ground_truth": 4}, "column `reward_model.ground_truth` is int64, not string"),
    ],
)
def test_other_columns_of_the_schema_are_checked_where_present(
    tmp_path: Path, column: str, value: object, expected: str
) -> None:
    assert parquet_fault(tmp_path, {"prompt": [GOOD], column: [value]}) == f"a.parquet: {expected}"


def test_a_column_that_comes_twice(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(pa.table([pa.array([GOOD]), pa.array([GOOD])], names=["prompt", "prompt"]), path)
    assert fault_of(path) == "a.parquet: has more than one column `prompt`"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b'{"prompt": ', "not JSON: Expecting value: line 2 column 1 (char 12)"),
        (b"[1, 2]", "a JSON array, not an object"),
        (b"null", "a JSON null, not an object"),
        (b'{"prompt": "\xff"}', "not UTF-8"),
    ],
)
def test_a_broken_line_is_named_by_its_number_blank_lines_counted(tmp_path: Path, line: bytes, what: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(json.dumps({"prompt": GOOD}).encode() + b"\n\n" + line + b"\n")
    assert fault_of(path) == f"a.jsonl:3: {what}"


def test_a_line_nested_too_deeply_is_not_json_that_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("[" * 100_000)
    assert fault_of(path).startswith("a.jsonl:1: not JSON: ")


def test_a_line_whose_prompt_is_text_among_messages_is_named(tmp_path: Path) -> None:
    rows = [{"prompt": GOOD}, {"prompt": GOOD}, {"prompt": "374"}]
    assert jsonl_fault(tmp_path, *rows) == f"a.jsonl:3: column `prompt` is string, not {MESSAGES}{HINT}"
    assert jsonl_fault(tmp_path, *reversed(rows)) == f"a.jsonl:1: column `prompt` is string, not {MESSAGES}{HINT}"


def test_a_line_that_changes_the_type_of_a_column_of_ones_own_is_named(tmp_path: Path) -> None:
    rows = [{"prompt": GOOD, "level": level} for level in (1, 2, None, 3, "high", 4)]
    assert jsonl_fault(tmp_path, *rows) == (
        "a.jsonl:5: column `level` has another type here than in the lines above\n"
        "    Could not convert 'high' with type str: tried to convert to int64\n"
        "  hint: give it one type, or write it as a string"
    )


def test_a_line_with_half_a_character_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": [{"role": "user", "content": "\\ud800"}]}\n')
    assert fault_of(path).startswith("a.jsonl:1: `prompt` ")


def test_a_number_too_large_for_any_column_is_named(tmp_path: Path) -> None:
    assert jsonl_fault(tmp_path, {"prompt": GOOD, "n": 2**70}).startswith("a.jsonl:1: `n` ")


def test_what_is_no_text_is_refused_by_its_first_row_and_an_empty_column_of_it_is_none(tmp_path: Path) -> None:
    for name, value in (("images", [{"bytes": "x"}]), ("videos", ["v.mp4"]), ("multi_modal_data", {"image": "x"})):
        nothing = [] if isinstance(value, list) else None
        rows = [{"prompt": GOOD, name: nothing}, {"prompt": GOOD, name: value}]
        said = jsonl_fault(tmp_path, *rows)
        assert said == (
            f"a.jsonl:2: `{name}` is not text, so models would not read it\n"
            "  hint: models here read only text; if the text is enough, leave the column out"
        )
        assert read(jsonl(tmp_path / "a.jsonl", rows[0])).num_rows == 1
