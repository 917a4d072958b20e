"""What tasks took: seconds, bytes, peaks; a step of them in the form of a forecast; profiles of bounded size."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from examples.grpo import grpo
from flowgraph import Graph
from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.analysis.roles import roles
from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import PlacedRole, Plan, Pool
from flowgraph.errors import RunFolderError, UsageError
from flowgraph.language.region import Observations
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Program, Read, Run, Switch, Sync, Task
from flowgraph.lowering.task_names import task_name
from flowgraph.passes import compile_graph
from flowgraph.runtime.driver import HeldOutResult
from flowgraph.runtime.hosting import to_wire
from flowgraph.runtime.interpreter import StepResult
from flowgraph.runtime.measure import measured_task, profiling
from flowgraph.runtime.measure.measured_step import (
    NAME,
    MeasuredRecorder,
    MeasuredStep,
    measured_events,
    measured_step,
    read_measured,
)
from flowgraph.runtime.measure.measured_task import (
    MeasuredTask,
    Measures,
    about_task,
    bytes_of,
    measuring,
    note_process,
)
from flowgraph.runtime.measure.profiling import profile_folder, profiled_steps
from flowgraph.runtime.record.run_folder import RunFolder
from placements.step.step_forecast import schedule_of
from placements.step.timeline import timeline_of
from tests.looped import looped

MIB = 2**20
TASK = MeasuredTask("policy.update", "update", "policy.train", "train")
START_S = 1_800_000_000.0


def taken(mib: int) -> bytes:
    """Take memory that is really there, page by page."""
    return np.ones(mib * MIB, np.uint8).tobytes()


# ------------------------------------------------------------------------------------------------- one task


def test_a_task_has_its_seconds_its_bytes_and_where_it_ran() -> None:
    before_s, start_s = time.time(), time.perf_counter()
    with measuring(replace(TASK, rank=1)) as meter:
        meter.reads(pa.table({"tokens": np.zeros(1000, np.int64)}))
        meter.gives(b"12345", b"678")
        time.sleep(0.02)
    told = meter.measured
    assert (told.task, told.kind, told.role, told.pool, told.rank) == (*(TASK.task, TASK.kind, TASK.role, TASK.pool), 1)
    assert (told.bytes_read, told.bytes_given) == (8000, 8)
    assert before_s <= told.begin_s <= told.end_s <= time.time()
    assert 0.02 <= told.seconds <= time.perf_counter() - start_s
    assert pickle.loads(pickle.dumps(told)) == told


def test_the_peak_is_what_was_held_during_the_task_though_it_is_gone_at_its_end() -> None:
    before = measured_task.resident_bytes()
    with measuring(TASK) as first:
        taken(96)
    with measuring(TASK) as second:
        pass
    assert first.measured.peak_bytes > before + 90 * MIB
    assert second.measured.peak_bytes < first.measured.peak_bytes - 60 * MIB, "of the task before is no part of it"


def test_a_task_within_another_does_not_lower_its_peak() -> None:
    before = measured_task.resident_bytes()
    with measuring(TASK) as outer:
        taken(96)
        with measuring(TASK) as inner:
            pass
    assert outer.measured.peak_bytes > before + 90 * MIB
    assert inner.measured.peak_bytes < outer.measured.peak_bytes - 60 * MIB


def test_where_the_peak_cannot_start_anew_what_is_resident_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measured_task, "CLEAR_REFS", tmp_path / "nothing" / "here")
    with measuring(TASK) as meter:
        kept = taken(32)
    assert len(kept) == 32 * MIB
    assert meter.measured.peak_bytes == pytest.approx(measured_task.resident_bytes(), rel=0.1)


def test_a_task_that_fails_is_not_measured_and_leaves_nothing_under_way() -> None:
    with pytest.raises(ZeroDivisionError), measuring(TASK) as meter:
        raise ZeroDivisionError
    assert meter.measured.seconds == 0
    with measuring(TASK) as after:
        pass
    assert after.measured.peak_bytes > 0
    assert meter.peak_bytes == 0, "it is no longer under way"


def test_what_the_process_held_before_weights_is_told_with_each_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_task, "_process_bytes", dict[str, int]())
    note_process()
    with measuring(TASK) as meter:
        pass
    assert MIB < meter.measured.process_bytes <= meter.measured.peak_bytes + MIB


def test_measuring_takes_less_than_a_fifth_of_a_millisecond() -> None:
    """Take the best of ten, in seconds of processor: what runs beside it on the machine only adds to times."""

    def once() -> float:
        start_s = time.process_time()
        for _ in range(20):
            with measuring(TASK):
                pass
        return (time.process_time() - start_s) / 20

    assert min(once() for _ in range(10)) < 2e-4


def test_bytes_are_those_of_rows_and_weights_however_they_are_held() -> None:
    import torch

    table = pa.table({"ids": np.arange(100, dtype=np.int32)})
    weights = {"a": torch.zeros(10, 10), "b": torch.zeros(4, dtype=torch.bfloat16)}
    assert bytes_of(table) == 400
    assert bytes_of(table.slice(0, 25)) == 100
    assert bytes_of(weights) == bytes_of(to_wire(weights)) == 408
    assert bytes_of([table, None, "text", 7]) == 400


def test_measures_of_a_rank_are_given_once() -> None:
    measures = Measures(rank=1)
    task = next(task for task in PROGRAM.tasks if isinstance(task, Sync))
    with measures.of(task, pool="train"), measures.of(PROGRAM.tasks[-1], PROGRAM.graph):
        pass
    told = [(each.task, each.kind, each.pool, each.rank) for each in measures.drained()]
    assert told == [("policy.update", "update", "train", 1), ("sync policy to sample/local", "sync", "train", 1)]
    assert measures.drained() == []


def test_what_tasks_took_is_merged_with_what_they_report() -> None:
    one, other = Observations(measured=[TASK]), Observations(measured=[replace(TASK, rank=1)])
    one.merge(other)
    assert [each.rank for each in one.measured] == [0, 1]


# ------------------------------------------------------------------------------------------------- one step


def apart() -> Program:
    """Lower GRPO under a plan with a pool of two devices for each use of a model."""
    graph = compile_graph(grpo.graph())
    used = list(dict.fromkeys(role.use for role in roles(graph)))
    cpu = Device(kind="cpu", memory_bytes=2**30)
    laptop = Machine(name="laptop", devices=(cpu,) * 2 * len(used), host_memory_bytes=2**33, cores=2)
    plan = Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=Cluster(nodes=(laptop,)),
        pools=tuple(Pool(name=use, devices=(("laptop", 2 * i), ("laptop", 2 * i + 1))) for i, use in enumerate(used)),
        placed=tuple(PlacedRole(role=role.name, pool=role.use, engine="local") for role in roles(graph)),
    )
    return lower(graph, plan)


PROGRAM = apart()


def ranks_of(task: Task, graph: Graph) -> list[MeasuredTask]:
    """Name a task as its ranks do: a sync is given in one pool and taken in another."""
    if isinstance(task, Sync):
        return [about_task(task, rank=0, pool=task.source.pool), about_task(task, rank=0), about_task(task, rank=1)]
    return [about_task(task, graph, rank) for rank in ((0, 1) if isinstance(task, Run) and task.home else (0,))]


def made_up(program: Program, step: int = 0) -> list[MeasuredTask]:
    """Return what the tasks of a step might have taken, one after another; rank 1 is the slower by a half."""
    begin_s, found = START_S + 100 * step, list[MeasuredTask]()
    for task in program.tasks:
        if isinstance(task, Read):
            continue
        for each in ranks_of(task, program.graph):
            took_s, peak = 1 + 0.5 * each.rank, (500 + 10 * each.rank) * MIB
            parts = (("nodes", took_s / 2),) if isinstance(task, Run) else ()
            at = begin_s + (each.kind == "sync" and each.pool == "sample")  # taken once it is given
            told = replace(each, begin_s=at, seconds=took_s, peak_bytes=peak, process_bytes=300 * MIB, parts=parts)
            found.append(told)
        begin_s += 2
    return found


def test_tasks_are_named_as_programs_print_them() -> None:
    names = [(task_name(task), about_task(task, PROGRAM.graph).kind) for task in PROGRAM.tasks]
    assert names == [
        ("sync policy to sample/local", "sync"),
        ("read prompts", "host"),
        ("transfer prompts to sample", "transfer"),
        ("policy.generate", "generate"),
        ("transfer policy.generate to host", "transfer"),
        ("transfer policy.generate to infer", "transfer"),
        ("transfer policy.generate to train", "transfer"),
        ("score, group_normalize", "host"),
        ("ref.logprobs", "logprob"),
        ("transfer ref.logprobs to train", "transfer"),
        ("transfer group_normalize to train", "transfer"),
        ("policy.update", "update"),
    ]
    home = PROGRAM.homes[0]
    assert task_name(Switch(home, awake=False)) == f"sleep policy on {home}"
    assert about_task(Switch(home, awake=True)).kind == "offload"


def test_a_measured_step_has_the_tasks_of_the_program_in_its_order_with_the_slowest_ranks_seconds() -> None:
    step = measured_step(3, made_up(PROGRAM)[::-1], PROGRAM, 24.0)
    assert [each.name for each in step.timed.tasks] == [
        task_name(task) for task in PROGRAM.tasks if not isinstance(task, Read)
    ]
    by_name = {each.name: each for each in step.timed.tasks}
    update, sync = by_name["policy.update"], by_name["sync policy to sample/local"]
    assert (update.role, update.pools, update.parts) == ("policy.train", ("train",), {"nodes": 0.75, "around": 0.75})
    assert (sync.role, sync.pools, sync.parts) == ("policy.sample", ("train", "sample"), {"train": 1.0, "sample": 1.5})
    assert by_name["score, group_normalize"].pools == ("host",)
    assert step.timed.period_s == 24.0
    assert step.step == 3


def test_measured_tasks_wait_for_what_they_waited_for() -> None:
    step = measured_step(0, made_up(PROGRAM), PROGRAM, 24.0).timed
    waits = {(each.before, each.after, each.delay) for each in step.waits}
    assert ("sync policy to sample/local", "policy.generate", 0) in waits
    assert ("transfer ref.logprobs to train", "policy.update", 0) in waits
    assert ("policy.update", "sync policy to sample/local", 1) in waits, "the next step's sync brings what it made"
    assert all(each.before != "read prompts" for each in step.waits), "what was not measured is not waited for"


def test_what_was_not_measured_is_waited_through() -> None:
    told = [each for each in made_up(PROGRAM) if each.kind != "transfer"]
    waits = {(each.before, each.after) for each in measured_step(0, told, PROGRAM, 24.0).timed.waits if not each.delay}
    assert {("policy.generate", "ref.logprobs"), ("ref.logprobs", "policy.update")} <= waits
    assert ("score, group_normalize", "policy.update") in waits


def test_a_measured_step_plays_as_a_forecast_does() -> None:
    step = measured_step(0, made_up(PROGRAM), PROGRAM, 24.0).timed
    simulated = timeline_of(schedule_of(step.tasks, step.waits), steps=3)
    seconds = [each.seconds or 0 for each in step.tasks]
    assert max(seconds) < simulated.finish_s[0] < sum(seconds)


def test_peaks_are_told_by_pool_phase_and_role_as_a_plan_tells_them() -> None:
    forecast = {each.pool: each for each in measured_step(0, made_up(PROGRAM), PROGRAM, 24.0).forecast}
    assert set(forecast) == {"sample", "infer", "train"}, "the host is no pool"
    assert forecast["infer"].process_bytes == 300 * MIB
    peaks = {(peak.phase, peak.role): peak.memory_bytes for peak in forecast["infer"].peaks}
    assert peaks["logprob", "ref.infer"] == 510 * MIB, "of the rank that held most"


def test_a_task_that_comes_twice_in_a_step_counts_with_both_times() -> None:
    home = PROGRAM.homes[0]
    switch = replace(about_task(Switch(home, awake=False)), begin_s=START_S, seconds=0.25, peak_bytes=MIB)
    again = replace(switch, begin_s=START_S + 50)
    step = measured_step(0, [*made_up(PROGRAM), switch, again], PROGRAM, 60.0).timed
    (told,) = [each for each in step.tasks if each.kind == "offload"]
    assert told.seconds == 0.5


def test_nodes_left_of_a_replayed_run_keep_their_place() -> None:
    told = [replace(each, task="group_normalize") if "score" in each.task else each for each in made_up(PROGRAM)]
    names = [each.name for each in measured_step(0, told, PROGRAM, 24.0).timed.tasks]
    assert names.index("group_normalize") < names.index("ref.logprobs")


# ------------------------------------------------------------------------------------------------- many steps


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[..., Path]:
    """Return `recorded(*steps)`: a run's folder in which these steps were measured."""

    def record(*steps: int) -> Path:
        with MeasuredRecorder(RunFolder(tmp_path), PROGRAM) as recorder:
            for step in steps:
                observed = Observations(measured=made_up(PROGRAM, step))
                recorder.stepped(step, StepResult({}, observed, places=None), 24.0)  # type: ignore[arg-type]
        return tmp_path

    return record


def test_steps_are_read_back_as_they_were_written(recorded: Callable[..., Path]) -> None:
    steps = read_measured(recorded(0, 1, 2))
    assert [each.step for each in steps] == [0, 1, 2]
    assert steps[1] == measured_step(1, made_up(PROGRAM, 1), PROGRAM, 24.0)


def test_a_step_that_was_run_again_counts_once_and_a_torn_line_not_at_all(recorded: Callable[..., Path]) -> None:
    run = recorded(0, 1, 2)
    recorded(1, 2, 3)
    with (run / NAME).open("a") as file:
        file.write('{"step": 4, "timed"')
    assert [each.step for each in read_measured(run)] == [0, 1, 2, 3]


def test_a_step_of_which_nothing_was_measured_leaves_no_line(tmp_path: Path) -> None:
    with MeasuredRecorder(RunFolder(tmp_path), PROGRAM) as recorder:
        ran = StepResult({}, Observations(), places=None)  # type: ignore[arg-type]
        recorder.stepped(0, ran, 1.0)
        recorder.checked(0, HeldOutResult(PROGRAM.graph, ran, {}), 1.0)
    assert read_measured(tmp_path) == []


@pytest.mark.parametrize("line", ["nothing", "{}", '{"step": -1}', "[1]"])
def test_a_file_that_holds_no_steps_is_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(f"{line}\n")
    with pytest.raises(RunFolderError) as caught:
        read_measured(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / NAME}: cannot be used: ")


def test_a_trace_has_a_process_for_each_pool_a_thread_for_each_rank_and_arrows_for_weights() -> None:
    steps = [measured_step(step, made_up(PROGRAM, step), PROGRAM, 24.0) for step in range(2)]
    events = measured_events(steps, first_process=2)
    names = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    assert list(names) == ["infer, measured", "sample, measured", "train, measured", "host, measured"]
    assert sorted(names.values()) == [2, 3, 4, 5]
    spans = [each for each in events if each["ph"] == "X"]
    assert len(spans) == sum(len(step.tasks) for step in steps)
    (update, slower) = (e for e in spans if e["name"] == "policy.update" and e["args"]["step"] == 0)
    assert (update["pid"], update["tid"], slower["tid"]) == (names["train, measured"], 1, 2)
    assert (update["dur"], slower["dur"]) == (1e6, 1.5e6)
    assert min(each["ts"] for each in spans) == 0
    arrows = [each for each in events if each["ph"] in "sf"]
    assert [each["ph"] for each in arrows] == ["s", "f"] * 4, "to both ranks, in both steps"
    assert {(each["ph"], each["pid"]) for each in arrows} == {
        ("s", names["train, measured"]),
        ("f", names["sample, measured"]),
    }
    assert json.loads(json.dumps(events)) == events


# ------------------------------------------------------------------------------------------------- profiles


def worked() -> float:
    import torch

    return float((torch.ones(64, 64) @ torch.ones(64, 64)).sum())


def spans_of(path: Path) -> list[Mapping[str, Any]]:
    trace: dict[str, Any] = json.loads(path.read_text())
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def profiled(run: Path) -> profiling.Profiles:
    """Return profiles of the first step."""
    return profiling.Profiles(run, frozenset({0}))


def test_a_wanted_step_leaves_a_trace_of_what_torch_did(tmp_path: Path) -> None:
    folder = profile_folder(tmp_path, 3)
    profiles = profiling.Profiles(tmp_path, frozenset({3}))
    for step in range(5):
        with profiles.of(step, "train-0-policy.update"):
            worked()
    assert [path.name for path in (tmp_path / "profile").iterdir()] == ["step_000003"]
    assert [path.name for path in folder.iterdir()] == ["train-0-policy.update.json"]
    assert folder == tmp_path / "profile" / "step_000003"
    assert "aten::mm" in {event["name"] for event in spans_of(folder / "train-0-policy.update.json")}


def test_a_step_that_is_not_wanted_leaves_nothing(tmp_path: Path) -> None:
    with profiling.Profiles(tmp_path).of(3, "train-0"):
        worked()
    assert list(tmp_path.iterdir()) == []


def test_a_trace_that_is_too_large_keeps_its_longest_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "MAX_BYTES", 1000)
    monkeypatch.setattr(profiling, "MAX_EVENTS", 2)
    with profiled(tmp_path).of(0, "train-0"):
        for _ in range(20):
            worked()
    path = profile_folder(tmp_path, 0) / "train-0.json"
    assert len(spans_of(path)) == 2
    told = json.loads(path.read_text())["cut"]
    assert int(told.split()[0]) > 20


def test_a_profile_that_cannot_be_written_does_not_end_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "profile").write_text("a file, where a folder should be")
    with profiled(tmp_path).of(0, "train-0"):
        assert worked() > 0
    monkeypatch.setattr(profiling, "MAX_BYTES", 10)
    monkeypatch.setattr(profiling, "MAX_READ_BYTES", 20)
    with profiled(tmp_path / "large").of(0, "train-0"):
        assert worked() > 0
    first, second = (line for line in capsys.readouterr().err.splitlines() if "no profile" in line)
    assert first.startswith(f"{profile_folder(tmp_path, 0) / 'train-0.json'}: no profile: ")
    assert second.endswith("profile a smaller step")
    assert list(profile_folder(tmp_path / "large", 0).iterdir()) == []


def test_work_that_fails_while_it_is_profiled_fails_as_it_would_alone(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), profiled(tmp_path).of(0, "train-0"):
        raise ZeroDivisionError
    with profiled(tmp_path).of(0, "train-0"):
        worked()
    assert [path.name for path in profile_folder(tmp_path, 0).iterdir()] == ["train-0.json"]


@looped("text", ["", "3,", "x", "-1", "1.5", "٣"])
def test_steps_to_profile_are_numbers(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        profiled_steps(text)
    assert str(caught.value) == f"--profile {text}: should be steps with commas between\n  hint: --profile 3,7"


def test_a_step_of_a_measured_file_is_data_that_refuses_what_it_does_not_know(recorded: Callable[..., Path]) -> None:
    line = json.loads((recorded(0) / NAME).read_text())
    with pytest.raises(ValueError, match="extra_forbidden"):
        MeasuredStep.model_validate_json(json.dumps(line | {"more": 1}))
