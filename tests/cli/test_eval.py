"""`eval`: what a model's responses to held-out prompts tell, drawn now or saved earlier."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.said import text_of
from tests.cli.test_bad_input import refused

Run = Callable[..., Any]
HERE = ("--cluster", "1xcpu")


def told(said: Any) -> dict[str, Any]:
    """Return what a command printed as JSON."""
    found: dict[str, Any] = json.loads(text_of(said))
    return found


def test_a_finished_run_is_evaluated_as_its_own_last_check_did(flowgraph: Run, trained: Path) -> None:
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if "eval/accuracy" in line][-1]
    assert last["step"] == 2
    report = told(flowgraph("eval", trained, "--rows", 20, *HERE, "--json"))["report"]
    assert report["prompts"] == report["responses"] == 20
    assert report["pass_at"]["1"]["mean"] == last["eval/accuracy"]
    assert report["score"]["mean"] == pytest.approx(last["eval/reward"], abs=1e-7)
    assert report["tokens"]["mean"] == last["eval/response_length"]
    assert report["truncated"] == pytest.approx(1 - last["eval/finished"])
    assert report["score"]["mean"] > 0 and 0 < report["truncated"] < 1, "else these would agree for nothing"


def test_saved_responses_give_the_same_report_to_the_last_digit(flowgraph: Run, trained: Path, tmp_path: Path) -> None:
    at_once = text_of(flowgraph("eval", trained, "--rows", 30, "--n", 3, *HERE, "-o", "out.parquet", "--json"))
    again = text_of(flowgraph("eval", "--generations", "out.parquet", "--json"))
    assert {**json.loads(again), "about": None} == {**json.loads(at_once), "about": None}
    assert json.loads(again)["about"] == json.loads(at_once)["about"]
    assert pq.read_table("out.parquet").column("score").type == pa.float32()
    later = text_of(flowgraph("generate", trained, "--rows", 30, "--n", 3, *HERE, "-o", "drawn.parquet"))
    assert later == "drawn.parquet\n"
    assert json.loads(text_of(flowgraph("eval", "--generations", "drawn.parquet", "--json"))) == json.loads(at_once)


def test_responses_are_scored_again_by_another_rule(flowgraph: Run, tmp_path: Path) -> None:
    table = {
        "prompt_index": [0, 0, 1, 1],
        "response": ["1", "2", "2", "2"],
        "finished": [True, False, True, True],
        "reward_model": [{"ground_truth": each} for each in ("1", "1", "2", "2")],
    }
    pq.write_table(pa.table(table), tmp_path / "mine.parquet")
    report = told(flowgraph("eval", "--generations", "mine.parquet", "--by", "exact", "--json"))["report"]
    assert report["score"] == {"mean": 0.75, "half_width": pytest.approx(0.49)}
    assert [report["pass_at"][k]["mean"] for k in "12"] == [0.75, 1.0]
    assert report["pass_at"]["2"]["half_width"] is None
    assert (report["truncated"], report["tokens"]) == (0.25, None)
    (tmp_path / "rules.py").write_text("def rule(response, prompt_id):\n    return float(prompt_id)\n")
    other = told(flowgraph("eval", "--generations", "mine.parquet", "--by", "rules.py:rule", "--json"))
    assert other["report"]["score"]["mean"] == 0.5


def test_a_runs_own_rollouts_are_responses_too(flowgraph: Run, trained: Path) -> None:
    line = json.loads((trained / "metrics.jsonl").read_text().splitlines()[1])
    rollout = trained / "rollouts/policy.generate/000000.parquet"
    report = told(flowgraph("eval", "--generations", rollout, "--json"))["report"]
    assert (report["prompts"], report["responses"]) == (4, 16)
    assert report["score"]["mean"] == pytest.approx(line["score.reward"])
    assert report["tokens"]["mean"] == pytest.approx(line["policy.generate.response_length"])


def test_several_data_sources_are_told_apart(flowgraph: Run, tmp_path: Path) -> None:
    rows = [
        {
            "data_source": source,
            "prompt": [{"role": "user", "content": "12"}],
            "reward_model": {"style": "rule", "ground_truth": "12"},
        }
        for source in ("addition", "digits", "digits")
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = text_of(flowgraph("eval", "tiny", "--data", "rows.jsonl", "--max-tokens", 3, *HERE))
    assert re.search(
        r"^tiny, rows \(3 prompts\), n=1, temperature=0, max_tokens=3, seed=0, rule data$", said, re.MULTILINE
    )
    assert re.search(r"^addition +1 +\d\.\d{4} +\d\.\d{4}", said, re.MULTILINE), said
    assert re.search(r"^digits +2 +\d\.\d{4} +\d\.\d{4}", said, re.MULTILINE), said
    assert "± is the 95% interval: 1.96 standard errors over prompts" in said


@pytest.mark.slow(group="commands")
def test_saved_responses_are_scored_without_torch(flowgraph: Run, trained: Path, tmp_path: Path) -> None:
    text_of(flowgraph("generate", trained, "--rows", 2, *HERE, "-o", "drawn.parquet"))
    code = (
        "import sys; sys.argv = ['flowgraph', 'eval', '--generations', 'drawn.parquet']\n"
        "from flowgraph.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as stop:\n    assert not stop.code\n"
        "print([name for name in ('torch', 'transformers', 'ray') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\n[]\n")


def test_an_interrupt_reports_what_was_done_and_keeps_it(flowgraph: Run, tmp_path: Path) -> None:
    # The rule of the fifth prompt interrupts the command, whose grandchild it is; it has to be allowed to.
    text = "import os, signal, time\n\n\ndef rule(response, prompt_id):\n"
    text += (
        "    if prompt_id == 4:\n"
        "        guard = open(f'/proc/{os.getppid()}/stat').read()\n"
        "        os.kill(int(guard.rpartition(')')[2].split()[1]), signal.SIGINT)\n"
        "        time.sleep(5)\n"
        "    return 0.25\n"
    )
    (tmp_path / "rules.py").write_text(text)
    allowed = ("--set", 'score.allow=["unconfined", "state"]')
    asked = ("eval", "tiny", "--batch", 2, "--by", "rules.py:rule", *allowed)
    stopped = flowgraph(*asked, *HERE, "-o", "out.parquet", "--json")
    assert stopped.code == 130
    assert "stopped after 4 of 200 prompts; their responses are in out.partial.parquet\n" in stopped.err
    assert json.loads(stopped.out)["report"]["score"]["mean"] == 0.25
    assert json.loads(stopped.out)["about"]["done"] == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.partial.parquet", "rules.py"]
    assert pq.read_table("out.partial.parquet").num_rows == 4


def test_a_rule_that_fails_names_the_row_and_what_was_drawn_before_is_kept(flowgraph: Run, tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text("def rule(response, prompt_id):\n    return 1.0 if prompt_id < 4 else 1 / 0\n")
    asked = ("eval", "tiny", "--rows", 6, "--batch", 2, "--by", "rules.py:rule", *HERE)
    text = refused(flowgraph(*asked, "-o", "out.parquet"))
    assert "rules.py:2: rule `rules.py:rule` raised ZeroDivisionError" in text
    assert "prompt 4, sample 0" in text and "in prompts 4 to 5 of digits, from 0" in text
    assert pq.read_table("out.partial.parquet").num_rows == 4
    assert not (tmp_path / "out.parquet").exists()
    found = told(flowgraph(*asked, "--set", "score.on_error=0.5", "--json"))
    assert found["report"]["score"]["mean"] == pytest.approx(5 / 6)
    assert found["about"]["rule_failures"] == 2
    text_of(flowgraph("generate", "tiny", "--rows", 6, *HERE, "-o", "drawn.parquet"))
    again = ("eval", "--generations", "drawn.parquet", "--by", "rules.py:rule")
    assert "raised ZeroDivisionError" in refused(flowgraph(*again))
    counted = told(flowgraph(*again, "--set", "score.on_error=0.5", "--json"))
    assert counted["about"]["rule_failures"] == 2


def test_a_run_with_several_language_models_is_asked_which(flowgraph: Run, trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "two"
    shutil.copytree(trained, run)
    shutil.copytree(run / "weights/policy", run / "weights/student")
    config = json.loads((run / "weights/policy/config.json").read_text())
    shutil.copytree(run / "weights/policy", run / "weights/critic")
    (run / "weights/critic/config.json").write_text(
        json.dumps(config | {"architectures": ["LlamaForTokenClassification"]})
    )
    assert refused(flowgraph("eval", "two"), code=2) == (
        "two: has the weights of 2 language models: policy, student\n  hint: --param policy\n"
    )
    assert "did you mean `student`?" in refused(flowgraph("eval", "two", "--param", "studnt"), code=2)
    assert "cannot generate responses" in refused(flowgraph("eval", "two", "--param", "critic"))
    name = told(flowgraph("eval", "two", "--param", "student", "--rows", 2, *HERE, "--json"))["about"]["model"]
    assert name == "two/weights/student"


def test_a_run_without_weights_says_how_it_ended(flowgraph: Run, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "failed", ignore=shutil.ignore_patterns("weights", "checkpoints"))
    facts = json.loads((tmp_path / "failed/run.json").read_text())
    (tmp_path / "failed/run.json").write_text(json.dumps(facts | {"status": "failed", "steps_done": 1}))
    assert refused(flowgraph("eval", "failed")) == (
        "failed: has no saved weights: it is failed after 1 of 2 steps\n"
        "  hint: a run saves its weights at its end, or when it is stopped\n"
    )
    (tmp_path / "failed/checkpoints").mkdir()
    assert refused(flowgraph("eval", "failed")).endswith("hint: `flowgraph resume failed` continues it to its end\n")


@pytest.mark.processes
@pytest.mark.slow(group="ray")
def test_two_devices_draw_and_score_what_one_does(flowgraph: Run, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text("def rule(response, prompt_id):\n    return len(response) / 8 + prompt_id\n")
    asked = ("eval", str(trained), "--rows", "5", "--batch", "4", "--n", "2", "--by", "rules.py:rule", "--json")
    here = told(flowgraph(*asked, *HERE, "-o", "here.parquet"))
    command = [sys.executable, "-m", "flowgraph", *asked, "-o", "there.parquet"]  # the last batch is of one prompt
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "starting Ray and 2 workers" in done.stderr
    there = json.loads(done.stdout)
    assert there["report"] == here["report"]
    exact = ["prompt_index", "sample_index", "response_ids", "response", "finished", "score"]
    one, two = (pq.read_table(name) for name in ("here.parquet", "there.parquet"))
    assert one.select(exact).equals(two.select(exact))


NOT_ASKED_WELL = {
    "names no model": ((), 2, "eval: names neither a model nor a run"),
    "no such model": (("tinny",), 1, "no model `tinny`"),
    "a file of responses": (("rows.parquet",), 2, "--generations rows.parquet"),
    "no such file": (("--generations", "no.parquet"), 1, "no.parquet: no such file"),
    "no Parquet": (("--generations", "text.parquet"), 1, "text.parquet: corrupt, or not Parquet"),
    "other columns": (
        ("--generations", "rows.parquet"),
        1,
        "rows.parquet: lacks column `response`\n    it has: answer, prompt_index\n",
    ),
    "no rows": (("--generations", "empty.parquet"), 1, "empty.parquet: has no rows"),
    "a model too": (("tiny", "--generations", "rows.parquet"), 2, "so MODEL has no effect"),
    "a setting of drawing": (
        ("--generations", "good.parquet", "--set", "policy.generate.n=2"),
        2,
        "but the file already has them",
    ),
    "no such rule": (("tiny", "--by", "exat"), 1, "no shipped rule `exat`\n  hint: did you mean `exact`?"),
    "no rule for a source": (("tiny", "--data", "bare.jsonl"), 1, "hint: --by RULE"),
    "what a rule lacks": (
        ("--generations", "good.parquet", "--by", "exact"),
        1,
        "rule `exact` takes `ground_truth`, but no column has that name",
    ),
    "none to a prompt": (("tiny", "--n", "0"), 2, "--n"),
    "below zero": (("tiny", "--temperature", "-1"), 2, "--temperature"),
    "without end": (("tiny", "--temperature", "inf"), 1, "temperature=inf: "),
    "no such data": (("tiny", "--data", "digts"), 1, "unknown data set `digts`\n  hint: did you mean `digits`?"),
    "empty data": (("tiny", "--data", "none.jsonl"), 1, "none.jsonl: has no rows"),
    "no such split": (("tiny", "--split", "test"), 2, "known: held-out, train"),
    "nothing held out": (("tiny", "--data", "bare.jsonl", "--split", "held-out"), 1, "has no held-out rows"),
    "too long": (
        ("tiny", "--max-tokens", "126", "--rows", "3", *HERE),
        1,
        "positions\n    in prompts 0 to 2 of digits, from 0\n",
    ),
    "there already": (("tiny", "-o", "good.parquet"), 2, "good.parquet: exists; nothing was written"),
    "no known ending": (("tiny", "-o", "out.csv"), 2, "out.csv: its name ends in `.csv`, not in .parquet or .json"),
    "not writable": (("tiny", "-o", "text.parquet/out.parquet"), 2, "text.parquet: cannot be written to: "),
    "a param of no run": (("tiny", "--param", "policy"), 2, "tiny is a model, not a run"),
    "no such plan": (("tiny", "--plan", "no.json"), 1, "no.json: cannot be read"),
}


@pytest.mark.parametrize("fault", NOT_ASKED_WELL)
def test_what_cannot_be_evaluated_is_refused(flowgraph: Run, tmp_path: Path, fault: str) -> None:
    arguments, code, wanted = NOT_ASKED_WELL[fault]
    pq.write_table(pa.table({"prompt_index": [0], "answer": ["1"]}), tmp_path / "rows.parquet")
    good = pa.table({"prompt_index": [0], "response": ["1"], "finished": [True]})
    pq.write_table(good, tmp_path / "good.parquet")
    pq.write_table(good.slice(0, 0), tmp_path / "empty.parquet")
    (tmp_path / "text.parquet").write_text("no Parquet")
    (tmp_path / "bare.jsonl").write_text('{"prompt": [{"role": "user", "content": "1"}]}\n')
    (tmp_path / "none.jsonl").write_text("")
    text = refused(flowgraph("eval", *arguments), code)
    assert wanted in text
    left = {"rows.parquet", "good.parquet", "empty.parquet", "text.parquet", "bare.jsonl", "none.jsonl"}
    assert {path.name for path in tmp_path.iterdir()} == left
