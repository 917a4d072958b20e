"""Trackers: what reaches them, what never does, and that none of them ends a run.

TensorBoard is a development dependency and always runs; the others run, offline, where they are installed.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Any

import pytest

from examples.grpo import grpo
from flowgraph.errors import UsageError
from flowgraph.flows.settings import resolve_settings
from flowgraph.language.region import Observations
from flowgraph.language.values import Measure
from flowgraph.lowering.program import Program
from flowgraph.passes import compile_graph
from flowgraph.runtime import loggers
from flowgraph.runtime.driver import HeldOutResult
from flowgraph.runtime.interpreter import StepResult
from flowgraph.runtime.loggers import ID_FILE, TRACKERS, Logger, Sink, TrackedRun, metric_logger, trackers

CANARY = "canary-4f1e-of-the-environment"
ARGUMENT = "canary-77ab-of-the-command"
GRAPH = compile_graph(grpo.graph())

# Each prints, warns of what it imports, and leaves threads behind, as its makers please.
THEIRS = pytest.mark.filterwarnings("ignore")


def observed(reward: float) -> Observations:
    """Return what a step reports: a declared metric, one that is not, and one that is no number."""
    found = Observations(seconds={"score": 0.5})
    found.add("score", [Measure("reward", reward, 1), Measure("of_nobody", 1.0, 1)])
    found.add("policy.update", [Measure("loss", nan, 1)])
    return found


def ran(reward: float) -> StepResult:
    return StepResult({}, observed(reward), places=None)  # type: ignore[arg-type]


def session(log: Logger, first: int, steps: int) -> None:
    """Log some steps with a check before them, as the driver does."""
    with log:
        log.checked(first, HeldOutResult(GRAPH, ran(9.0), {"eval/reward": 9.0, "eval/loss": nan}), 0.1)
        for step in range(first, first + steps):
            log.stepped(step, ran(step / 2), 0.1)


# ------------------------------------------------------------------------------------------- what is asked for


def test_trackers_are_named_with_commas_between() -> None:
    assert trackers("tensorboard") == ("tensorboard",)
    assert trackers(" tensorboard,,tensorboard ") == ("tensorboard",)
    assert trackers("") == ()


def test_a_tracker_that_is_none_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        trackers("tensorbord")
    assert str(caught.value) == "--log tensorbord: no tracker `tensorbord`\n  hint: did you mean `tensorboard`?"


def test_a_tracker_that_is_not_installed_is_refused_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as caught:
        trackers("wandb")
    assert str(caught.value) == (
        "--log wandb: `wandb` is not installed\n"
        "  hint: pip install wandb, or all of them: pip install 'flowgraph-rl[log]'"
    )


def test_asking_for_a_tracker_imports_none(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name for name in TRACKERS if name in sys.modules}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert trackers("tensorboard,wandb,trackio,swanlab") == tuple(TRACKERS)
    assert {name for name in TRACKERS if name in sys.modules} == before


# ------------------------------------------------------------------------------------------- what they are told


@dataclass
class Diary:
    """A tracker that writes down what it is told, and breaks when told to."""

    lines: list[tuple[int, dict[str, float]]] = field(default_factory=list[tuple[int, dict[str, float]]])
    breaks_at: int | None = None
    closed: int = 0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if step == self.breaks_at:
            raise ConnectionError("the service is gone\nwith many details")
        self.lines.append((step, dict(values)))

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def log_to(tmp_path: Path) -> Callable[..., tuple[Logger, list[str]]]:
    """Return `log_to(name=sink, …)`: a logger to these sinks, and the list of what it says."""

    def make(**sinks: Sink) -> tuple[Logger, list[str]]:
        said = list[str]()
        opening: dict[str, Callable[[TrackedRun], Sink]] = {name: (lambda run, s=s: s) for name, s in sinks.items()}
        return Logger(opening, TrackedRun.of(tmp_path), [GRAPH], said.append), said

    return make


def test_declared_metrics_go_there_by_node_and_step_and_nothing_else(log_to: Any) -> None:
    diary = Diary()
    log, said = log_to(one=diary)
    session(log, 0, 2)
    assert diary.lines == [(0, {"eval/reward": 9.0}), (0, {"score/reward": 0.0}), (1, {"score/reward": 0.5})]
    assert (diary.closed, said) == (1, [])


def test_a_tracker_that_breaks_is_said_so_once_and_the_others_go_on(log_to: Any) -> None:
    broken, sound = Diary(breaks_at=1), Diary()
    log, said = log_to(broken=broken, sound=sound)
    session(log, 0, 4)
    assert said == ["broken: the service is gone; the run goes on without it, and metrics.jsonl has everything"]
    assert [step for step, _ in broken.lines] == [0, 0]
    assert [step for step, _ in sound.lines] == [0, 0, 1, 2, 3]
    assert (broken.closed, sound.closed) == (0, 1)


def test_a_tracker_that_cannot_be_opened_or_closed_does_not_end_a_run(tmp_path: Path) -> None:
    def refused(run: TrackedRun) -> Sink:
        raise PermissionError

    class Stuck(Diary):
        def close(self) -> None:
            raise TimeoutError("not sent within 30 s")

    said, stuck = list[str](), Stuck()
    session(Logger({"one": refused, "two": lambda run: stuck}, TrackedRun.of(tmp_path), [GRAPH], said.append), 0, 2)
    assert [line.partition(";")[0] for line in said] == ["one: PermissionError", "two: not sent within 30 s"]
    assert len(stuck.lines) == 3


def test_what_trackers_print_does_not_reach_what_the_command_prints(
    log_to: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    class Chatty(Diary):
        def log(self, step: int, values: Mapping[str, float]) -> None:
            print("logged", step)

    log, _ = log_to(chatty=Chatty())
    session(log, 0, 1)
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "logged 0\nlogged 0\n")


def test_a_run_keeps_its_id_when_it_is_resumed(tmp_path: Path) -> None:
    (tmp_path / "grpo-1").mkdir()
    first, again = (TrackedRun.of(tmp_path / "grpo-1", step) for step in (0, 5))
    assert (first.id, first.name) == (again.id, "grpo-1")
    assert (tmp_path / "grpo-1" / ID_FILE).read_text() == first.id
    (tmp_path / "grpo-2").mkdir()
    assert TrackedRun.of(tmp_path / "grpo-2").id != first.id


# ------------------------------------------------------------------------------------------- the real ones


@pytest.fixture(scope="session")
def trackio_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Name the folder of trackio's database, which it looks up once, when it is imported."""
    return tmp_path_factory.mktemp("trackio")


@pytest.fixture(params=TRACKERS)
def tracker(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trackio_folder: Path
) -> str:
    """Return each tracker that is here, offline, with a secret in the environment and one on the command line."""
    name: str = request.param
    if name != "tensorboard" and importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    monkeypatch.setenv("SECRET_TOKEN", CANARY)
    monkeypatch.setenv("WANDB_API_KEY", CANARY.ljust(40, "0"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(trackio_folder))
    monkeypatch.setattr(sys, "argv", ["flowgraph", "run", ARGUMENT])
    monkeypatch.chdir(tmp_path)
    return name


def written(*folders: Path) -> bytes:
    files = [path for folder in folders for path in sorted(folder.rglob("*"))]
    return b"".join(path.read_bytes() for path in files if path.is_file())


@THEIRS
def test_a_real_tracker_has_the_metrics_and_no_secret(tracker: str, tmp_path: Path, trackio_folder: Path) -> None:
    run, said = tmp_path / "grpo-1", list[str]()
    run.mkdir()
    session(metric_logger([tracker], run, [GRAPH], say=said.append), 0, 3)
    assert said == []
    held = written(run, trackio_folder)
    assert b"score/reward" in held and b"eval/reward" in held
    assert b"of_nobody" not in held
    for secret in (CANARY, ARGUMENT):
        assert secret.encode() not in held
    assert b"SECRET_TOKEN" not in held


@THEIRS
def test_a_real_tracker_goes_on_with_a_run_that_is_resumed(tracker: str, tmp_path: Path, trackio_folder: Path) -> None:
    run, said = tmp_path / "grpo-1", list[str]()
    run.mkdir()
    session(metric_logger([tracker], run, [GRAPH], say=said.append), 0, 3)
    before = written(run, trackio_folder)
    session(metric_logger([tracker], run, [GRAPH], first_step=2, say=said.append), 2, 3)
    assert said == []
    assert written(run, trackio_folder) != before


@THEIRS
def test_a_real_tracker_that_cannot_write_does_not_end_a_run(tmp_path: Path) -> None:
    run, said = tmp_path / "grpo-1", list[str]()
    run.mkdir()
    (run / "tensorboard").write_text("a file, where its folder should be")
    session(metric_logger(["tensorboard"], run, [GRAPH], say=said.append), 0, 3)
    assert len(said) == 1
    assert said[0].startswith("tensorboard: ") and said[0].endswith("metrics.jsonl has everything")


@THEIRS
def test_tensorboard_reads_back_every_step_once_though_some_were_run_again(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    session(metric_logger(["tensorboard"], tmp_path, [GRAPH]), 0, 4)
    session(metric_logger(["tensorboard"], tmp_path, [GRAPH], first_step=2), 2, 4)
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert sorted(found.Tags()["scalars"]) == ["eval/reward", "score/reward"]
    points = [(each.step, each.value) for each in found.Scalars("score/reward")]
    assert points == [(step, step / 2) for step in range(6)]


def test_the_room_has_four_names() -> None:
    assert set(loggers.__all__) == {"TRACKERS", "Logger", "metric_logger", "trackers"}


def test_metrics_of_a_real_run_arrive(tmp_path: Path, alone: Any, tiny: Any, digit_rows: Any) -> None:
    from flowgraph.language import Key
    from nodes.data.source import PromptSource

    small = {"policy.generate.n": 2, "policy.generate.max_tokens": 2}
    graph = resolve_settings(GRAPH, [], small)[0]
    program: Program
    program, executor = alone(graph, {"policy": tiny(trainable=True), "ref": tiny()})
    diary, said = Diary(), list[str]()
    with Logger({"diary": lambda run: diary}, TrackedRun.of(tmp_path), [graph], said.append) as log:
        for step in range(2):
            log.stepped(step, executor.run(program, {"prompts": PromptSource(digit_rows, 2)}, Key(0, step)), 1.0)
    assert [step for step, _ in diary.lines] == [0, 1]
    assert {"score/reward", "policy.update/loss"} <= diary.lines[0][1].keys()
