"""Published data sets as rows, from samples in their formats that the tests write themselves."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowgraph.errors import DataError, FlowError
from nodes.data import sets
from nodes.data.published import PUBLISHED, converted, prepare
from tests.looped import looped

GSM8K = [
    {"question": "Nine boxes of 120. How many?", "answer": "9 * 120 = <<9*120=1080>>1,080\n#### 1,080"},
    {"question": "Down by 5 from 2?", "answer": "2 - 5 = -3\n#### -3"},
    {"question": "Half of 5?", "answer": "#### 2.5"},
]
MATH = {
    "problem": "What is $1/2 + 1/3$?",
    "level": "Level 1",
    "type": "Prealgebra",
    "solution": r"It is \boxed{3/6}, no: $\boxed{\frac{5}{6}}$.",
}
TESTS = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}
CONTEST = {
    "name": "1_A. Sum",
    "description": "Print a + b.",
    "public_tests": {"input": ["1 2"], "output": ["3"]},
    "private_tests": {"input": ["3 4"], "output": ["7"]},
    "generated_tests": {"input": ["5 6", "7 8"], "output": ["11", "15"]},
    "difficulty": 7,
    "time_limit": {"seconds": 1, "nanos": 500_000_000},
    "input_file": "",
    "output_file": "",
}


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{json.dumps(each)}\n" for each in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def rows_of(name: str, source: Path, split: str = "train") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = converted(name, source)[split].table.to_pylist()
    return rows


def fault_of(name: str, source: Path) -> str:
    with pytest.raises(FlowError) as caught:
        converted(name, source)
    return str(caught.value).replace(f"{source.parent}/", "")


def test_gsm8k_is_as_verl_writes_it(tmp_path: Path) -> None:
    write_lines(tmp_path / "train.jsonl", GSM8K)
    write_lines(tmp_path / "test.jsonl", GSM8K[:1])
    ask = 'Let\'s think step by step and output the final answer after "####".'
    assert rows_of("gsm8k", tmp_path, "test") == [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": f"Nine boxes of 120. How many? {ask}"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "1080"},
            "extra_info": {"split": "test", "index": 0, **{key: GSM8K[0][key] for key in ("answer", "question")}},
        }
    ]
    assert [each["reward_model"]["ground_truth"] for each in rows_of("gsm8k", tmp_path)] == ["1080", "-3", "2.5"]


def test_math_is_read_from_folders_of_json_and_from_one_file_with_answers(tmp_path: Path) -> None:
    for split, kind in (("train", "algebra"), ("train", "geometry"), ("test", "algebra")):
        (tmp_path / "MATH" / split / kind).mkdir(parents=True)
        (tmp_path / "MATH" / split / kind / "1.json").write_text(json.dumps(MATH | {"type": kind}))
    made = converted("math", tmp_path / "MATH")
    assert {split: each.table.num_rows for split, each in made.items()} == {"train": 2, "test": 1}
    (row,) = made["test"].table.to_pylist()
    assert row["data_source"] == "DigitalLearningGmbH/MATH-lighteval"
    ask = "Let's think step by step and output the final answer within \\boxed{}."
    assert row["prompt"] == [{"role": "user", "content": f"{MATH['problem']} {ask}"}]
    assert row["reward_model"]["ground_truth"] == r"\frac{5}{6}"
    about = {"level": "Level 1", "type": "algebra", "solution": MATH["solution"]}
    assert row["extra_info"] == {"split": "test", "index": 0, **about}
    file = write_lines(tmp_path / "math500" / "test.jsonl", [{"problem": "p", "solution": "s", "answer": r"\pi"}])
    assert rows_of("math", file, "test")[0]["reward_model"]["ground_truth"] == r"\pi"


def test_aime_has_only_rows_to_check_on_and_its_year_as_source(tmp_path: Path) -> None:
    lines = [
        {"ID": "2024-II-4", "Problem": "p", "Solution": "s", "Answer": 33},
        {"question": "angle?", "answer": "336^\\circ"},
    ]
    file = write_lines(tmp_path / "aime_2025.jsonl", lines)
    first, second = rows_of("aime", file, "test")
    assert (first["data_source"], second["data_source"]) == ("aime2024", "aime2025")
    assert [each["reward_model"]["ground_truth"] for each in (first, second)] == ["33", "336"]
    assert first["prompt"][0]["content"].endswith('p\n\nRemember to put your answer on its own line after "Answer:".')
    parquet = tmp_path / "data" / "train-00000-of-00001.parquet"
    parquet.parent.mkdir()
    pq.write_table(pa.table({"problem": ["p"], "answer": ["025"], "year": ["2024"], "id": [60]}), parquet)
    (row,) = rows_of("aime", parquet.parent, "test")
    assert (row["data_source"], row["reward_model"]["ground_truth"]) == ("aime2024", "25")
    assert fault_of("aime", write_lines(file, [{"problem": "p", "answer": "1.5"}])).startswith(
        "aime_2025.jsonl:1: `answer` is '1.5', not an integer from 0 to 999"
    )


def test_a_row_number_is_no_year(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [{"problem": "p", "answer": 7}] * 2026
    sources = [write_lines(Path("aime.jsonl"), lines), Path("aime.json"), Path("aime.parquet")]
    sources[1].write_text(json.dumps(lines))
    pq.write_table(pa.Table.from_pylist(lines), sources[2])
    for source in sources:
        assert {row["data_source"] for row in rows_of("aime", source, "test")} == {"aime"}


def test_apps_is_read_from_folders_of_problems_and_from_json_lines(tmp_path: Path) -> None:
    for number, tests in (("0000", TESTS), ("0001", None)):
        folder = tmp_path / "APPS" / "train" / number
        folder.mkdir(parents=True)
        (folder / "question.txt").write_text(f"Sum {number}?")
        (folder / "solutions.json").write_text("[]")
        (folder / "metadata.json").write_text('{"difficulty": "interview", "url": "u"}')
        if tests is not None:
            (folder / "input_output.json").write_text(json.dumps(tests))
    made = converted("apps", tmp_path / "APPS")["train"]
    assert made.skipped == {"without tests": 1}
    (row,) = made.table.to_pylist()
    assert row["data_source"] == "apps"
    assert json.loads(row["reward_model"]["ground_truth"]) == TESTS
    assert row["prompt"][0]["content"].startswith("Sum 0000?\n\nWrite Python code to solve the problem.")
    assert row["extra_info"] == {"split": "train", "index": 0, "id": "0000", "difficulty": "interview"}
    calls = {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}
    line = {"problem_id": 5, "question": "Add.", "input_output": json.dumps(calls), "starter_code": "def add(a, b):"}
    huge = line | {"input_output": f'{{"inputs": [[{"9" * 5000}]], "outputs": [1]}}'}
    made = converted("apps", write_lines(tmp_path / "test.jsonl", [line, huge]))["test"]
    assert made.skipped == {"with numbers in their tests that are too long to read": 1}
    (row,) = made.table.to_pylist()
    assert json.loads(row["reward_model"]["ground_truth"]) == calls
    assert "```python\ndef add(a, b):\n```" in row["prompt"][0]["content"]


def test_code_contests_have_all_tests_and_leave_out_programs_that_read_files(tmp_path: Path) -> None:
    path = tmp_path / "valid-00000-of-00001.parquet"
    pq.write_table(pa.Table.from_pylist([CONTEST, CONTEST | {"input_file": "a.in"}]), path)
    made = converted("codecontests", tmp_path)["valid"]
    assert made.skipped == {"whose programs read or write files": 1}
    (row,) = made.table.to_pylist()
    truth = {"inputs": ["1 2", "3 4", "5 6", "7 8"], "outputs": ["3", "7", "11", "15"]}
    assert json.loads(row["reward_model"]["ground_truth"]) == truth
    about = {"id": "1_A. Sum", "difficulty": "7", "time_limit_s": 1.5, "public_tests": 1}
    assert row["extra_info"] == {"split": "valid", "index": 0, **about}


@looped("tests", [[1], ["1"], "1"])
def test_a_contest_whose_tests_have_another_form_is_refused_by_name(tests: object, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "train.jsonl", [CONTEST | {"public_tests": tests, "time_limit": None}])
    with pytest.raises(DataError, match=r"train\.jsonl:1: `public_tests` has no lists of inputs and outputs"):
        converted("codecontests", path)
    assert rows_of("codecontests", write_lines(path, [CONTEST | {"time_limit": "2 s"}]))


def test_dialogues_are_chats_up_to_the_reply_that_was_chosen(tmp_path: Path) -> None:
    before = "\n\nHuman: Hi\n\nAssistant: Hello\n\nHuman: Sing."
    lines = [
        {"chosen": f"{before}\n\nAssistant: La.", "rejected": f"{before}\n\nAssistant: No."},
        {"chosen": "no dialogue", "rejected": "no dialogue"},
    ]
    write_lines(tmp_path / "helpful-base" / "train.jsonl.gz", lines)
    made = converted("hh", tmp_path)["train"]
    assert made.skipped == {"that are not a dialogue of a human and an assistant": 1}
    (row,) = made.table.to_pylist()
    turns = [("user", "Hi"), ("assistant", "Hello"), ("user", "Sing.")]
    assert row["prompt"] == [{"role": role, "content": content} for role, content in turns]
    assert row["reward_model"] == {"style": "model", "ground_truth": "La."}
    assert row["extra_info"] == {"split": "train", "index": 0, "chosen": "La.", "rejected": "No."}
    full = {"prompt": "\n\nHuman: Hi\n\nAssistant:", "chosen": " Hello", "rejected": " Go"}
    assert rows_of("hh", write_lines(tmp_path / "full.jsonl", [full]))[0]["prompt"] == row["prompt"][:1]


def test_what_is_prepared_loads_by_its_name_and_from_one_file(tmp_path: Path) -> None:
    folder, cache = tmp_path / "source", tmp_path / "cache"
    write_lines(folder / "train.jsonl", GSM8K)
    write_lines(folder / "test.jsonl", GSM8K[:1])
    assert list(prepare("gsm8k", folder, cache / "gsm8k")) == [
        cache / "gsm8k" / "train.parquet",
        cache / "gsm8k" / "test.parquet",
    ]
    data = sets.load("gsm8k", cache=cache)
    assert (data.name, data.data_source, data.train.num_rows) == ("gsm8k", "openai/gsm8k", 3)
    assert data.held_out is not None
    assert data.held_out.num_rows == 1
    one = tmp_path / "one.parquet"
    with pytest.raises(FlowError, match=r"is one file, and .* has train and test rows"):
        prepare("gsm8k", folder, one)
    assert not one.exists()
    prepare("gsm8k", folder / "train.jsonl", one)
    assert sets.load(str(one), cache=cache).train.equals(data.train)
    aime = write_lines(tmp_path / "aime.jsonl", [{"problem": "p", "answer": 7}])
    prepare("aime", aime, cache / "aime")
    assert sets.load("gsm8k", cache=cache, held_out="aime").held_out.num_rows == 1  # type: ignore[union-attr]
    with pytest.raises(DataError, match="has no rows to train on, only held-out rows"):
        sets.load("aime", cache=cache)


def test_what_is_not_prepared_says_how(tmp_path: Path) -> None:
    for name, published in PUBLISHED.items():
        with pytest.raises(DataError) as caught:
            sets.load(name, cache=tmp_path)
        assert str(caught.value) == (
            f"{name}: not prepared: no train and test in {tmp_path}/{name}\n"
            f"  hint: flowgraph data {name} --from FOLDER, {published.needs}"
        )


@looped(
    "name, line, expected",
    [
        ("gsm8k", '{"question": "a", "answer": "no number"}', "train.jsonl:1: `answer` has no number after `#### `"),
        ("gsm8k", '{"question": 1, "answer": "#### 2"}', "train.jsonl:1: `question` is not a string"),
        (
            "gsm8k",
            '{"questions": "a", "answer": "#### 2"}',
            "train.jsonl:1: lacks column `question`\n  hint: did you mean `questions`?",
        ),
        ("gsm8k", '{"question": "a"', "train.jsonl:1: not JSON: Expecting ',' delimiter: line 2 column 1 (char 17)"),
        (
            "gsm8k",
            '{"question": "\\ud800", "answer": "#### 1"}',
            "train.jsonl:1: has half of a character, which no UTF-8 text can hold",
        ),
        ("math", '{"problem": "a", "solution": "1"}', "train.jsonl:1: `solution` has no \\boxed{} answer"),
        ("math", '{"problem": "a", "solution": "\\\\boxed{1"}', "train.jsonl:1: `solution` has no \\boxed{} answer"),
        ("math", '{"problem": "a"}', "train.jsonl:1: lacks column `solution`\n  hint: known: problem"),
        (
            "apps",
            '{"question": "a", "input_output": "{\\"inputs\\": [1], \\"outputs\\": []}"}',
            "train.jsonl:1: `input_output` has 1 inputs and 0 outputs",
        ),
        (
            "apps",
            '{"question": "a", "input_output": "{"}',
            (
                "train.jsonl:1: `input_output` is not JSON\n"
                "    Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
            ),
        ),
        ("apps", '{"question": "a"}', "train.jsonl: has no train rows to use\n  hint: left out: 1 without tests"),
        ("hh", '{"chosen": "a"}', "train.jsonl:1: lacks column `rejected`\n  hint: known: chosen"),
        ("hh", '{"chosen": "a", "rejected": null}', "train.jsonl:1: `rejected` is null"),
        ("hh", "", "train.jsonl: has no train rows to use"),
    ],
)
def test_a_bad_record_is_named(name: str, line: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(f"{line}\n")
    assert fault_of(name, path) == expected
    assert not (tmp_path / "out").exists()


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    assert fault_of("math", tmp_path / "none") == "none: no such file"
    assert fault_of("math", tmp_path).endswith(
        "has no files .parquet, .jsonl, .jsonl.gz, .json and no folders with question.txt"
    )
    (tmp_path / "train.csv").touch()
    assert (
        fault_of("math", tmp_path / "train.csv") == "train.csv: its name must end in .parquet, .jsonl, .jsonl.gz, .json"
    )
    (tmp_path / "train.parquet").write_bytes(b"PAR1 but no more")
    assert fault_of("codecontests", tmp_path / "train.parquet").startswith("train.parquet: corrupt, or not Parquet")
    (tmp_path / "train.jsonl.gz").write_bytes(gzip.compress(b"x" * 1000)[:-12])
    assert fault_of("hh", tmp_path / "train.jsonl.gz").startswith("train.jsonl.gz: cannot be read")
