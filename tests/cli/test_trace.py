"""`trace` and `report` of a run that was measured: forecast and measured in one file, and beside each other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flowgraph.app.running.run_report import RunTrace
from flowgraph.cluster.plan import Plan
from flowgraph.errors import SettingError
from flowgraph.language.region import Observations
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Program, Read, Run, Sync
from flowgraph.runtime.interpreter import StepResult
from flowgraph.runtime.measure.measured_step import MeasuredRecorder
from flowgraph.runtime.measure.measured_task import MeasuredTask, about_task
from flowgraph.runtime.record.run_folder import RunFolder
from flowgraph.serialize.graph import from_json
from tests.cli.kept_plans import write_plan

Command = Callable[..., Any]
MIB = 2**20
START_S = 1_800_000_000.0
QUICK = ("--cluster", "1xcpu", "--steps", 1, "--batch", 2, "--set", "policy.generate.n=4", "--eval-every", 0)
LENGTHS = ("--prompt-tokens", "512", "--response-tokens", "mean=2k,max=8k")
COSTED = ("--cluster", "2x8xh100", "--model", "Qwen/Qwen3-0.6B", "--batch", "64", *LENGTHS, "--placement", "split")


def program_of(run: Path) -> Program:
    """Read back the program of a run's folder."""
    graph = from_json((run / "graph.json").read_text())
    return lower(graph, Plan.from_json((run / "plan.json").read_text()))


def made_up(program: Program, step: int) -> list[MeasuredTask]:
    """Return what tasks might have taken: each 2 s, one after another, with 600 MiB in use."""
    at, found = START_S + 100 * step, list[MeasuredTask]()
    for task in (each for each in program.tasks if not isinstance(each, Read)):
        told = [about_task(task, program.graph)]
        if isinstance(task, Sync) and task.source.pool != task.target.pool:
            told = [about_task(task, pool=task.source.pool), *told]
        if isinstance(task, Run) and task.home is not None:
            told = [about_task(task, program.graph, rank) for rank in range(task.home.layout.data)]
        took = {"seconds": 2.0, "peak_bytes": 600 * MIB, "process_bytes": 300 * MIB}
        found += [replace(each, begin_s=at, **took) for each in told]
        at += 2
    return found


def measure(run: Path, steps: int) -> Program:
    """Leave steps in a run's folder as a run that is measured does."""
    program = program_of(run)
    with MeasuredRecorder(RunFolder(run), program) as recorder:
        for step in range(steps):
            ran = StepResult({}, Observations(measured=made_up(program, step)), places=None)  # type: ignore[arg-type]
            recorder.stepped(step, ran, 21.0)
    return program


@pytest.fixture
def ran(run_once: Callable[..., Path], flowgraph: Command, tmp_path: Path) -> Path:
    """Return the folder of a short run, of which nothing else was measured than what a test measures."""
    shutil.copytree(run_once("grpo", *map(str, QUICK)), tmp_path / "runs" / "grpo-1")
    (tmp_path / "runs" / "grpo-1" / "measured.jsonl").unlink(missing_ok=True)
    return Path("runs/grpo-1")


@pytest.fixture
def costed(ran: Path, flowgraph: Command) -> Path:
    """Return a run's folder whose plan forecasts seconds: of GRPO on 16 GPUs, training and drawing apart."""
    write_plan(flowgraph, "plan", "grpo", *COSTED, out=str(ran / "plan.json"))
    graph = json.loads(flowgraph("show", "grpo", "--json").out)
    (ran / "graph.json").write_text(json.dumps(graph))
    return ran


def events_of(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return found


def measured_steps(events: list[dict[str, Any]]) -> set[int]:
    """Return the steps of which a trace has something that was measured."""
    processes = {each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"}
    spans = [each for each in events if each["ph"] == "X" and processes[each["pid"]].endswith(", measured")]
    return {each["args"]["step"] for each in spans}


def test_a_run_of_which_nothing_was_measured_is_refused(flowgraph: Command, ran: Path) -> None:
    said = flowgraph("trace", ran)
    assert (said.code, said.out) == (1, "")
    assert said.err == "runs/grpo-1: has no step in measured.jsonl: nothing was measured\n"
    assert "peak forecast" not in flowgraph("report", ran).out


def test_a_plan_without_seconds_leaves_what_was_measured_and_says_so(flowgraph: Command, ran: Path) -> None:
    program = measure(ran, 3)
    plan = json.loads((ran / "plan.json").read_text())
    (ran / "plan.json").write_text(json.dumps(plan | {"step": None}))
    said = flowgraph("trace", ran)
    assert said.out == "runs/grpo-1/trace.json\n"
    assert said.err == "the plan forecasts no seconds: only what was measured is shown\n"
    events = events_of(ran / "trace.json")
    names = [each["args"]["name"] for each in events if each["name"] == "process_name"]
    assert names == ["all, measured", "host, measured"]
    spans = [each for each in events if each["ph"] == "X"]
    assert len(spans) == 3 * len([task for task in program.tasks if not isinstance(task, Read)])


def test_a_trace_has_the_last_steps_that_are_asked_for(flowgraph: Command, ran: Path) -> None:
    measure(ran, 5)
    assert flowgraph("trace", ran, "--steps", 2, "-o", "two.json").code == 0
    assert measured_steps(events_of(Path("two.json"))) == {3, 4}
    told = json.loads(flowgraph("trace", ran, "--steps", 1, "--json").out)
    assert measured_steps(told["traceEvents"]) == {4}


def test_forecast_and_measured_lie_in_one_file_as_processes(flowgraph: Command, costed: Path) -> None:
    measure(costed, 2)
    said = flowgraph("trace", costed)
    assert (said.code, said.err) == (0, "")
    events = events_of(costed / "trace.json")
    names = {each["args"]["name"]: each["pid"] for each in events if each["name"] == "process_name"}
    assert next(iter(names)) == "grpo, predicted" and len(set(names.values())) == len(names) == 4
    of = {pid: {e["name"] for e in events if e["ph"] == "X" and e["pid"] == pid} for pid in names.values()}
    assert "policy.update" in of[names["grpo, predicted"]]
    assert sum("policy.update" in told for told in of.values()) == 2, "once as forecast and once as measured"
    arrows = [each for each in events if each["ph"] in "sf"]
    assert arrows and {each["name"] for each in arrows} == {"weights"}


def test_compare_pairs_every_task_with_its_forecast(flowgraph: Command, costed: Path) -> None:
    measure(costed, 3)
    rows = {each["task"]: each for each in json.loads(flowgraph("trace", costed, "--compare", "--json").out)}
    plan = json.loads((costed / "plan.json").read_text())
    forecast = {each["name"]: sum(each["parts"].values()) for each in plan["step"]["tasks"]}
    for name in ("policy.generate", "policy.update", "ref.logprobs"):
        assert rows[name]["forecast_s"] == pytest.approx(forecast[name])
        assert rows[name]["measured_s"] == 2.0
        assert rows[name]["measured_bytes"] == 600 * MIB
        assert rows[name]["forecast_bytes"] > 0
    tasks = {name: row for name, row in rows.items() if name != "a step"}
    assert any(name.startswith("sync ") for name in tasks) and any(name.startswith("transfer ") for name in tasks)
    for name, row in tasks.items():
        assert row["forecast_s"] == pytest.approx(forecast[name]), "the forecast simulates the tasks that were run"
    assert rows["a step"]["forecast_s"] == plan["step"]["period_s"]
    assert rows["a step"]["measured_s"] == 21.0


def test_what_is_compared_fits_in_a_hundred_columns(flowgraph: Command, costed: Path) -> None:
    measure(costed, 3)
    said = flowgraph("trace", costed, "--compare")
    assert said.code == 0, said.err
    head, *rows = said.out.splitlines()
    assert head.split() == ["task", "pool", "forecast", "measured", "ratio", "peak", "forecast", "measured", "ratio"]
    update = next(row for row in rows if row.startswith("policy.update"))
    assert "2 s" in update and "600.0 MiB" in update
    assert rows[-1] == "seconds are medians of 3 steps, peaks the highest of them"
    assert [line for line in said.out.splitlines() if len(line) > 100] == []


def test_a_report_sets_measured_peaks_beside_the_forecast(flowgraph: Command, ran: Path) -> None:
    measure(ran, 2)
    text = flowgraph("report", ran).out
    assert "peak forecast" in text and "policy.train" in text
    peaks = json.loads(flowgraph("report", ran, "--json").out)["peaks"]
    told = {(each["phase"], each["role"]): each for each in peaks}
    plan = json.loads((ran / "plan.json").read_text())
    forecast = {(each["phase"], each["role"]): each["memory_bytes"] for each in plan["forecast"][0]["peaks"]}
    assert {key: each["forecast_bytes"] for key, each in told.items() if each["forecast_bytes"]} == forecast
    assert all(each["measured_bytes"] == 600 * MIB for each in peaks)


def test_a_damaged_file_of_measured_steps_is_refused(flowgraph: Command, ran: Path) -> None:
    (ran / "measured.jsonl").write_text("no json\n")
    for verb in ("trace", "report"):
        said = flowgraph(verb, ran)
        assert said.code == 1
        assert said.err.startswith("runs/grpo-1/measured.jsonl: cannot be used: ")


def test_a_trace_of_no_steps_is_refused() -> None:
    empty: Any = None
    with pytest.raises(SettingError, match=r"^--steps: steps=0: should be a whole number from 1$"):
        RunTrace(run=empty, plan=empty, measured=()).trace(0)
