"""Runs on Ray that are interrupted, or whose processes are killed or stopped: each ends soon, says why, leaves nothing.

Every process of a run is known by a mark in its environment, those whose parent is gone too. One killed process and one
interrupt run for each change; all must have passed with the files that tests/slow_inputs.toml lists.
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

pytestmark = pytest.mark.processes

LIMIT_S = 30.0  # from a fault to the end of the last process
START_S = 120.0
MARK = "FAULT_TEST"

FLOW = '''\
"""A flow whose nodes wait where they are told to."""

from __future__ import annotations

import os
import time
from pathlib import Path

from flowgraph import Loss, Mask, flow, node
from flowgraph.language import Key
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

    def told(self) -> str:
        """Return stderr from where the end is told, without process ids, ranks and the figures of a step."""
        lines = self.err.splitlines(keepends=True)
        first = [i for i, line in enumerate(lines) if line.startswith(("the run failed", "stopp"))][:1]
        text = "".join(lines[first[0] :]) if first else self.err
        text = re.sub(r"\brank \d+ of pool `all` \(process \d+\)", "rank R of pool `all` (process N)", text)
        return re.sub(r"(step \d+/\d+)  .*|\(\d+\)", lambda found: found[1] or "(N)", text)


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
        self.temporary.mkdir()
        command = [
            sys.executable,
            "-m",
            "flowgraph",
            "run",
            "slow.py",
            "--batch",
            "2",
            "--eval-every",
            "0",
            "-o",
            "run",
        ]
        with (self.folder / "err").open("w") as err:
            self.process = subprocess.Popen(
                [*command, *self.options],
                cwd=self.folder,
                env=os.environ | {MARK: self.mark, "TMPDIR": str(self.temporary), "RAY_TMPDIR": "/tmp"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=err,
                start_new_session=True,
            )

    @property
    def temporary(self) -> Path:
        """Return where the run keeps what it needs for a while; Ray's logs lie elsewhere."""
        return self.folder / "temporary"

    def left(self) -> list[str]:
        """Name what it keeps there; torch has a cache of its own."""
        return [each.name for each in self.temporary.iterdir() if not each.name.startswith("torchinductor_")]

    def err(self) -> str:
        """Return what was printed as yet."""
        return (self.folder / "err").read_text()

    def facts(self) -> dict[str, object]:
        """Return what the run folder says."""
        told: dict[str, object] = json.loads((self.folder / "run" / "run.json").read_text())
        return told

    def alive(self) -> dict[psutil.Process, str]:
        """Return the processes that are there, with their names; one that waits to be reaped is gone."""
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
    """Yield `start(*options, at=…, seconds=…)`: begin a run, and end whatever is left of it after the test."""
    begun = list[Started]()
    (tmp_path / "here").mkdir()

    def start(*options: str, at: str = "", seconds: float = 90.0) -> Started:
        if at == "score":
            (tmp_path / "rules.py").write_text(SLOW_RULE.format(at=str(tmp_path / "here"), seconds=seconds))
            options += ("--set", 'score.allow=["unconfined", "state"]')  # it says where it is by a file
        elif at:
            options += ("--set", f"{NODES[at]}.at={tmp_path / 'here'}", "--set", f"{NODES[at]}.seconds={seconds}")
        begun.append(Started(tmp_path, ("--steps", "1000", *options)))
        return begun[-1]

    yield start
    for each in begun:
        each.destroy()


STARTING = "starting Ray and 2 workers\n"
FAILED = "the run failed after step 0; the records are in run\n"
HINT = "  hint: out of memory, a crash in native code, or killed; `flowgraph plan` forecasts memory\n"
HOST = "    its task was score, slow_advantages (host), step 0, slow.py:54\n"  # one call of a host process
DOING = {
    "generate": "    its task was policy.slow_generate (policy.sample), step 0, slow.py:53\n",
    "logprob": "    its task was ref.slow_logprobs (ref.infer), step 0, slow.py:55\n",
    "update": "    its task was policy.update (policy.train), step 0, slow.py:60\n",
    "advantage": HOST,
    "score": HOST,
}
ASKED = "stopping after this step (again: at once); the records are in run\n"
SLOW = pytest.mark.slow(group="faults")
KIND_OF_DEVICE_NODE = ["update", *(pytest.param(kind, marks=SLOW) for kind in ("generate", "logprob"))]


def failed(ended: Ended, text: str) -> None:
    """Compare how a run ended with a failure's whole text."""
    assert ended.told() == FAILED + text
    assert (ended.code, ended.status) == (1, "failed")


def interrupted(ended: Ended, text: str) -> None:
    """Compare how a run ended with an interrupt's whole text."""
    assert ended.told() == text
    assert (ended.code, ended.status) == (130, "interrupted")


@pytest.mark.parametrize("at", KIND_OF_DEVICE_NODE)
def test_a_killed_process_of_a_device_is_named_with_what_it_did(start: Start, at: str) -> None:
    run = start(at=at)
    pid = run.waiting(2)[1]
    os.kill(pid, signal.SIGKILL)
    ended = run.ended()
    says = "    Ray says: Worker unexpectedly exits with a connection error code 2 (SYSTEM_ERROR)\n"
    failed(ended, f"rank R of pool `all` (process N) ended during the run\n{DOING[at]}{says}{HINT}")
    assert f"(process {pid}) ended" in ended.err
    assert run.left() == []


@SLOW
@pytest.mark.parametrize("at", ["update", "generate", "logprob"])
def test_a_stopped_process_of_a_device_is_named_with_what_it_did(start: Start, at: str) -> None:
    run = start(at=at)
    pid = run.waiting(2)[1]
    os.kill(pid, signal.SIGSTOP)
    ended = run.ended()
    failed(ended, f"rank R of pool `all` (process N) is stopped, as by SIGSTOP\n{DOING[at]}")
    assert f"(process {pid}) is stopped" in ended.err
    assert run.left() == []


def host_process(run: Started, at: str) -> int:
    """Wait until a host node runs, and return its process; a rule has one of its own below that, and a guard."""
    pid = run.waiting(1)[0]
    return psutil.Process(psutil.Process(pid).ppid()).ppid() if at == "score" else pid


@SLOW
@pytest.mark.parametrize("at", ["advantage", "score"])
def test_a_killed_host_process_is_told_with_what_it_did(start: Start, at: str) -> None:
    run = start("--set", "score.limit_s=90", at=at)
    os.kill(host_process(run, at), signal.SIGKILL)
    says = "    Ray says: The worker died unexpectedly while executing this task\n"
    failed(run.ended(), f"a host process ended during the run\n{DOING[at]}{says}{HINT}")


@SLOW
@pytest.mark.parametrize("at", ["advantage", "score"])
def test_a_stopped_host_process_is_named_with_what_it_did(start: Start, at: str) -> None:
    run = start("--set", "score.limit_s=90", at=at)
    pid = host_process(run, at)
    os.kill(pid, signal.SIGSTOP)
    ended = run.ended()
    failed(ended, f"a host process (N) is stopped, as by SIGSTOP\n{DOING[at]}")
    assert f"a host process ({pid}) is stopped" in ended.err


RULE = """\
slow.py:54: score: rule `rules.py:rule` {what}
    prompt 162, sample 0, response '799'
    in score, slow_advantages on the host, step 0
  hint: on_error=0.0 scores such a response 0.0 and counts it
"""


@SLOW
def test_a_rule_that_hangs_is_named_with_its_response(start: Start) -> None:
    run = start("--set", "score.limit_s=1", at="score")
    run.waiting(1)
    failed(run.ended(), RULE.format(what="returned no score within 1 s"))


@SLOW
def test_a_rule_whose_process_is_killed_is_named_with_its_response(start: Start) -> None:
    run = start("--set", "score.limit_s=90", at="score")
    os.kill(run.waiting(1)[0], signal.SIGKILL)
    failed(run.ended(), RULE.format(what="ended its process: killed by SIGKILL"))


@SLOW
@pytest.mark.parametrize("how", ["ctrl-c", "sigterm"])
def test_an_interrupt_in_a_step_lets_it_finish_and_saves(start: Start, how: str) -> None:
    run = start(at="update", seconds=2)
    run.waiting(2)
    if how == "ctrl-c":
        run.interrupt()
    else:
        run.process.terminate()
    more = "; `flowgraph resume run` continues after step 1"
    text = f"{ASKED}step 1/1000\nstopped after step 1 of 1000; weights and records are in run{more}\n"
    interrupted(run.ended(), text)
    assert (run.folder / "run/weights/policy/model.safetensors").is_file()
    assert run.left() == []


@SLOW
@pytest.mark.parametrize("at", ["generate", "update", "score"])
def test_a_second_interrupt_does_not_wait_for_the_step(start: Start, at: str) -> None:
    run = start("--set", "score.limit_s=90", at=at)
    run.waiting(1 if at == "score" else 2)
    run.interrupt()
    time.sleep(0.2)  # as fast as a person can; what Ray waits for must not swallow it
    run.interrupt()
    interrupted(run.ended(), f"{ASKED}stopped in the middle of step 1; the records are in run\n")
    assert run.left() == []


WHILE_STARTING = "stopped while it was starting; the records are in run\n"


@SLOW
@pytest.mark.parametrize("name", ["raylet", "gcs_server", "ray::RankActor", "ray::warm_up"])
def test_an_interrupt_while_processes_start_ends_them(start: Start, name: str) -> None:
    run = start()
    run.wait_for(name)
    run.interrupt()
    interrupted(run.ended(), WHILE_STARTING)
    assert run.left() == []


@SLOW
@pytest.mark.parametrize("name", ["gcs_server", "raylet", "ray::warm_up"])
def test_sigterm_while_processes_start_ends_them(start: Start, name: str) -> None:
    run = start()
    run.wait_for(name)
    run.process.terminate()
    interrupted(run.ended(), WHILE_STARTING)


@SLOW
def test_an_interrupt_while_a_run_closes_changes_nothing(start: Start) -> None:
    run = start("--steps", "1")
    run.wait_for("ray::RankActor")
    run.wait_until(lambda: "ray::RankActor" not in run.alive().values())
    run.interrupt()
    ended = run.ended()
    assert (ended.code, ended.status, ended.told()) == (0, "finished", f"{STARTING}step 1/1\n")
    assert (run.folder / "run/weights/policy/model.safetensors").is_file()


@SLOW
@pytest.mark.parametrize("at", ["generate", "update", "score", "advantage"])
def test_a_killed_driver_takes_every_process_with_it(start: Start, at: str) -> None:
    run = start("--set", "score.limit_s=90", at=at)
    run.waiting(1 if at in {"score", "advantage"} else 2)
    run.process.kill()
    ended = run.ended()
    assert (ended.code, ended.status, ended.err) == (-signal.SIGKILL, "running", STARTING)


@SLOW
@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_the_end_of_ray_itself_ends_the_run(start: Start, name: str) -> None:
    run = start(at="update")
    run.waiting(2)
    next(process for process, own in run.alive().items() if own == name).kill()
    failed(run.ended(), f"Ray's {name} ended during the run\n{HINT}")
    assert run.left() == []


@SLOW
@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_a_stopped_process_of_ray_itself_ends_the_run(start: Start, name: str) -> None:
    run = start(at="update")
    run.waiting(2)
    next(process for process, own in run.alive().items() if own == name).suspend()
    failed(run.ended(), f"Ray's {name} (N) is stopped, as by SIGSTOP\n")
    assert run.left() == []
