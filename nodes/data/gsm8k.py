"""GSM8K, from the JSON Lines of its authors to rows as verl prepares them.

Source: Cobbe et al. 2021, arXiv 2110.14168; the prompt and the columns are those of verl's GSM8K preparation.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from flowgraph.errors import DataError
from nodes.data.arrow import Table
from nodes.data.json_lines import objects
from nodes.data.rows import Row, row, table_of, write

SOURCE = "openai/gsm8k"
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
_FINAL = re.compile(r"#### (-?[0-9.,]+)")


def final_answer(answer: str) -> str | None:
    r"""Read the number after `####`, without its thousands commas; None where there is none.

    >>> final_answer("9 * 120 = 1,080\n#### 1,080")
    '1080'
    """
    found = _FINAL.search(answer)
    return found.group(1).replace(",", "") if found else None


def from_jsonl(train: Path, test: Path) -> tuple[Table, Table]:
    """Turn the two files of `question` and `answer` into the rows of train and of test.

    Raises DataError, naming file and line, for a line that is broken or lacks a question, an answer or its number.
    """
    return _read(train, "train"), _read(test, "test")


def prepare(folder: Path, cache: Path) -> tuple[Path, Path]:
    """Turn a folder's train.jsonl and test.jsonl into the two Parquet files that `gsm8k` is loaded from.

    Raises DataError as `from_jsonl` does, before anything is written.
    """
    tables = from_jsonl(folder / "train.jsonl", folder / "test.jsonl")
    paths = prepared(cache)
    for table, path in zip(tables, paths, strict=True):
        write(table, path)
    return paths


def prepared(cache: Path) -> tuple[Path, Path]:
    """Return where the prepared train and test files lie."""
    return cache / "gsm8k" / "train.parquet", cache / "gsm8k" / "test.parquet"


def _read(path: Path, split: str) -> Table:
    if not path.is_file():
        raise DataError.missing(path)
    rows = [_row(path, line, index, split, each) for index, (line, each) in enumerate(objects(path))]
    if not rows:
        raise DataError.unusable(path, "has no rows")
    return table_of(rows)


def _row(path: Path, line: int, index: int, split: str, each: dict[str, Any]) -> Row:
    question, answer = (_text(path, line, each, part) for part in ("question", "answer"))
    truth = final_answer(answer)
    if truth is None:
        raise DataError.bad_line(path, line, "`answer` has no number after `#### `")
    extra_info = {"split": split, "index": index, "answer": answer, "question": question}
    return row(SOURCE, f"{question} {INSTRUCTION}", truth, ability="math", extra_info=extra_info)


def _text(path: Path, line: int, each: dict[str, Any], part: str) -> str:
    if part not in each:
        raise DataError.lacks_column(f"{path}:{line}", part, each)
    if not isinstance(each[part], str):
        raise DataError.bad_line(path, line, f"`{part}` is not a string")
    return str(each[part])
