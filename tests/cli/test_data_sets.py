"""Runs on several data sets, on columns by other names and on prompts of limited length; published data sets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import flowgraph as api
from nodes.scoring.confinement import lacks
from tests.cli.conftest import Said
from tests.cli.test_resume import assert_same
from tests.looped import looped

Run = Callable[..., Said]
TINY = ("--cluster", "1xcpu", "--set", "policy.generate.n=2", "--set", "policy.generate.max_tokens=4")
RAW = "prompt=problem,answer=solution"


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    return path


def raw(path: Path, *texts: str) -> Path:
    return write(path, [{"problem": text, "solution": text} for text in texts])


def test_a_run_on_mixed_sets_records_what_it_read_and_resumes_bit_for_bit(flowgraph: Run, tmp_path: Path) -> None:
    raw(tmp_path / "a.jsonl", "1", "2", "3", "4", "123456789")
    raw(tmp_path / "b.jsonl", "5", "6", "7", "8")
    options = (
        *("--data", "a.jsonl", "--data", "b.jsonl:0.3", "--data", "digits:0.3", "--columns", RAW),
        *("--held-out", "b.jsonl", "--held-out", "digits", "--eval-rows", "6", "--eval-every", "2"),
        *("--max-prompt-tokens", "6", "--long-prompts", "drop", "--batch", "4", "--set", "score.by=partial", *TINY),
    )
    whole = flowgraph("run", "grpo", *options, "--steps", "4", "-o", "whole", "--checkpoint-every", "2")
    assert whole.code == 0, whole.err
    assert "shares of the prompts: a 40.0%, b 30.0%, digits 30.0%" in whole.err
    assert "train rows: 1 of 809 prompts had more than 6 tokens, the longest 11: dropped" in whole.err
    data = json.loads((tmp_path / "whole" / "run.json").read_text())["data"]
    assert data["sets"] == {
        "a": {"rows": 4, "share": 0.4},
        "b": {"rows": 4, "share": 0.3},
        "digits": {"rows": 800, "share": 0.3},
    }
    counted = {"limit": 6, "how": "drop", "rows": 809, "long": 1, "longest": 11}
    assert data["long_prompts"]["train"] == counted
    rollouts = pq.read_table(next((tmp_path / "whole" / "rollouts").rglob("*.parquet")))
    prompts = set(rollouts["group"].to_pylist())
    assert [len(prompts & set(rows)) for rows in (range(4), range(4, 8), range(8, 808))] in ([2, 1, 1], [1, 2, 1])
    assert flowgraph("run", "grpo", *options, "--steps", "2", "-o", "part", "--checkpoint-every", "2").code == 0
    resumed = flowgraph("resume", "part", "--steps", "4")
    assert resumed.code == 0, resumed.err
    assert "bit for bit" in resumed.err
    assert_same(tmp_path / "part", tmp_path / "whole")
    scored = flowgraph("eval", "whole", "--cluster", "1xcpu", "--json")
    assert json.loads(scored.out)["about"]["prompts"] == 204
    assert "not the rows" not in scored.err


def test_epochs_are_steps_of_the_rows_that_remain_and_python_takes_weights(flowgraph: Run, tmp_path: Path) -> None:
    file = raw(tmp_path / "a.jsonl", *map(str, range(10)), "123456789")
    result = api.run(
        "grpo",
        data={str(file): 0.5, "digits": 0.5},
        columns={"prompt": "problem", "answer": "solution"},
        max_prompt_tokens=6,
        long_prompts="drop",
        epochs=0.01,
        batch=2,
        settings={"score.by": "exact", "policy.generate.n": 2, "policy.generate.max_tokens": 2},
        cluster="1xcpu",
        eval_every=0,
        checkpoint_every=0,
        out=tmp_path / "run",
    )
    assert result.steps_done == 5, "a hundredth of 810 rows, 2 in a step"
    with pytest.raises(api.errors.UsageError, match="either steps or epochs"):
        api.run("grpo", steps=2, epochs=1)
    alone = flowgraph("check", "grpo", "--data", file, "--columns", RAW, "--set", "score.by=exact", "--batch", "2")
    assert alone.code == 0, alone.out + alone.err


@looped(
    "options, expected",
    [
        (
            ("--steps", "2", "--epochs", "1"),
            "--epochs 1: --steps 2 is given too: the length of a run is either steps or",
        ),
        (("--epochs", "0"), "--epochs"),
        (("--long-prompts", "drop"), "--long-prompts drop: has no effect without a maximum"),
        (("--max-prompt-tokens", "9", "--long-prompts", "cut"), "--long-prompts"),
        (("--max-prompt-tokens", "2"), "digits row 0 (from 0): `prompt` has 5 tokens, more than --max-prompt-tokens 2"),
        (("--max-prompt-tokens", "2", "--long-prompts", "drop"), "digits: all 800 prompts have more than --max-prompt"),
        (("--max-prompt-tokens", "1", "--long-prompts", "truncate-left"), "without its text, more than --max-prompt"),
        (("--data", "digits:0.5"), "--data digits:0.5: a weight has no effect on one set"),
        (("--data", "digits:1", "--data", "addition:-1"), "a weight is a number above 0"),
        (("--data", "digits", "--data", "addition:1"), "the weights add up to 1, which leaves no prompts"),
        (("--columns", "prompt"), "--columns: `prompt` should be COLUMN=SOURCE"),
        (("--held-out", "digits", "--held-out", "empty.jsonl"), "empty.jsonl: has no rows"),
        (("--held-out", "rows.jsonl"), "rows.jsonl:2: `prompt` is null"),
        (("--data", "digits:nan", "--data", "long.jsonl:nan"), "a weight is a number above 0"),
        (("--epochs", "1e300"), "--epochs"),
        (
            ("--data", "long.jsonl", "--batch", "2"),
            "long row 1 (from 0): `prompt` has 202 tokens, and with a response of up to",
        ),
        (
            ("--data", "unknown.jsonl", "--batch", "2"),
            "row 1 (from 0) of unknown: no rule is known for data_source `mine`",
        ),
        (("--held-out", "unknown.jsonl"), "row 1 (from 0) of the held-out rows of digits: no rule is known"),
    ],
)
def test_what_a_run_cannot_read_is_refused_before_it_begins(
    options: tuple[str, ...], expected: str, flowgraph: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.jsonl").touch()
    write(tmp_path / "rows.jsonl", [{"prompt": "1"}, {"promt": "2"}])
    row = {"prompt": "1", "data_source": "digits", "reward_model": {"ground_truth": "1"}}
    write(tmp_path / "long.jsonl", [row, {**row, "prompt": "1" * 200}])
    write(tmp_path / "unknown.jsonl", [row, {**row, "data_source": "mine"}])
    said = flowgraph("run", "grpo", *TINY, *options)
    assert said.code in (1, 2)
    assert expected in " ".join(said.err.replace("│", " ").split()), said.err
    assert "Traceback" not in said.err
    assert not (tmp_path / "runs").exists()


def test_a_published_set_is_converted_with_what_was_left_out(flowgraph: Run, tmp_path: Path) -> None:
    (tmp_path / "apps").mkdir()
    tests = json.dumps({"inputs": ["1"], "outputs": ["1"]})
    rows = [{"question": "Echo.", "input_output": tests}, {"question": "What?", "input_output": ""}]
    write(tmp_path / "apps" / "train.jsonl", rows)
    said = flowgraph("data", "apps", "--from", "apps", "-o", "made.parquet", "--json")
    assert json.loads(said.out) == [{"path": "made.parquet", "rows": 1}]
    assert "made.parquet: left out 1 records without tests" in said.err
    assert flowgraph("data", "apps").err.startswith("apps is made from its files\n  hint: flowgraph data apps --from")
    assert "digits is not made from files" in flowgraph("data", "digits", "--from", "apps").err
    assert flowgraph("data", "apps", "--from", "apps", "--cache", "cache").code == 0
    assert (tmp_path / "cache" / "apps" / "train.parquet").is_file()
    listed = json.loads(flowgraph("data", "--json").out)
    assert {"math", "aime", "apps", "codecontests", "hh"} <= {each["name"] for each in listed}


@pytest.mark.skipif(bool(lacks()), reason="this machine cannot confine a process")
def test_apps_problems_are_trained_on_and_their_programs_graded_in_the_sandbox(flowgraph: Run, tmp_path: Path) -> None:
    (tmp_path / "apps").mkdir()
    larger = {"inputs": [[1, 2], [4, 3]], "outputs": [[2], [4]], "fn_name": "larger"}
    rows = [
        {"question": "Print nothing.", "input_output": json.dumps({"inputs": ["1\n", "2\n"], "outputs": ["", ""]})},
        {"question": "Return the larger.", "input_output": json.dumps(larger), "starter_code": "def larger(a, b):"},
    ]
    write(tmp_path / "apps" / "train.jsonl", rows)
    assert flowgraph("data", "apps", "--from", "apps", "-o", "apps.parquet").code == 0
    options = ("--model", "tiny:positions=512", "--data", "apps.parquet", "--batch", "2", "--steps", "2", *TINY)
    said = flowgraph("run", "gpg", *options, "--set", "policy.generate.n=8", "--eval-every", "0", "-o", "run")
    assert said.code == 0, said.err
    files = sorted((tmp_path / "run" / "rollouts").rglob("*.parquet"))
    recorded = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert len(recorded) == 32 and {row["score"] for row in recorded} == {0.0, 1.0}
    for row in recorded:
        graded = (row["score"], row["score.passed"], row["score.reason"])
        assert graded in [(1.0, 2.0, ""), (0.0, None, None)] or graded[2].startswith("test 1 of 2: ")
    shown = flowgraph("rollouts", "run", "--sort", "-score", "--limit", "32").out
    assert "score.passed 2 · score.tests 2 · length" in shown
    assert "score.reason test 1 of 2: SyntaxError: invalid syntax" in shown
