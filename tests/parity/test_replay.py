"""A run fed with the recorded rollouts of another takes the same steps, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from examples.grpo import grpo
from flowgraph import Graph
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import RunFolderError
from flowgraph.files.hashes import SUMS
from flowgraph.flows.settings import resolve_settings
from flowgraph.lowering.program import Program
from flowgraph.passes import compile_graph
from flowgraph.runtime.driver import RunSpec, train
from flowgraph.runtime.interpreter import Executor
from flowgraph.runtime.record.recorder import Recorder
from flowgraph.runtime.record.run_folder import Replay, RunFolder, rollout_file
from nodes.data.source import PromptSource

Tiny = Callable[..., LocalModel]
Alone = Callable[..., tuple[Program, Executor]]
SETTINGS = {"policy.generate.n": 4, "policy.generate.max_tokens": 4, "policy.update.lr": 1e-3}


def ran(
    alone: Alone,
    handle: LocalModel,
    ref: LocalModel,
    rows: pa.Table,
    path: Path,
    graph: Graph,
    replay: Replay | None = None,
    seed: int = 0,
) -> tuple[RunFolder, dict[str, torch.Tensor]]:
    """Run three steps, leave a folder, and give it with the weights."""
    folder = RunFolder.create(path)
    program, executor = alone(graph, {"policy": handle, "ref": ref})
    recorded = replay.sources() if replay is not None else {}
    job = RunSpec(program, {"prompts": PromptSource(rows, 6, seed)} | recorded, seed, 3)
    with Recorder(folder, graph, print) as recorder:
        train(job, executor, [recorder])
    return folder, handle.weights()


@pytest.fixture
def graph() -> Graph:
    return resolve_settings(compile_graph(grpo.graph()), [], SETTINGS)[0]


@pytest.fixture
def first(
    tiny: Tiny, digit_rows: pa.Table, tmp_path: Path, graph: Graph, alone: Alone
) -> tuple[RunFolder, dict[str, torch.Tensor]]:
    return ran(alone, tiny(trainable=True), tiny(), digit_rows, tmp_path / "first", graph)


def trained(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out the times, and what sampling reports."""
    return [
        {name: value for name, value in line.items() if "generate" not in name and name != "time"} for line in lines
    ]


def test_losses_metrics_and_weights_are_those_of_the_run_that_is_replayed(
    tiny: Tiny,
    digit_rows: pa.Table,
    tmp_path: Path,
    graph: Graph,
    first: tuple[RunFolder, dict[str, torch.Tensor]],
    alone: Alone,
) -> None:
    folder, weights = first
    replay = Replay(folder, graph)
    assert replay.steps() == 3
    # another seed and other prompts would show: nothing is drawn or read but what is on record
    again, other = ran(alone, tiny(trainable=True), tiny(), digit_rows, tmp_path / "again", graph, replay, seed=9)
    assert trained(again.metrics()) == trained(folder.metrics()) and len(again.metrics()) == 3
    assert any(name.endswith(".loss") for name in again.metrics()[0])
    assert all(torch.equal(weights[name], tensor) for name, tensor in other.items())


def test_a_replay_leaves_the_same_rollouts(
    tiny: Tiny,
    digit_rows: pa.Table,
    tmp_path: Path,
    graph: Graph,
    first: tuple[RunFolder, dict[str, torch.Tensor]],
    alone: Alone,
) -> None:
    again, _ = ran(alone, tiny(trainable=True), tiny(), digit_rows, tmp_path / "again", graph, Replay(first[0], graph))
    for step in range(3):
        one, two = (pq.read_table(rollout_file(each.path, "policy.generate", step)) for each in (first[0], again))
        assert one.equals(two)
        assert {"score", "group_normalize"} <= set(one.column_names)


def test_a_flow_with_other_settings_can_be_fed_with_the_same_rollouts(
    tiny: Tiny,
    digit_rows: pa.Table,
    tmp_path: Path,
    graph: Graph,
    first: tuple[RunFolder, dict[str, torch.Tensor]],
    alone: Alone,
) -> None:
    changed, _ = resolve_settings(graph, [], {"policy.update.micro_batch_tokens": 16, "policy.update.lr": 2e-3})
    again, weights = ran(
        alone, tiny(trainable=True), tiny(), digit_rows, tmp_path / "again", changed, Replay(first[0], changed)
    )
    rewards = [[line["score.reward"] for line in folder.metrics()] for folder in (first[0], again)]
    assert rewards[0] == rewards[1]
    assert any(not torch.equal(first[1][name], tensor) for name, tensor in weights.items())


def test_a_rollout_that_is_not_as_its_run_wrote_it_is_refused_by_its_hash(
    first: tuple[RunFolder, dict[str, torch.Tensor]], graph: Graph
) -> None:
    replay, rollouts = Replay(first[0], graph), first[0].path / "rollouts"
    replay.refuse_damaged(3)  # the run was cut off: its last step is not in the list yet
    one, two = (rollout_file(first[0].path, "policy.generate", step) for step in range(2))
    whole = one.read_bytes()
    one.write_bytes(two.read_bytes())  # a whole file, of which Parquet's own checksums agree
    with pytest.raises(RunFolderError) as caught:
        replay.refuse_damaged(3)
    assert str(caught.value).startswith(
        f"{rollouts}: cannot be replayed: policy.generate/000000.parquet has changed since it was written: sha256 was "
    )
    one.write_bytes(whole)
    lines = (rollouts / SUMS).read_text().splitlines(keepends=True)
    for text, why in (
        ("".join(lines)[:-9], f"{rollouts}: cannot be replayed: SHA256SUMS lacks policy.generate/000001.parquet"),
        ("no hash\n", f"{rollouts / SUMS}: cannot be used: line 1 is not a hash and the name of a file in its folder"),
    ):
        (rollouts / SUMS).write_text(text)
        with pytest.raises(RunFolderError) as caught:
            replay.refuse_damaged(3)
        assert str(caught.value) == why
