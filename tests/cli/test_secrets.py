"""Secrets that stand in the environment are in nothing that a run writes or prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Said

NAMES = (
    "WANDB_API_KEY",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "AWS_SECRET_ACCESS_KEY",
    "RAY_AUTH_TOKEN",
    "MY_PASSWORD",
)
RUN = ("--model", "tiny", "--cluster", "1xcpu", "--steps", "1", "--batch", "2", "--set", "policy.generate.n=2")
RULE = "def rule(response):\n    return 1 / 0\n"


def test_no_secret_of_the_environment_is_in_what_a_run_leaves_or_says(
    flowgraph: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {name: f"canary-{number:02}-5be1f0" for number, name in enumerate(NAMES)}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    said = [flowgraph("run", "grpo", *RUN, "--eval-every", "0", "--profile", "0", "-o", "run")]
    said += [flowgraph("resume", "run", "--steps", "2"), flowgraph("draw", "run", "-o", "run.html")]
    assert [each.code for each in said] == [0, 0, 0], said
    Path("rules.py").write_text(RULE)
    said += [flowgraph("run", "grpo", *RUN, "--set", "score.by=rules.py:rule", "-o", "failed"), flowgraph("doctor")]
    assert said[-2].code == 1 and "ZeroDivisionError" in said[-2].err
    files = [path for path in Path().rglob("*") if path.is_file()]
    assert len(files) > 30
    for name, value in secrets.items():
        assert [str(path) for path in files if value.encode() in path.read_bytes()] == [], name
        assert not any(value in text for each in said for text in (each.out, each.err)), name
