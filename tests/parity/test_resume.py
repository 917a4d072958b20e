"""A resumed run equals one that was not interrupted: bit for bit as it was placed, within 1e-5 placed otherwise."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from flowgraph.cli import main

LIMIT = 1e-5
FLOWS = Path(__file__).parents[1] / "examples" / "flows"

LATE = """\
from __future__ import annotations

from flowgraph import Loss, flow, stale
from nodes import *


@flow
def late(prompts: Prompts, policy: Policy) -> Policy:
    rollout = generate(stale(policy, at_most=2), prompts, n=4)
    advantages = group_normalize(score(rollout, by="partial"), rollout.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

    return update(policy, loss, lr=1e-3)
"""

Command = Callable[..., str]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return `command(*arguments)`: a command that goes well, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["flowgraph", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        err = capsys.readouterr().err
        assert not ended.value.code, err
        return err

    return run


def journal(run: str) -> list[dict[str, Any]]:
    """Return the lines of metrics, times apart."""
    lines = [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "time"} for line in lines]


def contents(run: str, *folders: str) -> dict[str, bytes]:
    """Return the files of these folders, by their paths in the run's."""
    found = [path for folder in folders for path in Path(run, folder).rglob("*")]
    return {str(path.relative_to(run)): path.read_bytes() for path in found if path.is_file()}


def assert_same(run: str, whole: str, last: str) -> None:
    """Compare metrics, rollouts, saved weights and the last checkpoint bit for bit."""
    assert journal(run) == journal(whole)
    one, other = (contents(each, "rollouts", "weights", f"checkpoints/{last}/parts") for each in (run, whole))
    assert one.keys() == other.keys()
    assert [name for name in one if one[name] != other[name]] == []


SMALL = ("--batch", "2", "--eval-every", "2", "--eval-rows", "4", "--checkpoint-every", "1", "--keep", "9")
LEARNS = ("--set", "policy.update.lr=0.001")
CASES: dict[str, tuple[object, ...]] = {
    "a critic beside the policy": ("ppo", *LEARNS, "--set", "critic.update.lr=0.001"),
    "a weight that adapts": (FLOWS / "adaptive_kl.py", *LEARNS),
    "a reference that moves": (f"{FLOWS}/moving_reference.py:with_average", *LEARNS),
    "rounds that are refilled": ("dapo", *LEARNS, "--set", "policy.refill.groups=1", "--set", "policy.refill.n=2"),
    "adapters": ("grpo", "--model", "tiny+lora=4", *LEARNS),
    "two policies": (FLOWS / "two_agents.py",),
}

FOR_EACH_CHANGE = ("a critic beside the policy", "rounds that are refilled")
MORE = pytest.mark.slow(group="resume")


def cut(whole: str, done: int) -> str:
    """Copy a whole run as it was when it was killed after a step, without later checkpoints; return its folder."""
    run = f"cut{done}"
    shutil.copytree(whole, run)
    for each in Path(run, "checkpoints").glob("step_*"):
        if int(each.name.removeprefix("step_")) > done:
            shutil.rmtree(each)
    facts = json.loads(Path(run, "run.json").read_text())
    Path(run, "run.json").write_text(json.dumps(facts | {"status": "running", "steps_done": done}))
    return run


@pytest.mark.parametrize(
    "case", [each if each in FOR_EACH_CHANGE else pytest.param(each, marks=MORE) for each in CASES]
)
def test_what_is_carried_goes_on_bit_for_bit(command: Command, case: str) -> None:
    command("run", *CASES[case], *SMALL, "--cluster", "1xcpu", "--steps", "4", "-o", "whole")
    told = command("resume", cut("whole", 2))
    assert "equals, bit for bit" in told and "continuing after step 2 of 4" in told
    assert_same("cut2", "whole", "step_000004")
    assert len({json.dumps(line) for line in journal("whole")}) == len(journal("whole"))


def two_pools(command: Command) -> None:
    """Write a plan of the late flow: trained in one pool, sampled in another from a copy up to two updates old."""
    Path("late.py").write_text(LATE)
    command("plan", "late.py", "--cluster", "2xcpu-4GiB", "-o", "plan.json")
    plan = json.loads(Path("plan.json").read_text())
    devices = plan["pools"][0]["devices"]
    plan["pools"] = [{"name": "train", "devices": devices[:1]}, {"name": "sample", "devices": devices[1:]}]
    for placed in plan["placed"]:
        apart = placed["role"] == "policy.sample"
        placed |= {"pool": "sample" if apart else "train", "engine": "local", "layout": {}, "lag": 2 if apart else 0}
    Path("plan.json").write_text(json.dumps(plan))


def versions(run: str) -> list[int]:
    """Return by which version of the policy each step's first response was drawn."""
    import pyarrow.parquet as pq

    files = sorted(Path(run, "rollouts/policy.generate").glob("*.parquet"))
    return [max(pq.read_table(file).column("versions")[0].as_py()) for file in files]


def test_a_copy_that_lags_is_as_old_after_a_resume_as_it_was(command: Command) -> None:
    two_pools(command)
    options = ("late.py", "--plan", "plan.json", "--runtime", "local", *SMALL)
    command("run", *options, "--steps", "5", "-o", "whole")
    assert versions("whole") == [0, 0, 0, 3, 3]
    for done in (2, 3, 4):  # before the copy is brought up to date, when it is, and after
        assert f"continuing after step {done} of 5" in command("resume", cut("whole", done))
        assert_same(f"cut{done}", "whole", "step_000005")


RANKS = ("--steps", "2", "--batch", "4", "--set", "policy.generate.n=8", "--set", "policy.update.lr=0.001")
SHARED = (*RANKS, "--eval-every", "2", "--eval-rows", "4", "--checkpoint-every", "2")


def assert_close(run: str, whole: str) -> None:
    """Compare metrics and saved weights within LIMIT; only where weights are copied is a copy's mismatch measured."""
    for one, other in zip(journal(run), journal(whole), strict=True):
        assert len(both := one.keys() & other.keys()) == min(len(one), len(other))
        assert {name: one[name] for name in both} == pytest.approx(
            {name: other[name] for name in both}, abs=LIMIT, rel=LIMIT
        )
    one, other = (load_file(Path(each, "weights/policy/model.safetensors")) for each in (run, whole))
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], atol=LIMIT, rtol=LIMIT)


@pytest.mark.processes
@pytest.mark.slow(group="resume")
@pytest.mark.usefixtures("ray_of_its_own")
def test_a_run_resumes_on_as_many_ranks_bit_for_bit_and_on_fewer_within_a_hundred_thousandth(command: Command) -> None:
    """Two ranks hold the optimizer in shards, one holds it whole."""
    command("run", "grpo", *SHARED, "--cluster", "2xcpu-4GiB", "-o", "two")
    assert "fsdp" in Path("two/plan.json").read_text()
    for name in ("fewer", "whole"):
        shutil.copytree("two", name)
    assert "within 1e-5, not bit for bit" in command("resume", "fewer", "--steps", "4", "--cluster", "1xcpu")
    command("run", "grpo", *SHARED[2:], "--steps", "4", "--cluster", "2xcpu-4GiB", "-o", "uncut")
    assert "equals, bit for bit" in command("resume", "whole", "--steps", "4")
    assert_same("whole", "uncut", "step_000004")
    assert_close("fewer", "uncut")


@pytest.mark.processes
@pytest.mark.slow(group="resume")
@pytest.mark.usefixtures("ray_of_its_own")
def test_a_run_resumes_on_more_ranks_within_a_hundred_thousandth(command: Command) -> None:
    for name in ("more", "uncut"):
        command("run", "grpo", *SHARED, "--cluster", "1xcpu", "-o", name)
    told = command("resume", "more", "--steps", "4", "--cluster", "2xcpu-4GiB")
    assert "within 1e-5, not bit for bit" in told
    command("resume", "uncut", "--steps", "4")
    assert_close("more", "uncut")
