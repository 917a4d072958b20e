"""Runs on Ray whose processes are killed or stopped, and that are interrupted: each ends soon, says why, leaves nothing.

Every process of a run is known by a mark in its environment, those whose parent is gone too.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

LIMIT_S = 30.0  # from a fault to the end of the last process
START_S = 120.0
MARK = "FAULT_TEST"

FLOW = '''\
"""A flow whose nodes wait where they are told to."""

from __future__ import annotations

import os
import time
from pathlib import Path

from flowgraph import Key, Loss, Mask, flow, node
from nodes import Advantages, LogProbs, Policy, Prompts, Reference, Rollout, Scores
from nodes import generate, logprobs, policy_gradient, score, update
from nodes.sampling import METRICS


def wait(at: str, seconds: float) -> None:
    if at:
        Path(at, str(os.getpid())).touch()
        time.sleep(seconds)


@node(kind="generate", pure=False, metrics=METRICS)
def slow_generate(
    policy: Policy, prompts: Prompts, *, n: int = 2, at: str = "", seconds: float = 90.0, key: Key = Key()
) -> Rollout:
    wait(at, seconds)
    return generate(policy, prompts, n=n, max_tokens=4, key=key)


@node(kind="logprob")
def slow_logprobs(model: Reference, rollout: Rollout, *, at: str = "", seconds: float = 90.0) -> LogProbs:
    wait(at, seconds)
    return logprobs(model, rollout)


@node(kind="advantage")
def slow_advantages(scores: Scores, *, at: str = "", seconds: float = 90.0) -> Advantages:
    wait(at, seconds)
    return Advantages(scores.data)


@node
def slow_loss(
    new: LogProbs, advantages: Advantages, mask: Mask, *, ref: LogProbs, at: str = "", seconds: float = 90.0
) -> Loss:
    wait(at, seconds)
    return policy_gradient(new, advantages, mask)


@flow
def slow(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
    """Wait."""
    rollout = slow_generate(policy, prompts)
    advantages = slow_advantages(score(rollout, by="rules.py:rule"))
    known = slow_logprobs(ref, rollout)

    def loss(pi: Policy) -> Loss:
        return slow_loss(logprobs(pi, rollout), advantages, rollout.mask, ref=known)

    return update(policy, loss)
'''
QUICK_RULE = "def rule(response):\n    return float(len(response))\n"
SLOW_RULE = """\
import os, pathlib, time

def rule(response):
    pathlib.Path({at!r}, str(os.getpid())).touch()
    time.sleep({seconds})
    return 0.5
"""
NODES = {
    "generate": "policy.slow_generate",
    "logprob": "ref.slow_logprobs",
    "update": "policy.update.slow_loss",
    "advantage": "slow_advantages",
}


@dataclass(frozen=True)
class Ended:
    """How a run ended: its exit code, all of stderr, the status it left, and the seconds until nothing was left."""

    code: int
    err: str
    status: str
    seconds: float

    def tail(self) -> str:
        """Give stderr from where the end is told, without process ids."""
        lines = self.err.splitlines(keepends=True)
        told = [i for i, line in enumerate(lines) if line.startswith(("the run failed", "stopp", "interrupted"))]
        return re.sub(r"\b(process |host process \()\d+", r"\1N", "".join(lines[told[0] if told else 0 :]))


@dataclass(eq=False)
class Started:
    """A run as a process of a session of its own, as a terminal starts it."""

    folder: Path
    options: tuple[str, ...]
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        (self.folder / "slow.py").write_text(FLOW)
        rules = self.folder / "rules.py"
        rules.write_text(rules.read_text() if rules.is_file() else QUICK_RULE)
        command = [sys.executable, "-m", "flowgraph", "run", "slow.py", "--batch", "2", "--eval-every", "0", "-o", "run"]
        with (self.folder / "err").open("w") as err:
            self.process = subprocess.Popen(
                [*command, *self.options],
                cwd=self.folder,
                env=os.environ | {MARK: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=err,
                start_new_session=True,
            )

    def err(self) -> str:
        """Give what was printed as yet."""
        return (self.folder / "err").read_text()

    def facts(self) -> dict[str, object]:
        """Give what the run folder says."""
        told: dict[str, object] = json.loads((self.folder / "run" / "run.json").read_text())
        return told

    def alive(self) -> dict[psutil.Process, str]:
        """Give the processes that are there, with their names; one that waits to be reaped is gone."""
        found = dict[psutil.Process, str]()
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found[process] = process.name()
            except psutil.Error:
                continue
        return found

    def wait_until(self, what: Callable[[], bool]) -> None:
        """Wait for something that happens while the run goes on."""
        until = time.monotonic() + START_S
        while not what():
            assert self.process.poll() is None, self.err()
            assert time.monotonic() < until, (self.err(), self.alive())
            time.sleep(0.02)

    def wait_for(self, name: str) -> None:
        """Wait until a process of this name is there."""
        self.wait_until(lambda: name in self.alive().values())

    def waiting(self, count: int) -> list[int]:
        """Wait until so many processes are inside the slow node, and give their ids."""
        here = self.folder / "here"
        self.wait_until(lambda: len(list(here.iterdir())) >= count)
        return sorted(int(each.name) for each in here.iterdir())

    def interrupt(self) -> None:
        """Send what Ctrl-C sends, to every process that a terminal sends it to."""
        os.killpg(self.process.pid, signal.SIGINT)

    def ended(self) -> Ended:
        """Wait for the end of the run and of all that it started; it is the fault's moment now."""
        start = time.monotonic()
        code = self.process.wait(LIMIT_S)
        while left := self.alive():
            assert time.monotonic() - start < LIMIT_S, f"left: {sorted(left.values())}\n{self.err()}"
            time.sleep(0.05)
        seconds = time.monotonic() - start
        assert "Traceback" not in self.err()
        status = str(self.facts()["status"])
        print(f"\n{seconds:.1f} s, exit code {code}, {status}\n{self.err()}")
        return Ended(code, self.err(), status, seconds)

    def destroy(self) -> None:
        """Leave nothing behind, whatever the test found."""
        while left := self.alive():
            for process in left:
                try:
                    process.kill()
                except psutil.Error:
                    continue
        self.process.wait()


Start = Callable[..., Started]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Give `start(*options, at=…, seconds=…)`: begin a run, and end whatever is left of it after the test."""
    begun = list[Started]()
    (tmp_path / "here").mkdir()

    def start(*options: str, at: str = "", seconds: float = 90.0) -> Started:
        if at == "score":
            (tmp_path / "rules.py").write_text(SLOW_RULE.format(at=str(tmp_path / "here"), seconds=seconds))
        elif at:
            options += ("--set", f"{NODES[at]}.at={tmp_path / 'here'}", "--set", f"{NODES[at]}.seconds={seconds}")
        begun.append(Started(tmp_path, ("--steps", "1000", *options)))
        return begun[-1]

    yield start
    for each in begun:
        each.destroy()


@pytest.mark.parametrize("at", ["generate", "logprob", "update"])
def test_a_killed_device_process(start: Start, at: str) -> None:
    run = start(at=at)
    pid = run.waiting(2)[1]
    os.kill(pid, signal.SIGKILL)
    ended = run.ended()
    print(ended.tail())


@pytest.mark.parametrize("at", ["generate", "logprob", "update"])
def test_a_stopped_device_process(start: Start, at: str) -> None:
    run = start(at=at)
    pid = run.waiting(2)[1]
    os.kill(pid, signal.SIGSTOP)
    ended = run.ended()
    print(ended.tail())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("at", ["advantage", "score"])
def test_a_host_process(start: Start, at: str, how: signal.Signals) -> None:
    run = start("--set", "score.limit_s=90", at=at)
    pid = run.waiting(1)[0]
    os.kill(psutil.Process(pid).ppid() if at == "score" else pid, how)
    ended = run.ended()
    print(ended.tail())


def test_a_rule_that_hangs(start: Start) -> None:
    run = start("--set", "score.limit_s=1", at="score")
    run.waiting(1)
    ended = run.ended()
    print(ended.tail())


def test_a_killed_grader(start: Start) -> None:
    run = start("--set", "score.limit_s=90", at="score")
    os.kill(run.waiting(1)[0], signal.SIGKILL)
    ended = run.ended()
    print(ended.tail())


def test_ctrl_c_in_a_step(start: Start) -> None:
    run = start(at="update", seconds=2)
    run.waiting(2)
    run.interrupt()
    ended = run.ended()
    print(ended.tail())


def test_sigterm_in_a_step(start: Start) -> None:
    run = start(at="update", seconds=2)
    run.waiting(2)
    run.process.terminate()
    ended = run.ended()
    print(ended.tail())


@pytest.mark.parametrize("at", ["generate", "update", "score"])
def test_ctrl_c_twice(start: Start, at: str) -> None:
    run = start("--set", "score.limit_s=90", at=at)
    run.waiting(1 if at == "score" else 2)
    run.interrupt()
    time.sleep(0.2)
    run.interrupt()
    ended = run.ended()
    print(ended.tail())


@pytest.mark.parametrize("name", ["gcs_server", "raylet", "ray::Device", "ray::warm_up"])
def test_ctrl_c_at_the_start(start: Start, name: str) -> None:
    run = start()
    run.wait_for(name)
    run.interrupt()
    ended = run.ended()
    print(ended.tail())


@pytest.mark.parametrize("name", ["raylet", "ray::warm_up"])
def test_sigterm_at_the_start(start: Start, name: str) -> None:
    run = start()
    run.wait_for(name)
    run.process.terminate()
    ended = run.ended()
    print(ended.tail())


def test_ctrl_c_while_closing(start: Start) -> None:
    run = start("--steps", "1")
    run.wait_for("ray::Device")
    run.wait_until(lambda: "ray::Device" not in run.alive().values())
    run.interrupt()
    ended = run.ended()
    print(ended.tail())


@pytest.mark.parametrize("at", ["generate", "update", "score", "advantage"])
def test_a_killed_driver(start: Start, at: str) -> None:
    run = start("--set", "score.limit_s=90", at=at)
    run.waiting(1 if at in {"score", "advantage"} else 2)
    run.process.kill()
    ended = run.ended()
    print(ended.tail())


@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_rays_own(start: Start, name: str) -> None:
    run = start(at="update")
    run.waiting(2)
    next(process for process, own in run.alive().items() if own == name).kill()
    ended = run.ended()
    print(ended.tail())
