"""GSM8K rows, as verl prepares them, on a sample that the test writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowgraph.errors import DataError
from nodes.data import gsm8k, sets

SAMPLE = [
    {"question": "Nine boxes of 120. How many?", "answer": "9 * 120 = <<9*120=1080>>1,080\n#### 1,080"},
    {"question": "Down by 5 from 2?", "answer": "2 - 5 = -3\n#### -3"},
    {"question": "Half of 5?", "answer": "#### 2.5"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, rows in (("train", SAMPLE), ("test", SAMPLE[:1])):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    return tmp_path


def fault_of(folder: Path, line: str) -> str:
    (folder / "test.jsonl").write_text(f"{json.dumps(SAMPLE[0])}\n{line}\n")
    with pytest.raises(DataError) as caught:
        gsm8k.from_jsonl(folder / "train.jsonl", folder / "test.jsonl")
    return str(caught.value).replace(f"{folder}/", "")


def test_a_row_is_as_verl_writes_it(folder: Path) -> None:
    _, test = gsm8k.from_jsonl(folder / "train.jsonl", folder / "test.jsonl")
    ask = 'Let\'s think step by step and output the final answer after "####".'
    assert test.to_pylist() == [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": f"Nine boxes of 120. How many? {ask}"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "1080"},
            "extra_info": {"split": "test", "index": 0, **{key: SAMPLE[0][key] for key in ("answer", "question")}},
        }
    ]


def test_the_number_after_the_marks_is_the_truth(folder: Path) -> None:
    train, _ = gsm8k.from_jsonl(folder / "train.jsonl", folder / "test.jsonl")
    assert [each["ground_truth"] for each in train["reward_model"].to_pylist()] == ["1080", "-3", "2.5"]
    assert [each["index"] for each in train["extra_info"].to_pylist()] == [0, 1, 2]


def test_what_is_prepared_can_be_loaded(folder: Path, tmp_path: Path) -> None:
    assert gsm8k.prepare(folder, tmp_path / "cache") == gsm8k.prepared(tmp_path / "cache")
    data = sets.load("gsm8k", cache=tmp_path / "cache")
    assert (data.name, data.data_source, data.train.num_rows) == ("gsm8k", "openai/gsm8k", 3)
    assert data.held_out is not None
    assert data.held_out.num_rows == 1


def test_what_is_not_prepared_says_how(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        sets.load("gsm8k", cache=tmp_path)
    assert str(caught.value) == (
        f"gsm8k: not prepared: no train and test in {tmp_path}/gsm8k\n"
        "  hint: flowgraph data gsm8k --from FOLDER, a folder with train.jsonl and test.jsonl"
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"question": "a", "answer": "no number"}', "test.jsonl:2: `answer` has no number after `#### `"),
        ('{"question": 1, "answer": "#### 2"}', "test.jsonl:2: `question` is not a string"),
        (
            '{"questions": "a", "answer": "#### 2"}',
            "test.jsonl:2: lacks column `question`\n  hint: did you mean `questions`?",
        ),
        ('{"question": "a"', "test.jsonl:2: not JSON: Expecting ',' delimiter: line 2 column 1 (char 17)"),
    ],
)
def test_a_bad_line_is_named(folder: Path, line: str, expected: str) -> None:
    assert fault_of(folder, line) == expected


def test_nothing_is_written_where_a_line_is_bad_or_a_file_is_missing(folder: Path, tmp_path: Path) -> None:
    (folder / "test.jsonl").unlink()
    with pytest.raises(DataError) as caught:
        gsm8k.prepare(folder, tmp_path / "cache")
    assert str(caught.value) == f"{folder / 'test.jsonl'}: no such file"
    assert not (tmp_path / "cache").exists()
