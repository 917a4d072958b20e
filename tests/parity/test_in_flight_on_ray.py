"""Rows in flight on Ray: weights come while rows are drawn; a replay says whether each token names the right ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from flowgraph import Graph
from flowgraph.analysis.flat_graph import to_json
from flowgraph.app.planning.overlap import with_contract
from flowgraph.engines.local.model import LocalModel
from flowgraph.flows.flow_files import find_flow
from flowgraph.language import Key
from flowgraph.language.handle import ResponseRows
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Program
from flowgraph.models import load, resolve
from flowgraph.passes import compile_graph
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

pytestmark = [pytest.mark.processes, pytest.mark.slow(group="ray")]

OWN = Path(__file__).parent / "in_flight_flows.py"
GRAPH: Graph = compile_graph(find_flow(f"{OWN}:long_responses").flow.graph())
STEPS, DRAWN = 6, "policy.generate"
Weights = Mapping[str, torch.Tensor]


def versions_of(table: pa.Table) -> list[list[int]]:
    rows: list[list[int]] = table.column("versions").to_pylist()
    return rows


def replayed(program: Program, model: Any, sources: Mapping[str, Any]) -> list[Weights]:
    """Train on recorded rollouts in one process, whole steps in order; return the weights before each step."""
    (home,) = program.trained
    handles = {each: model() for each in program.homes}
    executor, weights = Executor(InProcess(handles)), list[Weights]()
    for step in range(STEPS):
        weights.append(handles[home].weights())
        executor.run(program, sources, Key(7, step))
    return weights


def attribution_error(table: pa.Table, weights: list[Weights], model: LocalModel) -> float:
    """Return the largest difference between a recorded log-prob and that of the version that its token names."""
    tokens, versions = torch.tensor(table.column("tokens").to_pylist()), torch.tensor(versions_of(table))
    recorded, worst = torch.tensor(table.column("logprobs").to_pylist()), 0.0
    lengths = torch.full((len(tokens),), tokens.shape[1])
    read = ResponseRows(table.column("context").combine_chunks(), tokens, lengths)
    for version in versions.unique().tolist():
        model.load(weights[version])
        expected = model.token_stats(read, ["logprobs"]).logprobs
        assert expected is not None
        worst = max(worst, float((expected - recorded)[versions == version].abs().max()))
    return worst


@pytest.mark.parametrize("depth", [1, 2])
def test_rows_cross_syncs_within_the_bound_and_a_replay_finds_the_weights_of_each_token(
    depth: int,
    ray_session: Callable[[], Session],
    digit_rows: pa.Table,
    model_cache: Path,
    tmp_path: Path,
    tiny: Callable[..., LocalModel],
) -> None:
    program = lower(GRAPH, with_contract(plan_of(GRAPH, depth), "in_flight"))
    assert program.pipeline is not None
    (schedule,) = program.pipeline.copies
    source = resolve("tiny", cache=model_cache)
    models = ModelSetup({"policy": source}, 0, model_cache)
    prompts = PromptSource(digit_rows, 2, seed=3)
    places = start(program, [GRAPH], Flows((to_json(GRAPH),), str(OWN)), models, ray_session())
    try:
        executor, metrics = Executor(places), list[Mapping[str, float]]()
        for step in range(STEPS):
            ran = executor.run(program, {"prompts": prompts}, Key(7, step), STEPS)
            ran.apply(write_rollout, [DRAWN], [], rollout_file(tmp_path, DRAWN, step))
            metrics.append(ran.observed.means())
        places.finish()
    finally:
        places.close()
    tables = [pq.read_table(rollout_file(tmp_path, DRAWN, step)) for step in range(STEPS)]
    for step, table in enumerate(tables):
        ages = [step - version for row in versions_of(table) for version in row]
        assert all(schedule.version(step) <= version <= step for row in versions_of(table) for version in row)
        assert metrics[step][f"{DRAWN}.staleness_worst"] == max(ages) <= schedule.bound
        assert metrics[step][f"{DRAWN}.staleness"] == pytest.approx(sum(ages) / len(ages))
    mixed = [metrics[step][f"{DRAWN}.mixed"] for step in range(STEPS)]
    assert sum(share > 0 for share in mixed) >= STEPS - depth - 2, mixed
    loaded = load(source, seed=0, cache=model_cache, say=print)
    again = lower(GRAPH, plan_of(GRAPH))
    sources = {"prompts": prompts, DRAWN: RecordedRollouts(tmp_path, DRAWN, Rollout)}

    def model() -> LocalModel:
        return LocalModel(load(source, seed=0, cache=model_cache, say=print).model, loaded.tokenizer, trainable=True)

    weights = replayed(again, model, sources)
    errors = [attribution_error(table, weights, model()) for table in tables]
    print({"depth": depth, "mixed": mixed, "spans": [m[f"{DRAWN}.spans"] for m in metrics], "error": max(errors)})
    assert max(errors) < 1e-4
