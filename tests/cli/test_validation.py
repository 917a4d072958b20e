"""Checks of held-out prompts during a run: several sources, several responses, saved, and the best checkpoint kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from flowgraph import app
from flowgraph.app.running.check_metrics import metric_names
from nodes.data.tasks import digits

SMALL = ("--cluster", "1xcpu", "--batch", "4", "--set", "policy.generate.n=4", "--set", "score.by=partial")
CHECKS = ("--eval-every", "1", "--eval-rows", "5", "--eval-n", "2", "--checkpoint-every", "1", "--keep", "1")


def mixed(path: Path, *sources: str) -> Path:
    """Write held-out rows of several sources: ten of the first, then one of each other."""
    rows = digits("copy")[1].slice(0, 9 + len(sources)).to_pylist()
    names = [*[sources[0]] * 10, *sources[1:]]
    path.write_text(
        "".join(json.dumps(row | {"data_source": name}) + "\n" for row, name in zip(rows, names, strict=True))
    )
    return path


def test_a_run_reports_each_source_saves_responses_and_keeps_the_best_checkpoint(
    flowgraph: Callable[..., Any], tmp_path: Path
) -> None:
    held_out = mixed(tmp_path / "held_out.jsonl", "math/v1.5", "code")
    best = ("--keep-best", "eval/code/reward")
    ran = flowgraph("run", "grpo", *SMALL, *CHECKS, *best, "--steps", 3, "--held-out", held_out, "-o", "run")
    assert ran.code == 0, ran.err
    run = tmp_path / "run"

    def values() -> list[float]:
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        checks = [line for line in lines if "eval/accuracy" in line]
        assert set(metric_names(["math/v1.5", "code"], 2)) <= set(checks[0])
        assert [line["step"] for line in checks] == list(range(len(checks))), "each check is recorded once"
        return [line["eval/code/reward"] for line in checks]

    def best_steps() -> int:
        facts = json.loads((run / "checkpoints" / "best.json").read_text())
        before = values()
        assert facts["value"] == max(before) and facts["steps"] == before.index(max(before))
        kept = {path.name for path in (run / "checkpoints").glob("step_*")}
        assert kept == {f"step_{facts['steps']:06d}", f"step_{len(before) - 1:06d}"}
        return int(facts["steps"])

    best_steps()
    assert (run / "best" / "policy" / "model.safetensors").is_file()
    responses = pq.read_table(run / "validation" / "000003.parquet")
    assert responses.num_rows == 10 and "score" in responses.column_names
    assert responses["columns.data_source"].to_pylist().count("code") == 2, "one row of it, two responses"
    assert app.rollouts(run, node="validation", where='data_source="code"').matching == 2
    assert flowgraph("resume", "run", "--steps", 5).code == 0
    assert len(values()) == 6
    best_steps()


def test_sources_with_the_name_of_a_metric_are_refused_before_the_run(
    flowgraph: Callable[..., Any], tmp_path: Path
) -> None:
    held_out = mixed(tmp_path / "held_out.jsonl", "math", "reward")
    ran = flowgraph("run", "grpo", *SMALL, *CHECKS, "--steps", 1, "--held-out", held_out)
    assert ran.code and "two metrics of its held-out rows would be called `eval/reward`" in ran.err
    assert not (tmp_path / "runs").exists()


def test_a_held_out_prompt_that_leaves_no_room_for_a_response_is_refused_before_the_run_if_it_is_checked(
    flowgraph: Callable[..., Any], tmp_path: Path
) -> None:
    rows = digits("copy")[1].slice(0, 6).to_pylist()
    rows[5]["prompt"] = [{"role": "user", "content": "1" * 600}]
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    small = (*SMALL, "--model", "tiny:positions=512", "--steps", 1, "--held-out", held_out, "-o", "run")
    ran = flowgraph("run", "grpo", *small, "--eval-every", 1, "--eval-rows", 6)
    assert ran.code == 1 and not (tmp_path / "run").exists()
    assert "checked rows of digits row 5 (from 0): `prompt` has 60" in ran.err
    assert "more than the 512 positions of tiny" in ran.err
    assert flowgraph("run", "grpo", *small, "--eval-every", 1, "--eval-rows", 5).code == 0
