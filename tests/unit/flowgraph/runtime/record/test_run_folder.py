"""A run's folder: made once, written as the run goes, read back, and refused when it is none."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from flowgraph import Loss, Record, Value, flow, node
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import DataError, RunFolderError
from flowgraph.files.hashes import SUMS, read_sums
from flowgraph.flows.flow_files import find_flow
from flowgraph.flows.settings import ResolvedSetting
from flowgraph.language import Key, Kind, Rows
from flowgraph.language.graph import Graph
from flowgraph.language.region import Observations
from flowgraph.language.values import Group
from flowgraph.lowering.program import Program
from flowgraph.passes import compile_graph
from flowgraph.runtime.driver import HeldOutResult
from flowgraph.runtime.finished_groups import TakenRows
from flowgraph.runtime.interpreter import Executor, StepResult
from flowgraph.runtime.places import StartState
from flowgraph.runtime.record.checkpoint import disk_fault
from flowgraph.runtime.record.recorder import Journal, Recorder
from flowgraph.runtime.record.run_facts import DataFacts, ResumableRun, schema_fault
from flowgraph.runtime.record.run_folder import Replay, RunFolder, rollout_file, unused_run_path
from nodes import Policy, Prompts, Rollout, Scores, generate, group_normalize, logprobs, policy_gradient, score, update
from nodes.data.source import FixedPrompts

Tiny = Callable[..., LocalModel]


class Words(Value):
    kind = Kind.ROW


@node
def first_letters(rollout: Rollout) -> Words:
    """Return a row value that is no tensor."""
    return Words(pa.array([text[:1] for text in rollout.text.data.to_pylist()]))


class Half(Record):
    group: Group
    ones: Scores


@node(rows="new")
def every_other(rollout: Rollout) -> Half:
    """Return fewer rows, with their ids."""
    group = rollout.group.data[::2]
    return Half(group=Group(group), ones=Scores(torch.ones(len(group))))


@node
def mask(scores: Scores, words: Words, *, fewer: Annotated[Scores, Rows.OTHER]) -> Scores:
    """Return a row value from a node whose name is that of a part of a rollout."""
    return Scores(scores.data + len(words.data) + len(fewer.data))


@flow
def recorded(prompts: Prompts, policy: Policy) -> Policy:
    """Make row values of many kinds."""
    rollout = generate(policy, prompts, n=2, max_tokens=2)
    scores = mask(score(rollout, by="partial"), first_letters(rollout), fewer=every_other(rollout).ones)
    advantages = group_normalize(scores, rollout.group)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    return update(policy, loss)


@pytest.fixture
def done(
    tiny: Tiny, digit_rows: object, tmp_path: Path, alone: Callable[..., tuple[Program, Executor]]
) -> tuple[RunFolder, Graph, StepResult]:
    """Record one step of the flow above."""
    graph, folder = compile_graph(recorded.graph()), RunFolder.create(tmp_path / "run-1")
    program, executor = alone(graph, {"policy": tiny(trainable=True)})
    ran = executor.run(program, {"prompts": FixedPrompts(digit_rows, (4, 9))}, Key())
    settings, drawn = [ResolvedSetting("run.seed", 0, "default")], {"flow.mmd": "a drawing"}
    folder.begin(program.graph, program, settings, "the flow's text", {"flow": "recorded"}, drawn)
    with Recorder(folder, graph, print) as recorder:
        recorder.stepped(0, ran, 0.5)
    return folder, graph, ran


def test_a_folder_is_made_once_and_the_next_free_name_is_told(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "grpo-1")
    with pytest.raises(RunFolderError) as caught:
        RunFolder.create(tmp_path / "grpo-1")
    assert str(caught.value) == (
        f"{tmp_path}/grpo-1: this run folder already exists; nothing in it was changed\n"
        f"  hint: --out {tmp_path}/grpo-1-1"
    )
    assert unused_run_path(tmp_path, "grpo") == tmp_path / "grpo-2"
    assert unused_run_path(tmp_path / "none", "grpo") == tmp_path / "none" / "grpo-1"


def test_a_name_that_is_no_plain_file_name_and_a_place_that_is_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError) as caught:
        RunFolder.create(tmp_path / "a b")
    assert str(caught.value) == (
        "`a b` is not a valid run name\n  hint: use at most 64 letters, digits, dots, dashes and underscores"
    )
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match=r"cannot be used: .*Not a directory"):
        RunFolder.create(tmp_path / "file" / "run")


def test_a_folder_that_holds_no_run_is_refused_and_the_nearest_named(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "grpo-1").note(status="running")
    with pytest.raises(RunFolderError) as caught:
        RunFolder.open(tmp_path / "gpro-1")
    assert str(caught.value) == f"{tmp_path}/gpro-1: is not a run folder\n  hint: did you mean `grpo-1`?"


def test_a_run_whose_facts_are_damaged_is_refused(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "grpo-1")
    for text, why in (('{"flow": "grpo"}', "lacks `metrics`"), ("[]", "it is not a JSON object")):
        (folder.path / "run.json").write_text(text)
        with pytest.raises(RunFolderError) as caught:
            RunFolder.open(folder.path)
        assert str(caught.value) == f"{folder.path}/run.json: cannot be used: {why}"


def test_facts_add_up_in_one_file_that_is_never_half_written(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    assert folder.facts() == {}
    folder.note(a=1, b=2)
    folder.note(b=3)
    assert folder.facts() == {"a": 1, "b": 3}
    assert [path.name for path in folder.path.iterdir()] == ["run.json"]
    (folder.path / "run.json").write_text('{"a": 1', "utf-8")
    with pytest.raises(RunFolderError, match=r"run\.json: cannot be used: "):
        folder.facts()


def test_a_torn_last_line_of_the_metrics_is_dropped_and_a_broken_one_before_is_refused(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    path = folder.path / "metrics.jsonl"
    assert folder.metrics() == []
    for torn in ('{"step": 1, "rew', '{"step": 1}', "\xff".encode("latin-1").decode("latin-1")):
        path.write_text('{"step": 0}\n' + torn, "utf-8")
        assert folder.metrics() == [{"step": 0}]
    path.write_bytes(b'{"step": 0}\n{"step"\n')
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl: cannot be used: "):
        folder.metrics()


def test_what_is_known_before_the_first_step_is_written_first(done: tuple[RunFolder, Graph, StepResult]) -> None:
    folder, facts = done[0], done[0].facts()
    assert (folder.path / "flow.py").read_text("utf-8") == "the flow's text"
    assert (folder.path / "flow.mmd").read_text("utf-8") == "a drawing"
    assert "policy.generate" in (folder.path / "graph.txt").read_text("utf-8")
    assert json.loads((folder.path / "graph.json").read_text("utf-8"))
    assert json.loads((folder.path / "settings.json").read_text("utf-8")) == [
        {"name": "run.seed", "value": 0, "origin": "default"}
    ]
    assert facts["flow"] == "recorded" and facts["status"] == "running" and facts["steps_done"] == 1
    assert facts["metrics"]["score.reward"]["headline"] is True


def test_a_step_appends_its_metrics_and_its_times_apart(done: tuple[RunFolder, Graph, StepResult]) -> None:
    (line,) = done[0].metrics()
    times = line.pop("time")
    assert line.pop("step") == 0 and times["step_s"] == 0.5
    assert set(times["nodes_s"]) == {node.name for node in done[1].nodes}
    assert line == done[2].observed.means()
    assert times["tokens_per_s"] == line["policy.generate.response_length"] * 4 / 0.5


@contextmanager
def full_disk() -> Generator[None]:
    """Have the system refuse all that makes a file larger than 100 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_a_full_disk_refuses_is_written_when_there_is_room_and_the_third_time_in_a_row_ends_the_run(
    done: tuple[RunFolder, Graph, StepResult],
) -> None:
    folder, graph, ran = done
    said = list[str]()
    with Recorder(folder, graph, said.append) as recorder:
        with full_disk():
            recorder.stepped(1, ran, 0.5)
            recorder.stepped(2, ran, 0.5)
        recorder.stepped(3, ran, 0.5)  # what was refused is written, and seen to be with the next step
        recorder.settle()
        where = f"File too large ({folder.path}); retrying"
        assert said == [f"the records of step {steps} are not written: {where}" for steps in (2, 3, 4)]
        assert [line["step"] for line in folder.metrics()] == [0, 1, 2, 3]
        assert folder.facts()["steps_done"] == 4
        records = folder.records()
        assert folder.damage(records) == []
        listed = read_sums((folder.path / "rollouts/SHA256SUMS").read_text())
        assert sorted(listed) == [f"policy.generate/00000{step}.parquet" for step in (1, 2, 3)]
        with full_disk():
            recorder.stepped(4, ran, 0.5)
            with pytest.raises(OSError, match="File too large"):
                recorder.settle()
            recorder.stepped(5, ran, 0.5)
            with pytest.raises(RunFolderError) as caught:
                recorder.stepped(6, ran, 0.5)
    what = "what the steps before 7 recorded, 3 times in a row, could not be written: File too large"
    assert str(caught.value) == f"{folder.path}: {what}\n  hint: free disk space, then resume"
    assert disk_fault(caught.value)  # so its exit code says that it can be resumed
    folder.rewind(4, records)
    assert folder.records() == records and len(folder.metrics()) == 4


def test_metrics_that_were_cut_in_a_line_are_written_on_at_its_start(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    whole = b'{"step": 0}\n{"step": 1}\n'
    (folder.path / "metrics.jsonl").write_bytes(whole[:-4])
    folder.rewind(2, {"metrics.jsonl": {"size_bytes": len(whole)}})
    assert (folder.path / "metrics.jsonl").read_bytes() == b'{"step": 0}\n'


def test_a_check_is_written_as_eval(tmp_path: Path) -> None:
    folder, graph = RunFolder.create(tmp_path / "run"), compile_graph(recorded.graph())
    ran = StepResult({}, Observations(), places=None)  # type: ignore[arg-type]
    with Recorder(folder, graph, print) as recorder:
        recorder.checked(10, HeldOutResult(replace(graph, outputs=()), ran, {"eval/accuracy": 0.75}), 0.25)
    assert folder.metrics() == [{"step": 10, "eval/accuracy": 0.75, "time": {"check_s": 0.25}}]


def test_rollouts_hold_what_later_nodes_made_of_each_row(done: tuple[RunFolder, Graph, StepResult]) -> None:
    folder, graph, ran = done
    path = rollout_file(folder.path, "policy.generate", 0)
    table, values = pq.read_table(path), {name: item.value for name, item in ran.items.items()}
    assert table["score"].to_pylist() == values["score"].data.tolist()
    assert table["group_normalize"].to_pylist() == values["group_normalize"].data.tolist()
    assert table["first_letters"].to_pylist() == values["first_letters"].data.to_pylist()
    assert table["mask()"].to_pylist() == values["mask"].data.tolist()
    assert "every_other" not in table.column_names
    assert table["columns.prompt"][0].as_py()[0]["role"] == "user"
    assert [each.name for each in path.parent.iterdir()] == ["000000.parquet"]
    back = Replay(folder, graph).sources()["policy.generate"].batch(0)
    assert isinstance(back, Rollout) and back.tokens.data.equal(values["policy.generate"].tokens.data)


def test_a_replay_knows_its_steps_and_refuses_a_run_of_other_nodes_and_a_file_that_is_broken(
    done: tuple[RunFolder, Graph, StepResult], tmp_path: Path
) -> None:
    folder, graph, _ = done
    assert Replay(folder, graph).steps() == 1
    rollout_file(folder.path, "policy.generate", 0).with_suffix(".part").write_bytes(b"torn")
    assert Replay(folder, graph).steps() == 1
    other = RunFolder.create(tmp_path / "other")
    with pytest.raises(RunFolderError) as caught:
        Replay(other, graph).steps()
    assert str(caught.value) == (
        f"{tmp_path}/other: recorded no rollouts of policy.generate\n"
        "  hint: replay the run of a flow with the same generate nodes"
    )
    path = rollout_file(folder.path, "policy.generate", 0)
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"000000\.parquet: cannot be read: "):
        Replay(folder, graph).sources()["policy.generate"].batch(0)
    with pytest.raises(DataError, match=r"000007\.parquet: cannot be read: "):
        Replay(folder, graph).sources()["policy.generate"].batch(7)


@node(kind="generate")
def verdicts(rollout: Rollout) -> Scores:
    """Return what a judge might: it samples, but its scores are no rollout."""
    return Scores(torch.ones(len(rollout.group.data)))


@flow
def judging(prompts: Prompts, policy: Policy) -> Policy:
    """Score by a node that samples."""
    rollout = generate(policy, prompts, n=2, max_tokens=2)
    advantages = group_normalize(verdicts(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    return update(policy, loss)


def test_a_replay_runs_the_nodes_that_sample_no_rollout(done: tuple[RunFolder, Graph, StepResult]) -> None:
    replay = Replay(done[0], compile_graph(judging.graph()))
    assert replay.steps() == 1 and set(replay.sources()) == {"policy.generate"}


def test_a_replay_of_a_run_that_says_it_did_more_steps_than_there_are_is_refused_at_once(
    done: tuple[RunFolder, Graph, StepResult],
) -> None:
    folder, graph, _ = done
    folder.note(steps_done=10**18)
    with pytest.raises(RunFolderError, match=r"recorded no rollouts of policy\.generate for step 1"):
        Replay(folder, graph).steps()


@pytest.mark.parametrize("listed", [b"no hash\n", b"\xff\n", b"0" * 64 + b"  ../run.json\n"])
def test_a_list_of_hashes_that_a_checkpoint_noted_and_that_is_none_is_damage(tmp_path: Path, listed: bytes) -> None:
    folder = RunFolder.create(tmp_path / "run")
    (folder.path / "rollouts").mkdir()
    sums = folder.path / "rollouts" / SUMS
    sums.write_bytes(listed)
    records = folder.records() | {"x" * 5_000: {"size_bytes": 1, "sha256": ""}}
    found = folder.damage(records)
    assert len(found) == 1 and found[0].startswith(f"{sums} cannot be read: ")


def test_the_files_that_a_run_says_its_rows_are_from_have_hashes_by_name() -> None:
    assert schema_fault(DataFacts, {"name": "digits", "files": ["rows.parquet"]}).startswith("files: ")
    assert schema_fault(DataFacts, {"name": "digits", "files": {"rows.parquet": 1}}).startswith("files.")


def test_a_lock_that_is_a_pipe_or_a_link_is_refused_and_what_it_points_to_stays(tmp_path: Path) -> None:
    folder, other = RunFolder.create(tmp_path / "run"), tmp_path / "other.txt"
    os.mkfifo(folder.path / "lock")
    with pytest.raises(RunFolderError, match="lock: cannot be used: it is not a plain file"), folder.locked():
        pass
    (folder.path / "lock").unlink()
    other.write_text("mine")
    (folder.path / "lock").symlink_to(other)
    with pytest.raises(RunFolderError, match="lock"), folder.locked():
        pass
    assert other.read_text() == "mine"


def test_a_path_of_a_run_holds_no_nul_and_its_threads_are_as_many_as_can_be() -> None:
    told = {"id": "", "file": "a\0b", "folder": "/"}
    assert schema_fault(ResumableRun, _resumable(told)).startswith("file: ")
    assert schema_fault(ResumableRun, _resumable(told | {"file": "a.py"})) == ""
    assert schema_fault(ResumableRun, _resumable(told | {"file": "a.py", "threads": 10**18})).startswith("threads: ")


def _resumable(told: dict[str, object]) -> dict[str, object]:
    texts = dict.fromkeys(("flow", "status", "flow_sha256", "full_hash", "structure_hash", "runtime"), "x")
    numbers = dict.fromkeys(("steps", "steps_done", "threads", "batch"), 1)
    return {**texts, **numbers, "metrics": {}, "data": {"name": "digits"}, "options": {}, **told}


def test_a_journal_that_is_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    for name in ("unread", "read"):
        os.mkfifo(tmp_path / name)
    reader = os.open(tmp_path / "read", os.O_RDONLY | os.O_NONBLOCK)
    for name in ("unread", "read"):
        with pytest.raises(OSError, match=name):
            Journal(tmp_path / name)
    os.close(reader)


def test_a_replay_of_responses_that_are_older_than_the_flow_allows_is_refused(tmp_path: Path) -> None:
    lines = ({"step": 0, "groups": [[0, 1, 0]]}, {"step": 1, "groups": [[1, 2, 0]]})
    (tmp_path / "groups.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    replay = Replay(RunFolder(tmp_path), find_flow("grpo").flow.graph())
    rows = StartState(Scores(torch.zeros(1)))
    assert isinstance(replay.in_their_order(rows, lambda step: max(0, step - 1)), TakenRows)
    with pytest.raises(DataError, match="step 1 trained on responses of version 0, and the flow allows 1 and newer"):
        replay.in_their_order(rows, lambda step: step)
