"""Rows that their data hand to a model: refused before a run whose rule is to score them, else scored by its judge."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodes.data.tasks import digits
from tests.model_server import Double, verdict

SMALL = ("--cluster", "1xcpu", "--batch", "2", "--steps", "1")
FLOW = """
from __future__ import annotations

from flowgraph import Loss, flow
from nodes import Policy, Prompts, generate, group_normalize, logprobs, policy_gradient, remote_judge, update


@flow
def graded(prompts: Prompts, policy: Policy) -> Policy:
    rollout = generate(policy, prompts, n=2, max_tokens=3)
    advantages = group_normalize(remote_judge(rollout, url="URL", model="grader", api_key_env="KEY"), rollout.group)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    return update(policy, loss)
"""
REFUSED = 'row 1 (from 0) of {name} has reward_model.style "model", so no rule scores it by its data_source'


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Write rows, of which all but the first are for a model."""
    rows = digits("copy")[1].slice(0, 6).to_pylist()
    for row in rows[1:]:
        row["reward_model"]["style"] = "model"
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_run_and_a_check_by_rules_refuse_rows_for_a_model(flowgraph: Callable[..., Any], data: Path) -> None:
    for command in ("check", "run"):
        ran = flowgraph(command, "grpo", *(SMALL if command == "run" else SMALL[:4]), "--data", data)
        assert ran.code and REFUSED.format(name="").split("of ")[0] in ran.err + ran.out
        assert 'reward_model.style "model"' in ran.err + ran.out
        assert "remote_judge" in ran.err + ran.out
    ran = flowgraph("run", "grpo", *SMALL, "--held-out", data, "--eval-every", "1", "--eval-rows", "4")
    assert ran.code and "row 1 (from 0) of the held-out rows of" in ran.err and "--eval-every 0" in ran.err


def test_a_judge_scores_rows_of_both_styles_and_the_check_of_held_out_rows(
    flowgraph: Callable[..., Any], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "sk-secret-7")
    with Double() as double:
        double.reply = lambda body: verdict("[[10]]" if "grader" in str(body) else "none")
        (tmp_path / "graded.py").write_text(FLOW.replace("URL", double.url))
        sets = ("--data", data, "--held-out", data, "--eval-every", "1", "--eval-rows", "4", "-o", "run")
        ran = flowgraph("run", f"{tmp_path / 'graded.py'}:graded", *SMALL, *sets)
        assert ran.code == 0, ran.err
        assert {key for _, _, key in double.asked} == {"Bearer sk-secret-7"}
    run = tmp_path / "run"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["eval/accuracy"] for line in lines if "eval/accuracy" in line] == [1.0, 1.0]
    assert any(line.get("remote_judge.reward") == 1.0 for line in lines)
    files = [path for path in run.rglob("*") if path.is_file()]
    assert files and not any(b"sk-secret-7" in path.read_bytes() for path in files)
