"""`rollouts`: read what a run sampled, in a terminal, as data and as a page, and whoever wrote it."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowgraph import app
from flowgraph.app.responses.row_filter import Scalar, parse_condition
from flowgraph.app.responses.token_pieces import pieces
from flowgraph.errors import DataError, RunFolderError, UsageError
from tests.looped import looped

SAMPLED = "policy.generate"
HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>",
    "\x1b[2J\x1b[31mred\x07\x00",
    "abc\u202egnp.exe\u2066\u200f",
    "w" * 1_000_000,
    "a" + "\u0301" * 100_000,
    "</textarea></style></template>\"'{{ page }}",
    "line\n" * 5000 + "\u2028\r\x85",
    "",
)
SCORES = (math.nan, math.inf, -math.inf, 0.5, None)


@pytest.fixture
def hostile(trained: Path, tmp_path: Path) -> Path:
    """Return a copy of a run whose last responses, prompts, scores and log-probs are hostile."""
    run = tmp_path / "copy"
    shutil.copytree(trained, run)
    path = run / "rollouts" / SAMPLED / "000001.parquet"
    table = pq.read_table(path)
    count = table.num_rows

    def put(name: str, values: list[Any], kind: pa.DataType) -> None:
        nonlocal table
        field = table.schema.field(name).with_type(kind)
        table = table.set_column(table.column_names.index(name), field, pa.array(values, kind))

    put("text", [HOSTILE[i % len(HOSTILE)] for i in range(count)], pa.string())
    put("score", [SCORES[i % len(SCORES)] for i in range(count)], pa.float32())
    put("columns.data_source", ["<b>x</b>\u202e\n" * 50] * count, pa.string())
    chat = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    put("columns.prompt", [[{"role": "<i>\x1b", "content": HOSTILE[i % len(HOSTILE)]}] for i in range(count)], chat)
    logprobs, tokens = table["logprobs"].to_pylist(), table["tokens"].to_pylist()
    logprobs[0], logprobs[1], tokens[1], tokens[2] = [math.nan] * len(logprobs[0]), None, [3] * 5000, [2**40, -3]
    put("logprobs", logprobs, pa.list_(pa.float32()))
    put("tokens", tokens, pa.list_(pa.int64()))
    pq.write_table(table, path)
    return run


def test_rows_are_filtered_sorted_and_cut_and_come_as_data(trained: Path) -> None:
    everything = app.rollouts(trained, limit=100)
    assert (everything.node, everything.step, everything.total, len(everything.rows)) == (SAMPLED, 1, 16, 16)
    assert everything.results == ("score", "group_normalize") and everything.token_results == ("ref.logprobs",)
    for row in everything.rows:
        assert len(row.tokens) == len(row.logprobs) == len(row.token_values["ref.logprobs"]) == row.values["length"]
    scores = [float(row.values["score"] or 0) for row in everything.rows]
    best = app.rollouts(trained, sort="-score", where=f"score>={sorted(scores)[8]} and data_source='digits'", limit=3)
    assert [row.values["score"] for row in best.rows] == sorted(scores, reverse=True)[:3]
    assert best.matching == sum(score >= sorted(scores)[8] for score in scores)
    assert app.rollouts(trained, step=0, limit=1).rows[0].values["version"] == 0
    checks = app.rollouts(trained, node="validation", limit=1)
    assert (checks.total, checks.step) == (20, 2) and checks.rows[0].prompt[0][0] == "user"


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"step": 7}, "has no responses of `policy.generate` in step 7\n  hint: recorded: 0, 1"),
    ({"node": "policy.generat"}, "did you mean `policy.generate`?"),
    ({"sort": "-scor"}, "sort= (--sort -scor): no column `scor`\n  hint: did you mean `score`?"),
    ({"where": "score < 1 or length > 2"}, "comparisons joined by `and`"),
    ({"where": "score < 1 and"}, "comparisons joined by `and`"),
    ({"where": "score < abc"}, '`abc` is neither a number nor a text\n  hint: a text is quoted: "abc"'),
    ({"where": "scores=1"}, "no column `scores`"),
    ({"where": "__import__('os').system('x')=1"}, "cannot be read from `('os').system('x')=1` on"),
    ({"where": "a" * 1001}, "at most 1000 characters, not 1001"),
)


@looped("arguments, words", WRONG)
def test_a_request_that_cannot_be_met_is_refused_with_what_could(
    arguments: dict[str, Any], words: str, trained: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        app.rollouts(trained, **arguments)
    assert words in str(caught.value)


def test_a_condition_compares_numbers_texts_and_what_is_missing() -> None:
    values: tuple[Scalar, ...] = (math.nan, 1, None, True)
    rows = [
        {"a": value, "b b": text, "id": 2**62 + place}
        for place, (value, text) in enumerate(zip(values, ("x", None, "y", "x"), strict=True))
    ]
    matches = {
        "a = nan": [0],
        "a != nan": [1, 2, 3],
        "a >= 1": [1, 3],
        "a = NaN": [0],
        "a = True": [1, 3],
        f"id = {2**62 + 3}": [3],
        f"id > {2**62 + 1}.0": [1, 2, 3],
        "a < -.5e3": [],
        "`b b` = 'x'": [0, 3],
        '`b b` != "x" and a=1': [1],
        "`b b` < 1": [],
        "": [0, 1, 2, 3],
    }
    for text, expected in matches.items():
        tests = parse_condition(text, ["a", "b b", "id"])
        assert [i for i, row in enumerate(rows) if all(test.holds(row) for test in tests)] == expected, text


def test_a_letter_of_several_tokens_stands_at_the_last_of_them() -> None:
    codes = "é√".encode()
    assert pieces(list(codes), lambda tokens: bytes(tokens).decode(errors="replace")) == ["", "é", "", "", "√"]
    assert pieces(list(codes[:1]), lambda tokens: bytes(tokens).decode(errors="replace")) == ["\ufffd"]
    assert pieces([], lambda tokens: "") == []


def test_hostile_responses_do_not_control_the_terminal_and_stay_in_its_columns(
    hostile: Path, flowgraph: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.cells import cell_len

    for columns in (80, 140):
        monkeypatch.setenv("COLUMNS", str(columns))
        result = flowgraph("rollouts", hostile, "--limit", 16, "--sort", "score")
        assert result.code == 0 and not re.search(
            "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202a-\u202e\u2066-\u2069]", result.out
        )
        lines = result.out.splitlines()
        assert max(map(cell_len, lines)) <= columns and len(result.out) < 100_000
        assert "… of 1,000,000 characters" in result.out and "<script>alert(1)</script>" in result.out
    data = json.loads(flowgraph("rollouts", hostile, "--json", "--where", "score = nan").out)
    assert {row["score"] for row in data["rows"]} == {None} and data["matching"] == 4


def test_a_page_holds_hostile_responses_as_text_and_asks_for_nothing(
    hostile: Path, flowgraph: Callable[..., Any], tmp_path: Path
) -> None:
    result = flowgraph("rollouts", hostile, "-o", "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "a page is written as .html" in flowgraph("rollouts", hostile, "-o", "page.txt").err
    assert result.code == 0 and len(page) < 2_000_000
    assert page.count("<script") == 1 and "<img" not in page and "onerror=alert(2)&gt;" in page
    assert re.search(r"default-src 'none'; style-src ('sha256-[^']+' ?){2}; script-src 'sha256-", page)
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\u2028\u202a-\u202e\u2066-\u2069]", page)
    assert "advantage: group_normalize" in page and "log-prob ratio: ref.logprobs to sampled" in page
    assert 'class="t x"' in page and "3,000 more tokens are not shown." in page


def damage(path: Path, how: str) -> None:
    """Damage a file of rollouts in one of several ways."""
    table = pq.read_table(path)
    match how:
        case "cut":
            path.write_bytes(path.read_bytes()[:200])
        case "lacks":
            pq.write_table(table.drop_columns("text"), path)
        case "type":
            column = pa.array([1] * table.num_rows)
            pq.write_table(table.set_column(table.column_names.index("text"), "text", column), path)
        case "lists":
            column = pa.array(["no list"] * table.num_rows)
            pq.write_table(table.set_column(table.column_names.index("logprobs"), "logprobs", column), path)
        case _:  # utf8
            column = pa.array([b"\xff"] * table.num_rows, pa.binary()).view(pa.string())
            pq.write_table(table.set_column(table.column_names.index("text"), "text", column), path)


@looped("how", ("cut", "lacks", "type", "lists", "utf8"))
def test_a_damaged_file_is_refused_by_name(how: str, trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "copy"
    shutil.copytree(trained, run)
    damage(run / "rollouts" / SAMPLED / "000001.parquet", how)
    with pytest.raises(DataError) as caught:
        app.rollouts(run)
    assert "000001.parquet" in str(caught.value)


def test_a_run_without_responses_and_a_folder_without_a_run_are_refused(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "copy"
    shutil.copytree(trained, run)
    (run / "rollouts" / SAMPLED / "000001.parquet").unlink()
    os.mkfifo(run / "rollouts" / SAMPLED / "000001.parquet")
    assert app.rollouts(run).step == 0, "only files are opened: a pipe would never answer"
    for name in ("rollouts", "validation"):
        shutil.rmtree(run / name)
    for folder in (run, tmp_path):
        with pytest.raises(RunFolderError):
            app.rollouts(folder)


def test_the_metric_of_the_best_checkpoint_is_checked_before_the_run(flowgraph: Callable[..., Any]) -> None:
    small = ("--cluster", "1xcpu", "--steps", "1", "--batch", "4")
    wrong = {
        ("--keep-best", "eval/digts"): "no metric `eval/digts`\n  hint: did you mean `eval/digits`?",
        ("--keep-best", "eval/digits", "--eval-every", "0"): "no checkpoint can be the best: --eval-every is 0",
        ("--keep-best", "eval/digits", "--checkpoint-every", "0"): "--checkpoint-every is 0",
    }
    for arguments, words in wrong.items():
        result = flowgraph("run", "grpo", *small, *arguments)
        assert result.code == 2 and words in result.err
    assert not list(Path().glob("runs/*"))
