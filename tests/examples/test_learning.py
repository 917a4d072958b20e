"""The shipped flows learn: from nothing to at least 0.9 on held-out prompts, and a real model from about 0.15."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.curves import SETTINGS
from flowgraph import app
from flowgraph.app.planning.flow_inputs import read_inputs
from flowgraph.app.request import Workload
from flowgraph.cli.commands.flows import flows
from tests.looped import looped

ROOT = Path(__file__).parents[2]
FLOWS = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "__init__")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Run a flow as the command line does, and give the lines of its metrics."""
    monkeypatch.chdir(tmp_path)

    def start(flow: str, **changed: Any) -> list[dict[str, Any]]:
        values: dict[str, Any] = {"cluster": "1xcpu", "cache": tmp_path / "cache"} | changed
        result = app.run(flow, out=tmp_path / "run", **values)
        assert result.status == "finished"
        return [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]

    return start


def accuracy(lines: list[dict[str, Any]]) -> list[float]:
    """Return held-out accuracy, from before the first step on."""
    return [line["eval/accuracy"] for line in lines if "eval/accuracy" in line]


def test_grpo_draws_twice_the_reward_after_seventy_steps(run: Callable[..., list[dict[str, Any]]]) -> None:
    """It is more than three times as much; that it goes on to 0.9 on held-out prompts is shown by `make slow`."""
    rewards = [line["score.reward"] for line in run("grpo", steps=70, eval_every=0)]
    assert len(rewards) == 70
    assert sum(rewards[-10:]) > 2 * sum(rewards[:10])


@pytest.mark.slow
def test_grpo_learns_to_copy_digits(run: Callable[..., list[dict[str, Any]]]) -> None:
    found = accuracy(run("grpo"))
    assert found[0] < 0.05
    assert found[-1] >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("flow", FLOWS)
def test_each_flow_learns_from_each_seed(run: Callable[..., list[dict[str, Any]]], flow: str, seed: int) -> None:
    found = accuracy(run(flow, seed=seed, steps=500, settings=tuple(SETTINGS.get(flow, ()))))
    assert found[0] < 0.05
    assert max(found) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_grpo_learns_on_two_ranks_under_ray(run: Callable[..., list[dict[str, Any]]], seed: int) -> None:
    found = accuracy(run("grpo", seed=seed, cluster=None))
    assert found[0] < 0.05
    assert found[-1] >= 0.9


@pytest.mark.slow
def test_a_real_model_gets_better_at_sums(run: Callable[..., list[dict[str, Any]]]) -> None:
    lines = run("grpo", model="smollm2-135m", data="addition", steps=10, eval_every=0, cache=ROOT / ".cache" / "models")
    rewards = [line["score.reward"] for line in lines]
    assert rewards[0] < 0.3
    assert max(sum(rewards[i : i + 3]) / 3 for i in range(8)) >= 0.4  # eight prompts a step: one alone is noisy


@pytest.mark.parametrize("flow", FLOWS)
def test_every_shipped_flow_trains_saves_and_records(run: Callable[..., list[dict[str, Any]]], flow: str) -> None:
    few = ("policy.refill.groups=3",) if flow == "dapo" else ()
    lines = run(flow, steps=2, batch=4, eval_every=0, settings=(*SETTINGS.get(flow, ()), *few))
    losses = [value for line in lines for name, value in line.items() if name.endswith("update.loss")]
    assert [line["step"] for line in lines] == [0, 1]
    assert len(losses) >= 2 and all(math.isfinite(loss) for loss in losses)


@looped("flow", FLOWS)
def test_the_examples_are_short_and_name_their_source(flow: str) -> None:
    about = (ROOT / "examples" / f"{flow}.py").read_text().split('"""')[1]
    assert "Source: " in about or flow == "sft"
    source = (ROOT / "examples" / f"{flow}.py").read_text().partition("@flow")[2]
    lines = [line for line in source.splitlines()[1:] if line.strip() and '"""' not in line]
    assert len(lines) + 1 <= {"grpo": 12, "gpg": 8, "ppo": 17}.get(flow, 20)


def test_the_shipped_flows_are_listed_with_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    flows()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert [line.split()[0] for line in lines[1:]] == FLOWS
    assert all(len(line.rstrip()) <= 80 and len(line.split()) > 3 for line in lines[1:])


def test_inputs_load_no_torch_so_a_wrong_command_fails_at_once() -> None:
    inputs = read_inputs(Workload(flow="grpo"))
    assert (inputs.batch, inputs.steps, inputs.data.name) == (16, 300, "digits")
