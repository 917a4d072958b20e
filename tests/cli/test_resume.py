"""Runs that are cut off and resumed: they end as if nothing had happened; what cannot be resumed says why."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowgraph.app.running.training import Observers, train_and_record
from flowgraph.cli.commands.run import exit_code
from flowgraph.cli.output import note
from flowgraph.files.hashes import text_hash
from flowgraph.runtime.record.run_folder import RunFolder
from nodes.data.rows import row
from tests.cli.conftest import Said

Run = Callable[..., Said]
Started = Callable[..., Path]
ROOT = Path(__file__).parents[2]
TINY = (
    "--model", "tiny", "--batch", "2", "--set", "policy.generate.n=2", "--set", "policy.update.lr=0.001",
    "--cluster", "1xcpu", "--eval-every", "2", "--eval-rows", "4", "--checkpoint-every", "2",
)  # fmt: skip


def journal(run: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics, times apart."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "time"} for line in lines]


def hashes(run: Path) -> dict[str, str]:
    """Return the hashes of what the newest checkpoint holds: weights, optimizers, carried values, versions."""
    newest = max((run / "checkpoints").glob("step_*"))
    listed = json.loads((newest / "MANIFEST.json").read_text())["files"]
    return {f"{newest.name}/{each['name']}": each["sha256"] for each in listed if each["name"] != "state.json"}


def files(run: Path, folder: str) -> dict[str, bytes]:
    """Return the files of a run's folder, by their paths in it."""
    return {str(path.relative_to(run)): path.read_bytes() for path in (run / folder).rglob("*") if path.is_file()}


def assert_same(run: Path, whole: Path) -> None:
    """Compare all that two runs left, bit for bit; seconds apart."""
    assert journal(run) == journal(whole)
    assert hashes(run) == hashes(whole)
    for folder in ("rollouts", "weights"):
        one, other = files(run, folder), files(whole, folder)
        assert one.keys() == other.keys()
        assert [name for name in one if one[name] != other[name]] == []


@pytest.fixture(scope="session")
def kept_run(run_once: Callable[..., Path]) -> Callable[[int], Path]:
    """Return `kept_run(steps)`: the folder of a run of this many steps without a break, which must stay as it is."""
    return lambda steps: run_once("grpo", *TINY, "--steps", str(steps), "-o", "run")


@pytest.fixture
def whole(kept_run: Callable[[int], Path]) -> Path:
    """Return the folder of six steps without a break."""
    return kept_run(6)


@pytest.fixture
def started(kept_run: Callable[[int], Path], tmp_path: Path) -> Callable[..., Path]:
    """Return `started(steps)`: a copy, in the test's folder, of a run of the first steps of the same."""

    def copy(steps: int = 4) -> Path:
        run, kept = tmp_path / "run", kept_run(steps)
        shutil.copytree(kept, run)
        told = (run / "run.json").read_text()  # it says where the run was started
        (run / "run.json").write_text(told.replace(str(kept.parent), str(tmp_path)))
        return Path("run")

    return copy


def begun(flowgraph: Run, *more: object, steps: int) -> Path:
    """Run the first steps of the same, with other options."""
    said = flowgraph("run", "grpo", *TINY, "--steps", steps, "-o", "run", *more)
    assert said.code == 0, said.err
    return Path("run")


def facts(run: Path) -> dict[str, Any]:
    """Return what the run folder says."""
    told: dict[str, Any] = json.loads((run / "run.json").read_text())
    return told


def test_a_run_that_goes_on_ends_as_one_that_was_not_interrupted(flowgraph: Run, started: Started, whole: Path) -> None:
    run = started()
    said = flowgraph("resume", run, "--steps", "6")
    assert (said.code, said.out) == (0, "run\n"), said.err
    lines = said.err.splitlines()
    assert lines[:2] == [
        "what follows equals, bit for bit, a run that was not interrupted",
        "continuing after step 4 of 6",
    ]
    assert_same(run, whole)
    checks = [line["step"] for line in journal(run) if "eval/accuracy" in line]
    assert checks == [0, 2, 4, 6]
    told = facts(run)
    assert (told["status"], told["steps"], told["steps_done"]) == ("finished", 6, 6)
    assert [each["after_step"] for each in told["resumed"]] == [4]


def test_a_finished_run_says_so(flowgraph: Run, started: Started) -> None:
    run = started(1)
    before = files(run, ".")
    for more in ((), ("--steps", "1")):
        said = flowgraph("resume", run, *more)
        assert (said.code, said.out) == (0, "run\n")
        assert said.err == "run is finished: 1 of 1 steps; continue with --steps 2\n"
    assert files(run, ".") == before


def test_a_run_without_a_checkpoint_starts_again(flowgraph: Run) -> None:
    run = begun(flowgraph, "--checkpoint-every", "0", steps=2)
    assert not list((run / "checkpoints").glob("step_*"))
    before = journal(run), files(run, "weights")
    (run / "run.json").write_text(json.dumps(facts(run) | {"status": "running"}))
    said = flowgraph("resume", run)
    assert said.code == 0, said.err
    assert said.err.startswith("run has no checkpoint: it starts again from its first step\n")
    assert (journal(run), files(run, "weights")) == before


def test_a_damaged_checkpoint_is_told_of_and_the_one_before_does(flowgraph: Run, started: Started, whole: Path) -> None:
    run = started()
    path = next((run / "checkpoints/step_000004").rglob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    said = flowgraph("resume", run, "--steps", "6")
    assert said.code == 0, said.err
    name = path.relative_to(run / "checkpoints/step_000004")
    assert said.err.startswith(
        f"run/checkpoints/step_000004 is damaged: {name} has changed since it was written; "
        "it is renamed to bad_step_000004; an earlier one is used\n"
    )
    assert "continuing after step 2 of 6\n" in said.err
    assert_same(run, whole)


def test_what_was_recorded_after_the_checkpoint_is_taken_back(flowgraph: Run, started: Started, whole: Path) -> None:
    run = started(5)
    shutil.rmtree(run / "checkpoints/step_000005")
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": 5, "score.rew')  # torn
    (run / "rollouts/policy.generate/000005.part").write_bytes(b"half")
    said = flowgraph("resume", run, "--steps", "6")
    assert said.code == 0 and "continuing after step 4 of 6" in said.err, said.err
    assert_same(run, whole)


def test_checkpoints_that_stay_are_as_many_as_was_said(flowgraph: Run) -> None:
    run = begun(flowgraph, "--checkpoint-every", "1", "--keep", "3", "--eval-every", "0", steps=4)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        f"step_00000{steps}" for steps in (2, 3, 4)
    ]


def test_a_run_is_resumed_from_anywhere(
    flowgraph: Run, started: Started, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = started()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    said = flowgraph("resume", "../run", "--steps", "6")
    assert said.code == 0, said.err
    assert Path.cwd() == tmp_path / "elsewhere"
    assert_same(tmp_path / run, whole)


def test_a_damaged_record_of_an_earlier_step_is_told_before_anything_is_promised(
    flowgraph: Run, started: Started
) -> None:
    run = started()
    flip(run / "metrics.jsonl", 12)
    flip(run / "rollouts/policy.generate/000001.parquet", 400)
    (run / "rollouts/policy.generate/notes.txt").write_text("mine")
    said = flowgraph("resume", run, "--steps", "6")
    assert said.code == 0, said.err
    first, second, third, *_ = said.err.splitlines()
    assert first == "a record of the steps before is damaged: run/metrics.jsonl has changed since it was written"
    told = "run/rollouts/policy.generate/000001.parquet has changed since it was written: sha256 was "
    assert second.startswith(f"a record of the steps before is damaged: {told}")
    assert third == "what follows equals, bit for bit, a run that was not interrupted"
    assert (run / "rollouts/policy.generate/notes.txt").is_file()
    listed = (run / "rollouts/SHA256SUMS").read_text().splitlines()
    assert [line.partition("  ")[2] for line in listed] == [f"policy.generate/00000{i}.parquet" for i in range(6)]


def test_a_checkpoint_under_the_name_of_another_step_is_not_taken_for_it(
    flowgraph: Run, started: Started, whole: Path
) -> None:
    run = started()
    shutil.rmtree(run / "checkpoints/step_000004")
    (run / "checkpoints/step_000002").rename(run / "checkpoints/step_000004")
    before = files(run, ".")
    said = flowgraph("resume", run, "--steps", "6")
    assert said.code == 4, said.err
    assert "none of its checkpoints can be used" in said.err
    assert "step_000004: MANIFEST.json is that of steps 2, not 4" in said.err
    assert {**files(run, "."), "lock": b""} == {**before, "lock": b""}, "what was recorded is not taken back"
    shutil.rmtree(run / "checkpoints")
    said = flowgraph("resume", run, "--steps", "6")
    assert "has no checkpoint: it starts again" in said.err and "bit for bit" not in said.err
    assert_same(run, whole)


# ------------------------------------------------------------------------------------------- what is refused


def test_a_second_driver_is_refused_with_the_process_of_the_first(flowgraph: Run, started: Started) -> None:
    run = started(1)
    with RunFolder(run).locked():
        said = flowgraph("resume", run, "--steps", "2")
    assert said.code == 1
    assert said.err == (
        f"run: process {os.getpid()} runs this; two runs would overwrite each other\n  hint: wait for it, or end it\n"
    )
    assert flowgraph("resume", run, "--steps", "2").code == 0


def test_fewer_steps_than_are_done_are_refused(flowgraph: Run, started: Started) -> None:
    run = started(4)
    (run / "run.json").write_text(json.dumps(facts(run) | {"status": "failed"}))
    said = flowgraph("resume", run, "--steps", "3")
    assert (said.code, said.err) == (2, "--steps 3: 4 steps are done already\n")


@pytest.mark.parametrize("run", ["nowhere", "."])
def test_what_is_no_run_is_refused(flowgraph: Run, run: str) -> None:
    said = flowgraph("resume", run)
    assert said.code == 1 and "is not a run folder" in said.err


FLOW = """\
from __future__ import annotations

from flowgraph import Loss, flow
from nodes import *


@flow
def mine(prompts: Prompts, policy: Policy) -> Policy:
    rollout = generate(policy, prompts, n=2, max_tokens=4)
    advantages = group_normalize(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    return update(policy, loss, lr=1e-3)
"""
SMALL = ("--batch", "2", "--cluster", "1xcpu", "--eval-every", "0", "--checkpoint-every", "2")


def own(flowgraph: Run, *more: object) -> Path:
    """Run two steps of a flow in a file."""
    Path("mine.py").write_text(FLOW)
    said = flowgraph("run", "mine.py", *SMALL, "--steps", "2", "-o", "run", *more)
    assert said.code == 0, said.err
    return Path("run")


@pytest.mark.slow(group="resume")
@pytest.mark.parametrize("how", ["changed", "gone"])
def test_a_flow_that_changed_since_is_resumed_as_it_was(flowgraph: Run, how: str) -> None:
    run = own(flowgraph)
    assert flowgraph("run", "mine.py", *SMALL, "--steps", "4", "-o", "whole").code == 0
    if how == "changed":
        Path("mine.py").write_text(FLOW.replace("1e-3", "1e-2"))
    else:
        Path("mine.py").unlink()
    said = flowgraph("resume", run, "--steps", "4")
    assert said.code == 0, said.err
    told = "mine.py has changed since this run started" if how == "changed" else "mine.py no longer exists"
    assert said.err.startswith(f"{told}; run/flow.py, the copy in the run folder, is resumed\n")
    assert_same(run, Path("whole"))


def forge(run: Path, text: str) -> None:
    """Put another flow in a run's folder, as one that reads otherwise by what it imports, with the hash of it."""
    (run / "flow.py").write_text(text)
    (run / "run.json").write_text(json.dumps(facts(run) | {"flow_sha256": text_hash(text)}))


def test_a_flow_in_the_folder_that_is_not_the_one_it_began_with_is_not_run(flowgraph: Run) -> None:
    run, then = own(flowgraph), text_hash(FLOW)[:16]
    Path("mine.py").unlink()
    (run / "flow.py").write_text("raise SystemExit('run')\n" + FLOW)
    said, now = flowgraph("resume", run, "--steps", "4"), text_hash((run / "flow.py").read_text())[:16]
    assert said.code == 4
    assert said.err == (
        f"run/flow.py: is not the flow that this run started with: sha256 was {then}, is {now}\n"
        "  hint: restore it, or the original mine.py; nothing was run\n"
    )


def test_other_settings_are_refused_by_name(flowgraph: Run) -> None:
    run = own(flowgraph)
    forge(run, FLOW.replace("1e-3", "1e-2"))
    said = flowgraph("resume", run, "--steps", "4")
    assert said.code == 4
    assert said.err.partition("\n")[2] == (
        "run: the flow's settings changed after this run started\n"
        "    policy.update.lr was 0.001, is 0.01\n"
        "  hint: restore the original flow, or start a new run with the changed one\n"
    )


def test_another_structure_is_refused_by_its_lines(flowgraph: Run) -> None:
    run = own(flowgraph)
    forge(run, FLOW.replace("advantages = group_normalize", "advantages = rloo_advantages"))
    said = flowgraph("resume", run, "--steps", "4")
    assert said.code == 4
    assert "run: the flow's structure changed after this run started\n" in said.err
    assert re.search(r"^    -.*group_normalize", said.err, re.MULTILINE), said.err
    assert re.search(r"^    \+.*rloo_advantages", said.err, re.MULTILINE), said.err


def test_other_rows_are_refused(flowgraph: Run) -> None:
    assert flowgraph("data", "digits", "-o", "rows").code == 0
    run = own(flowgraph, "--data", "rows")
    assert flowgraph("data", "addition", "-o", "more").code == 0
    shutil.rmtree("rows")
    Path("more").rename("rows")
    said = flowgraph("resume", run, "--steps", "4")
    assert said.code == 4
    notes = re.findall(
        r"^    rows/(\w+).parquet has changed since it was written: sha256 was \w+, is \w+$", said.err, re.MULTILINE
    )
    assert said.err.startswith(
        "run: the rows of `rows` are not those that this run started with\n    rows/train.parquet "
    )
    assert notes == ["train", "test"], said.err


def flip(path: Path, place: int) -> None:
    """Flip a bit of a file."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


@pytest.mark.slow(group="resume")
def test_no_flipped_bit_of_foreign_data_passes_in_silence_from_the_start_to_a_resume(flowgraph: Run) -> None:
    rows = [row("digits", f"12{i}", f"{i}21", ability="reverse", extra_info={"index": i}) for i in range(4)]
    Path("rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    pq.write_table(pa.Table.from_pylist(rows), "held.parquet")  # without checksums
    run = own(flowgraph, "--data", "rows.jsonl", "--held-out", "held.parquet")
    for name in ("rows.jsonl", "held.parquet"):
        whole = Path(name).read_bytes()
        for place in range(7, len(whole), len(whole) // 6):
            flip(Path(name), place)
            said = flowgraph("resume", run, "--steps", "4")
            assert f"{name} has changed since it was written: sha256 was " in said.err, (place, said.err)
            assert said.code or "; its rows are the same" in said.err, (place, said.err)
        Path(name).write_bytes(whole)


def test_other_weights_of_a_frozen_model_are_refused(flowgraph: Run, started: Started) -> None:
    run = started(2)
    shutil.copytree(run / "weights/policy", "model", ignore=shutil.ignore_patterns("SHA256SUMS"))
    options = (*TINY, "--model", "ref=./model")
    assert flowgraph("run", "grpo", *options, "--steps", "2", "-o", "second").code == 0
    other = flowgraph("run", "grpo", *TINY, "--seed", "1", "--steps", "1", "-o", "third")
    assert other.code == 0
    shutil.copy("third/weights/policy/model.safetensors", "model/model.safetensors")
    said = flowgraph("resume", "second", "--steps", "4")
    assert said.code == 4
    assert "`ref` (./model) has different weights from when this run started" in said.err, said.err


def test_a_run_that_says_nothing_of_how_it_was_run_is_refused(flowgraph: Run, started: Started) -> None:
    run = started(1)
    told = facts(run)
    del told["options"]
    (run / "run.json").write_text(json.dumps(told))
    said = flowgraph("resume", run, "--steps", "2")
    assert said.code == 4
    assert said.err == "run/run.json: does not record how it was run, so it cannot be resumed\n    lacks `options`\n"


# ------------------------------------------------------------------------------------------- killed at any moment

# Each run is a child of this process, which has imported everything; what is done to files of the run is counted, and
# at the nth time a signal comes. So any moment can be chosen, whatever the machine is busy with.
HARNESS = """
import json, os, random, shutil, signal, sys
from pathlib import Path
sys.path[:0] = [{root!r}]
import torch
from safetensors import torch as _
from flowgraph.app.running import training, resuming
from flowgraph.cli import display, main
from flowgraph.runtime import driver, local as in_process
from flowgraph.models import loading
from flowgraph.engines.local import model as local

torch.set_num_threads(1)
from flowgraph.app.planning.flow_inputs import read_inputs
from flowgraph.app.request import Workload
from flowgraph.models import load, resolve

read_inputs(Workload(flow="grpo"))
load(resolve("tiny", cache=Path("models")), seed=0, cache=Path("models"), say=print)
CHANGES = {{"open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.truncate"}}
BEGIN = {begin!r}

def session(run, moment, number, *arguments):
    '''Run a command in a child; at the nth change of the run's files it gets a signal. Gives how it ended.'''
    child = os.fork()
    if child:
        status = os.waitpid(child, 0)[1]
        return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    seen = 0
    def watch(event, paths):
        nonlocal seen
        if event in CHANGES and run in str(paths[0]):
            seen += 1
            if seen == moment:
                os.kill(os.getpid(), number)
    sys.addaudithook(watch)
    out = os.open(run + ".err", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1), os.dup2(out, 2)
    sys.argv = ["flowgraph", *arguments]
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code or 0
    finally:
        sys.stdout.flush(), sys.stderr.flush()
    if not moment:
        Path(run + ".count").write_text(str(seen))
    os._exit(code)

def begin(run, moment, number):
    return session(run, moment, number, "run", *BEGIN, "-o", run)

def resumed(run, moment, number):
    if not Path(run, "run.json").is_file():  # it had not begun
        shutil.rmtree(run, ignore_errors=True)
        return begin(run, moment, number)
    return session(run, moment, number, "resume", run)

kind, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
number = getattr(signal, kind)
assert begin("whole", 0, number) == 0, Path("whole.err").read_text()
whole = int(Path("whole.count").read_text())
chosen = random.Random(seed)
codes = []
for i in range(count):
    run = f"cut{{i}}"
    # one in each share of the run, so that few of them reach from its start to its end; later kills are anywhere
    first = 1 + int((i + chosen.random()) * whole / count)
    ended = [begin(run, first, number)]
    while ended[-1]:
        assert len(ended) < 9, (ended, Path(run + ".err").read_text())
        again = chosen.randrange(1, whole) if len(ended) < 2 + i % 2 else 0
        ended.append(resumed(run, again, number))
        assert ended[-1] in (0, -number, 130), (ended, Path(run + ".err").read_text())
    codes.append(ended)
print(json.dumps(codes))
"""


SIX_STEPS = ("grpo", *TINY, "--steps", "6")


def cut_off(folder: Path, kind: str, seed: int, count: int, begin: tuple[str, ...] = SIX_STEPS) -> list[list[int]]:
    """Run one run whole and `count` others that are cut off and resumed; give how each session ended."""
    script = HARNESS.format(root=str(ROOT), begin=begin)
    command = [sys.executable, "-W", "ignore", "-c", script, kind, str(seed), str(count)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    codes: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
    return codes


MORE = [pytest.param(seed, 10, marks=pytest.mark.slow(group="resume")) for seed in (1, 2, 3)]


@pytest.mark.processes
@pytest.mark.parametrize(("seed", "count"), [(0, 2), *MORE])
def test_a_run_killed_at_any_moment_and_resumed_ends_as_one_that_was_not(tmp_path: Path, seed: int, count: int) -> None:
    codes = cut_off(tmp_path, "SIGKILL", seed, count)
    assert sum(code == -9 for ended in codes for code in ended) >= count
    for i in range(count):
        assert_same(tmp_path / f"cut{i}", tmp_path / "whole")


@pytest.mark.processes
@pytest.mark.slow(group="resume")
@pytest.mark.parametrize("count", [2, 10])
def test_an_interrupted_run_says_how_to_go_on_and_ends_as_one_that_was_not(tmp_path: Path, count: int) -> None:
    codes = cut_off(tmp_path, "SIGTERM", seed=count, count=count)
    told = "".join((tmp_path / f"cut{i}.err").read_text() for i in range(count))
    assert 130 in {code for ended in codes for code in ended}
    stopped = re.findall(r"stopped after step \d of 6; .*", told)
    assert all(re.search(r"`flowgraph resume cut\d` continues after step \d", line) for line in stopped)
    for i in range(count):
        assert_same(tmp_path / f"cut{i}", tmp_path / "whole")


NOT_BEGUN = {
    "stopped": (KeyboardInterrupt(), 130, "stopped before it began; {run} is not kept\n"),
    "full": (
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        3,
        "the run failed before it began; {run} is not kept\n{run}: [Errno 28] No space left on device\n",
    ),
}


@pytest.mark.parametrize("how", NOT_BEGUN)
def test_a_run_that_did_not_begin_leaves_no_folder_that_nothing_can_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    fault, code, told = NOT_BEGUN[how]
    folder = RunFolder.create(tmp_path / "run")

    def begun() -> None:
        (folder.path / "graph.json").write_text("{}")
        raise fault

    nothing: Any = SimpleNamespace(job=SimpleNamespace(steps=1))  # is prepared, for it gets no further
    with folder.locked():
        assert exit_code(train_and_record(nothing, folder, begun, Observers(say=note))) == code
    assert capsys.readouterr().err == told.format(run=folder.path)
    assert not folder.path.exists()


# ------------------------------------------------------------------------------------------- killed on Ray


ON_RAY = (*TINY[:-8], "--eval-every", "0", "--checkpoint-every", "1", "--steps", "6")
MARK = "RESUME_TEST"
LIMIT_S = 300.0


def alive(mark: str) -> list[psutil.Process]:
    """Return the processes that bear a mark, those whose parent is gone too."""
    found = list[psutil.Process]()
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def on_ray(folder: Path, run: str, *arguments: str, kill: str = "", lines: int = 0) -> tuple[int, str]:
    """Run a command; once so many steps are recorded, kill its driver or the process of a rank. Nothing may be left."""
    mark, metrics = uuid.uuid4().hex, folder / run / "metrics.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "flowgraph", *arguments],
        cwd=folder,
        env=os.environ | {MARK: mark, "RAY_TMPDIR": "/tmp"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while kill and not (metrics.is_file() and metrics.read_bytes().count(b"\n") >= lines):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    if kill:
        found = alive(mark) if kill == "worker" else []
        victim = next((each for each in found if each.name() == "ray::RankActor"), None)
        os.kill(victim.pid if victim is not None else process.pid, signal.SIGKILL)
    _, err = process.communicate(timeout=LIMIT_S)
    until = time.monotonic() + LIMIT_S
    while left := alive(mark):
        assert time.monotonic() < until, left
        time.sleep(0.05)
    return process.returncode, err


@pytest.fixture(scope="module")
def whole_on_ray(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run six steps on two ranks without a break."""
    folder = tmp_path_factory.mktemp("ray")
    code, err = on_ray(folder, "whole", "run", "grpo", *ON_RAY, "--cluster", "2xcpu-4GiB", "-o", "whole")
    assert code == 0, err
    return folder


MOMENTS = [("worker", 2), ("driver", 3), *((kill, lines) for kill in ("worker", "driver") for lines in (1, 4, 5))]


@pytest.mark.processes
@pytest.mark.slow(group="resume")
@pytest.mark.parametrize(("kill", "lines"), MOMENTS)
def test_a_run_on_ray_whose_driver_or_worker_is_killed_is_resumed(whole_on_ray: Path, kill: str, lines: int) -> None:
    folder, run = whole_on_ray, f"{kill}{lines}"
    begin = ("run", "grpo", *ON_RAY, "--cluster", "2xcpu-4GiB", "-o", run)
    code, err = on_ray(folder, run, *begin, kill=kill, lines=lines)
    saved = [path.name for path in (folder / run / "checkpoints").glob("step_*")]
    if kill == "worker":
        assert code == (3 if saved else 1), err
        assert re.search(rf"`flowgraph resume {run}` continues after step \d", err) or not saved
    else:
        assert code == -signal.SIGKILL
    code, err = on_ray(folder, run, "resume", run)
    assert code == 0, err
    assert "equals, bit for bit" in err or not saved
    assert_same(folder / run, folder / "whole")


# ------------------------------------------------------------------------------------------- a full disk

SMALL_DISK = """
mount -t tmpfs -o size=2500k tmpfs disk
"$@" run grpo {tiny} --steps 12 -o disk/run; echo "ended $?"
ls disk/run/checkpoints
mount -o remount,size=64m disk
"$@" resume disk/run; echo "ended $?"
cp -r disk/run run
"""


@pytest.mark.slow(group="resume")
def test_a_run_whose_disk_is_full_goes_on_then_stops_and_resumes_when_there_is_room(
    flowgraph: Run, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    alone = ["unshare", "-Urm"]
    try:
        subprocess.run([*alone, "mount", "-t", "tmpfs", "tmpfs", "disk"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system can be mounted here")
    script = SMALL_DISK.format(tiny=" ".join(TINY))
    command = [*alone, "sh", "-c", script, "sh", sys.executable, "-m", "flowgraph"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    said = [line for line in done.stderr.splitlines() if "checkpoint" in line]
    assert [line.partition(":")[0] for line in said[:2]] == [f"no checkpoint after step {n}" for n in (4, 6)], said
    refused = "disk/run/checkpoints: the checkpoint after step 8, 3 times in a row, could not be written: No space"
    assert any(line.startswith(refused) for line in said), done.stderr
    assert done.stdout.splitlines() == ["ended 3", "step_000002", "disk/run", "ended 0"]
    assert flowgraph("run", "grpo", *TINY, "--steps", "12", "-o", "whole").code == 0
    assert_same(Path("run"), Path("whole"))
