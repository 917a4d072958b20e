"""Whole runs on Ray, as a person starts them: what they leave, a user's own files on workers, who can reach them."""

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from nodes.mismatch import METRICS
from tests.cli.small_run import quietly

pytestmark = pytest.mark.processes

MARK = "RAY_RUN_TEST"
LIMIT_S = 120.0
SAME = ("--steps", "3", "--batch", "3", "--set", "policy.generate.n=4", "--eval-every", "2")

FLOW = '''\
"""A flow with a value and nodes of its own, which uses a module beside it."""

from __future__ import annotations

import time
from pathlib import Path

import scales
from flowgraph import Loss, Metric, Value, flow, node
from flowgraph.language import Key, Kind, Measure
from nodes import Advantages, Policy, Prompts, Reference, Rollout, Scores
from nodes import clipped, generate, logprobs, score, update


class Surprise(Value):
    """How unlikely each response is: [B]."""

    kind = Kind.ROW


@node(kind="logprob", metrics=(Metric("surprise", "nats"), Metric("staged", about="1 where these are copies")))
def surprise(model: Reference, rollout: Rollout, *, wait_at: str = "", key: Key = Key()) -> Surprise:
    """Give minus the log-prob of each response; in the second step, wait for a file and fail."""
    if key.step == 1:
        while not Path(wait_at, "go").exists():
            time.sleep(0.05)
        raise ValueError(f"rows lie on no scale of {scales.__file__}")
    told = -(logprobs(model, rollout).data * rollout.mask.data).sum(1)
    copies = float("working_dir_files" in scales.__file__ and "working_dir_files" in __file__)
    measures = [Measure("surprise", float(told.sum()), len(told)), Measure("staged", copies, 1)]
    return Surprise(scales.scaled(told), measures)


@node(kind="advantage")
def weigh(scores: Scores, surprise: Surprise) -> Advantages:
    """Multiply scores by surprise."""
    return Advantages(scores.data * surprise.data)


@flow
def mine(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
    """Weigh scores by surprise."""
    rollout = generate(policy, prompts, n=2)
    advantages = weigh(score(rollout, by="project/rules.py:rule"), surprise(ref, rollout))

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

    return update(policy, loss)
'''
PROJECT = {
    "my.py": FLOW,
    "scales.py": "from factors import FACTOR\n\n\ndef scaled(values):\n    return values * FACTOR\n",
    "factors.py": "FACTOR = 0.5\n",
    # The score is 0.5 only where both this file and the module beside it are the copies that a worker has.
    "rules.py": (
        "import factors\n\n\ndef rule(response):\n"
        "    return factors.FACTOR * ('working_dir_files' in __file__ and 'working_dir_files' in factors.__file__)\n"
    ),
}
TOLD = """\
the run failed after step 1; the records are in runs/mine-1
my.py:44: ref.surprise raised ValueError: rows lie on no scale of STAGED/project/scales.py
    at my.py:27 in surprise
    in ref.surprise as ref.infer on rank R of pool `all`, step 1
"""
STRANGER = """
import sys
import ray

try:
    ray.init(address=sys.argv[1], logging_level="ERROR")
except Exception as error:
    print(type(error).__name__, error)
else:
    print("connected")
"""


@dataclass(frozen=True)
class Running:
    """A run as a process of a session of its own, whose processes bear a mark."""

    process: subprocess.Popen[str]
    folder: Path
    mark: str

    def alive(self) -> list[psutil.Process]:
        """Return the processes that are there, those without a parent too."""
        return [process for process in psutil.process_iter() if self._is_of_run(process)]

    def _is_of_run(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def named(self, name: str) -> psutil.Process:
        """Return the process of this name."""
        return next(process for process in self.alive() if process.name() == name)

    def wait_until(self, what: Callable[[], bool]) -> None:
        """Wait for something that happens while the run goes on."""
        until = time.monotonic() + LIMIT_S
        while not what():
            assert self.process.poll() is None and time.monotonic() < until, self.process.communicate()
            time.sleep(0.05)

    def ended(self) -> tuple[int, str, str]:
        """Wait for the end, and give the exit code, stdout and stderr; nothing may be left then."""
        out, err = self.process.communicate(timeout=LIMIT_S)
        assert self.alive() == []
        return self.process.returncode, out, err


Begin = Callable[..., Running]


@pytest.fixture(scope="module")
def begin() -> Iterator[Begin]:
    """Yield `begin(folder, *arguments)`: start `flowgraph run` in a folder; whatever is left at the end is killed."""
    begun = list[Running]()

    def begin(folder: Path, *arguments: str) -> Running:
        mark = uuid.uuid4().hex
        (folder / "temporary").mkdir()
        process = subprocess.Popen(
            [sys.executable, "-m", "flowgraph", "run", *arguments],
            cwd=folder,
            env=os.environ | {MARK: mark, "TMPDIR": str(folder / "temporary"), "RAY_TMPDIR": "/tmp"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        begun.append(Running(process, folder, mark))
        return begun[-1]

    yield begin
    for each in begun:
        while left := each.alive():
            for process in left:
                process.send_signal(signal.SIGKILL)
        each.process.communicate()


@dataclass(frozen=True)
class Finished:
    """What a run printed, and its folder."""

    out: str
    err: str
    folder: Path

    def facts(self) -> dict[str, Any]:
        """Return what run.json says."""
        told: dict[str, Any] = json.loads((self.folder / "runs/grpo-1/run.json").read_text())
        return told

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl, without seconds."""
        lines = (self.folder / "runs/grpo-1/metrics.jsonl").read_text().splitlines()
        return [{name: value for name, value in json.loads(line).items() if name != "time"} for line in lines]


@pytest.fixture(scope="module")
def on_ray(begin: Begin, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Run three steps of GRPO as it comes: on two devices, by Ray."""
    folder = tmp_path_factory.mktemp("on_ray")
    code, out, err = begin(folder, "grpo", *SAME).ended()
    assert code == 0, err
    return Finished(out, err, folder)


def test_a_run_on_ray_leaves_everything_that_it_promises(on_ray: Finished) -> None:
    folder = on_ray.folder / "runs" / "grpo-1"
    assert on_ray.out == "runs/grpo-1\n"
    assert {path.name for path in folder.iterdir()} == {
        "run.json", "settings.json", "graph.json", "graph.txt", "flow.py", "flow.mmd", "plan.json", "plan.mmd",
        "program.txt", "metrics.jsonl", "measured.jsonl", "rollouts", "weights", "checkpoints",
        "validation", "lock",
    }  # fmt: skip
    facts = on_ray.facts()
    assert (facts["status"], facts["steps_done"], facts["runtime"]) == ("finished", 3, "ray")
    assert set(facts["timings"]) == {"ray_init_s", "actors_s"}
    assert all(0 < seconds < LIMIT_S for seconds in facts["timings"].values())
    steps = [pq.read_table(folder / f"rollouts/policy.generate/{step:06d}.parquet") for step in range(3)]
    assert [table.num_rows for table in steps] == [12, 12, 12]
    assert {"text", "tokens", "logprobs", "score", "group_normalize"} <= set(steps[0].column_names)


def test_a_run_on_ray_leaves_nothing_in_the_temporary_folder(on_ray: Finished) -> None:
    left = [path.name for path in (on_ray.folder / "temporary").iterdir()]
    assert [name for name in left if not name.startswith("torchinductor_")] == []  # a cache of torch's own


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_transformers_loads_the_weights_of_a_run_on_ray(on_ray: Finished) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    weights = on_ray.folder / "runs/grpo-1/weights/policy"
    assert AutoModelForCausalLM.from_pretrained(weights).num_parameters() == 109_376
    assert AutoTokenizer.from_pretrained(weights)("12")["input_ids"]


def test_a_run_on_ray_gives_the_metrics_of_one_in_process(on_ray: Finished, tmp_path: Path) -> None:
    quietly(tmp_path, "run", "grpo", *SAME, "--cluster", "1xcpu")
    alone = Finished("", "", tmp_path)
    assert alone.facts()["runtime"] == "local"
    pairs = list(zip(on_ray.metrics(), alone.metrics(), strict=True))
    assert [line["step"] for line, _ in pairs] == [0, 0, 1, 2, 2, 3]
    for one, other in pairs:
        watched = {name for name in one if name.startswith("policy.mismatch.")}  # two engines here, one there
        assert len(watched) == ("policy.update.loss" in one) * len(METRICS)
        same = {name: value for name, value in one.items() if name not in watched}
        assert same == pytest.approx(other, abs=1e-5, rel=1e-5)


@pytest.mark.slow(group="ray")
def test_workers_run_copies_of_a_users_files_are_reached_by_nobody_else_and_say_what_failed(
    begin: Begin, tmp_path: Path
) -> None:
    (tmp_path / "project").mkdir()
    for name, text in PROJECT.items():
        (tmp_path / "project" / name).write_text(text)
    waits = f"ref.surprise.wait_at={tmp_path}"
    run = begin(tmp_path, "project/my.py", "--steps", "2", "--batch", "3", "--eval-every", "0", "--set", waits)
    metrics = tmp_path / "runs/mine-1/metrics.jsonl"
    run.wait_until(lambda: metrics.is_file() and metrics.read_text().count("\n") == 1)
    listens_on_loopback_only(run)
    refuses_strangers(run, tells_its_token_to_nobody(run))
    (tmp_path / "go").touch()
    code, out, err = run.ended()
    assert (code, out) == (1, "")
    text = re.sub(r"rank \d", "rank R", err[err.index("the run failed") :])
    assert re.sub(r"/\S+/working_dir_files/\w+/", "STAGED/", text) == TOLD
    told = json.loads(metrics.read_text())
    assert (told["ref.surprise.staged"], told["score.reward"]) == (1.0, 0.5)
    assert json.loads((tmp_path / "runs/mine-1/run.json").read_text())["status"] == "failed"


def listens_on_loopback_only(run: Running) -> None:
    """Look at every socket of every process that listens, Ray's own and those where the ranks meet."""
    open_to = {
        (process.name(), each.laddr.ip)
        for process in run.alive()
        for each in process.net_connections("inet")
        if each.status == psutil.CONN_LISTEN
    }
    assert {"gcs_server", "raylet"} <= {name for name, _ in open_to}
    assert {name for name, ip in open_to if ip.removeprefix("::ffff:") not in {"127.0.0.1", "::1"}} == set()


def tells_its_token_to_nobody(run: Running) -> str:
    """Look whether the token stands where other users of the machine can read it, and give it."""
    token: str = run.named("raylet").environ()["RAY_AUTH_TOKEN"]
    assert re.fullmatch("[0-9a-f]{64}", token)
    for process in run.alive():
        assert token not in " ".join(process.cmdline())
    return token


def refuses_strangers(run: Running, token: str) -> None:
    """Connect from this machine with the run's token, with another, and with none."""
    port = next(each.laddr.port for each in run.named("gcs_server").net_connections("inet") if each.status == "LISTEN")
    loopback = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    once = {"RAY_NUM_REDIS_GET_RETRIES": "1", "RAY_py_gcs_connect_timeout_s": "3"}
    comers = [
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}, True),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}, False),
        ({"RAY_AUTH_MODE": "disabled"}, False),
    ]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", STRANGER, f"127.0.0.1:{port}"],
            env=os.environ | loopback | once | auth,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for auth, _ in comers
    ]
    for process, (_, connects) in zip(started, comers, strict=True):
        out, err = process.communicate(timeout=LIMIT_S)
        assert out.startswith("connected" if connects else "ConnectionError"), (out, err)
        assert ("InvalidAuthToken" in err) != connects, (out, err)
