"""Runs with rows in flight on Ray, and what their recorded rollouts say: versions of tokens, and if they are true."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from flowgraph import Graph
from flowgraph.analysis.flat_graph import to_json
from flowgraph.engines.local.model import LocalModel
from flowgraph.flows.flow_files import find_flow
from flowgraph.language import Key
from flowgraph.language.handle import ResponseRows
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import CopySchedule, Program
from flowgraph.models import load
from flowgraph.passes import compile_graph
from flowgraph.runtime.group_order import GroupName
from flowgraph.runtime.hosting import ModelSetup
from flowgraph.runtime.interpreter import Executor
from flowgraph.runtime.local import InProcess
from flowgraph.runtime.ray.device import Flows
from flowgraph.runtime.ray.session import Session
from flowgraph.runtime.ray.start import start
from flowgraph.runtime.record.run_folder import RecordedRollouts, rollout_file, write_rollout
from nodes import Rollout
from nodes.data.source import PromptSource
from tests.unit.flowgraph.lowering.test_pipeline_steps import plan_of

OWN = Path(__file__).parent / "in_flight_flows.py"
GRAPH: Graph = compile_graph(find_flow(f"{OWN}:long_responses").flow.graph())
DRAWN = "policy.generate"
Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Flown:
    """The rollouts and metrics of each step of a run, and the groups that it trained on, under `ready`."""

    schedule: CopySchedule
    tables: Sequence[pa.Table]
    metrics: Sequence[Mapping[str, float]]
    groups: Sequence[Sequence[GroupName]] = ()

    def versions(self, step: int) -> list[list[int]]:
        rows: list[list[int]] = self.tables[step].column("versions").to_pylist()
        return rows

    def metric(self, name: str) -> list[float]:
        return [metrics[f"{DRAWN}.{name}"] for metrics in self.metrics]

    def keeps_the_bound(self) -> None:
        """Assert that no token is older than the printed bound, or newer than its step, and that metrics say so."""
        for step in range(len(self.tables)):
            ages = [step - version for row in self.versions(step) for version in row]
            assert all(row == sorted(row) for row in self.versions(step)), "weights only get newer"
            assert min(ages) >= 0
            assert max(ages) <= step - self.schedule.version(step) <= self.schedule.bound
            assert self.metric("staleness_worst")[step] == max(ages)


def flown(
    program: Program, models: ModelSetup, session: Session, prompts: PromptSource, run: Path, steps: int
) -> Flown:
    """Run steps on Ray, and record their rollouts in the folder `run`."""
    assert program.pipeline is not None
    places = start(program, [GRAPH], Flows((to_json(GRAPH),), str(OWN)), models, session)
    try:
        executor, metrics, groups = Executor(places), list[Mapping[str, float]](), list[list[GroupName]]()
        for step in range(steps):
            ran = executor.run(program, {"prompts": prompts}, Key(7, step), steps)
            ran.apply(write_rollout, [DRAWN], [], rollout_file(run, DRAWN, step))
            metrics.append(ran.observed.means())
            groups.append([group.name for group in ran.groups])
        places.finish()
    finally:
        places.close()
    tables = [pq.read_table(rollout_file(run, DRAWN, step)) for step in range(steps)]
    return Flown(program.pipeline.copies[0], tables, metrics, groups)


def attribution_error(ran: Flown, models: ModelSetup, prompts: PromptSource, run: Path) -> list[float]:
    """Return, for each step, the largest difference between a log-prob and that of the version that its token names.

    The weights of all versions are found by training again, in one process, on the rollouts that were recorded.
    """
    source = models.sources["policy"]

    def model(trainable: bool) -> LocalModel:
        loaded = load(source, seed=0, cache=models.cache, say=print)
        return LocalModel(loaded.model, loaded.tokenizer, trainable)

    again, weights = lower(GRAPH, plan_of(GRAPH)), list[Weights]()
    handles = {home: model(home in again.trained) for home in again.homes}
    executor, (home,) = Executor(InProcess(handles)), again.trained
    sources: dict[str, Any] = {"prompts": prompts, DRAWN: RecordedRollouts(run, DRAWN, Rollout)}
    for step in range(len(ran.tables)):
        weights.append(handles[home].weights())
        executor.run(again, sources, Key(7, step))
    reader = model(False)
    return [_largest_error(table, weights, reader.load, reader) for table in ran.tables]


def _largest_error(
    table: pa.Table, weights: Sequence[Weights], load_weights: Callable[[Weights], None], reader: LocalModel
) -> float:
    tokens, worst = table.column("tokens").to_pylist(), 0.0
    width = max(map(len, tokens))
    padded = torch.tensor([row + [0] * (width - len(row)) for row in tokens])
    lengths = torch.tensor([len(row) for row in tokens])
    read = ResponseRows(table.column("context").combine_chunks(), padded, lengths)
    for version in {version for row in table.column("versions").to_pylist() for version in row}:
        load_weights(weights[version])
        expected = reader.token_stats(read, ["logprobs"]).logprobs
        assert expected is not None
        for row, (drawn, versions) in enumerate(
            zip(table.column("logprobs").to_pylist(), table.column("versions").to_pylist(), strict=True)
        ):
            here = torch.tensor(versions) == version
            errors = (expected[row, : len(drawn)] - torch.tensor(drawn))[here].abs()
            worst = max(worst, float(errors.max()) if len(errors) else 0.0)
    return worst
