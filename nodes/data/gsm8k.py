"""GSM8K: rows as verl prepares them, from the JSON Lines of its authors.

Source: Cobbe et al. 2021, arXiv 2110.14168; the prompt and the columns are those of verl's GSM8K preparation.
"""

from __future__ import annotations

import re
from pathlib import Path

from flowgraph.errors import DataError
from nodes.data.arrow import Table
from nodes.data.json_lines import objects
from nodes.data.parquet import write_parquet
from nodes.data.rows import Row, row, table_of

SOURCE = "openai/gsm8k"
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
_FINAL = re.compile(r"#### (-?[0-9.,]+)")


def final_answer(answer: str) -> str | None:
    r"""Return the number after `####` without its thousands commas; None if there is none.

    >>> final_answer("9 * 120 = 1,080\n#### 1,080")
    '1080'
    """
    match = _FINAL.search(answer)
    return match[1].replace(",", "") if match else None


def from_jsonl(train: Path, test: Path) -> tuple[Table, Table]:
    """Return the rows of train and of test from two files with `question` and `answer` in each line.

    Raises DataError, with file and line, for a line that is broken or lacks the question, the answer or its number.
    """
    return _read(train, "train"), _read(test, "test")


def prepare(folder: Path, cache: Path) -> tuple[Path, Path]:
    """Convert a folder's train.jsonl and test.jsonl to the two Parquet files of the data set, and return their paths.

    Raises DataError as `from_jsonl` does, before it writes anything.
    """
    tables = from_jsonl(folder / "train.jsonl", folder / "test.jsonl")
    paths = prepared(cache)
    for table, path in zip(tables, paths, strict=True):
        write_parquet(table, path)
    return paths


def prepared(cache: Path) -> tuple[Path, Path]:
    """Return the paths of the prepared train and test files."""
    return cache / "gsm8k" / "train.parquet", cache / "gsm8k" / "test.parquet"


def _read(path: Path, split: str) -> Table:
    if not path.is_file():
        raise DataError.missing(path)
    rows: list[Row] = []
    for index, (line, values) in enumerate(objects(path)):
        for name in ("question", "answer"):
            if name not in values:
                raise DataError.lacks_column(f"{path}:{line}", name, values)
            if not isinstance(values[name], str):
                raise DataError.bad_line(path, line, f"`{name}` is not a string")
        question, answer = values["question"], values["answer"]
        truth = final_answer(answer)
        if truth is None:
            raise DataError.bad_line(path, line, "`answer` has no number after `#### `")
        extra_info = {"split": split, "index": index, "answer": answer, "question": question}
        rows.append(row(SOURCE, f"{question} {INSTRUCTION}", truth, ability="math", extra_info=extra_info))
    if not rows:
        raise DataError.unusable(path, "has no rows")
    return table_of(rows)
