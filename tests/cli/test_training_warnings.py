"""Warnings of `run` and `plan`: calls that nothing reads, and metrics of a run that learns nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Said

Run = Callable[..., Said]
FLOW = """
from flowgraph import Loss, flow
from nodes import Policy, Prompts, generate, group_normalize, logprobs, policy_gradient, score, update


def flat(response: str) -> float:
    return 0.5


@flow
def mine(prompts: Prompts, policy: Policy) -> Policy:
    rollout = generate(policy, prompts, n=2)
    score(rollout)
    advantages = group_normalize(score(rollout, by=flat), rollout.group)
    return update(policy, lambda pi: policy_gradient(logprobs(pi, rollout), advantages, rollout.mask))
"""
UNREAD = "warning unread: nothing reads the result of score at mine.py:13, so it is left out"
ONE = ("--cluster", "1xcpu", "--batch", 2, "--eval-every", 0)


@pytest.fixture(autouse=True)
def flow(flowgraph: Run) -> None:
    """Write the flow into the folder in which commands run."""
    Path("mine.py").write_text(FLOW)


def lines_of(folder: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("command", [("plan", "mine.py"), ("plan", "mine.py", "--cluster", "1x8xh100")])
def test_plan_warns_of_a_call_that_nothing_reads(command: tuple[str, ...], flowgraph: Run) -> None:
    said = flowgraph(*command)
    assert said.code == 0
    assert " ".join((said.out + said.err).split()).count(UNREAD) == 1


def test_a_run_that_learns_nothing_warns_and_records_at_which_steps(flowgraph: Run) -> None:
    said = flowgraph("run", "mine.py", *ONE, "--steps", 7, "-o", "run")
    text = " ".join(said.err.split())
    assert text.count(UNREAD) == 1
    assert text.count("warning no_signal after step 5: all responses to each prompt have the same score") == 1
    assert "hint: look at the responses and scores" in text
    assert "warnings: no_signal" in text, "the display says it"
    recorded = [[name for name in line if name.startswith("warnings.")] for line in lines_of("run")]
    assert recorded == [[]] * 4 + [["warnings.no_signal"]] * 3
    assert flowgraph("report", "run").code == 0


def test_a_resumed_run_records_the_same_warnings(flowgraph: Run) -> None:
    flowgraph("run", "mine.py", *ONE, "--steps", 3, "--checkpoint-every", 3, "-o", "run")
    assert flowgraph("resume", "run", "--steps", 6).code == 0
    warned = [line["step"] for line in lines_of("run") if "warnings.no_signal" in line]
    assert warned == [4, 5]


def test_warnings_are_switched_off_and_stay_so_when_a_run_is_resumed(flowgraph: Run) -> None:
    switched = ("--warnings", "-no_signal", "--checkpoint-every", 5)
    said = flowgraph("run", "mine.py", *ONE, "--steps", 5, *switched, "-o", "run")
    said = flowgraph("resume", "run", "--steps", 7)
    assert "no_signal" not in said.err
    assert not any(name.startswith("warnings.") for line in lines_of("run") for name in line)


def test_an_unknown_warning_is_a_usage_error_before_anything_is_loaded(flowgraph: Run) -> None:
    said = flowgraph("run", "mine.py", *ONE, "--warnings", "no_signl", "-o", "run")
    assert said.code == 2
    assert "no warning `no_signl`" in said.err and "did you mean `no_signal`?" in said.err
    assert not Path("run").exists()
