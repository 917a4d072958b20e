"""GSM8K: rows as verl prepares them, from the JSON Lines of its authors.

Source: Cobbe et al. 2021, arXiv 2110.14168; the prompt and the columns are those of verl's GSM8K preparation.
"""

from __future__ import annotations

import re

from flowgraph.errors import DataError
from nodes.data.published.records import SourceRecord
from nodes.data.rows import Row, row

SOURCE = "openai/gsm8k"
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
_FINAL = re.compile(r"#### (-?[0-9.,]+)")


def final_answer(answer: str) -> str | None:
    r"""Return the first number after `#### `, as text without commas; None if there is none.

    >>> final_answer("9 * 120 = 1,080\n#### 1,080")
    '1080'
    """
    match = _FINAL.search(answer)
    return match[1].replace(",", "") if match else None


def row_of(record: SourceRecord) -> Row:
    """Return the training row (prompt and ground truth) of a GSM8K record.

    Raises DataError if `question` or `answer` is missing or not a text, or if the answer has no number after `#### `.
    """
    question, answer = record.text("question"), record.text("answer")
    truth = final_answer(answer)
    if truth is None:
        raise DataError.unusable(record.where, "`answer` has no number after `#### `")
    extra_info = {"answer": answer, "question": question}
    return row(SOURCE, f"{question} {INSTRUCTION}", truth, ability="math", extra_info=extra_info)
