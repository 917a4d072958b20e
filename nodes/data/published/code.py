"""APPS and CodeContests: programming problems whose ground truth is their tests, as JSON.

Source: Hendrycks et al. 2021 (APPS), arXiv 2105.09938; Li et al. 2022 (AlphaCode), arXiv 2203.07814. The prompt and the
form of the tests are those that verl's `prime_code` grades: Cui et al. 2025 (PRIME), arXiv 2502.01456.
"""

from __future__ import annotations

import json
from typing import Any

from flowgraph.errors import DataError
from nodes.data.published.records import Skipped, SourceRecord
from nodes.data.rows import Row, row

INSTRUCTION = "Write Python code to solve the problem. Present the code in \n```python\nYour code\n```\nat the end."
TEST_FIELDS = ("public_tests", "private_tests", "generated_tests")
WITHOUT_TESTS = Skipped("without tests")
UNREADABLE_TESTS = Skipped("with numbers in their tests that are too long to read")
READS_FILES = Skipped("whose programs read or write files")


def apps_row(record: SourceRecord) -> Row | Skipped:
    """Return the row of an APPS problem, or why it is left out: it has no tests, or numbers too long to read in them.

    The ground truth is the tests as JSON. Raises DataError for a missing question and for malformed tests or metadata.
    """
    question, tests = record.text("question"), record.get("input_output", "")
    if isinstance(tests, str):
        tests = _parsed(tests, record, "input_output") if tests.strip() else {}
    if isinstance(tests, Skipped):
        return tests
    if not isinstance(tests, dict):
        raise DataError.unusable(record.where, "`input_output` is not an object with inputs and outputs")
    inputs, outputs = tests.get("inputs"), tests.get("outputs")
    if not inputs and not outputs:
        return WITHOUT_TESTS
    fn_name = {"fn_name": tests["fn_name"]} if tests.get("fn_name") else {}
    truth = _tests(inputs, outputs, record, "input_output") | fn_name
    starter = str(record.get("starter_code", "")).strip()
    prompt = f"{question}\n\nStart from this code:\n```python\n{starter}\n```" if starter else question
    metadata = record.get("metadata", "")
    about = _parsed(metadata, record, "metadata") if metadata else {}
    about = about if isinstance(about, dict) else {}
    extra_info = {
        "id": str(record.get("problem_id", record.get("id", ""))),
        "difficulty": str(record.get("difficulty") or about.get("difficulty", "")),
    }
    return _row("apps", prompt, truth, extra_info)


def contest_row(record: SourceRecord) -> Row | Skipped:
    """Return the row of a CodeContests problem, or why it is left out: it has no tests, or reads or writes files.

    The ground truth is the problem's tests as JSON: public, private and generated. Raises DataError for a missing
    description or malformed tests.
    """
    question = record.text("description")
    if record.get("input_file") or record.get("output_file"):
        return READS_FILES
    inputs, outputs, public = list[str](), list[str](), 0
    for field in TEST_FIELDS:
        tests = record.get(field, {})
        if isinstance(tests, list) and all(isinstance(pair, dict) for pair in tests):  # as other writers store them
            tests = {side: [pair.get(side) for pair in tests] for side in ("input", "output")}
        if not isinstance(tests, dict):
            raise DataError.unusable(record.where, f"`{field}` has no lists of inputs and outputs")
        parsed = _tests(tests.get("input", []), tests.get("output", []), record, field)
        inputs += parsed["inputs"]
        outputs += parsed["outputs"]
        public = public or len(inputs)
    if not inputs:
        return WITHOUT_TESTS
    limit = record.get("time_limit", {})
    parts = [limit.get(name) if isinstance(limit, dict) else None for name in ("seconds", "nanos")]
    seconds, nanos = (part if isinstance(part, int | float) else 0 for part in parts)
    extra_info = {
        "id": str(record.get("name", "")),
        "difficulty": str(record.get("difficulty", "")),
        "time_limit_s": seconds + nanos / 1e9,
        "public_tests": public,
    }
    return _row("codecontests", question, {"inputs": inputs, "outputs": outputs}, extra_info)


def _row(source: str, question: str, truth: dict[str, Any], extra_info: dict[str, Any]) -> Row:
    prompt = f"{question.strip()}\n\n{INSTRUCTION}"
    return row(source, prompt, json.dumps(truth, ensure_ascii=False), ability="code", extra_info=extra_info)


def _tests(inputs: Any, outputs: Any, record: SourceRecord, field: str) -> dict[str, Any]:
    if not (isinstance(inputs, list) and isinstance(outputs, list)):
        raise DataError.unusable(record.where, f"`{field}` has no lists of inputs and outputs")
    if len(inputs) != len(outputs):
        raise DataError.unusable(record.where, f"`{field}` has {len(inputs)} inputs and {len(outputs)} outputs")
    return {"inputs": inputs, "outputs": outputs}


def _parsed(text: str, record: SourceRecord, field: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as fault:
        if "limit" in str(fault) and "integer" in str(fault):
            return UNREADABLE_TESTS
        raise DataError.failed(record.where, f"`{field}` is not JSON", fault) from fault
